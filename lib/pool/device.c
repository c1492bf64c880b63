/*
 * A device of this process: its primary context, its store of pages, and the way every driver call off the hot path is made. Owns the
 * device record's set-up and tear-down; guarded by the registry lock (open, close) and the device lock (calls); called by api and lib/pool.
 */
#include "pool/cache.h"

/* ---- has the primary context gone? -------------------------------------------------------------- */

/* In the context. Without a witness only a driver that refuses the context tells. */
static void make_witness(cmi_device *device)
{
    const cmi_driver *driver = device->driver;
    CUstream stream = NULL;
    unsigned long long id;
    device->witness = NULL;
    if (!driver->StreamGetId) {
        return;
    }
    if (driver->StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS && driver->StreamGetId(stream, &id) == CUDA_SUCCESS) {
        device->witness = stream;
        device->witness_id = id;
    } else if (stream) { /* made, whatever the driver said */
        (void)driver->StreamDestroy(stream);
    }
}

/* In the context. Its handle may be another stream's by now. */
static void end_witness(cmi_device *device)
{
    unsigned long long id;
    if (device->witness && device->driver->StreamGetId(device->witness, &id) == CUDA_SUCCESS && id == device->witness_id) {
        (void)device->driver->StreamDestroy(device->witness);
    }
    device->witness = NULL;
}

cmpool_status cmi_device_ask_lost(cmi_device *device)
{
    CUresult code = CUDA_SUCCESS;
    unsigned long long id = device->witness_id;
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status == CMPOOL_OK) {
        code = device->witness ? device->driver->StreamGetId(device->witness, &id) : CUDA_SUCCESS;
        cmi_device_call_end(device, &call);
        (void)cmi_driver_status("cuStreamGetId", code);
    } else if (status == CMPOOL_ERR_DEVICE_LOST) { /* it cannot even be entered */
        code = (CUresult)cmi_error_detail()->driver_code;
    }
    bool gone = code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_CONTEXT;
    device->lost = gone || (code == CUDA_SUCCESS && id != device->witness_id);
    for (cmi_pool *pool = device->lost ? device->pools : NULL; pool; pool = pool->next) {
        cmi_cache_end_all(pool); /* all requests are to be refused */
    }
    return device->lost ? CMPOOL_ERR_DEVICE_LOST : CMPOOL_OK;
}

/* ---- open and close ----------------------------------------------------------------------------- */

static cmpool_status open_store(cmi_device *device, const cmi_options *options, const int *peers, unsigned peer_count)
{
    cmi_driver_scope scope;
    cmpool_status status = cmi_driver_enter(&scope, device->driver, device->primary);
    if (status != CMPOOL_OK) {
        return status;
    }
    CUdevice handle;
    size_t total = 0;
    status = cmi_driver_status("cuDeviceGet", device->driver->DeviceGet(&handle, device->ordinal));
    if (status == CMPOOL_OK) {
        status = cmi_driver_status("cuDeviceTotalMem", device->driver->DeviceTotalMem(&total, handle));
    }
    if (status == CMPOOL_OK) {
        cmi_store_config config = {.driver = device->driver,
                                   .device = device->ordinal,
                                   .page_bytes = options->page_size,
                                   .rdma = options->rdma != 0,
                                   .peers = peers,
                                   .peer_count = peer_count};
        status = cmi_store_open(&device->store, &config);
    }
    if (status == CMPOOL_OK) {
        cmi_returns_register(device);
        make_witness(device);
    }
    cmi_driver_leave(&scope);
    if (status == CMPOOL_OK) {
        device->total_bytes = total;
        device->page_bytes = cmi_store_page_bytes(device->store);
    }
    return status;
}

static void free_tables(cmi_device *device)
{
    cmi_meta_free(device->streams, device->stream_room * sizeof *device->streams);
    cmi_meta_free(device->stream_table, device->stream_table_room * sizeof *device->stream_table);
    cmi_meta_free(device->contexts, device->context_room * sizeof *device->contexts);
    for (uint32_t i = 0; i < device->stamp_chunk_count; i++) {
        cmi_meta_free(device->stamp_chunks[i], CMI_STAMP_CHUNK * sizeof **device->stamp_chunks);
    }
    cmi_meta_free(device->stamp_chunks, device->stamp_chunk_room * sizeof *device->stamp_chunks);
    device->streams = NULL;
    device->stream_table = NULL;
    device->contexts = NULL;
    device->stamp_chunks = NULL;
    device->stream_count = device->stream_room = device->stream_table_room = 0;
    device->unused_streams = device->stream_table_used = device->stream_known = 0;
    device->context_count = device->context_room = 0;
    device->stamp_chunk_count = device->stamp_chunk_room = device->unused_stamp = device->unused_stamp_count = 0;
}

cmpool_status cmi_device_open(cmi_device *device, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count)
{
    cmpool_status status = cmi_driver_open(&device->driver);
    if (status != CMPOOL_OK) {
        return status;
    }
    device->ordinal = ordinal;
    CUdevice handle;
    CUresult code = device->driver->DeviceGet(&handle, ordinal);
    if (code != CUDA_SUCCESS) {
        return code == CUDA_ERROR_INVALID_DEVICE ? CMPOOL_ERR_DRIVER_MISSING : cmi_driver_status("cuDeviceGet", code);
    }
    code = device->driver->DevicePrimaryCtxRetain(&device->primary, handle);
    if (code != CUDA_SUCCESS) {
        return cmi_driver_status("cuDevicePrimaryCtxRetain", code);
    }
    device->contexts = cmi_meta_alloc(4 * sizeof *device->contexts);
    if (device->contexts) {
        device->context_room = 4;
        device->context_count = 1;
        device->contexts[0] = (cmi_context){.handle = device->primary};
        device->ticket = 1;
        device->full = device->lost = false;
        device->slow_since_full = device->tight = 0;
        device->unretired_streams = 0;
        status = cmi_stream_open(device) ? open_store(device, options, peers, peer_count) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    } else {
        status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (status != CMPOOL_OK) {
        free_tables(device);
        device->driver->DevicePrimaryCtxRelease(handle);
        device->primary = NULL;
    }
    return status;
}

cmpool_status cmi_device_close(cmi_device *device)
{
    cmi_lock_acquire(&device->lock);
    cmi_fence_forget_all(device);
    cmi_lock_release(&device->lock);
    cmi_driver_scope scope;
    cmpool_status status = cmi_driver_enter(&scope, device->driver, device->primary);
    cmi_returns_unregister(device);
    end_witness(device);
    unsigned stranded = cmi_store_close(device->store); /* frees the records even where the driver is gone */
    if (status == CMPOOL_OK) {
        cmi_driver_leave(&scope);
    }
    device->store = NULL;
    CUdevice handle;
    if (device->driver->DeviceGet(&handle, device->ordinal) == CUDA_SUCCESS) {
        device->driver->DevicePrimaryCtxRelease(handle);
    }
    device->primary = NULL;
    free_tables(device);
    return status == CMPOOL_OK && stranded ? CMPOOL_ERR_DRIVER : status;
}

/* The next run of mapped slots of a pool at or behind slot *first of range *r. 0: none left. Device lock held. */
static uint32_t mapped_run(const cmi_pool *pool, uint32_t *r, uint32_t *first)
{
    for (; *r < pool->arena.range_count; ++*r, *first = 0) {
        const cmi_range *range = pool->arena.ranges[*r];
        for (; *first < range->slot_count && range->kind != CMI_RANGE_MALLOC; ++*first) {
            uint32_t end = *first;
            while (end < range->slot_count && (range->slots[end].state == CMI_SLOT_MAPPED || range->slots[end].state == CMI_SLOT_STALE)) {
                end++;
            }
            if (end > *first) {
                return end - *first;
            }
        }
    }
    return 0;
}

static cmpool_status grant_pool(cmi_device *device, cmi_pool *pool)
{
    cmpool_status status = CMPOOL_OK;
    uint32_t r = 0, first = 0;
    for (uint32_t count; status == CMPOOL_OK && (count = mapped_run(pool, &r, &first)) != 0;) {
        uint64_t address = pool->arena.ranges[r]->base + (uint64_t)first * device->page_bytes;
        cmi_call call;
        status = cmi_device_call_begin(device, &call, 0);
        if (status == CMPOOL_OK) {
            status = cmi_arena_grant(&pool->arena, address, count);
            cmi_device_call_end(device, &call);
        }
        uint32_t same_r = r, same_first = first;
        if (status != CMPOOL_OK && mapped_run(pool, &same_r, &same_first) != count) {
            status = CMPOOL_OK; /* a page moved away meanwhile: look again from here */
        } else {
            first += count;
        }
    }
    return status;
}

cmpool_status cmi_device_add_peer(cmi_device *device, int peer)
{
    cmi_driver_scope scope;
    cmpool_status status = cmi_driver_enter(&scope, device->driver, device->primary);
    if (status != CMPOOL_OK) {
        return status;
    }
    status = cmi_store_add_peer(device->store, peer);
    cmi_driver_leave(&scope);
    cmi_lock_acquire(&device->lock);
    for (cmi_pool *pool = device->pools; pool && status == CMPOOL_OK; pool = pool->next) {
        cmi_pool_pin(pool);
        status = grant_pool(device, pool);
        cmi_pool_unpin(pool);
    }
    cmi_lock_release(&device->lock);
    return status;
}

cmpool_status cmi_device_call_begin(cmi_device *device, cmi_call *call, uint32_t context)
{
    CUcontext handle = device->contexts[context].handle;
    device->in_flight++;
    cmi_lock_release(&device->lock);
    cmpool_status status = cmi_driver_enter(&call->scope, device->driver, handle);
    if (status != CMPOOL_OK) {
        cmi_lock_acquire(&device->lock);
        device->in_flight--;
        pthread_cond_broadcast(&device->landed);
    }
    call->entered = status == CMPOOL_OK;
    return status;
}

void cmi_device_call_begin_anyway(cmi_device *device, cmi_call *call)
{
    if (cmi_device_call_begin(device, call, 0) != CMPOOL_OK) {
        device->in_flight++;
        cmi_lock_release(&device->lock);
    }
}

void cmi_device_call_end(cmi_device *device, cmi_call *call)
{
    if (call->entered) {
        cmi_driver_leave(&call->scope);
    }
    cmi_lock_acquire(&device->lock);
    device->in_flight--;
    device->landings++;
    pthread_cond_broadcast(&device->landed);
}

void cmi_device_carry_begin(cmi_device *device)
{
    while (device->alone) {
        pthread_cond_wait(&device->landed, &device->lock.mutex);
    }
    device->carriers++;
    device->carried++;
}

void cmi_device_carry_alone(cmi_device *device)
{
    cmi_device_carry_end(device, false);
    while (device->alone) {
        pthread_cond_wait(&device->landed, &device->lock.mutex);
    }
    device->alone = true;
    while (device->carriers) {
        pthread_cond_wait(&device->landed, &device->lock.mutex);
    }
    device->carriers = 1;
    device->carried++;
}

void cmi_device_carry_end(cmi_device *device, bool alone)
{
    device->carriers--;
    device->alone = device->alone && !alone;
    pthread_cond_broadcast(&device->landed);
}

uint64_t cmi_device_ask_free(cmi_device *device)
{
    size_t left, total;
    uint64_t bytes = UINT64_MAX;
    cmi_call call;
    if (!device->lost && cmi_device_call_begin(device, &call, 0) == CMPOOL_OK) {
        if (device->driver->MemGetInfo(&left, &total) == CUDA_SUCCESS) {
            bytes = left;
        }
        cmi_device_call_end(device, &call);
    }
    return bytes;
}
