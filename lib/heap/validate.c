/*
 * The heap's validator: every structure against every other. Reads only; called by tests and, in builds with CMI_VALIDATE, by the pool
 * after each mutation.
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
    bool whole_pages = block->kind == CMI_BLOCK_HOLE || block->kind == CMI_BLOCK_STALE;
    if (whole_pages && (block->offset % page || block->bytes % page)) {
        return "hole or stale block that is not whole pages";
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
    if (cmi_tree_at_least(heap, set->root[row][column], block->bytes, block->offset) != id) {
        return "free block outside its bin";
    }
    if (!(set->row_map >> row & 1) || !(set->column_map[row] >> column & 1)) {
        return "bin with blocks and no bit";
    }
    if ((set->kind == CMI_BINSET_MIXED) != (block->stamp != CMI_HEAP_NO_STAMP)) {
        return "stamp on a block of one stream, or none on a mixed one";
    }
    if (prev && cmi_heap_block(heap, prev)->kind == CMI_BLOCK_FREE && cmi_heap_block(heap, prev)->binset == block->binset) {
        uint64_t edge = block->offset % heap->source.page_bytes;
        if (!set->small || edge != 0) {
            return "free neighbours of one bin set that were not joined";
        }
    }
    uint64_t low = cmi_round_up(block->offset, heap->source.page_bytes);
    if (set->small && low + heap->source.page_bytes <= block->offset + block->bytes) {
        return "whole page kept by small blocks";
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
        if (space->start[page] != want || (space->start_map[page / 64] >> page % 64 & 1) != (want != 0)) {
            return "address index differs from the list";
        }
        while (id && cmi_heap_block(heap, id)->offset < high) {
            id = cmi_heap_block(heap, id)->next;
        }
    }
    return NULL;
}

typedef struct tally {
    uint64_t free_bytes;
    uint32_t blocks, free_blocks, slab_blocks;
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
        if (fault) {
            return fault;
        }
        sum->blocks++;
        at += block->bytes;
        prev = id;
    }
    return at == space->base + space->bytes ? check_index(heap, space) : "list of a range ends early";
}

const char *cmi_heap_validate(const cmi_heap *heap)
{
    tally found = {0};
    for (uint32_t i = 0; i < heap->space_count; i++) {
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
        kept.free_bytes += set->free_bytes;
        kept.free_blocks += set->free_blocks;
        kept.slab_blocks += set->slab_blocks;
        for (unsigned row = 0; row < CMI_BIN_ROWS; row++) {
            for (unsigned column = 0; column < CMI_BIN_COLUMNS; column++) {
                if ((set->root[row][column] != 0) != (set->column_map[row] >> column & 1)) {
                    return "bin bit without blocks";
                }
            }
            if ((set->column_map[row] != 0) != (set->row_map >> row & 1)) {
                return "bin row bit differs from its columns";
            }
        }
    }
    if (kept.free_bytes != found.free_bytes || kept.free_blocks != found.free_blocks || kept.slab_blocks != found.slab_blocks) {
        return "bin set figures differ from the blocks";
    }
    return NULL;
}
