/*
 * Random programs on a small heap: what the pool does to it, in any order, with host memory that may fail. Each operation is told to the
 * model as well, and the two are compared after it. The property test and the fuzz target run the same programs from different sources.
 */
#ifndef TEST_HEAP_PROGRAM_H
#define TEST_HEAP_PROGRAM_H

#include "test_heap_operations.h"

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

/* Space for a slab: of the small ones, or whole pages whose rest becomes theirs. */
static inline cmi_block_id slab_space(model *m, unsigned owner, unsigned which, uint64_t bytes)
{
    uint32_t small = m->set[owner][1][which], large = m->set[owner][0][which];
    need given = {{0}};
    cmi_block_id id = cmi_heap_best_fit(&m->heap, small, bytes, CMI_SLAB_UNIT);
    if (id) {
        uint64_t offset = cmi_round_up(cmi_heap_block(&m->heap, id)->offset, CMI_SLAB_UNIT);
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
    before = cmi_round_down(cmi_min_u64(before, pages - bytes), CMI_SLAB_UNIT);
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
    while (count-- && m->live_count < LIVES / 2 && set_of(m, owner, 1, which) && slot_alloc(m, owner, which, class_index) &&
           cmi_heap_reserve_records(&m->heap, 3 * CMI_HEAP_STEP_RECORDS)) {}
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
