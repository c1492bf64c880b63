/*
 * Mapping pages at slots, granting access, unmapping: runs of slots, each in as few driver calls as the driver allows, and the undoing of
 * what failed half way. Owns the record of what is mapped where (cmi_range.mappings, page.mappings); cmi_store.lock (rank VMM) guards it
 * and is held over the driver calls. Called by lib/pool with slots that it has set to MOVING.
 *
 * After a failure the driver is asked what is mapped (cuMemRetainAllocationHandle answers for an address); only where it says so for
 * certain is a slot believed to be empty.
 */
#include "vm/store.h"

static uint64_t slot_address(const cmi_store *store, const cmi_range *range, uint32_t slot)
{
    return range->base + slot * cmi_range_entry_bytes(store, range);
}

/* ---- the record --------------------------------------------------------------------------------- */

static void note_mapped(cmi_store *store, cmi_range *range, uint32_t slot, uint32_t number)
{
    range->mappings[slot] = number;
    cmi_store_page(store, number)->mappings++;
    cmi_count(&store->mappings, 1);
    cmi_count(&store->mapped, 1);
}

static void note_unmapped(cmi_store *store, cmi_range *range, uint32_t slot)
{
    uint32_t mapping = range->mappings[slot];
    page *p = cmi_store_page(store, mapping & ~SLOT_STUCK);
    if (mapping & SLOT_STUCK) {
        p->stuck--;
        cmi_uncount(&store->stuck_slots, 1);
    }
    p->mappings--;
    range->mappings[slot] = CMI_NO_PAGE;
    cmi_uncount(&store->mappings, 1);
    cmi_count(&store->unmapped, 1);
}

static void note_stuck(cmi_store *store, cmi_range *range, uint32_t slot)
{
    cmi_store_page(store, range->mappings[slot])->stuck++;
    range->mappings[slot] |= SLOT_STUCK;
    cmi_count(&store->stuck_slots, 1);
}

/* ---- asking the driver -------------------------------------------------------------------------- */

typedef enum answer { MAPPED, NOT_MAPPED, UNKNOWN } answer;

/* What is mapped at an address; MAPPED gives the handle. */
static answer ask(const cmi_store *store, uint64_t address, CUmemGenericAllocationHandle *handle)
{
    const cmi_driver *driver = store->driver;
    *handle = 0;
    if (driver->MemRetainAllocationHandle == NULL)
        return UNKNOWN;
    CUresult code = driver->MemRetainAllocationHandle(handle, (void *)(uintptr_t)address);
    if (*handle == 0) /* where there is one it was retained, whatever the code */
        return code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_MAPPED ? NOT_MAPPED : UNKNOWN;
    code = driver->MemRelease(*handle); /* the reference that asking took */
    if (code != CUDA_SUCCESS)
        cmi_log(CMI_LOG_WARNING, "device %d: a reference to a page could not be given back: cuMemRelease says %s", store->device,
                cmi_driver_code_name(code));
    return MAPPED;
}

/* ---- unmapping ---------------------------------------------------------------------------------- */

/* One slot that has a page by the record. OK when it has none afterwards. */
static cmpool_status unmap_slot(cmi_store *store, cmi_range *range, uint32_t slot)
{
    uint64_t address = slot_address(store, range, slot);
    CUresult code = store->driver->MemUnmap(address, cmi_range_entry_bytes(store, range));
    if (code != CUDA_SUCCESS) {
        CUmemGenericAllocationHandle handle;
        bool refused = code != CUDA_ERROR_INVALID_VALUE && code != CUDA_ERROR_NOT_MAPPED;
        if (refused || ask(store, address, &handle) != NOT_MAPPED)
            return cmi_driver_status("cuMemUnmap", code);
    }
    note_unmapped(store, range, slot);
    return CMPOOL_OK;
}

/* Slots [first, first + count), all with a page: one call, or where that is refused one for each. OK when none has one afterwards. */
static cmpool_status unmap_run(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count)
{
    cmpool_status status = CMPOOL_OK;
    if (store->driver->MemUnmap(slot_address(store, range, first), count * cmi_range_entry_bytes(store, range)) == CUDA_SUCCESS) {
        for (uint32_t i = first; i < first + count; i++)
            note_unmapped(store, range, i);
        return CMPOOL_OK;
    }
    for (uint32_t i = first; i < first + count; i++) {
        cmpool_status one = unmap_slot(store, range, i);
        if (one != CMPOOL_OK)
            status = one;
    }
    return status;
}

/* All mapped slots among [first, first + count). OK when none has a page afterwards, else what the last refusal means. */
cmpool_status cmi_vm_unmap(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count)
{
    cmpool_status status = CMPOOL_OK;
    uint32_t end = first + count;
    for (uint32_t start = first; start < end;) {
        if (range->mappings[start] == CMI_NO_PAGE) {
            start++;
            continue;
        }
        uint32_t stop = start + 1;
        while (stop < end && range->mappings[stop] != CMI_NO_PAGE)
            stop++;
        cmpool_status run = unmap_run(store, range, start, stop - start);
        if (run != CMPOOL_OK)
            status = run;
        start = stop;
    }
    return status;
}

uint32_t cmi_arena_unmap(cmi_arena *arena, uint64_t address, uint32_t count, bool *done, cmpool_status *status)
{
    cmi_store *store = arena->store;
    uint32_t unmapped = 0, first;
    *status = CMPOOL_OK;
    cmi_store_lock(store);
    cmi_range *range = cmi_range_find(store, address, count, &first);
    if (range == NULL) {
        cmi_vm_fault("unmap outside of any range:", address);
        *status = CMPOOL_ERR_INVALID_ARGUMENT;
    } else {
        *status = cmi_vm_unmap(store, range, first, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        done[i] = range != NULL && range->mappings[first + i] == CMI_NO_PAGE;
        unmapped += done[i];
    }
    cmi_lock_release(&store->lock);
    return unmapped;
}

static void unstick_range(cmi_store *store, cmi_range *range, uint32_t number)
{
    for (uint32_t i = 0; i < range->entry_count; i++) {
        uint32_t mapping = range->mappings[i];
        if (mapping != CMI_NO_PAGE && (mapping & SLOT_STUCK) && (number == CMI_NO_PAGE || number == (mapping & ~SLOT_STUCK)))
            unmap_slot(store, range, i);
    }
}

void cmi_vm_unstick(cmi_store *store, cmi_range *range, uint32_t page_number)
{
    if (cmi_counted(&store->stuck_slots) == 0)
        return;
    if (range != NULL)
        unstick_range(store, range, page_number);
    for (uint32_t i = 0; range == NULL && i < store->range_count; i++)
        unstick_range(store, store->ranges[i], page_number);
}

/* ---- mapping ------------------------------------------------------------------------------------ */

/* Memory is there already, so what a driver is out of here is room for mappings. */
static cmpool_status mapping_status(const char *call, CUresult code)
{
    cmpool_status status = cmi_driver_status(call, code);
    return status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY ? CMPOOL_ERR_MAPPING_CEILING : status;
}

/* The caller's side of a map: slots that it may fill, pages that it holds. */
static bool may_map(const cmi_store *store, const cmi_range *range, uint32_t first, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t there = range->mappings[first + i];
        if (there != CMI_NO_PAGE && !(there & SLOT_STUCK)) {
            cmi_vm_fault("a page is mapped already at", slot_address(store, range, first + i));
            return false;
        }
        if (!cmi_store_has_page(store, pages[i])) {
            cmi_vm_fault("map of a page that is not held:", pages[i]);
            return false;
        }
    }
    return true;
}

static cmpool_status map_slot(cmi_store *store, cmi_range *range, uint32_t slot, uint32_t number)
{
    if (range->mappings[slot] != CMI_NO_PAGE) { /* stuck */
        cmpool_status status = unmap_slot(store, range, slot);
        if (status != CMPOOL_OK)
            return status;
    }
    const page *p = cmi_store_page(store, number);
    if (p->mappings == PAGE_MAPPINGS_MAX)
        return CMPOOL_ERR_MAPPING_CEILING;

    uint64_t address = slot_address(store, range, slot), bytes = cmi_range_entry_bytes(store, range);
    CUresult code = store->driver->MemMap(address, bytes, 0, p->handle, 0);
    if (code == CUDA_SUCCESS) {
        note_mapped(store, range, slot, number);
        return CMPOOL_OK;
    }
    CUmemGenericAllocationHandle handle;
    answer there = ask(store, address, &handle);
    if (there == MAPPED && handle != p->handle) { /* by a call whose outcome was told wrongly: the range is ours alone */
        code = store->driver->MemUnmap(address, bytes);
        if (code == CUDA_SUCCESS)
            code = store->driver->MemMap(address, bytes, 0, p->handle, 0);
        if (code == CUDA_SUCCESS) {
            note_mapped(store, range, slot, number);
            return CMPOOL_OK;
        }
        there = UNKNOWN;
    }
    if (there == MAPPED && handle == p->handle)
        note_mapped(store, range, slot, number); /* for the caller to undo */
    else if (there == UNKNOWN)
        store->driver->MemUnmap(address, bytes); /* in case it is */
    return mapping_status("cuMemMap", code);
}

/* Access for the device and its peers on slots that all have a page: one call, or where the driver will not have runs one for each. */
static cmpool_status grant(cmi_store *store, const cmi_range *range, uint32_t first, uint32_t count)
{
    const cmi_driver *driver = store->driver;
    uint64_t bytes = cmi_range_entry_bytes(store, range);
    CUresult code = driver->MemSetAccess(slot_address(store, range, first), count * bytes, store->access, store->access_count);
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) {
        code = CUDA_SUCCESS;
        for (uint32_t i = first; code == CUDA_SUCCESS && i < first + count; i++)
            code = driver->MemSetAccess(slot_address(store, range, i), bytes, store->access, store->access_count);
    }
    return mapping_status("cuMemSetAccess", code);
}

/* The slots among [first, first + count) that still have a page are stuck from now on. Returns how many are. */
uint32_t cmi_vm_give_up(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count)
{
    uint32_t stuck = 0;
    for (uint32_t i = first; i < first + count; i++) {
        if (range->mappings[i] == CMI_NO_PAGE)
            continue;
        if (!(range->mappings[i] & SLOT_STUCK))
            note_stuck(store, range, i);
        stuck++;
    }
    return stuck;
}

/* Unmaps what can be, and marks the rest. Returns how many slots are stuck. The error detail stays that of the failure. */
static uint32_t undo(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count)
{
    cmpool_error *detail = cmi_error_detail();
    const char *failed_call = detail->driver_call;
    int failed_code = detail->driver_code;
    cmi_vm_unmap(store, range, first, count);
    detail->driver_call = failed_call;
    detail->driver_code = failed_code;
    return cmi_vm_give_up(store, range, first, count);
}

void cmi_vm_map(cmi_store *store, cmi_range *range, uint32_t first, const uint32_t *pages, uint32_t count, cmi_map_result *result)
{
    uint32_t tried = 0;
    result->status = CMPOOL_OK;
    while (result->status == CMPOOL_OK && tried < count) {
        result->status = map_slot(store, range, first + tried, pages[tried]);
        tried++;
    }
    if (result->status == CMPOOL_OK)
        result->status = grant(store, range, first, count);
    if (result->status == CMPOOL_OK)
        result->mapped = count;
    else
        result->stuck = undo(store, range, first, tried);
}

cmi_map_result cmi_arena_map(cmi_arena *arena, uint64_t address, const uint32_t *pages, uint32_t count)
{
    cmi_store *store = arena->store;
    cmi_map_result result = {.status = CMPOOL_ERR_INVALID_ARGUMENT};
    uint32_t first;
    cmi_store_lock(store);
    cmi_range *range = cmi_range_find(store, address, count, &first);
    if (range == NULL)
        cmi_vm_fault("map outside of any range:", address);
    else if (may_map(store, range, first, pages, count))
        cmi_vm_map(store, range, first, pages, count, &result);
    cmi_lock_release(&store->lock);
    return result;
}

uint32_t cmi_arena_abandon(cmi_arena *arena, uint64_t address, uint32_t count)
{
    cmi_store *store = arena->store;
    uint32_t stuck = 0, first;
    cmi_store_lock(store);
    cmi_range *range = cmi_range_find(store, address, count, &first);
    if (range == NULL)
        cmi_vm_fault("slots outside of any range are given up:", address);
    else
        stuck = cmi_vm_give_up(store, range, first, count);
    cmi_lock_release(&store->lock);
    return stuck;
}

cmpool_status cmi_arena_grant(cmi_arena *arena, uint64_t address, uint32_t count)
{
    cmi_store *store = arena->store;
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    uint32_t first;
    cmi_store_lock(store);
    const cmi_range *range = cmi_range_find(store, address, count, &first);
    if (range == NULL)
        cmi_vm_fault("grant outside of any range:", address);
    else
        status = range->kind == CMI_RANGE_SLOTS ? grant(store, range, first, count) : grant(store, range, 0, 1);
    cmi_lock_release(&store->lock);
    return status;
}
