/* A heap of two owners with bin sets of every kind over one range, and short words for what tests do to it. */
#ifndef TEST_HEAP_FIXTURE_H
#define TEST_HEAP_FIXTURE_H

#include "heap/heap.h"
#include "test_heap_stamps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PAGE = 2 << 20, UNITS_OF_PAGE = PAGE / CMI_UNIT, STREAMS = 3 };

typedef struct sets {
    uint32_t mixed[2], done[2], stream[2][STREAMS]; /* [small] */
} sets;

typedef struct fixture {
    cmi_heap heap;
    stamps stamps;
    sets own, other; /* of owner 0 and owner 1 */
    uint64_t base;
} fixture;

static inline void make_sets(cmi_heap *heap, sets *of, uint32_t owner)
{
    for (unsigned small = 0; small < 2; small++) {
        of->mixed[small] = cmi_heap_add_binset(heap, owner, 0, CMI_BINSET_MIXED, small, small ? of->mixed[0] : 0, 0);
        of->done[small] = cmi_heap_add_binset(heap, owner, 0, CMI_BINSET_DONE, small, small ? of->done[0] : 0, of->mixed[small]);
        for (uint32_t i = 0; i < STREAMS; i++) {
            of->stream[small][i] =
                cmi_heap_add_binset(heap, owner, i + 1, CMI_BINSET_STREAM, small, small ? of->stream[0][i] : 0, of->mixed[small]);
            assert_int_not_equal(of->stream[small][i], CMI_NO_BINSET);
        }
    }
}

static inline void assert_sound(const fixture *f)
{
    const char *fault = cmi_heap_validate(&f->heap);
    if (fault) {
        fail_msg("%s", fault);
    }
    assert_null(f->stamps.fault);
}

/* One range of `pages` pages that are all holes. */
static inline fixture *fixture_new(unsigned pages)
{
    fixture *f = calloc(1, sizeof *f);
    cmi_heap_source source = stamps_source(&f->stamps, PAGE);
    f->base = (UINT64_C(1) << 46) + PAGE;
    cmi_heap_init(&f->heap, &source);
    make_sets(&f->heap, &f->own, 0);
    make_sets(&f->heap, &f->other, 1);
    assert_true(cmi_heap_add_space(&f->heap, f->base, (uint64_t)pages * PAGE));
    assert_true(cmi_heap_reserve_records(&f->heap, 512));
    assert_sound(f);
    return f;
}

static inline void fixture_free(fixture *f)
{
    cmi_heap_fini(&f->heap);
    free(f);
}

static inline cmi_block *at(const fixture *f, cmi_block_id id) { return cmi_heap_block(&f->heap, id); }

/* [unit, unit + units) of the range as one BUSY block, out of the hole or free block it lies in. */
static inline cmi_block_id carve(fixture *f, uint64_t unit, uint64_t units)
{
    uint64_t low = f->base + unit * CMI_UNIT, bytes = units * CMI_UNIT;
    cmi_block_id id = cmi_heap_find(&f->heap, low);
    if (at(f, id)->kind == CMI_BLOCK_HOLE) { /* its pages arrive, free for everybody */
        uint64_t first = cmi_round_down(low, PAGE), last = cmi_round_up(low + bytes, PAGE);
        id = cmi_heap_cut(&f->heap, id, first, last - first);
        at(f, id)->kind = CMI_BLOCK_BUSY;
        id = cmi_heap_make_free(&f->heap, id, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    }
    assert_int_equal(at(f, id)->kind, CMI_BLOCK_FREE);
    return cmi_heap_take(&f->heap, id, low, bytes);
}

static inline cmi_block_id live(fixture *f, uint64_t unit, uint64_t units)
{
    cmi_block_id id = carve(f, unit, units);
    cmi_heap_make_live(&f->heap, id, f->own.done[0], units * CMI_UNIT, 0, 0);
    return id;
}

/* The block that contains a unit. */
static inline cmi_block *block_at(const fixture *f, uint64_t unit)
{
    cmi_block_id id = cmi_heap_find(&f->heap, f->base + unit * CMI_UNIT);
    assert_int_not_equal(id, CMI_NO_BLOCK);
    return at(f, id);
}

static inline void assert_block(const fixture *f, uint64_t unit, uint64_t units, cmi_block_kind kind, uint32_t binset)
{
    const cmi_block *block = block_at(f, unit);
    assert_int_equal((block->offset - f->base) / CMI_UNIT, unit);
    assert_int_equal(block->bytes / CMI_UNIT, units);
    assert_int_equal(block->kind, kind);
    assert_int_equal(block->binset, binset);
}

#endif
