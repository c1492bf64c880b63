/*
 * Bins: best fit against a look at every free block, over sizes from one unit to the largest, with and without an alignment.
 */
#include "test_heap_fixture.h"
#include "heap/internal.h"

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void bins_are_in_order_of_size(void **state)
{
    (void)state;
    unsigned last = 0, row, column;
    for (uint64_t units = 1; units <= CMI_MAX_BYTES / CMI_UNIT; units += 1 + units / 37) {
        cmi_bin_position(units * CMI_UNIT, &row, &column);
        assert_true(row < CMI_BIN_ROWS && column < CMI_BIN_COLUMNS);
        assert_true(row * CMI_BIN_COLUMNS + column >= last);
        last = row * CMI_BIN_COLUMNS + column;
    }
    cmi_bin_position(CMI_MAX_BYTES, &row, &column);
    assert_int_equal(row, CMI_BIN_ROWS - 1);
}

/* Free blocks of many sizes between live ones, in one bin set, and every request that could tell two of them apart. */
static void best_fit_is_the_smallest_that_fits(void **state)
{
    (void)state;
    enum { PAGES = 40, FREE_BLOCKS = 400 };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        fixture *f = fixture_new(PAGES);
        uint64_t random = seed, unit = 0, sizes[FREE_BLOCKS], offsets[FREE_BLOCKS];
        unsigned count = 0;
        while (count < FREE_BLOCKS) {
            uint64_t units = 1 + next_random(&random) % (UINT64_C(2) << next_random(&random) % 9);
            uint64_t gap = 1 + next_random(&random) % 3;
            if (unit + units + gap > (uint64_t)PAGES * UNITS_OF_PAGE) {
                break;
            }
            cmi_block_id id = carve(f, unit, units);
            live(f, unit + units, gap);
            cmi_heap_make_free(&f->heap, id, f->own.stream[0][0], 1, CMI_HEAP_NO_STAMP);
            sizes[count] = units * CMI_UNIT;
            offsets[count++] = f->base + unit * CMI_UNIT;
            unit += units + gap;
        }
        assert_int_equal(count, FREE_BLOCKS);
        assert_sound(f);
        assert_int_equal(cmi_heap_binset(&f->heap, f->own.stream[0][0])->free_blocks, FREE_BLOCKS);
        for (uint64_t ask = 1; ask <= 1100; ask++) {
            uint64_t best = 0, best_bytes = UINT64_MAX;
            for (unsigned i = 0; i < count; i++) {
                if (sizes[i] >= ask * CMI_UNIT && sizes[i] < best_bytes) {
                    best = offsets[i];
                    best_bytes = sizes[i];
                }
            }
            cmi_block_id id = cmi_heap_best_fit(&f->heap, f->own.stream[0][0], ask * CMI_UNIT, CMI_UNIT);
            assert_int_equal(id ? at(f, id)->offset : 0, best);
        }
        fixture_free(f);
    }
}

static bool fits(const fixture *f, cmi_block_id id, uint64_t bytes, uint64_t align)
{
    return cmi_round_up(at(f, id)->offset, align) + bytes <= at(f, id)->offset + at(f, id)->bytes;
}

/* Forty blocks long enough, none of which lies right, but for one behind them all; and none so large that it would have to fit. */
static void aligned_fit_is_found_among_many_that_do_not_fit(void **state)
{
    (void)state;
    enum { COUNT = 40 };
    fixture *f = fixture_new(COUNT + 2);
    uint64_t bytes = 64 * CMI_UNIT, align = 1024 * (uint64_t)CMI_UNIT;
    uint32_t set = f->own.stream[0][0];
    for (unsigned i = 0; i < COUNT; i++) {
        cmi_block_id id = carve(f, i * (uint64_t)UNITS_OF_PAGE + 8, 64 + i);
        live(f, i * (uint64_t)UNITS_OF_PAGE, 8);
        live(f, i * (uint64_t)UNITS_OF_PAGE + 72 + i, UNITS_OF_PAGE - 72 - i);
        cmi_heap_make_free(&f->heap, id, set, 1, CMI_HEAP_NO_STAMP);
    }
    assert_int_equal(cmi_heap_best_fit(&f->heap, set, bytes, align), CMI_NO_BLOCK);
    cmi_block_id right = carve(f, (uint64_t)COUNT * UNITS_OF_PAGE, 64 + COUNT);
    live(f, (uint64_t)COUNT * UNITS_OF_PAGE + 64 + COUNT, 1);
    cmi_heap_make_free(&f->heap, right, set, 1, CMI_HEAP_NO_STAMP);
    assert_int_equal(cmi_heap_best_fit(&f->heap, set, bytes, align), right);
    assert_true(fits(f, right, bytes, align));
    fixture_free(f);
}

static void alignments_are_met(void **state)
{
    (void)state;
    fixture *f = fixture_new(16);
    uint32_t set = f->own.stream[0][1];
    uint64_t random = 7;
    cmi_heap_make_free(&f->heap, carve(f, 0, 8 * UNITS_OF_PAGE), set, 1, CMI_HEAP_NO_STAMP);
    for (unsigned i = 0; i < 2000; i++) {
        uint64_t bytes = (1 + next_random(&random) % 3000) * CMI_UNIT, align = (uint64_t)CMI_UNIT << next_random(&random) % 14;
        bool any = false;
        for (cmi_block_id id = cmi_heap_first_block(&f->heap, 0); id; id = at(f, id)->next) {
            any = any || (at(f, id)->kind == CMI_BLOCK_FREE && at(f, id)->binset == set && fits(f, id, bytes, align));
        }
        cmi_block_id id = cmi_heap_best_fit(&f->heap, set, bytes, align);
        assert_int_equal(id != CMI_NO_BLOCK, any);
        if (!id) { /* full: begin again with what half of the live blocks held */
            for (cmi_block_id old = cmi_heap_first_block(&f->heap, 0); old; old = at(f, old)->next) {
                if (at(f, old)->kind == CMI_BLOCK_LIVE && next_random(&random) % 2) {
                    old = cmi_heap_make_free(&f->heap, old, set, 1, CMI_HEAP_NO_STAMP);
                }
            }
            assert_sound(f);
            continue;
        }
        assert_true(fits(f, id, bytes, align));
        id = cmi_heap_take(&f->heap, id, cmi_round_up(at(f, id)->offset, align), bytes);
        cmi_heap_make_live(&f->heap, id, set, bytes, 0, 0);
        assert_true(cmi_heap_reserve_records(&f->heap, 64));
    }
    assert_sound(f);
    fixture_free(f);
}

static void impossible_sizes_are_not_found(void **state)
{
    (void)state;
    fixture *f = fixture_new(4);
    uint32_t set = f->own.done[0];
    live(f, 0, 1);
    assert_int_not_equal(cmi_heap_best_fit(&f->heap, set, CMI_UNIT, CMI_UNIT), CMI_NO_BLOCK);
    const uint64_t sizes[] = {
        PAGE, CMI_MAX_BYTES - CMI_UNIT, CMI_MAX_BYTES, CMI_MAX_BYTES * 2, UINT64_C(1) << 63, UINT64_MAX - CMI_UNIT + 1};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(sizes); i++) {
        for (uint64_t align = CMI_UNIT; align <= CMI_MAX_BYTES; align *= 16) {
            assert_int_equal(cmi_heap_best_fit(&f->heap, set, sizes[i], align), CMI_NO_BLOCK);
        }
    }
    assert_int_equal(cmi_heap_best_fit(&f->heap, set, CMI_UNIT, UINT64_C(1) << 62), CMI_NO_BLOCK);
    fixture_free(f);

    /* A range of the largest length there is, all of it free. */
    f = fixture_new(1);
    cmi_heap_source source = stamps_source(&f->stamps, UINT64_C(1) << 40);
    cmi_heap big;
    cmi_heap_init(&big, &source);
    set = cmi_heap_add_binset(&big, 0, 0, CMI_BINSET_DONE, false, 0, 0);
    assert_true(cmi_heap_add_space(&big, CMI_MAX_BYTES, CMI_MAX_BYTES));
    cmi_block_id id = cmi_heap_find(&big, CMI_MAX_BYTES);
    cmi_heap_block(&big, id)->kind = CMI_BLOCK_BUSY;
    id = cmi_heap_make_free(&big, id, set, 0, CMI_HEAP_NO_STAMP);
    assert_null(cmi_heap_validate(&big));
    assert_int_equal(cmi_heap_best_fit(&big, set, CMI_MAX_BYTES, CMI_UNIT), id);
    assert_int_equal(cmi_heap_best_fit(&big, set, CMI_MAX_BYTES + CMI_UNIT, CMI_UNIT), CMI_NO_BLOCK);
    assert_int_equal(cmi_heap_best_fit(&big, set, CMI_UNIT, CMI_MAX_BYTES), id);
    id = cmi_heap_take(&big, id, 2 * CMI_MAX_BYTES - CMI_UNIT, CMI_UNIT);
    cmi_heap_make_live(&big, id, set, 1, 0, 0);
    assert_int_equal(cmi_heap_block(&big, id)->slack, CMI_UNIT - 1);
    assert_null(cmi_heap_validate(&big));
    cmi_heap_fini(&big);
    fixture_free(f);
}

static void bin_set_numbers_are_used_again(void **state)
{
    (void)state;
    fixture *f = fixture_new(1);
    uint32_t before = f->heap.binset_count, numbers[50];
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < CMI_ARRAY_LENGTH(numbers); i++) {
            numbers[i] = cmi_heap_add_binset(&f->heap, 3, 0, CMI_BINSET_MIXED, false, 0, 0);
            assert_int_equal(cmi_heap_binset(&f->heap, numbers[i])->mixed, numbers[i]);
            assert_true(cmi_binset_is_empty(cmi_heap_binset(&f->heap, numbers[i])));
        }
        assert_int_equal(f->heap.binset_count, before + CMI_ARRAY_LENGTH(numbers));
        for (unsigned i = 0; i < CMI_ARRAY_LENGTH(numbers); i++) {
            cmi_heap_remove_binset(&f->heap, numbers[i]);
        }
        assert_sound(f);
    }
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bins_are_in_order_of_size),
        cmocka_unit_test(best_fit_is_the_smallest_that_fits),
        cmocka_unit_test(aligned_fit_is_found_among_many_that_do_not_fit),
        cmocka_unit_test(alignments_are_met),
        cmocka_unit_test(impossible_sizes_are_not_found),
        cmocka_unit_test(bin_set_numbers_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
