/*
 * Memory without a stream: blocks that any stream may use, freed without saying where they were used. The next owner must come after all
 * that was given to the device, without the host waiting.
 */
#include "pool_fixture.h"

static CUstream stream_of(void)
{
    CUstream stream;
    assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

static void *any(cmpool_t pool, size_t bytes)
{
    void *block;
    DONE(cmpool_malloc_unordered(pool, &block, bytes));
    return block;
}

/* Two streams that never synchronise use blocks that come and go, on a device with room for one: large, small, and moved ones. */
static void programs_that_name_no_stream(void **state)
{
    (void)state;
    static const char *const devices[] = {"sim:12MiB,order=eager", "sim:12MiB,order=lazy", "sim:12MiB,order=random:5"};
    for (unsigned d = 0; d < CMI_ARRAY_LENGTH(devices); d++) {
        device_start(devices[d]);
        cmpool_t pool = pool_with(NULL);
        CUstream streams[2] = {stream_of(), stream_of()};
        for (unsigned round = 0; round < 300; round++) {
            void *large = any(pool, (3 + round % 5) * MIB), *small[8];
            use(streams[round % 2], large, (3 + round % 5) * MIB);
            for (unsigned i = 0; i < 8; i++) {
                small[i] = any(pool, 512 << i);
                use(streams[i % 2], small[i], 512 << i);
            }
            DONE(cmpool_free_unordered(pool, large));
            for (unsigned i = 0; i < 8; i++)
                DONE(cmpool_free_unordered(pool, small[i]));
        }
        must_be_sound(pool);
        assert_int_equal(figures(pool).host_waits, 0);
        assert_int_equal(figures(pool).refusals, 0);
        DONE(cmpool_destroy(pool));
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(cuStreamDestroy_v2(streams[i]), CUDA_SUCCESS);
        device_end();
    }
}

/* Blocks of one kind may be freed the other way, and both kinds share the pool. */
static void both_kinds_together(void **state)
{
    (void)state;
    device_start("sim:16MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream a = stream_of(), b = stream_of();
    for (unsigned round = 0; round < 100; round++) {
        void *one = take(pool, 5 * MIB, a), *other = any(pool, 5 * MIB), *tiny = any(pool, 1000);
        use(a, one, 5 * MIB);
        use(b, other, 5 * MIB);
        use(a, tiny, 1000);
        DONE(cmpool_free_unordered(pool, one));
        DONE(cmpool_free(pool, other, b));
        DONE(cmpool_free(pool, tiny, b));
        void *next = take(pool, 9 * MIB, round % 2 ? a : b);
        use(round % 2 ? a : b, next, 9 * MIB);
        give(pool, next, round % 2 ? a : b);
    }
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    assert_int_equal(cuStreamDestroy_v2(a), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy_v2(b), CUDA_SUCCESS);
    device_end();
}

/* A second context is waited for once it is known, and no longer when it is gone. */
static void contexts_are_waited_for(void **state)
{
    (void)state;
    device_start("sim:8MiB,order=lazy");
    CUcontext primary, other;
    CUdevice device;
    assert_int_equal(cuCtxGetCurrent(&primary), CUDA_SUCCESS);
    assert_int_equal(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_context_add(0, primary));
    cmpool_t pool = pool_with(NULL);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_add(0, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_add(-1, primary));
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(cuCtxCreate_v4(&other, NULL, 0, device), CUDA_SUCCESS);
        DONE(cmpool_context_add(0, other));
        for (unsigned i = 0; i < 6; i++) {
            assert_int_equal(cuCtxSetCurrent(i % 2 ? primary : other), CUDA_SUCCESS);
            void *block = any(pool, 6 * MIB);
            use(NULL, block, 6 * MIB);
            DONE(cmpool_free_unordered(pool, block));
        }
        assert_int_equal(cuCtxSetCurrent(other), CUDA_SUCCESS);
        assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
        DONE(cmpool_context_remove(0, other));
        assert_int_equal(cuCtxDestroy_v2(other), CUDA_SUCCESS);
        assert_int_equal(cuCtxSetCurrent(primary), CUDA_SUCCESS);
    }
    DONE(cmpool_destroy(pool));
    device_end();
}

/* Older drivers have no context events: then the host waits, and the memory is served all the same. */
static void without_context_events(void **state)
{
    (void)state;
    device_start("sim:8MiB,order=lazy");
    panel.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, 0);
    cmi_driver_forget();
    cmpool_t pool = pool_with(NULL);
    CUstream stream = stream_of();
    for (unsigned i = 0; i < 5; i++) {
        void *block = any(pool, 6 * MIB);
        use(stream, block, 6 * MIB);
        DONE(cmpool_free_unordered(pool, block));
    }
    assert_true(figures(pool).host_waits > 0);
    DONE(cmpool_destroy(pool));
    panel.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, 1);
    cmi_driver_forget();
    assert_int_equal(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    device_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_that_name_no_stream),
        cmocka_unit_test(both_kinds_together),
        cmocka_unit_test(contexts_are_waited_for),
        cmocka_unit_test(without_context_events),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
