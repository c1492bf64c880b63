/*
 * The primary context reset underneath the pool: no crash, DEVICE_LOST once it is noticed and nothing handed out from then on, structures
 * that stay sound, a pool that can be ended, and a fresh one that works. A context of the program's own destroyed: its work is over, and
 * the pool goes on.
 */
#include "life.h"

static const char *const orders[] = {"sim:64MiB,order=eager", "sim:64MiB,order=lazy", "sim:64MiB,order=random:5"};
static bool must_work; /* nothing was lost: all is as ever */

static bool is_clear(cmpool_status status)
{
    return status == CMPOOL_OK || (!must_work && (status == CMPOOL_ERR_DEVICE_LOST || status == CMPOOL_ERR_DRIVER));
}

static void a_fresh_pool_works(void)
{
    panel.findings_reset(); /* of the one before: work in a context that goes is never seen to end */
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream a = sim_test_stream(), b = sim_test_stream();
    cmpool_t pool = life_pool();
    void *blocks[8];
    for (int round = 0; round < 3; round++) { /* from stream to stream, in parts and whole */
        for (int i = 0; i < 8; i++) {
            DONE(cmpool_malloc(pool, &blocks[i], 6 * MIB, i % 2 ? a : b));
            OK(panel.touch(i % 2 ? a : b, (uint64_t)(uintptr_t)blocks[i], 6 * MIB, 1));
        }
        for (int i = 0; i < 8; i++)
            DONE(cmpool_free(pool, blocks[i], i % 2 ? a : b));
        DONE(cmpool_malloc(pool, &blocks[0], 50 * MIB, a));
        OK(panel.touch(a, (uint64_t)(uintptr_t)blocks[0], 50 * MIB, 1));
        DONE(cmpool_free(pool, blocks[0], a));
    }
    DONE(cmpool_validate(pool, NULL));
    DONE(cmpool_destroy(pool));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    if (panel.races() != 0)
        fail_msg("%s", panel.finding_text(0));
}

/* All that a program may do with a pool whose ground has gone. */
static void go_on(cmpool_t pool, void **blocks, int count)
{
    void *more = NULL;
    size_t released;
    for (int i = 0; i < 4; i++) {
        cmpool_status status = cmpool_malloc(pool, &more, (size_t)(i + 1) * 4 * MIB, NULL);
        assert_true(is_clear(status));
        if (status == CMPOOL_OK)
            DONE(cmpool_free(pool, more, NULL));
        DONE(cmpool_validate(pool, NULL));
    }
    assert_true(is_clear(cmpool_trim(pool, 0, &released)));
    for (int i = 0; i < count; i++)
        DONE(cmpool_free(pool, blocks[i], NULL));
    DONE(cmpool_validate(pool, NULL));
    assert_true(is_clear(cmpool_trim(pool, 0, &released)));
    DONE(cmpool_validate(pool, NULL));
    cmpool_status status = cmpool_destroy(pool);
    assert_true(is_clear(status));
    cmpool_stats stats = {.struct_size = sizeof stats};
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_stats_get(pool, &stats));
}

/* Requests that the pool cannot serve from what it knows to be done find out; then none is served, whatever it is. */
static void it_is_lost(cmpool_t pool)
{
    void *more = NULL;
    cmpool_status status = CMPOOL_OK;
    void *found[8];
    int count = 0;
    while (count < 8 && (status = cmpool_malloc(pool, &found[count], 12 * MIB, NULL)) == CMPOOL_OK)
        count++;
    assert_int_equal(status, CMPOOL_ERR_DEVICE_LOST);
    assert_int_equal(cmpool_last_error()->status, CMPOOL_ERR_DEVICE_LOST);
    cmpool_t another = 0;
    GIVES(CMPOOL_ERR_DEVICE_LOST, cmpool_malloc(pool, &more, 300, NULL));
    assert_null(more);
    GIVES(CMPOOL_ERR_DEVICE_LOST, cmpool_malloc_unordered(pool, &more, 5 * MIB));
    GIVES(CMPOOL_ERR_DEVICE_LOST, cmpool_reserve(pool, 60 * MIB));
    GIVES(CMPOOL_ERR_DEVICE_LOST, cmpool_create(&another, NULL));
    assert_int_equal(another, 0);
    while (count)
        DONE(cmpool_free(pool, found[--count], NULL));
    DONE(cmpool_validate(pool, NULL));
}

static void nothing_is_left(void)
{
    simcuda_census census = sim_test_census();
    assert_int_equal(census.handles + census.mappings + census.reservations + census.events, 0);
    assert_int_equal(census.free_bytes, census.capacity_bytes);
}

/* Blocks on three streams, frees of other streams pending, an event or two behind them. */
static cmpool_t busy_pool(void **blocks, const CUstream *streams)
{
    cmpool_t pool = life_pool();
    void *passing[6];
    for (int i = 0; i < 6; i++) {
        DONE(cmpool_malloc(pool, &passing[i], 3 * MIB, streams[i % 3]));
        OK(panel.touch(streams[i % 3], (uint64_t)(uintptr_t)passing[i], 3 * MIB, 1));
    }
    for (int i = 0; i < 3; i++)
        DONE(cmpool_malloc(pool, &blocks[i], i == 0 ? 200 : 5 * MIB, streams[i]));
    for (int i = 0; i < 6; i++)
        DONE(cmpool_free(pool, passing[i], streams[i % 3]));
    DONE(cmpool_record_use(pool, blocks[2], streams[0]));
    return pool;
}

static void the_primary_context_is_reset(void **state)
{
    (void)state;
    must_work = false;
    for (int i = 0; i < 3; i++) {
        sim_test_start(orders[i]);
        CUstream streams[3] = {sim_test_stream(), sim_test_stream(), sim_test_stream()};
        void *blocks[3];
        cmpool_t pool = busy_pool(blocks, streams);
        OK(cuDevicePrimaryCtxReset_v2(0));
        it_is_lost(pool);
        go_on(pool, blocks, 3);
        a_fresh_pool_works();
        nothing_is_left();
    }
}

/* A driver that calls the context destroyed is believed for as long as it says so. */
static void lost_and_found(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        CUcontext primary = sim_test_start(orders[i]);
        CUstream streams[3] = {sim_test_stream(), sim_test_stream(), sim_test_stream()};
        void *blocks[3], *more;
        cmpool_t pool = busy_pool(blocks, streams);
        assert_true(panel.plan_failure("*", 1, 0, CUDA_ERROR_CONTEXT_IS_DESTROYED, SIMCUDA_BEFORE) >= 0);
        it_is_lost(pool);
        for (int k = 0; k < 2; k++)
            DONE(cmpool_free(pool, blocks[k], streams[k]));
        panel.fail_clear();
        OK(cuCtxSetCurrent(primary));
        DONE(cmpool_malloc(pool, &more, 40 * MIB, streams[0]));
        OK(panel.touch(streams[0], (uint64_t)(uintptr_t)more, 40 * MIB, 1));
        DONE(cmpool_free(pool, more, streams[0]));
        DONE(cmpool_free(pool, blocks[2], streams[2]));
        DONE(cmpool_validate(pool, NULL));
        DONE(cmpool_destroy(pool));
        nothing_is_left();
        if (panel.finding_text(0))
            fail_msg("%s", panel.finding_text(0));
    }
}

static void a_context_of_the_program_is_destroyed(void **state)
{
    (void)state;
    must_work = true;
    for (int i = 0; i < 6; i++) {
        CUcontext primary = sim_test_start(orders[i / 2]), own;
        CUstream streams[3] = {sim_test_stream(), NULL, NULL};
        OK(cuCtxCreate_v4(&own, NULL, 0, 0));
        streams[1] = sim_test_stream();
        streams[2] = sim_test_stream();
        void *blocks[3];
        cmpool_t pool = busy_pool(blocks, streams);
        if (i % 2) { /* as a polite program does */
            OK(cuCtxSynchronize());
            DONE(cmpool_context_remove(0, own));
        }
        OK(cuCtxDestroy_v2(own));
        OK(cuCtxSetCurrent(primary));
        go_on(pool, blocks, 3);
        if (i % 2 && panel.finding_text(0))
            fail_msg("%s", panel.finding_text(0));
        a_fresh_pool_works();
        OK(cuStreamDestroy_v2(streams[0]));
        nothing_is_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_primary_context_is_reset),
        cmocka_unit_test(lost_and_found),
        cmocka_unit_test(a_context_of_the_program_is_destroyed),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
