/*
 * Bin sets: the free blocks that one kind of request may use, by size. Rows are doublings of CMI_UNIT, columns sixteenths of a doubling;
 * two bitmaps lead in constant time to the first bin whose blocks all fit, a tree in each bin to the best fit inside. Owns the bin sets;
 * guarded by whoever guards the heap; called by block.c and the pool.
 */
#include "heap/internal.h"

enum { COLUMN_BITS = 4 };
_Static_assert(1 << COLUMN_BITS == CMI_BIN_COLUMNS, "a column for each pattern of so many bits");

void cmi_bin_position(uint64_t bytes, unsigned *row, unsigned *column)
{
    uint64_t units = bytes / CMI_UNIT;
    *row = cmi_log2_floor(units);
    *column = (unsigned)(*row >= COLUMN_BITS ? units >> (*row - COLUMN_BITS) : units << (COLUMN_BITS - *row)) & (CMI_BIN_COLUMNS - 1);
}

void cmi_bin_insert(cmi_heap *heap, cmi_block_id id)
{
    heap->changes++;
    cmi_block *block = cmi_heap_block(heap, id);
    cmi_binset *set = heap->binsets[block->binset];
    unsigned row, column;
    cmi_bin_position(block->bytes, &row, &column);
    cmi_block_id *root = &set->root[row][column];
    if (*root) {
        cmi_tree_insert(heap, root, id);
    } else {
        *root = id;
        block->left = block->right = 0;
        set->row_map |= UINT64_C(1) << row;
        set->column_map[row] |= (uint16_t)(1u << column);
    }
    set->free_bytes += block->bytes;
    set->free_blocks++;
    cmi_index_note_idle(heap, id);
}

void cmi_bin_remove(cmi_heap *heap, cmi_block_id id)
{
    heap->changes++;
    cmi_block *block = cmi_heap_block(heap, id);
    cmi_binset *set = heap->binsets[block->binset];
    unsigned row, column;
    cmi_bin_position(block->bytes, &row, &column);
    cmi_block_id *root = &set->root[row][column];
    if (*root != id || block->left | block->right) {
        cmi_tree_remove(heap, root, id);
    } else { /* the last of its bin */
        *root = 0;
        set->column_map[row] &= (uint16_t) ~(1u << column);
        if (!set->column_map[row]) {
            set->row_map &= ~(UINT64_C(1) << row);
        }
    }
    set->free_bytes -= block->bytes;
    set->free_blocks--;
}

/* Smallest entry of the set that is not below (bytes, offset). */
static cmi_block_id at_least(const cmi_heap *heap, const cmi_binset *set, uint64_t bytes, uint64_t offset)
{
    unsigned row, column;
    cmi_bin_position(bytes, &row, &column);
    if (row >= set->rows || !(set->row_map >> row)) {
        return 0;
    }
    cmi_block_id found = cmi_tree_at_least(heap, set->root[row][column], bytes, offset);
    if (found) {
        return found;
    }
    uint32_t columns = set->column_map[row] & ~((2u << column) - 1);
    if (!columns) {
        uint64_t rows = set->row_map & ~((UINT64_C(2) << row) - 1);
        if (!rows) {
            return 0;
        }
        row = cmi_lowest_bit(rows);
        columns = set->column_map[row];
    }
    return cmi_tree_lowest(heap, set->root[row][cmi_lowest_bit(columns)]);
}

cmi_block_id cmi_heap_best_fit(const cmi_heap *heap, uint32_t binset, uint64_t bytes, uint64_t align)
{
    const cmi_binset *set = heap->binsets[binset];
    cmi_block_id found = at_least(heap, set, bytes, 0);
    if (align <= CMI_UNIT) {
        return found;
    }
    /* A few blocks in order of size; where none of them happens to lie right, one so large that it must; without one, the others. */
    for (unsigned tries = 0; found; tries++) {
        const cmi_block *block = cmi_heap_block(heap, found);
        if (cmi_round_up(block->offset, align) + bytes <= block->offset + block->bytes) {
            return found;
        }
        cmi_block_id roomy = tries == 15 ? at_least(heap, set, bytes + align - CMI_UNIT, 0) : 0;
        found = roomy ? roomy : at_least(heap, set, block->bytes, block->offset + 1);
    }
    return 0;
}

/* With its bins, which come behind it. */
static size_t bytes_with(unsigned rows) { return sizeof(cmi_binset) + rows * sizeof *((cmi_binset *)NULL)->root; }

void cmi_binset_free(cmi_binset *set)
{
    if (set) {
        cmi_meta_free(set, bytes_with(set->rows));
    }
}

uint32_t cmi_heap_add_binset(cmi_heap *heap, uint32_t owner, uint32_t key, cmi_binset_kind kind, bool small, uint32_t partner,
                             uint32_t mixed)
{
    unsigned rows = small ? heap->page_shift + 1 - cmi_log2_floor(CMI_UNIT) : CMI_BIN_ROWS;
    cmi_binset *set = cmi_meta_alloc(bytes_with(rows));
    if (!set) {
        return CMI_NO_BINSET;
    }
    set->rows = (uint16_t)rows;
    uint32_t number = 0;
    if (heap->unused_binsets.count) {
        number = heap->unused_binsets.ids[--heap->unused_binsets.count];
    } else {
        if (heap->binset_count + 1 >= heap->binset_room) {
            uint32_t room = heap->binset_room ? heap->binset_room * 2 : 16;
            cmi_binset **grown = cmi_meta_resize(heap->binsets, heap->binset_room * sizeof *grown, room * sizeof *grown);
            if (!grown) {
                cmi_binset_free(set);
                return CMI_NO_BINSET;
            }
            heap->binsets = grown;
            heap->binset_room = room;
        }
        if (!cmi_ids_reserve(&heap->unused_binsets, heap->binset_count + 1)) {
            cmi_binset_free(set);
            return CMI_NO_BINSET;
        }
        number = ++heap->binset_count;
    }
    set->owner = owner;
    set->key = key;
    set->kind = (uint8_t)kind;
    set->small = small;
    set->partner = partner;
    set->mixed = mixed ? mixed : number;
    heap->binsets[number] = set;
    return number;
}

bool cmi_binset_is_empty(const cmi_binset *set) { return set->free_blocks == 0 && set->slab_blocks == 0 && set->live_blocks == 0; }

void cmi_heap_remove_binset(cmi_heap *heap, uint32_t binset)
{
    cmi_binset_free(heap->binsets[binset]);
    heap->binsets[binset] = NULL;
    cmi_ids_push(&heap->unused_binsets, binset);
}
