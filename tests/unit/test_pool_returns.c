/*
 * Memory that goes back to other users of the device and comes from them again: pages idle for long, the driver's memory notifications,
 * a sibling that takes memory and returns it, headroom. Time is the test's own. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t seconds;
static uint64_t clock_of_test(void) { return atomic_load(&seconds) * 1000000000u; }

static void start(const char *words)
{
    atomic_store(&seconds, 1000);
    cmi_clock_replace(clock_of_test);
    device_start(words);
}

static void end(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    cmi_clock_replace(NULL);
    device_end();
    assert_int_equal(census_of(0).notifications, 0);
}

/* A call that changes nothing, `later` seconds from now; what the pool holds after it. */
static uint64_t held_later(cmpool_t pool, uint64_t later)
{
    atomic_fetch_add(&seconds, later);
    cmpool_stats stats = figures(pool); /* read before the call is on its way out */
    stats = figures(pool);
    return stats.reserved_bytes;
}

static void fill_and_free(cmpool_t pool, unsigned count, size_t bytes, CUstream stream)
{
    void *blocks[64];
    for (unsigned i = 0; i < count; i++) {
        blocks[i] = take(pool, bytes, stream);
        use(stream, blocks[i], bytes);
    }
    for (unsigned i = 0; i < count; i++)
        give(pool, blocks[i], stream);
}

/* ---- pages idle for long ------------------------------------------------------------------------ */

static void nothing_goes_unasked(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with(NULL);
    fill_and_free(pool, 8, 32 * MIB, sim_test_stream());
    assert_int_equal(held_later(pool, 1000000), 256 * MIB);
    end(pool);
}

static void idle_pages_go_in_batches_down_to_the_floor(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:60,floor:100MiB");
    CUstream stream = sim_test_stream();
    fill_and_free(pool, 40, 32 * MIB, stream);
    panel.counts_reset();
    for (int i = 0; i < 59; i++)
        assert_int_equal(held_later(pool, 1), 1280 * MIB);
    assert_int_equal(driver_calls(), 0); /* none, as long as nothing is due */
    assert_int_equal(held_later(pool, 15), 768 * MIB);
    assert_int_equal(held_later(pool, 0), 768 * MIB);
    assert_int_equal(held_later(pool, 1), 256 * MIB);
    assert_int_equal(held_later(pool, 1), 100 * MIB);
    assert_int_equal(figures(pool).host_waits, 0);
    assert_int_equal(figures(pool).pages_released, 590);
    driver_calls();
    assert_int_equal(held_later(pool, 1000), 100 * MIB);
    assert_int_equal(driver_calls(), 0);
    end(pool);
}

/* Old pages go although they are in one free block with some that are used all the time; those stay. */
static void a_page_has_an_age_of_its_own(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:60");
    CUstream stream = sim_test_stream();
    fill_and_free(pool, 1, 256 * MIB, stream);
    for (int i = 0; i < 12; i++) {
        atomic_fetch_add(&seconds, 10);
        fill_and_free(pool, 1, 4 * MIB, stream);
    }
    cmpool_stats stats = figures(pool);
    assert_int_equal(stats.reserved_bytes, 4 * MIB);
    assert_int_equal(stats.pages_created, 128);
    assert_int_equal(held_later(pool, 100), 0);
    end(pool);
}

static void live_and_unfinished_memory_stays(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:20");
    CUstream stream = sim_test_stream();
    void *live = take(pool, 10 * MIB, stream), *running = take(pool, 20 * MIB, stream);
    int gate = panel.gate_close(stream);
    use(stream, running, 20 * MIB);
    give(pool, running, stream);
    for (int i = 0; i < 10; i++)
        assert_int_equal(held_later(pool, 10), 30 * MIB);
    panel.gate_open(gate);
    panel.run_device();
    held_later(pool, 5);
    assert_int_equal(held_later(pool, 5), 10 * MIB);
    assert_int_equal(figures(pool).host_waits, 0);
    give(pool, live, stream);
    end(pool);
}

static void empty_slabs_and_reserved_pages_go_too(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:60");
    CUstream stream = sim_test_stream();
    fill_and_free(pool, 60, 5000, stream);
    fill_and_free(pool, 30, 200000, stream);
    DONE(cmpool_reserve(pool, 64 * MIB));
    assert_int_equal(held_later(pool, 59), 64 * MIB);
    assert_int_equal(held_later(pool, 30), 0);
    end(pool);
}

static void nothing_goes_while_a_capture_is_live(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:60");
    fill_and_free(pool, 1, 32 * MIB, sim_test_stream());
    DONE(cmpool_capture_begin(0));
    assert_int_equal(panel.notify_over_budget(0, 2 * MIB), 1);
    driver_calls();
    assert_int_equal(held_later(pool, 1000), 32 * MIB);
    assert_int_equal(driver_calls(), 0);
    DONE(cmpool_capture_end(0));
    assert_int_equal(held_later(pool, 0), 0);
    end(pool);
}

static void a_pool_that_nobody_calls_gives_back_too(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t quiet = pool_with("idle_release:60"), busy = pool_with(NULL);
    CUstream stream = sim_test_stream();
    fill_and_free(quiet, 1, 32 * MIB, stream);
    fill_and_free(busy, 1, 16 * MIB, stream);
    assert_int_equal(held_later(busy, 100), 16 * MIB);
    assert_int_equal(census_of(0).handle_bytes, 16 * MIB);
    DONE(cmpool_destroy(quiet));
    assert_int_equal(held_later(busy, 1000), 16 * MIB);
    end(busy);
}

static void a_page_that_cannot_go_is_kept(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("idle_release:60");
    fill_and_free(pool, 1, 32 * MIB, sim_test_stream());
    panel.plan_failure("cuMemUnmap", 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    assert_int_equal(held_later(pool, 100), 32 * MIB);
    must_be_sound(pool);
    panel.fail_clear();
    assert_int_equal(held_later(pool, 20), 0);
    end(pool);
}

enum { ROUNDS = 400 };

static void *churn(void *argument)
{
    cmpool_t pool = *(cmpool_t *)argument;
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream stream = sim_test_stream();
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t bytes = (i * 7919 % 40 + 1) * MIB / 4;
        void *block = take(pool, bytes, stream);
        use(stream, block, bytes);
        atomic_fetch_add(&seconds, 1);
        if (i % 16 == 0)
            panel.notify_over_budget(0, 4 * MIB);
        give(pool, block, stream);
    }
    DONE(cmpool_stream_retire(0, stream));
    OK(cuStreamDestroy_v2(stream));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return NULL;
}

static void threads_give_back_side_by_side(void **state)
{
    (void)state;
    start("sim:256MiB");
    cmpool_t pool = pool_with("idle_release:2");
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &pool), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_true(figures(pool).pages_released > 0);
    held_later(pool, 10);
    assert_int_equal(held_later(pool, 10), 0);
    end(pool);
}

/* ---- what the driver asks for ------------------------------------------------------------------- */

static void *notify_from_a_thread(void *bytes)
{
    assert_int_equal(panel.notify_over_budget(0, *(uint64_t *)bytes), 1);
    return NULL;
}

static void a_notification_trims_once_on_the_next_call(void **state)
{
    (void)state;
    start("sim:4GiB");
    cmpool_t pool = pool_with("floor:10MiB"), other = pool_with("floor:20MiB");
    CUstream stream = sim_test_stream();
    assert_int_equal(census_of(0).notifications, 1);
    fill_and_free(pool, 1, 32 * MIB, stream);
    fill_and_free(other, 1, 32 * MIB, stream);
    uint64_t bytes = 7 * MIB;
    pthread_t thread; /* as the driver would: from a thread that is not ours */
    assert_int_equal(pthread_create(&thread, NULL, notify_from_a_thread, &bytes), 0);
    pthread_join(thread, NULL);
    assert_int_equal(census_of(0).handle_bytes, 64 * MIB); /* the callback itself calls nothing */
    figures(pool);
    assert_int_equal(census_of(0).handle_bytes, 56 * MIB);
    figures(pool);
    assert_int_equal(census_of(0).handle_bytes, 56 * MIB);

    assert_int_equal(panel.notify_over_budget(0, 4 * MIB), 1); /* two of them: the larger one counts */
    assert_int_equal(panel.notify_over_budget(0, 2 * MIB), 1);
    figures(pool);
    assert_int_equal(census_of(0).handle_bytes, 52 * MIB);

    assert_int_equal(panel.notify_over_budget(0, GIB), 1);
    figures(pool);
    assert_int_equal(census_of(0).handle_bytes, 30 * MIB); /* the floors */
    assert_int_equal(figures(pool).host_waits + figures(other).host_waits, 0);
    DONE(cmpool_destroy(other));
    end(pool);
}

static void drivers_without_notifications_do(void **state)
{
    (void)state;
    start("sim:1GiB");
    panel.plan_failure("cuDeviceRegisterAsyncNotification", 1, 1, CUDA_ERROR_NOT_SUPPORTED, SIMCUDA_BEFORE);
    cmpool_t pool = pool_with(NULL);
    assert_int_equal(census_of(0).notifications, 0);
    end(pool);
    start("sim:1GiB");
    panel.plan_failure("cuDeviceRegisterAsyncNotification", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER);
    panel.plan_failure("cuDeviceUnregisterAsyncNotification", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    pool = pool_with(NULL);
    assert_int_equal(census_of(0).notifications, 1);
    end(pool);
    start("sim:1GiB");
    panel.set_feature(SIMCUDA_FEATURE_NOTIFICATIONS, 0);
    cmi_driver_forget();
    pool = pool_with(NULL);
    fill_and_free(pool, 1, 32 * MIB, sim_test_stream());
    end(pool);
}

/* ---- a sibling ---------------------------------------------------------------------------------- */

static void memory_that_returns_is_used_again(void **state)
{
    (void)state;
    start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    void *block;
    OK(panel.sibling_take(0, 40 * MIB, NULL));
    void *first = take(pool, 20 * MIB, stream);
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &block, 20 * MIB, stream));
    panel.sibling_return(0, 40 * MIB);
    block = take(pool, 40 * MIB, stream); /* before it is refused the driver is asked again */
    give(pool, block, stream);
    give(pool, first, stream);
    end(pool);
}

/* While the device is full two streams share one block's memory by waits; once it is not, they come to have one each without a refusal. */
static void memory_that_returns_ends_the_waits(void **state)
{
    (void)state;
    start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream streams[2] = {sim_test_stream(), sim_test_stream()};
    OK(panel.sibling_take(0, 32 * MIB, NULL));
    uint64_t waits = 0;
    for (unsigned i = 0; i < 1000; i++) {
        if (i == 20) {
            assert_int_equal(figures(pool).reserved_bytes, 20 * MIB);
            assert_true(figures(pool).device_waits > 0);
            panel.sibling_return(0, 32 * MIB);
        }
        if (i == 900)
            waits = figures(pool).device_waits;
        fill_and_free(pool, 1, 20 * MIB, streams[i % 2]);
    }
    assert_int_equal(figures(pool).reserved_bytes, 40 * MIB);
    assert_int_equal(figures(pool).device_waits, waits);
    assert_int_equal(figures(pool).refusals, 0);
    OK(cuStreamSynchronize(streams[0]));
    OK(cuStreamSynchronize(streams[1]));
    end(pool);
}

static void idle_pages_serve_before_a_refusal(void **state)
{
    (void)state;
    start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    void *blocks[16];
    for (int i = 0; i < 16; i++)
        blocks[i] = take(pool, 2 * MIB, stream);
    OK(panel.sibling_take(0, 32 * MIB, NULL));
    for (int i = 0; i < 16; i += 2)
        give(pool, blocks[i], stream);
    void *whole = take(pool, 16 * MIB, stream);
    give(pool, whole, stream);
    for (int i = 1; i < 16; i += 2)
        give(pool, blocks[i], stream);
    size_t released;
    DONE(cmpool_device_trim(0, 10 * MIB, &released)); /* what a sibling in this process would call */
    assert_int_equal(released, 10 * MIB);
    OK(panel.sibling_take(0, 10 * MIB, NULL));
    panel.sibling_return(0, 42 * MIB);
    end(pool);
}

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*seed >> 33) % below;
}

static void headroom_is_left_after_any_growth(void **state)
{
    (void)state;
    start("sim:128MiB,order=random:3");
    cmpool_t pools[2] = {pool_with("headroom:24MiB"), pool_with("headroom:24MiB,pending:wait")};
    CUstream streams[2] = {sim_test_stream(), sim_test_stream()};
    struct {
        void *address;
        int pool;
        CUstream stream;
    } live[24] = {{0}};
    uint64_t seed = 5, grown = 0, refused = 0;
    for (int step = 0; step < 3000; step++) {
        uint64_t slot = draw(&seed, 24), bytes = draw(&seed, 6) ? draw(&seed, 12 * MIB) + 1 : draw(&seed, 40 * MIB) + 1;
        if (live[slot].address) {
            give(pools[live[slot].pool], live[slot].address, live[slot].stream);
            live[slot].address = NULL;
        } else {
            live[slot].pool = (int)draw(&seed, 2);
            live[slot].stream = streams[draw(&seed, 2)];
            cmpool_t pool = pools[live[slot].pool];
            uint64_t before = figures(pool).pages_created;
            if (cmpool_malloc(pool, &live[slot].address, bytes, live[slot].stream) != CMPOOL_OK)
                refused++;
            if (figures(pool).pages_created > before) {
                grown++;
                assert_true(census_of(0).free_bytes >= 24 * MIB);
            }
        }
        if (draw(&seed, 4) == 0) {
            if (draw(&seed, 2))
                panel.sibling_take(0, draw(&seed, 20) * MIB, NULL);
            else
                panel.sibling_return(0, draw(&seed, 30) * MIB);
            if (draw(&seed, 8) == 0)
                DONE(cmpool_device_trim(0, 10 * MIB, NULL));
        }
    }
    assert_true(grown > 30 && refused > 30);
    for (int i = 0; i < 24; i++)
        if (live[i].address)
            give(pools[live[i].pool], live[i].address, live[i].stream);
    panel.sibling_return(0, GIB);
    must_be_sound(pools[1]);
    DONE(cmpool_destroy(pools[1]));
    end(pools[0]);
}

typedef struct asker {
    cmpool_t pool;
    cmpool_status status;
    void *block;
    CUstream stream;
} asker;

static void *ask(void *argument)
{
    asker *self = argument;
    self->status = cmpool_malloc(self->pool, &self->block, 30 * MIB, self->stream);
    return NULL;
}

/* One thread has looked and is getting its pages when another one looks: there is room above the headroom for one of them. */
static void headroom_is_left_by_two_threads(void **state)
{
    (void)state;
    start("sim:64MiB");
    cmpool_t pool = pool_with("headroom:20MiB");
    CUstream stream = sim_test_stream();
    asker first = {.pool = pool, .stream = stream}, second = first;
    pthread_t threads[2];
    assert_int_equal(panel.park("cuMemCreate", 2), 0);
    assert_int_equal(pthread_create(&threads[0], NULL, ask, &first), 0);
    assert_int_equal(panel.wait_parked(10000), 1);
    assert_int_equal(pthread_create(&threads[1], NULL, ask, &second), 0);
    struct timespec moment = {.tv_nsec = 50000000};
    nanosleep(&moment, NULL);
    panel.release_parked();
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(first.status, CMPOOL_OK);
    assert_int_equal(second.status, CMPOOL_ERR_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(census_of(0).free_bytes, 34 * MIB);
    give(pool, first.block, stream);
    end(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_goes_unasked),
        cmocka_unit_test(idle_pages_go_in_batches_down_to_the_floor),
        cmocka_unit_test(a_page_has_an_age_of_its_own),
        cmocka_unit_test(live_and_unfinished_memory_stays),
        cmocka_unit_test(empty_slabs_and_reserved_pages_go_too),
        cmocka_unit_test(nothing_goes_while_a_capture_is_live),
        cmocka_unit_test(a_pool_that_nobody_calls_gives_back_too),
        cmocka_unit_test(a_page_that_cannot_go_is_kept),
        cmocka_unit_test(threads_give_back_side_by_side),
        cmocka_unit_test(a_notification_trims_once_on_the_next_call),
        cmocka_unit_test(drivers_without_notifications_do),
        cmocka_unit_test(memory_that_returns_is_used_again),
        cmocka_unit_test(memory_that_returns_ends_the_waits),
        cmocka_unit_test(idle_pages_serve_before_a_refusal),
        cmocka_unit_test(headroom_is_left_after_any_growth),
        cmocka_unit_test(headroom_is_left_by_two_threads),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
