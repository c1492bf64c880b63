/*
 * What random programs do to the blocks of a small heap: pages arrive and leave, bytes are handed out, freed, moved between bin sets, and
 * windows are built; each told to the model as well. Slabs and the program itself are in test_heap_program.h.
 */
#ifndef TEST_HEAP_OPERATIONS_H
#define TEST_HEAP_OPERATIONS_H

#include "test_heap_model.h"

/* The bin set of an owner, made at first use; 0 when host memory fails. which: SET_DONE, SET_MIXED, or SET_MIXED + stream. */
static inline uint32_t set_of(model *m, unsigned owner, unsigned small, unsigned which)
{
    uint32_t *number = &m->set[owner][small][which];
    if (*number) {
        return *number;
    }
    uint32_t mixed = which == SET_MIXED ? 0 : set_of(m, owner, small, SET_MIXED);
    uint32_t partner = small ? set_of(m, owner, 0, which) : 0;
    if ((which != SET_MIXED && !mixed) || (small && !partner)) {
        return 0;
    }
    cmi_binset_kind kind = which == SET_DONE ? CMI_BINSET_DONE : which == SET_MIXED ? CMI_BINSET_MIXED : CMI_BINSET_STREAM;
    return *number = cmi_heap_add_binset(&m->heap, owner, which > SET_MIXED ? which - SET_MIXED : 0, kind, small, partner, mixed);
}

static inline need random_need(model *m)
{
    need what = {{0}};
    for (unsigned i = 1; i < STAMP_STREAMS; i++) {
        what.upto[i] = draw(m, 2) ? m->ticket + draw(m, 3) : 0;
    }
    return what;
}

/* Make a BUSY block free in a random kind of bin set of the owner; the bin sets of the owner exist. */
static inline void free_somehow(model *m, cmi_block_id id, unsigned owner, unsigned small)
{
    uint64_t offset = cmi_heap_block(&m->heap, id)->offset, bytes = cmi_heap_block(&m->heap, id)->bytes;
    unsigned which = draw(m, SETS);
    uint32_t set = set_of(m, owner, small, which), stamp = CMI_HEAP_NO_STAMP;
    if (!set) { /* no host memory for a bin set: the one that every owner has */
        which = SET_DONE;
        set = m->set[owner][small][SET_DONE];
    }
    need what = {{0}};
    uint64_t ticket = ++m->ticket;
    m->loose |= small;
    if (which == SET_MIXED) {
        what = random_need(m);
        stamp = stamps_make(&m->stamps, what);
    } else if (which > SET_MIXED) {
        what = need_of_stream(which - SET_MIXED, ticket);
    }
    cmi_heap_make_free(&m->heap, id, set, which == SET_DONE ? 0 : ticket, stamp);
    model_free(m, offset, bytes, owner, what);
}

static inline cmi_block_id random_block(model *m, cmi_block_kind kind)
{
    uint32_t count = 0, wanted;
    for (unsigned pass = 0; pass < 2; pass++) {
        wanted = pass ? draw(m, count) : UINT32_MAX;
        uint32_t at = 0;
        for (uint32_t i = 0; i < m->heap.space_count; i++) {
            for (cmi_block_id id = cmi_heap_first_block(&m->heap, i); id; id = cmi_heap_block(&m->heap, id)->next) {
                if (cmi_heap_block(&m->heap, id)->kind == kind && at++ == wanted) {
                    return id;
                }
            }
        }
        if (!at) {
            return 0;
        }
        count = at;
    }
    return 0;
}

/* Some pages out of a block that is whole pages long. */
static inline cmi_block_id cut_pages(model *m, cmi_block_id id)
{
    const cmi_block *block = cmi_heap_block(&m->heap, id);
    uint32_t pages = (uint32_t)(block->bytes / PAGE_BYTES), count = 1 + draw(m, pages < 8 ? pages : 8), first = draw(m, pages - count + 1);
    return cmi_heap_cut(&m->heap, id, block->offset + (uint64_t)first * PAGE_BYTES, (uint64_t)count * PAGE_BYTES);
}

/* Pages arrive in a hole. */
static inline void do_map(model *m)
{
    cmi_block_id id = random_block(m, CMI_BLOCK_HOLE);
    if (id) {
        id = cut_pages(m, id);
        cmi_heap_block(&m->heap, id)->kind = CMI_BLOCK_BUSY;
        free_somehow(m, id, draw(m, OWNERS), 0);
    }
}

static inline void do_settle(model *m)
{
    cmi_block_id id = random_block(m, CMI_BLOCK_STALE);
    if (id) {
        id = cut_pages(m, id);
        model_set(m, cmi_heap_block(&m->heap, id)->offset, cmi_heap_block(&m->heap, id)->bytes, (unit){.state = UNIT_HOLE});
        cmi_heap_make_hole(&m->heap, id);
    }
}

/* Take [low, high) out of a FREE block; what the bytes need goes to *given, the stamp is given up. */
static inline cmi_block_id take_part(model *m, cmi_block_id id, uint64_t low, uint64_t high, need *given)
{
    need before = block_need(m, cmi_heap_block(&m->heap, id));
    id = cmi_heap_take(&m->heap, id, low, high - low);
    EXPECT(m, need_covers(before, block_need(m, cmi_heap_block(&m->heap, id))), "taken piece needs more than its block");
    *given = need_join(*given, block_need(m, cmi_heap_block(&m->heap, id)));
    if (cmi_heap_block(&m->heap, id)->stamp != CMI_HEAP_NO_STAMP) {
        stamps_drop(&m->stamps, cmi_heap_block(&m->heap, id)->stamp);
        cmi_heap_block(&m->heap, id)->stamp = CMI_HEAP_NO_STAMP;
    }
    return id;
}

static inline uint64_t random_bytes(model *m)
{
    static const uint32_t most[] = {4, 16, 64, 130, 400, 1500};
    return (1 + draw(m, most[draw(m, CMI_ARRAY_LENGTH(most))])) * (uint64_t)CMI_UNIT;
}

static inline uint64_t random_align(model *m) { return draw(m, 3) ? CMI_UNIT : (uint64_t)CMI_UNIT << draw(m, 10); }

static inline void do_alloc(model *m)
{
    unsigned owner = draw(m, OWNERS), small = draw(m, 4) == 0, which = draw(m, SETS);
    uint32_t set = set_of(m, owner, small, which);
    if (!set || m->live_count >= LIVES / 2) {
        return;
    }
    uint64_t bytes = random_bytes(m), align = random_align(m);
    check_best_fit(m, set, bytes, align);
    cmi_block_id id = cmi_heap_best_fit(&m->heap, set, bytes, align);
    if (!id || m->fault) {
        return;
    }
    uint64_t offset = cmi_round_up(cmi_heap_block(&m->heap, id)->offset, align);
    need given = {{0}};
    id = take_part(m, id, offset, offset + bytes, &given);
    uint64_t requested = bytes - draw(m, CMI_UNIT);
    cmi_heap_make_live(&m->heap, id, set, requested, 7, 1);
    EXPECT(m, cmi_heap_block(&m->heap, id)->bytes - cmi_heap_block(&m->heap, id)->slack == requested, "slack of a live block");
    model_take(m, offset, bytes, owner, given, false);
}

static inline void forget_live(model *m, uint32_t at) { m->lives[at] = m->lives[--m->live_count]; }

/* Free memory is seen done, turns out to wait for one stream only or for several, or goes to another owner. */
static inline void do_rebin(model *m)
{
    cmi_block_id id = random_block(m, CMI_BLOCK_FREE);
    if (!id) {
        return;
    }
    cmi_block *block = cmi_heap_block(&m->heap, id);
    const cmi_binset *set = cmi_heap_binset(&m->heap, block->binset);
    uint64_t offset = block->offset, bytes = block->bytes;
    unsigned owner = set->owner, which = draw(m, SETS);
    need what = block_need(m, block);
    uint32_t stamp = CMI_HEAP_NO_STAMP;
    uint64_t ticket = 0;
    if (draw(m, 4) == 0) { /* as it is, to another owner */
        owner = draw(m, OWNERS);
        which = set->kind == CMI_BINSET_DONE ? SET_DONE : set->kind == CMI_BINSET_MIXED ? SET_MIXED : SET_MIXED + set->key;
        stamp = block->stamp;
        ticket = block->ticket;
    } else if (which == SET_DONE) {
        what = (need){{0}};
    } else if (which == SET_MIXED) {
        what = need_join(what, random_need(m));
    } else {
        ticket = draw(m, m->ticket + 1);
        what = need_of_stream(which - SET_MIXED, ticket);
    }
    uint32_t to = set_of(m, owner, set->small, which);
    if (!to) {
        return;
    }
    if (which == SET_MIXED && stamp == CMI_HEAP_NO_STAMP) {
        stamp = stamps_make(&m->stamps, what);
    }
    m->loose |= set->small;
    cmi_heap_rebin(&m->heap, id, to, ticket, stamp);
    model_free(m, offset, bytes, owner, what);
}

static inline void random_use(model *m, uint8_t *use)
{
    uint32_t style = draw(m, 256);
    for (uint32_t i = 0; i <= m->heap.binset_count; i++) {
        use[i] = style % 4 == 0 ? CMI_USE_BYTES : (uint8_t)(((style + 1) * (i + 1) * UINT32_C(2654435761) >> 16) % 3);
    }
}

/* An idle page leaves its place, for a hole if there is one. */
static inline void do_move(model *m, const uint8_t *use)
{
    cmi_idle_run runs[8];
    uint32_t hole_at = draw(m, UNITS);
    uint64_t skip = unit_offset(hole_at);
    uint32_t count = check_idle_runs(m, use, skip, draw(m, 2) * random_bytes(m), runs, CMI_ARRAY_LENGTH(runs));
    if (!count || m->fault || !cmi_heap_reserve_records(&m->heap, PAGE_UNITS + CMI_HEAP_STEP_RECORDS)) {
        return;
    }
    cmi_idle_run run = runs[draw(m, count < CMI_ARRAY_LENGTH(runs) ? count : (uint32_t)CMI_ARRAY_LENGTH(runs))];
    uint64_t low = run.offset + draw(m, run.pages) * (uint64_t)PAGE_BYTES, high = low + PAGE_BYTES;
    unsigned owner = m->units[unit_number(low)].owner;
    if (!set_of(m, owner, 0, SET_DONE)) {
        return;
    }
    need moved = {{0}};
    cmi_block_id page = 0;
    for (uint64_t at = low; at < high;) {
        cmi_block_id id = cmi_heap_find(&m->heap, at);
        uint64_t end = cmi_min_u64(high, cmi_heap_block(&m->heap, id)->offset + cmi_heap_block(&m->heap, id)->bytes);
        id = take_part(m, id, at, end, &moved);
        page = page ? cmi_heap_join_busy(&m->heap, page, id) : id;
        at = end;
    }
    bool stale = draw(m, 2);
    model_set(m, low, PAGE_BYTES, (unit){.state = stale ? UNIT_STALE : UNIT_HOLE});
    (stale ? cmi_heap_make_stale : cmi_heap_make_hole)(&m->heap, page);
    cmi_block_id hole = random_block(m, CMI_BLOCK_HOLE);
    uint32_t mixed = set_of(m, owner, 0, SET_MIXED);
    if (hole && mixed) {
        hole = cmi_heap_cut(&m->heap, hole, cmi_heap_block(&m->heap, hole)->offset, PAGE_BYTES);
        cmi_heap_block(&m->heap, hole)->kind = CMI_BLOCK_BUSY;
        model_free(m, cmi_heap_block(&m->heap, hole)->offset, PAGE_BYTES, owner, moved);
        cmi_heap_make_free(&m->heap, hole, mixed, m->ticket, stamps_make(&m->stamps, moved));
    }
}

/* A large request: free bytes as they lie, holes filled with pages. */
static inline void do_window(model *m, const uint8_t *use)
{
    uint64_t bytes = random_bytes(m) * (1 + draw(m, 4)), align = random_align(m);
    cmi_window window;
    if (!check_window(m, use, bytes, align, &window) || m->live_count >= LIVES / 2 || !cmi_heap_reserve_records(&m->heap, 2 * PAGE_UNITS) ||
        !set_of(m, 0, 0, SET_DONE) || !set_of(m, 1, 0, SET_DONE)) {
        return;
    }
    uint64_t end = window.offset + bytes;
    unsigned owner = draw(m, OWNERS);
    need given = {{0}};
    cmi_block_id whole = 0;
    for (uint64_t at = window.offset; at < end;) {
        cmi_block_id id = cmi_heap_find(&m->heap, at);
        const cmi_block *block = cmi_heap_block(&m->heap, id);
        uint64_t stop = cmi_min_u64(end, block->offset + block->bytes);
        if (block->kind == CMI_BLOCK_HOLE) {
            uint64_t low = cmi_round_down(at, PAGE_BYTES), high = cmi_round_up(stop, PAGE_BYTES);
            id = cmi_heap_cut(&m->heap, id, low, high - low);
            cmi_heap_block(&m->heap, id)->kind = CMI_BLOCK_BUSY;
            id = cmi_heap_cut(&m->heap, id, at, stop - at);
            cmi_block_id before = cmi_heap_block(&m->heap, id)->prev, behind = cmi_heap_block(&m->heap, id)->next;
            model_free(m, low, high - low, owner, (need){{0}});
            if (low < at) {
                cmi_heap_make_free(&m->heap, before, m->set[owner][0][SET_DONE], 0, CMI_HEAP_NO_STAMP);
            }
            if (stop < high) {
                cmi_heap_make_free(&m->heap, behind, m->set[owner][0][SET_DONE], 0, CMI_HEAP_NO_STAMP);
            }
        } else {
            id = take_part(m, id, at, stop, &given);
            uint32_t first = unit_number(at);
            for (uint32_t i = first; i < first + (stop - at) / CMI_UNIT; i++) {
                m->units[i].owner = (uint8_t)owner; /* from whoever had it */
            }
        }
        whole = whole ? cmi_heap_join_busy(&m->heap, whole, id) : id;
        at = stop;
    }
    EXPECT(m, cmi_heap_block(&m->heap, whole)->bytes == bytes, "window that was built is not as long as it was asked for");
    cmi_heap_make_live(&m->heap, whole, m->set[owner][0][SET_DONE], bytes, 0, 0);
    model_take(m, window.offset, bytes, owner, given, false);
}

#endif
