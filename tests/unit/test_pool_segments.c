/*
 * backend:malloc: everything from cuMemAlloc segments, on the simulated device in each order. Blocks split and join within segments, stream
 * order is kept, nothing is done that a capture does not survive, segments come and go whole, and a refusal says that memory could not
 * be moved. Also what a device without virtual memory gets. Needs the simulated device beside it.
 */
#include "capture_fixture.h"

static const char *const segments_only = "backend:malloc";

/* Everything is in segments, and no call of virtual memory was made. */
static void only_segments(cmpool_t pool)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemAddressReserve", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(calls); i++)
        assert_int_equal(panel.calls_of(calls[i]), 0);
    cmpool_stats now = figures(pool);
    simcuda_census census = census_of(0);
    assert_int_equal(now.fixed_bytes, now.reserved_bytes);
    assert_int_equal(census.mallocs, now.segments);
    assert_int_equal(census.malloc_bytes, now.reserved_bytes);
    must_be_sound(pool);
}

static void segments_as_long_as_the_request_wants(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(segments_only);
        CUstream stream = sim_test_stream();
        void *small = take(pool, 1000, stream); /* a page */
        assert_int_equal(figures(pool).reserved_bytes, 2 * MIB);
        void *middling[4];
        for (int i = 0; i < 4; i++)
            middling[i] = take_and_use(pool, 5 * MIB, stream); /* four in one segment */
        assert_int_equal(figures(pool).reserved_bytes, 22 * MIB);
        void *large = take_and_use(pool, 11 * MIB, stream); /* its own, in whole pages */
        assert_int_equal(figures(pool).reserved_bytes, 34 * MIB);
        assert_int_equal(panel.calls_of("cuMemAlloc_v2"), 3);
        only_segments(pool);

        panel.counts_reset();
        give(pool, middling[1], stream);
        give(pool, middling[2], stream);
        assert_ptr_equal(take_and_use(pool, 10 * MIB, stream), middling[1]); /* joined */
        give(pool, middling[1], stream);
        assert_int_equal(panel.calls_of("cuMemAlloc_v2"), 0);
        give(pool, middling[0], stream);
        give(pool, middling[3], stream);
        give(pool, large, stream);
        give(pool, small, stream);
        only_segments(pool);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Blocks of neighbouring segments never join, so the longest block is the longest segment; the refusal says why. */
static void a_refusal_says_that_memory_does_not_move(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(segments_only);
    CUstream stream = sim_test_stream();
    void *blocks[12], *kept;
    for (int i = 0; i < 12; i++)
        blocks[i] = take(pool, 5 * MIB, stream); /* three segments of 20 MiB */
    for (int i = 0; i < 12; i++)
        if (i % 4 != 1)
            give(pool, blocks[i], stream);
    void *none = &none;
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &none, 11 * MIB, stream));
    assert_null(none);
    const cmpool_error *error = cmpool_last_error();
    assert_int_equal(error->fixed_bytes, 60 * MIB);
    assert_int_equal(error->fixed_bytes, error->reserved_bytes);
    assert_int_equal(error->idle_bytes, 3 * 14 * MIB); /* 5 MiB and 10 MiB of each segment are free: 2 and 5 whole pages */
    assert_int_equal(error->largest_free_bytes, 10 * MIB);
    kept = take(pool, 10 * MIB, stream);
    give(pool, kept, stream);

    /* The same where pages move. */
    cmpool_t other = pool_with(NULL);
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(other, &none, 11 * MIB, stream));
    assert_int_equal(cmpool_last_error()->fixed_bytes, 0);
    DONE(cmpool_destroy(other));

    /* A segment that is wholly free goes back to the driver, which can give one as long as is wanted. */
    for (int i = 1; i < 8; i += 4)
        give(pool, blocks[i], stream);
    kept = take_and_use(pool, 40 * MIB, stream);
    assert_int_equal(figures(pool).segments, 2);
    give(pool, kept, stream);
    give(pool, blocks[9], stream);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void memory_waits_for_its_streams(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(segments_only);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *block = take_and_use(pool, 50 * MIB, a);
        DONE(cmpool_record_use(pool, block, b));
        order(a, b);
        use(b, block, 50 * MIB);
        give(pool, block, a);
        block = take_and_use(pool, 50 * MIB, b); /* behind both */
        give(pool, block, b);
        /* Too long for the segment, and the device has no other: it has to be seen done and go back. */
        block = take_and_use(pool, 60 * MIB, a);
        give(pool, block, a);
        DONE(cmpool_malloc_unordered(pool, &block, 30 * MIB));
        use(b, block, 30 * MIB);
        DONE(cmpool_free_unordered(pool, block));
        DONE(cmpool_malloc_unordered(pool, &block, 60 * MIB));
        use(a, block, 60 * MIB);
        DONE(cmpool_free_unordered(pool, block));
        only_segments(pool);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

static void whole_segments_go_back(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(segments_only);
        CUstream stream = sim_test_stream();
        size_t released;
        void *blocks[8];
        for (int i = 0; i < 8; i++)
            blocks[i] = take_and_use(pool, 5 * MIB, stream);
        void *large = take_and_use(pool, 12 * MIB, stream);
        for (int i = 1; i < 8; i++)
            give(pool, blocks[i], stream);
        give(pool, large, stream);
        DONE(cmpool_trim(pool, 0, &released)); /* but not the one that blocks[0] is in */
        assert_int_equal(released, 32 * MIB);
        assert_int_equal(figures(pool).reserved_bytes, 20 * MIB);
        use(stream, blocks[0], 5 * MIB);
        give(pool, blocks[0], stream);
        DONE(cmpool_set_floor(pool, 8 * MIB));
        DONE(cmpool_device_trim(0, 20 * MIB, &released)); /* would take the pool below its floor */
        assert_int_equal(released, 0);
        DONE(cmpool_set_floor(pool, 0));
        DONE(cmpool_device_trim(0, 2 * MIB, &released));
        assert_int_equal(released, 20 * MIB);
        only_segments(pool);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

static void limit_headroom_and_reserve(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("backend:malloc,limit:30MiB");
        CUstream stream = sim_test_stream();
        void *a = take_and_use(pool, 5 * MIB, stream), *none, *b;
        GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &none, 16 * MIB, stream));
        assert_int_equal(cmpool_last_error()->short_bytes, 6 * MIB);
        b = take_and_use(pool, 9 * MIB, stream);
        give(pool, a, stream);
        give(pool, b, stream);
        b = take_and_use(pool, 29 * MIB, stream); /* the limit is kept by giving the first segment back */
        assert_int_equal(figures(pool).reserved_bytes, 30 * MIB);
        give(pool, b, stream);
        DONE(cmpool_set_limit(pool, 10 * MIB));
        assert_int_equal(figures(pool).reserved_bytes, 0);
        DONE(cmpool_set_limit(pool, 0));

        DONE(cmpool_set_headroom(pool, 40 * MIB));
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_reserve(pool, 26 * MIB));
        DONE(cmpool_reserve(pool, 24 * MIB));
        panel.counts_reset();
        a = take(pool, 24 * MIB, stream);
        assert_int_equal(panel.calls(SIMCUDA_MEMORY), 0);
        give(pool, a, stream);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

static void captures_stay_valid(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            device_start(words);
            cmpool_t pool = pool_with(segments_only), set = set_in(pool);
            CUstream stream = sim_test_stream(), other = sim_test_stream();
            give(pool, take_and_use(pool, 12 * MIB, other), other);
            begin(set, stream, capture_modes[mode]);
            void *block = take_and_use(set, 6 * MIB, stream);
            assert_int_equal(panel.calls_of("cuMemFree_v2"), 0);
            size_t released;
            GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(pool, 0, &released));
            void *none;
            GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &none, 60 * MIB, other)); /* the idle segment stays */
            assert_int_equal(panel.calls_of("cuMemFree_v2"), 0);
            assert_int_equal(capture_state(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
            give(set, block, stream);
            /* A thread in relaxed mode may allocate during any capture: nothing else was called that bars one. */
            assert_int_equal(barred_call_count(), panel.calls_of("cuMemAlloc_v2"));
            panel.counts_reset();
            CUgraphExec exec = end_capture(set, stream);
            launch(exec, other);
            DONE(cmpool_trim(pool, 0, &released)); /* not what the graph was captured with */
            launch(exec, other);
            end_set(set, exec);
            end_pool(pool);
        }
    }
}

/* Pools of both kinds on one device: what one holds idle goes back to the driver for the other. */
static void beside_a_pool_that_moves_pages(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t fixed = pool_with(segments_only), moving = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        for (int turn = 0; turn < 3; turn++) {
            give(fixed, take_and_use(fixed, 50 * MIB, a), a);
            give(moving, take_and_use(moving, 50 * MIB, b), b);
        }
        DONE(cmpool_set_floor(moving, 50 * MIB));
        void *none;
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(fixed, &none, 50 * MIB, a));
        DONE(cmpool_destroy(fixed));
        DONE(cmpool_destroy(moving));
        device_end();
    }
}

static void a_device_without_virtual_memory(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        panel.set_feature(SIMCUDA_FEATURE_VMM, 0);
        cmpool_t pool = pool_with("verbose:0"), inside;
        DONE(cmpool_private_create(&inside, pool));
        CUstream stream = sim_test_stream();
        void *a = take_and_use(pool, 7 * MIB, stream), *b = take_and_use(inside, 3 * MIB, stream), *c = take_and_use(pool, 100, stream);
        only_segments(pool);
        give(pool, a, stream);
        give(inside, b, stream);
        give(pool, c, stream);
        DONE(cmpool_destroy(inside));
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Drivers promise less of cuMemAlloc's addresses than a page. */
static void addresses_that_are_no_multiple_of_a_page(void **state)
{
    (void)state;
    device_start("sim:64MiB,page=64KiB");
    cmpool_t pool = pool_with(segments_only);
    CUdeviceptr odd;
    CUstream stream = sim_test_stream();
    OK(cuMemAlloc_v2(&odd, 64 * 1024)); /* the next is off by one of the device's pages */
    void *blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = take_and_use(pool, 12 * MIB, stream);
    must_be_sound(pool);
    for (int i = 0; i < 3; i++)
        give(pool, blocks[i], stream);
    DONE(cmpool_destroy(pool));
    OK(cuMemFree_v2(odd));
    device_end();
}

/* A cuMemFree that fails without having freed keeps the segment; one that fails after it has freed loses nothing. */
static void a_free_that_fails(void **state)
{
    (void)state;
    for (int when = SIMCUDA_BEFORE; when <= SIMCUDA_AFTER; when++) {
        device_start("sim:64MiB");
        cmpool_t pool = pool_with(segments_only);
        CUstream stream = sim_test_stream();
        size_t released;
        give(pool, take_and_use(pool, 30 * MIB, stream), stream);
        assert_true(panel.plan_failure("cuMemFree_v2", 1, 1, CUDA_ERROR_UNKNOWN, (simcuda_when)when) >= 0);
        DONE(cmpool_trim(pool, 0, &released));
        assert_int_equal(panel.failures_injected(), 1);
        cmpool_stats now = figures(pool);
        assert_int_equal(now.stranded_pages, 0);
        assert_int_equal(now.reserved_bytes, 30 * MIB - released);
        assert_int_equal(census_of(0).malloc_bytes, now.reserved_bytes);
        give(pool, take_and_use(pool, 60 * MIB, stream), stream);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* A segment that small blocks came from has gone, and the thread's cache must not look there any more. */
static void caches_forget_a_segment_that_goes(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(segments_only);
        CUstream stream = sim_test_stream();
        size_t released;
        for (int turn = 0; turn < 3; turn++) {
            void *small[20];
            for (int i = 0; i < 20; i++)
                small[i] = take_and_use(pool, 1000, stream);
            for (int i = 0; i < 20; i++)
                give(pool, small[i], stream);
            DONE(cmpool_trim(pool, 0, &released));
            assert_int_equal(released, 2 * MIB);
            give(pool, take_and_use(pool, 12 * MIB, stream), stream); /* perhaps at the same addresses */
            DONE(cmpool_trim(pool, 0, &released));
            assert_int_equal(released, 12 * MIB);
        }
        void *at_last = take_and_use(pool, 12 * MIB, stream);
        DONE(cmpool_trim(pool, 0, &released));
        give(pool, at_last, stream);
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, at_last, stream));
        only_segments(pool);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_as_long_as_the_request_wants),
        cmocka_unit_test(a_refusal_says_that_memory_does_not_move),
        cmocka_unit_test(memory_waits_for_its_streams),
        cmocka_unit_test(whole_segments_go_back),
        cmocka_unit_test(limit_headroom_and_reserve),
        cmocka_unit_test(captures_stay_valid),
        cmocka_unit_test(beside_a_pool_that_moves_pages),
        cmocka_unit_test(a_device_without_virtual_memory),
        cmocka_unit_test(addresses_that_are_no_multiple_of_a_page),
        cmocka_unit_test(a_free_that_fails),
        cmocka_unit_test(caches_forget_a_segment_that_goes),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
