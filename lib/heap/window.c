/*
 * Windows and idle pages: where a large request could go if pages were brought there, and which pages may leave their place. Reads blocks
 * only; guarded by whoever guards the heap; called by the pool's reclaim ladder, never on the hot path. Searches go from one group of whole
 * idle pages to the next, so that they do not grow with the blocks that are handed out, nor with what is free between those.
 */
#include "heap/internal.h"

/* A usable stretch of one block. */
typedef struct piece {
    uint64_t low, high;
    bool hole;
} piece;

/* How a free block may be used, by its bin set and, where that does not say all, by itself. */
static unsigned use_of(const cmi_heap *heap, const uint8_t *use, const cmi_block *block)
{
    unsigned how = block->kind == CMI_BLOCK_FREE ? use[block->binset] : CMI_USE_NOT;
    if (how & CMI_USE_ASK) {
        how = heap->source.may_use(heap->source.user, heap->binsets[block->binset]->key, block) ? how - CMI_USE_ASK : CMI_USE_NOT;
    }
    return how;
}

static bool usable_piece(const cmi_heap *heap, const uint8_t *use, const cmi_block *block, piece *out)
{
    *out = (piece){block->offset, block->offset + block->bytes, block->kind == CMI_BLOCK_HOLE};
    if (out->hole) {
        return true;
    }
    unsigned how = use_of(heap, use, block);
    if (how == CMI_USE_NOT) {
        return false;
    }
    if (how == CMI_USE_PAGES) {
        out->low = cmi_round_up(out->low, heap->source.page_bytes);
        out->high = cmi_round_down(out->high, heap->source.page_bytes);
    }
    return out->low < out->high;
}

static uint64_t hole_pages(const cmi_heap *heap, const piece *p) { return p->hole ? (p->high - p->low) >> heap->page_shift : 0; }

/* A stretch of neighbouring usable pieces: its first block and where it ends. */
typedef struct stretch {
    cmi_block_id first, behind; /* behind: the block after the last piece's, or 0 */
    uint64_t low, high;
} stretch;

static stretch stretch_from(const cmi_heap *heap, const uint8_t *use, cmi_block_id id)
{
    piece p;
    usable_piece(heap, use, cmi_heap_block(heap, id), &p);
    stretch run = {id, cmi_heap_block(heap, id)->next, p.low, p.high};
    while (run.behind && usable_piece(heap, use, cmi_heap_block(heap, run.behind), &p) && p.low == run.high) {
        run.high = p.high;
        run.behind = cmi_heap_block(heap, run.behind)->next;
    }
    return run;
}

static void offer(cmi_window *best, bool *found, uint64_t offset, uint64_t pages)
{
    if (!*found || pages < best->pages || (pages == best->pages && offset < best->offset)) {
        *found = true;
        best->offset = offset;
        best->pages = (uint32_t)pages;
    }
}

/* The piece a window begins in and the piece it ends in, and the pages of all holes from one to the other. */
typedef struct fingers {
    cmi_block_id near_id, far_id;
    piece near_piece, far_piece;
    uint64_t pages;
} fingers;

static uint64_t pages_of_window(const cmi_heap *heap, const fingers *at, uint64_t low, uint64_t high)
{
    uint64_t page = heap->source.page_bytes;
    uint64_t before = at->near_piece.hole ? (cmi_round_down(low, page) - at->near_piece.low) >> heap->page_shift : 0;
    uint64_t behind = at->far_piece.hole ? (at->far_piece.high - cmi_round_up(high, page)) >> heap->page_shift : 0;
    return at->pages - before - behind;
}

/*
 * For each pair of pieces the first and the last window that begins in one and ends in the other. Between those two the pages needed
 * only fall (it leaves a hole), only rise (it enters one), or do both in step, so one of the two is best.
 */
static void search_stretch(const cmi_heap *heap, const uint8_t *use, const stretch *run, uint64_t bytes, uint64_t align, cmi_window *best,
                           bool *found)
{
    fingers at = {.near_id = run->first, .far_id = run->first};
    usable_piece(heap, use, cmi_heap_block(heap, run->first), &at.near_piece);
    at.far_piece = at.near_piece;
    at.pages = hole_pages(heap, &at.far_piece);
    for (;;) {
        const piece *near = &at.near_piece, *far = &at.far_piece;
        if (far->high - near->low >= bytes) {
            uint64_t low = far->low - near->low > bytes ? far->low - bytes : near->low;
            uint64_t first = cmi_round_up(low, align), last = cmi_round_down(cmi_min_u64(near->high, far->high - bytes), align);
            if (first <= last) {
                offer(best, found, first, pages_of_window(heap, &at, first, first + bytes));
                offer(best, found, last, pages_of_window(heap, &at, last, last + bytes));
            }
        }
        if (far->high - near->high >= bytes) {
            at.pages -= hole_pages(heap, near);
            at.near_id = cmi_heap_block(heap, at.near_id)->next;
            usable_piece(heap, use, cmi_heap_block(heap, at.near_id), &at.near_piece);
        } else {
            at.far_id = cmi_heap_block(heap, at.far_id)->next;
            if (at.far_id == run->behind) {
                return;
            }
            usable_piece(heap, use, cmi_heap_block(heap, at.far_id), &at.far_piece);
            at.pages += hole_pages(heap, far);
        }
    }
}

/* The first piece of the stretch that a piece is in. */
static cmi_block_id first_of_stretch(const cmi_heap *heap, const uint8_t *use, cmi_block_id id)
{
    piece p, before;
    usable_piece(heap, use, cmi_heap_block(heap, id), &p);
    cmi_block_id prev;
    while ((prev = cmi_heap_block(heap, id)->prev) != 0 && usable_piece(heap, use, cmi_heap_block(heap, prev), &before) &&
           before.high == p.low) {
        p = before;
        id = prev;
    }
    return id;
}

/* Search the stretch that a block is in, if it is usable. Returns the block behind the stretch. */
static cmi_block_id search_around(const cmi_heap *heap, const uint8_t *use, cmi_block_id id, uint64_t bytes, uint64_t align,
                                  cmi_window *best, bool *found)
{
    piece p;
    if (!usable_piece(heap, use, cmi_heap_block(heap, id), &p)) {
        return cmi_heap_block(heap, id)->next;
    }
    stretch run = stretch_from(heap, use, first_of_stretch(heap, use, id));
    if (run.high - run.low >= bytes) {
        search_stretch(heap, use, &run, bytes, align, best, found);
    }
    return run.behind;
}

bool cmi_heap_find_window(const cmi_heap *heap, const uint8_t *use, uint64_t bytes, uint64_t align, cmi_window *window)
{
    /* A window has parts of at most two pages, less than all of them; the others are idle as a whole, and only where so many lie together
     * is there anything to look at. A short one needs no whole page: it lies in one free block, or where several or a hole meet. */
    uint64_t page = heap->source.page_bytes, parts = 2 * (page - CMI_UNIT);
    uint64_t whole = bytes > parts ? cmi_div_up(bytes - parts, page) : 0;
    bool found = false;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        cmi_block_id id = heap->spaces[i].first;
        while ((id = whole ? cmi_walk_next_whole(heap, i, id, whole, true) : cmi_walk_next_seam(heap, i, id)) != 0) {
            id = search_around(heap, use, id, bytes, align, window, &found);
        }
    }
    for (uint32_t set = 1; set <= heap->binset_count && !whole; set++) {
        bool usable = heap->binsets[set] && heap->binsets[set]->free_blocks && use[set] != CMI_USE_NOT;
        cmi_block_id id = usable ? cmi_heap_best_fit(heap, set, bytes, CMI_UNIT) : 0;
        for (; id; id = cmi_heap_next_free(heap, set, id)) {
            search_around(heap, use, id, bytes, align, window, &found);
        }
    }
    return found;
}

/* The first block of the free and usable ones that lie together with one. */
static cmi_block_id first_of_run(const cmi_heap *heap, const uint8_t *use, cmi_block_id id)
{
    cmi_block_id prev;
    while ((prev = cmi_heap_block(heap, id)->prev) != 0 && use_of(heap, use, cmi_heap_block(heap, prev)) != CMI_USE_NOT) {
        id = prev;
    }
    return id;
}

uint32_t cmi_heap_idle_runs(const cmi_heap *heap, const uint8_t *use, uint64_t skip, uint64_t skip_bytes, cmi_idle_run *runs, uint32_t room,
                            uint64_t *pages)
{
    uint64_t page = heap->source.page_bytes, total = 0;
    uint64_t skip_low = cmi_round_down(skip, page), skip_high = cmi_round_up(skip + skip_bytes, page);
    uint32_t count = 0;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = heap->spaces[i].first; (id = cmi_walk_next_whole(heap, i, id, 1, false)) != 0;) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (use_of(heap, use, block) == CMI_USE_NOT) {
                id = block->next;
                continue;
            }
            block = cmi_heap_block(heap, first_of_run(heap, use, id));
            bool hole_before = block->prev && cmi_heap_block(heap, block->prev)->kind == CMI_BLOCK_HOLE;
            uint64_t low = CMI_MUTATION(PAGE_NOT_WHOLLY_FREE) ? cmi_round_down(block->offset, page) : cmi_round_up(block->offset, page);
            uint64_t end = block->offset + block->bytes;
            hole_before = hole_before && low == block->offset;
            for (id = block->next; id; id = block->next) {
                block = cmi_heap_block(heap, id);
                if (use_of(heap, use, block) == CMI_USE_NOT) {
                    break;
                }
                end = block->offset + block->bytes;
            }
            uint64_t high = cmi_round_down(end, page);
            bool hole_behind = id && high == end && cmi_heap_block(heap, id)->kind == CMI_BLOCK_HOLE;
            /* At most two parts are left of a run when the pages of the window are taken out. */
            uint64_t parts[2][2] = {{low, skip_bytes ? cmi_min_u64(high, skip_low) : high},
                                    {skip_bytes ? cmi_max_u64(low, skip_high) : high, high}};
            for (unsigned part = 0; part < 2; part++) {
                if (parts[part][0] >= parts[part][1]) {
                    continue;
                }
                uint64_t run_pages = (parts[part][1] - parts[part][0]) >> heap->page_shift;
                if (count < room) {
                    runs[count] = (cmi_idle_run){parts[part][0], (uint32_t)run_pages, hole_before && parts[part][0] == low,
                                                 hole_behind && parts[part][1] == high};
                }
                count++;
                total += run_pages;
            }
        }
    }
    if (pages) {
        *pages = total;
    }
    return count;
}

uint64_t cmi_heap_longest_free(const cmi_heap *heap, const uint8_t *use)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        uint64_t run = 0, end = 0;
        for (cmi_block_id id = heap->spaces[i].first; (id = cmi_heap_next_idle(heap, i, id)) != 0; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            run = block->offset == end ? run : 0;
            run = use_of(heap, use, block) != CMI_USE_NOT ? run + block->bytes : 0;
            end = block->offset + block->bytes;
            longest = cmi_max_u64(longest, run);
        }
    }
    return longest;
}
