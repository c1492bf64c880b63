/*
 * Pages for the pool: created into a request's hand, put down again, and old addresses unmapped once they are seen done. Owns the states in
 * the slot tables; guarded by the device lock, dropped around driver calls while the slots concerned are MOVING and the blocks BUSY;
 * called by the ladder, move.c and trim.
 */
#include "pool/region.h"

/* ---- pages in hand ------------------------------------------------------------------------------ */

bool cmi_hand_reserve(cmi_hand *hand, uint32_t room)
{
    if (room <= hand->room) {
        return true;
    }
    uint32_t *grown = cmi_meta_resize(hand->pages, hand->room * sizeof *grown, room * sizeof *grown);
    if (!grown) {
        return false;
    }
    hand->pages = grown;
    hand->room = room;
    return true;
}

cmpool_status cmi_source_create(cmi_pool *pool, cmi_hand *hand, uint32_t count, uint32_t *got)
{
    *got = 0;
    if (!cmi_hand_reserve(hand, hand->count + count)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_device *device = pool->device;
    cmi_call call;
    pool->reserved_pages += count; /* counted as ours while on their way, so that two threads keep one limit */
    device->creating++;
    device->creations++;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status == CMPOOL_OK) {
        cmi_step_begin(CMI_STEP_GROW, (uint64_t)count << pool->heap.page_shift);
        status = cmi_store_create(device->store, hand->pages + hand->count, count, got);
        cmi_step_end();
        cmi_device_call_end(device, &call);
    }
    device->creating--;
    pool->reserved_pages -= count - *got;
    hand->count += *got;
    pool->counters.driver_turns++;
    pool->counters.pages_created += *got;
    pool->counters.peak_reserved_bytes = cmi_max_u64(pool->counters.peak_reserved_bytes, pool->reserved_pages << pool->heap.page_shift);
    cmi_ring_write(&pool->ring, CMI_EVENT_GROW, 0, (uint64_t)*got << pool->heap.page_shift, 0);
    return status;
}

void cmi_source_put_down(cmi_pool *pool, cmi_hand *hand)
{
    cmi_device *device = pool->device;
    if (hand->count) {
        cmi_call call;
        cmi_device_call_begin_anyway(device, &call); /* what the driver does not take is the store's to try again */
        cmi_store_release(device->store, hand->pages, hand->count);
        cmi_device_call_end(device, &call);
        pool->counters.pages_released += hand->count;
    }
    pool->reserved_pages -= hand->count;
    cmi_meta_free(hand->pages, hand->room * sizeof *hand->pages);
    *hand = (cmi_hand){0};
}

/* ---- slots -------------------------------------------------------------------------------------- */

void cmi_source_set_slots(cmi_pool *pool, uint64_t address, uint32_t count, cmi_slot_state state)
{
    cmi_slot *slot = cmi_arena_slot(&pool->arena, address);
    for (uint32_t i = 0; i < count; i++) {
        slot[i].state = (uint8_t)state;
        if (state == CMI_SLOT_EMPTY) {
            slot[i].page = CMI_NO_PAGE;
            slot[i].stamp = CMI_NO_STAMP;
        }
    }
}

void cmi_source_vacate(cmi_pool *pool, cmi_block_id id)
{
    cmi_heap *heap = &pool->heap;
    cmi_block *block = cmi_heap_block(heap, id);
    uint32_t count = (uint32_t)(block->bytes >> heap->page_shift);
    cmi_source_set_slots(pool, block->offset, count, CMI_SLOT_EMPTY);
    if (pool->region_count && cmi_region_at(pool, block->offset)) { /* all of it: regions have held pages around them */
        cmi_source_set_slots(pool, block->offset, count, CMI_SLOT_HELD);
        block->kind = CMI_BLOCK_BUSY;
        block->binset = CMI_NO_BINSET;
    } else {
        cmi_heap_make_hole(heap, id);
    }
}

/* ---- stale slots -------------------------------------------------------------------------------- */

static bool may_unmap(const cmi_pool *pool, const cmi_slot *slot)
{
    return cmi_stamp_is_done(pool->device, slot->stamp) || CMI_MUTATION(UNMAP_TOO_EARLY);
}

/* The next run of stale slots at or behind *offset whose stamps are seen done, made BUSY and MOVING. 0 pages: none left. */
static uint32_t claim_stale_run(cmi_pool *pool, uint64_t most, uint64_t *offset)
{
    cmi_heap *heap = &pool->heap;
    uint64_t from = *offset;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        if (from >= heap->spaces[i].base + heap->spaces[i].bytes) {
            continue;
        }
        cmi_block_id first_id = from > heap->spaces[i].base ? cmi_heap_find(heap, from) : cmi_heap_first_block(heap, i);
        for (cmi_block_id id = first_id; id && (id = cmi_heap_next_stale(heap, i, id)) != 0; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            const cmi_slot *slot = cmi_arena_slot(&pool->arena, block->offset);
            if (slot->fixed) { /* a segment, which goes as a whole */
                continue;
            }
            uint64_t count = block->bytes >> heap->page_shift, first = 0;
            while (first < count && !may_unmap(pool, &slot[first])) {
                first++;
            }
            uint64_t end = first;
            while (end < count && end - first < most && may_unmap(pool, &slot[end])) {
                end++;
            }
            if (end == first) {
                continue;
            }
            *offset = block->offset + (first << heap->page_shift);
            id = cmi_heap_cut(heap, id, *offset, (end - first) << heap->page_shift);
            cmi_heap_block(heap, id)->kind = CMI_BLOCK_BUSY;
            cmi_source_set_slots(pool, *offset, (uint32_t)(end - first), CMI_SLOT_MOVING);
            return (uint32_t)(end - first);
        }
    }
    return 0;
}

/* What became of a run that was to be unmapped: slots without a page are holes, the others stale as before. */
static void publish_unmapped(cmi_pool *pool, uint64_t offset, uint32_t count, const bool *unmapped)
{
    cmi_heap *heap = &pool->heap;
    cmi_slot *slot = cmi_arena_slot(&pool->arena, offset);
    for (uint32_t i = 0; i < count;) {
        uint32_t j = i + 1;
        while (j < count && unmapped[j] == unmapped[i]) {
            j++;
        }
        uint64_t at = offset + ((uint64_t)i << heap->page_shift);
        cmi_block_id id = cmi_heap_cut(heap, cmi_heap_find(heap, at), at, (uint64_t)(j - i) << heap->page_shift);
        for (uint32_t k = i; k < j && unmapped[i]; k++) {
            cmi_stamp_drop(pool->device, slot[k].stamp);
        }
        if (unmapped[i]) {
            cmi_source_vacate(pool, id);
        } else {
            cmi_source_set_slots(pool, at, j - i, CMI_SLOT_STALE);
            cmi_heap_make_stale(heap, id);
        }
        i = j;
    }
}

uint64_t cmi_source_unmap_stale(cmi_pool *pool, uint64_t most)
{
    enum { RUN = 512 };
    cmi_device *device = pool->device;
    cmi_heap *heap = &pool->heap;
    uint64_t total = cmi_pool_release_left(pool), offset = 0;
    while (total < most && pool->counters.stale_slots && !cmi_capture_is_live() && cmi_heap_earmark(heap, RUN + CMI_HEAP_STEP_RECORDS)) {
        uint32_t count = claim_stale_run(pool, cmi_min_u64(most - total, RUN), &offset);
        bool unmapped[RUN] = {false};
        uint32_t gone = 0;
        device->unmapping += count != 0;
        cmi_call call;
        cmpool_status status = count ? cmi_capture_barred_begin(device, &call, 0) : CMPOOL_ERR_BUSY;
        if (status == CMPOOL_OK) {
            gone = cmi_arena_unmap(&pool->arena, offset, count, unmapped, &status);
            cmi_capture_barred_end(device, &call);
        }
        device->unmapping -= count != 0;
        if (count) {
            publish_unmapped(pool, offset, count, unmapped);
            pool->counters.driver_turns++;
            cmi_ring_write(&pool->ring, CMI_EVENT_UNMAP, offset, (uint64_t)gone << heap->page_shift, 0);
        }
        cmi_heap_end_earmark(heap, RUN + CMI_HEAP_STEP_RECORDS);
        total += gone;
        pool->counters.stale_slots -= gone;
        if (gone < count || !count) {
            break;
        }
    }
    return total;
}

uint64_t cmi_source_unmap_all_stale(cmi_device *device)
{
    uint64_t total = 0;
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        if (!pool->dying) { /* its own destroy does that */
            cmi_pool_pin(pool);
            total += cmi_source_unmap_stale(pool, UINT64_MAX);
            cmi_pool_unpin(pool);
        }
    }
    return total;
}

cmpool_status cmi_source_reserve_range(cmi_pool *pool, uint64_t bytes)
{
    cmi_device *device = pool->device;
    cmi_range *range = NULL;
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status != CMPOOL_OK) {
        return status;
    }
    status = cmi_range_prepare(device->store, bytes, &range);
    cmi_device_call_end(device, &call);
    if (status == CMPOOL_OK) {
        status = cmi_arena_publish(&pool->arena, range);
        if (status == CMPOOL_OK && !cmi_heap_add_space(&pool->heap, range->base, range->bytes)) {
            cmi_arena_withdraw(&pool->arena, range);
            status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        if (status != CMPOOL_OK && cmi_device_call_begin(device, &call, 0) == CMPOOL_OK) {
            cmi_range_drop(device->store, range);
            cmi_device_call_end(device, &call);
        }
    }
    pool->counters.address_bytes = pool->arena.address_bytes;
    return status;
}
