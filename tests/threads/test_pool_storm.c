/*
 * One device, eight threads, every public call: blocks of all sizes on own and shared streams, freed by other threads than the ones that
 * asked for them, trims, limits, private and sibling pools that come and go, streams retired and destroyed, on a device so small that pages
 * move all the time and requests are refused now and then. With contents, each block is filled on its stream and read back before its free;
 * without, the device's race checker watches many more. Now and then all threads stand still, and what must be possible then is asked for.
 */
#include "storm.h"

#define THREADS 8
#define SHARED_STREAMS 2
#define OWN_STREAMS 3
#define OWN_BLOCKS 24
#define EXCHANGE 32
#define DEVICE_PAGES 64
#define LARGEST (24 * MIB)

typedef struct block {
    void *address;
    size_t bytes;
    CUstream stream; /* of its last use; NULL: none ended up here */
    CUevent written; /* recorded behind it: the next user's stream waits for it */
    uint32_t pattern, tag;
    cmpool_t pool;
} block;

typedef struct worker {
    uint64_t random;
    unsigned number;
    CUstream streams[OWN_STREAMS];
    block own[OWN_BLOCKS];
    uint32_t *back; /* what was read back */
    uint64_t served, refused, moved;
} worker;

static bool contents; /* memory has bytes; else blocks are touched only, which takes less time and leaves more for the pool */
static CUcontext context;
static cmpool_t main_pool;
static CUstream shared[SHARED_STREAMS];
static worker workers[THREADS];
static block exchange[EXCHANGE];
static pthread_mutex_t exchange_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t gate;
static double round_end;
static atomic_bool last_round;
static bool was_last; /* the round that has just ended; written by worker 0 between two barriers */

#define NEED(call) STORM_EXPECT(CUDA_SUCCESS, call)

/* ---- blocks ------------------------------------------------------------------------------------- */

static size_t draw_bytes(worker *w)
{
    uint64_t x = storm_draw(&w->random);
    switch (x % 16) {
    case 0:
        return 1 + (x >> 8) % (x >> 4 & 1 ? LARGEST : 8 * MIB);
    case 1:
    case 2:
        return 1 + (x >> 8) % (3 * MIB);
    case 3:
    case 4:
        return 1 + (x >> 8) % MIB;
    default:
        return 1 + (x >> 8) % (64 * 1024);
    }
}

static CUstream draw_stream(worker *w)
{
    uint64_t x = storm_draw(&w->random) % (OWN_STREAMS + SHARED_STREAMS);
    return x < OWN_STREAMS ? w->streams[x] : shared[x - OWN_STREAMS];
}

static bool refused(cmpool_status status) { return status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT; }

static bool take_block(worker *w, cmpool_t pool, block *b)
{
    size_t bytes = draw_bytes(w);
    uint64_t x = storm_draw(&w->random);
    *b = (block){.bytes = bytes, .stream = draw_stream(w), .pattern = (uint32_t)x | 1, .pool = pool};
    cmpool_status status;
    if (x >> 40 & 1) {
        status = cmpool_malloc(pool, &b->address, bytes, b->stream);
    } else {
        b->tag = b->pattern;
        const cmpool_request request = {
            .struct_size = sizeof request, .bytes = bytes, .alignment = (size_t)512 << (x >> 48) % 8, .stream = b->stream, .tag = b->tag};
        status = cmpool_malloc_ex(pool, &b->address, &request);
    }
    if (status != CMPOOL_OK) {
        if (!refused(status))
            storm_fail("malloc of %zu bytes gives %s (%s %d)", bytes, cmpool_status_name(status), cmpool_last_error()->driver_call,
                       cmpool_last_error()->driver_code);
        if (b->address)
            storm_fail("a refused request gave an address");
        w->refused++;
        *b = (block){0};
        return false;
    }
    w->served++;
    if (contents)
        NEED(cuMemsetD32Async((CUdeviceptr)(uintptr_t)b->address, b->pattern, bytes / 4, b->stream));
    else
        NEED(panel.touch(b->stream, (uint64_t)(uintptr_t)b->address, bytes, 1));
    return true;
}

static void must_hold_its_pattern(worker *w, const block *b, CUstream stream)
{
    if (!contents) {
        NEED(panel.touch(stream, (uint64_t)(uintptr_t)b->address, b->bytes, 0));
        return;
    }
    NEED(cuMemcpyDtoHAsync_v2(w->back, (CUdeviceptr)(uintptr_t)b->address, b->bytes / 4 * 4, stream));
    NEED(cuStreamSynchronize(stream));
    size_t words = b->bytes / 4;
    if (words && (w->back[0] != b->pattern || memcmp(w->back, w->back + 1, (words - 1) * 4) != 0)) {
        size_t i = 0;
        while (w->back[i] == b->pattern)
            i++;
        storm_fail("word %zu of %zu of a block at %p is %#x, not %#x", i, words, b->address, w->back[i], b->pattern);
    }
}

/* Whoever gives a block back reads it first: on its own stream, or on another one that the program has ordered behind. */
static void give_block(worker *w, block *b)
{
    CUstream stream = b->stream;
    if (b->written) {
        stream = draw_stream(w);
        NEED(cuStreamWaitEvent(stream, b->written, 0));
        NEED(cuEventDestroy_v2(b->written));
    }
    must_hold_its_pattern(w, b, stream);
    STORM_EXPECT(CMPOOL_OK, cmpool_free(b->pool, b->address, stream));
    *b = (block){0};
}

/* Blocks change hands with an event behind the last use, so that the stream they were used on may end meanwhile. */
static void offer(block *b)
{
    NEED(cuEventCreate(&b->written, CU_EVENT_DISABLE_TIMING));
    NEED(cuEventRecord(b->written, b->stream));
    b->stream = NULL;
}

static void swap_with_exchange(worker *w, block *b)
{
    if (b->address && !b->written)
        offer(b);
    pthread_mutex_lock(&exchange_lock);
    block *place = &exchange[storm_draw(&w->random) % EXCHANGE];
    block other = *place;
    *place = *b;
    *b = other;
    pthread_mutex_unlock(&exchange_lock);
}

static void ask_about(worker *w, block *b)
{
    size_t usable = 0;
    cmpool_block_info info = {.struct_size = sizeof info};
    STORM_EXPECT(CMPOOL_OK, cmpool_usable_size(b->pool, b->address, &usable));
    STORM_EXPECT(CMPOOL_OK, cmpool_lookup((char *)b->address + storm_draw(&w->random) % b->bytes, &info));
    if (usable < b->bytes || info.base != b->address || info.usable_bytes != usable || info.pool != b->pool)
        storm_fail("a block of %zu bytes at %p is told to be %zu bytes at %p", b->bytes, b->address, info.usable_bytes, info.base);
    STORM_EXPECT(CMPOOL_ERR_NOT_OURS, cmpool_free(b->pool, w, b->stream));
}

static void use_elsewhere(worker *w, block *b)
{
    CUstream stream = draw_stream(w);
    CUevent event = b->written;
    if (!event) {
        NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        NEED(cuEventRecord(event, b->stream));
    }
    NEED(cuStreamWaitEvent(stream, event, 0));
    NEED(panel.touch(stream, (uint64_t)(uintptr_t)b->address, b->bytes, 0));
    STORM_EXPECT(CMPOOL_OK, cmpool_record_use(b->pool, b->address, stream));
    if (!b->written)
        NEED(cuEventDestroy_v2(event));
}

/* ---- pools and streams that come and go --------------------------------------------------------- */

static void visit_pool(worker *w, bool private)
{
    cmpool_t pool = 0;
    const cmpool_config config = {.struct_size = sizeof config};
    cmpool_status status = private ? cmpool_private_create(&pool, main_pool) : cmpool_create(&pool, &config);
    if (status != CMPOOL_OK) {
        storm_fail("a %s pool cannot be made: %s", private ? "private" : "sibling", cmpool_status_name(status));
        return;
    }
    block blocks[4];
    unsigned count = 0;
    for (unsigned i = 0; i < 4; i++)
        count += take_block(w, pool, &blocks[count]);
    if (count)
        STORM_EXPECT(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
    while (count)
        give_block(w, &blocks[--count]);
    if (!private) {
        STORM_EXPECT(CMPOOL_OK, cmpool_destroy(pool));
        STORM_EXPECT(CMPOOL_ERR_INVALID_POOL, cmpool_free(pool, w, NULL));
        return;
    }
    while ((status = cmpool_destroy(pool)) == CMPOOL_ERR_BUSY) {} /* calls are inside its parent */
    if (status != CMPOOL_OK)
        storm_fail("a private pool cannot be ended: %s", cmpool_status_name(status));
}

static void replace_stream(worker *w)
{
    CUstream *stream = &w->streams[storm_draw(&w->random) % OWN_STREAMS];
    for (unsigned i = 0; i < OWN_BLOCKS; i++)
        if (w->own[i].address && w->own[i].stream == *stream)
            offer(&w->own[i]);
    if (storm_draw(&w->random) % 4 || !contents) /* the pool with contents asks the driver about each handle */
        STORM_EXPECT(CMPOOL_OK, cmpool_stream_retire(0, *stream));
    NEED(cuStreamDestroy_v2(*stream));
    NEED(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
}

static void change_size(worker *w)
{
    size_t released, amount = storm_draw(&w->random) % DEVICE_PAGES * PAGE;
    cmpool_status status;
    switch (storm_draw(&w->random) % 5) {
    case 0:
        STORM_EXPECT(CMPOOL_OK, cmpool_trim(main_pool, amount, &released));
        break;
    case 1:
        STORM_EXPECT(CMPOOL_OK, cmpool_device_trim(0, amount, &released));
        break;
    case 2:
        STORM_EXPECT(CMPOOL_OK, cmpool_set_limit(main_pool, amount / 2 + DEVICE_PAGES / 2 * PAGE));
        break;
    case 3:
        STORM_EXPECT(CMPOOL_OK, cmpool_set_limit(main_pool, 0));
        break;
    default:
        status = cmpool_reserve(main_pool, amount);
        if (status != CMPOOL_OK && !refused(status))
            storm_fail("reserve gives %s", cmpool_status_name(status));
    }
}

static void step(worker *w)
{
    block *b = &w->own[storm_draw(&w->random) % OWN_BLOCKS];
    uint64_t x = storm_draw(&w->random) % 256;
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (x < 140) {
        if (b->address)
            give_block(w, b);
        else
            take_block(w, main_pool, b);
    } else if (x < 190) {
        swap_with_exchange(w, b);
    } else if (x < 220) {
        if (b->address)
            ask_about(w, b);
    } else if (x < 240) {
        if (b->address)
            use_elsewhere(w, b);
    } else if (x < 244) {
        STORM_EXPECT(CMPOOL_OK, cmpool_stats_get(main_pool, &stats));
    } else if (x < 247) {
        visit_pool(w, x & 1);
    } else if (x < 250) {
        replace_stream(w);
    } else if (x < 254) {
        change_size(w);
    } else if (x == 254) {
        STORM_EXPECT(CMPOOL_OK, cmpool_validate(main_pool, NULL));
    } else {
        STORM_EXPECT(CMPOOL_ERR_INVALID_POOL, cmpool_free(main_pool + (UINT64_C(1) << 40), w, NULL));
    }
}

/* ---- all stand still ---------------------------------------------------------------------------- */

static const simcuda_mapping *mapping_of(const simcuda_mapping *mappings, size_t count, uint64_t address)
{
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (mappings[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    return count && address - mappings[low].address < mappings[low].bytes ? &mappings[low] : NULL;
}

/* Adds the pages under a block to the list of those that carry live bytes. */
static void add_pages(const block *b, const simcuda_mapping *mappings, size_t count, uint64_t *handles, size_t *used)
{
    uint64_t end = (uint64_t)(uintptr_t)b->address + b->bytes;
    for (uint64_t at = (uint64_t)(uintptr_t)b->address / PAGE * PAGE; at < end && b->address; at += PAGE) {
        const simcuda_mapping *m = mapping_of(mappings, count, at);
        if (!m) {
            storm_fail("a live block at %p has no page under it", b->address);
            return;
        }
        size_t i = 0;
        while (i < *used && handles[i] != m->handle)
            i++;
        if (i == *used)
            handles[(*used)++] = m->handle;
    }
}

/* Pages without a live byte, and those that the driver still gives: all of them must be had in one block; more than all bytes must not. */
static void ask_for_everything(void)
{
    static simcuda_mapping mappings[65536];
    static uint64_t handles[DEVICE_PAGES + 1];
    size_t count = panel.mappings(mappings, CMI_ARRAY_LENGTH(mappings)), used = 0, live = 0;
    for (unsigned i = 0; i < THREADS * OWN_BLOCKS + EXCHANGE; i++) {
        const block *b = i < EXCHANGE ? &exchange[i] : &workers[(i - EXCHANGE) / OWN_BLOCKS].own[(i - EXCHANGE) % OWN_BLOCKS];
        add_pages(b, mappings, count, handles, &used);
        live += b->bytes;
    }
    if (atomic_load(&storm_stop))
        return;
    simcuda_census census = census_of(0);
    size_t pages = (size_t)(census.handles - used + census.free_bytes / PAGE);
    void *everything = NULL;
    STORM_EXPECT(CMPOOL_OK, cmpool_set_limit(main_pool, 0));
    STORM_EXPECT(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(main_pool, &everything, DEVICE_PAGES * PAGE - live + 1, shared[0]));
    STORM_EXPECT(CMPOOL_OK, cmpool_malloc(main_pool, &everything, pages * PAGE, shared[0]));
    STORM_EXPECT(CMPOOL_OK, cmpool_free(main_pool, everything, shared[0]));
    const char *finding = NULL;
    if (cmpool_validate(main_pool, &finding) != CMPOOL_OK)
        storm_fail("validator: %s", finding);
}

static void *work(void *argument)
{
    worker *w = argument;
    NEED(cuCtxSetCurrent(context));
    bool done = false;
    while (!done) {
        while (!atomic_load(&storm_stop) && storm_now() < round_end)
            step(w);
        pthread_barrier_wait(&gate);
        if (w->number == 0) {
            if (!atomic_load(&storm_stop))
                ask_for_everything();
            round_end = storm_now() + 0.2;
            was_last = atomic_load(&storm_stop) || atomic_load(&last_round); /* said by one, so that all go on or none does */
        }
        pthread_barrier_wait(&gate);
        done = was_last; /* written again behind the next barrier only */
    }
    return NULL;
}

static void storm(const char *words, uint64_t seed, double seconds)
{
    device_start(words);
    storm_begin();
    OK(cuCtxGetCurrent(&context));
    main_pool = pool_with(contents ? "stream_check:always" : "");
    for (unsigned i = 0; i < SHARED_STREAMS; i++)
        shared[i] = sim_test_stream();
    memset(exchange, 0, sizeof exchange);
    assert_int_equal(pthread_barrier_init(&gate, NULL, THREADS), 0);
    atomic_store(&last_round, false);
    round_end = storm_now() + 0.2;
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        worker *w = &workers[i];
        *w = (worker){.random = seed * THREADS + i, .number = i, .back = malloc(LARGEST)};
        assert_non_null(w->back);
        for (unsigned s = 0; s < OWN_STREAMS; s++)
            w->streams[s] = sim_test_stream();
        assert_int_equal(pthread_create(&threads[i], NULL, work, w), 0);
    }
    /* On a slow or busy machine it takes longer than asked until the device was nearly full. */
    double begun = storm_now();
    bool full = false;
    while (!atomic_load(&storm_stop) && (storm_now() < begun + seconds || (!full && storm_now() < begun + 30))) {
        storm_sleep_ms(20);
        cmpool_stats now = figures(main_pool);
        full = now.page_moves > 0 && now.refusals > 0;
    }
    atomic_store(&last_round, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    storm_end();

    uint64_t served = 0, refusals = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        for (unsigned k = 0; k < OWN_BLOCKS; k++)
            if (workers[i].own[k].address)
                give_block(&workers[i], &workers[i].own[k]);
        served += workers[i].served;
        refusals += workers[i].refused;
    }
    for (unsigned i = 0; i < EXCHANGE; i++)
        if (exchange[i].address)
            give_block(&workers[0], &exchange[i]);
    storm_end();
    cmpool_stats stats = figures(main_pool);
    print_message("%s seed %llu: %llu served, %llu refused, %llu pages moved\n", words, (unsigned long long)seed,
                  (unsigned long long)served, (unsigned long long)refusals, (unsigned long long)stats.page_moves);
    assert_int_equal(stats.live_blocks, 0);
    assert_true(stats.page_moves > 0); /* else the device was not nearly full */
    assert_true(stats.refusals > 0);
    must_be_sound(main_pool);
    for (unsigned i = 0; i < THREADS; i++) {
        for (unsigned s = 0; s < OWN_STREAMS; s++)
            OK(cuStreamDestroy_v2(workers[i].streams[s]));
        free(workers[i].back);
    }
    for (unsigned i = 0; i < SHARED_STREAMS; i++)
        OK(cuStreamDestroy_v2(shared[i]));
    DONE(cmpool_destroy(main_pool));
    pthread_barrier_destroy(&gate);
    device_end();
}

static void in_each_order(bool with_contents)
{
    static const char *const orders[] = {"eager", "lazy", "random:11"};
    const char *words = getenv("CMPOOL_TEST_SEED");
    uint64_t seed = words ? strtoull(words, NULL, 0) : 1;
    contents = with_contents;
    for (unsigned i = 0; i < CMI_ARRAY_LENGTH(orders); i++) {
        char device[96];
        snprintf(device, sizeof device, "sim:%uMiB%s,order=%s", (unsigned)(DEVICE_PAGES * PAGE / MIB), contents ? ",content" : "",
                 orders[i]);
        storm(device, seed + i, storm_seconds() / 2 / CMI_ARRAY_LENGTH(orders));
    }
}

static void contents_survive(void **state)
{
    (void)state;
    in_each_order(true);
}

static void no_race_and_no_false_refusal(void **state)
{
    (void)state;
    in_each_order(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_survive),
        cmocka_unit_test(no_race_and_no_false_refusal),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
