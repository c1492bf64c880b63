/*
 * The heap's validator: every structure against every other. Reads only; guarded by whoever guards the heap; called by tests and, in
 * builds with CMI_VALIDATE, by the pool after each mutation.
 */
#include "heap/internal.h"

static const char *check_links(const cmi_heap *heap, const cmi_space *space, cmi_block_id id, uint64_t at, cmi_block_id prev)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    uint64_t page = heap->source.page_bytes;
    if (block->kind == CMI_BLOCK_UNUSED) {
        return "unused record in the list of a range";
    }
    if (block->offset != at || block->prev != prev) {
        return "gap, overlap or broken link in the list of a range";
    }
    if (!block->bytes || block->bytes % CMI_UNIT || block->offset % CMI_UNIT || block->bytes > space->base + space->bytes - at) {
        return "block of a bad length";
    }
    if (block->kind != CMI_BLOCK_LIVE && block->lease) {
        return "lease of a block that is not live";
    }
    bool whole_pages = block->kind == CMI_BLOCK_HOLE || block->kind == CMI_BLOCK_STALE;
    if (whole_pages && (block->offset % page || block->bytes % page)) {
        return "hole or stale block that is not whole pages";
    }
    if (block->kind > CMI_BLOCK_SLAB || (block->kind == CMI_BLOCK_SLAB) != (block->slab != 0)) {
        return "block of no known kind, or a slab number on one that is no slab";
    }
    uint32_t first = (uint32_t)((at - space->base) >> heap->page_shift);
    if (block->kind == CMI_BLOCK_STALE && !cmi_walk_has_bits(space->stale_map, first, first + 1)) {
        return "stale block that walks step over";
    }
    if (prev && whole_pages && cmi_heap_block(heap, prev)->kind == block->kind) {
        return "neighbours of one kind that should be one block";
    }
    return NULL;
}

static const char *check_free(const cmi_heap *heap, cmi_block_id id, cmi_block_id prev)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    if (!block->binset || block->binset > heap->binset_count || !heap->binsets[block->binset]) {
        return "free block without a bin set";
    }
    const cmi_binset *set = heap->binsets[block->binset];
    unsigned row, column;
    cmi_bin_position(block->bytes, &row, &column);
    if (row >= set->rows || cmi_tree_at_least(heap, set->root[row][column], block->bytes, block->offset) != id) {
        return "free block outside its bin";
    }
    if ((set->kind == CMI_BINSET_MIXED) != (block->stamp != CMI_HEAP_NO_STAMP)) {
        return "stamp on a block of one stream, or none on a mixed one";
    }
    if (prev && cmi_heap_block(heap, prev)->kind == CMI_BLOCK_FREE && cmi_heap_block(heap, prev)->binset == block->binset) {
        return "free neighbours of one bin set that were not joined";
    }
    uint64_t low = cmi_round_up(block->offset, heap->source.page_bytes);
    if (set->small && low + heap->source.page_bytes <= block->offset + block->bytes) {
        return "whole page kept by small blocks";
    }
    return NULL;
}

/* Every page that is free as a whole, by whatever blocks, and every page of a hole has its bit. */
static const char *check_maps(const cmi_heap *heap, const cmi_space *space)
{
    uint64_t low = 0, rest = heap->source.page_bytes - 1;
    for (cmi_block_id id = space->first; id; id = cmi_heap_block(heap, id)->next) {
        const cmi_block *block = cmi_heap_block(heap, id);
        bool free = block->kind == CMI_BLOCK_FREE;
        bool before = free && block->prev && cmi_heap_block(heap, block->prev)->kind == CMI_BLOCK_FREE;
        uint32_t begin = (uint32_t)((block->offset - space->base) >> heap->page_shift);
        if (before && !cmi_walk_has_bits(space->seam_map, begin, begin + 1)) {
            return "free neighbours that walks step over";
        }
        low = before ? low : block->offset - space->base; /* of free neighbours together */
        uint32_t first = (uint32_t)((low + rest) >> heap->page_shift);
        uint32_t end = (uint32_t)((block->offset + block->bytes - space->base) >> heap->page_shift);
        if (free && first < end && (end > space->free_end || !cmi_walk_has_bits(space->free_map, first, end))) {
            return "free page that walks step over";
        }
        if (block->kind == CMI_BLOCK_HOLE && !cmi_walk_has_bits(space->hole_map, first, end)) {
            return "hole that walks step over";
        }
    }
    return NULL;
}

static const char *check_index(const cmi_heap *heap, const cmi_space *space)
{
    cmi_block_id id = space->first;
    for (uint32_t page = 0; page < space->page_count; page++) {
        uint64_t low = space->base + ((uint64_t)page << heap->page_shift), high = low + heap->source.page_bytes;
        cmi_block_id want = 0;
        if (id && cmi_heap_block(heap, id)->offset < high) {
            want = id;
        }
        bool idle = false;
        for (cmi_block_id at = want; at && cmi_heap_block(heap, at)->offset < high && !idle; at = cmi_heap_block(heap, at)->next) {
            idle = cmi_heap_block(heap, at)->kind == CMI_BLOCK_FREE || cmi_heap_block(heap, at)->kind == CMI_BLOCK_HOLE;
        }
        if (idle && !(space->idle_map[page / 64] >> page % 64 & 1)) {
            return "free block or hole that walks step over";
        }
        if (space->start[page] != want || (space->start_map[page / 64] >> page % 64 & 1) != (want != 0)) {
            return "address index differs from the list";
        }
        while (id && cmi_heap_block(heap, id)->offset < high) {
            id = cmi_heap_block(heap, id)->next;
        }
    }
    return NULL;
}

/* ---- trees: what hangs in a bin or in a slab root is in order, of the right kind, and as many as the bin set says ---- */

typedef struct tree_walk {
    const cmi_heap *heap;
    uint32_t binset;
    uint8_t kind;
    unsigned class_index; /* of slabs */
    uint64_t bytes;
    uint32_t blocks;
    cmi_block_id last; /* the node visited before */
    const char *fault;
} tree_walk;

static void walk_tree(tree_walk *walk, cmi_block_id id)
{
    if (!id || walk->fault) {
        return;
    }
    if (id >= walk->heap->block_room || walk->blocks >= walk->heap->block_count) {
        walk->fault = "tree with a loop or a number that is no block";
        return;
    }
    walk->blocks++;
    const cmi_block *block = cmi_heap_block(walk->heap, id);
    walk_tree(walk, block->left);
    const cmi_block *last = cmi_heap_block(walk->heap, walk->last);
    bool after = !walk->last || last->bytes < block->bytes || (last->bytes == block->bytes && last->offset < block->offset);
    bool same = block->kind == walk->kind && block->binset == walk->binset &&
                (block->kind != CMI_BLOCK_SLAB || walk->heap->slabs[block->slab]->class_index == walk->class_index);
    if (!walk->fault && (!same || !after)) {
        walk->fault = "tree out of order, or with a block that does not belong there";
    }
    walk->last = id;
    walk->bytes += block->bytes;
    walk_tree(walk, block->right);
}

/* Every block was found in its tree before (check_free, cmi_slab_validate); equal counts say that nothing else is in the trees. */
static const char *check_binset(const cmi_heap *heap, uint32_t number)
{
    const cmi_binset *set = heap->binsets[number];
    if (set->rows > CMI_BIN_ROWS || set->row_map >> set->rows) {
        return "bin row bit behind the last row";
    }
    tree_walk walk = {.heap = heap, .binset = number, .kind = CMI_BLOCK_FREE};
    for (unsigned row = 0; row < set->rows; row++) {
        for (unsigned column = 0; column < CMI_BIN_COLUMNS; column++) {
            if ((set->root[row][column] != 0) != (set->column_map[row] >> column & 1)) {
                return "bin bit differs from whether the bin has blocks";
            }
            walk.last = 0;
            walk_tree(&walk, set->root[row][column]);
        }
        if ((set->column_map[row] != 0) != (set->row_map >> row & 1)) {
            return "bin row bit differs from its columns";
        }
    }
    if (walk.fault) {
        return walk.fault;
    }
    if (walk.blocks != set->free_blocks || walk.bytes != set->free_bytes) {
        return "free figures of a bin set differ from its bins";
    }
    walk = (tree_walk){.heap = heap, .binset = number, .kind = CMI_BLOCK_SLAB};
    for (unsigned class_index = 0; class_index < CMI_CLASS_COUNT; class_index++) {
        walk.last = 0;
        walk.class_index = class_index;
        walk_tree(&walk, set->slab_root[class_index]);
    }
    return walk.fault;
}

/* ---- slab lists: each slab that has to be found through a list is in it, once ------------------- */

static const char *check_slab_lists(const cmi_heap *heap)
{
    uint32_t unused = 0, empty = 0, parked = 0;
    for (uint32_t i = 1; i <= heap->slab_count; i++) {
        const cmi_slab *slab = heap->slabs[i];
        unused += !slab->block;
        empty += slab->listed_empty;
        parked += slab->listed_parked;
        if (slab->block && slab->free_count == slab->slot_count && !slab->listed_empty) {
            return "empty slab that no list names";
        }
        if (slab->block && slab->parked_count && !slab->listed_parked) {
            return "parked slots that no list names";
        }
    }
    if (unused != heap->unused_slabs.count || empty != heap->empty_slabs.count || parked != heap->parked_slabs.count) {
        return "slab lists differ from the marks on the slabs";
    }
    for (uint32_t i = 0; i < heap->unused_slabs.count; i++) {
        if (heap->slabs[heap->unused_slabs.ids[i]]->block) {
            return "slab in use in the list of unused ones";
        }
    }
    for (uint32_t i = 0; i < heap->empty_slabs.count; i++) {
        if (!heap->slabs[heap->empty_slabs.ids[i]]->listed_empty) {
            return "slab in the list of empty ones without its mark";
        }
    }
    for (uint32_t i = 0; i < heap->parked_slabs.count; i++) {
        if (!heap->slabs[heap->parked_slabs.ids[i]]->listed_parked) {
            return "slab in the list of parked ones without its mark";
        }
    }
    return NULL;
}

static const char *check_unused_records(const cmi_heap *heap)
{
    uint32_t count = 0;
    for (cmi_block_id id = heap->unused_block; id; id = cmi_heap_block(heap, id)->next) {
        if (cmi_heap_block(heap, id)->kind != CMI_BLOCK_UNUSED || ++count > heap->unused_count) {
            return "list of unused records is broken";
        }
    }
    uint32_t all = heap->block_room;
    return count == heap->unused_count && (!all || count + heap->block_count == all - 1) ? NULL : "records lost or counted twice";
}

typedef struct tally {
    uint64_t free_bytes;
    uint32_t blocks, free_blocks, slab_blocks, live_blocks;
} tally;

static const char *check_space(const cmi_heap *heap, const cmi_space *space, tally *sum)
{
    uint64_t at = space->base;
    cmi_block_id prev = 0;
    for (cmi_block_id id = space->first; id; id = cmi_heap_block(heap, id)->next) {
        const cmi_block *block = cmi_heap_block(heap, id);
        const char *fault = check_links(heap, space, id, at, prev);
        if (!fault && block->kind == CMI_BLOCK_FREE) {
            fault = check_free(heap, id, prev);
            sum->free_bytes += block->bytes;
            sum->free_blocks++;
        } else if (!fault && block->kind == CMI_BLOCK_SLAB) {
            fault = cmi_slab_validate(heap, id);
            sum->slab_blocks++;
        }
        sum->live_blocks += block->kind == CMI_BLOCK_LIVE;
        if (fault) {
            return fault;
        }
        sum->blocks++;
        at += block->bytes;
        prev = id;
    }
    if (at != space->base + space->bytes) {
        return "list of a range ends early";
    }
    const char *fault = check_maps(heap, space);
    return fault ? fault : check_index(heap, space);
}

const char *cmi_heap_validate(const cmi_heap *heap)
{
    tally found = {0};
    uint64_t end = 0;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        if (heap->spaces[i].base < end) {
            return "ranges overlap or are out of order";
        }
        end = heap->spaces[i].base + heap->spaces[i].bytes;
        const char *fault = check_space(heap, &heap->spaces[i], &found);
        if (fault) {
            return fault;
        }
    }
    if (found.blocks != heap->block_count) {
        return "records in use that are in no range";
    }
    tally kept = {0};
    for (uint32_t i = 1; i <= heap->binset_count; i++) {
        const cmi_binset *set = heap->binsets[i];
        if (!set) {
            continue;
        }
        const char *fault = check_binset(heap, i);
        if (fault) {
            return fault;
        }
        kept.free_bytes += set->free_bytes;
        kept.free_blocks += set->free_blocks;
        kept.slab_blocks += set->slab_blocks;
        kept.live_blocks += set->live_blocks;
    }
    if (kept.free_bytes != found.free_bytes || kept.free_blocks != found.free_blocks || kept.slab_blocks != found.slab_blocks ||
        kept.live_blocks != found.live_blocks) {
        return "bin set figures differ from the blocks";
    }
    const char *fault = check_slab_lists(heap);
    return fault ? fault : check_unused_records(heap);
}
