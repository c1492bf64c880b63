/*
 * Six threads on one small device while driver calls fail here and there, before or after their effect: requests with and without a stream,
 * private and sibling pools, trims and reserves. A call that fails says so, a block that could not be freed is freed again, and when the
 * failures are over everything works and nothing is lost. The device's race checker watches every block.
 */
#include "storm.h"

#define THREADS 6
#define OWN_BLOCKS 20
#define DEVICE_PAGES 48

typedef struct block {
    cmpool_t pool;
    void *address;
    size_t bytes;
    CUstream stream;
} block;

typedef struct worker {
    pthread_t thread;
    uint64_t random, served, failed;
    CUstream streams[2];
    block own[OWN_BLOCKS];
} worker;

static CUcontext context;
static cmpool_t pool;
static worker workers[THREADS];
static double storm_until;

static bool is_failure(cmpool_status status)
{
    return status == CMPOOL_ERR_DRIVER || status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT ||
           status == CMPOOL_ERR_OUT_OF_ADDRESSES || status == CMPOOL_ERR_MAPPING_CEILING;
}

static void may_fail(worker *w, const char *call, cmpool_status status)
{
    w->failed += status != CMPOOL_OK;
    if (status != CMPOOL_OK && !is_failure(status))
        storm_fail("%s gives %s (%s %d)", call, cmpool_status_name(status), cmpool_last_error()->driver_call,
                   cmpool_last_error()->driver_code);
}

static void take_block(worker *w, cmpool_t from, block *b)
{
    uint64_t x = storm_draw(&w->random);
    size_t bytes = 1 + (x >> 8) % (x % 4 ? 64 * 1024 : 9 * MIB);
    *b = (block){.pool = from, .bytes = bytes, .stream = w->streams[x >> 40 & 1]};
    cmpool_status status =
        x >> 41 & 3 ? cmpool_malloc(from, &b->address, bytes, b->stream) : cmpool_malloc_unordered(from, &b->address, bytes);
    may_fail(w, "malloc", status);
    if (status != CMPOOL_OK && b->address)
        storm_fail("a request that failed gave an address");
    w->served += status == CMPOOL_OK;
    if (status == CMPOOL_OK)
        STORM_EXPECT(CUDA_SUCCESS, panel.touch(b->stream, (uint64_t)(uintptr_t)b->address, bytes, 1));
}

static void give_block(worker *w, block *b)
{
    cmpool_status status;
    STORM_EXPECT(CUDA_SUCCESS, panel.touch(b->stream, (uint64_t)(uintptr_t)b->address, b->bytes, 0));
    do {
        status = storm_draw(&w->random) % 4 ? cmpool_free(b->pool, b->address, b->stream) : cmpool_free_unordered(b->pool, b->address);
        may_fail(w, "free", status);
    } while (status == CMPOOL_ERR_DRIVER);
    *b = (block){0};
}

/* A pool that ends while the driver refuses to take its pages back: what it says, the device's figures tell at the end. */
static void visit_pool(worker *w, bool private)
{
    cmpool_t visited = 0;
    block blocks[3] = {0};
    cmpool_status status = private ? cmpool_private_create(&visited, pool) : cmpool_create(&visited, NULL);
    may_fail(w, "create", status);
    if (status != CMPOOL_OK)
        return;
    for (unsigned i = 0; i < 3; i++)
        take_block(w, visited, &blocks[i]);
    for (unsigned i = 0; i < 3; i++)
        if (blocks[i].address)
            give_block(w, &blocks[i]);
    do
        status = cmpool_destroy(visited);
    while (status == CMPOOL_ERR_BUSY); /* calls are inside its parent */
    may_fail(w, "destroy", status);
}

static void step(worker *w)
{
    block *b = &w->own[storm_draw(&w->random) % OWN_BLOCKS];
    uint64_t x = storm_draw(&w->random) % 64;
    size_t amount = storm_draw(&w->random) % DEVICE_PAGES * PAGE;
    if (x < 56) {
        if (b->address)
            give_block(w, b);
        else
            take_block(w, pool, b);
    } else if (x < 58) {
        may_fail(w, "trim", cmpool_trim(pool, amount, NULL));
    } else if (x < 59) {
        may_fail(w, "trim for others", cmpool_device_trim(0, amount, NULL));
    } else if (x < 60) {
        may_fail(w, "reserve", cmpool_reserve(pool, amount));
    } else if (x < 62) {
        may_fail(w, "limit", cmpool_set_limit(pool, x & 1 ? 0 : amount / 2 + DEVICE_PAGES / 2 * PAGE));
    } else {
        visit_pool(w, x & 1);
    }
}

static void *work(void *argument)
{
    worker *w = argument;
    STORM_EXPECT(CUDA_SUCCESS, cuCtxSetCurrent(context));
    while (!atomic_load(&storm_stop) && storm_now() < storm_until)
        step(w);
    return NULL;
}

/* One failure at a time, of calls that the program itself does not make. Who releases again what was released although that failed cannot
 * be told from one who releases twice: such a failure has no effect here. */
static void make_calls_fail(uint64_t seed)
{
    static const char *const memory_calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"};
    static const char *const other_calls[] = {"cuMemRelease", "cuCtxRecordEvent",    "cuCtxWaitEvent",
                                              "cuEventQuery", "cuMemAddressReserve", "cuMemAddressFree"};
    while (!atomic_load(&storm_stop) && storm_now() < storm_until) {
        uint64_t x = storm_draw(&seed);
        simcuda_when when = x & 1 ? SIMCUDA_AFTER : SIMCUDA_BEFORE;
        CUresult code = x & 2 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
        if (x & 4)
            panel.plan_failure(memory_calls[(x >> 8) % CMI_ARRAY_LENGTH(memory_calls)], 1 + (x >> 16) % 4, 1, code, when);
        else
            panel.plan_failure(other_calls[(x >> 8) % CMI_ARRAY_LENGTH(other_calls)], 1 + (x >> 16) % 4, 1, CUDA_ERROR_UNKNOWN,
                               SIMCUDA_BEFORE);
        storm_sleep_ms(1);
        panel.fail_clear();
    }
}

static void storm(const char *words, uint64_t seed, double seconds)
{
    device_start(words);
    storm_begin();
    OK(cuCtxGetCurrent(&context));
    pool = pool_with(NULL);
    storm_until = storm_now() + seconds;
    for (unsigned i = 0; i < THREADS; i++) {
        worker *w = &workers[i];
        *w = (worker){.random = seed * THREADS + i, .streams = {sim_test_stream(), sim_test_stream()}};
        assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    }
    make_calls_fail(seed);
    uint64_t served = 0, failed = 0, struck = panel.failures_injected();
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        served += workers[i].served;
        failed += workers[i].failed;
    }
    storm_end();
    panel.fail_clear();
    must_be_sound(pool);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < OWN_BLOCKS; k++)
            if (workers[i].own[k].address)
                give_block(&workers[i], &workers[i].own[k]);
    storm_end();
    DONE(cmpool_set_limit(pool, 0));
    give(pool, take(pool, (DEVICE_PAGES - 2) * PAGE, workers[0].streams[0]), workers[0].streams[0]); /* nothing was lost */
    print_message("%s seed %llu: %llu served, %llu calls failed or were refused, %llu driver calls made to fail\n", words,
                  (unsigned long long)seed, (unsigned long long)served, (unsigned long long)failed, (unsigned long long)struck);
    assert_true(served > 0 && struck > 0);
    assert_int_equal(figures(pool).live_blocks, 0);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < 2; k++)
            OK(cuStreamDestroy_v2(workers[i].streams[k]));
    DONE(cmpool_destroy(pool));
    device_end();
}

static void failures_lose_nothing(void **state)
{
    (void)state;
    static const char *const orders[] = {"eager", "lazy", "random:5"};
    const char *words = getenv("CMPOOL_TEST_SEED");
    uint64_t seed = words ? strtoull(words, NULL, 0) : 1;
    for (unsigned i = 0; i < CMI_ARRAY_LENGTH(orders); i++) {
        char device[64];
        snprintf(device, sizeof device, "sim:%uMiB,order=%s", (unsigned)(DEVICE_PAGES * PAGE / MIB), orders[i]);
        storm(device, seed + i, storm_seconds() / CMI_ARRAY_LENGTH(orders));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures_lose_nothing)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
