/*
 * Plans: the window that a request is to get, and where its pages come from. Owns nothing but the pool's scratch; runs under the device
 * lock, dropped only where a plan is made again afterwards; called by the ladder.
 */
#include "pool/region.h"

#include <string.h>

/* ---- what may be used --------------------------------------------------------------------------- */

/* May a request of `asker` look at a bin set of `pool`? Memory of graphs is its set's alone; and a set takes from others only what the host
 * has seen done, from itself only what its stream freed: a captured stream cannot be made to wait. */
static bool may_look(const cmi_pool *pool, const cmi_pool *asker, const cmi_ask *ask, const cmi_binset *set)
{
    bool capture = ask && (ask->captured || asker->owners[ask->owner].kind == CMI_OWNER_CAPTURE);
    bool own = ask && pool == asker && set->owner == ask->owner;
    if (!own && pool->owners[set->owner].kind == CMI_OWNER_CAPTURE && !CMI_MUTATION(GRAPH_MEMORY_SHARED)) {
        return false;
    }
    if (pool->owners[set->owner].kind == CMI_OWNER_REGION) { /* see cmi_plan_add_region_pages */
        return false;
    }
    return !capture || CMI_MUTATION(PENDING_FED_TO_CAPTURE) || set->kind == CMI_BINSET_DONE ||
           (own && set->kind == CMI_BINSET_STREAM && set->key == ask->stream);
}

/* While a capture is live no event can be recorded behind memory that has none, so of what others have to finish with each block is looked
 * at: see cmi_stamp_fill_source. */
static uint8_t pending_use(cmi_device *device, const cmi_ask *ask)
{
    device->searching_stream = ask ? ask->stream : CMI_NO_STREAM;
    return cmi_capture_is_live() && !CMI_MUTATION(UNCOVERED_CHOSEN) ? CMI_USE_ASK : 0;
}

bool cmi_plan_mark_usable(cmi_pool *pool, const cmi_pool *asker, const cmi_ask *ask, reach far)
{
    cmi_heap *heap = &pool->heap;
    if (!cmi_pool_use_room(pool)) {
        return false;
    }
    uint8_t pending = pending_use(pool->device, ask);
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
            pool->use[i] |= finished ? 0 : pending;
        }
    }
    return true;
}

void cmi_plan_add_region_pages(cmi_pool *pool, const cmi_ask *ask, reach far)
{
    uint8_t pending = pending_use(pool->device, ask);
    for (uint32_t i = 1; pool->region_owner && i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && set->owner == pool->region_owner) {
            bool captured = ask->captured;
            bool finished = set->kind == CMI_BINSET_DONE || (set->kind == CMI_BINSET_STREAM && set->key == ask->stream && !captured);
            pool->use[i] = finished || (far >= REACH_PENDING && !captured) ? CMI_USE_PAGES : CMI_USE_NOT;
            pool->use[i] |= pool->use[i] && !finished ? pending : 0;
        }
    }
}

/* ---- growth ------------------------------------------------------------------------------------- */

/* A share of a small peak is a page or two, among which windows find no rest: with so few to choose from, a step that repeats can go on
 * moving the same pages for ever. */
static const uint64_t SMALL_SLACK = UINT64_C(32) << 20; /* or 1/64 of a small device */

/* New pages the slack allows: up to (1 + slack) times the peak of live bytes, this request included. */
static uint64_t slack_pages(const cmi_pool *pool, uint64_t bytes)
{
    uint64_t peak = cmi_max_u64(pool->counters.peak_live_bytes, pool->counters.live_bytes + bytes);
    uint64_t share = (uint64_t)((double)peak * (double)pool->options.slack / 1e6);
    uint64_t small = cmi_min_u64(SMALL_SLACK, pool->device->total_bytes / 64);
    uint64_t most = (peak + cmi_max_u64(share, small)) >> pool->heap.page_shift;
    return most > pool->reserved_pages ? most - pool->reserved_pages : 0;
}

/* Old addresses that cannot be unmapped yet lock the free bytes beside them: past the budget new pages come before idle ones. */
static bool too_many_stale(const cmi_pool *pool)
{
    return pool->counters.stale_slots > pool->reserved_pages * pool->options.stale_budget / 1000000;
}

/* Pages that the pool may hold beyond what it has. */
uint64_t cmi_plan_pages_below_limit(const cmi_pool *pool)
{
    uint64_t limit = (pool->options.limit >> pool->heap.page_shift) - (CMI_MUTATION(LIMIT_ONE_PAGE_SHORT) && pool->options.limit);
    return !pool->options.limit ? UINT32_MAX : limit > pool->reserved_pages ? limit - pool->reserved_pages : 0;
}

/* New pages the device gives without going into the pool's headroom. Asked while nobody is creating any, since what others are about to get
 * may be in the driver's figure or not. Drops and retakes the lock. */
static uint64_t pages_above_headroom(cmi_pool *pool)
{
    cmi_device *device = pool->device;
    size_t left, total;
    uint64_t creations;
    do {
        while (device->creating) {
            pthread_cond_wait(&device->landed, &device->lock.mutex);
        }
        left = total = 0;
        creations = device->creations;
        cmi_call call;
        if (cmi_device_call_begin(device, &call, 0) == CMPOOL_OK) {
            if (device->driver->MemGetInfo(&left, &total) != CUDA_SUCCESS) {
                left = 0;
            }
            cmi_device_call_end(device, &call);
        }
    } while (device->creations != creations);
    return left > pool->options.headroom ? (left - pool->options.headroom) >> pool->heap.page_shift : 0;
}

/* New pages that limit and headroom allow, as far as is known without trying. */
uint64_t cmi_plan_growth_pages(climb *c)
{
    cmi_pool *pool = c->pool;
    if (!c->may_grow || c->in_place || pool->device->full) {
        return 0;
    }
    uint64_t most = cmi_max_u64(cmi_plan_pages_below_limit(pool), c->given_up);
    c->limited = most < UINT32_MAX;
    if (pool->options.headroom && most) {
        uint64_t open = cmi_max_u64(pages_above_headroom(pool), c->released);
        c->limited = c->limited && most <= open;
        most = cmi_min_u64(most, open);
    }
    return most;
}

/* ---- one plan ----------------------------------------------------------------------------------- */

/* Segments are a page for small blocks, and long enough for several middling ones, so that their blocks can join. */
static uint64_t segment_pages(const cmi_pool *pool, uint64_t bytes)
{
    const uint64_t middling = UINT64_C(10) << 20;
    uint64_t page = pool->heap.source.page_bytes;
    return cmi_div_up(bytes > page && bytes < middling ? 2 * middling : bytes, page);
}

/* A segment that holds the request, free for everybody. */
static outcome want_segment(climb *c, uint64_t growth, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    uint64_t margin = cmi_segment_margin(pool->device->store, CMI_RANGE_MALLOC);
    uint64_t least = margin + cmi_div_up(c->ask->bytes, pool->heap.source.page_bytes);
    uint64_t pages = cmi_min_u64(margin + segment_pages(pool, c->ask->bytes), growth);
    c->missing = least - cmi_min_u64(least, growth);
    cmi_block_id block = 0;
    *status = pages < least ? CMPOOL_ERR_OUT_OF_DEVICE_MEMORY : cmi_pool_add_segment(pool, CMI_RANGE_MALLOC, pages, &block);
    if (*status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && pages > least) {
        *status = cmi_pool_add_segment(pool, CMI_RANGE_MALLOC, least, &block);
    }
    if (block) {
        c->released = c->given_up = 0;
        c->rung_bytes[CMPOOL_RUNG_GROW] += cmi_heap_block(&pool->heap, block)->bytes;
        cmi_heap_make_free(&pool->heap, block, pool->owners[c->ask->owner].done[0], 0, CMI_HEAP_NO_STAMP);
        return PLAN_AGAIN;
    }
    if (*status == CMPOOL_ERR_BUSY) { /* the margin has grown */
        *status = CMPOOL_OK;
        return PLAN_AGAIN;
    }
    if (*status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
        return PLAN_FAILED;
    }
    *status = CMPOOL_OK;
    if (pages >= least) { /* the driver's word, not the limit's */
        cmi_device_is_full(pool->device);
        c->missing = least;
    }
    return PLAN_SHORT;
}

outcome cmi_plan_want_addresses(climb *c, cmpool_status *status)
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
outcome cmi_plan_create(climb *c, uint64_t wanted, uint64_t slack, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    uint32_t got = 0;
    *status = cmi_source_create(pool, &c->hand, (uint32_t)wanted, &got);
    c->released -= cmi_min_u64(c->released, got);
    uint64_t gained = (uint64_t)got << pool->heap.page_shift;
    uint64_t by_slack = cmi_min_u64(gained, slack << pool->heap.page_shift);
    c->rung_bytes[CMPOOL_RUNG_SLACK] += by_slack;
    c->rung_bytes[CMPOOL_RUNG_GROW] += gained - by_slack;
    if (*status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
        cmi_device_is_full(pool->device);
        *status = CMPOOL_OK;
    }
    return *status == CMPOOL_OK ? PLAN_AGAIN : PLAN_FAILED;
}

/* New pages to be created for a window, and of those the ones within the slack. */
typedef struct wanted {
    uint64_t pages, slack;
} wanted;

/* Free memory of graphs serves its set where it lies; its pages never leave their place. */
static void keep_graph_memory(cmi_pool *pool)
{
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set && pool->owners[set->owner].kind == CMI_OWNER_CAPTURE && !CMI_MUTATION(GRAPH_MEMORY_MOVED)) {
            pool->use[i] = CMI_USE_NOT;
        }
    }
}

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
    cmi_plan_add_region_pages(pool, c->ask, c->reach);
    uint64_t idle = may_move ? cmi_donors_add(c, pool, window->offset, c->ask->bytes, missing - create->slack, &c->donor_count) : 0;
    uint64_t room = cmi_plan_pages_below_limit(pool), given = 0;
    if (idle != UINT64_MAX && may_move && c->use_siblings && create->slack + idle < missing && create->slack < room) {
        given = cmi_donors_add_siblings(c, cmi_min_u64(room, missing - idle) - create->slack, &c->donor_count);
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
    return cmi_plan_mark_usable(pool, pool, ask, c->reach) && found;
}

/* Look for the window that needs the fewest pages within reach, and fill it. SHORT: not enough pages within this reach. */
static outcome plan(climb *c, cmi_block_id *block, cmpool_status *status)
{
    cmi_pool *pool = c->pool;
    const cmi_ask *ask = c->ask;
    /* What drops the lock comes first: from the search for a window to its claim nothing may change. */
    if (!c->in_place && !pool->segmented) {
        outcome allowed = mappings_allowed(c, (ask->bytes >> pool->heap.page_shift) + 1, status);
        if (allowed != PLAN_DONE) {
            return allowed;
        }
    }
    uint64_t growth = cmi_plan_growth_pages(c);
    if (!cmi_plan_mark_usable(pool, pool, ask, c->reach)) {
        *status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        return PLAN_FAILED;
    }
    cmi_window window;
    bool found =
        ask->at ? cmi_region_window(pool, ask, &window) : cmi_heap_find_window(&pool->heap, pool->use, ask->bytes, ask->align, &window);
    if (!found) {
        if (c->in_place) {
            return PLAN_SHORT;
        }
        if (ask->at) {
            return cmi_region_clear(pool, status);
        }
        return pool->segmented ? want_segment(c, growth, status) : cmi_plan_want_addresses(c, status);
    }
    wanted create_first;
    outcome chosen = choose_pages(c, &window, growth, &create_first, status);
    if (chosen == PLAN_SHORT && c->use_siblings && !c->in_place && !ask->at && !pool->segmented) {
        bool empty = find_empty_window(c, &window);
        if (!empty) { /* wherever that may be */
            window = (cmi_window){.pages = (uint32_t)cmi_div_up(ask->bytes, pool->heap.source.page_bytes)};
        }
        chosen = choose_pages(c, &window, growth, &create_first, status);
        if (chosen == PLAN_DONE && !empty) { /* pages enough, but nowhere to bring them to */
            return cmi_plan_want_addresses(c, status);
        }
    }
    if (chosen != PLAN_DONE) {
        return chosen;
    }
    if (create_first.pages) {
        uint64_t changes = pool->heap.changes, landings = pool->device->landings;
        outcome created = cmi_plan_create(c, create_first.pages, create_first.slack, status);
        /* Where nothing else has happened meanwhile, and all pages came, the plan holds as it is. */
        bool undisturbed = pool->heap.changes == changes && pool->device->landings == landings + 1 && !c->use_siblings;
        if (*status != CMPOOL_OK || !undisturbed || c->hand.count + c->taken < window.pages) {
            return created;
        }
    }
    cmi_log(CMI_LOG_STEP, "request of %llu bytes: window at %llx, %u pages: %u new, %u runs to take from, reach %d",
            (unsigned long long)ask->bytes, (unsigned long long)window.offset, window.pages, c->hand.count, c->donor_count, (int)c->reach);
    *status = cmi_source_fill(pool, ask, &window, &c->hand, c->donors, c->donor_count, block);
    /* Siblings' pages are waited for within any reach. */
    if (*status == CMPOOL_ERR_UNSUPPORTED || (*status == CMPOOL_ERR_CAPTURE && c->reach >= REACH_PENDING)) {
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

outcome cmi_plan_in_place(climb *c, reach far, cmi_block_id *block, cmpool_status *status)
{
    c->reach = far;
    c->in_place = true;
    outcome made = plan(c, block, status);
    c->in_place = false;
    return made;
}

outcome cmi_plan_until_settled(climb *c, reach far, bool may_grow, cmi_block_id *block, cmpool_status *status)
{
    c->reach = far;
    c->may_grow = may_grow;
    outcome made;
    do {
        made = plan(c, block, status);
    } while (made == PLAN_AGAIN);
    return made;
}
