/*
 * The driver goes while pools are alive, as at the end of a process: calls that need it answer SHUTTING_DOWN, calls that do not go on
 * working, pools end, and where the driver comes back (only a simulated one does) so does the library.
 */
#include "life.h"

static void the_driver_goes(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    CUstream stream = sim_test_stream();
    cmpool_t pool = life_pool(), other = life_pool(), private = 0, made = 0;
    DONE(cmpool_private_create(&private, pool));
    void *large = life_block(pool, 5 * MIB), *small = life_block(pool, 100), *own = life_block(private, MIB), *more = NULL;
    void *elsewhere = life_block(other, MIB);
    DONE(cmpool_record_use(pool, large, stream));
    size_t released = 7;

    assert_true(panel.plan_failure("*", 1, 0, CUDA_ERROR_DEINITIALIZED, SIMCUDA_BEFORE) >= 0);
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_malloc(pool, &more, 20 * MIB, NULL));
    assert_null(more);
    assert_int_equal(cmpool_last_error()->driver_code, CUDA_ERROR_DEINITIALIZED);
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_reserve(pool, 30 * MIB));
    DONE(cmpool_malloc(pool, &more, 100, NULL)); /* there is room in a slab */
    DONE(cmpool_free(pool, more, NULL));
    DONE(cmpool_usable_size(pool, large, &released));
    cmpool_stats stats = {.struct_size = sizeof stats};
    DONE(cmpool_stats_get(pool, &stats));
    DONE(cmpool_validate(pool, NULL));
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
    DONE(cmpool_free(pool, large, stream));
    DONE(cmpool_free(pool, small, NULL));
    DONE(cmpool_free(private, own, NULL));
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_trim(pool, 0, &released));
    assert_int_equal(released, 0);
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_device_trim(0, MIB, &released));
    DONE(cmpool_validate(pool, NULL));
    DONE(cmpool_destroy(private));
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_destroy(pool));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_stats_get(pool, &stats));
    DONE(cmpool_validate(other, NULL));
    DONE(cmpool_free(other, elsewhere, NULL));
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_destroy(other)); /* the last one: the device is closed too */
    GIVES(CMPOOL_ERR_SHUTTING_DOWN, cmpool_create(&made, NULL));
    assert_int_equal(made, 0);

    panel.fail_clear();
    sim_test_start("sim:64MiB"); /* what the dead driver held is gone with it */
    pool = life_pool();
    large = life_block(pool, 60 * MIB);
    DONE(cmpool_free(pool, large, NULL));
    DONE(cmpool_validate(pool, NULL));
    DONE(cmpool_destroy(pool));
    simcuda_census census = sim_test_census();
    assert_int_equal(census.handles + census.mappings + census.reservations, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_driver_goes)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
