/*
 * Moving pages: a window of free bytes and holes becomes one block, its holes filled with new pages and with whole idle pages that are
 * taken from other free runs. A page is mapped at its new slot at once; the old slot becomes stale and is unmapped when the host has seen
 * the page's stamp done. CUDA allows one page at two addresses, and stream order keeps the two users apart. Owns nothing between calls;
 * guarded by the device lock, dropped around driver calls while slots are MOVING and blocks BUSY; called by the ladder.
 */
#include "pool/move.h"

#include <string.h>

static bool move_init(move *m, cmi_pool *pool, const cmi_ask *ask, uint32_t pages, uint32_t chunks)
{
    *m = (move){.pool = pool, .ask = ask, .arrival_room = pages, .chunk_room = chunks};
    m->arrivals = pages ? cmi_meta_alloc(pages * sizeof *m->arrivals) : NULL;
    m->pages = pages ? cmi_meta_alloc(pages * sizeof *m->pages) : NULL;
    m->chunks = chunks ? cmi_meta_alloc(chunks * sizeof *m->chunks) : NULL;
    return (!pages || (m->arrivals && m->pages)) && (!chunks || m->chunks);
}

static void move_fini(move *m)
{
    cmi_meta_free(m->arrivals, m->arrival_room * sizeof *m->arrivals);
    cmi_meta_free(m->pages, m->arrival_room * sizeof *m->pages);
    cmi_meta_free(m->chunks, m->chunk_room * sizeof *m->chunks);
}

/* What the asking stream has to wait for before it touches this free block's bytes. */
static void add_waits(move *m, const cmi_pool *from, const cmi_block *block)
{
    const cmi_device *device = m->pool->device;
    const cmi_binset *set = cmi_heap_binset(&from->heap, block->binset);
    if (set->kind == CMI_BINSET_STREAM && !cmi_stream_is_ordered(device, m->ask->stream, set->key, block->ticket)) {
        cmi_waits_add(&m->waits, set->key, block->ticket);
    } else if (set->kind == CMI_BINSET_MIXED && !cmi_stamp_is_done(device, block->stamp)) {
        const cmi_stamp *stamp = cmi_stamp_get(device, block->stamp);
        for (unsigned i = 0; i < stamp->count; i++) {
            const cmi_stamp_entry *entry = &stamp->entries[i];
            if (stamp->whole || !cmi_stream_is_ordered(device, m->ask->stream, entry->stream, entry->ticket)) {
                cmi_waits_add(&m->waits, entry->stream, entry->ticket);
            }
        }
    }
}

/* The stamp of a block's free bytes as a number of its own. */
static uint32_t stamp_of_block(const cmi_pool *pool, const cmi_block *block)
{
    const cmi_binset *set = cmi_heap_binset(&pool->heap, block->binset);
    switch (set->kind) {
    case CMI_BINSET_DONE:
        return CMI_NO_STAMP;
    case CMI_BINSET_MIXED:
        return cmi_stamp_copy(pool->device, block->stamp);
    default:
        return cmi_stamp_new(pool->device, set->key, block->ticket);
    }
}

/* Take the window's blocks out: free bytes as they are, holes as slots to be filled. */
static void claim_window(move *m, uint64_t offset)
{
    cmi_heap *heap = &m->pool->heap;
    uint64_t page = heap->source.page_bytes, end = offset + m->ask->bytes;
    m->low = offset;
    m->high = end;
    for (uint64_t at = offset; at < end;) {
        cmi_block_id id = cmi_heap_find(heap, at);
        cmi_block *block = cmi_heap_block(heap, id);
        uint64_t stop = cmi_min_u64(block->offset + block->bytes, end);
        if (block->kind == CMI_BLOCK_FREE) {
            add_waits(m, m->pool, block);
            cmi_heap_take(heap, id, at, stop - at);
        } else {
            uint64_t low = cmi_round_down(at, page), high = cmi_round_up(stop, page);
            id = cmi_heap_cut(heap, id, low, high - low);
            block = cmi_heap_block(heap, id);
            block->kind = CMI_BLOCK_BUSY;
            block->binset = CMI_NO_BINSET;
            cmi_source_set_slots(m->pool, low, (uint32_t)((high - low) >> heap->page_shift), CMI_SLOT_MOVING);
            for (uint64_t to = low; to < high; to += page) {
                m->arrivals[m->arrival_count++] = (arrival){.to = to};
            }
            m->low = cmi_min_u64(m->low, low);
            m->high = cmi_max_u64(m->high, high);
        }
        at = stop;
    }
}

/* Take `pages` whole idle pages from offset on out of a donor's free blocks. */
static void claim_chunk(move *m, cmi_pool *donor, uint64_t offset, uint32_t pages, uint32_t first)
{
    cmi_heap *heap = &donor->heap;
    uint64_t end = offset + ((uint64_t)pages << heap->page_shift);
    chunk *c = &m->chunks[m->chunk_count++];
    *c = (chunk){.pool = donor, .offset = offset, .pages = pages, .first = first, .stamp = CMI_NO_STAMP};
    cmi_block_id whole = 0;
    for (uint64_t at = offset; at < end;) {
        cmi_block_id id = cmi_heap_find(heap, at);
        cmi_block *block = cmi_heap_block(heap, id);
        uint64_t stop = cmi_min_u64(block->offset + block->bytes, end);
        add_waits(m, donor, block);
        c->owner = cmi_heap_binset(heap, block->binset)->owner;
        c->stamp = cmi_stamp_join(m->pool->device, c->stamp, stamp_of_block(donor, block));
        id = cmi_heap_take(heap, id, at, stop - at);
        block = cmi_heap_block(heap, id);
        cmi_stamp_drop(m->pool->device, block->stamp);
        block->stamp = CMI_NO_STAMP;
        whole = whole ? cmi_heap_join_busy(heap, whole, id) : id;
        at = stop;
    }
    cmi_source_set_slots(donor, offset, pages, CMI_SLOT_MOVING);
    donor->reserved_pages -= pages;
}

/* Blocks under a window: each is cut in three at most, and is a boundary between what a failed move has and has not brought. */
static uint32_t blocks_under(const cmi_heap *heap, uint64_t offset, uint64_t bytes)
{
    uint32_t count = 0;
    for (cmi_block_id id = cmi_heap_find(heap, offset); id && cmi_heap_block(heap, id)->offset < offset + bytes; count++) {
        id = cmi_heap_block(heap, id)->next;
    }
    return count;
}

/* The records that a donor's pages may need: its edges, and for a sibling the boundaries too; unmapped first, any page may stay alone. */
static uint32_t records_for(const move *m, const cmi_donor *donor)
{
    bool strict = m->pool->options.stale_budget == 0;
    return 16 + (donor->pool != m->pool ? 4 * m->blocks : 0) + (strict ? 4 * donor->run.pages : 0);
}

/* Everything that may need host memory, before anything is taken apart; kept for us while the lock is dropped. */
static bool make_ready(move *m, uint64_t offset, cmi_hand *hand, const cmi_donor *donors, uint32_t donor_count)
{
    m->blocks = blocks_under(&m->pool->heap, offset, m->ask->bytes);
    m->records = 4 * m->blocks + 64 + (m->pool->options.stale_budget == 0 ? 4 * m->arrival_room : 0);
    m->stamps = m->records + 8 * donor_count;
    if (!cmi_hand_reserve(hand, hand->count + m->arrival_room) || !cmi_stamp_reserve(m->pool->device, m->stamps) ||
        !cmi_heap_earmark(&m->pool->heap, m->records)) {
        return false;
    }
    for (uint32_t i = 0; i < donor_count; i++) {
        if (!cmi_heap_earmark(&donors[i].pool->heap, records_for(m, &donors[i]))) {
            while (i-- > 0) {
                cmi_heap_end_earmark(&donors[i].pool->heap, records_for(m, &donors[i]));
            }
            cmi_heap_end_earmark(&m->pool->heap, m->records);
            return false;
        }
    }
    m->pool->device->earmarked_stamps += m->stamps;
    for (uint32_t i = 0; i < donor_count; i++) {
        cmi_pool_pin(donors[i].pool); /* a sibling must not go while its pages are on their way */
    }
    return true;
}

static void end_ready(const move *m, const cmi_donor *donors, uint32_t donor_count)
{
    for (uint32_t i = 0; i < donor_count; i++) {
        cmi_heap_end_earmark(&donors[i].pool->heap, records_for(m, &donors[i]));
        cmi_pool_unpin(donors[i].pool);
    }
    cmi_heap_end_earmark(&m->pool->heap, m->records);
    m->pool->device->earmarked_stamps -= m->stamps;
}

/* Choose the pages: from the hand, then from donors, from that end of a run which lies next to a hole. */
static void claim_pages(move *m, const cmi_hand *hand, const cmi_donor *donors, uint32_t donor_count)
{
    uint32_t filled = 0;
    for (; filled < m->arrival_count && filled < hand->count; filled++) {
        m->pages[filled] = hand->pages[hand->count - 1 - filled];
    }
    for (uint32_t i = 0; i < donor_count && filled < m->arrival_count; i++) {
        const cmi_idle_run *run = &donors[i].run;
        unsigned shift = donors[i].pool->heap.page_shift;
        uint32_t take = (uint32_t)cmi_min_u64(run->pages, m->arrival_count - filled);
        bool from_end = run->hole_behind && !run->hole_before;
        uint64_t offset = from_end ? run->offset + ((uint64_t)(run->pages - take) << shift) : run->offset;
        claim_chunk(m, donors[i].pool, offset, take, filled);
        const cmi_slot *slot = cmi_arena_slot(&donors[i].pool->arena, offset);
        for (uint32_t k = 0; k < take; k++, filled++) {
            m->pages[filled] = slot[k].page;
            m->arrivals[filled].from = offset + ((uint64_t)k << shift);
            m->arrivals[filled].donor = m->chunk_count - 1;
        }
    }
    m->pool->reserved_pages += m->arrival_count - cmi_min_u64(hand->count, m->arrival_count); /* those in hand are counted already */
}

/* Map all arrivals, run by run; stops at the first failure. Lock not held. */
static cmpool_status map_arrivals(move *m)
{
    uint64_t page = m->pool->heap.source.page_bytes;
    for (uint32_t i = 0; i < m->arrival_count;) {
        uint32_t j = i + 1;
        while (j < m->arrival_count && m->arrivals[j].to == m->arrivals[j - 1].to + page) {
            j++;
        }
        cmi_map_result result = cmi_arena_map(&m->pool->arena, m->arrivals[i].to, m->pages + i, j - i);
        for (uint32_t k = 0; k < result.mapped; k++) {
            m->arrivals[i + k].landed = true;
        }
        if (result.status != CMPOOL_OK) {
            return result.status;
        }
        i = j;
    }
    return CMPOOL_OK;
}

/* ---- the whole of it ---------------------------------------------------------------------------- */

static bool all_done(const move *m)
{
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        if (!cmi_stamp_is_done(m->pool->device, m->chunks[i].stamp)) {
            return false;
        }
    }
    return true;
}

/* The strict form: pages leave their old address before they get a new one. Lock held around. */
static cmpool_status unmap_first(move *m)
{
    cmi_device *device = m->pool->device;
    if (!all_done(m)) {
        (void)cmi_fence_contexts(device, m->pool);
        (void)cmi_fence_poll(device, m->pool);
    }
    if (!all_done(m)) {
        cmpool_status status = cmi_fence_host_wait(device, m->pool);
        if (status != CMPOOL_OK) {
            return status;
        }
    }
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(device, &call, 0);
    if (status != CMPOOL_OK) {
        return status;
    }
    bool unmapped[64];
    for (uint32_t i = 0; i < m->arrival_count && status == CMPOOL_OK;) {
        arrival *a = &m->arrivals[i];
        uint32_t count = 1;
        while (a->from && i + count < m->arrival_count && count < CMI_ARRAY_LENGTH(unmapped) && a[count].donor == a->donor &&
               a[count].from) {
            count++;
        }
        if (a->from) {
            memset(unmapped, 0, sizeof unmapped);
            cmi_arena_unmap(&m->chunks[a->donor].pool->arena, a->from, count, unmapped, &status);
            for (uint32_t k = 0; k < count; k++) {
                a[k].gone = unmapped[k];
            }
        }
        i += count;
    }
    cmi_capture_barred_end(device, &call);
    return status;
}

/* Is an event still to be recorded behind a page that leaves, so that its old address can be unmapped one day? */
static bool is_uncovered(const move *m)
{
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        if (m->chunks[i].stamp == CMI_NO_STAMP) {
            continue;
        }
        const cmi_stamp *stamp = cmi_stamp_get(m->pool->device, m->chunks[i].stamp);
        for (unsigned k = 0; k < stamp->count; k++) {
            if (!cmi_fence_covers(m->pool->device, stamp->entries[k].stream, stamp->entries[k].ticket)) {
                return true;
            }
        }
    }
    return false;
}

cmpool_status cmi_source_fill(cmi_pool *pool, const cmi_ask *ask, const cmi_window *window, cmi_hand *hand, const cmi_donor *donors,
                              uint32_t donor_count, cmi_block_id *block)
{
    cmi_device *device = pool->device;
    move m;
    if (!move_init(&m, pool, ask, window->pages, donor_count) || !make_ready(&m, window->offset, hand, donors, donor_count)) {
        move_fini(&m);
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    claim_window(&m, window->offset);
    claim_pages(&m, hand, donors, donor_count);
    uint32_t from_hand = (uint32_t)cmi_min_u64(hand->count, m.arrival_count);

    bool wait = m.waits.count && !CMI_MUTATION(WAIT_SKIPPED);
    wait = wait && !(CMI_MUTATION(PENDING_FED_TO_CAPTURE) && pool->owners[ask->owner].kind == CMI_OWNER_CAPTURE);
    cmpool_status status = wait ? cmi_fence_device_wait(device, pool, ask->stream, ask->handle, &m.waits) : CMPOOL_OK;
    if (status == CMPOOL_OK && pool->options.stale_budget == 0 && m.chunk_count) {
        status = unmap_first(&m);
    }
    cmi_call call;
    if (status == CMPOOL_OK && m.arrival_count) {
        status = cmi_device_call_begin(device, &call, 0);
        if (status == CMPOOL_OK) {
            cmi_step_begin(CMI_STEP_TAKE, (uint64_t)m.arrival_count << pool->heap.page_shift);
            status = map_arrivals(&m);
            cmi_step_end();
            cmi_device_call_end(device, &call);
        }
        pool->counters.driver_turns += m.chunk_count != 0; /* a growth was counted when its pages were created */
    }

    end_ready(&m, donors, donor_count); /* from here on the lock is held until all is published */
    bool uncovered = is_uncovered(&m);
    cmi_move_land(&m);
    cmi_move_keep_in_hand(&m, hand, from_hand);
    for (uint32_t i = 0; i < m.chunk_count; i++) {
        cmi_move_publish_chunk(&m, i, hand);
    }
    if (status == CMPOOL_OK) {
        *block = cmi_move_publish_window(&m, window->offset);
        cmi_ring_write(&pool->ring, CMI_EVENT_MOVE, window->offset, (uint64_t)m.arrival_count << pool->heap.page_shift, ask->stream);
    } else {
        cmi_move_unpublish_window(&m);
    }
    pool->counters.mapped_slots = cmi_store_mappings(device->store);
    if (uncovered) {
        (void)(ask->stream == CMI_NO_STREAM ? cmi_fence_contexts(device, pool) : cmi_fence_stream(device, pool, ask->stream, ask->handle));
    }
    move_fini(&m);
    return status;
}
