/*
 * What a pool notes of its calls where that is asked for: events in the ring, and time, tag and stack of live blocks, in their records or,
 * for slots of slabs, in the pool's notes. Owns no data; runs under the device lock; called by malloc, free and the ladder.
 */
#include "pool/pool.h"

static void write_event(cmi_pool *pool, cmi_event_kind kind, uint64_t address, uint64_t bytes, uint32_t stream, uint32_t owner,
                        const cmi_note *note)
{
    if (pool->ring.capacity) {
        const cmi_event event = {.address = address,
                                 .bytes = bytes,
                                 .stream = stream,
                                 .tag = note->tag,
                                 .stack = note->stack,
                                 .owner = (uint16_t)owner,
                                 .kind = (uint16_t)kind};
        cmi_ring_append(&pool->ring, &event);
    }
}

cmi_note cmi_history_of(const cmi_pool *pool, const cmi_place *place)
{
    const cmi_note *kept = cmi_notes_find(&pool->notes, place->base); /* also of blocks that were slots of a slab once */
    if (kept || place->slab) {
        return kept ? *kept : (cmi_note){0};
    }
    const cmi_block *block = cmi_heap_block(&pool->heap, place->block);
    return (cmi_note){.time_ns = block->ticket, .tag = block->tag, .stack = block->stack};
}

void cmi_history_alloc(cmi_pool *pool, const cmi_ask *ask, uint64_t address)
{
    cmi_place place;
    bool found = cmi_pool_place(pool, address, &place) == CMPOOL_OK;
    const cmi_note note = {address, pool->ring.capacity ? cmi_clock_ns() : 0, ask->tag, ask->stack};
    if (found && place.slab && (note.time_ns || (note.tag | note.stack))) {
        cmi_heap_slot_note(place.slab, place.slot);
        cmi_notes_put(&pool->notes, &note);
    }
    if (pool->traced) {
        cmi_tracer_append(pool->device->tracer, CMI_TRACED_ALLOC, address, ask->requested, ask->stream);
    }
    write_event(pool, CMI_EVENT_ALLOC, address, found ? place.bytes : ask->bytes, ask->stream, ask->owner, &note);
}

void cmi_history_free(cmi_pool *pool, const cmi_place *place, uint32_t stream)
{
    cmi_note note = cmi_history_of(pool, place);
    cmi_notes_take(&pool->notes, place->base);
    if (pool->traced) {
        cmi_tracer_append(pool->device->tracer, CMI_TRACED_FREE, place->base, 0, stream);
    }
    write_event(pool, CMI_EVENT_FREE, place->base, place->bytes, stream, place->owner, &note);
}

void cmi_history_use(cmi_pool *pool, const cmi_place *place, uint32_t stream)
{
    cmi_note note = cmi_history_of(pool, place);
    if (pool->traced) {
        cmi_tracer_append(pool->device->tracer, CMI_TRACED_USE, place->base, 0, stream);
    }
    write_event(pool, CMI_EVENT_USE, place->base, place->bytes, stream, place->owner, &note);
}

void cmi_history_refuse(cmi_pool *pool, const cmi_ask *ask)
{
    const cmi_note note = {.tag = ask->tag, .stack = ask->stack};
    write_event(pool, CMI_EVENT_REFUSE, 0, ask->bytes, ask->stream, ask->owner, &note);
}
