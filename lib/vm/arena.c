/*
 * Reserved address ranges: getting them from the driver, keeping a pool's in order of address, finding the slot of an address.
 * Owns cmi_range records. An arena's table and the slots are guarded by the pool's device lock; the store's list of all ranges, and each
 * range's record of mappings, by the store's lock (rank VMM). Called by lib/pool when it is made, when no window fits, and on every
 * look-up of an address.
 */
#include "vm/store.h"

#include <string.h>

/* ---- ranges and the driver ---------------------------------------------------------------------- */

cmi_range *cmi_range_new_record(const cmi_store *store, cmi_range_kind kind, uint64_t bytes)
{
    cmi_range *range = cmi_meta_alloc(sizeof(*range));
    if (range == NULL)
        return NULL;
    uint32_t slot_count = (uint32_t)(bytes >> store->page_shift);
    range->kind = (uint8_t)kind;
    range->bytes = bytes;
    range->slot_count = slot_count;
    range->entry_count = kind == CMI_RANGE_SLOTS ? slot_count : 1;
    range->slots = cmi_meta_alloc(slot_count * sizeof(range->slots[0]));
    range->mappings = cmi_meta_alloc(range->entry_count * sizeof(range->mappings[0]));
    if (range->slots == NULL || range->mappings == NULL) {
        cmi_range_free_record(range);
        return NULL;
    }
    for (uint32_t i = 0; i < slot_count; i++)
        range->slots[i] = (cmi_slot){.page = CMI_NO_PAGE, .stamp = CMI_NO_STAMP, .state = CMI_SLOT_EMPTY};
    for (uint32_t i = 0; i < range->entry_count; i++)
        range->mappings[i] = CMI_NO_PAGE;
    return range;
}

void cmi_range_free_record(cmi_range *range)
{
    cmi_meta_free(range->slots, range->slot_count * sizeof(range->slots[0]));
    cmi_meta_free(range->mappings, range->entry_count * sizeof(range->mappings[0]));
    cmi_meta_free(range, sizeof(*range));
}

cmi_range *cmi_range_find(const cmi_store *store, uint64_t address, uint32_t count, uint32_t *slot)
{
    for (uint32_t i = 0; i < store->range_count; i++) {
        cmi_range *range = store->ranges[i];
        uint64_t offset = address - range->base; /* wraps where address lies below */
        if (range->lost || offset >= range->bytes || offset % store->page_bytes != 0)
            continue;
        *slot = (uint32_t)(offset >> store->page_shift);
        return count <= range->slot_count - *slot ? range : NULL;
    }
    return NULL;
}

/* Takes a range off the store's list. */
static void forget_range(cmi_store *store, const cmi_range *range)
{
    for (uint32_t i = 0; i < store->range_count; i++) {
        if (store->ranges[i] == range) {
            store->ranges[i] = store->ranges[--store->range_count];
            return;
        }
    }
}

static void forget_lost(cmi_store *store, cmi_range *range)
{
    forget_range(store, range);
    cmi_uncount(&store->lost_ranges, 1);
    cmi_range_free_record(range);
}

/* The driver gave these addresses out: a lost range among them is gone, and must not be freed under its new owner. */
static void forget_lost_within(cmi_store *store, uint64_t base, uint64_t bytes)
{
    for (uint32_t i = store->range_count; i-- > 0;) {
        cmi_range *range = store->ranges[i];
        if (range->lost && range->base < base + bytes && base < range->base + range->bytes)
            forget_lost(store, range);
    }
}

/* On failure nothing is reserved. */
cmpool_status cmi_range_reserve(cmi_store *store, cmi_range *range)
{
    cmi_range **ranges = cmi_vm_grow(store->ranges, &store->range_room, store->range_count);
    if (ranges == NULL)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    store->ranges = ranges;
    CUdeviceptr base = 0;
    CUresult code = store->driver->MemAddressReserve(&base, range->bytes, store->page_bytes, 0, 0);
    if (base != 0)
        forget_lost_within(store, base, range->bytes);
    range->base = base;
    if (code != CUDA_SUCCESS) {
        if (base != 0 && store->driver->MemAddressFree(base, range->bytes) != CUDA_SUCCESS)
            cmi_log(CMI_LOG_WARNING, "device %d: addresses that came with an error could not be given back", store->device);
        cmpool_status status = cmi_driver_status("cuMemAddressReserve", code);
        return status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY ? CMPOOL_ERR_OUT_OF_ADDRESSES : status;
    }
    store->ranges[store->range_count++] = range;
    return CMPOOL_OK;
}

cmpool_status cmi_range_prepare(cmi_store *store, uint64_t bytes, cmi_range **out)
{
    *out = NULL;
    uint64_t slot_count = cmi_div_up(bytes, store->page_bytes);
    if (slot_count == 0 || slot_count >= UINT32_MAX)
        return CMPOOL_ERR_INVALID_ARGUMENT;
    cmi_range *range = cmi_range_new_record(store, CMI_RANGE_SLOTS, slot_count << store->page_shift);
    if (range == NULL)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;

    cmi_store_lock(store);
    cmpool_status status = cmi_range_reserve(store, range);
    cmi_lock_release(&store->lock);
    if (status == CMPOOL_OK)
        *out = range;
    else
        cmi_range_free_record(range);
    return status;
}

/* Gives the addresses back. false: slots are stuck in it, or the driver refuses. */
static bool free_addresses(cmi_store *store, cmi_range *range)
{
    cmi_vm_unstick(store, range, CMI_NO_PAGE);
    for (uint32_t i = 0; i < range->entry_count; i++) {
        if (range->mappings[i] == CMI_NO_PAGE)
            continue;
        if (!(range->mappings[i] & SLOT_STUCK))
            cmi_vm_fault("a range is given back with a page mapped at", range->base + ((uint64_t)i << store->page_shift));
        return false;
    }
    CUresult code = store->driver->MemAddressFree(range->base, range->bytes);
    if (code == CUDA_SUCCESS || (range->lost && code == CUDA_ERROR_INVALID_VALUE)) /* not known any more: an earlier call did it */
        return true;
    cmi_driver_status("cuMemAddressFree", code);
    cmi_log(CMI_LOG_WARNING, "device %d: the driver would not take addresses back: cuMemAddressFree says %s", store->device,
            cmi_driver_code_name(code));
    return false;
}

void cmi_range_drop(cmi_store *store, cmi_range *range)
{
    cmi_store_lock(store);
    if (range->kind == CMI_RANGE_MALLOC) { /* its addresses went with its memory */
        if (!range->lost)
            cmi_range_free_record(range);
    } else if (free_addresses(store, range)) {
        forget_range(store, range);
        cmi_range_free_record(range);
    } else {
        range->lost = true;
        cmi_count(&store->lost_ranges, 1);
    }
    cmi_lock_release(&store->lock);
}

void cmi_range_retry_lost(cmi_store *store)
{
    for (uint32_t i = store->range_count; i-- > 0;) {
        cmi_range *range = store->ranges[i];
        if (range->lost && free_addresses(store, range))
            forget_lost(store, range);
    }
}

/* ---- arenas ------------------------------------------------------------------------------------- */

void cmi_arena_init(cmi_arena *arena, cmi_store *store) { *arena = (cmi_arena){.store = store, .page_shift = store->page_shift}; }

void cmi_arena_fini(cmi_arena *arena)
{
    for (uint32_t i = 0; i < arena->range_count; i++)
        cmi_range_drop(arena->store, arena->ranges[i]);
    cmi_meta_free(arena->ranges, arena->range_room * sizeof(arena->ranges[0]));
    *arena = (cmi_arena){0};
}

/* How many ranges begin at or below address: the last of them is the only one that can hold it. */
static uint32_t ranges_up_to(const cmi_arena *arena, uint64_t address)
{
    uint32_t low = 0, high = arena->range_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (arena->ranges[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

cmpool_status cmi_arena_publish(cmi_arena *arena, cmi_range *range)
{
    cmi_range **ranges = cmi_vm_grow(arena->ranges, &arena->range_room, arena->range_count);
    if (ranges == NULL)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    arena->ranges = ranges;
    uint32_t at = ranges_up_to(arena, range->base);
    memmove(&arena->ranges[at + 1], &arena->ranges[at], (arena->range_count - at) * sizeof(arena->ranges[0]));
    arena->ranges[at] = range;
    arena->range_count++;
    arena->address_bytes += range->bytes;
    return CMPOOL_OK;
}

void cmi_arena_withdraw(cmi_arena *arena, cmi_range *range)
{
    uint32_t after = ranges_up_to(arena, range->base);
    if (after == 0 || arena->ranges[after - 1] != range) {
        cmi_vm_fault("withdrawal of a range that is not in the arena:", range->base);
        return;
    }
    memmove(&arena->ranges[after - 1], &arena->ranges[after], (arena->range_count - after) * sizeof(arena->ranges[0]));
    arena->range_count--;
    arena->address_bytes -= range->bytes;
}

cmi_range *cmi_arena_range(const cmi_arena *arena, uint64_t address)
{
    uint32_t after = ranges_up_to(arena, address);
    if (after == 0)
        return NULL;
    cmi_range *range = arena->ranges[after - 1];
    return address - range->base < range->bytes ? range : NULL;
}

cmi_slot *cmi_arena_slot(const cmi_arena *arena, uint64_t address)
{
    const cmi_range *range = cmi_arena_range(arena, address);
    return &range->slots[cmi_range_slot_number(arena, range, address)];
}

/* ---- validation --------------------------------------------------------------------------------- */

static const char *check_slot(cmi_store *store, const cmi_slot *slot, uint32_t mapping)
{
    uint32_t page_number = mapping == CMI_NO_PAGE || (mapping & SLOT_STUCK) ? CMI_NO_PAGE : mapping;
    switch (slot->state) {
    case CMI_SLOT_MOVING:
        return NULL;
    case CMI_SLOT_EMPTY:
    case CMI_SLOT_HELD:
        if (slot->page != CMI_NO_PAGE)
            return "a slot without a page names one";
        if (page_number != CMI_NO_PAGE)
            return "a page is mapped at a slot that should have none";
        return NULL;
    case CMI_SLOT_MAPPED:
    case CMI_SLOT_STALE:
        break;
    default:
        return "a slot is in no known state";
    }
    if (!cmi_store_has_page(store, slot->page))
        return "a slot names a page that the store does not hold";
    if (page_number != slot->page)
        return "a slot names another page than the one mapped there";
    if (slot->state == CMI_SLOT_STALE)
        return slot->fixed != 0 ? "a slot is stale though its page must not leave it" : NULL;
    page *p = cmi_store_page(store, slot->page);
    if (p->link == store->validation)
        return "a page has two present addresses";
    p->link = store->validation;
    return NULL;
}

static const char *check_segment(cmi_store *store, const cmi_range *range)
{
    uint8_t state = range->slots[0].state;
    for (uint32_t i = 0; i < range->slot_count; i++) {
        const cmi_slot *slot = &range->slots[i];
        if (slot->page != CMI_NO_PAGE || slot->fixed == 0 || slot->state != state)
            return "a segment's slots differ, or may be taken one by one";
    }
    if (state == CMI_SLOT_MOVING)
        return NULL;
    if (state != CMI_SLOT_MAPPED && (state != CMI_SLOT_STALE || range->kind != CMI_RANGE_SHARED))
        return "a segment is neither there nor about to go";
    bool there = range->kind == CMI_RANGE_MALLOC ? !range->lost : cmi_store_has_page(store, range->mappings[0]);
    return there ? NULL : "a segment without memory";
}

const char *cmi_arena_validate(const cmi_arena *arena)
{
    cmi_store *store = arena->store;
    const char *finding = NULL;
    uint64_t bytes = 0, end = 0;
    cmi_lock_acquire(&store->lock);
    store->validation++;
    for (uint32_t r = 0; finding == NULL && r < arena->range_count; r++) {
        const cmi_range *range = arena->ranges[r];
        if (range->base < end)
            finding = "two ranges overlap, or are out of order";
        if (finding == NULL && range->kind != CMI_RANGE_SLOTS)
            finding = check_segment(store, range);
        for (uint32_t i = 0; finding == NULL && i < range->slot_count && range->kind == CMI_RANGE_SLOTS; i++)
            finding = check_slot(store, &range->slots[i], range->mappings[i]);
        end = range->base + range->bytes;
        bytes += range->bytes;
    }
    cmi_lock_release(&store->lock);
    if (finding == NULL && bytes != arena->address_bytes)
        finding = "an arena's ranges do not add up to its addresses";
    return finding;
}
