/*
 * Large blocks that a thread frees and asks for again, seen from outside: the same block comes back without a driver call, figures and
 * answers to bad pointers are what they are without leases, a block that another stream has used or another thread has freed is not held,
 * and what is held is free to everybody who asks.
 */
#include "pool_fixture.h"

#include <pthread.h>

static void figures_are_exact(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream();
        give(pool, take(pool, 8 * MIB, a), a);
        give(pool, take(pool, 5 * MIB, a), a);
        DONE(cmpool_stats_reset_peaks(pool));
        cmpool_stats start = figures(pool);
        driver_calls();
        for (int i = 0; i < 1000; i++) {
            void *two[2] = {take(pool, 3 * MIB + 100, a), take(pool, 2 * MIB, a)};
            give(pool, two[i % 2], a);
            give(pool, two[1 - i % 2], a);
        }
        assert_int_equal(driver_calls(), 0);
        cmpool_stats stats = figures(pool);
        assert_int_equal(stats.allocations - start.allocations, 2000);
        assert_int_equal(stats.frees - start.frees, 2000);
        assert_int_equal(stats.live_blocks, 0);
        assert_int_equal(stats.live_bytes, 0);
        assert_int_equal(stats.requested_bytes, 0);
        assert_int_equal(stats.peak_live_bytes, 5 * MIB + 512);
        end_of(pool);
    }
}

/* Of blocks of one size the one freed last comes back, as long as nothing else is asked for. */
static void the_block_freed_last_comes_back(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream();
    void *blocks[20];
    for (int i = 0; i < 20; i++)
        blocks[i] = take_and_use(pool, 1 * MIB, a);
    give(pool, blocks[7], a);
    give(pool, blocks[3], a);
    assert_ptr_equal(take(pool, 1 * MIB, a), blocks[3]);
    assert_ptr_equal(take(pool, 1 * MIB, a), blocks[7]);
    for (int i = 0; i < 20; i++) /* more than are held */
        give(pool, blocks[i], a);
    must_be_sound(pool);
    assert_int_equal(figures(pool).live_blocks, 0);
    take(pool, 20 * MIB, a); /* they have joined */
    assert_int_equal(figures(pool).reserved_bytes, 20 * MIB);
    DONE(cmpool_free(pool, blocks[0], a));
    end_of(pool);
}

static void bad_pointers_are_told(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        char *block = take(pool, 3 * MIB, a);
        for (int i = 0; i < 3; i++) {
            GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_free(pool, block + 512, a));
            give(pool, block, a);
            size_t bytes;
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, a));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, b));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_record_use(pool, block, b));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_usable_size(pool, block, &bytes));
            assert_ptr_equal(take(pool, 3 * MIB, a), block);
        }
        give(pool, block, a);
        DONE(cmpool_free(pool, NULL, a));
        end_of(pool);
    }
}

/* A use on another stream ends the lease: the next request of the size has to wait for it. */
static void a_use_elsewhere_ends_the_lease(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        for (int round = 0; round < 4; round++) {
            give(pool, take_and_use(pool, 12 * MIB, a), a);
            void *block = take_and_use(pool, 12 * MIB, a);
            CUevent event = sim_test_event();
            OK(cuEventRecord(event, a));
            OK(cuStreamWaitEvent(b, event, 0));
            OK(cuEventDestroy_v2(event));
            int gate = panel.gate_close(b);
            DONE(cmpool_record_use(pool, block, b));
            use(b, block, 12 * MIB);
            give(pool, block, a);
            for (int i = 0; i < 3; i++)
                give(pool, take_and_use(pool, 12 * MIB, a), a);
            panel.gate_open(gate);
        }
        end_of(pool);
    }
}

/* Streams of one thread keep apart, and blocks go from the one to the other by way of the pool only. */
static void leases_keep_streams_apart(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream streams[2] = {sim_test_stream(), sim_test_stream()};
        for (int i = 0; i < 40; i++) {
            CUstream stream = streams[i / 2 % 2];
            int gate = panel.gate_close(stream);
            for (int k = 0; k < 3; k++)
                give(pool, take_and_use(pool, 6 * MIB, stream), k == 2 && i % 5 == 0 ? streams[1 - i / 2 % 2] : stream);
            panel.gate_open(gate);
        }
        end_of(pool);
    }
}

typedef struct other_thread {
    cmpool_t pool;
    CUstream stream;
    void *block;
} other_thread;

static void *free_it(void *argument)
{
    other_thread *other = argument;
    return cmpool_free(other->pool, other->block, other->stream) == CMPOOL_OK ? argument : NULL;
}

static void *take_it(void *argument)
{
    other_thread *other = argument;
    return cmpool_malloc(other->pool, &other->block, 4 * MIB, other->stream) == CMPOOL_OK ? argument : NULL;
}

static void in_another_thread(void *(*what)(void *), other_thread *other)
{
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, what, other), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, other);
}

/* Another thread frees a block this thread has in mind, and the same address comes back in another size and to other threads. */
static void blocks_that_other_threads_free(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream();
    for (int round = 0; round < 10; round++) {
        other_thread other = {pool, a, take_and_use(pool, 4 * MIB, a)};
        void *address = other.block;
        in_another_thread(free_it, &other);
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, address, a));
        void *smaller = take_and_use(pool, 3 * MIB, a);
        assert_ptr_equal(smaller, address);
        in_another_thread(take_it, &other);
        give(pool, smaller, a);
        assert_int_equal(figures(pool).live_bytes, 4 * MIB);
        give(pool, other.block, a); /* never this thread's */
        must_be_sound(pool);
        assert_int_equal(figures(pool).live_bytes, 0);
        in_another_thread(take_it, &other);
        in_another_thread(free_it, &other); /* a thread ends that had it in mind */
    }
    end_of(pool);
}

static void what_is_held_is_free_to_others(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 3; i++)
                give(pool, take_and_use(pool, 40 * MIB, a), a);
            give(pool, take_and_use(pool, 64 * MIB, b), b); /* all there is */
            for (int i = 0; i < 3; i++)
                give(pool, take_and_use(pool, 40 * MIB, a), a);
            give(sibling, take_and_use(sibling, 64 * MIB, b), b);
            for (int i = 0; i < 3; i++)
                give(pool, take_and_use(pool, 40 * MIB, a), a);
            give(pool, take_and_use(pool, 2048, a), a);
            DONE(cmpool_trim(pool, 0, NULL));
            assert_int_equal(figures(pool).reserved_bytes, 0);
            DONE(cmpool_trim(sibling, 0, NULL));
        }
        DONE(cmpool_destroy(sibling));
        end_of(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_exact),
        cmocka_unit_test(the_block_freed_last_comes_back),
        cmocka_unit_test(bad_pointers_are_told),
        cmocka_unit_test(a_use_elsewhere_ends_the_lease),
        cmocka_unit_test(leases_keep_streams_apart),
        cmocka_unit_test(blocks_that_other_threads_free),
        cmocka_unit_test(what_is_held_is_free_to_others),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
