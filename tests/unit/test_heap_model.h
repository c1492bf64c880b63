/*
 * A naive model of the heap for random programs: for every 512 bytes of the address space who has them and what has to be done before
 * they may be used. It is compared with the heap after each operation, and searched by brute force where the heap searches cleverly.
 */
#ifndef TEST_HEAP_MODEL_H
#define TEST_HEAP_MODEL_H

#include "heap/heap.h"
#include "test_heap_stamps.h"

#include <string.h>

enum {
    PAGE_BYTES = 65536,
    PAGE_UNITS = PAGE_BYTES / CMI_UNIT,
    SPACES = 3,
    SPACE_PAGES = 24,
    SPACE_UNITS = SPACE_PAGES * PAGE_UNITS,
    UNITS = SPACES * SPACE_UNITS,
    OWNERS = 2,
    SETS = 2 + STAMP_STREAMS - 1, /* of an owner and a smallness: done, mixed, one a stream */
    SET_DONE = 0,
    SET_MIXED = 1,
    LIVES = 1024
};
#define SPACE_BYTES ((uint64_t)SPACE_PAGES * PAGE_BYTES)
#define SPACE_GAP (UINT64_C(1) << 40) /* ranges lie far apart */

typedef enum unit_state { UNIT_ABSENT, UNIT_HOLE, UNIT_STALE, UNIT_FREE, UNIT_LIVE } unit_state;

typedef struct unit {
    uint8_t state, owner;
    uint32_t live; /* serial number of the allocation */
    need need;     /* FREE: what must be done before they are used */
} unit;

typedef struct live {
    uint64_t offset, bytes;
    uint32_t serial;
    uint8_t owner, slot, cached;
} live;

typedef struct model {
    cmi_heap heap;
    stamps stamps;
    unit units[UNITS];
    live lives[LIVES];
    uint32_t live_count, serial, ticket, probe;
    uint32_t set[OWNERS][2][SETS]; /* bin sets by owner, smallness, kind; 0: none yet */
    bool loose;                    /* the operation may leave free blocks that ask for more than their bytes need */
    const char *fault;
    uint32_t (*draw)(void *source, uint32_t below); /* where the program comes from */
    void *source;
} model;

#define EXPECT(m, condition, text)         \
    do {                                   \
        if (!(m)->fault && !(condition)) { \
            (m)->fault = (text);           \
        }                                  \
    } while (0)

static inline uint32_t draw(model *m, uint32_t below) { return m->draw(m->source, below); }
static inline uint64_t space_base(unsigned space) { return SPACE_GAP * (space + 1) - SPACE_BYTES; }
static inline unsigned space_of(uint64_t offset) { return (unsigned)((offset + SPACE_BYTES) / SPACE_GAP - 1); }
static inline uint32_t unit_number(uint64_t offset)
{
    unsigned space = space_of(offset);
    return space * SPACE_UNITS + (uint32_t)((offset - space_base(space)) / CMI_UNIT);
}
static inline uint64_t unit_offset(uint32_t number)
{
    return space_base(number / SPACE_UNITS) + (uint64_t)(number % SPACE_UNITS) * CMI_UNIT;
}

/* ---- what the operations say happened ---- */

static inline void model_set(model *m, uint64_t offset, uint64_t bytes, unit value)
{
    uint32_t first = unit_number(offset);
    for (uint32_t i = first; i < first + bytes / CMI_UNIT; i++) {
        m->units[i] = value;
    }
}

static inline void model_free(model *m, uint64_t offset, uint64_t bytes, unsigned owner, need what)
{
    model_set(m, offset, bytes, (unit){.state = UNIT_FREE, .owner = (uint8_t)owner, .need = what});
}

/* Hand out: all of it must have been free, this owner's, and `given` must cover what it needed. */
static inline void model_take(model *m, uint64_t offset, uint64_t bytes, unsigned owner, need given, bool slot)
{
    uint32_t first = unit_number(offset);
    for (uint32_t i = first; i < first + bytes / CMI_UNIT; i++) {
        EXPECT(m, m->units[i].state == UNIT_FREE && m->units[i].owner == owner, "bytes handed out that were not this owner's free ones");
        EXPECT(m, need_covers(given, m->units[i].need), "bytes handed out before what they need was done");
    }
    m->serial++;
    model_set(m, offset, bytes, (unit){.state = UNIT_LIVE, .owner = (uint8_t)owner, .live = m->serial});
    if (m->live_count < LIVES) {
        m->lives[m->live_count++] = (live){.offset = offset, .bytes = bytes, .serial = m->serial, .owner = (uint8_t)owner, .slot = slot};
    } else {
        EXPECT(m, false, "the model has no room for another allocation");
    }
}

/* ---- what the heap says ---- */

static inline need block_need(model *m, const cmi_block *block)
{
    const cmi_binset *set = cmi_heap_binset(&m->heap, block->binset);
    switch (set->kind) {
    case CMI_BINSET_MIXED:
        return stamps_need(&m->stamps, block->stamp);
    case CMI_BINSET_STREAM:
        return need_of_stream(set->key, block->ticket);
    default:
        return (need){{0}};
    }
}

/*
 * A free block asks for exactly what its bytes need. It may ask for more after a slab was given back, which has one stamp for all of its
 * slots, and after free space of small pages was joined and parted again at the pages' edges. From now on the bytes need all of it.
 */
static inline void compare_free(model *m, const cmi_block *block)
{
    need asked = block_need(m, block), needed = {{0}};
    uint32_t first = unit_number(block->offset);
    for (uint32_t i = first; i < first + block->bytes / CMI_UNIT; i++) {
        EXPECT(m, m->units[i].state == UNIT_FREE, "free block over bytes that are not free");
        EXPECT(m, m->units[i].owner == cmi_heap_binset(&m->heap, block->binset)->owner, "free block of the wrong owner");
        needed = need_join(needed, m->units[i].need);
        m->units[i].need = asked;
    }
    EXPECT(m, need_covers(asked, needed), "free block asks for less than its bytes need");
    EXPECT(m, m->loose || need_covers(needed, asked), "free block asks for more than its bytes need");
}

static inline void compare_slab(model *m, const cmi_block *block)
{
    const cmi_slab *slab = m->heap.slabs[block->slab];
    const cmi_binset *set = cmi_heap_binset(&m->heap, block->binset);
    need own = set->kind == CMI_BINSET_STREAM ? need_of_stream(set->key, slab->ticket) : (need){{0}};
    need parked = slab->parked_count ? stamps_need(&m->stamps, slab->stamp) : (need){{0}};
    uint64_t slot_bytes = cmi_class_bytes(slab->class_index);
    for (uint64_t at = 0; at < block->bytes; at += CMI_UNIT) {
        const unit *here = &m->units[unit_number(block->offset + at)];
        unsigned slot = (unsigned)(at / slot_bytes);
        unsigned use = slot < slab->slot_count ? slab->use[slot] : CMI_SLOT_FREE;
        bool taken = use == CMI_SLOT_LIVE || use == CMI_SLOT_CACHED;
        EXPECT(m, (here->state == UNIT_LIVE) == taken && (taken || here->state == UNIT_FREE), "slot state and bytes differ");
        EXPECT(m, here->owner == set->owner, "slot of the wrong owner");
        EXPECT(m, taken || need_covers(use == CMI_SLOT_PARKED ? parked : own, here->need), "slot asks for less than its bytes need");
    }
}

static inline void compare_block(model *m, const cmi_block *block)
{
    static const uint8_t states[] = {
        [CMI_BLOCK_HOLE] = UNIT_HOLE, [CMI_BLOCK_STALE] = UNIT_STALE, [CMI_BLOCK_LIVE] = UNIT_LIVE, [CMI_BLOCK_SLAB] = 0};
    if (block->kind == CMI_BLOCK_FREE) {
        compare_free(m, block);
    } else if (block->kind == CMI_BLOCK_SLAB) {
        compare_slab(m, block);
    } else {
        EXPECT(m, block->kind != CMI_BLOCK_BUSY, "block left busy");
        uint32_t first = unit_number(block->offset), serial = m->units[first].live;
        for (uint32_t i = first; i < first + block->bytes / CMI_UNIT && !m->fault; i++) {
            EXPECT(m, m->units[i].state == states[block->kind], "block over bytes of another kind");
            EXPECT(m, m->units[i].live == serial, "live block over bytes of another allocation");
        }
    }
}

/* The whole heap against the whole model, and every stamp against its one holder. */
static inline void model_compare(model *m)
{
    const char *fault = cmi_heap_validate(&m->heap);
    EXPECT(m, !fault, fault);
    uint64_t bytes = 0;
    uint32_t holders = 0;
    for (uint32_t i = 0; i < m->heap.space_count && !m->fault; i++) {
        for (cmi_block_id id = cmi_heap_first_block(&m->heap, i); id && !m->fault; id = cmi_heap_block(&m->heap, id)->next) {
            const cmi_block *block = cmi_heap_block(&m->heap, id);
            compare_block(m, block);
            bytes += block->bytes;
            holders += block->stamp != CMI_HEAP_NO_STAMP;
            if (block->kind == CMI_BLOCK_SLAB) {
                const cmi_slab *slab = m->heap.slabs[block->slab];
                holders += slab->stamp != CMI_HEAP_NO_STAMP;
                for (unsigned slot = 0; slab->uses && slot < slab->slot_count; slot++) {
                    holders += slab->uses[slot] != CMI_HEAP_NO_STAMP;
                }
            }
            m->probe = m->probe * 1664525u + 1013904223u;
            uint64_t inside = block->offset + m->probe % block->bytes;
            EXPECT(m, cmi_heap_find(&m->heap, block->offset) == id && cmi_heap_find(&m->heap, inside) == id,
                   "address index finds another block");
        }
    }
    EXPECT(m, bytes == m->heap.space_count * SPACE_BYTES, "blocks do not cover the ranges");
    EXPECT(m, holders == m->stamps.held_count, "stamp leaked");
    EXPECT(m, !m->stamps.fault, m->stamps.fault);
    m->loose = false;
}

/* ---- brute force ---- */

static inline bool block_is_usable(const uint8_t *use, const cmi_block *block)
{
    return block->kind == CMI_BLOCK_FREE && use[block->binset] != CMI_USE_NOT;
}

/* Per unit: may a window cover it? Per page: is it a hole? Both as sums of everything before, so that a range is one subtraction. */
typedef struct window_map {
    uint32_t bad[SPACE_UNITS + 1], holes[SPACE_PAGES + 1];
} window_map;

static inline void map_space(const model *m, const uint8_t *use, uint32_t space, window_map *map)
{
    uint64_t base = m->heap.spaces[space].base;
    memset(map, 0, sizeof *map);
    for (cmi_block_id id = cmi_heap_first_block(&m->heap, space); id; id = cmi_heap_block(&m->heap, id)->next) {
        const cmi_block *block = cmi_heap_block(&m->heap, id);
        bool hole = block->kind == CMI_BLOCK_HOLE;
        uint64_t low = block->offset, high = low + block->bytes;
        if (!hole && block_is_usable(use, block) && use[block->binset] == CMI_USE_PAGES) {
            low = cmi_round_up(low, PAGE_BYTES);
            high = cmi_round_down(high, PAGE_BYTES);
        }
        for (uint64_t at = block->offset; at < block->offset + block->bytes; at += CMI_UNIT) {
            bool good = (hole || block_is_usable(use, block)) && at >= low && at < high;
            map->bad[(at - base) / CMI_UNIT + 1] = !good;
            map->holes[(at - base) / PAGE_BYTES + 1] = hole;
        }
    }
    for (uint32_t i = 0; i < SPACE_UNITS; i++) {
        map->bad[i + 1] += map->bad[i];
    }
    for (uint32_t i = 0; i < SPACE_PAGES; i++) {
        map->holes[i + 1] += map->holes[i];
    }
}

/* Pages that the window at `at` (from the base) needs, or UINT32_MAX where it may not lie. */
static inline uint32_t window_cost(const window_map *map, uint64_t at, uint64_t bytes)
{
    if (at + bytes > SPACE_BYTES || map->bad[(at + bytes) / CMI_UNIT] != map->bad[at / CMI_UNIT]) {
        return UINT32_MAX;
    }
    return map->holes[cmi_div_up(at + bytes, PAGE_BYTES)] - map->holes[at / PAGE_BYTES];
}

/* cmi_heap_find_window against every offset there is. Returns whether there is a window. */
static inline bool check_window(model *m, const uint8_t *use, uint64_t bytes, uint64_t align, cmi_window *window)
{
    static window_map map;
    bool found = cmi_heap_find_window(&m->heap, use, bytes, align, window);
    uint32_t fewest = UINT32_MAX, given = UINT32_MAX;
    for (uint32_t space = 0; space < m->heap.space_count; space++) {
        uint64_t base = m->heap.spaces[space].base;
        map_space(m, use, space, &map);
        for (uint64_t offset = cmi_round_up(base, align); offset < base + SPACE_BYTES; offset += align) {
            uint32_t cost = window_cost(&map, offset - base, bytes);
            fewest = cost < fewest ? cost : fewest;
            if (found && offset == window->offset) {
                given = cost;
            }
        }
    }
    EXPECT(m, found == (fewest != UINT32_MAX), "window search and brute force differ on whether there is one");
    EXPECT(m, !found || window->offset % align == 0, "window not aligned");
    EXPECT(m, !found || (given == window->pages && given == fewest), "window does not need what it says, or not the fewest pages");
    return found && !m->fault;
}

/* cmi_heap_idle_runs against a look at every page. Returns the number of runs. */
static inline uint32_t check_idle_runs(model *m, const uint8_t *use, uint64_t skip, uint64_t skip_bytes, cmi_idle_run *runs, uint32_t room)
{
    uint64_t pages, total = 0, longest = 0;
    uint32_t count = cmi_heap_idle_runs(&m->heap, use, skip, skip_bytes, runs, room, &pages), seen = 0;
    for (uint32_t space = 0; space < m->heap.space_count; space++) {
        uint64_t base = m->heap.spaces[space].base, free_run = 0;
        bool idle[SPACE_PAGES + 1] = {false}, hole[SPACE_PAGES] = {false};
        for (uint32_t page = 0; page < SPACE_PAGES; page++) {
            idle[page] = true;
            for (uint64_t at = base + (uint64_t)page * PAGE_BYTES; at < base + (page + 1) * (uint64_t)PAGE_BYTES; at += CMI_UNIT) {
                const cmi_block *block = cmi_heap_block(&m->heap, cmi_heap_find(&m->heap, at));
                bool usable = block_is_usable(use, block);
                idle[page] = idle[page] && usable && (at >= skip + skip_bytes || at + CMI_UNIT <= skip || !skip_bytes);
                hole[page] = block->kind == CMI_BLOCK_HOLE;
                free_run = usable ? free_run + CMI_UNIT : 0;
                longest = cmi_max_u64(longest, free_run);
            }
        }
        for (uint32_t page = 0, first = 0; page <= SPACE_PAGES; page++) {
            if (idle[page]) {
                continue;
            }
            if (page > first) {
                total += page - first;
                if (seen < room) {
                    EXPECT(m, runs[seen].offset == base + (uint64_t)first * PAGE_BYTES && runs[seen].pages == page - first,
                           "idle run differs from the pages");
                    EXPECT(m, runs[seen].hole_before == (first > 0 && hole[first - 1]), "hole before an idle run");
                    EXPECT(m, runs[seen].hole_behind == (page < SPACE_PAGES && hole[page]), "hole behind an idle run");
                }
                seen++;
            }
            first = page + 1;
        }
    }
    EXPECT(m, seen == count && total == pages, "number of idle runs or pages");
    EXPECT(m, cmi_heap_longest_free(&m->heap, use) == longest, "longest free run");
    return count;
}

/* Smallest block that fits, lowest address on ties, by looking at all; only whether there is one where `align` matters. */
static inline void check_best_fit(model *m, uint32_t binset, uint64_t bytes, uint64_t align)
{
    cmi_block_id id = cmi_heap_best_fit(&m->heap, binset, bytes, align), best = 0;
    uint64_t best_bytes = UINT64_MAX;
    for (uint32_t space = 0; space < m->heap.space_count; space++) {
        for (cmi_block_id at = cmi_heap_first_block(&m->heap, space); at; at = cmi_heap_block(&m->heap, at)->next) {
            const cmi_block *block = cmi_heap_block(&m->heap, at);
            bool fits = block->kind == CMI_BLOCK_FREE && block->binset == binset &&
                        cmi_round_up(block->offset, align) + bytes <= block->offset + block->bytes;
            EXPECT(m, at != id || fits, "best fit does not fit");
            if (fits && block->bytes < best_bytes) {
                best_bytes = block->bytes;
                best = at;
            }
        }
    }
    EXPECT(m, align > CMI_UNIT ? !id == !best : id == best, "best fit is not the best");
}

#endif
