/*
 * Streams and contexts that come and go: records of dead streams are used again, so that a program that makes a stream for each task does
 * not grow the library; and a default stream is that of the context which is current, also where a program has several contexts.
 */
#include "pool_fixture.h"

enum { ROUNDS = 4000, WIDTH = 4 };

static void churn(cmpool_t pool, unsigned rounds)
{
    for (unsigned round = 0; round < rounds; round++) {
        CUstream streams[WIDTH];
        void *blocks[2 * WIDTH];
        for (unsigned i = 0; i < WIDTH; i++) {
            assert_int_equal(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
            blocks[i] = take(pool, 3 * MIB, streams[i]);
            blocks[WIDTH + i] = take(pool, 4096, streams[i]);
            use(streams[i], blocks[i], 3 * MIB);
            use(streams[i], blocks[WIDTH + i], 4096);
        }
        for (unsigned i = 0; i < WIDTH; i++) {
            give(pool, blocks[i], streams[i]);
            give(pool, blocks[WIDTH + i], streams[i]);
            DONE(cmpool_stream_retire(0, streams[i]));
            assert_int_equal(cuStreamDestroy_v2(streams[i]), CUDA_SUCCESS);
        }
    }
}

static void streams_that_come_and_go(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    churn(pool, 100);
    uint64_t before = cmi_meta_bytes();
    churn(pool, ROUNDS);
    assert_true(cmi_meta_bytes() < before + 65536);
    assert_int_equal(figures(pool).unretired_streams, 0);
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

/* A block freed on a dead stream's record must still wait for what that stream was given. */
static void work_of_a_dead_stream(void **state)
{
    (void)state;
    device_start("sim:8MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    for (unsigned round = 0; round < 200; round++) {
        CUstream stream;
        assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        void *block = take(pool, 6 * MIB, stream);
        use(stream, block, 6 * MIB);
        give(pool, block, stream);
        DONE(cmpool_stream_retire(0, stream));
        assert_int_equal(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
    DONE(cmpool_destroy(pool));
    device_end();
}

/* NULL means another stream in each context, and the pool must not take one for the other. */
static void default_streams_of_two_contexts(void **state)
{
    (void)state;
    device_start("sim:32MiB,order=lazy");
    CUcontext primary, other;
    CUdevice device;
    assert_int_equal(cuCtxGetCurrent(&primary), CUDA_SUCCESS);
    assert_int_equal(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxCreate_v4(&other, NULL, 0, device), CUDA_SUCCESS);
    cmpool_t pool = pool_with(NULL);
    for (unsigned round = 0; round < 20; round++) {
        assert_int_equal(cuCtxSetCurrent(round % 2 ? other : primary), CUDA_SUCCESS);
        void *block = take(pool, 20 * MIB, NULL);
        use(NULL, block, 20 * MIB);
        give(pool, block, NULL);
    }
    assert_true(figures(pool).device_waits > 0); /* there is room for one block only */
    DONE(cmpool_destroy(pool));
    assert_int_equal(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    assert_int_equal(cuCtxSetCurrent(primary), CUDA_SUCCESS);
    device_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_that_come_and_go),
        cmocka_unit_test(work_of_a_dead_stream),
        cmocka_unit_test(default_streams_of_two_contexts),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
