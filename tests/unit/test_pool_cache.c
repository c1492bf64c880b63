/*
 * Thread caches seen from outside: what they must not change (figures, order of streams, what bad pointers are told), and that what they
 * hold is free to everybody who asks for it: a request that is short, a trim, the end of a stream, of a thread, of a pool.
 */
#include "pool_fixture.h"

#include <pthread.h>
#include <time.h>

static void figures_are_exact(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        give(pool, take(pool, 4096, a), a);
        give(pool, take(pool, 4096, b), b);
        driver_calls();
        for (int i = 0; i < 1000; i++) {
            void *two[2] = {take(pool, 4096, i % 2 ? a : b), take(pool, 3000, i % 2 ? a : b)};
            give(pool, two[0], i % 2 ? a : b);
            give(pool, two[1], i % 2 ? a : b);
        }
        assert_int_equal(driver_calls(), 0);
        void *kept = take(pool, 512, a);
        cmpool_stats stats = figures(pool);
        assert_int_equal(stats.allocations, 2003);
        assert_int_equal(stats.frees, 2002);
        assert_int_equal(stats.live_blocks, 1);
        assert_int_equal(stats.live_bytes, 512);
        assert_int_equal(stats.requested_bytes, 512);
        assert_int_equal(stats.peak_live_bytes, 4096 + 3072);
        give(pool, kept, a);
        assert_int_equal(figures(pool).live_bytes, 0);
        end_of(pool);
    }
}

/* The peak lies between two calls that take the lock: nobody looks at that moment. */
static void peaks_are_seen(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), inside;
        DONE(cmpool_private_create(&inside, pool));
        CUstream a = sim_test_stream();
        void *blocks[30];
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 30; i++)
                blocks[i] = take(inside, 1024, a);
            for (int i = 0; i < 30; i++)
                give(inside, blocks[i], a);
            if (round == 0)
                DONE(cmpool_stats_reset_peaks(pool));
        }
        assert_int_equal(figures(pool).peak_live_bytes, 30 * 1024);
        assert_int_equal(figures(inside).peak_live_bytes, 30 * 1024);
        assert_int_equal(figures(inside).allocations, 60);
        DONE(cmpool_destroy(inside));
        end_of(pool);
    }
}

static void bad_pointers_are_told(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        char *block = take(pool, 8192, a), *other = take(pool, 8192, a);
        GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_free(pool, block + 512, a));
        give(pool, block, a);
        cmpool_stats before = figures(pool);
        for (int i = 0; i < 3; i++) { /* in its slab; then in the cache */
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, a));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, b));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_record_use(pool, block, b));
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block + 512, a));
            size_t bytes;
            GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_usable_size(pool, block, &bytes));
            if (i == 0)
                must_be_unchanged(pool, &before);
            assert_ptr_equal(take(pool, 8192, a), block);
            give(pool, block, a);
        }
        GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, &pool, a));
        give(pool, other, a);
        end_of(pool);
    }
}

/* A slot that one stream has freed is no other stream's. */
static void a_cache_keeps_streams_apart(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        int gate = panel.gate_close(a);
        for (int i = 0; i < 100; i++) {
            give(pool, take_and_use(pool, 2048, a), a);
            give(pool, take_and_use(pool, 2048, b), b);
        }
        void *block = take_and_use(pool, 2048, a);
        DONE(cmpool_record_use(pool, block, b));
        CUevent event = sim_test_event();
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0));
        OK(cuEventDestroy_v2(event));
        int other_gate = panel.gate_close(b);
        use(b, block, 2048);
        give(pool, block, a); /* b is not done with it */
        for (int i = 0; i < 100; i++)
            give(pool, take_and_use(pool, 2048, a), a);
        panel.gate_open(gate);
        panel.gate_open(other_gate);
        end_of(pool);
    }
}

static void what_is_cached_is_free_to_others(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        for (int round = 0; round < 3; round++) {
            void *small = take_and_use(pool, 2048, a);
            give(pool, small, a);
            small = take_and_use(pool, 2048, a);
            give(pool, small, a);
            give(pool, take_and_use(pool, 64 * MIB, b), b); /* all there is */
            small = take_and_use(pool, 2048, a);
            give(pool, small, a);
            DONE(cmpool_trim(pool, 0, NULL));
            assert_int_equal(figures(pool).reserved_bytes, 0);
        }
        end_of(pool);
    }
}

/* The stream's frees are covered while it lives, and its handle means another stream afterwards. */
static void the_end_of_a_stream(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream other = sim_test_stream();
        give(pool, take_and_use(pool, 2048, other), other);
        for (int i = 0; i < 20; i++) {
            CUstream stream;
            OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            for (int k = 0; k < 5; k++)
                give(pool, take_and_use(pool, 2048, stream), stream);
            DONE(cmpool_stream_retire(0, stream));
            OK(cuStreamDestroy_v2(stream));
            give(pool, take_and_use(pool, 60 * MIB, other), other);
        }
        end_of(pool);
    }
}

typedef struct visit {
    cmpool_t pool;
    CUstream stream;
    bool keep;
    void *block;
} visit;

static void *visitor(void *argument)
{
    visit *v = argument;
    for (int i = 0; i < 100; i++)
        if (cmpool_malloc(v->pool, &v->block, 2048, v->stream) != CMPOOL_OK || cmpool_free(v->pool, v->block, v->stream) != CMPOOL_OK)
            return NULL;
    return v->keep && cmpool_malloc(v->pool, &v->block, 2048, v->stream) != CMPOOL_OK ? NULL : v;
}

static void the_end_of_a_thread(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream();
        driver_calls();
        visit visits[8];
        for (int i = 0; i < 8; i++) {
            pthread_t thread;
            void *result;
            visits[i] = (visit){.pool = pool, .stream = a, .keep = i % 2};
            assert_int_equal(pthread_create(&thread, NULL, visitor, &visits[i]), 0);
            assert_int_equal(pthread_join(thread, &result), 0);
            assert_ptr_equal(result, &visits[i]);
            cmpool_stats stats = figures(pool);
            assert_int_equal(stats.live_blocks, (i + 1) / 2);
            assert_int_equal(stats.allocations - stats.frees, (i + 1) / 2);
            must_be_sound(pool);
        }
        for (int i = 1; i < 8; i += 2)
            give(pool, visits[i].block, a); /* another thread's blocks go to this thread's cache */
        end_of(pool);
    }
}

static void nothing_is_kept_where_that_is_asked_for(void **state)
{
    (void)state;
    static const char *const options[] = {"thread_cache:0", "stream_check:always", "idle_release:100"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(options); i++) {
        device_start("sim:64MiB");
        cmpool_t pool = pool_with(options[i]);
        CUstream a = sim_test_stream();
        void *first = take(pool, 512, a);
        uint64_t metadata = figures(pool).metadata_bytes;
        for (int k = 0; k < 100; k++)
            give(pool, take(pool, 512, a), a);
        assert_int_equal(figures(pool).metadata_bytes, metadata);
        give(pool, first, a);
        end_of(pool);
    }
}

/* Who shuts a latch goes on only when its owner is out. */
static cmi_latch latch;
static atomic_int steps;

static void *owner_inside(void *argument)
{
    if (!cmi_latch_enter(&latch))
        return argument;
    atomic_store(&steps, 1);
    const struct timespec moment = {.tv_nsec = 50000000};
    nanosleep(&moment, NULL);
    atomic_store(&steps, 2);
    cmi_latch_leave(&latch);
    return argument;
}

static void a_latch_waits_for_its_owner(void **state)
{
    (void)state;
    pthread_t thread;
    cmi_latch_prepare();
    atomic_store(&steps, 0);
    assert_int_equal(pthread_create(&thread, NULL, owner_inside, NULL), 0);
    while (!atomic_load(&steps)) {
        sched_yield();
    }
    cmi_latch_shut(&latch);
    cmi_latch_barrier();
    cmi_latch_wait(&latch);
    assert_int_equal(atomic_load(&steps), 2);
    assert_false(cmi_latch_enter(&latch));
    cmi_latch_open(&latch);
    assert_true(cmi_latch_enter(&latch));
    cmi_latch_leave(&latch);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_exact),
        cmocka_unit_test(peaks_are_seen),
        cmocka_unit_test(bad_pointers_are_told),
        cmocka_unit_test(a_cache_keeps_streams_apart),
        cmocka_unit_test(what_is_cached_is_free_to_others),
        cmocka_unit_test(the_end_of_a_stream),
        cmocka_unit_test(the_end_of_a_thread),
        cmocka_unit_test(nothing_is_kept_where_that_is_asked_for),
        cmocka_unit_test(a_latch_waits_for_its_owner),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
