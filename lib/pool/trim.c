/*
 * Trim: idle pages go back to the driver. Owns nothing; runs under the device lock, dropped around driver calls; called by api (trim,
 * limit, destroy) and by returns.c for other users of the device. A page goes only when its work was seen done and no old address of it is
 * left mapped.
 */
#include "pool/cache.h"

enum { TRIM_RUN = 256, IDLE_BATCH = 256, EVER = UINT32_MAX };

/* Only what the host has seen done may be unmapped; with `pending`, also what may be done by now. */
static bool mark_releasable(cmi_pool *pool, bool pending)
{
    cmi_heap *heap = &pool->heap;
    if (!cmi_pool_use_room(pool)) {
        return false;
    }
    for (uint32_t i = 1; i <= heap->binset_count; i++) {
        const cmi_binset *set = heap->binsets[i];
        bool may_go = set && (pending || set->kind == CMI_BINSET_DONE) && pool->owners[set->owner].kind != CMI_OWNER_CAPTURE;
        pool->use[i] = may_go ? CMI_USE_PAGES : CMI_USE_NOT;
    }
    return true;
}

bool cmi_trim_stale_pages(const cmi_device *device, cmi_page_bits *bits)
{
    uint32_t most = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
            for (uint32_t r = 0; r < pool->arena.range_count && pool->counters.stale_slots; r++) {
                const cmi_range *range = pool->arena.ranges[r];
                for (uint32_t i = 0; i < range->slot_count; i++) {
                    bool mapped = range->slots[i].state == CMI_SLOT_STALE || range->slots[i].state == CMI_SLOT_MOVING;
                    uint32_t page = range->slots[i].page;
                    if (!mapped || page == CMI_NO_PAGE) {
                        continue;
                    }
                    if (pass == 0) {
                        most = page / 64 >= most ? page / 64 + 1 : most;
                    } else {
                        bits->words[page / 64] |= UINT64_C(1) << page % 64;
                    }
                }
            }
        }
        if (pass == 0) {
            *bits = (cmi_page_bits){most ? cmi_meta_alloc(most * sizeof(uint64_t)) : NULL, most};
            if (!most || !bits->words) {
                return most == 0;
            }
        }
    }
    return true;
}

/* Idle bytes [offset, end), whosever they are, as one BUSY block. */
static cmi_block_id take_idle(cmi_heap *heap, uint64_t offset, uint64_t end, uint32_t *owner)
{
    cmi_block_id whole = 0;
    for (uint64_t at = offset; at < end;) {
        cmi_block_id id = cmi_heap_find(heap, at);
        uint64_t stop = cmi_min_u64(cmi_heap_block(heap, id)->offset + cmi_heap_block(heap, id)->bytes, end);
        *owner = cmi_heap_binset(heap, cmi_heap_block(heap, id)->binset)->owner;
        id = cmi_heap_take(heap, id, at, stop - at);
        whole = whole ? cmi_heap_join_busy(heap, whole, id) : id;
        at = stop;
    }
    return whole;
}

/* Give an idle segment back. Returns its pages, or 0. */
static uint32_t release_segment(cmi_pool *pool, cmi_range *range)
{
    uint32_t owner = 0, pages = range->held_pages;
    cmi_block_id id = take_idle(&pool->heap, range->base, range->base + range->bytes, &owner);
    if (cmi_pool_remove_segment(pool, range)) {
        return pages;
    }
    cmi_heap_make_free(&pool->heap, id, pool->owners[owner].done[0], 0, CMI_HEAP_NO_STAMP);
    return 0;
}

/* Unmap and release up to TRIM_RUN pages from offset on (all idle and done). Returns pages given back. */
static uint32_t release_run(cmi_pool *pool, uint64_t offset, uint32_t count)
{
    cmi_heap *heap = &pool->heap;
    cmi_device *device = pool->device;
    uint64_t end = offset + ((uint64_t)count << heap->page_shift);
    uint32_t pages[TRIM_RUN], owner = 0;
    bool unmapped[TRIM_RUN] = {false};
    take_idle(heap, offset, end, &owner);
    const cmi_slot *slot = cmi_arena_slot(&pool->arena, offset);
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = slot[i].page;
    }
    cmi_source_set_slots(pool, offset, count, CMI_SLOT_MOVING);
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(device, &call, 0);
    uint32_t gone = 0;
    if (status == CMPOOL_OK) {
        cmi_step_begin(CMI_STEP_TRIM, (uint64_t)count << heap->page_shift);
        cmi_arena_unmap(&pool->arena, offset, count, unmapped, &status);
        uint32_t leaving[TRIM_RUN];
        for (uint32_t i = 0; i < count; i++) {
            if (unmapped[i]) {
                leaving[gone++] = pages[i];
            }
        }
        cmi_store_release(device->store, leaving, CMI_MUTATION(PAGE_LEAKED) && gone ? gone - 1 : gone);
        cmi_step_end();
        cmi_capture_barred_end(device, &call);
    }
    for (uint32_t i = 0; i < count;) {
        uint32_t j = i + 1;
        while (j < count && unmapped[j] == unmapped[i]) {
            j++;
        }
        uint64_t at = offset + ((uint64_t)i << heap->page_shift);
        cmi_block_id id = cmi_heap_cut(heap, cmi_heap_find(heap, at), at, (uint64_t)(j - i) << heap->page_shift);
        if (unmapped[i]) {
            cmi_source_vacate(pool, id);
        } else {
            cmi_source_set_slots(pool, at, j - i, CMI_SLOT_MAPPED);
            cmi_heap_make_free(heap, id, pool->owners[owner].done[0], 0, CMI_HEAP_NO_STAMP);
        }
        i = j;
    }
    pool->reserved_pages -= gone;
    pool->counters.pages_released += gone;
    cmi_ring_write(&pool->ring, CMI_EVENT_RELEASE, offset, (uint64_t)gone << heap->page_shift, 0);
    return gone;
}

/* Was nothing freed in a segment after that second? */
static bool was_left_by(const cmi_range *range, uint32_t second)
{
    uint32_t i = 0;
    while (i < range->slot_count && range->slots[i].freed_at <= second) {
        i++;
    }
    return i == range->slot_count;
}

/* What the pool is to hold afterwards, and what may go. */
typedef struct wish {
    uint64_t keep_pages;
    uint64_t least_pages; /* where only a whole segment can go, it may not take the pool below this */
    uint32_t freed_by;    /* only pages on which nothing was freed after this second */
} wish;

/* The smallest idle run goes first, so that the large ones stay whole. false: nothing more can go. */
static bool release_some(cmi_pool *pool, const wish *w, uint64_t *released)
{
    cmi_heap *heap = &pool->heap;
    if (!cmi_heap_reserve_records(heap, 2 * TRIM_RUN + CMI_HEAP_STEP_RECORDS) || !cmi_stamp_reserve(pool->device, CMI_HEAP_STEP_RECORDS) ||
        !mark_releasable(pool, false)) {
        return false;
    }
    uint32_t runs = cmi_heap_idle_runs(heap, pool->use, 0, 0, NULL, 0, NULL);
    cmi_page_bits stale = {0};
    cmi_idle_run *list = runs ? cmi_meta_alloc(runs * sizeof *list) : NULL;
    if (!list || !cmi_trim_stale_pages(pool->device, &stale)) {
        cmi_meta_free(list, runs * sizeof *list);
        return false;
    }
    cmi_heap_idle_runs(heap, pool->use, 0, 0, list, runs, NULL);
    uint64_t offset = 0;
    uint32_t best = 0;
    cmi_range *segment = NULL;
    for (uint32_t i = 0; i < runs; i++) {
        cmi_range *range = pool->segmented ? cmi_arena_range(&pool->arena, list[i].offset) : NULL;
        if (range) {
            if (list[i].pages == range->slot_count && (!best || list[i].pages < best) && was_left_by(range, w->freed_by) &&
                pool->reserved_pages >= w->least_pages + range->held_pages) {
                segment = range;
                best = list[i].pages;
            }
            continue;
        }
        /* Pages that must stay for now (an old address is still mapped, they are fixed, or too young) cut a run into parts. */
        uint32_t start = 0;
        for (uint32_t k = 0; k <= list[i].pages; k++) {
            const cmi_slot *slot =
                k < list[i].pages ? cmi_arena_slot(&pool->arena, list[i].offset + ((uint64_t)k << heap->page_shift)) : NULL;
            if (slot && !slot->fixed && slot->freed_at <= w->freed_by && !cmi_page_bits_has(&stale, slot->page)) {
                continue;
            }
            if (k > start && (!best || k - start < best)) {
                best = k - start;
                offset = list[i].offset + ((uint64_t)start << heap->page_shift);
            }
            start = k + 1;
        }
    }
    cmi_meta_free(list, runs * sizeof *list);
    cmi_page_bits_free(&stale);
    if (!best) {
        return false;
    }
    uint64_t most = cmi_min_u64(pool->reserved_pages - w->keep_pages, TRIM_RUN);
    uint32_t gone = segment ? release_segment(pool, segment) : release_run(pool, offset, (uint32_t)cmi_min_u64(best, most));
    *released += gone;
    return gone > 0;
}

static void release_all(cmi_pool *pool, const wish *w, uint64_t *released)
{
    while (pool->reserved_pages > w->keep_pages && release_some(pool, w, released)) {}
}

uint64_t cmi_trim_done(cmi_pool *pool, uint64_t keep_pages)
{
    const wish w = {keep_pages, keep_pages, EVER};
    uint64_t released = cmi_pool_release_left(pool);
    release_all(pool, &w, &released);
    return released;
}

static cmpool_status trim(cmi_pool *pool, const wish *w, bool wait, uint64_t *released)
{
    uint64_t keep_pages = w->keep_pages;
    cmi_device *device = pool->device;
    cmpool_status status = cmi_capture_is_live() ? CMPOOL_ERR_CAPTURE : CMPOOL_OK;
    uint64_t before = *released;
    cmi_device_carry_begin(device);
    for (unsigned pass = 0; pass < (wait ? 2u : 1u) && status == CMPOOL_OK; pass++) {
        bool has_old_addresses = pool->dying && pool->counters.stale_slots; /* of pages that have moved on to other pools */
        if (pool->reserved_pages <= keep_pages && !has_old_addresses) {
            break;
        }
        cmi_cache_drain(pool);
        cmi_heap_flush_slabs(&pool->heap);
        if (pass == 1) {
            status = cmi_fence_host_wait(device, pool);
        } else if (cmi_fence_contexts(device, pool) == CMPOOL_OK) {
            (void)cmi_fence_poll(device, pool);
        }
        if (status != CMPOOL_OK) {
            break;
        }
        *released += cmi_pool_release_left(pool);
        cmi_source_unmap_all_stale(device); /* a released page with a mapping left gives nothing back */
        if (pool->dying) {
            cmi_source_unmap_stale(pool, UINT64_MAX); /* left out above */
        }
        cmi_owner_promote(pool);
        release_all(pool, w, released);
        while (pass == 1 && pool->reserved_pages > keep_pages && device->unmapping) { /* another thread has old addresses of our pages */
            pthread_cond_wait(&device->landed, &device->lock.mutex);
            release_all(pool, w, released);
        }
    }
    cmi_device_carry_end(device, false);
    pool->counters.driver_turns += *released > before;
    pool->counters.mapped_slots = cmi_store_mappings(device->store);
    if (*released > before) {
        device->full = false;
    }
    cmi_pool_must_be_valid(pool);
    return status;
}

cmpool_status cmi_trim_pool(cmi_pool *pool, uint64_t keep_pages, bool wait, uint64_t *released)
{
    const wish w = {keep_pages, 0, EVER};
    return trim(pool, &w, wait, released);
}

static uint64_t floor_pages(const cmi_pool *pool) { return cmi_div_up(pool->options.floor, pool->heap.source.page_bytes); }

/* Are there pages that could go once they are seen done? Asks nobody. */
static bool has_idle_since(cmi_pool *pool, uint32_t freed_by)
{
    cmi_heap *heap = &pool->heap;
    cmi_heap_flush_slabs(heap);
    if (!mark_releasable(pool, true)) {
        return false;
    }
    uint32_t runs = cmi_heap_idle_runs(heap, pool->use, 0, 0, NULL, 0, NULL);
    cmi_idle_run *list = runs ? cmi_meta_alloc(runs * sizeof *list) : NULL;
    bool found = false;
    if (list) {
        cmi_heap_idle_runs(heap, pool->use, 0, 0, list, runs, NULL);
    }
    for (uint32_t i = 0; list && i < runs && !found; i++) {
        const cmi_slot *slot = cmi_arena_slot(&pool->arena, list[i].offset); /* no run lies in two ranges */
        for (uint32_t k = 0; k < list[i].pages && !found; k++) {
            found = slot[k].freed_at <= freed_by && (!slot[k].fixed || pool->segmented);
        }
    }
    cmi_meta_free(list, runs * sizeof *list);
    return found;
}

uint64_t cmi_trim_idle(cmi_pool *pool, uint32_t now, bool *more)
{
    uint64_t floor = floor_pages(pool), released = 0;
    *more = false;
    if (now < pool->options.idle_release || pool->reserved_pages <= floor) {
        return 0;
    }
    uint32_t freed_by = now - (uint32_t)pool->options.idle_release;
    if (has_idle_since(pool, freed_by)) {
        uint64_t batch = cmi_min_u64(pool->reserved_pages - floor, IDLE_BATCH);
        const wish w = {pool->reserved_pages - batch, floor, freed_by};
        (void)trim(pool, &w, false, &released);
        *more = released >= IDLE_BATCH;
    }
    return released;
}

void cmi_trim_abandon(cmi_pool *pool)
{
    cmi_device *device = pool->device;
    cmi_call call;
    cmi_device_call_begin_anyway(device, &call);
    /* Other threads read the slots meanwhile, to see which pages have an old address here: so they change only under the lock. */
    for (uint32_t r = 0; r < pool->arena.range_count; r++) {
        cmi_range *range = pool->arena.ranges[r];
        if (range->kind != CMI_RANGE_SLOTS) {
            cmi_segment_abandon(device->store, range);
        } else {
            cmi_arena_abandon(&pool->arena, range->base, range->slot_count);
        }
    }
    for (uint32_t r = 0; r < pool->arena.range_count; r++) { /* a page may have an old address in another range */
        const cmi_range *range = pool->arena.ranges[r];
        for (uint32_t i = 0; range->kind == CMI_RANGE_SLOTS && i < range->slot_count; i++) {
            if (range->slots[i].state == CMI_SLOT_MAPPED) {
                cmi_store_release(device->store, &range->slots[i].page, 1);
            }
        }
    }
    cmi_device_call_end(device, &call);
    for (uint32_t r = 0; r < pool->arena.range_count; r++) {
        const cmi_range *range = pool->arena.ranges[r];
        for (uint32_t i = 0; i < range->slot_count; i++) {
            cmi_stamp_drop(device, range->slots[i].stamp);
            range->slots[i] = (cmi_slot){.page = CMI_NO_PAGE, .stamp = CMI_NO_STAMP, .state = CMI_SLOT_EMPTY};
        }
    }
    pool->reserved_pages = 0;
    pool->shared = pool->leaving = 0;
}

cmpool_status cmi_trim_device(cmi_device *device, uint64_t pages, bool wait, uint64_t *released)
{
    cmpool_status worst = CMPOOL_OK;
    for (unsigned pass = 0; pass < (wait ? 2u : 1u); pass++) {
        for (cmi_pool *pool = device->pools; pool && *released < pages; pool = pool->next) {
            if (pool->dying) {
                continue;
            }
            uint64_t missing = pages - *released;
            uint64_t keep = cmi_max_u64(floor_pages(pool), pool->reserved_pages > missing ? pool->reserved_pages - missing : 0);
            cmi_pool_pin(pool);
            const wish w = {keep, floor_pages(pool), EVER};
            cmpool_status status = trim(pool, &w, pass == 1, released);
            cmi_pool_unpin(pool);
            worst = worst == CMPOOL_OK ? status : worst;
        }
    }
    return worst;
}
