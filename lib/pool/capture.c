/*
 * Stream captures and the memory of CUDA graphs. Owns the count of live captures of the process (atomic: a capture on any device bars the
 * same calls) and the life of capture sets; a set is an owner in its pool, guarded by the device lock; called by api.
 *
 * A graph uses the addresses it was captured with each time it is launched, whatever was freed since. So a set is fed with new pages, or
 * with pages that the host saw idle before the capture began, and what it took stays its own, at its place, until the set is released.
 * In its STREAM bin sets is only what captured work has freed; what the program frees outside a capture waits in the MIXED ones.
 */
#include "pool/cache.h"

#include <stdatomic.h>

/* The gate between captures and the calls that would invalidate them. Nothing else is locked under it. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_is_clear = PTHREAD_COND_INITIALIZER; /* barred_calls fell to 0 */
static _Atomic uint32_t live_captures;                          /* written under the gate */
static uint32_t foreign_captures;                               /* of those, without a set */
static uint32_t barred_calls;                                   /* in the driver now */

bool cmi_capture_is_live(void) { return atomic_load(&live_captures) != 0 && !CMI_MUTATION(CAPTURE_IGNORED); }

static void start(uint32_t foreign)
{
    pthread_mutex_lock(&gate);
    atomic_fetch_add(&live_captures, 1);
    foreign_captures += foreign;
    while (barred_calls) { /* no new ones come */
        pthread_cond_wait(&gate_is_clear, &gate);
    }
    pthread_mutex_unlock(&gate);
}

void cmi_capture_start(void) { start(0); }

void cmi_capture_start_foreign(void) { start(1); }

static void stop(void) { atomic_fetch_sub(&live_captures, 1); }

cmpool_status cmi_capture_end_foreign(void)
{
    pthread_mutex_lock(&gate);
    bool begun = foreign_captures > 0;
    if (begun) {
        foreign_captures--;
        stop();
    }
    pthread_mutex_unlock(&gate);
    return begun ? CMPOOL_OK : CMPOOL_ERR_INVALID_ARGUMENT;
}

void cmi_capture_found(void)
{
    pthread_mutex_lock(&gate);
    atomic_fetch_add(&live_captures, 1);
    pthread_mutex_unlock(&gate);
}

void cmi_capture_left(void)
{
    pthread_mutex_lock(&gate);
    stop();
    pthread_mutex_unlock(&gate);
}

cmpool_status cmi_capture_ask(cmi_device *device, uint32_t stream, CUstream handle, bool *captured)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, device->streams[stream].context);
    if (status == CMPOOL_OK) {
        CUresult code = device->driver->StreamIsCapturing(handle, &state);
        cmi_device_call_end(device, &call);
        status = cmi_driver_status("cuStreamIsCapturing", code);
    }
    *captured = state != CU_STREAM_CAPTURE_STATUS_NONE || status == CMPOOL_ERR_CAPTURE; /* the legacy stream, barred by another's */
    return status == CMPOOL_ERR_CAPTURE ? CMPOOL_OK : status;
}

static void let_go(void)
{
    pthread_mutex_lock(&gate);
    if (--barred_calls == 0) {
        pthread_cond_broadcast(&gate_is_clear);
    }
    pthread_mutex_unlock(&gate);
}

cmpool_status cmi_capture_barred_begin(cmi_device *device, cmi_call *call, uint32_t context)
{
    pthread_mutex_lock(&gate);
    bool live = cmi_capture_is_live();
    barred_calls += !live;
    pthread_mutex_unlock(&gate);
    cmpool_status status = live ? CMPOOL_ERR_CAPTURE : cmi_device_call_begin(device, call, context);
    if (status != CMPOOL_OK && !live) {
        let_go();
    }
    return status;
}

void cmi_capture_barred_end(cmi_device *device, cmi_call *call)
{
    cmi_device_call_end(device, call);
    let_go();
}

void cmi_capture_prepare(cmi_device *device)
{
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        cmi_cache_drain(pool);
        cmi_heap_flush_slabs(&pool->heap);
    }
    if (!device->pools || cmi_capture_is_live()) {
        return;
    }
    (void)cmi_fence_contexts(device, device->pools);
    (void)cmi_fence_poll(device, device->pools);
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        cmi_owner_promote(pool);
    }
}

/* What the set's captures have freed is free for the next one on whatever stream, since their graphs never run at the same time. */
static void settle(cmi_pool *pool, uint32_t number)
{
    cmi_heap *heap = &pool->heap;
    cmi_heap_flush_slabs(heap);
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            const cmi_binset *set = block->kind == CMI_BLOCK_FREE ? cmi_heap_binset(heap, block->binset) : NULL;
            if (!set || set->owner != number || set->kind != CMI_BINSET_STREAM) {
                continue;
            }
            if (!cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS) || !cmi_stamp_reserve(pool->device, CMI_HEAP_STEP_RECORDS)) {
                return; /* it stays the stream's */
            }
            id = cmi_heap_rebin(heap, id, pool->owners[number].done[set->small], 0, CMI_HEAP_NO_STAMP);
        }
    }
    cmi_pool_must_be_valid(pool);
}

cmpool_status cmi_capture_end(cmi_pool *pool, uint32_t owner)
{
    if (!pool->owners[owner].captures) {
        return CMPOOL_ERR_INVALID_ARGUMENT;
    }
    if (--pool->owners[owner].captures == 0) {
        settle(pool, owner);
    }
    cmi_capture_left();
    return CMPOOL_OK;
}

/* Take the slabs of the set apart, so that every byte of it is in a block of its own kind. */
static bool dissolve_slabs(cmi_pool *pool, uint32_t number)
{
    cmi_heap *heap = &pool->heap;
    for (uint32_t i = 1; i <= heap->slab_count; i++) {
        cmi_block_id id = heap->slabs[i]->block;
        if (!id || cmi_heap_binset(heap, cmi_heap_block(heap, id)->binset)->owner != number) {
            continue;
        }
        if (!cmi_stamp_reserve(pool->device, 2 * CMI_SLAB_SLOTS) || !cmi_heap_dissolve_slab(heap, id)) {
            return false;
        }
    }
    return true;
}

/* A block of the set becomes the pool's. Live ones keep their holder, and get a use that the whole device has to finish. */
static bool hand_over(cmi_pool *pool, cmi_block_id *id)
{
    cmi_heap *heap = &pool->heap;
    cmi_device *device = pool->device;
    cmi_block *block = cmi_heap_block(heap, *id);
    if (!cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS) || !cmi_stamp_reserve(device, CMI_HEAP_STEP_RECORDS)) {
        return false;
    }
    const cmi_binset *set = cmi_heap_binset(heap, block->binset);
    if (block->kind == CMI_BLOCK_FREE && CMI_MUTATION(GRAPH_MEMORY_RELEASED_BARE)) {
        *id = cmi_heap_rebin(heap, *id, pool->owners[0].done[set->small], 0, CMI_HEAP_NO_STAMP);
        return true;
    }
    if (block->kind == CMI_BLOCK_FREE) {
        *id = cmi_heap_rebin(heap, *id, pool->owners[0].mixed[set->small], device->ticket, cmi_stamp_new_whole(device));
        return true;
    }
    uint32_t to = cmi_owner_binset(pool, 0, set->key, set->small);
    if (to) {
        cmi_heap_change_set(heap, *id, to);
        block->stamp = cmi_stamp_join(device, block->stamp, cmi_stamp_new_whole(device));
    }
    return to != 0;
}

cmpool_status cmi_capture_release(cmi_pool *pool, uint32_t number)
{
    cmi_heap *heap = &pool->heap;
    if (pool->owners[number].captures) {
        return CMPOOL_ERR_CAPTURE;
    }
    if (pool->owners[number].calls_inside > 1) { /* blocks are on their way into the set */
        return CMPOOL_ERR_BUSY;
    }
    cmi_heap_flush_slabs(heap);
    if (!dissolve_slabs(pool, number)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            bool held = block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_LIVE;
            if (held && cmi_heap_binset(heap, block->binset)->owner == number && !hand_over(pool, &id)) {
                return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
            }
        }
    }
    cmi_owner *from = &pool->owners[number], *to = &pool->owners[0];
    to->live_blocks += from->live_blocks;
    to->live_bytes += from->live_bytes;
    to->requested_bytes += from->requested_bytes;
    to->peak_live_bytes = cmi_max_u64(to->peak_live_bytes, to->live_bytes);
    cmi_owner_drop(pool, number);
    cmi_pool_must_be_valid(pool);
    return CMPOOL_OK;
}
