/*
 * Slabs: blocks cut into slots of one size class, so that small requests cost neither records nor list work. Owns the slab records and
 * their side tables; guarded by whoever guards the heap; called by the pool. A slab belongs to one stream's bin set; the slots that other
 * streams have used too are parked behind the slab's stamp until they are seen done.
 */
#include "heap/internal.h"

uint64_t cmi_class_bytes(unsigned class_index)
{
    if (class_index < 4) {
        return (class_index + 1) * (uint64_t)CMI_UNIT;
    }
    unsigned row = class_index / 4 + 1;
    return ((UINT64_C(5) + class_index % 4) << (row - 2)) * CMI_UNIT;
}

uint64_t cmi_class_slab_bytes(unsigned class_index)
{
    return cmi_round_up(cmi_max_u64(8 * cmi_class_bytes(class_index), CMI_SLAB_UNIT), CMI_SLAB_UNIT);
}

static bool has_room(const cmi_slab *slab) { return slab->free_count > 0; }

static bool is_unused(const cmi_slab *slab) { return slab->free_count + slab->parked_count == slab->slot_count; }

static cmi_block_id *room_root(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    return &heap->binsets[block->binset]->slab_root[heap->slabs[block->slab]->class_index];
}

/* Slabs without a live slot are found by cmi_heap_flush_slabs; entries of slabs that were filled again do no harm. */
static void note_empty(cmi_heap *heap, uint32_t number)
{
    cmi_slab *slab = heap->slabs[number];
    if (!slab->listed_empty) {
        slab->listed_empty = 1;
        cmi_ids_push(&heap->empty_slabs, number);
    }
}

static void set_use(cmi_slab *slab, unsigned slot, cmi_slot_use use)
{
    atomic_store_explicit(&slab->use[slot], (uint8_t)use, memory_order_relaxed);
}

static cmi_slab *take_slot(cmi_heap *heap, uint32_t binset, unsigned class_index, cmi_slot_use use, uint64_t *offset)
{
    cmi_block_id *root = &heap->binsets[binset]->slab_root[class_index];
    cmi_block_id id = cmi_tree_lowest(heap, *root);
    if (!id) {
        return NULL;
    }
    cmi_slab *slab = heap->slabs[cmi_heap_block(heap, id)->slab];
    unsigned word = slab->free_bits[0] ? 0 : 1;
    unsigned slot = word * 64 + cmi_lowest_bit(slab->free_bits[word]);
    slab->free_bits[word] &= slab->free_bits[word] - 1;
    set_use(slab, slot, use);
    slab->free_count--;
    if (!has_room(slab)) {
        cmi_tree_remove(heap, root, id);
    }
    *offset = slab->base + (uint64_t)slot * slab->slot_bytes;
    return slab;
}

bool cmi_heap_slot_alloc(cmi_heap *heap, uint32_t binset, unsigned class_index, uint64_t *offset)
{
    return take_slot(heap, binset, class_index, CMI_SLOT_LIVE, offset) != NULL;
}

bool cmi_heap_slot_cache(cmi_heap *heap, uint32_t binset, unsigned class_index, uint64_t *offset, cmi_slab **slab)
{
    *slab = take_slot(heap, binset, class_index, CMI_SLOT_CACHED, offset);
    return *slab != NULL;
}

bool cmi_heap_make_slab(cmi_heap *heap, cmi_block_id id, uint32_t binset, unsigned class_index)
{
    uint32_t number = 0;
    cmi_block *block = cmi_heap_block(heap, id);
    if (!cmi_index_slab_room(heap, block->offset, block->bytes)) {
        return false;
    }
    if (heap->unused_slabs.count) {
        number = heap->unused_slabs.ids[heap->unused_slabs.count - 1];
    } else {
        /* Room in every list for every slab there is, so that freeing never needs host memory. */
        uint32_t count = heap->slab_count + 2;
        if (!cmi_ids_reserve(&heap->unused_slabs, count) || !cmi_ids_reserve(&heap->empty_slabs, count) ||
            !cmi_ids_reserve(&heap->parked_slabs, count)) {
            return false;
        }
        if (heap->slab_count + 1 >= heap->slab_room) {
            uint32_t room = heap->slab_room ? heap->slab_room * 2 : 64;
            cmi_slab **grown = cmi_meta_resize(heap->slabs, heap->slab_room * sizeof *grown, room * sizeof *grown);
            if (!grown) {
                return false;
            }
            heap->slabs = grown;
            heap->slab_room = room;
        }
        cmi_slab *fresh = cmi_meta_alloc(sizeof *fresh);
        if (!fresh) {
            return false;
        }
        number = ++heap->slab_count;
        heap->slabs[number] = fresh;
        cmi_ids_push(&heap->unused_slabs, number);
    }
    heap->unused_slabs.count--;
    uint32_t slot_bytes = (uint32_t)cmi_class_bytes(class_index);
    unsigned slots = (unsigned)(cmi_class_slab_bytes(class_index) / slot_bytes);
    cmi_slab *slab = heap->slabs[number];
    uint8_t listed_empty = slab->listed_empty, listed_parked = slab->listed_parked; /* a stale entry may still name this number */
    *slab = (cmi_slab){.base = block->offset,
                       .binset = binset,
                       .slot_bytes = slot_bytes,
                       .per_unit = cmi_div_up(UINT64_C(1) << 32, slot_bytes / CMI_UNIT),
                       .block = id,
                       .class_index = (uint8_t)class_index,
                       .slot_count = (uint8_t)slots,
                       .free_count = (uint8_t)slots,
                       .listed_empty = listed_empty,
                       .listed_parked = listed_parked,
                       .stamp = CMI_HEAP_NO_STAMP};
    for (unsigned word = 0; word < CMI_ARRAY_LENGTH(slab->free_bits); word++) {
        unsigned here = slots > word * 64 ? slots - word * 64 : 0;
        slab->free_bits[word] = here >= 64 ? UINT64_MAX : (UINT64_C(1) << here) - 1;
    }
    /* Slots that are never handed out keep the time of the stream's own last use; other memory is the caller's to date. */
    const cmi_binset *from = heap->binsets[block->binset], *set = heap->binsets[binset];
    if (from && from->kind == CMI_BINSET_STREAM && set->kind == CMI_BINSET_STREAM && from->key == set->key) {
        slab->ticket = block->ticket;
    }
    block->kind = CMI_BLOCK_SLAB;
    block->binset = binset;
    block->slab = number;
    block->ticket = 0;
    block->stamp = CMI_HEAP_NO_STAMP;
    heap->binsets[binset]->slab_blocks++;
    cmi_tree_insert(heap, room_root(heap, id), id);
    note_empty(heap, number);
    cmi_index_set_slab(heap, block->offset, block->bytes, slab);
    return true;
}

cmi_slab *cmi_heap_slot_of(const cmi_heap *heap, cmi_block_id id, uint64_t offset, unsigned *slot, bool *exact)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    cmi_slab *slab = heap->slabs[block->slab];
    *slot = cmi_slab_slot(slab, offset);
    *exact = slab->base + (uint64_t)*slot * slab->slot_bytes == offset && *slot < slab->slot_count;
    if (*slot >= slab->slot_count) {
        *slot = slab->slot_count; /* the unused tail of the slab */
    }
    return slab;
}

/* The record goes; the block is BUSY and its stamps are the caller's. */
static void forget_slab(cmi_heap *heap, cmi_block_id id)
{
    cmi_block *block = cmi_heap_block(heap, id);
    cmi_slab *slab = heap->slabs[block->slab];
    if (has_room(slab)) {
        cmi_tree_remove(heap, room_root(heap, id), id);
    }
    cmi_index_set_slab(heap, block->offset, block->bytes, NULL);
    heap->binsets[block->binset]->slab_blocks--;
    cmi_meta_free(slab->uses, slab->slot_count * sizeof *slab->uses);
    slab->uses = NULL;
    slab->block = CMI_NO_BLOCK;
    cmi_ids_push(&heap->unused_slabs, block->slab);
    block->slab = 0;
    block->kind = CMI_BLOCK_BUSY;
}

/* A slab without live slots becomes free space behind the stamp of all its frees. */
static void release_slab(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    uint32_t binset = block->binset;
    const cmi_binset *set = heap->binsets[binset];
    cmi_slab *slab = heap->slabs[block->slab];
    uint64_t ticket = slab->ticket;
    uint32_t stamp = slab->stamp;
    forget_slab(heap, id);
    if (stamp != CMI_HEAP_NO_STAMP) {
        if (set->kind == CMI_BINSET_STREAM) {
            stamp = heap->source.join_stamps(heap->source.user, stamp, heap->source.stamp_of(heap->source.user, set->key, ticket));
        }
        cmi_heap_make_free(heap, id, set->mixed, ticket, stamp);
    } else {
        cmi_heap_make_free(heap, id, binset, ticket, CMI_HEAP_NO_STAMP);
    }
}

static void settle(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    if (heap->slabs[block->slab]->parked_count == 0 && *room_root(heap, id) == id && !block->left && !block->right) {
        /* The only slab of its class and stream: kept, so that one block that comes and goes costs no list work. */
        note_empty(heap, block->slab);
    } else {
        release_slab(heap, id);
    }
}

void cmi_heap_slot_free(cmi_heap *heap, cmi_block_id id, unsigned slot, uint64_t ticket, uint32_t stamp)
{
    cmi_block *block = cmi_heap_block(heap, id);
    cmi_slab *slab = heap->slabs[block->slab];
    if (stamp == CMI_HEAP_NO_STAMP || CMI_MUTATION(PARKED_SLOT_SERVED)) {
        set_use(slab, slot, CMI_SLOT_FREE);
        slab->free_bits[slot / 64] |= UINT64_C(1) << slot % 64;
        slab->ticket = cmi_max_u64(slab->ticket, ticket);
        if (slab->free_count++ == 0) {
            cmi_tree_insert(heap, room_root(heap, id), id);
        }
    } else {
        set_use(slab, slot, CMI_SLOT_PARKED);
        slab->parked_count++;
        slab->stamp = slab->stamp == CMI_HEAP_NO_STAMP ? stamp : heap->source.join_stamps(heap->source.user, slab->stamp, stamp);
        if (!slab->listed_parked) {
            slab->listed_parked = 1;
            cmi_ids_push(&heap->parked_slabs, block->slab);
        }
    }
    if (is_unused(slab)) {
        settle(heap, id);
    }
}

bool cmi_heap_slab_is_unused(const cmi_slab *slab) { return is_unused(slab); }

void cmi_heap_slot_note(cmi_slab *slab, unsigned slot) { set_use(slab, slot, CMI_SLOT_NOTED); }

void cmi_heap_settle_slab(cmi_heap *heap, const cmi_slab *slab) { settle(heap, slab->block); }

void cmi_heap_slot_uncache(cmi_heap *heap, cmi_slab *slab, uint64_t offset, uint64_t ticket)
{
    unsigned slot = cmi_slab_slot(slab, offset);
    set_use(slab, slot, CMI_SLOT_FREE);
    slab->free_bits[slot / 64] |= UINT64_C(1) << slot % 64;
    slab->ticket = cmi_max_u64(slab->ticket, ticket);
    if (slab->free_count++ == 0) {
        cmi_tree_insert(heap, room_root(heap, slab->block), slab->block);
    }
    if (slab->free_count == slab->slot_count) {
        note_empty(heap, cmi_heap_block(heap, slab->block)->slab);
    }
}

void cmi_heap_unpark(cmi_heap *heap, cmi_block_id id)
{
    cmi_slab *slab = heap->slabs[cmi_heap_block(heap, id)->slab];
    if (!slab->parked_count) {
        return;
    }
    heap->source.drop_stamp(heap->source.user, slab->stamp);
    slab->stamp = CMI_HEAP_NO_STAMP;
    bool had_room = has_room(slab);
    for (unsigned slot = 0; slot < slab->slot_count; slot++) {
        if (slab->use[slot] == CMI_SLOT_PARKED) {
            set_use(slab, slot, CMI_SLOT_FREE);
            slab->free_bits[slot / 64] |= UINT64_C(1) << slot % 64;
            slab->free_count++;
        }
    }
    slab->parked_count = 0;
    if (!had_room && has_room(slab)) {
        cmi_tree_insert(heap, room_root(heap, id), id);
    }
    if (slab->free_count == slab->slot_count) {
        note_empty(heap, cmi_heap_block(heap, id)->slab);
    }
}

void cmi_heap_flush_slabs(cmi_heap *heap)
{
    while (heap->empty_slabs.count) {
        cmi_slab *slab = heap->slabs[heap->empty_slabs.ids[heap->empty_slabs.count - 1]];
        if (slab->block && slab->free_count == slab->slot_count) {
            if (!cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS)) {
                return;
            }
            release_slab(heap, slab->block);
        }
        slab->listed_empty = 0;
        heap->empty_slabs.count--;
    }
}

bool cmi_heap_dissolve_slab(cmi_heap *heap, cmi_block_id id)
{
    cmi_slab *slab = heap->slabs[cmi_heap_block(heap, id)->slab];
    /* A slot takes one cut, and two more where it makes whole pages free. */
    if (!cmi_heap_reserve_records(heap, slab->slot_count * 3u + CMI_HEAP_STEP_RECORDS)) {
        return false;
    }
    cmi_slab copy = *slab;
    uint32_t uses[CMI_SLAB_SLOTS];
    for (unsigned slot = 0; slot < copy.slot_count; slot++) {
        uses[slot] = copy.uses ? copy.uses[slot] : CMI_HEAP_NO_STAMP;
    }
    uint32_t binset = cmi_heap_block(heap, id)->binset;
    uint32_t mixed = heap->binsets[binset]->mixed;
    uint64_t bytes = cmi_class_bytes(copy.class_index);
    forget_slab(heap, id);
    uint64_t at = cmi_heap_block(heap, id)->offset, end = at + cmi_heap_block(heap, id)->bytes;
    for (unsigned slot = 0; at < end; slot++) {
        /* The tail behind the last slot is free like a slot that was never used. */
        bool tail = slot >= copy.slot_count;
        unsigned use = tail ? CMI_SLOT_FREE : copy.use[slot];
        uint64_t length = tail ? end - at : bytes;
        cmi_block_id rest = length < end - at ? cmi_block_split(heap, id, at + length) : 0;
        if (use == CMI_SLOT_LIVE || use == CMI_SLOT_CACHED || use == CMI_SLOT_NOTED) {
            cmi_heap_make_live(heap, id, binset, length, 0, 0);
            cmi_heap_block(heap, id)->stamp = uses[slot];
        } else if (use == CMI_SLOT_PARKED) {
            cmi_heap_make_free(heap, id, mixed, 0, heap->source.copy_stamp(heap->source.user, copy.stamp));
        } else {
            cmi_heap_make_free(heap, id, binset, copy.ticket, CMI_HEAP_NO_STAMP);
        }
        at += length;
        id = rest;
    }
    if (copy.stamp != CMI_HEAP_NO_STAMP) {
        heap->source.drop_stamp(heap->source.user, copy.stamp);
    }
    return true;
}

const char *cmi_slab_validate(const cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    if (!block->slab || block->slab > heap->slab_count || heap->slabs[block->slab]->block != id) {
        return "slab block and slab record do not name each other";
    }
    if (!block->binset || block->binset > heap->binset_count || !heap->binsets[block->binset]) {
        return "slab without a bin set";
    }
    const cmi_slab *slab = heap->slabs[block->slab];
    if (slab->class_index >= CMI_CLASS_COUNT || block->bytes != cmi_class_slab_bytes(slab->class_index) ||
        slab->slot_count != block->bytes / cmi_class_bytes(slab->class_index)) {
        return "slab of the wrong length";
    }
    if (slab->base != block->offset || slab->binset != block->binset || slab->slot_bytes != cmi_class_bytes(slab->class_index)) {
        return "slab record and block differ";
    }
    for (uint64_t at = block->offset; at < block->offset + block->bytes; at += CMI_SLAB_UNIT) {
        if (cmi_slab_at(&cmi_index_space(heap, at)->slabs, at) != slab) {
            return "slab map differs from the slabs";
        }
    }
    unsigned free_slots = 0, parked = 0;
    for (unsigned slot = 0; slot < CMI_SLAB_SLOTS; slot++) {
        bool bit = slab->free_bits[slot / 64] >> slot % 64 & 1;
        if (bit != (slot < slab->slot_count && slab->use[slot] == CMI_SLOT_FREE)) {
            return "slot state and free bit differ";
        }
        if (slot >= slab->slot_count) {
            continue;
        }
        free_slots += slab->use[slot] == CMI_SLOT_FREE;
        parked += slab->use[slot] == CMI_SLOT_PARKED;
    }
    if (free_slots != slab->free_count || parked != slab->parked_count) {
        return "slot counts differ from slot states";
    }
    if ((parked > 0) != (slab->stamp != CMI_HEAP_NO_STAMP)) {
        return "parked slots without a stamp, or a stamp without parked slots";
    }
    const cmi_binset *set = heap->binsets[block->binset];
    bool in_tree = cmi_tree_at_least(heap, set->slab_root[slab->class_index], block->bytes, block->offset) == id;
    if (in_tree != has_room(slab)) {
        return "slab with room outside its tree, or a full one inside";
    }
    return NULL;
}
