/*
 * Threads that meet at one place, made to stand there: a request that is short while another thread has pages on their way is not refused
 * but waits; a pool does not end with a call inside; and of two that are both short neither waits for ever.
 */
#include "storm.h"

#define DEVICE_PAGES 32

static CUcontext context;
static cmpool_t pool, sibling;
static CUstream stream;

typedef struct errand {
    cmpool_t pool;
    size_t bytes;
    cmpool_status status;
    void *block;
    atomic_bool ended;
    pthread_t thread;
} errand;

static void *take_in_thread(void *argument)
{
    errand *e = argument;
    STORM_EXPECT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    e->status = cmpool_malloc(e->pool, &e->block, e->bytes, stream);
    atomic_store(&e->ended, true);
    return NULL;
}

static void *trim_in_thread(void *argument)
{
    errand *e = argument;
    STORM_EXPECT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    e->status = cmpool_trim(e->pool, 0, &e->bytes);
    atomic_store(&e->ended, true);
    return NULL;
}

static void send(errand *e, void *(*work)(void *))
{
    atomic_store(&e->ended, false);
    assert_int_equal(pthread_create(&e->thread, NULL, work, e), 0);
}

static void come_back(errand *e)
{
    pthread_join(e->thread, NULL);
    storm_end();
}

static void start(const char *order)
{
    char words[64];
    snprintf(words, sizeof words, "sim:%uMiB,order=%s", (unsigned)(DEVICE_PAGES * PAGE / MIB), order);
    device_start(words);
    storm_begin();
    OK(cuCtxGetCurrent(&context));
    stream = sim_test_stream();
    pool = pool_with("");
    sibling = pool_with("");
}

static void end(void)
{
    must_be_sound(pool);
    must_be_sound(sibling);
    DONE(cmpool_destroy(pool));
    DONE(cmpool_destroy(sibling));
    OK(cuStreamDestroy_v2(stream));
    device_end();
}

static const char *const orders[] = {"eager", "lazy", "random:3"};

/* All pages are idle, and one thread is just giving them back: they are neither the pool's nor the driver's when the other one asks. */
static void pages_on_their_way_to_the_driver(void **state)
{
    (void)state;
    for (unsigned i = 0; i < CMI_ARRAY_LENGTH(orders); i++) {
        start(orders[i]);
        give(pool, take(pool, DEVICE_PAGES * PAGE, stream), stream);
        errand trim = {.pool = pool}, request = {.pool = i % 2 ? sibling : pool, .bytes = DEVICE_PAGES * PAGE};
        assert_int_equal(panel.park("cuMemRelease", 3), 0);
        send(&trim, trim_in_thread);
        assert_int_equal(panel.wait_parked(10000), 1);
        send(&request, take_in_thread);
        storm_sleep_ms(50);
        assert_false(atomic_load(&request.ended)); /* it waits */
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
        panel.release_parked();
        come_back(&trim);
        come_back(&request);
        DONE(trim.status);
        DONE(request.status);
        give(request.pool, request.block, stream);
        end();
    }
}

/* Half the pages are being mapped for a request that fails; the other one, which needs more than the rest, gets them. */
static void pages_of_a_move_that_fails(void **state)
{
    (void)state;
    for (unsigned i = 0; i < CMI_ARRAY_LENGTH(orders); i++) {
        start(orders[i]);
        void *blocks[DEVICE_PAGES];
        for (unsigned k = 0; k < DEVICE_PAGES; k++)
            blocks[k] = take(pool, PAGE, stream);
        for (unsigned k = 0; k < DEVICE_PAGES; k += 2)
            give(pool, blocks[k], stream);
        errand first = {.pool = pool, .bytes = 10 * PAGE}, second = {.pool = pool, .bytes = 12 * PAGE};
        assert_int_equal(panel.park("cuMemMap", 4), 0);
        assert_true(panel.plan_failure("cuMemMap", 6, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE) >= 0);
        send(&first, take_in_thread);
        assert_int_equal(panel.wait_parked(10000), 1);
        send(&second, take_in_thread);
        storm_sleep_ms(50);
        assert_false(atomic_load(&second.ended));
        panel.release_parked();
        come_back(&first);
        come_back(&second);
        panel.fail_clear();
        GIVES(CMPOOL_ERR_DRIVER, first.status);
        DONE(second.status);
        give(pool, second.block, stream);
        for (unsigned k = 1; k < DEVICE_PAGES; k += 2)
            give(pool, blocks[k], stream);
        end();
    }
}

/* Both ask for more than half of what there is: one gets it, the other is told so, and neither waits for the other for ever. */
static void both_are_short(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 60; round++) {
        start(orders[round % CMI_ARRAY_LENGTH(orders)]);
        void *kept = NULL;
        if (round % 2) { /* in pieces */
            void *blocks[DEVICE_PAGES];
            for (unsigned k = 0; k < DEVICE_PAGES; k++)
                blocks[k] = take(k % 3 ? pool : sibling, PAGE, stream);
            for (unsigned k = 0; k < DEVICE_PAGES; k++)
                give(k % 3 ? pool : sibling, blocks[k], stream);
        } else {
            kept = take(sibling, 2 * PAGE, stream);
        }
        errand errands[4];
        for (unsigned k = 0; k < 4; k++) {
            errands[k] = (errand){.pool = k % 2 ? pool : sibling, .bytes = (17 + k) * PAGE};
            send(&errands[k], take_in_thread);
        }
        unsigned served = 0;
        for (unsigned k = 0; k < 4; k++) {
            come_back(&errands[k]);
            served += errands[k].status == CMPOOL_OK;
            assert_true(errands[k].status == CMPOOL_OK || errands[k].status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY);
        }
        assert_int_equal(served, 1);
        for (unsigned k = 0; k < 4; k++)
            if (errands[k].block)
                give(errands[k].pool, errands[k].block, stream);
        if (kept)
            give(sibling, kept, stream);
        end();
    }
}

/* While a call is inside, its pool does not end; a pool that others only take pages from does, once they have them. */
static void a_pool_ends_when_nobody_is_inside(void **state)
{
    (void)state;
    start("lazy");
    errand request = {.pool = pool, .bytes = 20 * PAGE};
    give(sibling, take(sibling, 30 * PAGE, stream), stream);
    assert_int_equal(panel.park("cuMemMap", 5), 0);
    send(&request, take_in_thread); /* takes pages of the sibling */
    assert_int_equal(panel.wait_parked(10000), 1);
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
    panel.release_parked();
    DONE(cmpool_destroy(sibling)); /* waits for the move, if it is not over yet */
    come_back(&request);
    DONE(request.status);
    sibling = pool_with("");
    give(pool, request.block, stream);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_on_their_way_to_the_driver),
        cmocka_unit_test(pages_of_a_move_that_fails),
        cmocka_unit_test(both_are_short),
        cmocka_unit_test(a_pool_ends_when_nobody_is_inside),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
