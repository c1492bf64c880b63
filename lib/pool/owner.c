/*
 * Owners: a pool and the private pools inside it. Owns the table from (owner, stream) to bin set and the promotion of finished memory;
 * guarded by the device lock; called by malloc, free, ladder and trim.
 */
#include "pool/cache.h"

#include <string.h>

void cmi_owner_drop(cmi_pool *pool, uint32_t number)
{
    cmi_owner *owner = &pool->owners[number];
    for (unsigned small = 0; small < 2; small++) {
        if (owner->done[small]) {
            cmi_heap_remove_binset(&pool->heap, owner->done[small]);
        }
        if (owner->mixed[small]) {
            cmi_heap_remove_binset(&pool->heap, owner->mixed[small]);
        }
        for (uint32_t i = 0; i < owner->of_stream_room; i++) {
            if (owner->of_stream[small][i]) {
                cmi_heap_remove_binset(&pool->heap, owner->of_stream[small][i]);
            }
        }
        cmi_meta_free(owner->of_stream[small], owner->of_stream_room * sizeof(uint32_t));
    }
    *owner = (cmi_owner){.calls_inside = owner->calls_inside}; /* the call that ends it */
}

cmpool_status cmi_owner_add(cmi_pool *pool, cmi_owner_kind kind, uint32_t *number)
{
    uint32_t at = 0;
    while (at < pool->owner_count && pool->owners[at].used) {
        at++;
    }
    if (at == pool->owner_room) {
        uint32_t room = pool->owner_room ? pool->owner_room * 2 : 4;
        cmi_owner *grown = cmi_meta_resize(pool->owners, pool->owner_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        pool->owners = grown;
        pool->owner_room = room;
    }
    cmi_owner *owner = &pool->owners[at];
    *owner = (cmi_owner){.used = true, .kind = (uint8_t)kind};
    bool made = true;
    for (unsigned small = 0; small < 2 && made; small++) {
        owner->mixed[small] = cmi_heap_add_binset(&pool->heap, at, 0, CMI_BINSET_MIXED, small, small ? owner->mixed[0] : 0, 0);
        owner->done[small] = owner->mixed[small] ? cmi_heap_add_binset(&pool->heap, at, 0, CMI_BINSET_DONE, small,
                                                                       small ? owner->done[0] : 0, owner->mixed[small])
                                                 : 0;
        made = owner->done[small] != 0;
    }
    if (!made) {
        cmi_owner_drop(pool, at);
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (at == pool->owner_count) {
        pool->owner_count++;
    }
    *number = at;
    return CMPOOL_OK;
}

uint32_t cmi_owner_make_binset(cmi_pool *pool, uint32_t number, uint32_t stream, unsigned small)
{
    cmi_owner *owner = &pool->owners[number];
    if (stream == CMI_NO_STREAM) {
        return owner->done[small]; /* who names no stream may use what is free for everybody */
    }
    if (stream >= owner->of_stream_room) {
        uint32_t room = owner->of_stream_room ? owner->of_stream_room : 8;
        while (room <= stream) {
            room *= 2;
        }
        uint32_t *grown[2] = {cmi_meta_alloc(room * sizeof(uint32_t)), cmi_meta_alloc(room * sizeof(uint32_t))};
        if (!grown[0] || !grown[1]) { /* both or none: they are of one length */
            cmi_meta_free(grown[0], room * sizeof(uint32_t));
            cmi_meta_free(grown[1], room * sizeof(uint32_t));
            return CMI_NO_BINSET;
        }
        for (unsigned i = 0; i < 2; i++) {
            for (uint32_t k = 0; k < owner->of_stream_room; k++) {
                grown[i][k] = owner->of_stream[i][k];
            }
            cmi_meta_free(owner->of_stream[i], owner->of_stream_room * sizeof(uint32_t));
            owner->of_stream[i] = grown[i];
        }
        owner->of_stream_room = room;
    }
    if (!owner->of_stream[small][stream]) {
        uint32_t partner = small ? cmi_owner_binset(pool, number, stream, 0) : 0;
        if (small && !partner) {
            return CMI_NO_BINSET;
        }
        owner->of_stream[small][stream] =
            cmi_heap_add_binset(&pool->heap, number, stream, CMI_BINSET_STREAM, small != 0, partner, owner->mixed[small]);
    }
    return owner->of_stream[small][stream];
}

bool cmi_owner_forget_stream(cmi_pool *pool, uint32_t stream)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < pool->owner_count; i++) {
            cmi_owner *owner = &pool->owners[i];
            for (unsigned small = 2; small-- > 0 && stream < owner->of_stream_room;) {
                uint32_t set = owner->of_stream[small][stream];
                if (pass == 0 && set && !cmi_binset_is_empty(cmi_heap_binset(&pool->heap, set))) {
                    return false;
                }
                if (pass == 1 && set) {
                    cmi_heap_remove_binset(&pool->heap, set);
                    owner->of_stream[small][stream] = CMI_NO_BINSET;
                }
            }
        }
    }
    return true;
}

/* Where a free block of `number` belongs when it is to be owned by the pool itself. */
static uint32_t same_set_of_pool(cmi_pool *pool, const cmi_binset *set)
{
    switch (set->kind) {
    case CMI_BINSET_DONE:
        return pool->owners[0].done[set->small];
    case CMI_BINSET_MIXED:
        return pool->owners[0].mixed[set->small];
    default:
        return cmi_owner_binset(pool, 0, set->key, set->small);
    }
}

void cmi_owner_remove(cmi_pool *pool, uint32_t number)
{
    cmi_heap *heap = &pool->heap;
    cmi_cache_end(pool, number);
    cmi_heap_flush_slabs(heap);
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (block->kind != CMI_BLOCK_FREE || cmi_heap_binset(heap, block->binset)->owner != number) {
                continue;
            }
            uint32_t to = same_set_of_pool(pool, cmi_heap_binset(heap, block->binset));
            if (!to || !cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS) || !cmi_stamp_reserve(pool->device, CMI_HEAP_STEP_RECORDS)) {
                /* Without host memory for the pool's own bin set the block stays where it is; its whole pages serve everybody all the same.
                 */
                continue;
            }
            uint32_t stamp = block->stamp;
            id = cmi_heap_rebin(heap, id, to, block->ticket, stamp);
        }
    }
    cmi_owner *owner = &pool->owners[number];
    bool empty = true;
    for (unsigned small = 0; small < 2; small++) {
        empty = empty && cmi_binset_is_empty(cmi_heap_binset(heap, owner->done[small])) &&
                cmi_binset_is_empty(cmi_heap_binset(heap, owner->mixed[small]));
        for (uint32_t i = 0; i < owner->of_stream_room; i++) {
            empty = empty && (!owner->of_stream[small][i] || cmi_binset_is_empty(cmi_heap_binset(heap, owner->of_stream[small][i])));
        }
    }
    if (empty) {
        cmi_owner_drop(pool, number);
    } else {
        owner->generation = 0; /* stays as an owner without a handle; its whole pages serve everybody */
    }
}

/* ---- promotion ---------------------------------------------------------------------------------- */

/* Of a stamp that is not done: what is left to wait for, if that is one stream; else NULL. */
static const cmi_stamp_entry *one_left(const cmi_device *device, uint32_t number)
{
    const cmi_stamp *stamp = cmi_stamp_get(device, number);
    const cmi_stamp_entry *left = NULL;
    for (unsigned i = 0; i < stamp->count && !stamp->whole; i++) {
        if (!cmi_stream_is_done(device, stamp->entries[i].stream, stamp->entries[i].ticket)) {
            if (left && !CMI_MUTATION(PROMOTED_TOO_SOON)) {
                return NULL;
            }
            left = &stamp->entries[i];
        }
    }
    return left;
}

/* Does a free block that waits for something belong to another bin set, by what is known now? */
static bool is_due(const cmi_pool *pool, const cmi_block *block)
{
    const cmi_binset *set = cmi_heap_binset(&pool->heap, block->binset);
    if (set->kind == CMI_BINSET_STREAM) {
        return cmi_stream_is_done(pool->device, set->key, block->ticket);
    }
    return cmi_stamp_is_done(pool->device, block->stamp) ||
           (pool->owners[set->owner].kind != CMI_OWNER_CAPTURE && one_left(pool->device, block->stamp)); /* see capture.c */
}

/* The bin set that such a block belongs to. */
static uint32_t settled_set(cmi_pool *pool, const cmi_block *block, uint64_t *ticket)
{
    const cmi_binset *set = cmi_heap_binset(&pool->heap, block->binset);
    if (set->kind == CMI_BINSET_STREAM || cmi_stamp_is_done(pool->device, block->stamp)) {
        *ticket = 0;
        return pool->owners[set->owner].done[set->small];
    }
    const cmi_stamp_entry *left = one_left(pool->device, block->stamp);
    uint32_t own = cmi_owner_binset(pool, set->owner, left->stream, set->small);
    *ticket = own ? left->ticket : block->ticket;
    return own ? own : block->binset;
}

static void unpark(cmi_pool *pool)
{
    cmi_heap *heap = &pool->heap;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < heap->parked_slabs.count; i++) {
        uint32_t number = heap->parked_slabs.ids[i];
        cmi_slab *slab = heap->slabs[number];
        if (slab->block && slab->parked_count && !cmi_stamp_is_done(pool->device, slab->stamp)) {
            heap->parked_slabs.ids[kept++] = number;
            continue;
        }
        if (slab->block && slab->parked_count) {
            cmi_heap_unpark(heap, slab->block);
        }
        slab->listed_parked = 0;
    }
    heap->parked_slabs.count = kept;
}

/* Offsets of blocks that belong to another bin set by now. */
typedef struct due_list {
    uint64_t few[64];
    uint64_t *offsets; /* `few`, or memory of its own */
    uint32_t count, room;
} due_list;

static bool note_due(due_list *due, uint64_t offset)
{
    if (due->count == due->room) {
        uint64_t *grown = cmi_meta_alloc(2 * due->room * sizeof *grown);
        if (!grown) {
            return false;
        }
        memcpy(grown, due->offsets, due->count * sizeof *grown);
        cmi_meta_free(due->offsets == due->few ? NULL : due->offsets, due->room * sizeof *grown);
        due->offsets = grown;
        due->room *= 2;
    }
    due->offsets[due->count++] = offset;
    return true;
}

/* In place by halving gaps; the C library's qsort may call malloc. */
static void sort_due(due_list *due)
{
    for (uint32_t gap = due->count / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < due->count; i++) {
            uint64_t moving = due->offsets[i];
            uint32_t j = i;
            for (; j >= gap && moving < due->offsets[j - gap]; j -= gap) {
                due->offsets[j] = due->offsets[j - gap];
            }
            due->offsets[j] = moving;
        }
    }
}

/* Only what waits for something can change, so that is all that is looked at. false: no host memory for all of it. */
static bool find_due(cmi_pool *pool, due_list *due)
{
    cmi_heap *heap = &pool->heap;
    for (uint32_t i = 1; i <= heap->binset_count; i++) {
        const cmi_binset *set = heap->binsets[i];
        if (!set || !set->free_blocks || set->kind == CMI_BINSET_DONE) {
            continue;
        }
        for (cmi_block_id id = 0; (id = cmi_heap_next_free(heap, i, id)) != 0;) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (is_due(pool, block) && !note_due(due, block->offset)) {
                return false;
            }
        }
    }
    return true;
}

/* By address: how neighbours join depends on the order, and the layout is to depend on as little as possible. */
void cmi_owner_promote(cmi_pool *pool)
{
    cmi_heap *heap = &pool->heap;
    if (pool->promoted_at == pool->device->done_changes) {
        return;
    }
    unpark(pool);
    due_list due;
    due.offsets = due.few;
    due.room = CMI_ARRAY_LENGTH(due.few);
    due.count = 0;
    bool complete = find_due(pool, &due);
    sort_due(&due);
    for (uint32_t i = 0; i < due.count; i++) {
        cmi_block_id id = cmi_heap_find(heap, due.offsets[i]);
        if (cmi_heap_block(heap, id)->offset != due.offsets[i]) {
            continue; /* joined to one before it, and waits with that one */
        }
        if (!cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS) || !cmi_stamp_reserve(pool->device, CMI_HEAP_STEP_RECORDS)) {
            complete = false;
            break;
        }
        uint64_t ticket;
        uint32_t to = settled_set(pool, cmi_heap_block(heap, id), &ticket);
        if (to != cmi_heap_block(heap, id)->binset) {
            cmi_heap_rebin(heap, id, to, ticket, CMI_HEAP_NO_STAMP);
        }
    }
    cmi_meta_free(due.offsets == due.few ? NULL : due.offsets, due.room * sizeof *due.offsets);
    if (complete) {
        pool->promoted_at = pool->device->done_changes;
    }
    cmi_pool_must_be_valid(pool);
}
