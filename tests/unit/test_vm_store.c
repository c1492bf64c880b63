/*
 * The device store: pages made and given back, their numbers, what the driver refuses, who gets access.
 */
#include "vm_fixture.h"

#include <pthread.h>

static void pages_are_created_and_released(void **state)
{
    (void)state;
    uint32_t pages[8], again[8];
    make_pages(pages, 8);
    assert_int_equal(sim_census(0).handles, 8);
    assert_int_equal(sim_census(0).handle_bytes, 8 * PAGE);
    assert_int_equal(cmi_store_pages(store), 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(pages[i], i); /* numbers are dense */
    cmi_store_release(store, pages, 8);
    assert_int_equal(sim_census(0).handles, 0);
    assert_int_equal(cmi_store_pages(store), 0);

    make_pages(again, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(again[i] < 8); /* and used again */
    cmi_store_release(store, again, 8);
    assert_int_equal(counts().created, 16);
    assert_int_equal(counts().released, 16);
    assert_int_equal(cmi_store_page_bytes(store), PAGE);
}

static void a_full_device_is_out_of_memory(void **state)
{
    (void)state;
    uint32_t pages[2 * DEVICE_PAGES], created;
    assert_int_equal(cmi_store_create(store, pages, 2 * DEVICE_PAGES, &created), CMPOOL_ERR_OUT_OF_DEVICE_MEMORY);
    assert_string_equal(cmi_error_detail()->driver_call, "cuMemCreate");
    assert_true(created > 0 && created <= DEVICE_PAGES);
    assert_int_equal(sim_census(0).handles, created);
    assert_true(sim_census(0).free_bytes < PAGE);
    assert_int_equal(cmi_store_pages(store), created);

    cmi_store_release(store, pages, 1);
    uint32_t one;
    make_pages(&one, 1);
    cmi_store_release(store, &one, 1);
    cmi_store_release(store, pages + 1, created - 1);
}

static void no_host_memory_is_told(void **state)
{
    (void)state;
    uint32_t page, created;
    cmi_meta_fail(1, 0);
    cmpool_status status = cmi_store_create(store, &page, 1, &created);
    cmi_meta_fail(0, 0);
    assert_int_equal(status, CMPOOL_ERR_OUT_OF_HOST_MEMORY);
    assert_int_equal(created, 0);
    assert_int_equal(sim_census(0).handles, 0);
}

/* More pages than one chunk of records: every record keeps its handle. */
static void records_outgrow_a_chunk(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static uint32_t pages[MANY];
    make_pages(pages, MANY);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(pages[i], i);
    cmi_store_release(store, pages, MANY);
    assert_int_equal(sim_census(0).handles, 0);
}

static int start_large(void **state)
{
    if (start_device(state) != 0)
        return 1;
    cmi_driver_leave(&scope);
    sim_start("sim:16GiB");
    if (cmi_driver_open(&driver) != CMPOOL_OK || driver->DevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cmi_driver_enter(&scope, driver, context) != CMPOOL_OK)
        return 1;
    open_store(false, NULL, 0);
    open_arena();
    return 0;
}

/* ---- refusals of the driver --------------------------------------------------------------------- */

static void a_refused_release_is_stranded_and_tried_again(void **state)
{
    (void)state;
    uint32_t pages[3];
    make_pages(pages, 3);
    sim.fail("cuMemRelease", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    cmi_store_release(store, pages, 1);
    assert_int_equal(cmi_store_stranded(store), 1);
    assert_int_equal(cmi_store_pages(store), 2);
    assert_int_equal(sim_census(0).handles, 3);

    uint32_t other;
    make_pages(&other, 1);
    assert_int_not_equal(other, pages[0]); /* a stranded page is not handed out */

    cmi_store_release(store, pages + 1, 2);
    assert_int_equal(cmi_store_stranded(store), 0);
    assert_int_equal(sim_census(0).handles, 1);
    cmi_store_release(store, &other, 1);
}

static void a_stranded_page_is_given_back_when_memory_is_short(void **state)
{
    (void)state;
    uint32_t pages[DEVICE_PAGES], created;
    cmi_store_create(store, pages, DEVICE_PAGES, &created);
    sim.fail("cuMemRelease", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    cmi_store_release(store, pages, 1);
    assert_int_equal(cmi_store_stranded(store), 1);
    if (created == DEVICE_PAGES) /* fill the rest, if there is one */
        assert_true(sim_census(0).free_bytes < PAGE);

    uint32_t one;
    make_pages(&one, 1);
    assert_int_equal(cmi_store_stranded(store), 0);
    cmi_store_release(store, &one, 1);
    cmi_store_release(store, pages + 1, created - 1);
}

/* The release took place although it reported a failure, and the driver gives the same handle out again: it is released once. */
static void a_release_that_did_happen_is_forgotten(void **state)
{
    (void)state;
    uint32_t pages[2], again;
    make_pages(pages, 2);
    sim.fail("cuMemRelease", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER);
    cmi_store_release(store, pages, 1);
    assert_int_equal(cmi_store_stranded(store), 1);
    assert_int_equal(sim_census(0).handles, 1);

    make_pages(&again, 1);
    assert_int_equal(cmi_store_stranded(store), 0);
    assert_int_equal(sim_census(0).handles, 2);
    cmi_store_release(store, &again, 1);
    assert_int_equal(sim_census(0).handles, 1);
    cmi_store_release(store, pages + 1, 1);
    assert_int_equal(sim.findings(SIMCUDA_USE_AFTER_DESTROY), 0);
}

static void a_create_that_failed_with_an_allocation_keeps_nothing(void **state)
{
    (void)state;
    uint32_t pages[4], created;
    sim.fail("cuMemCreate", 3, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER);
    assert_int_equal(cmi_store_create(store, pages, 4, &created), CMPOOL_ERR_DRIVER);
    assert_int_equal(created, 2);
    assert_int_equal(cmi_store_pages(store), 2);
    assert_int_equal(sim_census(0).handles, 2);
    cmi_store_release(store, pages, 2);
}

/* ---- opening ------------------------------------------------------------------------------------ */

static cmpool_status try_open(cmi_store_config config)
{
    cmi_store *opened = NULL;
    config.driver = driver;
    cmpool_status status = cmi_store_open(&opened, &config);
    if (status == CMPOOL_OK)
        cmi_store_close(opened);
    else
        assert_null(opened);
    return status;
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    static const int nobody[] = {7}, neighbour[] = {1};
    static int many[CMI_VM_PEERS_MAX + 1];
    assert_int_equal(try_open((cmi_store_config){.page_bytes = 2 * PAGE}), CMPOOL_OK);
    assert_int_equal(try_open((cmi_store_config){.page_bytes = 3 * PAGE}), CMPOOL_ERR_INVALID_ARGUMENT);
    assert_int_equal(try_open((cmi_store_config){.page_bytes = PAGE / 2}), CMPOOL_ERR_INVALID_ARGUMENT);
    assert_int_equal(try_open((cmi_store_config){.device = 2}), CMPOOL_ERR_DRIVER_MISSING);
    assert_int_equal(try_open((cmi_store_config){.peers = nobody, .peer_count = 1}), CMPOOL_ERR_DRIVER_MISSING);
    assert_int_equal(try_open((cmi_store_config){.peers = many, .peer_count = CMI_VM_PEERS_MAX}), CMPOOL_OK); /* itself, 63 times */
    assert_int_equal(try_open((cmi_store_config){.peers = neighbour, .peer_count = 1}), CMPOOL_OK);
    sim.set_feature(SIMCUDA_FEATURE_PEER, 0);
    assert_int_equal(try_open((cmi_store_config){.peers = neighbour, .peer_count = 1}), CMPOOL_ERR_UNSUPPORTED);
    sim.set_feature(SIMCUDA_FEATURE_VMM, 0); /* segments alone, of the least page or a longer one */
    assert_int_equal(try_open((cmi_store_config){0}), CMPOOL_OK);
    assert_int_equal(try_open((cmi_store_config){.page_bytes = PAGE / 2}), CMPOOL_ERR_INVALID_ARGUMENT);
    open_store(false, NULL, 0);
    assert_false(cmi_store_has_slots(store));
    assert_false(cmi_store_has_shared(store));
    assert_int_equal(cmi_store_page_bytes(store), PAGE);
    assert_int_equal(cmi_store_close(store), 0);
}

static void every_failure_while_opening_is_told(void **state)
{
    (void)state;
    static const int neighbour[] = {1};
    bool reached = true;
    for (uint64_t nth = 1; reached; nth++) {
        uint64_t struck = sim.failures_injected();
        sim.fail("*", nth, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
        cmpool_status status = try_open((cmi_store_config){.rdma = true, .peers = neighbour, .peer_count = 1});
        reached = sim.failures_injected() > struck;
        assert_int_equal(status, reached ? CMPOOL_ERR_DRIVER : CMPOOL_OK);
        sim.fail_clear();
    }
    cmi_meta_fail(1, 1);
    assert_int_equal(try_open((cmi_store_config){0}), CMPOOL_ERR_OUT_OF_HOST_MEMORY);
    cmi_meta_fail(0, 0);
}

static CUmemAllocationProp seen_prop;
static CUresult CUDAAPI watching_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                                        unsigned long long flags)
{
    (void)handle, (void)bytes, (void)flags;
    seen_prop = *prop;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void rdma_is_asked_for_where_it_can_be_had(void **state)
{
    (void)state;
    for (int can = 1; can >= 0; can--) {
        for (int want = 1; want >= 0; want--) {
            cmi_driver watched = *driver;
            watched.MemCreate = watching_create;
            sim.set_feature(SIMCUDA_FEATURE_RDMA, can);
            uint32_t page, created;
            assert_int_equal(cmi_store_open(&store, &(cmi_store_config){.driver = &watched, .rdma = want}), CMPOOL_OK);
            cmi_store_create(store, &page, 1, &created);
            assert_int_equal(seen_prop.allocFlags.gpuDirectRDMACapable, want && can);
            assert_int_equal(seen_prop.location.id, 0);
            cmi_store_close(store);
        }
    }
}

/* ---- turns -------------------------------------------------------------------------------------- */

static void *create_one(void *page)
{
    cmi_driver_scope own;
    uint32_t created = 0;
    if (cmi_driver_enter(&own, driver, context) == CMPOOL_OK) {
        cmi_store_create(store, page, 1, &created);
        cmi_driver_leave(&own);
    }
    return NULL;
}

static void *release_parked(void *waited)
{
    for (int i = 0; i < 200 && !__atomic_load_n((bool *)waited, __ATOMIC_ACQUIRE); i++)
        sim.wait_parked(1); /* gives the other thread time to come back too early */
    sim.release_parked();
    return NULL;
}

static void waiting_a_turn_waits_for_the_call_under_way(void **state)
{
    (void)state;
    uint32_t page = CMI_NO_PAGE;
    bool waited = false;
    pthread_t creator, opener;
    assert_true(sim.park("cuMemCreate", 1) >= 0);
    assert_int_equal(pthread_create(&creator, NULL, create_one, &page), 0);
    assert_int_equal(sim.wait_parked(10000), 1);
    assert_int_equal(cmi_store_pages(store), 0); /* figures need no turn */
    assert_int_equal(pthread_create(&opener, NULL, release_parked, &waited), 0);
    cmi_store_wait_turn(store);
    assert_int_equal(cmi_store_pages(store), 1);
    __atomic_store_n(&waited, true, __ATOMIC_RELEASE);
    pthread_join(opener, NULL);
    pthread_join(creator, NULL);
    cmi_store_release(store, &page, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pages_are_created_and_released, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_full_device_is_out_of_memory, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(no_host_memory_is_told, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(records_outgrow_a_chunk, start_large, stop_arena),
        cmocka_unit_test_setup_teardown(a_refused_release_is_stranded_and_tried_again, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_stranded_page_is_given_back_when_memory_is_short, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_release_that_did_happen_is_forgotten, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(a_create_that_failed_with_an_allocation_keeps_nothing, start_arena, stop_arena),
        cmocka_unit_test_setup_teardown(bad_configurations_are_refused, start_device, stop_device),
        cmocka_unit_test_setup_teardown(every_failure_while_opening_is_told, start_device, stop_device),
        cmocka_unit_test_setup_teardown(rdma_is_asked_for_where_it_can_be_had, start_device, stop_device),
        cmocka_unit_test_setup_teardown(waiting_a_turn_waits_for_the_call_under_way, start_arena, stop_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
