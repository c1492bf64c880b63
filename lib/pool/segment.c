/*
 * Segments: memory that comes from the driver in one piece and goes back in one piece. A pool without movable pages lives in cuMemAlloc
 * segments, in which blocks split and join as everywhere else; an exportable block is alone in a segment with a handle of its own. Owns
 * what becomes of them; guarded by the device lock, dropped around driver calls while the blocks concerned are BUSY; called by malloc,
 * free, plans and trim.
 */
#include "pool/cache.h"
#include "pool/climb.h"

/* ---- a segment comes ---------------------------------------------------------------------------- */

/* A range that did not find its place in the tables. */
static void discard(cmi_device *device, cmi_range *range)
{
    cmi_call call;
    cmi_device_call_begin_anyway(device, &call);
    if (!cmi_segment_release(device->store, range)) {
        cmi_segment_abandon(device->store, range);
    }
    cmi_range_drop(device->store, range);
    cmi_device_call_end(device, &call);
}

cmpool_status cmi_pool_add_segment(cmi_pool *pool, cmi_range_kind kind, uint64_t pages, cmi_block_id *block)
{
    cmi_device *device = pool->device;
    cmi_heap *heap = &pool->heap;
    cmi_range *range = NULL;
    cmi_call call;
    pool->reserved_pages += pages; /* counted as ours while on their way, so that two threads keep one limit */
    device->creating++;
    device->creations++;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status == CMPOOL_OK) {
        cmi_step_begin(CMI_STEP_GROW, pages << heap->page_shift);
        status = cmi_segment_create(device->store, kind, pages, &range);
        cmi_step_end();
        cmi_device_call_end(device, &call);
    }
    device->creating--;
    pool->counters.driver_turns++;
    if (status == CMPOOL_OK) {
        status = cmi_arena_publish(&pool->arena, range);
        if (status == CMPOOL_OK && !cmi_heap_add_space(heap, range->base, range->bytes)) {
            cmi_arena_withdraw(&pool->arena, range);
            status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        if (status != CMPOOL_OK) {
            discard(device, range);
        }
    }
    if (status != CMPOOL_OK) {
        pool->reserved_pages -= pages;
        return status;
    }
    uint32_t now = pool->options.idle_release ? cmi_returns_now() : 0;
    for (uint32_t i = 0; i < range->slot_count; i++) {
        range->slots[i].freed_at = now;
    }
    *block = cmi_heap_find(heap, range->base);
    cmi_heap_block(heap, *block)->kind = CMI_BLOCK_BUSY;
    cmi_heap_block(heap, *block)->binset = CMI_NO_BINSET;
    heap->changes++;
    pool->counters.pages_created += pages;
    pool->counters.address_bytes = pool->arena.address_bytes;
    pool->counters.peak_reserved_bytes = cmi_max_u64(pool->counters.peak_reserved_bytes, pool->reserved_pages << heap->page_shift);
    cmi_ring_write(&pool->ring, CMI_EVENT_GROW, range->base, range->bytes, 0);
    return CMPOOL_OK;
}

/* ---- a segment goes ----------------------------------------------------------------------------- */

bool cmi_pool_remove_segment(cmi_pool *pool, cmi_range *range)
{
    cmi_device *device = pool->device;
    cmi_heap *heap = &pool->heap;
    uint8_t state = range->slots[0].state;
    cmi_source_set_slots(pool, range->base, range->slot_count, CMI_SLOT_MOVING);
    cmi_call call;
    if (cmi_capture_barred_begin(device, &call, 0) != CMPOOL_OK) {
        cmi_source_set_slots(pool, range->base, range->slot_count, state);
        return false;
    }
    bool gone = cmi_segment_release(device->store, range);
    cmi_device_call_end(device, &call);
    pool->counters.driver_turns++;
    if (!gone) {
        cmi_source_set_slots(pool, range->base, range->slot_count, state);
        cmi_device_call_begin_anyway(device, &call);
        cmi_capture_barred_end(device, &call);
        return false;
    }
    cmi_ring_write(&pool->ring, CMI_EVENT_RELEASE, range->base, range->bytes, 0);
    pool->reserved_pages -= range->held_pages;
    pool->counters.pages_released += range->held_pages;
    device->full = false;
    cmi_cache_forget_range(pool, range->base);
    cmi_heap_make_hole(heap, cmi_heap_find(heap, range->base));
    cmi_heap_remove_space(heap, range->base);
    cmi_arena_withdraw(&pool->arena, range);
    pool->counters.address_bytes = pool->arena.address_bytes;
    cmi_device_call_begin_anyway(device, &call); /* only now, when nobody finds the range any more, its record may go */
    cmi_range_drop(device->store, range);
    cmi_capture_barred_end(device, &call);
    return true;
}

uint64_t cmi_pool_fixed_pages(const cmi_pool *pool, uint64_t *segments)
{
    uint64_t pages = 0;
    *segments = 0;
    for (uint32_t i = 0; i < pool->arena.range_count; i++) {
        const cmi_range *range = pool->arena.ranges[i];
        if (range->kind != CMI_RANGE_SLOTS) {
            pages += range->held_pages;
            ++*segments;
        }
    }
    return pages;
}

/* ---- exportable blocks -------------------------------------------------------------------------- */

static cmpool_status take_segment(climb *c, uint64_t pages, uint64_t *address)
{
    cmi_pool *pool = c->pool;
    const cmi_ask *ask = c->ask;
    pool->device->full = false; /* what was said of pages need not hold after a trim */
    uint64_t growth = cmi_plan_growth_pages(c);
    if (growth < pages) {
        c->missing = pages - growth;
        return c->limited ? CMPOOL_ERR_LIMIT : CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    }
    c->missing = pages;
    uint32_t set = cmi_owner_binset(pool, ask->owner, ask->stream, 0);
    cmi_block_id id;
    cmpool_status status = set ? cmi_pool_add_segment(pool, CMI_RANGE_SHARED, pages, &id) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    if (status == CMPOOL_OK) {
        pool->shared++;
        cmi_pool_hand_out(pool, ask, id, set, address);
    }
    return status;
}

/* The driver gives a handle of this length only out of what nobody holds: idle pages go back first, of this pool, then of the others. */
static void make_room(climb *c, uint64_t pages, bool wait)
{
    cmi_pool *pool = c->pool;
    uint64_t released = 0;
    (void)cmi_trim_pool(pool, pool->reserved_pages - cmi_min_u64(pool->reserved_pages, pages), wait, &released);
    c->given_up += released;
    (void)cmi_trim_device(pool->device, pages, wait, &released);
    c->released += released;
}

static cmpool_status climb_for_segment(climb *c, uint64_t *address)
{
    cmi_pool *pool = c->pool;
    uint64_t pages = cmi_div_up(c->ask->bytes, pool->heap.source.page_bytes), freed = 0;
    cmpool_status status = CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    enum { AS_IT_IS, WITHOUT_WAIT, WITH_WAIT, FROM_PROGRAM, NO_MORE };
    for (unsigned step = AS_IT_IS; step < NO_MORE && (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT); step++) {
        if (step == FROM_PROGRAM && !cmi_ladder_ask_program(pool, c->ask, &freed)) {
            break;
        }
        if (step != AS_IT_IS) {
            make_room(c, pages, step != WITHOUT_WAIT);
        }
        status = take_segment(c, pages, address);
    }
    c->rung_bytes[CMPOOL_RUNG_SIBLINGS] = freed;
    return status;
}

cmpool_status cmi_pool_malloc_exportable(cmi_pool *pool, cmi_ask *ask, uint64_t *address)
{
    cmi_device *device = pool->device;
    if (pool->segmented || !cmi_store_has_shared(device->store) || pool->owners[ask->owner].kind == CMI_OWNER_CAPTURE) {
        return CMPOOL_ERR_UNSUPPORTED;
    }
    bool captured = false;
    cmpool_status status = ask->stream ? cmi_capture_ask(device, ask->stream, ask->handle, &captured) : CMPOOL_OK;
    status = status == CMPOOL_OK ? cmi_device_ask_lost(device) : status;
    if (status != CMPOOL_OK || captured) { /* a graph would use the address after the segment has gone */
        return status == CMPOOL_OK ? CMPOOL_ERR_CAPTURE : status;
    }
    climb c = {.pool = pool, .ask = ask, .may_grow = true};
    pool->counters.slow_path++;
    status = CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    if (ask->bytes > device->total_bytes) {
        c.missing = cmi_div_up(ask->bytes - device->total_bytes, pool->heap.source.page_bytes);
    } else {
        status = climb_for_segment(&c, address);
    }
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        uint64_t driver_free = cmi_device_ask_free(device);
        pool->counters.refusals++;
        cmi_pool_explain(pool, ask, status, driver_free, c.missing, c.rung_bytes);
        cmi_history_refuse(pool, ask);
    }
    return status;
}

bool cmi_pool_is_exportable(const cmi_pool *pool, const cmi_block *block)
{
    return pool->shared && cmi_arena_range(&pool->arena, block->offset)->kind == CMI_RANGE_SHARED;
}

void cmi_pool_leave(cmi_pool *pool, cmi_block_id id, uint32_t stamp)
{
    cmi_range *range = cmi_arena_range(&pool->arena, cmi_heap_block(&pool->heap, id)->offset);
    cmi_source_set_slots(pool, range->base, range->slot_count, CMI_SLOT_STALE);
    range->slots[0].stamp = stamp;
    cmi_heap_make_stale(&pool->heap, id);
    pool->leaving++;
}

uint64_t cmi_pool_release_left(cmi_pool *pool)
{
    cmi_heap *heap = &pool->heap;
    uint64_t pages = 0;
    for (uint32_t i = 0; pool->leaving && i < pool->arena.range_count;) {
        cmi_range *range = pool->arena.ranges[i++];
        const cmi_slot *slot = &range->slots[0];
        bool leaves = range->kind == CMI_RANGE_SHARED && slot->state == CMI_SLOT_STALE && slot->fixed == 1;
        if (!leaves || !cmi_stamp_is_done(pool->device, slot->stamp)) {
            continue;
        }
        uint32_t stamp = slot->stamp, count = range->held_pages;
        cmi_block_id id = cmi_heap_find(heap, range->base);
        cmi_heap_block(heap, id)->kind = CMI_BLOCK_BUSY;
        if (!cmi_pool_remove_segment(pool, range)) {
            cmi_heap_make_stale(heap, id);
            break;
        }
        cmi_stamp_drop(pool->device, stamp);
        pool->shared--;
        pool->leaving--;
        pages += count;
        i = 0; /* the lock was dropped: others may stand here now */
    }
    return pages;
}

void cmi_pool_release_soon(cmi_pool *pool, uint32_t stream, CUstream handle)
{
    cmi_device *device = pool->device;
    (void)(stream == CMI_NO_STREAM ? cmi_fence_contexts(device, pool) : cmi_fence_stream(device, pool, stream, handle));
    (void)cmi_fence_poll(device, pool); /* what fails here is made good by trims and by requests that are short */
    cmi_pool_release_left(pool);
    cmi_pool_must_be_valid(pool);
}

cmpool_status cmi_pool_export(cmi_pool *pool, cmi_block_id block, int *fd)
{
    cmi_device *device = pool->device;
    if (!cmi_pool_is_exportable(pool, cmi_heap_block(&pool->heap, block))) {
        return CMPOOL_ERR_UNSUPPORTED;
    }
    cmi_range *range = cmi_arena_range(&pool->arena, cmi_heap_block(&pool->heap, block)->offset);
    range->slots[0].fixed++; /* it stays, also if another thread frees the block meanwhile */
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, 0);
    if (status == CMPOOL_OK) {
        status = cmi_segment_export(device->store, range, fd);
        cmi_device_call_end(device, &call);
    }
    range->slots[0].fixed--;
    return status;
}
