/*
 * Windows and idle runs in layouts made by hand, where it is known what must come out.
 */
#include "test_heap_fixture.h"

static cmi_window window_of(const fixture *f, const uint8_t *use, uint64_t units, uint64_t align)
{
    cmi_window window = {0};
    assert_true(cmi_heap_find_window(&f->heap, use, units * CMI_UNIT, align, &window));
    return window;
}

static void a_window_needs_the_fewest_pages(void **state)
{
    (void)state;
    fixture *f = fixture_new(20);
    uint8_t use[64];
    memset(use, CMI_USE_BYTES, sizeof use);
    const uint64_t page = UNITS_OF_PAGE;
    /* |live 100 .. free| 3 holes | page: free 500, live | 4 holes | page: live 200, free | rest holes */
    live(f, 0, 100);
    live(f, 4 * page + 500, page - 500);
    live(f, 9 * page, 200);
    cmi_window window = window_of(f, use, page, CMI_UNIT);
    assert_int_equal(window.pages, 1);
    window = window_of(f, use, page - 100, CMI_UNIT); /* lies in the first page: nothing is needed */
    assert_int_equal(window.pages, 0);
    assert_int_equal(window.offset, f->base + 100 * CMI_UNIT);
    window = window_of(f, use, page - 99, CMI_UNIT);
    assert_int_equal(window.pages, 1);
    window = window_of(f, use, 4 * page + 400, CMI_UNIT); /* all there is between the first two live blocks, to the unit */
    assert_int_equal(window.pages, 3);
    assert_int_equal(window.offset, f->base + 100 * CMI_UNIT);
    window = window_of(f, use, 4 * page - 10, CMI_UNIT); /* one behind the last live block needs as many, and lies higher */
    assert_int_equal(window.pages, 3);
    assert_true(window.offset < f->base + 5 * page * CMI_UNIT);
    assert_false(cmi_heap_find_window(&f->heap, use, 11 * page * CMI_UNIT, CMI_UNIT, &window));
    assert_false(cmi_heap_find_window(&f->heap, use, CMI_MAX_BYTES, CMI_UNIT, &window));
    assert_false(cmi_heap_find_window(&f->heap, use, UINT64_MAX - CMI_UNIT + 1, CMI_UNIT, &window));

    memset(use, CMI_USE_NOT, sizeof use); /* holes alone */
    window = window_of(f, use, page + 1, CMI_UNIT);
    assert_int_equal(window.pages, 2);
    assert_int_equal(window.offset, f->base + page * CMI_UNIT);
    memset(use, CMI_USE_PAGES, sizeof use); /* no whole free page: as before */
    assert_int_equal(window_of(f, use, page, CMI_UNIT).pages, 1);
    cmi_heap_make_free(&f->heap, cmi_heap_find(&f->heap, f->base), f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    assert_int_equal(window_of(f, use, page, CMI_UNIT).pages, 0);
    assert_int_equal(window_of(f, use, 4 * page, CMI_UNIT).pages, 3);
    fixture_free(f);
}

/* With an alignment above the page the best window may begin and end inside holes, with free bytes between. */
static void a_large_alignment_does_not_cost_pages(void **state)
{
    (void)state;
    fixture *f = fixture_new(200);
    uint8_t use[64];
    memset(use, CMI_USE_BYTES, sizeof use);
    uint64_t align = 16 * (uint64_t)PAGE, first = (cmi_round_up(f->base, align) - f->base) / PAGE;
    uint64_t gap = first + 34; /* a free page a little behind the third aligned place */
    cmi_block_id id = carve(f, gap * UNITS_OF_PAGE, UNITS_OF_PAGE);
    cmi_heap_make_free(&f->heap, id, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_window window = window_of(f, use, 10 * UNITS_OF_PAGE, align);
    assert_int_equal(window.pages, 9);
    assert_int_equal(window.offset, f->base + (first + 32) * PAGE);
    fixture_free(f);
}

static void runs_beside_holes_are_marked(void **state)
{
    (void)state;
    fixture *f = fixture_new(12);
    uint8_t use[64];
    memset(use, CMI_USE_BYTES, sizeof use);
    const uint64_t page = UNITS_OF_PAGE;
    cmi_block_id id = carve(f, 2 * page, 3 * page); /* holes, three pages, holes */
    cmi_heap_make_free(&f->heap, id, f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    id = carve(f, 8 * page, page); /* a page of two bin sets, then a page with a live unit */
    cmi_heap_make_free(&f->heap, cmi_heap_cut(&f->heap, id, f->base + 8 * page * CMI_UNIT, PAGE / 2), f->own.stream[0][0], 1,
                       CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&f->heap, cmi_heap_find(&f->heap, f->base + 8 * page * CMI_UNIT + PAGE / 2), f->own.stream[0][1], 1,
                       CMI_HEAP_NO_STAMP);
    live(f, 9 * page + 7, 1);
    assert_sound(f);
    cmi_idle_run runs[4];
    uint64_t pages;
    assert_int_equal(cmi_heap_idle_runs(&f->heap, use, 0, 0, runs, 4, &pages), 2);
    assert_int_equal(pages, 4);
    assert_true(runs[0].offset == f->base + 2 * (uint64_t)PAGE && runs[0].pages == 3 && runs[0].hole_before && runs[0].hole_behind);
    assert_true(runs[1].offset == f->base + 8 * (uint64_t)PAGE && runs[1].pages == 1 && runs[1].hole_before && !runs[1].hole_behind);
    assert_int_equal(cmi_heap_longest_free(&f->heap, use), 3 * (uint64_t)PAGE);
    /* A window over a byte of the middle page parts the first run. */
    assert_int_equal(cmi_heap_idle_runs(&f->heap, use, f->base + 3 * (uint64_t)PAGE + 512, 512, runs, 4, &pages), 3);
    assert_true(runs[0].pages == 1 && runs[0].hole_before && !runs[0].hole_behind);
    assert_true(runs[1].pages == 1 && !runs[1].hole_before && runs[1].hole_behind);
    use[f->own.stream[0][1]] = CMI_USE_NOT;
    assert_int_equal(cmi_heap_idle_runs(&f->heap, use, 0, 0, runs, 0, NULL), 1);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_needs_the_fewest_pages),
        cmocka_unit_test(a_large_alignment_does_not_cost_pages),
        cmocka_unit_test(runs_beside_holes_are_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
