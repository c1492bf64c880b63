/*
 * The reclaim ladder: what happens to a request when bins and slabs have nothing for it. Each rung costs more than the one before; the
 * bytes each had to give are kept, and are the explanation when the last one fails. Owns no data but the pool's scratch; runs under the
 * device lock, which it drops around driver calls and callbacks, searching again afterwards; called by malloc.
 */
#include "pool/cache.h"
#include "pool/climb.h"

#include <string.h>

enum { PROBE_FULL_EVERY = 256 };

/* Is anything free that the stream of this request may not use at once? */
static bool something_pending(const cmi_pool *pool, uint32_t stream)
{
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && set->free_blocks && (set->kind == CMI_BINSET_MIXED || (set->kind == CMI_BINSET_STREAM && set->key != stream))) {
            return true;
        }
    }
    return pool->heap.parked_slabs.count > 0 || pool->leaving > 0;
}

/* Every free of another stream, and of the whole device, has an event behind it. */
static bool all_covered(const cmi_device *device, uint32_t stream)
{
    for (uint32_t i = 1; i < device->stream_count; i++) {
        if (i != stream && !cmi_stream_is_done(device, i, device->streams[i].last_free) &&
            !cmi_fence_covers(device, i, device->streams[i].last_free)) {
            return false;
        }
    }
    return cmi_fence_covers(device, CMI_NO_STREAM, device->whole_ticket);
}

static uint64_t pending_bytes(const cmi_pool *pool, uint32_t stream)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && (set->kind == CMI_BINSET_MIXED || (set->kind == CMI_BINSET_STREAM && set->key != stream))) {
            bytes += set->free_bytes;
        }
    }
    return bytes;
}

/* What a wait or a look at the events has made of pending bytes, for the explanation of a refusal. */
static void note_promoted(climb *c, unsigned rung, uint64_t before)
{
    c->rung_bytes[rung] += before - cmi_min_u64(before, pending_bytes(c->pool, c->ask->stream));
}

/* ---- rung 2: what events show done -------------------------------------------------------------- */

static void promote(climb *c)
{
    cmi_pool *pool = c->pool;
    cmi_device *device = pool->device;
    uint32_t stream = c->ask->stream;
    uint64_t before = pending_bytes(pool, stream);
    if (something_pending(pool, stream) && !all_covered(device, stream)) {
        (void)cmi_fence_contexts(device, pool); /* without context events these frees wait for the host */
    }
    if (device->fence_count) {
        (void)cmi_fence_poll(device, pool);
    }
    cmi_owner_promote(pool);
    note_promoted(c, CMPOOL_RUNG_PROMOTE, before);
}

/* ---- the ladder --------------------------------------------------------------------------------- */

/* The bins once more: flushed slabs and promoted memory may have joined to something that fits. */
static cmi_block_id bins_again(cmi_pool *pool, const cmi_ask *ask)
{
    uint32_t own = ask->at ? 0 : cmi_owner_binset(pool, ask->owner, ask->stream, 0);
    return own ? cmi_pool_take_fit(pool, ask, own) : 0;
}

/* Thread caches and slabs are emptied before anybody is refused. */
static void drain_caches(cmi_pool *pool)
{
    cmi_cache_drain(pool);
    if (!CMI_MUTATION(SLABS_NOT_EMPTIED)) {
        cmi_heap_flush_slabs(&pool->heap);
    }
}

/* Rungs 3 to 6 in the order the options ask for. */
static outcome climb_middle(climb *c, cmi_block_id *block, cmpool_status *status)
{
    const cmi_options *options = &c->pool->options;
    bool wait_first = options->pending == CMI_PENDING_WAIT && options->cross_stream_wait;
    outcome made = PLAN_SHORT;
    if ((wait_first || c->pool->device->full) && options->cross_stream_wait && something_pending(c->pool, c->ask->stream)) {
        /* The device gives nothing more: a wait for memory that lies ready costs less than moving pages. */
        made = cmi_plan_in_place(c, REACH_FINISHED, block, status);
        if (made == PLAN_SHORT) {
            made = cmi_plan_in_place(c, REACH_PENDING, block, status);
        }
        if (made != PLAN_SHORT) {
            return made;
        }
    }
    made = cmi_plan_until_settled(c, REACH_FINISHED, !wait_first, block, status);
    if (made == PLAN_SHORT && options->cross_stream_wait) {
        made = cmi_plan_until_settled(c, REACH_PENDING, !wait_first, block, status);
    }
    if (made == PLAN_SHORT && wait_first) {
        made = cmi_plan_until_settled(c, REACH_PENDING, true, block, status);
    }
    if (made == PLAN_SHORT && wait_first && c->no_device_wait) { /* a capture has begun: such pages stood in the way of new ones */
        made = cmi_plan_until_settled(c, REACH_FINISHED, true, block, status);
    }
    return made;
}

/* A request below one page fits into any hole, whoever's it is: as it lies, then with all slabs taken apart. Without device-side waits only
 * into what is finished. */
static outcome scrape(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    cmi_heap *heap = &pool->heap;
    reach far = pool->options.cross_stream_wait ? REACH_ANY : REACH_FINISHED_BYTES;
    cmi_ask exact = *c->ask;
    exact.bytes = cmi_round_up(exact.requested, CMI_UNIT);
    exact.align = CMI_UNIT;
    exact.small = 0;
    if (!c->ask->small) {
        exact.align = c->ask->align;
    }
    if (exact.bytes >= heap->source.page_bytes) {
        return PLAN_SHORT;
    }
    const cmi_ask *asked = c->ask;
    c->ask = &exact;
    outcome made = cmi_plan_in_place(c, far, block, status);
    cmi_cache_shut(pool); /* a slab with a cached slot cannot be taken apart, nor one that a thread is freeing to */
    for (uint32_t i = 1; made == PLAN_SHORT && i <= heap->slab_count; i++) {
        cmi_slab *slab = heap->slabs[i];
        if (slab->block && (slab->free_count || slab->parked_count) && cmi_stamp_reserve(pool->device, CMI_SLAB_SLOTS) &&
            cmi_heap_dissolve_slab(heap, slab->block)) {
            pool->promoted_at = UINT64_MAX; /* its free slots are blocks that nobody has looked at */
            cmi_owner_promote(pool);
            made = cmi_plan_in_place(c, far, block, status);
        }
    }
    cmi_cache_open(pool->device);
    c->ask = asked;
    return made;
}

/* Idle pages of the other pools lie ready: empty slabs are given up, and what was seen done is free for everybody. */
static void make_siblings_ready(cmi_pool *pool)
{
    for (cmi_pool *other = pool->device->pools; other; other = other->next) {
        if (other != pool && !other->dying) {
            drain_caches(other);
            other->promoted_at = UINT64_MAX;
            cmi_owner_promote(other);
        }
    }
}

/* Memory that does not move to where it is needed goes back to the driver, which can give it anew: segments, and what other pools hold
 * where this one has them. */
static void release_what_stays(climb *c)
{
    cmi_device *device = c->pool->device;
    bool asked = false;
    for (cmi_pool *other = device->pools; other; other = other->next) {
        if (!other->dying && (other->segmented || c->pool->segmented)) {
            cmi_pool_pin(other);
            if (!asked && cmi_fence_contexts(device, c->pool) == CMPOOL_OK) {
                (void)cmi_fence_poll(device, c->pool);
            }
            asked = true;
            drain_caches(other);
            cmi_owner_promote(other);
            bool own = other == c->pool;
            uint64_t pages = cmi_trim_done(other, own ? 0 : cmi_div_up(other->options.floor, other->heap.source.page_bytes));
            c->released += pages;
            c->given_up += own ? pages : 0;
            cmi_pool_unpin(other);
        }
    }
}

bool cmi_ladder_ask_program(cmi_pool *pool, const cmi_ask *ask, uint64_t *freed)
{
    cmpool_low_memory_fn callback = pool->low_memory;
    void *user = pool->low_memory_user;
    uint64_t handle = pool->owners[ask->owner].generation;
    if (!callback) {
        return false;
    }
    cmi_cache_drain(pool);
    uint64_t before = pool->counters.live_bytes;
    cmi_lock_release(&pool->device->lock);
    int again = callback(user, handle, ask->bytes);
    cmi_lock_acquire(&pool->device->lock);
    cmi_cache_drain(pool);
    *freed = before - cmi_min_u64(before, pool->counters.live_bytes);
    return again != 0;
}

/* Rung 7: ask the program and the other pools of the device; the driver is tried again whatever it said before. */
static outcome climb_others(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    cmi_device *device = pool->device;
    c->use_siblings = !CMI_MUTATION(SIBLINGS_NOT_ASKED);
    make_siblings_ready(pool);
    release_what_stays(c);
    device->full = false;
    outcome made = climb_middle(c, block, status);
    if (made != PLAN_SHORT || !pool->low_memory || c->alone) { /* what the program had to give it has given before */
        return made;
    }
    cmi_source_put_down(pool, &c->hand); /* the callback may make requests of its own, and trim */
    c->others = c->others || device->carried != c->carried;
    cmi_device_carry_end(device, false);
    bool again = cmi_ladder_ask_program(pool, c->ask, &c->freed_by_callback);
    device->full = false; /* what was put down is there again */
    cmi_device_carry_begin(device);
    c->carried = device->carried;
    c->others = c->others || device->carriers > 1;
    c->rung_bytes[CMPOOL_RUNG_SIBLINGS] += c->freed_by_callback;
    if (!again) {
        return PLAN_SHORT;
    }
    device->full = false; /* what was in hand has gone back, and the callback may have made more room */
    drain_caches(pool);   /* the callback may have freed blocks of any pool */
    make_siblings_ready(pool);
    promote(c);
    release_what_stays(c);
    return climb_middle(c, block, status);
}

/* Rung 9: where the device itself cannot be made to wait, and for memory that has to go back to the driver first. */
static outcome climb_host_wait(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    const cmi_driver *driver = pool->device->driver;
    bool device_waits = pool->options.cross_stream_wait && !c->no_device_wait && driver->CtxRecordEvent && driver->CtxWaitEvent;
    bool pending = false, stays = pool->segmented;
    for (const cmi_pool *other = pool->device->pools; other; other = other->next) {
        bool own_too = pool->segmented || other->segmented; /* of segments even the stream's own memory must be seen done */
        pending = pending || something_pending(other, own_too ? CMI_NO_STREAM : c->ask->stream);
        stays = stays || other->segmented || other->leaving;
    }
    if ((device_waits && !stays) || !pending || cmi_capture_is_live()) {
        return PLAN_SHORT;
    }
    uint64_t before = pending_bytes(pool, c->ask->stream);
    *status = cmi_fence_host_wait(pool->device, pool);
    if (*status != CMPOOL_OK) {
        return PLAN_FAILED;
    }
    cmi_owner_promote(pool);
    note_promoted(c, CMPOOL_RUNG_HOST_WAIT, before);
    make_siblings_ready(pool);
    if (stays) {
        cmi_source_unmap_all_stale(pool->device);
        release_what_stays(c);
        pool->device->full = false;
    }
    outcome made = climb_middle(c, block, status);
    return made == PLAN_SHORT ? scrape(c, block, status) : made;
}

/* All rungs once. */
static outcome climb_once(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    drain_caches(pool);
    c->use_siblings = false;
    *block = bins_again(pool, c->ask);
    if (!*block && (cmi_streams_are_many(pool->device) || something_pending(pool, c->ask->stream) || pool->counters.stale_slots)) {
        promote(c);
        cmi_source_unmap_stale(pool, UINT64_MAX); /* old addresses are room for windows again */
        *block = bins_again(pool, c->ask);
    }
    if (*block) {
        return PLAN_DONE;
    }
    *status = cmi_device_ask_lost(pool->device); /* what follows costs far more than the question */
    if (*status != CMPOOL_OK) {
        return PLAN_FAILED;
    }
    outcome made = climb_middle(c, block, status);
    if (made == PLAN_SHORT) {
        made = climb_others(c, block, status);
    }
    if (made == PLAN_SHORT) {
        made = scrape(c, block, status);
    }
    return made == PLAN_SHORT ? climb_host_wait(c, block, status) : made;
}

/* Pages of other threads may have been on their way during a climb that found too little; then the last word is a climb without them. */
static outcome climb_until_sure(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_device *device = c->pool->device;
    c->others = device->carriers > 1;
    c->carried = device->carried;
    outcome made = climb_once(c, block, status);
    if (made == PLAN_SHORT && (c->others || device->carried != c->carried)) {
        cmi_source_put_down(c->pool, &c->hand); /* of two that are short neither keeps from the other what it has */
        cmi_device_carry_alone(device);
        c->alone = true;
        memset(c->rung_bytes, 0, sizeof c->rung_bytes);
        cmi_cache_shut_all(device); /* nor does anybody keep back what is freed meanwhile */
        made = climb_once(c, block, status);
        cmi_cache_open(device);
    }
    return made;
}

cmpool_status cmi_ladder_climb(cmi_pool *pool, cmi_ask *ask, cmi_block_id *block)
{
    cmi_device *device = pool->device;
    pool->counters.slow_path++;
    if (pool->options.stream_check != CMI_STREAM_CHECK_OFF && ask->stream != CMI_NO_STREAM) {
        cmpool_status known = cmi_stream_find(device, ask->handle, ask->context, true, &ask->stream);
        if (known != CMPOOL_OK) {
            return known;
        }
    }
    cmpool_status status = ask->stream ? cmi_capture_ask(device, ask->stream, ask->handle, &ask->captured) : CMPOOL_OK;
    if (status != CMPOOL_OK) {
        return status;
    }
    /* Both bin sets are made, so that they are there whatever happens below; records and stamps are kept for the caller's own steps. */
    if (!cmi_owner_binset(pool, ask->owner, ask->stream, 1) || !cmi_pool_earmark(pool)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (ask->captured) {
        cmi_capture_found();
    }
    device->tight -= device->tight > 0;
    if (device->full && ++device->slow_since_full >= PROBE_FULL_EVERY) {
        device->full = false; /* others may have given memory back */
        device->slow_since_full = 0;
    }
    climb c = {.pool = pool, .ask = ask};
    outcome made = PLAN_SHORT;
    bool possible = ask->bytes <= device->total_bytes; /* else nothing is looked for, and no addresses are taken */
    if (!possible) {
        c.missing = cmi_div_up(ask->bytes - device->total_bytes, pool->heap.source.page_bytes);
    }
    cmi_device_carry_begin(device);
    if (possible) {
        made = climb_until_sure(&c, block, &status);
    }
    cmi_source_put_down(pool, &c.hand);
    if (made == PLAN_SHORT) {
        status = c.limited && !device->full ? CMPOOL_ERR_LIMIT : CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    }
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        uint64_t driver_free = cmi_device_ask_free(device);
        pool->counters.refusals++;
        cmi_pool_explain(pool, ask, status, driver_free, c.missing, c.rung_bytes);
        cmi_history_refuse(pool, ask);
    }
    if (ask->captured) {
        cmi_capture_left();
    }
    cmi_device_carry_end(device, c.alone);
    cmi_pool_end_earmark(pool);
    cmi_meta_free(c.donors, c.donor_room * sizeof *c.donors);
    cmi_meta_free(c.runs, c.run_room * sizeof *c.runs);
    return status;
}
