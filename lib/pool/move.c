/*
 * Moving pages: a window of free bytes and holes becomes one block, its holes filled with new pages and with whole idle pages that are
 * taken from other free runs. A page is mapped at its new slot at once; the old slot becomes stale and is unmapped when the host has seen
 * the page's stamp done. CUDA allows one page at two addresses, and stream order keeps the two users apart. Owns nothing between calls;
 * guarded by the device lock, dropped around driver calls while slots are MOVING and blocks BUSY; called by the ladder.
 */
#include "pool/pool.h"

#include <string.h>

/* A page that leaves, and one that arrives: one entry per slot to be filled. */
typedef struct arrival {
    uint64_t to;
    uint64_t from;  /* old address in donor's arena, or 0 for a new page */
    uint32_t donor; /* index of its chunk */
    bool landed;    /* mapped at its new address */
    bool gone;      /* unmapped at its old address */
} arrival;

/* Neighbouring pages that leave one donor. */
typedef struct chunk {
    cmi_pool *pool;
    uint64_t offset;
    uint32_t pages;
    uint32_t first; /* its pages fill arrivals first to first + pages - 1 */
    uint32_t stamp; /* of everything that was freed on them; CMI_NO_STAMP: seen done */
    uint32_t owner;
} chunk;

typedef struct move {
    cmi_pool *pool;
    const cmi_ask *ask;
    uint64_t low, high; /* the window, holes widened to whole pages */
    arrival *arrivals;
    uint32_t *pages; /* page of each arrival, in the order of arrivals */
    uint32_t arrival_count, arrival_room;
    chunk *chunks;
    uint32_t chunk_count, chunk_room;
    cmi_waits waits;
    uint32_t records, stamps; /* earmarked */
} move;

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

/* Everything that may need host memory, before anything is taken apart; kept for us while the lock is dropped. */
static bool make_ready(move *m, cmi_hand *hand, const cmi_donor *donors, uint32_t donor_count)
{
    m->records = 4 * m->arrival_room + 64;
    m->stamps = m->records + 4 * donor_count;
    if (!cmi_hand_reserve(hand, hand->count + m->arrival_room) || !cmi_stamp_reserve(m->pool->device, m->stamps) ||
        !cmi_heap_earmark(&m->pool->heap, m->records)) {
        return false;
    }
    for (uint32_t i = 0; i < donor_count; i++) {
        if (!cmi_heap_earmark(&donors[i].pool->heap, m->records)) {
            while (i-- > 0) {
                cmi_heap_end_earmark(&donors[i].pool->heap, m->records);
            }
            cmi_heap_end_earmark(&m->pool->heap, m->records);
            return false;
        }
    }
    m->pool->device->earmarked_stamps += m->stamps;
    for (uint32_t i = 0; i < donor_count; i++) {
        donors[i].pool->calls_inside++; /* a sibling must not go while its pages are on their way */
    }
    return true;
}

static void end_ready(const move *m, const cmi_donor *donors, uint32_t donor_count)
{
    for (uint32_t i = 0; i < donor_count; i++) {
        cmi_heap_end_earmark(&donors[i].pool->heap, m->records);
        donors[i].pool->calls_inside--;
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

/* ---- publishing --------------------------------------------------------------------------------- */

/* Neighbouring pages of a chunk that met with the same fate: their old slots are stale where the pages left, holes where they are unmapped
 * already; pages that did not leave are free again, or in hand when they are mapped nowhere. */
static void publish_part(move *m, const chunk *c, uint32_t first, uint32_t count, cmi_hand *hand)
{
    cmi_pool *donor = c->pool;
    cmi_device *device = m->pool->device;
    const arrival *a = &m->arrivals[first];
    cmi_block_id id = cmi_heap_cut(&donor->heap, cmi_heap_find(&donor->heap, a->from), a->from, (uint64_t)count << donor->heap.page_shift);
    cmi_slot *slot = cmi_arena_slot(&donor->arena, a->from);
    if (a->gone || (a->landed && CMI_MUTATION(STALE_SLOT_REUSED))) {
        cmi_source_set_slots(donor, a->from, count, CMI_SLOT_EMPTY);
        cmi_heap_make_hole(&donor->heap, id);
        for (uint32_t i = 0; i < count && !a->landed; i++) {
            hand->pages[hand->count++] = m->pages[first + i];
        }
    } else if (a->landed) {
        for (uint32_t i = 0; i < count; i++) {
            slot[i].state = CMI_SLOT_STALE;
            slot[i].stamp = cmi_stamp_copy(device, c->stamp);
        }
        donor->counters.stale_slots += count;
        cmi_heap_make_stale(&donor->heap, id);
    } else {
        cmi_source_set_slots(donor, a->from, count, CMI_SLOT_MAPPED);
        const cmi_owner *owner = &donor->owners[c->owner];
        bool done = c->stamp == CMI_NO_STAMP;
        cmi_heap_make_free(&donor->heap, id, done ? owner->done[0] : owner->mixed[0], 0,
                           done ? CMI_HEAP_NO_STAMP : cmi_stamp_copy(device, c->stamp));
        donor->reserved_pages += count;
        m->pool->reserved_pages -= count;
    }
}

static void publish_chunk(move *m, uint32_t number, cmi_hand *hand)
{
    const chunk *c = &m->chunks[number];
    for (uint32_t i = c->first, end = c->first + c->pages; i < end;) {
        uint32_t j = i + 1;
        while (j < end && m->arrivals[j].landed == m->arrivals[i].landed && m->arrivals[j].gone == m->arrivals[i].gone) {
            j++;
        }
        publish_part(m, c, i, j - i, hand);
        i = j;
    }
    cmi_stamp_drop(m->pool->device, c->stamp);
}

static void land_slots(move *m)
{
    uint64_t page = m->pool->heap.source.page_bytes;
    cmi_slot *slot = NULL;
    for (uint32_t i = 0; i < m->arrival_count; i++) {
        bool next = i > 0 && m->arrivals[i].to == m->arrivals[i - 1].to + page; /* holes never span ranges, so neither do such runs */
        slot = next ? slot + 1 : cmi_arena_slot(&m->pool->arena, m->arrivals[i].to);
        if (m->arrivals[i].landed) {
            *slot = (cmi_slot){.page = m->pages[i], .stamp = CMI_NO_STAMP, .fixed = slot->fixed, .state = CMI_SLOT_MAPPED};
            m->pool->counters.page_moves += m->arrivals[i].from != 0;
        }
    }
}

/* New pages that did not land stay in hand. */
static void keep_in_hand(const move *m, cmi_hand *hand, uint32_t from_hand)
{
    hand->count -= from_hand;
    for (uint32_t i = 0; i < from_hand; i++) {
        if (!m->arrivals[i].landed) {
            hand->pages[hand->count++] = m->pages[i];
        }
    }
}

/* Memory that the asking stream has taken over is its own: free from the present ticket on. Where none was named, all contexts have been
 * made to wait, but the host has not seen it done: free behind the whole device. */
static uint32_t set_from_now(move *m, uint32_t *stamp)
{
    cmi_device *device = m->pool->device;
    *stamp = CMI_NO_STAMP;
    if (m->ask->stream == CMI_NO_STREAM) {
        *stamp = cmi_stamp_new_whole(device);
        return m->pool->owners[m->ask->owner].mixed[0];
    }
    device->streams[m->ask->stream].last_free = device->ticket;
    return cmi_owner_binset(m->pool, m->ask->owner, m->ask->stream, 0); /* the ladder has made it */
}

static void free_from_now(move *m, cmi_block_id id)
{
    uint32_t stamp, set = set_from_now(m, &stamp);
    cmi_heap_make_free(&m->pool->heap, id, set, m->pool->device->ticket, stamp);
}

/* Free bytes on a page that has just arrived: nobody's for a new page; else behind what the asking stream does now. */
static void give_edge(move *m, cmi_block_id id)
{
    cmi_pool *pool = m->pool;
    uint64_t at = cmi_round_down(cmi_heap_block(&pool->heap, id)->offset, pool->heap.source.page_bytes);
    bool fresh = false;
    for (uint32_t i = 0; i < m->arrival_count; i++) {
        fresh = fresh || (m->arrivals[i].to == at && !m->arrivals[i].from);
    }
    if (fresh || CMI_MUTATION(EDGE_FOR_EVERYBODY)) {
        cmi_heap_make_free(&pool->heap, id, pool->owners[m->ask->owner].done[0], 0, CMI_HEAP_NO_STAMP);
    } else {
        free_from_now(m, id);
    }
}

static cmi_block_id publish_window(move *m, uint64_t offset)
{
    cmi_heap *heap = &m->pool->heap;
    cmi_device *device = m->pool->device;
    cmi_block_id whole = 0;
    bool done = true;
    uint64_t ticket = 0;
    for (cmi_block_id id = cmi_heap_find(heap, m->low), next; id && cmi_heap_block(heap, id)->offset < m->high; id = next) {
        cmi_block *block = cmi_heap_block(heap, id);
        next = block->next;
        done = done && (!block->binset || cmi_heap_binset(heap, block->binset)->kind == CMI_BINSET_DONE);
        ticket = cmi_max_u64(ticket, block->ticket);
        cmi_stamp_drop(device, block->stamp);
        block->stamp = CMI_NO_STAMP;
        whole = whole ? cmi_heap_join_busy(heap, whole, id) : id;
    }
    for (uint32_t i = 0; i < m->arrival_count && done; i++) {
        done = !m->arrivals[i].from;
    }
    if (m->low < offset) {
        cmi_block_id edge = whole;
        whole = cmi_heap_cut(heap, whole, offset, m->high - offset);
        give_edge(m, edge);
    }
    if (m->high > offset + m->ask->bytes) {
        whole = cmi_heap_cut(heap, whole, offset, m->ask->bytes);
        give_edge(m, cmi_heap_block(heap, whole)->next);
    }
    /* The block tells its taker whose it was: memory that is free for everybody, or the asking stream's from now on. */
    cmi_block *block = cmi_heap_block(heap, whole);
    block->binset = done ? m->pool->owners[m->ask->owner].done[0] : set_from_now(m, &block->stamp);
    block->ticket = done ? 0 : device->ticket;
    return whole;
}

/* A move that failed: free bytes of the window as they were, pages that did arrive as free memory, the rest as holes again. */
static void unpublish_window(move *m)
{
    cmi_heap *heap = &m->pool->heap;
    uint64_t page = heap->source.page_bytes;
    for (uint64_t at = m->low; at < m->high;) {
        cmi_block_id id = cmi_heap_find(heap, at);
        cmi_block *block = cmi_heap_block(heap, id);
        at = block->offset + block->bytes;
        if (block->binset) {
            cmi_heap_make_free(heap, id, block->binset, block->ticket, block->stamp);
            continue;
        }
        for (uint64_t low = block->offset; low < at; low += page) {
            id = cmi_heap_cut(heap, cmi_heap_find(heap, low), low, page);
            if (cmi_arena_slot(&m->pool->arena, low)->state == CMI_SLOT_MAPPED) {
                /* Nothing is mapped before the asking stream waits for all of the pages, so they are its own now. */
                free_from_now(m, id);
            } else {
                cmi_source_set_slots(m->pool, low, 1, CMI_SLOT_EMPTY);
                cmi_heap_make_hole(heap, id);
            }
        }
    }
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
    if (!move_init(&m, pool, ask, window->pages, donor_count) || !make_ready(&m, hand, donors, donor_count)) {
        move_fini(&m);
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    claim_window(&m, window->offset);
    claim_pages(&m, hand, donors, donor_count);
    uint32_t from_hand = (uint32_t)cmi_min_u64(hand->count, m.arrival_count);

    bool wait = m.waits.count && !CMI_MUTATION(WAIT_SKIPPED);
    cmpool_status status = wait ? cmi_fence_device_wait(device, pool, ask->stream, ask->handle, &m.waits) : CMPOOL_OK;
    if (status == CMPOOL_OK && pool->options.stale_budget == 0 && m.chunk_count) {
        status = unmap_first(&m);
    }
    cmi_call call;
    if (status == CMPOOL_OK && m.arrival_count) {
        status = cmi_device_call_begin(device, &call, 0);
        if (status == CMPOOL_OK) {
            status = map_arrivals(&m);
            cmi_device_call_end(device, &call);
        }
        pool->counters.driver_turns += m.chunk_count != 0; /* a growth was counted when its pages were created */
    }

    end_ready(&m, donors, donor_count); /* from here on the lock is held until all is published */
    bool uncovered = is_uncovered(&m);
    land_slots(&m);
    keep_in_hand(&m, hand, from_hand);
    for (uint32_t i = 0; i < m.chunk_count; i++) {
        publish_chunk(&m, i, hand);
    }
    if (status == CMPOOL_OK) {
        *block = publish_window(&m, window->offset);
        cmi_ring_write(&pool->ring, CMI_EVENT_MOVE, window->offset, (uint64_t)m.arrival_count << pool->heap.page_shift, ask->stream);
    } else {
        unpublish_window(&m);
    }
    pool->counters.mapped_slots = cmi_store_mappings(device->store);
    if (uncovered) {
        (void)(ask->stream == CMI_NO_STREAM ? cmi_fence_contexts(device, pool) : cmi_fence_stream(device, pool, ask->stream, ask->handle));
    }
    move_fini(&m);
    return status;
}
