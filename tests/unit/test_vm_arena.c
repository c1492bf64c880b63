/*
 * Ranges: reserved, published in order, found by address, withdrawn, given back; and what the validation of an arena finds.
 */
#include "vm_fixture.h"

static void addresses_find_their_slots(void **state)
{
    (void)state;
    cmi_range *others[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cmi_range_prepare(store, (uint64_t)(i + 1) * 4 * PAGE - 1, &others[i]), CMPOOL_OK);
        assert_int_equal(others[i]->bytes, (uint64_t)(i + 1) * 4 * PAGE); /* rounded up */
        assert_int_equal(others[i]->slot_count, (i + 1) * 4);
        assert_int_equal(others[i]->base % PAGE, 0);
        assert_null(cmi_arena_range(&arena, others[i]->base)); /* not before it is published */
        assert_int_equal(cmi_arena_publish(&arena, others[i]), CMPOOL_OK);
    }
    assert_int_equal(arena.range_count, 4);
    assert_int_equal(arena.address_bytes, (RANGE_SLOTS + 4 + 8 + 12) * PAGE);
    assert_null(cmi_arena_validate(&arena)); /* order of address among others */

    for (uint32_t r = 0; r < arena.range_count; r++) {
        cmi_range *each = arena.ranges[r];
        assert_ptr_equal(cmi_arena_range(&arena, each->base), each);
        assert_ptr_equal(cmi_arena_range(&arena, each->base + each->bytes - 1), each);
        assert_ptr_not_equal(cmi_arena_range(&arena, each->base - 1), each);
        assert_ptr_not_equal(cmi_arena_range(&arena, each->base + each->bytes), each);
        assert_ptr_equal(cmi_arena_slot(&arena, each->base + 3 * PAGE + 5), &each->slots[3]);
        assert_int_equal(cmi_range_slot_number(&arena, each, each->base + 2 * PAGE - 1), 1);
    }
    assert_null(cmi_arena_range(&arena, 0));
    assert_null(cmi_arena_range(&arena, UINT64_MAX));

    cmi_arena_withdraw(&arena, others[1]);
    assert_null(cmi_arena_range(&arena, others[1]->base));
    assert_int_equal(arena.address_bytes, (RANGE_SLOTS + 4 + 12) * PAGE);
    assert_int_equal(sim_census(0).reservations, 4);
    cmi_range_drop(store, others[1]);
    assert_int_equal(sim_census(0).reservations, 3);
    assert_null(cmi_arena_validate(&arena));
}

static void many_ranges_stay_in_order(void **state)
{
    (void)state;
    cmi_range *each;
    for (int i = 0; i < 40; i++) {
        assert_int_equal(cmi_range_prepare(store, PAGE, &each), CMPOOL_OK);
        assert_int_equal(cmi_arena_publish(&arena, each), CMPOOL_OK);
        assert_ptr_equal(cmi_arena_range(&arena, each->base + 1), each);
    }
    assert_null(cmi_arena_validate(&arena));
}

static void sizes_that_make_no_range_are_refused(void **state)
{
    (void)state;
    cmi_range *none;
    assert_int_equal(cmi_range_prepare(store, 0, &none), CMPOOL_ERR_INVALID_ARGUMENT);
    assert_null(none);
    assert_int_equal(cmi_range_prepare(store, UINT64_MAX, &none), CMPOOL_ERR_INVALID_ARGUMENT);
}

static void no_addresses_and_no_host_memory_are_told(void **state)
{
    (void)state;
    cmi_range *none;
    uint64_t meta = cmi_meta_bytes();
    static const simcuda_when when[] = {SIMCUDA_BEFORE, SIMCUDA_AFTER};
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        sim.fail("cuMemAddressReserve", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, when[w]);
        assert_int_equal(cmi_range_prepare(store, 4 * PAGE, &none), CMPOOL_ERR_OUT_OF_ADDRESSES);
        assert_null(none);
    }
    for (uint64_t nth = 1; nth <= 3; nth++) { /* record, slots, mappings */
        cmi_meta_fail(nth, 1);
        assert_int_equal(cmi_range_prepare(store, 4 * PAGE, &none), CMPOOL_ERR_OUT_OF_HOST_MEMORY);
        cmi_meta_fail(0, 0);
    }
    assert_int_equal(sim_census(0).reservations, 1);
    assert_int_equal(cmi_meta_bytes(), meta);
}

static void a_range_that_cannot_be_published_is_still_the_callers(void **state)
{
    (void)state;
    cmi_range *each = NULL;
    cmpool_status status = CMPOOL_OK;
    for (int i = 0; status == CMPOOL_OK; i++) {
        assert_true(i < 100);
        assert_int_equal(cmi_range_prepare(store, PAGE, &each), CMPOOL_OK);
        cmi_meta_fail(1, 0);
        status = cmi_arena_publish(&arena, each); /* fails when the table has to grow */
        cmi_meta_fail(0, 0);
    }
    assert_int_equal(status, CMPOOL_ERR_OUT_OF_HOST_MEMORY);
    assert_null(cmi_arena_range(&arena, each->base));
    assert_null(cmi_arena_validate(&arena));
    cmi_range_drop(store, each);
}

static void addresses_the_driver_will_not_take_are_tried_again(void **state)
{
    (void)state;
    static const simcuda_when when[] = {SIMCUDA_BEFORE, SIMCUDA_AFTER};
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        cmi_range *lost;
        assert_int_equal(cmi_range_prepare(store, 4 * PAGE, &lost), CMPOOL_OK);
        sim.fail("cuMemAddressFree", 1, 1, CUDA_ERROR_UNKNOWN, when[w]);
        cmi_range_drop(store, lost);
    }
    assert_int_equal(counts().lost_ranges, 2);
} /* stop_arena sees that closing gives back the one and forgets the other */

static void addresses_given_out_anew_are_not_freed_as_lost(void **state)
{
    (void)state;
    cmi_range *lost, *again;
    assert_int_equal(cmi_range_prepare(store, 4 * PAGE, &lost), CMPOOL_OK);
    uint64_t base = lost->base;
    sim.fail("cuMemAddressFree", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER);
    cmi_range_drop(store, lost);
    assert_int_equal(counts().lost_ranges, 1);
    assert_int_equal(cmi_range_prepare(store, 4 * PAGE, &again), CMPOOL_OK);
    assert_int_equal(again->base, base); /* the simulated driver gives the last one out first */
    assert_int_equal(counts().lost_ranges, 0);
    cmi_range_drop(store, again);
    assert_int_equal(sim_census(0).reservations, 1);
}

/* Each fault alone is found, and gone when it is mended. */
static void validation_finds_what_is_wrong(void **state)
{
    (void)state;
    uint32_t pages[2];
    make_pages(pages, 2);
    map_pages(3, pages, 2);
    cmi_slot *slots = range->slots;
    assert_null(cmi_arena_validate(&arena));

    slots[3].page = pages[1];
    assert_non_null(cmi_arena_validate(&arena)); /* another page than the one mapped */
    slots[3].page = 1000;
    assert_non_null(cmi_arena_validate(&arena)); /* no such page */
    slots[3].page = pages[0];
    slots[5].state = CMI_SLOT_MAPPED;
    slots[5].page = pages[1];
    assert_non_null(cmi_arena_validate(&arena)); /* nothing mapped there */
    slots[5].state = CMI_SLOT_EMPTY;
    assert_non_null(cmi_arena_validate(&arena)); /* empty, yet it names a page */
    slots[5].page = CMI_NO_PAGE;
    slots[4].state = CMI_SLOT_HELD;
    slots[4].page = CMI_NO_PAGE;
    assert_non_null(cmi_arena_validate(&arena)); /* held, yet a page is mapped */
    slots[4] = (cmi_slot){.page = pages[1], .stamp = CMI_NO_STAMP, .state = CMI_SLOT_STALE, .fixed = 1};
    assert_non_null(cmi_arena_validate(&arena)); /* fixed and stale */
    slots[4].fixed = 0;
    assert_null(cmi_arena_validate(&arena));
    slots[4].state = 9;
    assert_non_null(cmi_arena_validate(&arena)); /* no such state */
    slots[4].state = CMI_SLOT_MAPPED;
    arena.address_bytes++;
    assert_non_null(cmi_arena_validate(&arena));
    arena.address_bytes--;

    map_pages(10, &pages[1], 1); /* now at two addresses */
    assert_non_null(cmi_arena_validate(&arena));
    slots[4].state = CMI_SLOT_STALE;
    assert_null(cmi_arena_validate(&arena));

    unmap_pages(3, 2);
    unmap_pages(10, 1);
    cmi_store_release(store, pages, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(addresses_find_their_slots, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(many_ranges_stay_in_order, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(sizes_that_make_no_range_are_refused, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(no_addresses_and_no_host_memory_are_told, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_range_that_cannot_be_published_is_still_the_callers, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(addresses_the_driver_will_not_take_are_tried_again, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(addresses_given_out_anew_are_not_freed_as_lost, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(validation_finds_what_is_wrong, start_arena, stop_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
