/*
 * Mapping and unmapping runs of pages; what is undone, and what stays counted, when the driver fails in the middle.
 */
#include "vm_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

static const simcuda_when when[] = {SIMCUDA_BEFORE, SIMCUDA_AFTER};

static void a_run_takes_one_grant_and_one_unmap(void **state)
{
    (void)state;
    uint32_t pages[8];
    make_pages(pages, 8);
    sim.counts_reset();
    map_pages(4, pages, 8);
    assert_int_equal(sim.calls_of("cuMemMap"), 8);
    assert_int_equal(sim.calls_of("cuMemSetAccess"), 1);
    assert_int_equal(cmi_store_mappings(store), 8);
    assert_int_equal(sim_census(0).mappings, 8);
    assert_int_equal(sim.touch(NULL, slot_address(4), 8 * PAGE, 1), 0);

    unmap_pages(4, 8);
    assert_int_equal(sim.calls_of("cuMemUnmap"), 1);
    assert_int_equal(cmi_store_mappings(store), 0);
    assert_int_equal(sim_census(0).mappings, 0);
    assert_int_equal(counts().mapped, 8);
    assert_int_equal(counts().unmapped, 8);
    cmi_store_release(store, pages, 8);
}

static void a_page_may_have_two_addresses(void **state)
{
    (void)state;
    uint32_t pages[3];
    make_pages(pages, 3);
    map_pages(0, pages, 3);
    map_pages(20, &pages[1], 1);
    range->slots[1].state = CMI_SLOT_STALE;
    assert_int_equal(cmi_store_mappings(store), 4);
    assert_null(cmi_arena_validate(&arena));
    unmap_pages(1, 1);
    assert_int_equal(sim.touch(NULL, slot_address(20), PAGE, 0), 0);
    assert_int_equal(cmi_store_mappings(store), 3);

    sim.counts_reset();
    unmap_pages(0, 3); /* with a hole: one call each side of it */
    assert_int_equal(sim.calls_of("cuMemUnmap"), 2);
    unmap_pages(20, 1);
    cmi_store_release(store, pages, 3);
}

/* ---- failures of a map -------------------------------------------------------------------------- */

static void assert_nothing_mapped(void)
{
    assert_int_equal(cmi_store_mappings(store), 0);
    assert_int_equal(sim_census(0).mappings, 0);
    assert_int_equal(counts().stuck_slots, 0);
    assert_null(cmi_arena_validate(&arena));
}

static void a_map_that_fails_is_undone(void **state)
{
    (void)state;
    enum { COUNT = 5 };
    uint32_t pages[COUNT];
    make_pages(pages, COUNT);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        for (uint64_t nth = 1; nth <= COUNT; nth++) {
            sim.fail("cuMemMap", nth, 1, CUDA_ERROR_UNKNOWN, when[w]);
            cmi_map_result result = cmi_arena_map(&arena, slot_address(2), pages, COUNT);
            sim.fail_clear();
            assert_int_equal(result.status, CMPOOL_ERR_DRIVER);
            assert_int_equal(result.mapped, 0);
            assert_int_equal(result.stuck, 0);
            assert_string_equal(cmi_error_detail()->driver_call, "cuMemMap");
            assert_int_equal(cmi_error_detail()->driver_code, CUDA_ERROR_UNKNOWN);
            assert_nothing_mapped();
        }
    }
    map_pages(2, pages, COUNT);
    unmap_pages(2, COUNT);
    cmi_store_release(store, pages, COUNT);
}

static void a_grant_refused_once_is_made_page_by_page(void **state)
{
    (void)state;
    uint32_t pages[4];
    make_pages(pages, 4);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        sim.fail("cuMemSetAccess", 1, 1, CUDA_ERROR_INVALID_VALUE, when[w]);
        map_pages(0, pages, 4);
        assert_int_equal(sim.touch(NULL, slot_address(0), 4 * PAGE, 1), 0);
        unmap_pages(0, 4);
    }
    cmi_store_release(store, pages, 4);
}

static void a_grant_that_fails_undoes_the_map(void **state)
{
    (void)state;
    uint32_t pages[4];
    make_pages(pages, 4);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        sim.fail("cuMemSetAccess", 1, 0, CUDA_ERROR_UNKNOWN, when[w]);
        cmi_map_result result = cmi_arena_map(&arena, slot_address(0), pages, 4);
        sim.fail_clear();
        assert_int_equal(result.status, CMPOOL_ERR_DRIVER);
        assert_string_equal(cmi_error_detail()->driver_call, "cuMemSetAccess");
        assert_int_equal(result.mapped + result.stuck, 0);
        assert_nothing_mapped();
    }
    cmi_store_release(store, pages, 4);
}

static void out_of_memory_in_a_map_is_the_mapping_ceiling(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuMemMap", "cuMemSetAccess"};
    uint32_t pages[4];
    make_pages(pages, 4);
    for (size_t c = 0; c < CMI_ARRAY_LENGTH(calls); c++) {
        sim.fail(calls[c], 1, 1, CUDA_ERROR_OUT_OF_MEMORY, SIMCUDA_BEFORE);
        cmi_map_result result = cmi_arena_map(&arena, slot_address(0), pages, 4);
        assert_int_equal(result.status, CMPOOL_ERR_MAPPING_CEILING);
        assert_nothing_mapped();
    }
    cmi_store_release(store, pages, 4);
}

/* ---- failures of an unmap --------------------------------------------------------------------------------------------------------------
 */

static void an_unmap_refused_once_is_made_page_by_page(void **state)
{
    (void)state;
    enum { COUNT = 4 };
    uint32_t pages[COUNT];
    make_pages(pages, COUNT);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        for (uint32_t count = 1; count <= COUNT; count++) {
            map_pages(0, pages, count);
            sim.fail("cuMemUnmap", 1, 1, CUDA_ERROR_UNKNOWN, when[w]);
            unmap_pages(0, count);
            assert_nothing_mapped();
        }
    }
    cmi_store_release(store, pages, COUNT);
}

static void what_cannot_be_unmapped_is_told_slot_by_slot(void **state)
{
    (void)state;
    uint32_t pages[4];
    bool done[4];
    cmpool_status status;
    make_pages(pages, 4);
    map_pages(0, pages, 4);
    sim.fail("cuMemUnmap", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE); /* the run */
    sim.fail("cuMemUnmap", 3, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE); /* and its second page */
    assert_int_equal(cmi_arena_unmap(&arena, slot_address(0), 4, done, &status), 3);
    assert_int_equal(status, CMPOOL_ERR_DRIVER);
    assert_true(done[0] && !done[1] && done[2] && done[3]);
    assert_int_equal(cmi_store_mappings(store), 1);
    assert_int_equal(sim_census(0).mappings, 1);
    sim.fail_clear();
    unmap_pages(0, 4);
    cmi_store_release(store, pages, 4);
}

/* Every unmap reports a failure, with or without having happened: nothing is believed, and the next try finds the truth. */
static void an_unmap_that_keeps_failing_leaves_the_record_safe(void **state)
{
    (void)state;
    uint32_t pages[4];
    bool done[4];
    cmpool_status status;
    make_pages(pages, 4);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        map_pages(0, pages, 4);
        sim.fail("cuMemUnmap", 1, 0, CUDA_ERROR_UNKNOWN, when[w]);
        uint32_t unmapped = cmi_arena_unmap(&arena, slot_address(0), 4, done, &status);
        sim.fail_clear();
        assert_int_equal(4 - unmapped, cmi_store_mappings(store));
        assert_true(cmi_store_mappings(store) >= sim_census(0).mappings);
        assert_int_equal(status, unmapped == 4 ? CMPOOL_OK : CMPOOL_ERR_DRIVER);
        unmap_pages(0, 4);
        assert_nothing_mapped();
    }
    cmi_store_release(store, pages, 4);
}

/* Drivers before CUDA 11 cannot say what is mapped: a page whose map failed is unmapped unasked. */
static void a_driver_that_cannot_be_asked_keeps_nothing_mapped(void **state)
{
    (void)state;
    cmi_driver old = *driver;
    old.MemRetainAllocationHandle = NULL;
    assert_int_equal(cmi_store_open(&store, &(cmi_store_config){.driver = &old}), CMPOOL_OK);
    open_arena();
    uint32_t pages[3];
    make_pages(pages, 3);
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        sim.fail("cuMemMap", 2, 1, CUDA_ERROR_UNKNOWN, when[w]);
        assert_int_equal(cmi_arena_map(&arena, slot_address(0), pages, 3).status, CMPOOL_ERR_DRIVER);
        assert_nothing_mapped();
    }
    map_pages(0, pages, 3);
    unmap_pages(0, 3);
    cmi_store_release(store, pages, 3);
    cmi_arena_fini(&arena); /* here: the table of the old driver ends with this function */
    assert_int_equal(cmi_store_close(store), 0);
}

/* ---- stuck slots
 * --------------------------------------------------------------------------------------------------------------------------- */

/* A map of all pages that fails and cannot be undone. */
static void get_stuck(uint32_t first, const uint32_t *pages, uint32_t count)
{
    sim.fail("cuMemSetAccess", 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    sim.fail("cuMemUnmap", 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    cmi_map_result result = cmi_arena_map(&arena, slot_address(first), pages, count);
    assert_int_equal(result.status, CMPOOL_ERR_DRIVER);
    assert_string_equal(cmi_error_detail()->driver_call, "cuMemSetAccess"); /* the failure, not that of the undoing */
    assert_int_equal(result.stuck, count);
    assert_int_equal(counts().stuck_slots, count);
    assert_int_equal(cmi_store_mappings(store), count);
    assert_null(cmi_arena_validate(&arena)); /* to the pool these slots are empty */
}

static void a_stuck_slot_is_freed_by_the_next_map(void **state)
{
    (void)state;
    uint32_t pages[4], others[4];
    make_pages(pages, 4);
    make_pages(others, 4);
    get_stuck(0, pages, 4);

    cmi_map_result result = cmi_arena_map(&arena, slot_address(2), others, 4); /* half of it over stuck slots */
    assert_int_equal(result.status, CMPOOL_ERR_DRIVER);
    assert_int_equal(result.stuck, 1);
    assert_int_equal(counts().stuck_slots, 4);

    sim.fail_clear();
    map_pages(0, others, 4);
    assert_int_equal(counts().stuck_slots, 0);
    assert_int_equal(sim_census(0).mappings, 4);
    cmi_store_release(store, pages, 4);
    unmap_pages(0, 4);
    cmi_store_release(store, others, 4);
}

static void a_stuck_page_is_released_when_it_can_be(void **state)
{
    (void)state;
    uint32_t pages[2], other;
    make_pages(pages, 2);
    get_stuck(0, pages, 2);
    cmi_store_release(store, pages, 2);
    assert_int_equal(cmi_store_stranded(store), 2);
    assert_int_equal(cmi_store_pages(store), 0);
    make_pages(&other, 1);
    assert_true(other != pages[0] && other != pages[1]);

    sim.fail_clear();
    cmi_store_release(store, &other, 1);
    assert_int_equal(cmi_store_stranded(store), 0);
    assert_nothing_mapped();
    assert_int_equal(sim_census(0).handles, 0);
}

static void a_range_with_stuck_slots_is_kept_until_they_go(void **state)
{
    (void)state;
    uint32_t pages[2];
    make_pages(pages, 2);
    get_stuck(5, pages, 2);
    cmi_arena_withdraw(&arena, range);
    cmi_range_drop(store, range);
    assert_int_equal(counts().lost_ranges, 1);
    assert_int_equal(sim_census(0).reservations, 1);
    sim.fail_clear();
    cmi_store_release(store, pages, 2);
    assert_int_equal(sim_census(0).handles, 0);
} /* stop_arena sees that closing gives the range back */

/* Destroying a pool while the driver refuses everything: it comes to an end, and nothing is forgotten. */
static void slots_that_cannot_be_unmapped_can_be_given_up(void **state)
{
    (void)state;
    uint32_t pages[3];
    bool done[3];
    cmpool_status status;
    make_pages(pages, 3);
    map_pages(7, pages, 3);
    sim.fail("cuMemUnmap", 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    assert_int_equal(cmi_arena_unmap(&arena, slot_address(7), 3, done, &status), 0);
    assert_int_equal(cmi_arena_abandon(&arena, slot_address(6), 5), 3);
    for (uint32_t slot = 7; slot < 10; slot++)
        range->slots[slot] = range->slots[0];
    assert_null(cmi_arena_validate(&arena));
    cmi_store_release(store, pages, 3);
    assert_int_equal(cmi_store_stranded(store), 3);
    cmi_arena_withdraw(&arena, range);
    cmi_range_drop(store, range);
    assert_int_equal(counts().lost_ranges, 1);
} /* stop_arena sees that closing gives all of it back once the driver is well */

/* ---- the caller's own mistakes ----------------------------------------------------------------------------------------------------------
 */

static uint32_t mapped_page;
static void release_a_mapped_page(void) { cmi_store_release(store, &mapped_page, 1); }
static void map_over_a_page(void) { cmi_arena_map(&arena, slot_address(3), &mapped_page, 1); }
static void map_a_page_that_is_not_held(void) { cmi_arena_map(&arena, slot_address(9), &(uint32_t){mapped_page + 1}, 1); }
static void map_beyond_the_range(void) { cmi_arena_map(&arena, slot_address(RANGE_SLOTS), &mapped_page, 1); }
static void release_an_unknown_page(void) { cmi_store_release(store, &(uint32_t){CMI_NO_PAGE}, 1); }

/* Validating builds stop at a mistake, so there it is made in a process of its own; others refuse it and change nothing. */
static void assert_refused(void (*mistake)(void))
{
#ifdef CMI_VALIDATE
    pid_t child = fork();
    if (child == 0) {
        mistake();
        _exit(0);
    }
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_false(WIFEXITED(end) && WEXITSTATUS(end) == 0);
#else
    mistake();
#endif
    assert_int_equal(cmi_store_pages(store), 1);
    assert_int_equal(cmi_store_mappings(store), 1);
    assert_int_equal(sim_census(0).handles, 1);
    assert_int_equal(sim_census(0).mappings, 1);
    assert_null(cmi_arena_validate(&arena));
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    make_pages(&mapped_page, 1);
    map_pages(3, &mapped_page, 1);
    assert_refused(release_a_mapped_page);
    assert_refused(map_over_a_page);
    assert_refused(map_a_page_that_is_not_held);
    assert_refused(map_beyond_the_range);
    assert_refused(release_an_unknown_page);
    unmap_pages(3, 1);
    cmi_store_release(store, &mapped_page, 1);
}

/* ---- peers
 * -------------------------------------------------------------------------------------------------------------------------------- */

static int touch_from_neighbour(uint64_t address)
{
    CUcontext neighbour;
    cmi_driver_scope there;
    assert_int_equal(driver->DevicePrimaryCtxRetain(&neighbour, 1), CUDA_SUCCESS);
    assert_int_equal(cmi_driver_enter(&there, driver, neighbour), CMPOOL_OK);
    int code = sim.touch(NULL, address, PAGE, 1);
    driver->CtxSynchronize();
    cmi_driver_leave(&there);
    driver->DevicePrimaryCtxRelease(1);
    return code;
}

static void peers_get_access_to_every_mapping(void **state)
{
    (void)state;
    static const int peers[] = {1, 0, 1};
    uint32_t pages[3];
    open_store(false, peers, 3);
    open_arena();
    make_pages(pages, 3);
    sim.counts_reset();
    map_pages(0, pages, 3);
    assert_int_equal(sim.calls_of("cuMemSetAccess"), 1); /* all devices in one */
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(touch_from_neighbour(slot_address(i)), 0);
    unmap_pages(0, 3);
    cmi_store_release(store, pages, 3);
}

static void a_later_peer_gets_what_is_mapped_by_a_grant(void **state)
{
    (void)state;
    uint32_t pages[3];
    make_pages(pages, 3);
    map_pages(0, pages, 2);
    assert_int_not_equal(touch_from_neighbour(slot_address(0)), 0);
    assert_int_equal(cmi_store_add_peer(store, 9), CMPOOL_ERR_DRIVER_MISSING);
    assert_int_equal(cmi_store_add_peer(store, 1), CMPOOL_OK);
    assert_int_equal(cmi_store_add_peer(store, 1), CMPOOL_OK);

    map_pages(2, &pages[2], 1);
    assert_int_equal(touch_from_neighbour(slot_address(2)), 0);
    sim.fail("cuMemSetAccess", 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    assert_int_equal(cmi_arena_grant(&arena, slot_address(0), 2), CMPOOL_ERR_DRIVER);
    sim.fail_clear();
    assert_int_equal(cmi_arena_grant(&arena, slot_address(0), 2), CMPOOL_OK);
    assert_int_equal(touch_from_neighbour(slot_address(1)), 0);
    unmap_pages(0, 3);
    cmi_store_release(store, pages, 3);
}

/* ---- everything at once
 * ---------------------------------------------------------------------------------------------------------------------- */

/* A pool's life in small, giving up at the first failure; what it holds is given back whatever happened. */
static void live(uint32_t *made)
{
    enum { COUNT = 4 };
    uint32_t pages[COUNT], created = 0;
    bool done[COUNT];
    cmpool_status status;
    cmi_range *extra;
    *made = 0;
    if (cmi_range_prepare(store, 8 * PAGE, &extra) != CMPOOL_OK)
        return;
    cmi_store_create(store, pages, COUNT, &created);
    *made = created;
    if (created > 0) {
        cmi_map_result result = cmi_arena_map(&arena, slot_address(0), pages, created);
        if (result.status == CMPOOL_OK && cmi_arena_unmap(&arena, slot_address(0), created, done, &status) < created) {
            sim.fail_clear(); /* the driver is well again later */
            assert_int_equal(cmi_arena_unmap(&arena, slot_address(0), created, done, &status), created);
        }
        cmi_store_release(store, pages, created);
    }
    cmi_range_drop(store, extra);
}

static void any_single_failure_loses_nothing(void **state)
{
    (void)state;
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        for (uint64_t count = 1; count <= 3; count++) {
            bool reached = true;
            for (uint64_t nth = 1; reached; nth++) {
                uint32_t made;
                uint64_t struck = sim.failures_injected();
                sim.fail("*", nth, count, CUDA_ERROR_UNKNOWN, when[w]);
                live(&made);
                reached = sim.failures_injected() > struck;
                sim.fail_clear();
                assert_null(cmi_arena_validate(&arena));
                assert_int_equal(cmi_store_pages(store), 0);

                cmi_store_release(store, NULL, 0); /* tries what is stranded */
                assert_int_equal(cmi_store_stranded(store), 0);
                assert_int_equal(sim_census(0).handles, 0);
                assert_true(cmi_store_mappings(store) >= sim_census(0).mappings);
                live(&made); /* and all of it can be had again */
                assert_int_equal(made, 4);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_takes_one_grant_and_one_unmap, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_page_may_have_two_addresses, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_map_that_fails_is_undone, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_grant_refused_once_is_made_page_by_page, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_grant_that_fails_undoes_the_map, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(out_of_memory_in_a_map_is_the_mapping_ceiling, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(an_unmap_refused_once_is_made_page_by_page, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(what_cannot_be_unmapped_is_told_slot_by_slot, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(an_unmap_that_keeps_failing_leaves_the_record_safe, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_driver_that_cannot_be_asked_keeps_nothing_mapped, start_device, stop_device),
        cmocka_unit_test_setup_teardown(a_stuck_slot_is_freed_by_the_next_map, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_stuck_page_is_released_when_it_can_be, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_range_with_stuck_slots_is_kept_until_they_go, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(slots_that_cannot_be_unmapped_can_be_given_up, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(mistakes_are_refused, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(peers_get_access_to_every_mapping, start_device, stop_arena),
        cmocka_unit_test_setup_teardown(a_later_peer_gets_what_is_mapped_by_a_grant, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(any_single_failure_loses_nothing, start_arena, stop_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
