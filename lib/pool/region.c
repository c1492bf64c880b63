/*
 * Growing regions. Owns the pool's table of them, by address; guarded by the device lock; called by api, and by plans for the window of a
 * growth. A growth is a request like any other that climbs the ladder, only that its window is given; what a shrink leaves is free memory
 * like any other, only that nobody may live there.
 */
#include "pool/region.h"

#include "pool/pause.h"

#include <string.h>

/* ---- the table ---------------------------------------------------------------------------------- */

/* Number of regions that start at or below an address. */
static uint32_t count_below(const cmi_pool *pool, uint64_t address)
{
    uint32_t low = 0, high = pool->region_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pool->regions[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

cmi_region *cmi_region_at(const cmi_pool *pool, uint64_t address)
{
    uint32_t below = count_below(pool, address);
    cmi_region *region = below ? &pool->regions[below - 1] : NULL;
    return region && address - region->base < region->most ? region : NULL;
}

static cmi_region *find(const cmi_pool *pool, uint64_t base)
{
    cmi_region *region = cmi_region_at(pool, base);
    return region && region->base == base ? region : NULL;
}

static bool has_room(cmi_pool *pool)
{
    if (pool->region_count < pool->region_room) {
        return true;
    }
    uint32_t room = pool->region_room ? 2 * pool->region_room : 8;
    cmi_region *grown = cmi_meta_resize(pool->regions, pool->region_room * sizeof *grown, room * sizeof *grown);
    if (grown) {
        pool->regions = grown;
        pool->region_room = room;
    }
    return grown != NULL;
}

/* ---- addresses ---------------------------------------------------------------------------------- */

/* Whole holes for `bytes`; another range where no hole is long enough. Drops and retakes the lock. */
static cmpool_status find_holes(cmi_pool *pool, uint64_t bytes, cmi_window *window)
{
    while (cmi_pool_use_room(pool)) {
        memset(pool->use, CMI_USE_NOT, pool->use_room);
        if (cmi_heap_find_window(&pool->heap, pool->use, bytes, pool->heap.source.page_bytes, window)) {
            return CMPOOL_OK;
        }
        cmpool_status status = cmi_source_reserve_range(pool, cmi_max_u64(pool->device->total_bytes, bytes));
        if (status != CMPOOL_OK) {
            return status;
        }
    }
    return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
}

cmpool_status cmi_region_create(cmi_pool *pool, uint64_t most, uint32_t tag, uint64_t *base)
{
    cmi_heap *heap = &pool->heap;
    uint64_t page = heap->source.page_bytes, bytes = cmi_round_up(most, page) + 2 * page;
    cmi_window window;
    cmpool_status status = pool->region_owner ? CMPOOL_OK : cmi_owner_add(pool, CMI_OWNER_REGION, &pool->region_owner);
    status = status == CMPOOL_OK ? find_holes(pool, bytes, &window) : status;
    if (status != CMPOOL_OK) {
        return status;
    }
    if (!has_room(pool) || !cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_block_id id = cmi_heap_cut(heap, cmi_heap_find(heap, window.offset), window.offset, bytes);
    cmi_heap_block(heap, id)->kind = CMI_BLOCK_BUSY;
    cmi_source_set_slots(pool, window.offset, (uint32_t)(bytes >> heap->page_shift), CMI_SLOT_HELD);
    *base = window.offset + page;
    uint32_t at = count_below(pool, *base);
    memmove(&pool->regions[at + 1], &pool->regions[at], (pool->region_count - at) * sizeof *pool->regions);
    pool->regions[at] = (cmi_region){.base = *base, .most = bytes - 2 * page, .tag = tag};
    pool->region_count++;
    cmi_pool_must_be_valid(pool);
    return CMPOOL_OK;
}

bool cmi_region_window(const cmi_pool *pool, const cmi_ask *ask, cmi_window *window)
{
    const cmi_slot *slot = cmi_arena_slot(&pool->arena, ask->at);
    *window = (cmi_window){.offset = ask->at};
    for (uint64_t i = 0; i < ask->bytes >> pool->heap.page_shift; i++) {
        if (slot[i].state != CMI_SLOT_HELD && slot[i].state != CMI_SLOT_MAPPED) {
            return false;
        }
        window->pages += slot[i].state == CMI_SLOT_HELD;
    }
    return true;
}

outcome cmi_region_clear(cmi_pool *pool, cmpool_status *status)
{
    cmi_device *device = pool->device;
    if (device->in_flight) { /* it may be about these slots */
        pthread_cond_wait(&device->landed, &device->lock.mutex);
        return PLAN_AGAIN;
    }
    if (cmi_source_unmap_stale(pool, UINT64_MAX)) {
        return PLAN_AGAIN;
    }
    *status = cmi_fence_host_wait(device, pool);
    if (*status == CMPOOL_OK && cmi_source_unmap_stale(pool, UINT64_MAX)) {
        return PLAN_AGAIN;
    }
    *status = *status == CMPOOL_OK ? CMPOOL_ERR_DRIVER : *status;
    return PLAN_FAILED;
}

/* ---- growing ------------------------------------------------------------------------------------ */

static bool is_paused(const cmi_pool *pool, const cmi_region *region)
{
    return pool->asleep || (pool->pause && region->bytes && cmi_pause_holds(pool, region->base, region->bytes));
}

/* The region is so many bytes longer now; it is one block, however often that happens. */
static void note_length(cmi_pool *pool, cmi_region *region, int64_t bytes)
{
    bool was_block = region->bytes != 0;
    region->bytes += (uint64_t)bytes;
    pool->counters.region_bytes += (uint64_t)bytes;
    cmi_pool_live_changed(pool, 0, bytes, bytes);
    if (was_block && region->bytes) {
        pool->counters.live_blocks += bytes > 0 ? UINT64_MAX : 1;
        pool->owners[0].live_blocks += bytes > 0 ? UINT64_MAX : 1;
    }
}

/* Bytes that have been brought are the region's. */
static cmpool_status take_over(cmi_pool *pool, const cmi_ask *ask, cmi_region *region, cmi_block_id id)
{
    cmi_heap *heap = &pool->heap;
    uint32_t set = cmi_owner_binset(pool, 0, ask->stream, 0);
    if (!set) { /* the handle has turned out to be another stream, and there is no host memory */
        const cmi_owner *owner = &pool->owners[pool->region_owner];
        cmi_stamp_drop(pool->device, cmi_heap_block(heap, id)->stamp);
        cmi_heap_make_free(heap, id, owner->mixed[0], pool->device->ticket, cmi_stamp_new_whole(pool->device));
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_stamp_drop(pool->device, cmi_heap_block(heap, id)->stamp); /* the stream has been made to wait */
    if (region->bytes) {
        cmi_heap_grow_live(heap, cmi_heap_find(heap, region->base), id);
    } else {
        cmi_heap_make_live(heap, id, set, ask->bytes, region->tag, pool->ring.capacity ? cmi_clock_ns() : 0);
    }
    note_length(pool, region, (int64_t)ask->bytes);
    return CMPOOL_OK;
}

/* All streams that grew the region have used it. */
static cmpool_status note_use(cmi_pool *pool, const cmi_region *region, uint32_t stream)
{
    if (!region->bytes) {
        return CMPOOL_OK;
    }
    if (stream == CMI_NO_STREAM) { /* then any may */
        cmi_heap_change_set(&pool->heap, cmi_heap_find(&pool->heap, region->base), pool->owners[0].done[0]);
        return CMPOOL_OK;
    }
    return cmi_pool_record_use(pool, region->base, stream);
}

cmpool_status cmi_region_grow(cmi_pool *pool, const cmi_ask *asked, uint64_t base, uint64_t bytes)
{
    cmi_region *region = find(pool, base);
    if (!region) {
        return CMPOOL_ERR_NOT_OURS;
    }
    uint64_t had = region->bytes, want = cmi_round_up(bytes, pool->heap.source.page_bytes);
    if (bytes > region->most) {
        return CMPOOL_ERR_INVALID_ARGUMENT;
    }
    if (is_paused(pool, region)) {
        return CMPOOL_ERR_PAUSED;
    }
    if (region->busy) {
        return CMPOOL_ERR_BUSY;
    }
    if (want <= had) {
        return note_use(pool, region, asked->stream);
    }
    cmi_ask ask = *asked;
    ask.owner = pool->region_owner;
    ask.at = base + had;
    ask.bytes = ask.requested = want - had;
    ask.align = pool->heap.source.page_bytes;
    ask.tag = region->tag;
    region->busy = true;
    cmi_block_id id = 0;
    cmpool_status status = cmi_pool_make_ready(pool) && cmi_owner_binset(pool, 0, ask.stream, 0) ? note_use(pool, region, ask.stream)
                                                                                                 : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    status = status == CMPOOL_OK ? cmi_ladder_climb(pool, &ask, &id) : status;
    region = find(pool, base); /* the table may have moved */
    region->busy = false;
    if (status == CMPOOL_OK) {
        status = take_over(pool, &ask, region, id);
    }
    if (status == CMPOOL_OK && ask.stream != asked->stream) {
        status = note_use(pool, region, ask.stream);
    }
    cmi_pool_must_be_valid(pool);
    return status;
}

/* ---- shrinking ---------------------------------------------------------------------------------- */

static cmpool_status give_up(cmi_pool *pool, cmi_region *region, uint32_t stream, uint64_t keep)
{
    cmi_device *device = pool->device;
    cmi_heap *heap = &pool->heap;
    uint64_t bytes = region->bytes - keep;
    cmi_block_id id = cmi_heap_find(heap, region->base);
    uint32_t first = cmi_heap_binset(heap, cmi_heap_block(heap, id)->binset)->key;
    uint32_t set = cmi_owner_binset(pool, pool->region_owner, first, 0);
    if (!set || !cmi_pool_make_ready(pool)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t ticket = device->ticket;
    uint32_t uses = cmi_heap_block(heap, id)->stamp;
    if (keep) {
        uses = uses == CMI_NO_STAMP ? uses : cmi_stamp_copy(device, uses);
        id = cmi_heap_shrink_live(heap, id, keep);
    } else {
        cmi_heap_block(heap, id)->stamp = CMI_NO_STAMP;
    }
    uint32_t stamp = cmi_pool_stamp_of_free(device, uses, first, stream, ticket);
    cmi_stream_note_frees(device, stream, ticket, 1, bytes);
    if (pool->options.idle_release) {
        cmi_returns_note_free(pool, region->base + keep, bytes);
    }
    cmi_heap_make_free(heap, id, stamp == CMI_NO_STAMP ? set : pool->owners[pool->region_owner].mixed[0], ticket, stamp);
    note_length(pool, region, -(int64_t)bytes);
    return CMPOOL_OK;
}

cmpool_status cmi_region_shrink(cmi_pool *pool, const cmi_ask *ask, uint64_t base, uint64_t bytes)
{
    cmi_region *region = find(pool, base);
    if (!region) {
        return CMPOOL_ERR_NOT_OURS;
    }
    uint64_t keep = cmi_round_up(bytes, pool->heap.source.page_bytes);
    if (is_paused(pool, region)) {
        return CMPOOL_ERR_PAUSED;
    }
    if (region->busy) {
        return CMPOOL_ERR_BUSY;
    }
    cmpool_status status = keep < region->bytes ? give_up(pool, region, ask->stream, keep) : CMPOOL_OK;
    cmi_pool_must_be_valid(pool);
    return status;
}

/* Free memory where a region was serves everybody in place. Without host memory its whole pages still do. */
static void join_pool(cmi_pool *pool, cmi_block_id id)
{
    cmi_heap *heap = &pool->heap;
    const cmi_block *block = cmi_heap_block(heap, id);
    const cmi_binset *set = cmi_heap_binset(heap, block->binset);
    const cmi_owner *owner = &pool->owners[0];
    uint32_t to = set->kind == CMI_BINSET_DONE    ? owner->done[0]
                  : set->kind == CMI_BINSET_MIXED ? owner->mixed[0]
                                                  : cmi_owner_binset(pool, 0, set->key, 0);
    if (to && cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS) && cmi_stamp_reserve(pool->device, CMI_HEAP_STEP_RECORDS)) {
        cmi_heap_rebin(heap, id, to, block->ticket, block->stamp);
    }
}

cmpool_status cmi_region_destroy(cmi_pool *pool, const cmi_ask *ask, uint64_t base)
{
    cmpool_status status = cmi_region_shrink(pool, ask, base, 0);
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_heap *heap = &pool->heap;
    cmi_region *region = find(pool, base);
    uint64_t page = heap->source.page_bytes, at = base - page, end = base + region->most + page;
    memmove(region, region + 1, (size_t)(&pool->regions[pool->region_count] - (region + 1)) * sizeof *region);
    pool->region_count--;
    while (at < end) {
        cmi_block_id id = cmi_heap_find(heap, at);
        const cmi_block *block = cmi_heap_block(heap, id);
        uint64_t offset = block->offset, bytes = block->bytes;
        at = offset + bytes;
        if (block->kind == CMI_BLOCK_BUSY && cmi_arena_slot(&pool->arena, offset)->state == CMI_SLOT_HELD) {
            cmi_source_set_slots(pool, offset, (uint32_t)(bytes >> heap->page_shift), CMI_SLOT_EMPTY);
            cmi_heap_make_hole(heap, id);
        } else if (block->kind == CMI_BLOCK_FREE) {
            join_pool(pool, id);
        } /* else an old address, or on its way: a hole in the end */
    }
    cmi_pool_must_be_valid(pool);
    return CMPOOL_OK;
}
