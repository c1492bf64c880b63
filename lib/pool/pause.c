/*
 * Pause and resume. Owns the pause record of a pool: which addresses were given up, what became of their pages, and the free bytes between
 * live blocks, which are BUSY meanwhile so that nobody is given them. Guarded by the device lock, dropped around driver calls, while
 * `changing` keeps a second thread away; called by api, and by free for blocks that have no page.
 *
 * A page that leaves is unmapped and then released, so that until the last one is unmapped all can be mapped again as they were. A resume
 * has all pages before it maps one, and all contents before it says so; what fails on the way is undone, and may be tried again.
 */
#include "pool/cache.h"
#include "pool/pause_pages.h"

/* ---- what the tables say ------------------------------------------------------------------------ */

/* Between two tries: addresses without a page are held; one that is still mapped is nobody's but ours. */
static void settle(cmi_pool *pool)
{
    cmi_pause *pause = pool->pause;
    uint64_t held = 0;
    for (uint32_t i = 0; i < pause->page_count; i++) {
        if (!pause->pages[i].gone) {
            cmi_source_set_slots(pool, pause->pages[i].address, 1, pause->pages[i].mapped ? CMI_SLOT_MOVING : CMI_SLOT_HELD);
            held += pause->pages[i].page == CMI_NO_PAGE;
        }
    }
    pool->counters.paused_bytes = held << pool->heap.page_shift;
    pool->counters.mapped_slots = cmi_store_mappings(pool->device->store);
    pause->changing = false;
}

/* The record goes; pages that are mapped are the pool's again, with the free bytes on them. */
static void publish(cmi_pool *pool)
{
    cmi_pause *pause = pool->pause;
    cmi_heap *heap = &pool->heap;
    uint32_t now = pool->options.idle_release ? cmi_returns_now() : 0;
    cmi_heap_end_earmark(heap, pause->records);
    for (uint32_t i = 0; i < pause->page_count; i++) {
        if (pause->pages[i].mapped) {
            cmi_slot *slot = cmi_arena_slot(&pool->arena, pause->pages[i].address);
            *slot = (cmi_slot){.page = pause->pages[i].page, .stamp = CMI_NO_STAMP, .freed_at = now, .state = CMI_SLOT_MAPPED};
        }
    }
    for (uint32_t i = 0, count; i < pause->page_count; i += count) {
        count = cmi_pause_run(pool, i);
        for (uint64_t at = pause->pages[i].address; pause->pages[i].mapped && at < cmi_pause_run_end(pool, i, count);) {
            cmi_block_id id = cmi_heap_find(heap, at);
            const cmi_block *block = cmi_heap_block(heap, id);
            at = block->offset + block->bytes;
            if (block->kind == CMI_BLOCK_BUSY) {
                cmi_heap_make_free(heap, id, block->binset, 0, CMI_HEAP_NO_STAMP);
            }
        }
    }
    cmi_keeper *keeper = pause->keeper;
    cmi_meta_free(pause->pages, pause->page_count * sizeof *pause->pages);
    cmi_meta_free(pause, sizeof *pause);
    pool->pause = NULL;
    pool->asleep = false;
    pool->counters.paused_bytes = 0;
    pool->counters.mapped_slots = cmi_store_mappings(pool->device->store);
    if (keeper) {
        keeper->close(keeper, pool);
    }
}

static bool has_live_bytes(const cmi_pool *pool, uint64_t address)
{
    const cmi_heap *heap = &pool->heap;
    uint64_t end = address + heap->source.page_bytes;
    for (cmi_block_id id = cmi_heap_find(heap, address); id && cmi_heap_block(heap, id)->offset < end;
         id = cmi_heap_block(heap, id)->next) {
        if (cmi_heap_block(heap, id)->kind != CMI_BLOCK_BUSY) {
            return true;
        }
    }
    return false;
}

/* Addresses without page and without live bytes are holes: there is nothing to bring back. */
static void drop_freed(cmi_pool *pool)
{
    cmi_heap *heap = &pool->heap;
    uint64_t page = heap->source.page_bytes;
    for (uint32_t i = 0; i < pool->pause->page_count; i++) {
        cmi_paused_page *at = &pool->pause->pages[i];
        if (at->gone || at->page != CMI_NO_PAGE || has_live_bytes(pool, at->address) ||
            !cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS)) {
            continue;
        }
        cmi_block_id whole = 0;
        for (uint64_t from = at->address; from < at->address + page;) {
            cmi_block_id id = cmi_heap_find(heap, from);
            const cmi_block *block = cmi_heap_block(heap, id);
            uint64_t stop = cmi_min_u64(block->offset + block->bytes, at->address + page);
            id = cmi_heap_cut(heap, id, from, stop - from);
            whole = whole ? cmi_heap_join_busy(heap, whole, id) : id;
            from = stop;
        }
        cmi_source_set_slots(pool, at->address, 1, CMI_SLOT_EMPTY);
        cmi_heap_make_hole(heap, whole);
        at->gone = true;
    }
}

/* ---- pause -------------------------------------------------------------------------------------- */

cmpool_status cmi_pause_begin(cmi_pool *pool, cmi_pause_ask *ask)
{
    cmpool_status status = CMPOOL_OK;
    if (pool->pause) {
        status = pool->pause->changing ? CMPOOL_ERR_BUSY : CMPOOL_ERR_PAUSED;
    } else if (cmi_capture_is_live()) {
        status = CMPOOL_ERR_CAPTURE;
    }
    cmi_pause *pause = status == CMPOOL_OK ? cmi_meta_alloc(sizeof *pause) : NULL;
    if (!pause) {
        if (ask->keeper) {
            ask->keeper->close(ask->keeper, pool);
        }
        return status == CMPOOL_OK ? CMPOOL_ERR_OUT_OF_HOST_MEMORY : status;
    }
    *pause = (cmi_pause){.changing = true, .tag = ask->tag, .tag_name = ask->tag_name, .keeper = ask->keeper};
    pool->pause = pause;
    pool->asleep = !ask->tag && !ask->tag_name; /* from here on nothing is handed out */
    cmi_cache_end_all(pool);
    status = cmi_pause_choose(pool, ask);
    pause->tag_name = NULL;
    if (!pause->records) { /* nothing was touched */
        cmi_meta_free(pause->pages, pause->page_count * sizeof *pause->pages);
        pause->pages = NULL;
        pause->page_count = 0;
        publish(pool);
        return status;
    }
    if (pause->keeper) {
        status = pause->keeper->open(pause->keeper, pool, pause->page_count);
        status = status == CMPOOL_OK ? cmi_pause_save(pool) : status;
    }
    cmi_device_carry_begin(pool->device);
    if (status == CMPOOL_OK) {
        status = cmi_pause_take_away(pool);
    }
    if (status == CMPOOL_OK) {
        cmi_pause_release(pool, true);
        settle(pool);
    } else if (cmi_pause_put_back(pool) == CMPOOL_OK) {
        publish(pool);
    } else {
        settle(pool);
    }
    cmi_device_carry_end(pool->device, false);
    pool->counters.driver_turns++;
    cmi_pool_must_be_valid(pool);
    return status;
}

/* ---- resume ------------------------------------------------------------------------------------- */

/* New pages for all addresses that have none; others of the process give theirs up where the device has no more. */
static cmpool_status get_pages(cmi_pool *pool)
{
    cmi_pause *pause = pool->pause;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < pause->page_count; i++) {
        missing += pause->pages[i].page == CMI_NO_PAGE && !pause->pages[i].gone;
    }
    uint64_t limit = pool->options.limit >> pool->heap.page_shift;
    if (!pool->asleep && missing && pool->options.limit && pool->reserved_pages + missing > limit) { /* others took it meanwhile */
        return CMPOOL_ERR_LIMIT;
    }
    cmi_hand hand = {0};
    cmpool_status status = CMPOOL_OK;
    for (unsigned pass = 0; pass < 2 && hand.count < missing; pass++) {
        uint32_t got;
        uint64_t released = 0;
        if (pass == 1 && status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
            (void)cmi_trim_device(pool->device, missing - hand.count, true, &released);
        }
        status = cmi_source_create(pool, &hand, missing - hand.count, &got);
        if (status != CMPOOL_OK && status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
            break;
        }
    }
    if (hand.count < missing) {
        cmi_source_put_down(pool, &hand);
        return status;
    }
    for (uint32_t i = 0; i < pause->page_count; i++) {
        if (pause->pages[i].page == CMI_NO_PAGE && !pause->pages[i].gone) {
            pause->pages[i].page = hand.pages[--hand.count];
        }
    }
    cmi_source_put_down(pool, &hand);
    return CMPOOL_OK;
}

cmpool_status cmi_pause_end(cmi_pool *pool)
{
    cmi_pause *pause = pool->pause;
    if (!pause) {
        return CMPOOL_OK;
    }
    if (pause->changing) {
        return CMPOOL_ERR_BUSY;
    }
    pause->changing = true;
    drop_freed(pool);
    cmpool_status status = get_pages(pool);
    for (uint32_t i = 0; i < pause->page_count; i++) {
        if (!pause->pages[i].gone) {
            cmi_source_set_slots(pool, pause->pages[i].address, 1, CMI_SLOT_MOVING);
        }
    }
    if (status == CMPOOL_OK) {
        status = cmi_pause_put_back(pool);
    }
    if (status == CMPOOL_OK && pause->keeper) {
        status = cmi_pause_restore(pool);
    }
    if (status == CMPOOL_OK) {
        publish(pool);
    } else {
        (void)cmi_pause_take_away(pool); /* what stays mapped is restored at the next try */
        cmi_pause_release(pool, false);
        settle(pool);
    }
    pool->counters.driver_turns++;
    cmi_pool_must_be_valid(pool);
    return status;
}

void cmi_pause_abandon(cmi_pool *pool)
{
    pool->pause->changing = true;
    (void)cmi_pause_take_away(pool);
    cmi_pause_release(pool, true);
    cmi_heap_end_earmark(&pool->heap, pool->pause->records); /* they are for this */
    pool->pause->records = 0;
    drop_freed(pool);
    publish(pool);
}

/* ---- blocks that have no page now --------------------------------------------------------------- */

bool cmi_pause_holds(const cmi_pool *pool, uint64_t address, uint64_t bytes)
{
    uint64_t page = pool->heap.source.page_bytes;
    for (uint64_t at = cmi_round_down(address, page); at < address + bytes; at += page) {
        if (cmi_arena_slot(&pool->arena, at)->state != CMI_SLOT_MAPPED) {
            return true;
        }
    }
    return false;
}

void cmi_pause_free(cmi_pool *pool, const cmi_place *place)
{
    cmi_heap *heap = &pool->heap;
    uint64_t low = cmi_heap_block(heap, place->block)->offset, high = low + cmi_heap_block(heap, place->block)->bytes;
    uint64_t page = heap->source.page_bytes;
    if (place->slab) {
        cmi_heap_slot_free(heap, place->block, place->slot, 0, CMI_HEAP_NO_STAMP);
        cmi_heap_flush_slabs(heap);
    } else {
        cmi_heap_make_free(heap, place->block, pool->owners[place->owner].done[0], 0, CMI_HEAP_NO_STAMP);
    }
    /* Its first and last page may have stayed for others; between them all is away. */
    if (cmi_arena_slot(&pool->arena, low)->state == CMI_SLOT_MAPPED) {
        low = cmi_round_down(low, page) + page;
    }
    if (cmi_arena_slot(&pool->arena, high - 1)->state == CMI_SLOT_MAPPED) {
        high = cmi_round_down(high - 1, page);
    }
    cmi_block_id id = cmi_heap_find(heap, low);
    if (cmi_heap_block(heap, id)->kind == CMI_BLOCK_FREE) {
        id = cmi_heap_take(heap, id, low, high - low);
        cmi_heap_block(heap, id)->binset = pool->owners[0].done[place->slab != NULL];
    }
}
