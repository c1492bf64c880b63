/*
 * Random programs on a small heap: what the pool does to it, in any order, with host memory that may fail. Each operation is told to the
 * model as well, and the two are compared after it. The property test and the fuzz target run the same programs from different sources.
 */
#ifndef TEST_HEAP_PROGRAM_H
#define TEST_HEAP_PROGRAM_H

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

/* A live slot is freed by its own stream, parked, put into a thread's cache, or used by another stream. */
static inline void do_slot_free(model *m, uint32_t at, cmi_block_id id)
{
    live *entry = &m->lives[at];
    unsigned slot;
    bool exact;
    cmi_slab *slab = cmi_heap_slot_of(&m->heap, id, entry->offset, &slot, &exact);
    EXPECT(m, exact && slab->use[slot] == (entry->cached ? CMI_SLOT_CACHED : CMI_SLOT_LIVE), "slot of a live offset");
    uint64_t inside = entry->offset + draw(m, (uint32_t)entry->bytes);
    unsigned other;
    cmi_heap_slot_of(&m->heap, id, inside, &other, &exact);
    EXPECT(m, other == slot && exact == (inside == entry->offset), "slot of an offset inside");
    switch (draw(m, 6)) {
    case 0:
        entry->cached = !entry->cached;
        slab->use[slot] = entry->cached ? CMI_SLOT_CACHED : CMI_SLOT_LIVE;
        return;
    case 1:
    case 2:
        if (!slab->uses) {
            slab->uses = cmi_meta_alloc(slab->slot_count * sizeof *slab->uses);
            for (unsigned i = 0; slab->uses && i < slab->slot_count; i++) {
                slab->uses[i] = CMI_HEAP_NO_STAMP;
            }
        }
        if (slab->uses && slab->uses[slot] == CMI_HEAP_NO_STAMP) {
            slab->uses[slot] = stamps_make(&m->stamps, random_need(m));
        }
        return;
    default:
        break;
    }
    const cmi_binset *set = cmi_heap_binset(&m->heap, cmi_heap_block(&m->heap, id)->binset);
    uint32_t stamp = CMI_HEAP_NO_STAMP;
    need what = set->kind == CMI_BINSET_STREAM ? need_of_stream(set->key, ++m->ticket) : (need){{0}};
    if (slab->uses && slab->uses[slot] != CMI_HEAP_NO_STAMP) {
        what = need_join(what, stamps_need(&m->stamps, slab->uses[slot]));
        stamp = stamps_join(&m->stamps, slab->uses[slot], stamps_make(&m->stamps, what));
        slab->uses[slot] = CMI_HEAP_NO_STAMP;
    }
    live gone = *entry;
    forget_live(m, at);
    model_free(m, gone.offset, gone.bytes, gone.owner, what);
    m->loose = true;
    cmi_heap_slot_free(&m->heap, id, slot, m->ticket, stamp);
}

static inline void do_free(model *m)
{
    if (!m->live_count) {
        return;
    }
    uint32_t at = draw(m, m->live_count);
    live gone = m->lives[at];
    cmi_block_id id = cmi_heap_find(&m->heap, gone.offset);
    cmi_block *block = cmi_heap_block(&m->heap, id);
    if (block->kind == CMI_BLOCK_SLAB) {
        do_slot_free(m, at, id);
        return;
    }
    EXPECT(m, block->kind == CMI_BLOCK_LIVE && block->offset == gone.offset && block->bytes == gone.bytes, "live block not found");
    if (m->fault) {
        return;
    }
    if (block->stamp != CMI_HEAP_NO_STAMP) { /* uses of a slot whose slab was dissolved */
        stamps_drop(&m->stamps, block->stamp);
        block->stamp = CMI_HEAP_NO_STAMP;
    }
    forget_live(m, at);
    unsigned small = cmi_heap_binset(&m->heap, block->binset)->small;
    if (gone.offset % PAGE_BYTES == 0 && gone.bytes % PAGE_BYTES == 0 && draw(m, 2)) {
        bool stale = draw(m, 2);
        model_set(m, gone.offset, gone.bytes, (unit){.state = stale ? UNIT_STALE : UNIT_HOLE});
        (stale ? cmi_heap_make_stale : cmi_heap_make_hole)(&m->heap, id);
        return;
    }
    free_somehow(m, id, gone.owner, small);
}

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
    if (!check_window(m, use, bytes, align, &window) || m->live_count >= LIVES / 2
        || !cmi_heap_reserve_records(&m->heap, 2 * PAGE_UNITS) || !set_of(m, 0, 0, SET_DONE) || !set_of(m, 1, 0, SET_DONE)) {
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

/* Space for a slab: of the small ones, or whole pages whose rest becomes theirs. */
static inline cmi_block_id slab_space(model *m, unsigned owner, unsigned which, uint64_t bytes)
{
    uint32_t small = m->set[owner][1][which], large = m->set[owner][0][which];
    need given = {{0}};
    cmi_block_id id = cmi_heap_best_fit(&m->heap, small, bytes, CMI_UNIT);
    if (id) {
        uint64_t offset = cmi_heap_block(&m->heap, id)->offset;
        return take_part(m, id, offset, offset + bytes, &given);
    }
    uint64_t pages = cmi_round_up(bytes + CMI_UNIT, PAGE_BYTES);
    id = cmi_heap_best_fit(&m->heap, large, pages, PAGE_BYTES);
    if (!id) {
        return 0;
    }
    uint64_t offset = cmi_round_up(cmi_heap_block(&m->heap, id)->offset, PAGE_BYTES);
    id = take_part(m, id, offset, offset + pages, &given);
    uint64_t ticket = cmi_heap_block(&m->heap, id)->ticket;
    uint64_t before = draw(m, 2) * draw(m, PAGE_UNITS) * (uint64_t)CMI_UNIT;
    before = cmi_min_u64(before, pages - bytes);
    m->loose = true;
    id = cmi_heap_cut(&m->heap, id, offset + before, bytes);
    if (before) {
        cmi_heap_make_free(&m->heap, cmi_heap_block(&m->heap, id)->prev, small, ticket, CMI_HEAP_NO_STAMP);
    }
    if (before + bytes < pages) {
        cmi_heap_make_free(&m->heap, cmi_heap_block(&m->heap, id)->next, small, ticket, CMI_HEAP_NO_STAMP);
    }
    return id;
}

/* The lowest free slot of the lowest slab, by looking at all. */
static inline uint64_t lowest_slot(const model *m, uint32_t set, unsigned class_index)
{
    for (uint32_t space = 0; space < m->heap.space_count; space++) {
        for (cmi_block_id id = cmi_heap_first_block(&m->heap, space); id; id = cmi_heap_block(&m->heap, id)->next) {
            const cmi_block *block = cmi_heap_block(&m->heap, id);
            if (block->kind != CMI_BLOCK_SLAB || block->binset != set || m->heap.slabs[block->slab]->class_index != class_index) {
                continue;
            }
            for (unsigned slot = 0; slot < m->heap.slabs[block->slab]->slot_count; slot++) {
                if (m->heap.slabs[block->slab]->use[slot] == CMI_SLOT_FREE) {
                    return block->offset + slot * cmi_class_bytes(class_index);
                }
            }
        }
    }
    return UINT64_MAX;
}

static inline bool slot_alloc(model *m, unsigned owner, unsigned which, unsigned class_index)
{
    uint32_t set = m->set[owner][1][which];
    uint64_t offset, lowest = lowest_slot(m, set, class_index), bytes = cmi_class_bytes(class_index);
    bool found = cmi_heap_slot_alloc(&m->heap, set, class_index, &offset);
    EXPECT(m, found == (lowest != UINT64_MAX) && (!found || offset == lowest), "slot is not the lowest free one");
    if (!found) {
        cmi_block_id id = slab_space(m, owner, which, cmi_class_slab_bytes(class_index));
        if (!id) {
            return false;
        }
        uint64_t ticket = cmi_heap_block(&m->heap, id)->ticket;
        if (!cmi_heap_make_slab(&m->heap, id, set, class_index)) {
            EXPECT(m, cmi_heap_block(&m->heap, id)->kind == CMI_BLOCK_BUSY, "block is not as it was after a failed make_slab");
            m->loose = true;
            cmi_heap_make_free(&m->heap, id, set, ticket, CMI_HEAP_NO_STAMP);
            return false;
        }
        if (draw(m, 8) == 0) {
            return false; /* nobody comes for it */
        }
        found = cmi_heap_slot_alloc(&m->heap, set, class_index, &offset);
        EXPECT(m, found, "fresh slab without a slot");
    }
    model_take(m, offset, bytes, owner, need_of_stream(which > SET_MIXED ? which - SET_MIXED : 0, UINT32_MAX), true);
    return !m->fault;
}

static inline void do_slot_alloc(model *m)
{
    static const uint8_t classes[] = {0, 0, 1, 3, 4, 7, 9, 12, 13, 16, 18, 21, 25, 27};
    unsigned owner = draw(m, OWNERS), which = draw(m, 4) ? SET_MIXED + 1 + draw(m, STAMP_STREAMS - 1) : SET_DONE;
    unsigned class_index = classes[draw(m, CMI_ARRAY_LENGTH(classes))];
    uint32_t count = 1 + draw(m, 30);
    while (count-- && m->live_count < LIVES / 2 && set_of(m, owner, 1, which) && slot_alloc(m, owner, which, class_index)
        && cmi_heap_reserve_records(&m->heap, 3 * CMI_HEAP_STEP_RECORDS)) {
    }
}

/* As the pool goes through the list: some are seen done, the others stay. */
static inline void do_unpark(model *m)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->heap.parked_slabs.count; i++) {
        uint32_t number = m->heap.parked_slabs.ids[i];
        cmi_slab *slab = m->heap.slabs[number];
        if (slab->block && slab->parked_count && draw(m, 2)) {
            m->heap.parked_slabs.ids[kept++] = number;
            continue;
        }
        if (slab->block) {
            uint64_t base = cmi_heap_block(&m->heap, slab->block)->offset, bytes = cmi_class_bytes(slab->class_index);
            unsigned owner = cmi_heap_binset(&m->heap, cmi_heap_block(&m->heap, slab->block)->binset)->owner;
            for (unsigned slot = 0; slot < slab->slot_count; slot++) {
                if (slab->use[slot] == CMI_SLOT_PARKED) {
                    model_free(m, base + slot * bytes, bytes, owner, (need){{0}});
                }
            }
            cmi_heap_unpark(&m->heap, slab->block);
            EXPECT(m, slab->parked_count == 0, "parked slots left");
        }
        slab->listed_parked = 0;
    }
    m->heap.parked_slabs.count = kept;
}

static inline void do_flush(model *m, bool may_fail)
{
    m->loose = true;
    cmi_heap_flush_slabs(&m->heap);
    for (uint32_t i = 1; i <= m->heap.slab_count; i++) {
        const cmi_slab *slab = m->heap.slabs[i];
        EXPECT(m, may_fail || !slab->block || slab->free_count < slab->slot_count, "slab without a live slot survived the flush");
    }
}

static inline void do_dissolve(model *m, bool may_fail)
{
    cmi_block_id id = random_block(m, CMI_BLOCK_SLAB);
    if (id) {
        uint32_t before = cmi_heap_block(&m->heap, id)->slab;
        m->loose = true;
        bool done = cmi_heap_dissolve_slab(&m->heap, id);
        EXPECT(m, done || may_fail, "slab not dissolved");
        EXPECT(m, done || cmi_heap_block(&m->heap, id)->slab == before, "failed dissolve changed the slab");
    }
}

/* Ranges and bin sets come and go. */
static inline void do_coming_and_going(model *m)
{
    uint64_t base = space_base(draw(m, SPACES));
    bool present = m->units[unit_number(base)].state != UNIT_ABSENT;
    if (!present && cmi_heap_add_space(&m->heap, base, SPACE_BYTES)) {
        model_set(m, base, SPACE_BYTES, (unit){.state = UNIT_HOLE});
    } else if (present && draw(m, 4) == 0 && cmi_heap_space_is_hole(&m->heap, base)) {
        cmi_heap_remove_space(&m->heap, base);
        model_set(m, base, SPACE_BYTES, (unit){.state = UNIT_ABSENT});
        EXPECT(m, cmi_heap_find(&m->heap, base) == 0, "a range that is gone is still found");
    }
    uint32_t *small = &m->set[draw(m, OWNERS)][1][SET_MIXED + 1 + draw(m, STAMP_STREAMS - 1)], *large = small - SETS;
    bool named = false; /* by a live block */
    for (uint32_t i = 0; i < m->live_count; i++) {
        uint32_t set = cmi_heap_block(&m->heap, cmi_heap_find(&m->heap, m->lives[i].offset))->binset;
        named = named || set == *small || set == *large;
    }
    if (!named && *small && cmi_binset_is_empty(cmi_heap_binset(&m->heap, *small))) {
        cmi_heap_remove_binset(&m->heap, *small);
        *small = 0;
        if (cmi_binset_is_empty(cmi_heap_binset(&m->heap, *large))) {
            cmi_heap_remove_binset(&m->heap, *large);
            *large = 0;
        }
    }
}

/* One operation and the comparison after it. */
static inline const char *program_step(model *m)
{
    static uint8_t use[4096];
    bool may_fail = draw(m, 16) == 0;
    unsigned operation = draw(m, 32);
    if (may_fail) {
        cmi_meta_fail(1 + draw(m, 3), draw(m, 2));
    }
    if (cmi_heap_reserve_records(&m->heap, 3 * CMI_HEAP_STEP_RECORDS)) {
        random_use(m, use);
        if (operation < 4) {
            do_map(m);
        } else if (operation < 9) {
            do_alloc(m);
        } else if (operation < 17) {
            for (uint32_t count = 1 + draw(m, 4); count && cmi_heap_reserve_records(&m->heap, CMI_HEAP_STEP_RECORDS); count--) {
                do_free(m);
            }
        } else if (operation < 20) {
            do_rebin(m);
        } else if (operation < 22) {
            do_move(m, use);
        } else if (operation < 23) {
            do_settle(m);
        } else if (operation < 25) {
            do_window(m, use);
        } else if (operation < 28) {
            do_slot_alloc(m);
        } else if (operation < 29) {
            do_unpark(m);
        } else if (operation < 30) {
            do_flush(m, may_fail);
        } else if (operation < 31) {
            do_dissolve(m, may_fail);
        } else {
            do_coming_and_going(m);
        }
    }
    cmi_meta_fail(0, 0);
    model_compare(m);
    return m->fault;
}

static inline const char *program_start(model *m, uint32_t (*draw_from)(void *, uint32_t), void *source)
{
    memset(m, 0, sizeof *m);
    m->draw = draw_from;
    m->source = source;
    cmi_heap_source heap_source = stamps_source(&m->stamps, PAGE_BYTES);
    cmi_heap_init(&m->heap, &heap_source);
    for (unsigned owner = 0; owner < OWNERS; owner++) {
        EXPECT(m, set_of(m, owner, 1, SET_DONE), "no first bin sets");
    }
    EXPECT(m, cmi_heap_add_space(&m->heap, space_base(0), SPACE_BYTES), "no first range");
    model_set(m, space_base(0), SPACE_BYTES, (unit){.state = UNIT_HOLE});
    model_compare(m);
    return m->fault;
}

/* Everything is freed and unmapped; nothing may be left of it. */
static inline const char *program_end(model *m)
{
    while (m->live_count && !m->fault && cmi_heap_reserve_records(&m->heap, CMI_HEAP_STEP_RECORDS)) {
        do_free(m);
    }
    do_flush(m, false);
    model_compare(m);
    uint64_t free_bytes = 0;
    for (uint32_t i = 1; i <= m->heap.binset_count; i++) {
        free_bytes += m->heap.binsets[i] ? m->heap.binsets[i]->free_bytes : 0;
    }
    for (uint32_t i = 0; i < UNITS; i++) {
        free_bytes -= m->units[i].state == UNIT_FREE ? CMI_UNIT : 0;
    }
    EXPECT(m, free_bytes == 0, "free bytes differ from what was given back");
    cmi_heap_fini(&m->heap);
    return m->fault;
}

#endif
