/*
 * Streams and contexts that come and go: records of dead streams are used again, so that a program that makes a stream for each task does
 * not grow the library; and a default stream is that of the context which is current, also where a program has several contexts;
 * and what many frees leave behind.
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

/* Frees of one stream that lie between blocks in use are everybody's once they are seen done, however many, and where they lie; with host
 * memory that fails at the nth request there is an answer all the same. */
static void many_blocks_become_everybodys(void **state)
{
    (void)state;
    enum { BLOCKS = 400, BYTES = 300 << 10 };
    for (uint64_t nth = 0; nth <= 12; nth++) {
        device_start("sim:256MiB,order=eager");
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *blocks[BLOCKS], *first = NULL;
        for (unsigned i = 0; i < BLOCKS; i++)
            blocks[i] = take_and_use(pool, BYTES, a);
        void *rest = take(pool, 2 * MIB - BLOCKS * BYTES % (2 * MIB), b); /* what is left of the last page */
        for (unsigned i = 0; i < BLOCKS; i += 2)
            give(pool, blocks[i], a);
        cmpool_stats before = figures(pool);
        cmi_meta_fail(nth, nth != 0);
        cmpool_status status = cmpool_malloc(pool, &first, BYTES, b);
        cmi_meta_fail(0, 0);
        assert_true(status == CMPOOL_OK || (nth && status == CMPOOL_ERR_OUT_OF_HOST_MEMORY));
        must_be_sound(pool);
        if (!nth)
            assert_ptr_equal(first, blocks[0]);
        if (status == CMPOOL_OK)
            blocks[0] = first;
        for (unsigned i = status == CMPOOL_OK ? 2 : 0; i < BLOCKS; i += 2)
            blocks[i] = take_and_use(pool, BYTES, b);
        if (!nth)
            assert_int_equal(figures(pool).reserved_bytes, before.reserved_bytes);
        assert_int_equal(figures(pool).device_waits + figures(pool).host_waits, 0);
        for (unsigned i = 0; i < BLOCKS; i++)
            give(pool, blocks[i], i % 2 ? a : b);
        give(pool, rest, b);
        end_of(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_that_come_and_go),
        cmocka_unit_test(work_of_a_dead_stream),
        cmocka_unit_test(default_streams_of_two_contexts),
        cmocka_unit_test(many_blocks_become_everybodys),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
