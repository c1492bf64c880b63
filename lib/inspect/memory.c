/*
 * The memory of a pool in a snapshot: its owners, addresses, slots and runs, and what waits for which stream. Owns nothing but sums while
 * it writes; reads a copy, so there is no lock. Called by snapshot.c.
 */
#include "inspect/sections.h"

#include "pool/region.h"

/* What the runs add up to, known when all are written. */
typedef struct sums {
    uint64_t *by_stream; /* pending bytes; the last one: of several streams */
    uint64_t *by_owner;  /* free bytes */
    uint32_t streams, owners;
} sums;

static bool sums_open(sums *s, const cmi_copy *copy, const cmi_pool_copy *pool)
{
    *s = (sums){.streams = copy->device.stream_count + 1, .owners = pool->pool.owner_count};
    s->by_stream = cmi_meta_alloc((s->streams + s->owners) * sizeof *s->by_stream);
    s->by_owner = s->by_stream ? s->by_stream + s->streams : NULL;
    return s->by_stream != NULL;
}

static void sums_close(sums *s) { cmi_meta_free(s->by_stream, (s->streams + s->owners) * sizeof *s->by_stream); }

/* Who has to wait for a free block: the stream that need not, or 0, and the stamp for the others, or 0 where everything is seen done. */
typedef struct waits {
    uint32_t stream;
    uint64_t stamp;
} waits;

static waits waits_of_stamp(const cmi_copy *copy, uint32_t number)
{
    if (cmi_stamp_is_done(&copy->device, number)) {
        return (waits){0, 0};
    }
    const cmi_stamp *stamp = cmi_stamp_get(&copy->device, number);
    uint32_t alone = stamp->count == 1 && !stamp->whole ? stamp->entries[0].stream : 0;
    return (waits){alone, cmi_sections_stamp(copy, number)};
}

static waits waits_of(const cmi_copy *copy, const cmi_pool_copy *pool, const cmi_block *block)
{
    const cmi_binset *set = cmi_heap_binset(&pool->pool.heap, block->binset);
    switch (set->kind) {
    case CMI_BINSET_MIXED:
        return waits_of_stamp(copy, block->stamp);
    case CMI_BINSET_STREAM:
        if (!cmi_stream_is_done(&copy->device, set->key, block->ticket)) {
            return (waits){set->key, set->key};
        }
        break;
    case CMI_BINSET_DONE:
        break;
    }
    return (waits){0, 0};
}

static void add_pending(sums *s, waits w, uint64_t bytes) { s->by_stream[w.stream ? w.stream : s->streams - 1] += bytes; }

/* ---- runs ----------------------------------------------------------------------------------------- */

static void run_row(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool, const cmi_block *block, sums *s)
{
    static const char *const states[] = {[CMI_BLOCK_HOLE] = "hole", [CMI_BLOCK_STALE] = "stale", [CMI_BLOCK_BUSY] = "busy",
                                         [CMI_BLOCK_FREE] = "free", [CMI_BLOCK_LIVE] = "live",   [CMI_BLOCK_SLAB] = "slab"};
    bool has_set = block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_LIVE || block->kind == CMI_BLOCK_SLAB;
    const cmi_binset *set = has_set ? cmi_heap_binset(&pool->pool.heap, block->binset) : NULL;
    const char *state = states[block->kind];
    waits w = {0, 0};
    if (block->kind == CMI_BLOCK_FREE) {
        w = waits_of(copy, pool, block);
        s->by_owner[set->owner] += block->bytes;
        if (w.stamp) {
            state = "pending";
            add_pending(s, w, block->bytes);
        }
    } else if (has_set) {
        w.stream = set->key;
        w.stamp = block->kind == CMI_BLOCK_LIVE ? cmi_sections_stamp(copy, block->stamp) : 0;
    }
    bool live = block->kind == CMI_BLOCK_LIVE;
    cmi_json_row(json);
    cmi_json_number(json, NULL, block->offset);
    cmi_json_number(json, NULL, block->bytes);
    cmi_json_text(json, NULL, state);
    cmi_json_number(json, NULL, set ? set->owner : 0);
    cmi_json_number(json, NULL, w.stream);
    cmi_json_number(json, NULL, w.stamp);
    cmi_json_number(json, NULL, live ? block->bytes - block->slack : 0);
    cmi_json_number(json, NULL, live ? block->ticket : 0);
    cmi_json_number(json, NULL, live ? block->tag : 0);
    cmi_json_number(json, NULL, live ? block->stack : 0);
    cmi_json_end(json, ']');
}

static void write_runs(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool, sums *s)
{
    const cmi_heap *heap = &pool->pool.heap;
    cmi_json_table(json, "runs", "address bytes state owner stream stamp requested time_ns tag stack");
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            run_row(json, copy, pool, cmi_heap_block(heap, id), s);
        }
    }
    cmi_json_table_end(json);
}

/* ---- slabs ---------------------------------------------------------------------------------------- */

static void slab_row(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool, const cmi_block *block, sums *s)
{
    static const char letters[] = {
        [CMI_SLOT_FREE] = 'F', [CMI_SLOT_CACHED] = 'C', [CMI_SLOT_LIVE] = 'L', [CMI_SLOT_PARKED] = 'P', [CMI_SLOT_NOTED] = 'L'};
    const cmi_slab *slab = pool->pool.heap.slabs[block->slab];
    const cmi_binset *set = cmi_heap_binset(&pool->pool.heap, block->binset);
    uint64_t bytes = cmi_class_bytes(slab->class_index);
    char slots[CMI_SLAB_SLOTS + 1];
    uint64_t of_stream = 0, parked = 0;
    for (unsigned i = 0; i < slab->slot_count; i++) {
        slots[i] = letters[cmi_slab_use(slab, i)];
        of_stream += cmi_slab_use(slab, i) == CMI_SLOT_FREE ? bytes : 0;
        parked += cmi_slab_use(slab, i) == CMI_SLOT_PARKED ? bytes : 0;
    }
    slots[slab->slot_count] = '\0';
    waits w = parked ? waits_of_stamp(copy, slab->stamp) : (waits){0, 0};
    if (w.stamp) {
        add_pending(s, w, parked);
    }
    if (set->key && !cmi_stream_is_done(&copy->device, set->key, slab->ticket)) {
        add_pending(s, (waits){set->key, set->key}, of_stream);
    }
    s->by_owner[set->owner] += of_stream + parked;
    cmi_json_row(json);
    cmi_json_number(json, NULL, block->offset);
    cmi_json_number(json, NULL, bytes);
    cmi_json_text(json, NULL, slots);
    cmi_json_number(json, NULL, w.stamp);
    cmi_json_end(json, ']');
}

static void write_slabs(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool, sums *s)
{
    const cmi_heap *heap = &pool->pool.heap;
    cmi_json_table(json, "slabs", "address slot_bytes slots stamp");
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (block->kind == CMI_BLOCK_SLAB) {
                slab_row(json, copy, pool, block, s);
            }
        }
    }
    cmi_json_table_end(json);
}

static void write_notes(cmi_json *json, const cmi_pool_copy *pool)
{
    const cmi_notes *notes = &pool->pool.notes;
    cmi_json_table(json, "slot_notes", "address time_ns tag stack");
    for (uint64_t i = 0; i < notes->room; i++) {
        const cmi_note *note = &notes->places[i];
        if (note->address) {
            cmi_json_row(json);
            cmi_json_number(json, NULL, note->address);
            cmi_json_number(json, NULL, note->time_ns);
            cmi_json_number(json, NULL, note->tag);
            cmi_json_number(json, NULL, note->stack);
            cmi_json_end(json, ']');
        }
    }
    cmi_json_table_end(json);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static void write_ranges(cmi_json *json, const cmi_pool_copy *pool)
{
    cmi_json_table(json, "ranges", "address bytes");
    for (uint32_t i = 0; i < pool->pool.arena.range_count; i++) {
        cmi_json_row(json);
        cmi_json_number(json, NULL, pool->ranges[i].base);
        cmi_json_number(json, NULL, pool->ranges[i].bytes);
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
}

static void slots_row(cmi_json *json, const cmi_copy *copy, uint64_t address, uint64_t pages, const cmi_slot *slot)
{
    static const char *const states[] = {[CMI_SLOT_EMPTY] = "empty",
                                         [CMI_SLOT_MAPPED] = "mapped",
                                         [CMI_SLOT_STALE] = "stale",
                                         [CMI_SLOT_MOVING] = "moving",
                                         [CMI_SLOT_HELD] = "held"};
    cmi_json_row(json);
    cmi_json_number(json, NULL, address);
    cmi_json_number(json, NULL, pages);
    cmi_json_text(json, NULL, states[slot->state]);
    cmi_json_number(json, NULL, slot->fixed);
    cmi_json_number(json, NULL, slot->state == CMI_SLOT_STALE ? cmi_sections_stamp(copy, slot->stamp) : 0);
    cmi_json_end(json, ']');
}

static bool slots_are_alike(const cmi_slot *a, const cmi_slot *b)
{
    return a->state == b->state && a->fixed == b->fixed && (a->state != CMI_SLOT_STALE || a->stamp == b->stamp);
}

static void write_slots(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool)
{
    cmi_json_table(json, "slots", "address pages state fixed stamp");
    for (uint32_t i = 0; i < pool->pool.arena.range_count; i++) {
        const cmi_range *range = &pool->ranges[i];
        for (uint32_t first = 0, next; first < range->slot_count; first = next) {
            for (next = first + 1; next < range->slot_count && slots_are_alike(&range->slots[first], &range->slots[next]); next++) {}
            slots_row(json, copy, range->base + first * copy->device.page_bytes, next - first, &range->slots[first]);
        }
    }
    cmi_json_table_end(json);
}

/* ---- sums ------------------------------------------------------------------------------------------- */

static void write_owners(cmi_json *json, const cmi_pool_copy *pool, const sums *s)
{
    static const char *const kinds[] = {
        [CMI_OWNER_POOL] = "pool", [CMI_OWNER_PRIVATE] = "private", [CMI_OWNER_REGION] = "region", [CMI_OWNER_CAPTURE] = "capture"};
    cmi_json_table(json, "owners", "owner kind handle captures live_blocks live_bytes free_bytes allocations frees peak_live_bytes");
    for (uint32_t i = 0; i < pool->pool.owner_count; i++) {
        const cmi_owner *owner = &pool->pool.owners[i];
        if (!owner->used) {
            continue;
        }
        cmi_json_row(json);
        cmi_json_number(json, NULL, i);
        cmi_json_text(json, NULL, kinds[owner->kind]);
        cmi_json_number(json, NULL, owner->generation);
        cmi_json_number(json, NULL, owner->captures);
        cmi_json_number(json, NULL, owner->live_blocks);
        cmi_json_number(json, NULL, owner->live_bytes);
        cmi_json_number(json, NULL, s->by_owner[i]);
        cmi_json_number(json, NULL, owner->allocations);
        cmi_json_number(json, NULL, owner->frees);
        cmi_json_number(json, NULL, owner->peak_live_bytes);
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
}

static void write_regions(cmi_json *json, const cmi_pool_copy *pool)
{
    cmi_json_table(json, "regions", "address bytes max_bytes tag");
    for (uint32_t i = 0; i < pool->pool.region_count; i++) {
        const cmi_region *region = &pool->pool.regions[i];
        cmi_json_row(json);
        cmi_json_number(json, NULL, region->base);
        cmi_json_number(json, NULL, region->bytes);
        cmi_json_number(json, NULL, region->most);
        cmi_json_number(json, NULL, region->tag);
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
}

static void write_pending(cmi_json *json, const sums *s)
{
    cmi_json_table(json, "pending", "stream bytes");
    for (uint32_t i = 1; i < s->streams; i++) {
        if (s->by_stream[i]) {
            cmi_json_row(json);
            i + 1 < s->streams ? cmi_json_number(json, NULL, i) : cmi_json_null(json, NULL);
            cmi_json_number(json, NULL, s->by_stream[i]);
            cmi_json_end(json, ']');
        }
    }
    cmi_json_table_end(json);
}

bool cmi_sections_memory(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool)
{
    sums s;
    if (!sums_open(&s, copy, pool)) {
        return false;
    }
    write_ranges(json, pool);
    write_slots(json, copy, pool);
    write_runs(json, copy, pool, &s);
    write_slabs(json, copy, pool, &s);
    write_notes(json, pool);
    write_owners(json, pool, &s);
    write_regions(json, pool);
    write_pending(json, &s);
    sums_close(&s);
    return true;
}
