/*
 * Ranges of addresses and the way from an offset to its block: per page the first block that starts in it, a bitmap of the pages that have
 * one, and others of those that walks need not look at (see walk.c). Owns the spaces; guarded by whoever guards the heap; called by block.c
 * and the pool. A lookup of a block's own start walks the few blocks of one page; it never depends on how many blocks there are.
 */
#include "heap/internal.h"

cmi_space *cmi_index_space(const cmi_heap *heap, uint64_t offset)
{
    uint32_t low = 0, high = heap->space_count;
    if (high && offset - heap->spaces[0].base < heap->spaces[0].bytes) { /* most pools have one range */
        return &heap->spaces[0];
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        cmi_space *space = &heap->spaces[middle];
        if (offset < space->base) {
            high = middle;
        } else if (offset - space->base >= space->bytes) {
            low = middle + 1;
        } else {
            return space;
        }
    }
    return NULL;
}

void cmi_index_add(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    cmi_space *space = cmi_index_space(heap, block->offset);
    uint32_t page = (uint32_t)((block->offset - space->base) >> heap->page_shift);
    cmi_block_id first = space->start[page];
    if (!first || block->offset < cmi_heap_block(heap, first)->offset) {
        space->start[page] = id;
        space->start_map[page / 64] |= UINT64_C(1) << page % 64;
    }
    if (block->kind == CMI_BLOCK_STALE) { /* what is behind the cut of one */
        cmi_walk_note_stale(heap, space, block);
    }
}

void cmi_index_remove(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    cmi_space *space = cmi_index_space(heap, block->offset);
    uint32_t page = (uint32_t)((block->offset - space->base) >> heap->page_shift);
    if (space->start[page] != id) {
        return;
    }
    cmi_block_id next = block->next;
    if (next && (cmi_heap_block(heap, next)->offset - space->base) >> heap->page_shift == page) {
        space->start[page] = next;
    } else {
        space->start[page] = 0;
        space->start_map[page / 64] &= ~(UINT64_C(1) << page % 64);
    }
}

/* ---- idle blocks, by address -------------------------------------------------------------------- */

void cmi_index_note_idle(cmi_heap *heap, cmi_block_id id)
{
    uint64_t offset = cmi_heap_block(heap, id)->offset;
    cmi_space *space = cmi_index_space(heap, offset);
    uint64_t page = (offset - space->base) >> heap->page_shift;
    space->idle_map[page / 64] |= UINT64_C(1) << page % 64;
    if (cmi_heap_block(heap, id)->kind == CMI_BLOCK_FREE) {
        cmi_walk_note_free(heap, space, cmi_heap_block(heap, id));
    }
}

void cmi_index_note_hole(cmi_heap *heap, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    cmi_index_note_idle(heap, id);
    cmi_walk_note_hole(heap, cmi_index_space(heap, block->offset), block);
}

/* The first block of the first page from `page` on that may have an idle one. */
static cmi_block_id first_of_idle_page(const cmi_space *space, uint32_t page)
{
    uint32_t word = page / 64, words = (uint32_t)cmi_div_up(space->page_count, 64);
    if (page >= space->page_count) {
        return 0;
    }
    uint64_t bits = space->idle_map[word] & space->start_map[word] & ~UINT64_C(0) << page % 64;
    while (!bits && ++word < words) {
        bits = space->idle_map[word] & space->start_map[word];
    }
    return bits ? space->start[word * 64 + cmi_lowest_bit(bits)] : 0;
}

cmi_block_id cmi_heap_next_idle_page(const cmi_heap *heap, uint32_t number, cmi_block_id id)
{
    const cmi_space *space = &heap->spaces[number];
    while (id) {
        const cmi_block *block = cmi_heap_block(heap, id);
        if (block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_HOLE) {
            return id;
        }
        if (!space->idle_map) {
            id = block->next;
            continue;
        }
        uint32_t page = (uint32_t)((block->offset - space->base) >> heap->page_shift);
        uint64_t bit = UINT64_C(1) << page % 64, end = space->base + ((uint64_t)(page + 1) << heap->page_shift);
        bool whole = space->start[page] == id;
        while (space->idle_map[page / 64] & bit) {
            id = block->next;
            block = id ? cmi_heap_block(heap, id) : NULL;
            if (!block || block->offset >= end) { /* the rest of the page has none */
                space->idle_map[page / 64] &= whole ? ~bit : ~UINT64_C(0);
                break;
            }
            if (block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_HOLE) {
                return id;
            }
        }
        id = first_of_idle_page(space, page + 1);
    }
    return 0;
}

cmi_block_id cmi_heap_find(const cmi_heap *heap, uint64_t offset)
{
    const cmi_space *space = cmi_index_space(heap, offset);
    if (!space) {
        return 0;
    }
    uint32_t page = (uint32_t)((offset - space->base) >> heap->page_shift);
    cmi_block_id id = space->start[page];
    if (!id || cmi_heap_block(heap, id)->offset > offset) {
        /* The block starts in an earlier page: the last page before this one that has a start, and there the last start. */
        uint32_t word = page / 64;
        uint64_t bits = space->start_map[word] & ((UINT64_C(1) << page % 64) - 1);
        while (!bits) {
            bits = space->start_map[--word]; /* the first block of a space starts in page 0, so this ends */
        }
        id = space->start[word * 64 + cmi_log2_floor(bits)];
    }
    while (cmi_heap_block(heap, id)->offset + cmi_heap_block(heap, id)->bytes <= offset) {
        id = cmi_heap_block(heap, id)->next;
    }
    return id;
}

static size_t unit_bytes(const cmi_heap *heap) { return (heap->source.page_bytes / CMI_SLAB_UNIT) * sizeof(cmi_slab_entry); }

const cmi_slab_map *cmi_heap_slab_map(const cmi_heap *heap, uint64_t offset)
{
    const cmi_space *space = cmi_index_space(heap, offset);
    return space ? &space->slabs : NULL;
}

static _Atomic(cmi_slab_entry *) *page_of(const cmi_heap *heap, uint64_t offset)
{
    const cmi_slab_map *map = cmi_heap_slab_map(heap, offset);
    return &map->pages[(offset - map->base) >> heap->page_shift];
}

bool cmi_index_slab_room(cmi_heap *heap, uint64_t offset, uint64_t bytes)
{
    uint64_t first = cmi_round_down(offset, heap->source.page_bytes);
    for (uint64_t at = first; at < offset + bytes; at += heap->source.page_bytes) {
        _Atomic(cmi_slab_entry *) *page = page_of(heap, at);
        if (!atomic_load_explicit(page, memory_order_relaxed)) {
            cmi_slab_entry *units = cmi_meta_alloc(unit_bytes(heap));
            if (!units) {
                return false;
            }
            atomic_store_explicit(page, units, memory_order_release);
        }
    }
    return true;
}

void cmi_index_set_slab(cmi_heap *heap, uint64_t offset, uint64_t bytes, cmi_slab *slab)
{
    for (uint64_t at = offset; at < offset + bytes; at += CMI_SLAB_UNIT) {
        cmi_slab_entry *units = atomic_load_explicit(page_of(heap, at), memory_order_relaxed);
        atomic_store_explicit(&units[(at & (heap->source.page_bytes - 1)) / CMI_SLAB_UNIT], slab, memory_order_release);
    }
}

static size_t map_bytes(uint32_t pages) { return cmi_div_up(pages, 64) * sizeof(uint64_t); }

/* The bitmaps of a space. */
enum { MAPS = 6 };
static uint64_t **map_of(cmi_space *space, unsigned i)
{
    uint64_t **maps[MAPS] = {&space->start_map, &space->idle_map, &space->stale_map, &space->free_map, &space->hole_map, &space->seam_map};
    return maps[i];
}

static void free_tables(const cmi_heap *heap, cmi_space *space)
{
    for (uint32_t page = 0; space->slabs.pages && page < space->page_count; page++) {
        cmi_meta_free(atomic_load_explicit(&space->slabs.pages[page], memory_order_relaxed), unit_bytes(heap));
    }
    cmi_meta_free(space->slabs.pages, space->page_count * sizeof *space->slabs.pages);
    cmi_meta_free(space->start, space->page_count * sizeof *space->start);
    for (unsigned i = 0; i < MAPS; i++) {
        cmi_meta_free(*map_of(space, i), map_bytes(space->page_count));
    }
}

bool cmi_heap_add_space(cmi_heap *heap, uint64_t base, uint64_t bytes)
{
    if (bytes > CMI_MAX_BYTES || !cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS)) {
        return false;
    }
    if (heap->space_count == heap->space_room) {
        uint32_t room = heap->space_room ? heap->space_room * 2 : 4;
        cmi_space *grown = cmi_meta_resize(heap->spaces, heap->space_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return false;
        }
        heap->spaces = grown;
        heap->space_room = room;
    }
    cmi_space space = {.base = base, .bytes = bytes, .page_count = (uint32_t)(bytes >> heap->page_shift)};
    space.start = cmi_meta_alloc(space.page_count * sizeof *space.start);
    bool made = space.start != NULL;
    for (unsigned i = 0; i < MAPS && made; i++) {
        *map_of(&space, i) = cmi_meta_alloc(map_bytes(space.page_count));
        made = *map_of(&space, i) != NULL;
    }
    space.slabs = (cmi_slab_map){.base = base, .bytes = bytes, .page_shift = heap->page_shift};
    space.slabs.pages = made ? cmi_meta_alloc(space.page_count * sizeof *space.slabs.pages) : NULL;
    if (!space.slabs.pages) {
        free_tables(heap, &space);
        return false;
    }
    space.first = cmi_block_new(heap);
    cmi_block *hole = cmi_heap_block(heap, space.first);
    hole->offset = base;
    hole->bytes = bytes;
    hole->kind = CMI_BLOCK_HOLE;
    uint32_t at = heap->space_count++;
    for (; at > 0 && heap->spaces[at - 1].base > base; at--) {
        heap->spaces[at] = heap->spaces[at - 1];
    }
    heap->spaces[at] = space;
    cmi_index_add(heap, space.first);
    cmi_index_note_hole(heap, space.first);
    return true;
}

bool cmi_heap_space_is_hole(const cmi_heap *heap, uint64_t base)
{
    const cmi_space *space = cmi_index_space(heap, base);
    const cmi_block *block = cmi_heap_block(heap, space->first);
    return block->kind == CMI_BLOCK_HOLE && block->bytes == space->bytes;
}

void cmi_heap_remove_space(cmi_heap *heap, uint64_t base)
{
    cmi_space *space = cmi_index_space(heap, base);
    cmi_block_retire(heap, space->first);
    free_tables(heap, space);
    uint32_t at = (uint32_t)(space - heap->spaces);
    heap->space_count--;
    for (; at < heap->space_count; at++) {
        heap->spaces[at] = heap->spaces[at + 1];
    }
}
