/*
 * Block records and what can happen to a block: cut, join, take, free. Owns the array of records and the address-ordered list of each
 * range; guarded by whoever guards the heap; called by the pool, slab.c and index.c. Nothing here fails half-way: callers reserve
 * records first, and everything else is links.
 */
#include "heap/internal.h"

#include <stddef.h>
#include <string.h>

void cmi_heap_init(cmi_heap *heap, const cmi_heap_source *source)
{
    *heap = (cmi_heap){.source = *source, .page_shift = cmi_log2_floor(source->page_bytes)};
}

void cmi_heap_fini(cmi_heap *heap)
{
    while (heap->space_count) {
        cmi_heap_remove_space(heap, heap->spaces[0].base);
    }
    for (uint32_t i = 1; i <= heap->binset_count; i++) {
        cmi_binset_free(heap->binsets[i]);
    }
    for (uint32_t i = 1; i <= heap->slab_count; i++) {
        cmi_meta_free(heap->slabs[i]->uses, heap->slabs[i]->slot_count * sizeof *heap->slabs[i]->uses);
        cmi_meta_free(heap->slabs[i], sizeof **heap->slabs);
    }
    cmi_meta_unreserve(heap->blocks, heap->block_most * sizeof *heap->blocks, heap->block_room * sizeof *heap->blocks);
    cmi_meta_free(heap->binsets, heap->binset_room * sizeof *heap->binsets);
    cmi_meta_free(heap->slabs, heap->slab_room * sizeof *heap->slabs);
    cmi_meta_free(heap->spaces, heap->space_room * sizeof *heap->spaces);
    cmi_ids_fini(&heap->unused_slabs);
    cmi_ids_fini(&heap->empty_slabs);
    cmi_ids_fini(&heap->parked_slabs);
    cmi_ids_fini(&heap->unused_binsets);
    *heap = (cmi_heap){0};
}

/* ---- records ------------------------------------------------------------------------------------ */

/* Addresses of so many are kept, more than any device has room for: 2 GiB of addresses. */
enum { MOST_RECORDS = 1 << 25, RECORDS_AT_ONCE = CMI_META_STEP / sizeof(cmi_block) };

static bool add_records(cmi_heap *heap)
{
    if (!heap->blocks) {
        size_t bytes = MOST_RECORDS * sizeof *heap->blocks;
        heap->blocks = cmi_meta_reserve(&bytes, CMI_META_STEP);
        heap->block_most = heap->blocks ? (uint32_t)(bytes / sizeof *heap->blocks) : 0;
    }
    uint32_t first = heap->block_room;
    if (first + RECORDS_AT_ONCE > heap->block_most ||
        !cmi_meta_extend(heap->blocks, first * sizeof *heap->blocks, (first + RECORDS_AT_ONCE) * sizeof *heap->blocks)) {
        return false;
    }
    heap->block_room += RECORDS_AT_ONCE;
    for (uint32_t i = heap->block_room; i-- > cmi_max_u64(first, 1);) { /* number 0 is "none" */
        heap->blocks[i].next = heap->unused_block;
        heap->unused_block = i;
        heap->unused_count++;
    }
    return true;
}

bool cmi_heap_reserve_records(cmi_heap *heap, uint32_t count)
{
    while (heap->unused_count < count + heap->earmarked) {
        if (!add_records(heap)) {
            return false;
        }
    }
    return true;
}

bool cmi_heap_earmark(cmi_heap *heap, uint32_t count)
{
    if (!cmi_heap_reserve_records(heap, count)) {
        return false;
    }
    heap->earmarked += count;
    return true;
}

/* All of a record but its lease, which others may look at without the lock at any time, and which ends with LIVE. */
static void clear(cmi_block *block)
{
    memset(block, 0, offsetof(cmi_block, lease));
    block->stamp = CMI_HEAP_NO_STAMP;
}

static cmi_block_id use_record(cmi_heap *heap)
{
    cmi_block_id id = heap->unused_block;
    heap->unused_block = cmi_heap_block(heap, id)->next;
    heap->unused_count--;
    heap->block_count++;
    return id;
}

cmi_block_id cmi_block_new(cmi_heap *heap)
{
    cmi_block_id id = use_record(heap);
    clear(cmi_heap_block(heap, id));
    return id;
}

void cmi_block_retire(cmi_heap *heap, cmi_block_id id)
{
    cmi_block *block = cmi_heap_block(heap, id);
    clear(block);
    block->next = heap->unused_block;
    heap->unused_block = id;
    heap->unused_count++;
    heap->block_count--;
}

/* ---- the list by address ------------------------------------------------------------------------ */

cmi_block_id cmi_block_split(cmi_heap *heap, cmi_block_id id, uint64_t at)
{
    heap->changes++;
    cmi_block_id new_id = use_record(heap);
    cmi_block *low = cmi_heap_block(heap, id), *high = cmi_heap_block(heap, new_id);
    memcpy(high, low, offsetof(cmi_block, lease));
    high->offset = at;
    high->bytes = low->offset + low->bytes - at;
    low->bytes = at - low->offset;
    high->left = high->right = 0;
    high->prev = id;
    low->next = new_id;
    if (high->next) {
        cmi_heap_block(heap, high->next)->prev = new_id;
    }
    cmi_index_add(heap, new_id);
    if (high->kind == CMI_BLOCK_HOLE) {
        cmi_index_note_idle(heap, new_id);
    }
    return new_id;
}

void cmi_block_absorb(cmi_heap *heap, cmi_block_id low_id, cmi_block_id high_id)
{
    cmi_block *low = cmi_heap_block(heap, low_id), *high = cmi_heap_block(heap, high_id);
    cmi_index_remove(heap, high_id);
    low->bytes += high->bytes;
    low->next = high->next;
    if (high->next) {
        cmi_heap_block(heap, high->next)->prev = low_id;
    }
    cmi_block_retire(heap, high_id);
}

cmi_block_id cmi_heap_join_busy(cmi_heap *heap, cmi_block_id low, cmi_block_id high)
{
    cmi_block *into = cmi_heap_block(heap, low);
    const cmi_block *other = cmi_heap_block(heap, high);
    if (into->binset == other->binset) {
        into->ticket = cmi_max_u64(into->ticket, other->ticket);
    }
    cmi_block_absorb(heap, low, high);
    return low;
}

/* ---- taking ------------------------------------------------------------------------------------- */

cmi_block_id cmi_heap_take(cmi_heap *heap, cmi_block_id id, uint64_t offset, uint64_t bytes)
{
    cmi_bin_remove(heap, id);
    cmi_block *block = cmi_heap_block(heap, id);
    bool stamped = block->stamp != CMI_HEAP_NO_STAMP;
    if (block->offset < offset) {
        cmi_block_id rest = id;
        id = cmi_block_split(heap, id, offset);
        block = cmi_heap_block(heap, id);
        block->kind = CMI_BLOCK_BUSY; /* so that what is left has no free neighbour */
        if (stamped) {
            block->stamp = heap->source.copy_stamp(heap->source.user, block->stamp);
        }
        cmi_bin_insert(heap, rest);
    }
    if (block->bytes > bytes) {
        cmi_block_id rest = cmi_block_split(heap, id, offset + bytes);
        cmi_heap_block(heap, rest)->kind = CMI_BLOCK_FREE;
        block->kind = CMI_BLOCK_BUSY;
        if (stamped) {
            cmi_heap_block(heap, rest)->stamp = heap->source.copy_stamp(heap->source.user, block->stamp);
        }
        cmi_bin_insert(heap, rest);
    }
    block->kind = CMI_BLOCK_BUSY;
    return id;
}

cmi_block_id cmi_heap_cut(cmi_heap *heap, cmi_block_id id, uint64_t offset, uint64_t bytes)
{
    if (cmi_heap_block(heap, id)->offset < offset) {
        id = cmi_block_split(heap, id, offset);
    }
    if (cmi_heap_block(heap, id)->bytes > bytes) {
        cmi_block_split(heap, id, offset + bytes);
    }
    return id;
}

/* ---- giving back -------------------------------------------------------------------------------- */

static void set_kind(cmi_heap *heap, cmi_block_id id, cmi_block_kind kind)
{
    heap->changes++;
    cmi_block *block = cmi_heap_block(heap, id);
    if (block->kind == CMI_BLOCK_LIVE) {
        heap->binsets[block->binset]->live_blocks--;
        if (!CMI_MUTATION(LEASE_OUTLIVES_FREE)) {
            cmi_heap_end_lease(block);
        }
    }
    block->kind = (uint8_t)kind;
    block->binset = CMI_NO_BINSET;
    block->ticket = 0;
    block->stamp = CMI_HEAP_NO_STAMP;
    block->tag = block->stack = 0;
    block->slack = 0;
}

static cmi_block_id join_alike(cmi_heap *heap, cmi_block_id id)
{
    uint8_t kind = cmi_heap_block(heap, id)->kind;
    cmi_block_id next = cmi_heap_block(heap, id)->next, prev = cmi_heap_block(heap, id)->prev;
    if (next && cmi_heap_block(heap, next)->kind == kind) {
        cmi_block_absorb(heap, id, next);
    }
    if (prev && cmi_heap_block(heap, prev)->kind == kind) {
        cmi_block_absorb(heap, prev, id);
        id = prev;
    }
    return id;
}

cmi_block_id cmi_heap_make_hole(cmi_heap *heap, cmi_block_id id)
{
    set_kind(heap, id, CMI_BLOCK_HOLE);
    cmi_index_note_hole(heap, id);
    return join_alike(heap, id);
}

cmi_block_id cmi_heap_make_stale(cmi_heap *heap, cmi_block_id id)
{
    set_kind(heap, id, CMI_BLOCK_STALE);
    cmi_walk_note_stale(heap, cmi_index_space(heap, cmi_heap_block(heap, id)->offset), cmi_heap_block(heap, id));
    return join_alike(heap, id);
}

void cmi_heap_make_live(cmi_heap *heap, cmi_block_id id, uint32_t binset, uint64_t requested, uint32_t tag, uint64_t time_ns)
{
    cmi_block *block = cmi_heap_block(heap, id);
    block->kind = CMI_BLOCK_LIVE;
    block->binset = binset;
    heap->binsets[binset]->live_blocks++;
    block->ticket = time_ns;
    block->stamp = CMI_HEAP_NO_STAMP;
    block->tag = tag;
    block->slack = (uint16_t)(block->bytes - requested < CMI_UNIT ? block->bytes - requested : 0);
}

void cmi_heap_grow_live(cmi_heap *heap, cmi_block_id id, cmi_block_id behind)
{
    heap->changes++;
    cmi_block_absorb(heap, id, behind);
}

cmi_block_id cmi_heap_shrink_live(cmi_heap *heap, cmi_block_id id, uint64_t bytes)
{
    cmi_block_id behind = cmi_block_split(heap, id, cmi_heap_block(heap, id)->offset + bytes);
    cmi_block *block = cmi_heap_block(heap, behind);
    block->kind = CMI_BLOCK_BUSY;
    block->binset = CMI_NO_BINSET;
    block->stamp = CMI_HEAP_NO_STAMP;
    block->tag = block->stack = 0;
    return behind;
}

void cmi_heap_change_set(cmi_heap *heap, cmi_block_id id, uint32_t binset)
{
    cmi_block *block = cmi_heap_block(heap, id);
    heap->binsets[block->binset]->live_blocks--;
    heap->binsets[binset]->live_blocks++;
    block->binset = binset;
}

/* May two free neighbours become one block? with_done: memory that is free for everybody may join a stream's. */
static bool may_join(const cmi_heap *heap, const cmi_block *a, const cmi_block *b, bool with_done)
{
    if (a->binset == b->binset) {
        return true;
    }
    const cmi_binset *one = heap->binsets[a->binset], *other = heap->binsets[b->binset];
    return with_done && one->owner == other->owner && one->small == other->small && one->kind != other->kind &&
           one->kind != CMI_BINSET_MIXED && other->kind != CMI_BINSET_MIXED &&
           !(heap->source.done_stays && heap->source.done_stays(heap->source.user));
}

/* Give `into` the bin set, ticket and stamp that cover both blocks. */
static void join_stamps(cmi_heap *heap, cmi_block *into, const cmi_block *other)
{
    if (into->binset != other->binset) {
        if (heap->binsets[other->binset]->kind == CMI_BINSET_STREAM && !CMI_MUTATION(JOIN_DROPS_STREAM)) {
            into->binset = other->binset;
            into->ticket = other->ticket;
        }
        return;
    }
    if (into->stamp != CMI_HEAP_NO_STAMP) {
        into->stamp = heap->source.join_stamps(heap->source.user, into->stamp, other->stamp);
    }
    into->ticket = CMI_MUTATION(JOIN_DROPS_TICKET) ? into->ticket : cmi_max_u64(into->ticket, other->ticket);
}

static bool is_joinable(const cmi_heap *heap, cmi_block_id id, cmi_block_id neighbour, bool with_done)
{
    const cmi_block *other = cmi_heap_block(heap, neighbour);
    return neighbour && other->kind == CMI_BLOCK_FREE && may_join(heap, cmi_heap_block(heap, id), other, with_done);
}

/* Loops, since a DONE neighbour that joins may have a neighbour of the stream's behind it. */
static cmi_block_id join_free(cmi_heap *heap, cmi_block_id id, bool with_done)
{
    for (;;) {
        cmi_block_id next = cmi_heap_block(heap, id)->next, prev = cmi_heap_block(heap, id)->prev;
        if (is_joinable(heap, id, next, with_done)) {
            cmi_bin_remove(heap, next);
            join_stamps(heap, cmi_heap_block(heap, id), cmi_heap_block(heap, next));
            cmi_block_absorb(heap, id, next);
        } else if (is_joinable(heap, id, prev, with_done)) {
            cmi_bin_remove(heap, prev);
            join_stamps(heap, cmi_heap_block(heap, prev), cmi_heap_block(heap, id));
            cmi_block_absorb(heap, prev, id);
            id = prev;
        } else {
            return id;
        }
    }
}

static cmi_block_id put(cmi_heap *heap, cmi_block_id id, uint32_t binset, uint64_t ticket, uint32_t stamp, bool with_done)
{
    cmi_block *block = cmi_heap_block(heap, id);
    set_kind(heap, id, CMI_BLOCK_FREE);
    block->binset = binset;
    block->ticket = ticket;
    block->stamp = stamp;
    id = join_free(heap, id, with_done);
    block = cmi_heap_block(heap, id);
    const cmi_binset *set = heap->binsets[block->binset];
    uint64_t low = cmi_round_up(block->offset, heap->source.page_bytes);
    uint64_t high = cmi_round_down(block->offset + block->bytes, heap->source.page_bytes);
    if (!set->small || low >= high) {
        cmi_bin_insert(heap, id);
        return id;
    }
    /* A small page has emptied: whole pages serve everybody, the edges stay with the small ones. */
    stamp = block->stamp;
    ticket = block->ticket;
    uint32_t partner = set->partner;
    bool stamped = stamp != CMI_HEAP_NO_STAMP;
    if (block->offset < low) {
        cmi_block_id edge = id;
        id = cmi_block_split(heap, id, low);
        if (stamped) {
            cmi_heap_block(heap, edge)->stamp = heap->source.copy_stamp(heap->source.user, stamp);
        }
        cmi_bin_insert(heap, edge);
    }
    if (cmi_heap_block(heap, id)->bytes > high - low) {
        cmi_block_id edge = cmi_block_split(heap, id, high);
        if (stamped) {
            cmi_heap_block(heap, edge)->stamp = heap->source.copy_stamp(heap->source.user, stamp);
        }
        cmi_bin_insert(heap, edge);
    }
    return put(heap, id, partner, ticket, stamp, with_done);
}

cmi_block_id cmi_heap_make_free(cmi_heap *heap, cmi_block_id id, uint32_t binset, uint64_t ticket, uint32_t stamp)
{
    return put(heap, id, binset, ticket, stamp, true);
}

cmi_block_id cmi_heap_rebin(cmi_heap *heap, cmi_block_id id, uint32_t binset, uint64_t ticket, uint32_t stamp)
{
    cmi_bin_remove(heap, id);
    cmi_block *block = cmi_heap_block(heap, id);
    if (block->stamp != CMI_HEAP_NO_STAMP && block->stamp != stamp) {
        heap->source.drop_stamp(heap->source.user, block->stamp);
    }
    return put(heap, id, binset, ticket, stamp, false);
}
