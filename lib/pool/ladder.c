/*
 * The reclaim ladder: what happens to a request when bins and slabs have nothing for it. Each rung costs more than the one before; the
 * bytes each gained are kept, and are the explanation when the last one fails. Owns no data but the pool's scratch; runs under the device
 * lock, which it drops around driver calls and callbacks, searching again afterwards; called by malloc.
 */
#include "pool/pool.h"

#include <string.h>

enum { PROBE_FULL_EVERY = 256, MOST_ROUNDS = 64 };

/* How far a search may reach. */
typedef enum reach {
    REACH_FINISHED,       /* memory this stream may use at once */
    REACH_FINISHED_BYTES, /* of that also, in place, bytes of other owners and of small pages */
    REACH_PENDING,        /* also memory that other streams have to finish with: a device-side wait */
    REACH_ANY             /* also, in place, bytes of other owners and of small pages */
} reach;

typedef struct climb {
    cmi_pool *pool;
    const cmi_ask *ask;
    cmi_hand hand;
    cmi_donor *donors;
    uint32_t donor_room, donor_count;
    cmi_idle_run *runs; /* scratch */
    uint32_t run_room;
    reach reach;
    bool may_grow, use_siblings;
    bool in_place;       /* only memory that lies together already */
    uint64_t missing;    /* pages short at the last plan */
    uint64_t taken;      /* pages that the donors give */
    bool no_device_wait; /* the driver has no event for what must be waited for, or a capture bars it */
    bool limited;        /* the pool's limit, not the device, is what stops growth */
    uint64_t freed_by_callback;
    size_t rung_bytes[CMPOOL_RUNG_COUNT]; /* what each rung had to give */
} climb;

/* ---- what may be used --------------------------------------------------------------------------- */

/* May a request of `asker` look at a bin set of `pool`? Memory of graphs is its set's alone; and a set takes from others only what the host
 * has seen done, from itself only what its stream freed: a captured stream cannot be made to wait. */
static bool may_look(const cmi_pool *pool, const cmi_pool *asker, const cmi_ask *ask, const cmi_binset *set)
{
    bool capture = ask && (ask->captured || asker->owners[ask->owner].kind == CMI_OWNER_CAPTURE);
    bool own = ask && pool == asker && set->owner == ask->owner;
    if (!own && pool->owners[set->owner].kind == CMI_OWNER_CAPTURE) {
        return false;
    }
    return !capture || set->kind == CMI_BINSET_DONE || (own && set->kind == CMI_BINSET_STREAM && set->key == ask->stream);
}

static bool mark_usable(cmi_pool *pool, const cmi_pool *asker, const cmi_ask *ask, reach far)
{
    cmi_heap *heap = &pool->heap;
    uint32_t room = heap->binset_count + 1;
    if (room > pool->use_room) {
        uint8_t *grown = cmi_meta_resize(pool->use, pool->use_room, 2 * room);
        if (!grown) {
            return false;
        }
        pool->use = grown;
        pool->use_room = 2 * room;
    }
    for (uint32_t i = 1; i <= heap->binset_count; i++) {
        const cmi_binset *set = heap->binsets[i];
        pool->use[i] = CMI_USE_NOT;
        if (!set || !may_look(pool, asker, ask, set)) {
            continue;
        }
        bool finished = set->kind == CMI_BINSET_DONE || (set->kind == CMI_BINSET_STREAM && ask && set->key == ask->stream);
        if (finished || far >= REACH_PENDING) {
            bool in_place =
                far == REACH_FINISHED_BYTES || far == REACH_ANY || (ask && pool == asker && set->owner == ask->owner && !set->small);
            pool->use[i] = in_place ? CMI_USE_BYTES : CMI_USE_PAGES;
        }
    }
    return true;
}

/* Is anything free that the stream of this request may not use at once? */
static bool something_pending(const cmi_pool *pool, uint32_t stream)
{
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && set->free_blocks && (set->kind == CMI_BINSET_MIXED || (set->kind == CMI_BINSET_STREAM && set->key != stream))) {
            return true;
        }
    }
    return pool->heap.parked_slabs.count > 0;
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

/* ---- rung 2: what events show done -------------------------------------------------------------- */

static void promote(cmi_pool *pool, uint32_t stream)
{
    cmi_device *device = pool->device;
    if (something_pending(pool, stream) && !all_covered(device, stream)) {
        (void)cmi_fence_contexts(device, pool); /* without context events these frees wait for the host */
    }
    if (device->fence_count) {
        (void)cmi_fence_poll(device, pool);
    }
    cmi_owner_promote(pool);
}

/* ---- donors ------------------------------------------------------------------------------------- */

static bool gives_before(const cmi_donor *a, const cmi_donor *b)
{
    bool a_edge = a->run.hole_before || a->run.hole_behind, b_edge = b->run.hole_before || b->run.hole_behind;
    if (a_edge != b_edge) {
        return a_edge;
    }
    return a->run.pages != b->run.pages ? a->run.pages < b->run.pages : a->run.offset < b->run.offset;
}

/* Sorted in place by halving gaps; the C library's qsort may call malloc. */
static void sort_donors(cmi_donor *donors, uint32_t count)
{
    for (uint32_t gap = count / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < count; i++) {
            cmi_donor moving = donors[i];
            uint32_t j = i;
            for (; j >= gap && gives_before(&moving, &donors[j - gap]); j -= gap) {
                donors[j] = donors[j - gap];
            }
            donors[j] = moving;
        }
    }
}

/* Free memory of graphs serves its set where it lies; its pages never leave their place. */
static void keep_graph_memory(cmi_pool *pool)
{
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && pool->owners[set->owner].kind == CMI_OWNER_CAPTURE) {
            pool->use[i] = CMI_USE_NOT;
        }
    }
}

/* Append the idle runs of one pool, at most `most` pages of them. Returns pages added; *count grows. UINT64_MAX: no host memory. */
static uint64_t add_donors(climb *c, cmi_pool *from, uint64_t skip, uint64_t skip_bytes, uint64_t most, uint32_t *count)
{
    if (!most) {
        return 0;
    }
    /* One walk is enough once the scratch is as long as it has ever had to be. */
    uint32_t runs = cmi_heap_idle_runs(&from->heap, from->use, skip, skip_bytes, c->runs, c->run_room, NULL);
    while (runs > c->run_room) {
        cmi_meta_free(c->runs, c->run_room * sizeof *c->runs);
        c->run_room = 0;
        c->runs = cmi_meta_alloc(2 * runs * sizeof *c->runs);
        if (!c->runs) {
            return UINT64_MAX;
        }
        c->run_room = 2 * runs;
        runs = cmi_heap_idle_runs(&from->heap, from->use, skip, skip_bytes, c->runs, c->run_room, NULL);
    }
    if (*count + runs > c->donor_room) {
        uint32_t room = 2 * (*count + runs);
        cmi_donor *grown = cmi_meta_resize(c->donors, c->donor_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return UINT64_MAX;
        }
        c->donors = grown;
        c->donor_room = room;
    }
    cmi_donor *added = c->donors + *count;
    for (uint32_t i = 0; i < runs; i++) {
        added[i] = (cmi_donor){from, c->runs[i]};
    }
    sort_donors(added, runs);
    uint64_t sum = 0;
    uint32_t used = 0;
    for (; used < runs && sum < most; used++) {
        added[used].run.pages = (uint32_t)cmi_min_u64(added[used].run.pages, most - sum);
        sum += added[used].run.pages;
    }
    *count += used;
    return sum;
}

/* At most `most` pages, since what siblings give counts against the pool's own limit. */
static uint64_t add_sibling_donors(climb *c, uint64_t most, uint32_t *count)
{
    uint64_t total = 0;
    reach far = c->pool->options.cross_stream_wait ? REACH_PENDING : REACH_FINISHED;
    for (cmi_pool *other = c->pool->device->pools; other; other = other->next) {
        if (other == c->pool || other->dying || !mark_usable(other, c->pool, c->ask, far)) {
            continue;
        }
        uint64_t floor = CMI_MUTATION(FLOOR_IGNORED) ? 0 : cmi_div_up(other->options.floor, other->heap.source.page_bytes);
        uint64_t spare = other->reserved_pages > floor ? other->reserved_pages - floor : 0;
        uint64_t pages = add_donors(c, other, 0, 0, cmi_min_u64(spare, most - total), count);
        total += pages == UINT64_MAX ? 0 : pages;
    }
    return total;
}

/* ---- growth ------------------------------------------------------------------------------------- */

/* New pages the slack allows: up to (1 + slack) times the peak of live bytes, this request included. */
static uint64_t slack_pages(const cmi_pool *pool, uint64_t bytes)
{
    uint64_t peak = cmi_max_u64(pool->counters.peak_live_bytes, pool->counters.live_bytes + bytes);
    uint64_t most = (peak + (uint64_t)((double)peak * (double)pool->options.slack / 1e6)) >> pool->heap.page_shift;
    return most > pool->reserved_pages ? most - pool->reserved_pages : 0;
}

/* Old addresses that cannot be unmapped yet lock the free bytes beside them: past the budget new pages come before idle ones. */
static bool too_many_stale(const cmi_pool *pool)
{
    return pool->counters.stale_slots > pool->reserved_pages * pool->options.stale_budget / 1000000;
}

/* Pages that the pool may hold beyond what it has. */
static uint64_t pages_below_limit(const cmi_pool *pool)
{
    uint64_t limit = (pool->options.limit >> pool->heap.page_shift) - (CMI_MUTATION(LIMIT_ONE_PAGE_SHORT) && pool->options.limit);
    return !pool->options.limit ? UINT32_MAX : limit > pool->reserved_pages ? limit - pool->reserved_pages : 0;
}

/* New pages that limit and headroom allow, as far as is known without trying. */
static uint64_t growth_pages(climb *c)
{
    cmi_pool *pool = c->pool;
    if (!c->may_grow || c->in_place || pool->device->full) {
        return 0;
    }
    uint64_t most = pages_below_limit(pool);
    c->limited = most < UINT32_MAX;
    if (pool->options.headroom && most) {
        size_t left = 0, total = 0;
        cmi_call call;
        if (cmi_device_call_begin(pool->device, &call, 0) == CMPOOL_OK) {
            if (pool->device->driver->MemGetInfo(&left, &total) != CUDA_SUCCESS) {
                left = 0;
            }
            cmi_device_call_end(pool->device, &call);
        }
        uint64_t open = left > pool->options.headroom ? (left - pool->options.headroom) >> pool->heap.page_shift : 0;
        c->limited = c->limited && most <= open;
        most = cmi_min_u64(most, open);
    }
    return most;
}

/* ---- one plan ----------------------------------------------------------------------------------- */

typedef enum outcome { PLAN_DONE, PLAN_AGAIN, PLAN_SHORT, PLAN_FAILED } outcome;

static outcome want_addresses(climb *c, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    if (cmi_source_unmap_stale(pool, UINT64_MAX)) {
        return PLAN_AGAIN;
    }
    uint64_t bytes = cmi_max_u64(pool->device->total_bytes, c->ask->bytes + c->ask->align);
    *status = cmi_source_reserve_range(pool, bytes);
    return *status == CMPOOL_OK ? PLAN_AGAIN : PLAN_FAILED;
}

static outcome mappings_allowed(climb *c, uint64_t more, cmpool_status *status)
{
    cmi_device *device = c->pool->device;
    if (cmi_store_mappings(device->store) + more <= CMI_MAPPING_CEILING) {
        return PLAN_DONE;
    }
    if (cmi_source_unmap_all_stale(device)) {
        return PLAN_AGAIN;
    }
    *status = cmi_fence_host_wait(device, c->pool);
    if (*status == CMPOOL_OK && cmi_source_unmap_all_stale(device)) {
        return PLAN_AGAIN;
    }
    *status = *status == CMPOOL_OK ? CMPOOL_ERR_MAPPING_CEILING : *status;
    return PLAN_FAILED;
}

/* Create what the plan wants; the rest of the plan is made again afterwards, since the lock was dropped. */
static outcome create(climb *c, uint64_t wanted, uint64_t slack, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    uint32_t got = 0;
    *status = cmi_source_create(pool, &c->hand, (uint32_t)wanted, &got);
    uint64_t gained = (uint64_t)got << pool->heap.page_shift;
    uint64_t by_slack = cmi_min_u64(gained, slack << pool->heap.page_shift);
    c->rung_bytes[CMPOOL_RUNG_SLACK] += by_slack;
    c->rung_bytes[CMPOOL_RUNG_GROW] += gained - by_slack;
    if (*status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
        pool->device->full = true;
        pool->device->slow_since_full = 0;
        *status = CMPOOL_OK;
    }
    return *status == CMPOOL_OK ? PLAN_AGAIN : PLAN_FAILED;
}

/* New pages to be created for a window, and of those the ones within the slack. */
typedef struct wanted {
    uint64_t pages, slack;
} wanted;

/* What each rung had to give when it was not enough, for the explanation of a refusal. */
static void note_gains(climb *c, uint64_t idle, uint64_t siblings, uint64_t growth)
{
    unsigned shift = c->pool->heap.page_shift;
    size_t *bytes = c->rung_bytes;
    if (c->reach == REACH_FINISHED) {
        bytes[CMPOOL_RUNG_MOVE] = idle << shift;
    } else {
        bytes[CMPOOL_RUNG_PENDING] = (idle << shift) - cmi_min_u64(idle << shift, bytes[CMPOOL_RUNG_MOVE]);
    }
    bytes[CMPOOL_RUNG_SIBLINGS] = (siblings << shift) + c->freed_by_callback;
    bytes[CMPOOL_RUNG_GROW] = (c->hand.count + (growth < UINT32_MAX ? growth : 0)) << shift;
}

/*
 * Where the window's pages come from: the hand, then new ones within the slack, then idle ones (the donors), then new ones beyond it. DONE:
 * the donors are chosen, and *create says what is to be created first, if anything.
 */
static outcome choose_pages(climb *c, const cmi_window *window, uint64_t growth, wanted *create, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    *create = (wanted){0, 0};
    c->donor_count = 0;
    c->taken = 0;
    if (window->pages <= c->hand.count) {
        return PLAN_DONE;
    }
    if (c->in_place) {
        return PLAN_SHORT;
    }
    uint64_t missing = window->pages - c->hand.count;
    create->slack = cmi_min_u64(cmi_min_u64(missing, growth), too_many_stale(pool) ? missing : slack_pages(pool, c->ask->bytes));
    bool may_move = pool->options.stale_budget || !cmi_capture_is_live(); /* the strict form unmaps first */
    keep_graph_memory(pool);
    uint64_t idle = may_move ? add_donors(c, pool, window->offset, c->ask->bytes, missing - create->slack, &c->donor_count) : 0;
    uint64_t room = pages_below_limit(pool), given = 0;
    if (idle != UINT64_MAX && may_move && c->use_siblings && create->slack + idle < missing && create->slack < room) {
        given = add_sibling_donors(c, cmi_min_u64(room, missing - idle) - create->slack, &c->donor_count);
        idle += given;
    }
    if (idle == UINT64_MAX) {
        *status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        return PLAN_FAILED;
    }
    c->taken = cmi_min_u64(missing - create->slack, idle);
    create->pages = missing - c->taken;
    uint64_t most = cmi_min_u64(growth, room - given); /* given is within room */
    if (create->pages > most) {
        note_gains(c, idle - given, given, most);
        c->missing = create->pages - most;
        return PLAN_SHORT;
    }
    return PLAN_DONE;
}

/* A window of whole empty slots takes no more pages than the request has. One over free bytes needs fewer new ones, but may lie on parts of
 * idle pages, which then cannot be moved: with nothing to spare that is too many. */
static bool find_empty_window(const climb *c, cmi_window *window)
{
    cmi_pool *pool = c->pool;
    const cmi_ask *ask = c->ask;
    memset(pool->use, CMI_USE_NOT, pool->use_room);
    bool found = cmi_heap_find_window(&pool->heap, pool->use, ask->bytes, cmi_max_u64(ask->align, pool->heap.source.page_bytes), window);
    return mark_usable(pool, pool, ask, c->reach) && found;
}

/* Look for the window that needs the fewest pages within reach, and fill it. SHORT: not enough pages within this reach. */
static outcome plan(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    const cmi_ask *ask = c->ask;
    /* What drops the lock comes first: from the search for a window to its claim nothing may change. */
    if (!c->in_place) {
        outcome allowed = mappings_allowed(c, (ask->bytes >> pool->heap.page_shift) + 1, status);
        if (allowed != PLAN_DONE) {
            return allowed;
        }
    }
    uint64_t growth = growth_pages(c);
    if (!mark_usable(pool, pool, ask, c->reach)) {
        *status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        return PLAN_FAILED;
    }
    cmi_window window;
    if (!cmi_heap_find_window(&pool->heap, pool->use, ask->bytes, ask->align, &window)) {
        return c->in_place ? PLAN_SHORT : want_addresses(c, status);
    }
    wanted create_first;
    outcome chosen = choose_pages(c, &window, growth, &create_first, status);
    if (chosen == PLAN_SHORT && c->use_siblings && !c->in_place && find_empty_window(c, &window)) {
        chosen = choose_pages(c, &window, growth, &create_first, status);
    }
    if (chosen != PLAN_DONE) {
        return chosen;
    }
    if (create_first.pages) {
        uint64_t changes = pool->heap.changes, landings = pool->device->landings;
        outcome created = create(c, create_first.pages, create_first.slack, status);
        /* Where nothing else has happened meanwhile, and all pages came, the plan holds as it is. */
        bool undisturbed = pool->heap.changes == changes && pool->device->landings == landings + 1 && !c->use_siblings;
        if (*status != CMPOOL_OK || !undisturbed || c->hand.count + c->taken < window.pages) {
            return created;
        }
    }
    cmi_log(CMI_LOG_STEP, "request of %llu bytes: window at %llx, %u pages: %u new, %u runs to take from, reach %d",
            (unsigned long long)ask->bytes, (unsigned long long)window.offset, window.pages, c->hand.count, c->donor_count, (int)c->reach);
    *status = cmi_source_fill(pool, ask, &window, &c->hand, c->donors, c->donor_count, block);
    if ((*status == CMPOOL_ERR_UNSUPPORTED || *status == CMPOOL_ERR_CAPTURE) && c->reach >= REACH_PENDING) {
        c->no_device_wait = true;
        *status = CMPOOL_OK;
        return PLAN_SHORT;
    }
    if (*status == CMPOOL_ERR_CAPTURE && c->donor_count && cmi_capture_is_live()) { /* began after the donors were chosen: without them */
        *status = CMPOOL_OK;
        return PLAN_AGAIN;
    }
    return *status == CMPOOL_OK ? PLAN_DONE : PLAN_FAILED;
}

static outcome plan_in_place(climb *c, reach far, cmi_block_id *block, cmpool_status *status)
{
    c->reach = far;
    c->in_place = true;
    outcome made = plan(c, block, status);
    c->in_place = false;
    return made;
}

static outcome plan_until_settled(climb *c, reach far, bool may_grow, cmi_block_id *block, cmpool_status *status)
{
    c->reach = far;
    c->may_grow = may_grow;
    outcome made;
    do {
        made = plan(c, block, status);
    } while (made == PLAN_AGAIN);
    return made;
}

/* ---- the ladder --------------------------------------------------------------------------------- */

/* The bins once more: flushed slabs and promoted memory may have joined to something that fits. */
static cmi_block_id bins_again(cmi_pool *pool, const cmi_ask *ask)
{
    cmi_heap *heap = &pool->heap;
    uint32_t own = cmi_owner_binset(pool, ask->owner, ask->stream, 0);
    cmi_block_id id = own ? cmi_heap_best_fit(heap, own, ask->bytes, ask->align) : 0;
    cmi_block_id done = cmi_heap_best_fit(heap, pool->owners[ask->owner].done[0], ask->bytes, ask->align);
    if (!id || (done && cmi_heap_block(heap, done)->bytes < cmi_heap_block(heap, id)->bytes)) {
        id = done;
    }
    return id ? cmi_heap_take(heap, id, cmi_round_up(cmi_heap_block(heap, id)->offset, ask->align), ask->bytes) : 0;
}

/* Thread caches are emptied before anybody is refused. There are none yet: every free slot is in its slab. */
static void drain_caches(cmi_pool *pool)
{
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
        made = plan_in_place(c, REACH_FINISHED, block, status);
        if (made == PLAN_SHORT) {
            made = plan_in_place(c, REACH_PENDING, block, status);
        }
        if (made != PLAN_SHORT) {
            return made;
        }
    }
    made = plan_until_settled(c, REACH_FINISHED, !wait_first, block, status);
    if (made == PLAN_SHORT && options->cross_stream_wait) {
        made = plan_until_settled(c, REACH_PENDING, !wait_first, block, status);
    }
    if (made == PLAN_SHORT && wait_first) {
        made = plan_until_settled(c, REACH_PENDING, true, block, status);
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
    outcome made = plan_in_place(c, far, block, status);
    for (uint32_t i = 1; made == PLAN_SHORT && i <= heap->slab_count; i++) {
        cmi_slab *slab = heap->slabs[i];
        if (slab->block && (slab->free_count || slab->parked_count) && cmi_stamp_reserve(pool->device, CMI_SLAB_SLOTS) &&
            cmi_heap_dissolve_slab(heap, slab->block)) {
            pool->promoted_at = UINT64_MAX; /* its free slots are blocks that nobody has looked at */
            cmi_owner_promote(pool);
            made = plan_in_place(c, far, block, status);
        }
    }
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

/* Rung 7: ask the program and the other pools of the device; the driver is tried again whatever it said before. */
static outcome climb_others(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    cmi_device *device = pool->device;
    c->use_siblings = !CMI_MUTATION(SIBLINGS_NOT_ASKED);
    make_siblings_ready(pool);
    device->full = false;
    outcome made = climb_middle(c, block, status);
    if (made != PLAN_SHORT || !pool->low_memory) {
        return made;
    }
    cmpool_low_memory_fn callback = pool->low_memory;
    void *user = pool->low_memory_user;
    uint64_t handle = pool->owners[c->ask->owner].generation;
    uint64_t before = pool->counters.live_bytes;
    cmi_lock_release(&device->lock);
    int again = callback(user, handle, c->ask->bytes);
    cmi_lock_acquire(&device->lock);
    c->freed_by_callback = before - cmi_min_u64(before, pool->counters.live_bytes);
    c->rung_bytes[CMPOOL_RUNG_SIBLINGS] += c->freed_by_callback;
    if (!again) {
        return PLAN_SHORT;
    }
    drain_caches(pool); /* the callback may have freed blocks of any pool */
    make_siblings_ready(pool);
    promote(pool, c->ask->stream);
    return climb_middle(c, block, status);
}

/* Rung 8: only where the device itself cannot be made to wait. */
static outcome climb_host_wait(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    const cmi_driver *driver = pool->device->driver;
    bool device_waits = pool->options.cross_stream_wait && !c->no_device_wait && driver->CtxRecordEvent && driver->CtxWaitEvent;
    bool pending = false;
    for (const cmi_pool *other = pool->device->pools; other; other = other->next) {
        pending = pending || something_pending(other, c->ask->stream);
    }
    if (device_waits || !pending || cmi_capture_is_live()) {
        return PLAN_SHORT;
    }
    *status = cmi_fence_host_wait(pool->device, pool);
    if (*status != CMPOOL_OK) {
        return PLAN_FAILED;
    }
    cmi_owner_promote(pool);
    make_siblings_ready(pool);
    outcome made = climb_middle(c, block, status);
    return made == PLAN_SHORT ? scrape(c, block, status) : made;
}

/* Somebody else's pages are on their way: wait for them to land rather than refuse. */
static bool others_in_flight(cmi_device *device)
{
    if (!device->in_flight) {
        return false;
    }
    pthread_cond_wait(&device->landed, &device->lock.mutex);
    return true;
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
    if (!cmi_owner_binset(pool, ask->owner, ask->stream, 1)) { /* makes both, so that they are there whatever happens below */
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (ask->captured) {
        cmi_capture_found();
    }
    if (device->full && ++device->slow_since_full >= PROBE_FULL_EVERY) {
        device->full = false; /* others may have given memory back */
        device->slow_since_full = 0;
    }
    climb c = {.pool = pool, .ask = ask};
    outcome made = PLAN_SHORT;
    unsigned rounds = 0;                               /* busy neighbours must not keep a hopeless request for ever */
    bool possible = ask->bytes <= device->total_bytes; /* else nothing is looked for, and no addresses are taken */
    if (!possible) {
        c.missing = cmi_div_up(ask->bytes - device->total_bytes, pool->heap.source.page_bytes);
    }
    while (possible) {
        drain_caches(pool);
        c.use_siblings = false;
        *block = bins_again(pool, ask);
        if (!*block && (cmi_streams_are_many(device) || pool->counters.stale_slots)) {
            promote(pool, ask->stream);
            cmi_source_unmap_stale(pool, UINT64_MAX); /* old addresses are room for windows again */
            *block = bins_again(pool, ask);
        }
        if (*block) {
            made = PLAN_DONE;
            break;
        }
        made = climb_middle(&c, block, &status);
        if (made == PLAN_SHORT) {
            made = climb_others(&c, block, &status);
        }
        if (made == PLAN_SHORT) {
            made = scrape(&c, block, &status);
        }
        if (made == PLAN_SHORT) {
            made = climb_host_wait(&c, block, &status);
        }
        if (made != PLAN_SHORT || ++rounds == MOST_ROUNDS || !others_in_flight(device)) {
            break;
        }
    }
    cmi_source_put_down(pool, &c.hand);
    if (made == PLAN_SHORT) {
        status = c.limited && !device->full ? CMPOOL_ERR_LIMIT : CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    }
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        pool->counters.refusals++;
        cmi_pool_explain(pool, ask, c.missing, c.rung_bytes);
        cmi_ring_write(&pool->ring, CMI_EVENT_REFUSE, 0, ask->bytes, ask->stream);
    }
    if (ask->captured) {
        cmi_capture_left();
    }
    cmi_meta_free(c.donors, c.donor_room * sizeof *c.donors);
    cmi_meta_free(c.runs, c.run_room * sizeof *c.runs);
    return status;
}

cmpool_status cmi_ladder_hold(cmi_pool *pool, uint64_t pages)
{
    cmi_heap *heap = &pool->heap;
    cmi_ask ask = {.bytes = pages << heap->page_shift, .align = heap->source.page_bytes};
    climb c = {.pool = pool, .ask = &ask, .may_grow = true};
    cmpool_status status = CMPOOL_OK;
    cmi_block_id block = 0;
    pool->device->full = false;
    if (ask.bytes > pool->device->total_bytes) {
        status = CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    }
    while (status == CMPOOL_OK && !block) {
        cmi_window window;
        if (!mark_usable(pool, pool, NULL, REACH_FINISHED)) {
            status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
            break;
        }
        memset(pool->use, CMI_USE_NOT, pool->use_room); /* holes only: what is held stays as it is */
        if (!cmi_heap_find_window(heap, pool->use, ask.bytes, ask.align, &window)) {
            (void)want_addresses(&c, &status);
        } else if (c.hand.count < pages && growth_pages(&c) < pages - c.hand.count) {
            status = pool->device->full ? CMPOOL_ERR_OUT_OF_DEVICE_MEMORY : CMPOOL_ERR_LIMIT;
        } else if (c.hand.count < pages) {
            (void)create(&c, pages - c.hand.count, 0, &status);
        } else {
            status = cmi_source_fill(pool, &ask, &window, &c.hand, NULL, 0, &block);
        }
    }
    if (block) {
        cmi_heap_make_free(heap, block, pool->owners[0].done[0], 0, CMI_HEAP_NO_STAMP);
    }
    uint64_t missing = pages - c.hand.count;
    cmi_source_put_down(pool, &c.hand);
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        cmi_pool_explain(pool, &ask, missing, c.rung_bytes);
    }
    cmi_pool_must_be_valid(pool);
    return status;
}
