/*
 * Walks over a few blocks of many: the free ones of one bin set, those whose page has moved on, and those that may hold a whole page. The
 * last two go by bitmaps of pages, whose bits are set when something becomes so and cleared when a walk finds that it is so no longer: a
 * block that is handed out writes nothing here. Owns those maps; guarded by whoever guards the heap; called by index.c, the searches of
 * window.c and the pool.
 */
#include "heap/internal.h"

cmi_block_id cmi_heap_next_free(const cmi_heap *heap, uint32_t binset, cmi_block_id after)
{
    const cmi_binset *set = heap->binsets[binset];
    unsigned row = 0, column = 0;
    uint32_t columns = set->column_map[0];
    if (after) {
        const cmi_block *block = cmi_heap_block(heap, after);
        cmi_bin_position(block->bytes, &row, &column);
        cmi_block_id next = cmi_tree_at_least(heap, set->root[row][column], block->bytes, block->offset + 1);
        if (next) {
            return next;
        }
        columns = set->column_map[row] & ~((2u << column) - 1);
    }
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

/* ---- bits of pages ------------------------------------------------------------------------------ */

/* Bits [low, high) of word `word`. */
static uint64_t bits_within(uint32_t word, uint32_t low, uint32_t high)
{
    uint32_t first = word * 64;
    uint64_t bits = low > first ? ~UINT64_C(0) << (low - first) : ~UINT64_C(0);
    return high - first < 64 ? bits & ((UINT64_C(1) << (high - first)) - 1) : bits;
}

static void change_bits(uint64_t *map, uint32_t low, uint32_t high, bool set)
{
    for (uint32_t word = low / 64; low < high && word <= (high - 1) / 64; word++) {
        uint64_t bits = bits_within(word, low, high);
        map[word] = set ? map[word] | bits : map[word] & ~bits;
    }
}

bool cmi_walk_has_bits(const uint64_t *map, uint32_t low, uint32_t high)
{
    for (uint32_t word = low / 64; low < high && word <= (high - 1) / 64; word++) {
        uint64_t bits = bits_within(word, low, high);
        if ((map[word] & bits) != bits) {
            return false;
        }
    }
    return true;
}

static uint32_t page_of(const cmi_heap *heap, const cmi_space *space, uint64_t offset)
{
    return (uint32_t)((offset - space->base) >> heap->page_shift);
}

/* The first page that a block has no part of. */
static uint32_t page_behind(const cmi_heap *heap, const cmi_space *space, const cmi_block *block)
{
    return page_of(heap, space, block->offset + block->bytes - 1) + 1;
}

/* ---- blocks whose page has moved on ------------------------------------------------------------- */

void cmi_walk_note_stale(const cmi_heap *heap, const cmi_space *space, const cmi_block *block)
{
    uint32_t page = page_of(heap, space, block->offset);
    space->stale_map[page / 64] |= UINT64_C(1) << page % 64;
}

cmi_block_id cmi_heap_next_stale(const cmi_heap *heap, uint32_t number, cmi_block_id from)
{
    const cmi_space *space = &heap->spaces[number];
    uint32_t page = page_of(heap, space, cmi_heap_block(heap, from)->offset), words = (uint32_t)cmi_div_up(space->page_count, 64);
    for (uint32_t word = page / 64; word < words; word++) {
        uint64_t bits = space->stale_map[word] & (word == page / 64 ? ~UINT64_C(0) << page % 64 : ~UINT64_C(0));
        for (; bits; bits &= bits - 1) {
            cmi_block_id id = space->start[word * 64 + cmi_lowest_bit(bits)]; /* such blocks begin with a page */
            if (id && cmi_heap_block(heap, id)->kind == CMI_BLOCK_STALE) {
                return id;
            }
            space->stale_map[word] &= ~(bits & -bits);
        }
    }
    return 0;
}

/* ---- pages that are idle as a whole ------------------------------------------------------------- */

static bool is_free(const cmi_heap *heap, cmi_block_id id) { return id && cmi_heap_block(heap, id)->kind == CMI_BLOCK_FREE; }

static void note_seam(const cmi_heap *heap, const cmi_space *space, const cmi_block *block)
{
    uint32_t page = page_of(heap, space, block->offset);
    space->seam_map[page / 64] |= UINT64_C(1) << page % 64;
}

void cmi_walk_note_free(const cmi_heap *heap, cmi_space *space, const cmi_block *block)
{
    uint64_t low = block->offset - space->base, page = heap->source.page_bytes;
    bool before = is_free(heap, block->prev), next = is_free(heap, block->next);
    if (before) {
        note_seam(heap, space, block);
    }
    if (next) {
        note_seam(heap, space, cmi_heap_block(heap, block->next));
    }
    if (block->bytes < page && !before && !next) { /* most are */
        return;
    }
    /* Pages that it has a part of may be free with what is beside it. */
    uint32_t first = (uint32_t)((low + (before ? 0 : page - 1)) >> heap->page_shift);
    uint32_t behind = (uint32_t)((low + block->bytes + (next ? page - 1 : 0)) >> heap->page_shift);
    if (first < behind) {
        change_bits(space->free_map, first, behind, true);
        space->free_end = behind > space->free_end ? behind : space->free_end;
    }
}

void cmi_walk_note_hole(const cmi_heap *heap, const cmi_space *space, const cmi_block *block)
{
    uint32_t first = page_of(heap, space, block->offset);
    change_bits(space->hole_map, first, first + (uint32_t)(block->bytes >> heap->page_shift), true);
}

/* Pages that may be free (or, with holes, free or a hole): 64 of them. Copies have no maps: there all may be. */
static uint64_t idle_word(const cmi_space *space, uint32_t word, bool holes)
{
    return !space->free_map ? ~UINT64_C(0) : space->free_map[word] | (holes ? space->hole_map[word] : 0);
}

/* The first page from `page` to `end` whose bit is (or, with not, is not) set; else end. */
static uint32_t next_bit(const cmi_space *space, uint32_t page, uint32_t end, bool holes, bool not )
{
    uint64_t flip = not ? ~UINT64_C(0) : 0;
    for (uint32_t word = page / 64; page < end; page = ++word * 64) {
        uint64_t bits = (idle_word(space, word, holes) ^ flip) & ~UINT64_C(0) << page % 64;
        if (bits) {
            return (uint32_t)cmi_min_u64(end, word * 64 + cmi_lowest_bit(bits));
        }
    }
    return end;
}

cmi_block_id cmi_walk_next_whole(const cmi_heap *heap, uint32_t number, cmi_block_id from, uint64_t pages, bool holes)
{
    const cmi_space *space = &heap->spaces[number];
    if (!from) {
        return 0;
    }
    uint32_t start = page_of(heap, space, cmi_heap_block(heap, from)->offset), page = start;
    uint32_t end = holes || !space->free_map ? space->page_count : space->free_end;
    while ((page = next_bit(space, page, end, holes, false)) < end) {
        uint32_t stop = (uint32_t)cmi_min_u64(end, page + pages);
        uint32_t broken = next_bit(space, page, stop, holes, true);
        if (broken < page + pages) { /* too few in a row */
            page = broken;
            continue;
        }
        cmi_block_id id = page == start ? from : cmi_heap_find(heap, space->base + ((uint64_t)page << heap->page_shift));
        const cmi_block *block = cmi_heap_block(heap, id);
        bool hole = block->kind == CMI_BLOCK_HOLE;
        if (block->kind == CMI_BLOCK_FREE || (hole && holes)) {
            return id;
        }
        /* Nothing of it is free any more, and no page that it has a part of. */
        uint32_t low = page_of(heap, space, block->offset);
        page = page_behind(heap, space, block);
        if (space->free_map) {
            change_bits(space->free_map, low, page, false);
        }
        if (space->free_map && !hole) {
            change_bits(space->hole_map, low, page, false);
        }
    }
    return 0;
}

/* ---- where idle blocks meet --------------------------------------------------------------------- */

/* Of the blocks from one on that begin in a page, the first FREE one behind another FREE one. */
static cmi_block_id seam_in_page(const cmi_heap *heap, const cmi_space *space, uint32_t page, cmi_block_id id)
{
    for (; id && page_of(heap, space, cmi_heap_block(heap, id)->offset) == page; id = cmi_heap_block(heap, id)->next) {
        if (is_free(heap, id) && is_free(heap, cmi_heap_block(heap, id)->prev)) {
            return id;
        }
    }
    return 0;
}

cmi_block_id cmi_walk_next_seam(const cmi_heap *heap, uint32_t number, cmi_block_id from)
{
    const cmi_space *space = &heap->spaces[number];
    uint32_t words = (uint32_t)cmi_div_up(space->page_count, 64);
    uint32_t start = from ? page_of(heap, space, cmi_heap_block(heap, from)->offset) : space->page_count, page = start;
    for (uint32_t word = page / 64; word < words; word = page / 64) {
        uint64_t seam = space->seam_map[word], bits = (seam | space->hole_map[word]) & ~UINT64_C(0) << page % 64;
        if (!bits) {
            page = (word + 1) * 64;
            continue;
        }
        page = word * 64 + cmi_lowest_bit(bits);
        uint64_t bit = UINT64_C(1) << page % 64;
        if (seam & bit) {
            cmi_block_id first = page == start ? from : space->start[page], found = seam_in_page(heap, space, page, first);
            if (found) {
                return found;
            }
            space->seam_map[word] &= first == space->start[page] ? ~bit : ~UINT64_C(0);
        }
        if (space->hole_map[word] & bit) {
            cmi_block_id id = page == start ? from : cmi_heap_find(heap, space->base + ((uint64_t)page << heap->page_shift));
            if (cmi_heap_block(heap, id)->kind == CMI_BLOCK_HOLE) {
                return id;
            }
            /* No page that it has a part of is a hole. */
            change_bits(space->hole_map, page, page_behind(heap, space, cmi_heap_block(heap, id)), false);
        }
        page++;
    }
    return 0;
}
