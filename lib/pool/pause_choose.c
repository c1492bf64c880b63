/*
 * Which pages a pause gives back: those on which every live byte is meant, and nothing is that has to stay. Owns nothing; runs under the
 * device lock, while no other thread has pages on their way; called by pause.c.
 */
#include "pool/cache.h"
#include "pool/pause_pages.h"

#include <string.h>

/* What the blocks of a slot say about it. */
enum { WANTED = 1, STAYS = 2, FIXED = 4 };

static bool has_tag(const cmi_pause *pause, uint32_t tag)
{
    if (!pause->tag && !pause->tag_name) {
        return true;
    }
    if (pause->tag && tag == pause->tag) {
        return true;
    }
    while (pause->tag_name && tag >= CMI_TAG_FIRST) {
        if (strcmp(cmi_tag_name(tag, &tag), pause->tag_name) == 0) {
            return true;
        }
    }
    return false;
}

static uint8_t wish_of(const cmi_pool *pool, const cmi_block *block)
{
    bool in_bins = block->kind == CMI_BLOCK_FREE, in_slab = block->kind == CMI_BLOCK_SLAB, live = block->kind == CMI_BLOCK_LIVE;
    if (!in_bins && !in_slab && !live) {
        return block->kind == CMI_BLOCK_BUSY ? STAYS : 0;
    }
    const cmi_binset *set = cmi_heap_binset(&pool->heap, block->binset);
    if (pool->owners[set->owner].kind == CMI_OWNER_CAPTURE) { /* a graph may use it at any time, free or not */
        return pool->asleep || (live && has_tag(pool->pause, block->tag)) ? FIXED : STAYS;
    }
    if (in_bins) {
        return set->kind == CMI_BINSET_DONE ? 0 : STAYS; /* freed since the wait, by work that nobody has seen done */
    }
    if (in_slab) {
        const cmi_slab *slab = pool->heap.slabs[block->slab];
        return pool->asleep && !slab->parked_count && !cmi_heap_slab_is_unused(slab) ? WANTED : STAYS;
    }
    return has_tag(pool->pause, block->tag) ? WANTED : STAYS;
}

static void mark_slots(const cmi_pool *pool, const cmi_range *range, const cmi_block *block, uint8_t *marks, cmi_pause_ask *ask)
{
    uint8_t wish = wish_of(pool, block);
    bool fixed = wish == FIXED;
    for (uint64_t at = cmi_round_down(block->offset, pool->heap.source.page_bytes); wish && at < block->offset + block->bytes;
         at += pool->heap.source.page_bytes) {
        uint32_t number = cmi_range_slot_number(&pool->arena, range, at);
        marks[number] |= wish;
        fixed = fixed || (wish == WANTED && (range->kind != CMI_RANGE_SLOTS || range->slots[number].fixed));
    }
    if (fixed) {
        if (ask->fixed_count < ask->fixed_room) {
            ask->fixed[ask->fixed_count] = (void *)(uintptr_t)block->offset;
        }
        ask->fixed_count++;
    }
}

static bool leaves(const cmi_range *range, const uint8_t *marks, uint32_t slot)
{
    return marks[slot] == WANTED && range->slots[slot].state == CMI_SLOT_MAPPED;
}

/* Append a range's pages; without room in the record they are only counted. */
static uint32_t add_pages(const cmi_pool *pool, const cmi_range *range, const uint8_t *marks, cmi_paused_page *pages)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < range->slot_count; i++) {
        if (leaves(range, marks, i)) {
            if (pages) {
                pages[count] = (cmi_paused_page){.address = range->base + ((uint64_t)i << pool->heap.page_shift),
                                                 .page = range->slots[i].page,
                                                 .mapped = true,
                                                 .intact = true};
            }
            count++;
        }
    }
    return count;
}

static cmpool_status choose_among(cmi_pool *pool, uint8_t *marks, cmi_pause_ask *ask)
{
    cmi_pause *pause = pool->pause;
    const cmi_heap *heap = &pool->heap;
    uint32_t slots = 0;
    for (uint32_t r = 0; r < pool->arena.range_count; slots += pool->arena.ranges[r++]->slot_count) {
        const cmi_range *range = pool->arena.ranges[r];
        for (cmi_block_id id = cmi_heap_find(heap, range->base); id; id = cmi_heap_block(heap, id)->next) {
            mark_slots(pool, range, cmi_heap_block(heap, id), marks + slots, ask);
        }
        pause->page_count += add_pages(pool, range, marks + slots, NULL);
    }
    if (ask->fixed_count) {
        return CMPOOL_ERR_BUSY;
    }
    pause->pages = pause->page_count ? cmi_meta_alloc(pause->page_count * sizeof *pause->pages) : NULL;
    if (pause->page_count && !pause->pages) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    uint32_t count = slots = 0;
    for (uint32_t r = 0; r < pool->arena.range_count; slots += pool->arena.ranges[r++]->slot_count) {
        count += add_pages(pool, pool->arena.ranges[r], marks + slots, pause->pages ? pause->pages + count : NULL);
    }
    return CMPOOL_OK;
}

/* A page that an old address still shows gives nothing back when it is released. */
static bool has_old_addresses(const cmi_pool *pool)
{
    cmi_page_bits stale = {0};
    bool found = !cmi_trim_stale_pages(pool->device, &stale);
    for (uint32_t i = 0; i < pool->pause->page_count && !found; i++) {
        found = cmi_page_bits_has(&stale, pool->pause->pages[i].page);
    }
    cmi_page_bits_free(&stale);
    return found;
}

/* The pages' free bytes leave the bins, their slots are ours. Records for the way back are kept. */
static bool claim(cmi_pool *pool)
{
    cmi_pause *pause = pool->pause;
    cmi_heap *heap = &pool->heap;
    uint32_t blocks = 0;
    for (uint32_t i = 0, count; i < pause->page_count; i += count) {
        count = cmi_pause_run(pool, i);
        for (cmi_block_id id = cmi_heap_find(heap, pause->pages[i].address);
             id && cmi_heap_block(heap, id)->offset < cmi_pause_run_end(pool, i, count); id = cmi_heap_block(heap, id)->next) {
            blocks++;
        }
    }
    pause->records = 4 * blocks + CMI_HEAP_STEP_RECORDS;
    if (!cmi_heap_reserve_records(heap, 2 * blocks + pause->records) || !cmi_heap_earmark(heap, pause->records)) {
        pause->records = 0;
        return false;
    }
    for (uint32_t i = 0, count; i < pause->page_count; i += count) {
        count = cmi_pause_run(pool, i);
        uint64_t end = cmi_pause_run_end(pool, i, count);
        for (uint64_t at = pause->pages[i].address; at < end;) {
            cmi_block_id id = cmi_heap_find(heap, at);
            const cmi_block *block = cmi_heap_block(heap, id);
            uint64_t stop = cmi_min_u64(block->offset + block->bytes, end);
            if (block->kind == CMI_BLOCK_FREE) {
                unsigned small = cmi_heap_binset(heap, block->binset)->small;
                id = cmi_heap_take(heap, id, at, stop - at);
                cmi_heap_block(heap, id)->binset = pool->owners[0].done[small];
            }
            at = stop;
        }
        cmi_slot *slot = cmi_arena_slot(&pool->arena, pause->pages[i].address);
        for (uint32_t k = 0; k < count; k++) {
            slot[k].page = CMI_NO_PAGE;
            slot[k].state = CMI_SLOT_MOVING;
        }
    }
    return true;
}

/* The one wait: all work is done, old addresses and idle pages go. Nobody else has pages on their way. */
static cmpool_status make_quiet(cmi_pool *pool)
{
    cmi_device *device = pool->device;
    cmpool_status status = cmi_fence_host_wait(device, pool);
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_source_unmap_all_stale(device);
    cmi_cache_drain(pool);
    cmi_heap_flush_slabs(&pool->heap);
    cmi_owner_promote(pool);
    if (pool->asleep) {
        cmi_trim_done(pool, 0);
    }
    while (device->unmapping) {
        pthread_cond_wait(&device->landed, &device->lock.mutex);
    }
    cmi_heap_flush_slabs(&pool->heap); /* what was freed meanwhile */
    return CMPOOL_OK;
}

cmpool_status cmi_pause_choose(cmi_pool *pool, cmi_pause_ask *ask)
{
    cmi_device *device = pool->device;
    cmi_device_carry_begin(device);
    cmi_device_carry_alone(device);
    cmpool_status status = make_quiet(pool);
    uint32_t slots = 0;
    for (uint32_t r = 0; r < pool->arena.range_count; r++) {
        slots += pool->arena.ranges[r]->slot_count;
    }
    uint8_t *marks = status == CMPOOL_OK ? cmi_meta_alloc(slots + 1) : NULL;
    if (status == CMPOOL_OK) {
        status = marks ? choose_among(pool, marks, ask) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_meta_free(marks, slots + 1);
    if (status == CMPOOL_OK && has_old_addresses(pool)) {
        status = CMPOOL_ERR_DRIVER; /* that would not unmap them, or was not asked for lack of host memory */
    }
    if (status == CMPOOL_OK && !claim(pool)) {
        status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_device_carry_end(device, true);
    return status;
}
