/*
 * Blocks: what take, cut, free and rebin make of them and of their neighbours, by kind of bin set; ranges and the address index;
 * host memory that fails.
 */
#include "test_heap_fixture.h"

static void take_leaves_the_rest_free(void **state)
{
    (void)state;
    fixture *f = fixture_new(4);
    cmi_block_id id = carve(f, 10, 5);
    assert_block(f, 10, 5, CMI_BLOCK_BUSY, f->own.done[0]);
    assert_block(f, 0, 10, CMI_BLOCK_FREE, f->own.done[0]);
    assert_block(f, 15, UNITS_OF_PAGE - 15, CMI_BLOCK_FREE, f->own.done[0]);
    assert_block(f, UNITS_OF_PAGE, 3 * UNITS_OF_PAGE, CMI_BLOCK_HOLE, CMI_NO_BINSET);
    cmi_heap_make_live(&f->heap, id, f->own.stream[0][0], 5 * CMI_UNIT - 100, 42, 99);
    const cmi_block *block = at(f, id);
    assert_int_equal(block->slack, 100);
    assert_int_equal(block->tag, 42);
    assert_int_equal(block->ticket, 99);
    assert_sound(f);
    cmi_heap_make_free(&f->heap, id, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    assert_block(f, 0, UNITS_OF_PAGE, CMI_BLOCK_FREE, f->own.done[0]);
    assert_int_equal(at(f, cmi_heap_find(&f->heap, f->base))->tag, 0);
    assert_sound(f);
    fixture_free(f);
}

/* The free space of a page between two live blocks, freed in pieces into given bin sets; how many blocks come of it. */
static void assert_join(fixture *f, uint32_t low, uint32_t high, bool joined, uint32_t binset, uint64_t ticket)
{
    cmi_block_id a = carve(f, 10, 10), b = carve(f, 20, 10);
    cmi_block_id wall_low = live(f, 0, 10), wall_high = live(f, 30, UNITS_OF_PAGE - 30);
    for (unsigned order = 0; order < 2; order++) { /* whichever comes first */
        bool low_first = order == 0;
        cmi_heap_make_free(&f->heap, low_first ? a : b, low_first ? low : high, low_first ? 5 : 9, CMI_HEAP_NO_STAMP);
        cmi_heap_make_free(&f->heap, low_first ? b : a, low_first ? high : low, low_first ? 9 : 5, CMI_HEAP_NO_STAMP);
        assert_sound(f);
        if (joined) {
            assert_block(f, 10, 20, CMI_BLOCK_FREE, binset);
            assert_int_equal(block_at(f, 10)->ticket, ticket);
        } else {
            assert_block(f, 10, 10, CMI_BLOCK_FREE, low);
            assert_block(f, 20, 10, CMI_BLOCK_FREE, high);
        }
        a = carve(f, 10, 10);
        b = carve(f, 20, 10);
    }
    cmi_heap_make_free(&f->heap, a, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&f->heap, b, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&f->heap, wall_low, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&f->heap, wall_high, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    assert_block(f, 0, UNITS_OF_PAGE, CMI_BLOCK_FREE, f->own.done[0]);
}

static void freeing_joins_by_kind_of_bin_set(void **state)
{
    (void)state;
    fixture *f = fixture_new(2);
    const sets *own = &f->own, *other = &f->other;
    assert_join(f, own->stream[0][0], own->stream[0][0], true, own->stream[0][0], 9);
    assert_join(f, own->stream[0][0], own->stream[0][1], false, 0, 0);
    assert_join(f, own->stream[0][0], own->stream[1][0], false, 0, 0); /* large and small */
    assert_join(f, own->done[0], own->done[1], false, 0, 0);
    assert_join(f, own->done[0], own->stream[0][2], true, own->stream[0][2], 9);
    assert_join(f, own->stream[0][2], own->done[0], true, own->stream[0][2], 5);
    assert_join(f, own->done[0], other->stream[0][2], false, 0, 0);
    assert_join(f, own->done[0], other->done[0], false, 0, 0);
    fixture_free(f);
}

static void rebin_joins_its_new_set_only(void **state)
{
    (void)state;
    fixture *f = fixture_new(1);
    cmi_block_id a = carve(f, 0, 10), b = carve(f, 10, 10), c = carve(f, 20, 10);
    live(f, 30, UNITS_OF_PAGE - 30);
    cmi_heap_make_free(&f->heap, a, f->own.stream[0][0], 3, CMI_HEAP_NO_STAMP);
    b = cmi_heap_make_free(&f->heap, b, f->own.stream[0][1], 4, CMI_HEAP_NO_STAMP);
    b = cmi_heap_rebin(&f->heap, b, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    assert_block(f, 0, 10, CMI_BLOCK_FREE, f->own.stream[0][0]);
    assert_block(f, 10, 10, CMI_BLOCK_FREE, f->own.done[0]);
    assert_sound(f);
    /* Freed beside done memory with more of the same stream behind it: all three become one. */
    cmi_heap_make_free(&f->heap, c, f->own.stream[0][0], 8, CMI_HEAP_NO_STAMP);
    assert_sound(f);
    assert_block(f, 0, 30, CMI_BLOCK_FREE, f->own.stream[0][0]);
    assert_int_equal(block_at(f, 0)->ticket, 8);
    fixture_free(f);
}

static void mixed_blocks_join_and_part_their_stamps(void **state)
{
    (void)state;
    fixture *f = fixture_new(1);
    stamps *all = &f->stamps;
    uint32_t mixed = f->own.mixed[0];
    cmi_block_id a = carve(f, 0, 10), b = carve(f, 10, 10), c = carve(f, 20, 10);
    live(f, 30, UNITS_OF_PAGE - 30);
    cmi_heap_make_free(&f->heap, a, mixed, 1, stamps_make(all, need_of_stream(1, 7)));
    cmi_heap_make_free(&f->heap, c, mixed, 2, stamps_make(all, need_of_stream(2, 8)));
    assert_int_equal(all->joins, 0);
    cmi_heap_make_free(&f->heap, b, mixed, 3, stamps_make(all, need_of_stream(1, 9)));
    assert_sound(f);
    assert_int_equal(all->joins, 2);
    assert_int_equal(all->held_count, 1);
    assert_block(f, 0, 30, CMI_BLOCK_FREE, mixed);
    need joined = stamps_need(all, block_at(f, 0)->stamp);
    assert_int_equal(joined.upto[1], 9);
    assert_int_equal(joined.upto[2], 8);

    cmi_block_id piece = carve(f, 12, 3); /* three holders now: two rests and the piece */
    assert_int_equal(all->copies, 2);
    assert_int_equal(all->held_count, 3);
    need given = stamps_need(all, at(f, piece)->stamp);
    assert_memory_equal(&given, &joined, sizeof given);
    stamps_drop(all, at(f, piece)->stamp);
    cmi_heap_make_free(&f->heap, piece, f->own.stream[0][0], 20, CMI_HEAP_NO_STAMP); /* no stream's memory joins mixed */
    assert_sound(f);
    assert_block(f, 12, 3, CMI_BLOCK_FREE, f->own.stream[0][0]);

    cmi_heap_rebin(&f->heap, cmi_heap_find(&f->heap, f->base), f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    assert_int_equal(all->held_count, 1);
    cmi_block_id rest = cmi_heap_find(&f->heap, f->base + 20 * CMI_UNIT);
    uint32_t stamp = at(f, rest)->stamp;
    rest = cmi_heap_rebin(&f->heap, rest, f->other.mixed[0], 0, stamp); /* to another owner with its stamp */
    assert_int_equal(at(f, rest)->stamp, stamp);
    assert_int_equal(all->held_count, 1);
    cmi_heap_rebin(&f->heap, rest, f->own.mixed[0], 0, stamps_make(all, need_of_stream(3, 1))); /* with another one */
    assert_int_equal(all->held_count, 1);
    assert_sound(f);
    fixture_free(f);
}

static void small_space_gives_whole_pages_to_its_partner(void **state)
{
    (void)state;
    fixture *f = fixture_new(4);
    cmi_block_id low = carve(f, 100, UNITS_OF_PAGE - 100), middle = carve(f, UNITS_OF_PAGE, UNITS_OF_PAGE),
                 high = carve(f, 2 * UNITS_OF_PAGE, 50);
    live(f, 0, 100);
    cmi_heap_make_free(&f->heap, low, f->own.mixed[1], 1, stamps_make(&f->stamps, need_of_stream(1, 1)));
    cmi_heap_make_free(&f->heap, high, f->own.mixed[1], 1, stamps_make(&f->stamps, need_of_stream(2, 2)));
    cmi_heap_make_free(&f->heap, middle, f->own.mixed[1], 1, stamps_make(&f->stamps, need_of_stream(3, 3)));
    assert_sound(f);
    assert_block(f, 100, UNITS_OF_PAGE - 100, CMI_BLOCK_FREE, f->own.mixed[1]);
    assert_block(f, UNITS_OF_PAGE, UNITS_OF_PAGE, CMI_BLOCK_FREE, f->own.mixed[0]);
    assert_block(f, 2 * UNITS_OF_PAGE, 50, CMI_BLOCK_FREE, f->own.mixed[1]);
    assert_int_equal(f->stamps.held_count, 3);
    need whole = stamps_need(&f->stamps, block_at(f, UNITS_OF_PAGE)->stamp);
    assert_true(whole.upto[1] == 1 && whole.upto[2] == 2 && whole.upto[3] == 3);

    /* Two half pages of small space are no page: they join across the edge. */
    cmi_block_id a = carve(f, 100, UNITS_OF_PAGE - 100);
    stamps_drop(&f->stamps, at(f, a)->stamp);
    at(f, a)->stamp = CMI_HEAP_NO_STAMP;
    cmi_block_id page = carve(f, UNITS_OF_PAGE, 20);
    stamps_drop(&f->stamps, at(f, page)->stamp);
    cmi_heap_make_free(&f->heap, a, f->own.stream[1][0], 1, CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&f->heap, page, f->own.stream[1][0], 2, CMI_HEAP_NO_STAMP);
    assert_block(f, 100, UNITS_OF_PAGE - 80, CMI_BLOCK_FREE, f->own.stream[1][0]);
    assert_sound(f);
    fixture_free(f);
}

static void holes_and_stale_blocks_join_their_kind(void **state)
{
    (void)state;
    fixture *f = fixture_new(6);
    cmi_block_id a = live(f, 0, UNITS_OF_PAGE), b = live(f, UNITS_OF_PAGE, UNITS_OF_PAGE), c = live(f, 2 * UNITS_OF_PAGE, UNITS_OF_PAGE);
    cmi_heap_make_stale(&f->heap, a);
    cmi_heap_make_stale(&f->heap, b);
    assert_block(f, 0, 2 * UNITS_OF_PAGE, CMI_BLOCK_STALE, CMI_NO_BINSET);
    cmi_heap_make_hole(&f->heap, c);
    assert_block(f, 2 * UNITS_OF_PAGE, 4 * UNITS_OF_PAGE, CMI_BLOCK_HOLE, CMI_NO_BINSET);
    assert_sound(f);
    cmi_block_id piece = cmi_heap_cut(&f->heap, cmi_heap_find(&f->heap, f->base), f->base + PAGE, PAGE);
    cmi_heap_make_hole(&f->heap, piece);
    assert_block(f, 0, UNITS_OF_PAGE, CMI_BLOCK_STALE, CMI_NO_BINSET);
    assert_block(f, UNITS_OF_PAGE, 5 * UNITS_OF_PAGE, CMI_BLOCK_HOLE, CMI_NO_BINSET);
    assert_sound(f);
    assert_false(cmi_heap_space_is_hole(&f->heap, f->base));
    cmi_heap_make_hole(&f->heap, cmi_heap_find(&f->heap, f->base));
    assert_true(cmi_heap_space_is_hole(&f->heap, f->base));
    fixture_free(f);
}

static void busy_neighbours_become_one(void **state)
{
    (void)state;
    fixture *f = fixture_new(1);
    cmi_heap_make_free(&f->heap, carve(f, 0, 10), f->own.stream[0][0], 4, CMI_HEAP_NO_STAMP);
    uint32_t stream = f->own.stream[0][0];
    assert_int_equal(block_at(f, 0)->binset, stream); /* all of the page: done memory joined it */
    cmi_block_id a = carve(f, 0, 10), b = carve(f, 10, 10);
    at(f, b)->ticket = 6;
    a = cmi_heap_join_busy(&f->heap, a, b);
    assert_block(f, 0, 20, CMI_BLOCK_BUSY, stream);
    assert_int_equal(at(f, a)->ticket, 6); /* the youngest of one bin set */
    assert_sound(f);
    fixture_free(f);
}

static void every_offset_finds_its_block(void **state)
{
    (void)state;
    fixture *f = fixture_new(200);
    assert_true(cmi_heap_add_space(&f->heap, f->base - 64 * (uint64_t)PAGE, 3 * (uint64_t)PAGE));
    assert_true(cmi_heap_add_space(&f->heap, f->base + 1000 * (uint64_t)PAGE, PAGE));
    live(f, 3, 1);
    live(f, 70 * UNITS_OF_PAGE - 1, 3); /* across an edge */
    live(f, 199 * (uint64_t)UNITS_OF_PAGE + 5, UNITS_OF_PAGE - 5);
    for (uint32_t i = 0; i < f->heap.space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(&f->heap, i); id; id = at(f, id)->next) {
            uint64_t low = at(f, id)->offset, bytes = at(f, id)->bytes;
            const uint64_t probes[] = {0, 1, 511, bytes / 2, bytes - 512, bytes - 1};
            for (size_t p = 0; p < CMI_ARRAY_LENGTH(probes); p++) {
                assert_int_equal(cmi_heap_find(&f->heap, low + probes[p]), id);
            }
            for (uint64_t page = low; page < low + bytes; page += PAGE) { /* far from where it starts */
                assert_int_equal(cmi_heap_find(&f->heap, page), id);
            }
        }
    }
    const uint64_t outside[] = {0,
                                1,
                                f->base - 1,
                                f->base - 64 * (uint64_t)PAGE - 1,
                                f->base - 61 * (uint64_t)PAGE,
                                f->base + 200 * (uint64_t)PAGE,
                                f->base + 1001 * (uint64_t)PAGE,
                                UINT64_MAX};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(outside); i++) {
        assert_int_equal(cmi_heap_find(&f->heap, outside[i]), CMI_NO_BLOCK);
    }
    cmi_heap_remove_space(&f->heap, f->base - 64 * (uint64_t)PAGE);
    assert_int_equal(cmi_heap_find(&f->heap, f->base - 64 * (uint64_t)PAGE), CMI_NO_BLOCK);
    assert_sound(f);
    assert_false(cmi_heap_add_space(&f->heap, 0, CMI_MAX_BYTES + PAGE));
    fixture_free(f);
}

/* Every entry that may fail is made to fail at each of its requests for host memory, and changes nothing then. */
static void failures_of_host_memory_change_nothing(void **state)
{
    (void)state;
    uint64_t at_first = cmi_meta_bytes();
    for (uint64_t nth = 1; nth < 40; nth++) {
        fixture *f = fixture_new(2);
        uint32_t spaces = f->heap.space_count, binsets = f->heap.binset_count, failures = 0;
        cmi_meta_fail(nth, 1);
        for (unsigned i = 0; i < 20; i++) {
            uint64_t base = f->base + (16 + i) * (uint64_t)PAGE;
            if (cmi_heap_add_space(&f->heap, base, PAGE)) {
                spaces++;
            } else {
                failures++;
                assert_int_equal(cmi_heap_find(&f->heap, base), CMI_NO_BLOCK);
            }
            if (cmi_heap_add_binset(&f->heap, 7, 0, CMI_BINSET_MIXED, false, 0, 0)) {
                binsets++;
            } else {
                failures++;
            }
            assert_int_equal(f->heap.space_count, spaces);
            assert_int_equal(f->heap.binset_count, binsets);
            assert_sound(f);
        }
        cmi_meta_fail(0, 0);
        assert_int_equal(failures, 1);
        fixture_free(f);
    }
    cmi_meta_fail(1, 0);
    cmi_heap heap;
    stamps none = {0};
    cmi_heap_source source = stamps_source(&none, PAGE);
    cmi_heap_init(&heap, &source);
    assert_false(cmi_heap_reserve_records(&heap, 1));
    cmi_meta_fail(0, 0);
    assert_true(cmi_heap_reserve_records(&heap, 3000));
    assert_true(heap.unused_count >= 3000);
    assert_null(cmi_heap_validate(&heap));
    cmi_heap_fini(&heap);
    assert_int_equal(cmi_meta_bytes(), at_first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(take_leaves_the_rest_free),
        cmocka_unit_test(freeing_joins_by_kind_of_bin_set),
        cmocka_unit_test(rebin_joins_its_new_set_only),
        cmocka_unit_test(mixed_blocks_join_and_part_their_stamps),
        cmocka_unit_test(small_space_gives_whole_pages_to_its_partner),
        cmocka_unit_test(holes_and_stale_blocks_join_their_kind),
        cmocka_unit_test(busy_neighbours_become_one),
        cmocka_unit_test(every_offset_finds_its_block),
        cmocka_unit_test(failures_of_host_memory_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
