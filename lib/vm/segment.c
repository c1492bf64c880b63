/*
 * Segments: ranges with one driver allocation from end to end. cuMemAlloc memory, for devices and programs for which pages at addresses of
 * our choice will not do; and memory with a handle of its own, mapped once, that other processes can be given. Owns what is behind a
 * range of these kinds; cmi_store.lock (rank VMM) guards it and is held over the driver calls. Called by lib/pool.
 *
 * A cuMemFree that failed may have had its effect, and then the address may be somebody else's by now. So the driver is asked for the
 * number of the allocation there, which never comes back; only where it is ours is the memory believed to be there still.
 */
#include "vm/store.h"

/* ---- cuMemAlloc --------------------------------------------------------------------------------- */

static cmpool_status allocate(const cmi_store *store, uint64_t bytes, uint64_t *allocation)
{
    CUdeviceptr address = 0;
    CUresult code = store->driver->MemAlloc(&address, bytes);
    if (code != CUDA_SUCCESS && address != 0) { /* it failed, yet there is an allocation: not ours to use */
        if (store->driver->MemFree(address) != CUDA_SUCCESS)
            cmi_log(CMI_LOG_WARNING, "device %d: memory that came with an error could not be given back", store->device);
        address = 0;
    }
    *allocation = address;
    return cmi_driver_status("cuMemAlloc", code);
}

/* The number of the allocation at an address, 0 where there is none; false: the driver cannot say. */
static bool ask(const cmi_store *store, CUdeviceptr address, uint64_t *buffer_id)
{
    unsigned long long id = 0;
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;
    if (store->driver->PointerGetAttribute != NULL)
        code = store->driver->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    *buffer_id = code == CUDA_SUCCESS ? id : 0;
    return code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_VALUE;
}

/* From here on the record is the store's. */
static void strand(cmi_store *store, cmi_range *range)
{
    cmi_log(CMI_LOG_WARNING, "device %d: the driver would not take %llu bytes of cuMemAlloc memory back", store->device,
            (unsigned long long)range->bytes);
    cmi_count(&store->stranded, range->held_pages);
    range->lost = true;
    range->next = store->stranded_segments;
    store->stranded_segments = range;
}

typedef enum outcome { GONE, KEPT, UNKNOWN } outcome;

/* Is the allocation still there? */
static outcome look_for(const cmi_store *store, const cmi_range *range)
{
    uint64_t there;
    if (!ask(store, range->allocation, &there) || range->buffer_id == 0)
        return UNKNOWN;
    return there == range->buffer_id ? KEPT : GONE;
}

/* Ours by its number, so that nobody else's memory is freed. */
void cmi_segment_retry_stranded(cmi_store *store, bool last)
{
    for (cmi_range **at = &store->stranded_segments; *at != NULL;) {
        cmi_range *range = *at;
        outcome now = last ? UNKNOWN : look_for(store, range);
        if (now == KEPT && store->driver->MemFree(range->allocation) == CUDA_SUCCESS)
            now = GONE;
        if (now == GONE)
            cmi_uncount(&store->stranded, range->held_pages);
        if (now == GONE || last) {
            *at = range->next;
            cmi_range_free_record(range);
        } else {
            at = &range->next;
        }
    }
}

static bool release_malloc(cmi_store *store, cmi_range *range)
{
    CUresult code = store->driver->MemFree(range->allocation);
    outcome now = code == CUDA_SUCCESS ? GONE : look_for(store, range);
    if (code != CUDA_SUCCESS)
        cmi_driver_status("cuMemFree", code);
    if (now == UNKNOWN)
        strand(store, range);
    return now != KEPT;
}

static cmpool_status create_malloc(cmi_store *store, cmi_range *range)
{
    uint64_t bytes = (uint64_t)range->held_pages << store->page_shift;
    cmpool_status status = allocate(store, bytes, &range->allocation);
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && store->stranded_segments != NULL) {
        cmi_segment_retry_stranded(store, false);
        status = allocate(store, bytes, &range->allocation);
    }
    if (status != CMPOOL_OK)
        return status;
    ask(store, range->allocation, &range->buffer_id);
    range->base = cmi_round_up(range->allocation, store->page_bytes);
    if (range->base + range->bytes <= range->allocation + bytes)
        return CMPOOL_OK;
    cmi_count(&store->margin, 1);
    if (!release_malloc(store, range))
        strand(store, range);
    return CMPOOL_ERR_BUSY;
}

/* ---- a handle of its own ------------------------------------------------------------------------ */

static cmpool_status create_shared(cmi_store *store, cmi_range *range)
{
    uint32_t number;
    cmpool_status status = cmi_range_reserve(store, range);
    if (status != CMPOOL_OK) {
        range->base = 0;
        return status;
    }
    status = cmi_store_create_page(store, range->bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &number);
    if (status == CMPOOL_OK) {
        cmi_map_result result;
        cmi_vm_map(store, range, 0, &number, 1, &result);
        status = result.status;
        if (status != CMPOOL_OK)
            cmi_store_release_page(store, number);
    }
    return status;
}

static bool release_shared(cmi_store *store, cmi_range *range)
{
    uint32_t number = range->mappings[0];
    if (cmi_vm_unmap(store, range, 0, 1) != CMPOOL_OK)
        return false;
    cmi_store_release_page(store, number);
    return true;
}

/* ---- the door ----------------------------------------------------------------------------------- */

static void count_gone(cmi_store *store, const cmi_range *range)
{
    cmi_uncount(&store->pages, range->held_pages);
    cmi_count(&store->released, range->held_pages);
}

uint64_t cmi_segment_margin(const cmi_store *store, cmi_range_kind kind)
{
    return kind == CMI_RANGE_MALLOC ? cmi_counted(&store->margin) : 0;
}

cmpool_status cmi_segment_create(cmi_store *store, cmi_range_kind kind, uint64_t pages, cmi_range **out)
{
    *out = NULL;
    uint64_t margin = cmi_segment_margin(store, kind);
    if (kind == CMI_RANGE_SHARED && !store->has_shared)
        return CMPOOL_ERR_UNSUPPORTED;
    if (pages <= margin || pages >= UINT32_MAX)
        return pages <= margin ? CMPOOL_ERR_BUSY : CMPOOL_ERR_INVALID_ARGUMENT;
    cmi_range *range = cmi_range_new_record(store, kind, (pages - margin) << store->page_shift);
    if (range == NULL)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    range->held_pages = (uint32_t)pages;
    for (uint32_t i = 0; i < range->slot_count; i++) {
        range->slots[i].state = CMI_SLOT_MAPPED;
        range->slots[i].fixed = 1;
    }
    cmi_store_lock(store);
    cmpool_status status = kind == CMI_RANGE_MALLOC ? create_malloc(store, range) : create_shared(store, range);
    if (status == CMPOOL_OK) {
        cmi_count(&store->pages, pages);
        cmi_count(&store->created, pages);
        *out = range;
    }
    cmi_lock_release(&store->lock);
    if (status != CMPOOL_OK && kind == CMI_RANGE_SHARED && range->base != 0)
        cmi_range_drop(store, range);
    else if (status != CMPOOL_OK && !range->lost)
        cmi_range_free_record(range);
    return status;
}

bool cmi_segment_release(cmi_store *store, cmi_range *range)
{
    cmi_store_lock(store);
    cmi_segment_retry_stranded(store, false);
    bool gone = range->kind == CMI_RANGE_MALLOC ? release_malloc(store, range) : release_shared(store, range);
    if (gone)
        count_gone(store, range);
    cmi_lock_release(&store->lock);
    return gone;
}

void cmi_segment_abandon(cmi_store *store, cmi_range *range)
{
    cmi_store_lock(store);
    if (range->kind == CMI_RANGE_MALLOC) {
        strand(store, range);
    } else {
        uint32_t number = range->mappings[0];
        cmi_vm_give_up(store, range, 0, 1);
        cmi_store_release_page(store, number);
    }
    count_gone(store, range);
    cmi_lock_release(&store->lock);
}

cmpool_status cmi_segment_export(cmi_store *store, const cmi_range *range, int *fd)
{
    cmi_store_lock(store);
    int given = -1;
    CUresult code = store->driver->MemExportToShareableHandle(&given, cmi_store_page(store, range->mappings[0])->handle,
                                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cmi_lock_release(&store->lock);
    *fd = code == CUDA_SUCCESS ? given : -1;
    return cmi_driver_status("cuMemExportToShareableHandle", code);
}
