/*
 * Two devices with two pools, on each a thread that captures graphs and launches them while three threads ask for blocks with and without a
 * stream, until memory is short: then a callback gives up blocks that the program can do without. Everything that is handed out is filled
 * and read back, what graphs write too. Captures stay valid, nothing is lost.
 */
#include "../unit/capture_fixture.h"
#include "storm.h"

enum { DEVICES = 2, WORKERS = 3, OWN_BLOCKS = 12, SPARE_BLOCKS = 8, GRAPH_BLOCKS = 3, DEVICE_PAGES = 8 };
static const size_t LARGEST = 1 * MIB;

typedef struct block {
    void *address;
    size_t bytes;
    uint32_t pattern;
    CUstream stream;
} block;

typedef struct place place;

typedef struct worker {
    pthread_t thread;
    place *place;
    uint64_t random, served, refused;
    CUstream stream;
    block own[OWN_BLOCKS];
    uint32_t *back;
} worker;

/* One device and what happens there. */
struct place {
    CUcontext context;
    cmpool_t pool;
    worker workers[WORKERS], capturer;
    pthread_mutex_t lock;
    void *spare[SPARE_BLOCKS]; /* under the lock: nothing on the device uses them any more */
    _Atomic uint64_t given_up;
};

static place places[DEVICES];
static atomic_bool storm_over;
static _Atomic uint64_t graphs_made, unordered_made;

#define NEED(call) STORM_EXPECT(CUDA_SUCCESS, call)

/* ---- blocks ------------------------------------------------------------------------------------- */

static bool was_served(worker *w, cmpool_status status, const void *address)
{
    bool refused = status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || (status == CMPOOL_ERR_CAPTURE && !address);
    if (status != CMPOOL_OK && !refused)
        storm_fail("malloc gives %s (%s %d)", cmpool_status_name(status), cmpool_last_error()->driver_call,
                   cmpool_last_error()->driver_code);
    w->served += status == CMPOOL_OK;
    w->refused += refused;
    return status == CMPOOL_OK;
}

static void take_block(worker *w, block *b)
{
    uint64_t x = storm_draw(&w->random);
    bool unordered = x % 8 == 0;
    *b = (block){.bytes = 4 + (x >> 8) % (x & 16 ? 64 * 1024 : LARGEST - 4), .pattern = (uint32_t)(x >> 32) | 1, .stream = w->stream};
    cmpool_status status = unordered ? cmpool_malloc_unordered(w->place->pool, &b->address, b->bytes)
                                     : cmpool_malloc(w->place->pool, &b->address, b->bytes, w->stream);
    if (!was_served(w, status, b->address)) {
        *b = (block){0};
        return;
    }
    atomic_fetch_add(&unordered_made, unordered);
    NEED(cuMemsetD32Async((CUdeviceptr)(uintptr_t)b->address, b->pattern, b->bytes / 4, w->stream));
}

static void must_hold(worker *w, const void *address, size_t bytes, uint32_t pattern)
{
    size_t words = bytes / 4;
    NEED(cuMemcpyDtoHAsync_v2(w->back, (CUdeviceptr)(uintptr_t)address, words * 4, w->stream));
    NEED(cuStreamSynchronize(w->stream));
    if (w->back[0] != pattern || memcmp(w->back, w->back + 1, (words - 1) * 4) != 0)
        storm_fail("a block of %zu bytes at %p does not hold what was put there", bytes, address);
}

/* Now and then it is kept as one that the program can do without: nothing uses it from here on. */
static void give_block(worker *w, block *b)
{
    place *at = w->place;
    uint64_t x = storm_draw(&w->random);
    must_hold(w, b->address, b->bytes, b->pattern);
    void *address = b->address;
    size_t words = b->bytes / 4;
    *b = (block){0};
    if (x % 4) { /* the free comes while the stream still writes */
        NEED(cuMemsetD32Async((CUdeviceptr)(uintptr_t)address, 0, words, w->stream));
    } else {
        pthread_mutex_lock(&at->lock);
        void **room = &at->spare[x >> 8 & (SPARE_BLOCKS - 1)];
        void *before = *room;
        *room = address;
        address = before;
        pthread_mutex_unlock(&at->lock);
    }
    STORM_EXPECT(CMPOOL_OK, x & 32 ? cmpool_free(at->pool, address, w->stream) : cmpool_free_unordered(at->pool, address));
}

static int give_up_a_spare(void *user, cmpool_t pool, size_t bytes)
{
    place *at = user;
    void *found = NULL;
    (void)pool; /* or a set of it, to which the spare blocks do not belong */
    (void)bytes;
    pthread_mutex_lock(&at->lock);
    for (unsigned i = 0; i < SPARE_BLOCKS && !found; i++) {
        found = at->spare[i];
        at->spare[i] = NULL;
    }
    pthread_mutex_unlock(&at->lock);
    if (found)
        STORM_EXPECT(CMPOOL_OK, cmpool_free_unordered(at->pool, found));
    atomic_fetch_add(&at->given_up, found != NULL);
    return found != NULL;
}

static void *work(void *argument)
{
    worker *w = argument;
    NEED(cuCtxSetCurrent(w->place->context));
    while (!atomic_load(&storm_stop) && !atomic_load(&storm_over)) {
        uint64_t x = storm_draw(&w->random);
        block *b = &w->own[x % OWN_BLOCKS];
        if (x >> 8 & 63) {
            if (b->address)
                give_block(w, b);
            else
                take_block(w, b);
        } else { /* not while a graph is captured: then nothing is given back */
            cmpool_status status = x & 1 << 20 ? cmpool_trim(w->place->pool, 0, NULL) : cmpool_device_trim(0, 4 * MIB, NULL);
            if (status != CMPOOL_OK && status != CMPOOL_ERR_CAPTURE)
                storm_fail("trim gives %s", cmpool_status_name(status));
        }
    }
    return NULL;
}

/* ---- graphs ------------------------------------------------------------------------------------- */

/* A graph that fills its blocks; one of them it gives back within the capture, so that it may be the next one. */
static void capture_once(worker *w, cmpool_t set)
{
    block blocks[GRAPH_BLOCKS] = {0};
    unsigned count = 0;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    STORM_EXPECT(CMPOOL_OK, cmpool_capture_begin(set));
    NEED(cuStreamBeginCapture_v2(w->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (unsigned i = 0; i < GRAPH_BLOCKS; i++) {
        uint64_t x = storm_draw(&w->random);
        block *b = &blocks[count];
        *b = (block){.bytes = 4 + (x >> 8) % (MIB / 2), .pattern = (uint32_t)(x >> 32) | 1};
        cmpool_status status = cmpool_malloc(set, &b->address, b->bytes, w->stream);
        if (!was_served(w, status, b->address))
            continue;
        NEED(cuMemsetD32Async((CUdeviceptr)(uintptr_t)b->address, b->pattern, b->bytes / 4, w->stream));
        if (i == 1)
            STORM_EXPECT(CMPOOL_OK, cmpool_free(set, b->address, w->stream));
        else
            count++;
    }
    NEED(cuStreamEndCapture(w->stream, &graph));
    STORM_EXPECT(CMPOOL_OK, cmpool_capture_end(set));
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphDestroy(graph));
    for (unsigned launches = 0; launches < 3 && !atomic_load(&storm_stop); launches++)
        NEED(cuGraphLaunch(exec, w->stream));
    for (unsigned i = 0; i < count; i++) {
        must_hold(w, blocks[i].address, blocks[i].bytes, blocks[i].pattern);
        STORM_EXPECT(CMPOOL_OK, cmpool_free(set, blocks[i].address, w->stream));
    }
    NEED(cuGraphExecDestroy(exec));
    atomic_fetch_add(&graphs_made, 1);
}

static void *capture(void *argument)
{
    worker *w = argument;
    NEED(cuCtxSetCurrent(w->place->context));
    while (!atomic_load(&storm_stop) && !atomic_load(&storm_over)) {
        cmpool_t set = 0;
        STORM_EXPECT(CMPOOL_OK, cmpool_capture_create(&set, w->place->pool));
        for (unsigned i = 0; i < 3 && !atomic_load(&storm_stop); i++) {
            capture_once(w, set);
            storm_sleep_ms(1); /* what a capture bars goes on in between */
        }
        STORM_EXPECT(CMPOOL_OK, cmpool_capture_release(set));
    }
    return NULL;
}

/* ---- the storm ---------------------------------------------------------------------------------- */

static void start(worker *w, place *at, uint64_t seed, void *(*body)(void *))
{
    *w = (worker){.place = at, .random = seed, .stream = sim_test_stream(), .back = malloc(LARGEST)};
    assert_non_null(w->back);
    assert_int_equal(pthread_create(&w->thread, NULL, body, w), 0);
}

static void end(worker *w)
{
    for (unsigned i = 0; i < OWN_BLOCKS; i++)
        if (w->own[i].address)
            DONE(cmpool_free(w->place->pool, w->own[i].address, w->stream));
    OK(cuStreamDestroy_v2(w->stream));
    free(w->back);
}

static void storm(const char *words, uint64_t seed, double seconds)
{
    device_start(words);
    storm_begin();
    for (int i = 0; i < DEVICES; i++) {
        OK(cuDevicePrimaryCtxRetain(&places[i].context, i));
        places[i].pool = pool_on(i, NULL);
        atomic_store(&places[i].given_up, 0);
        assert_int_equal(pthread_mutex_init(&places[i].lock, NULL), 0);
        DONE(cmpool_set_low_memory_callback(places[i].pool, give_up_a_spare, &places[i]));
    }
    atomic_store(&storm_over, false);
    atomic_store(&graphs_made, 0);
    atomic_store(&unordered_made, 0);
    for (int i = 0; i < DEVICES; i++) {
        OK(cuCtxSetCurrent(places[i].context));
        for (unsigned k = 0; k < WORKERS; k++)
            start(&places[i].workers[k], &places[i], seed * 64 + (uint64_t)i * 8 + k, work);
        start(&places[i].capturer, &places[i], seed * 64 + (uint64_t)i * 8 + 7, capture);
    }
    /* On a slow or busy machine it takes longer than asked until each kind of work was done. */
    double begun = storm_now();
    bool done = false;
    while (!atomic_load(&storm_stop) && (storm_now() < begun + seconds || (!done && storm_now() < begun + 60))) {
        storm_sleep_ms(20);
        done = atomic_load(&graphs_made) && atomic_load(&unordered_made);
    }
    atomic_store(&storm_over, true);
    uint64_t served = 0, refused = 0, given_up = 0, graphs = atomic_load(&graphs_made), unordered = atomic_load(&unordered_made);
    for (int i = 0; i < DEVICES; i++) {
        for (unsigned k = 0; k <= WORKERS; k++) {
            const worker *w = k < WORKERS ? &places[i].workers[k] : &places[i].capturer;
            assert_int_equal(pthread_join(w->thread, NULL), 0);
            served += w->served;
            refused += w->refused;
        }
        given_up += atomic_load(&places[i].given_up);
    }
    storm_end();
    print_message("%s seed %llu: %llu served (%llu without a stream), %llu refused, %llu graphs, %llu spare blocks given up\n", words,
                  (unsigned long long)seed, (unsigned long long)served, (unsigned long long)unordered, (unsigned long long)refused,
                  (unsigned long long)graphs, (unsigned long long)given_up);
    assert_true(served > 0 && unordered > 0 && graphs > 0);
    for (int i = 0; i < DEVICES; i++) {
        place *at = &places[i];
        OK(cuCtxSetCurrent(at->context));
        for (unsigned k = 0; k < SPARE_BLOCKS; k++) {
            DONE(cmpool_free_unordered(at->pool, at->spare[k]));
            at->spare[k] = NULL;
        }
        for (unsigned k = 0; k < WORKERS; k++)
            end(&at->workers[k]);
        end(&at->capturer);
        assert_int_equal(figures(at->pool).live_blocks, 0);
        must_be_sound(at->pool);
        give(at->pool, take(at->pool, DEVICE_PAGES * PAGE, NULL), NULL); /* nothing was lost */
        DONE(cmpool_destroy(at->pool));
        pthread_mutex_destroy(&at->lock);
    }
    for (int i = 0; i < DEVICES; i++)
        device_must_be_as_at_start(i);
    device_end();
}

static void contents_survive(void **state)
{
    (void)state;
    static const char *const orders[] = {"eager", "lazy", "random:7"};
    const char *words = getenv("CMPOOL_TEST_SEED");
    uint64_t seed = words ? strtoull(words, NULL, 0) : 1;
    for (unsigned i = 0; i < CMI_ARRAY_LENGTH(orders); i++) {
        char device[80];
        snprintf(device, sizeof device, "sim:%uMiB,content,devices=%d,order=%s", (unsigned)(DEVICE_PAGES * PAGE / MIB), DEVICES, orders[i]);
        storm(device, seed + i, storm_seconds() / CMI_ARRAY_LENGTH(orders));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(contents_survive)};
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
