/*
 * The end of a move: what the driver has done becomes what the tables say. Owns nothing; runs under the device lock from the first slot to
 * the last, so that nobody sees a move half published; called by move.c.
 */
#include "pool/move.h"

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
        cmi_source_vacate(donor, id);
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

void cmi_move_publish_chunk(move *m, uint32_t number, cmi_hand *hand)
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

void cmi_move_land(move *m)
{
    uint64_t page = m->pool->heap.source.page_bytes;
    uint32_t now = m->pool->options.idle_release ? cmi_returns_now() : 0;
    cmi_slot *slot = NULL;
    for (uint32_t i = 0; i < m->arrival_count; i++) {
        bool next = i > 0 && m->arrivals[i].to == m->arrivals[i - 1].to + page; /* holes never span ranges, so neither do such runs */
        slot = next ? slot + 1 : cmi_arena_slot(&m->pool->arena, m->arrivals[i].to);
        if (m->arrivals[i].landed) {
            *slot = (cmi_slot){.page = m->pages[i], .stamp = CMI_NO_STAMP, .freed_at = now, .fixed = slot->fixed, .state = CMI_SLOT_MAPPED};
            if (m->arrivals[i].from) {
                m->pool->counters.page_moves++;
                m->pool->unsettled = CMI_UNSETTLED;
            }
        }
    }
}

/* New pages that did not land stay in hand. */
void cmi_move_keep_in_hand(const move *m, cmi_hand *hand, uint32_t from_hand)
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

cmi_block_id cmi_move_publish_window(move *m, uint64_t offset)
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
void cmi_move_unpublish_window(move *m)
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
                cmi_source_vacate(m->pool, id);
            }
        }
    }
}
