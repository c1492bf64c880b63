/*
 * Extents: pinned memory as the driver makes it, taken one at a time and given back whole. Owns the table of extents; guarded by the device
 * lock, which is dropped for the driver's calls; called by pinned.c, by one thread at a time (`changing`).
 */
#include "pinned/pinned.h"

/* A request's extent is larger than it by at most this share of what is held, so that small ones do not each cost a driver call. */
enum { SPARE_SHARE = 32 };
static const uint64_t LEAST_EXTENT = UINT64_C(2) << 20, MOST_SPARE = UINT64_C(32) << 20;

bool cmi_pinned_open_group(cmi_pinned *pinned, unsigned number)
{
    cmi_pinned_group *group = &pinned->groups[number];
    if (!group->mixed) {
        group->mixed = cmi_heap_add_binset(&pinned->heap, number, 0, CMI_BINSET_MIXED, false, 0, 0);
    }
    if (group->mixed && !group->done) {
        group->done = cmi_heap_add_binset(&pinned->heap, number, 0, CMI_BINSET_DONE, false, 0, group->mixed);
    }
    return group->done != 0;
}

const cmi_pinned_extent *cmi_pinned_extent_of(const cmi_pinned *pinned, uint64_t address)
{
    uint32_t low = 0, high = pinned->extent_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pinned->extents[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const cmi_pinned_extent *extent = low ? &pinned->extents[low - 1] : NULL;
    return extent && address - extent->address < extent->bytes ? extent : NULL;
}

static bool make_room(cmi_pinned *pinned)
{
    if (pinned->extent_count < pinned->extent_room) {
        return true;
    }
    uint32_t room = pinned->extent_room ? pinned->extent_room * 2 : 16;
    cmi_pinned_extent *grown = cmi_meta_resize(pinned->extents, pinned->extent_room * sizeof *grown, room * sizeof *grown);
    if (grown) {
        pinned->extents = grown;
        pinned->extent_room = room;
    }
    return grown != NULL;
}

/* All bytes of the space at an address become one free block. */
static void make_free(cmi_pinned *pinned, const cmi_pinned_extent *extent)
{
    cmi_block_id id = cmi_heap_find(&pinned->heap, extent->address);
    uint32_t done = pinned->groups[extent->group].done;
    cmi_heap_make_live(&pinned->heap, id, done, extent->bytes, 0, 0);
    cmi_heap_make_free(&pinned->heap, id, done, 0, CMI_HEAP_NO_STAMP);
}

static void enter_extent(cmi_pinned *pinned, const cmi_pinned_extent *extent)
{
    uint32_t at = pinned->extent_count++;
    for (; at > 0 && pinned->extents[at - 1].address > extent->address; at--) {
        pinned->extents[at] = pinned->extents[at - 1];
    }
    pinned->extents[at] = *extent;
    make_free(pinned, extent);
    cmi_pinned_figures *figures = &pinned->figures;
    figures->extents = pinned->extent_count;
    figures->held_bytes += extent->bytes;
    figures->peak_held_bytes = cmi_max_u64(figures->peak_held_bytes, figures->held_bytes);
    figures->extents_made++;
}

/* Give memory back to the driver. false: it is the driver's no more than before. Drops and retakes the lock. */
static bool release(cmi_device *device, uint64_t address, cmpool_status *status, bool *unknown)
{
    cmi_call call;
    *unknown = false;
    *status = cmi_device_call_begin(device, &call, 0);
    if (*status != CMPOOL_OK) {
        return false;
    }
    void *memory = (void *)(uintptr_t)address;
    CUresult code = device->driver->MemFreeHost(memory);
    bool gone = code == CUDA_SUCCESS;
    if (!gone) { /* a call that fails may have had its effect: what the driver still knows it has not taken */
        unsigned flags;
        CUresult asked = device->driver->MemHostGetFlags(&flags, memory);
        gone = asked == CUDA_ERROR_INVALID_VALUE;
        *unknown = !gone && asked != CUDA_SUCCESS;
    }
    *status = gone ? CMPOOL_OK : cmi_driver_status("cuMemFreeHost", code);
    cmi_device_call_end(device, &call);
    return gone;
}

/* An extent of exactly these bytes. Drops and retakes the lock. */
static cmpool_status take_extent(cmi_pinned *pinned, unsigned group, uint64_t bytes)
{
    cmi_device *device = pinned->pool->device;
    bool write_combined = group >= CMI_PINNED_NODES;
    void *memory = NULL;
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status != CMPOOL_OK) {
        return status;
    }
    CUresult code = device->driver->MemHostAlloc(
        &memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | (write_combined ? CU_MEMHOSTALLOC_WRITECOMBINED : 0));
    status = cmi_driver_status("cuMemHostAlloc", code);
    cmi_device_call_end(device, &call);
    const cmi_pinned_extent extent = {(uint64_t)(uintptr_t)memory, bytes, (uint8_t)group};
    if (status == CMPOOL_OK && make_room(pinned) && cmi_heap_add_space(&pinned->heap, extent.address, bytes)) {
        if (cmi_heap_reserve_records(&pinned->heap, CMI_HEAP_STEP_RECORDS)) {
            enter_extent(pinned, &extent);
            return CMPOOL_OK;
        }
        cmi_heap_remove_space(&pinned->heap, extent.address);
    }
    if (memory) { /* no records for it, or made although the call says it failed */
        cmpool_status ignored;
        bool unknown;
        if (!release(device, extent.address, &ignored, &unknown)) {
            pinned->figures.stranded_bytes += bytes;
        }
    }
    return status == CMPOOL_OK || status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY ? CMPOOL_ERR_OUT_OF_HOST_MEMORY : status;
}

cmpool_status cmi_pinned_grow(cmi_pinned *pinned, unsigned group, uint64_t bytes)
{
    const cmi_pinned_figures *figures = &pinned->figures;
    uint64_t least = cmi_round_up(bytes, CMI_PINNED_PAGE);
    uint64_t spare = cmi_max_u64(cmi_min_u64(figures->held_bytes / SPARE_SHARE, MOST_SPARE), LEAST_EXTENT);
    uint64_t wanted = cmi_max_u64(least, cmi_round_up(spare, CMI_PINNED_PAGE));
    uint64_t limit = figures->limit_bytes;
    uint64_t room = !limit ? UINT64_MAX : limit - cmi_min_u64(limit, figures->held_bytes);
    if (least > room) {
        return CMPOOL_ERR_LIMIT;
    }
    cmpool_status status = wanted <= room ? take_extent(pinned, group, wanted) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    if (status == CMPOOL_ERR_OUT_OF_HOST_MEMORY && wanted > least) {
        status = take_extent(pinned, group, least);
    }
    return status;
}

/* An extent that is free as a whole, the largest that is not larger than needed before the others; NULL: there is none. */
static const cmi_pinned_extent *find_free(const cmi_pinned *pinned, uint64_t surplus)
{
    const cmi_pinned_extent *best = NULL;
    for (uint32_t i = 0; i < pinned->extent_count; i++) {
        const cmi_pinned_extent *extent = &pinned->extents[i];
        const cmi_block *block = cmi_heap_block(&pinned->heap, cmi_heap_find(&pinned->heap, extent->address));
        bool whole = block->kind == CMI_BLOCK_FREE && block->bytes == extent->bytes && block->binset == pinned->groups[extent->group].done;
        bool fits = extent->bytes <= surplus, best_fits = best && best->bytes <= surplus;
        if (whole && (!best || (fits != best_fits ? fits : fits == (extent->bytes > best->bytes)))) {
            best = extent;
        }
    }
    return best;
}

static void forget_extent(cmi_pinned *pinned, uint64_t address)
{
    uint32_t at = (uint32_t)(cmi_pinned_extent_of(pinned, address) - pinned->extents);
    pinned->figures.held_bytes -= pinned->extents[at].bytes;
    for (pinned->extent_count--; at < pinned->extent_count; at++) {
        pinned->extents[at] = pinned->extents[at + 1];
    }
    pinned->figures.extents = pinned->extent_count;
    cmi_heap_remove_space(&pinned->heap, address);
}

cmpool_status cmi_pinned_shrink(cmi_pinned *pinned, uint64_t keep)
{
    for (unsigned i = 0; i < CMI_PINNED_GROUPS; i++) {
        cmi_pinned_arena_purge(pinned, i);
    }
    const cmi_pinned_extent *found;
    while (pinned->figures.held_bytes > keep && (found = find_free(pinned, pinned->figures.held_bytes - keep)) != NULL) {
        if (!cmi_heap_reserve_records(&pinned->heap, 2 * CMI_HEAP_STEP_RECORDS)) {
            return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        const cmi_pinned_extent extent = *found;
        cmi_block_id id = cmi_heap_find(&pinned->heap, extent.address);
        id = cmi_heap_take(&pinned->heap, id, extent.address, extent.bytes); /* out of everybody's reach while the driver works */
        cmpool_status status;
        bool unknown;
        bool gone = release(pinned->pool->device, extent.address, &status, &unknown);
        if (!gone && !unknown) { /* it is ours still; a whole block has no neighbours, so no record is needed */
            cmi_heap_make_free(&pinned->heap, id, pinned->groups[extent.group].done, 0, CMI_HEAP_NO_STAMP);
            return status;
        }
        cmi_heap_make_hole(&pinned->heap, id);
        forget_extent(pinned, extent.address);
        if (unknown) {
            pinned->figures.stranded_bytes += extent.bytes;
            return status;
        }
        pinned->figures.extents_released++;
    }
    return CMPOOL_OK;
}
