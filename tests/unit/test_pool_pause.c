/*
 * Pause and resume on the simulated device: everything goes back and comes back at the same addresses with the same contents, by way of
 * pinned memory and of a file; parts by tag; frees, refusals and the end of the pool meanwhile; a driver that fails at every call.
 * CMPOOL_PAUSE_CYCLES: pauses in the long program (1,000 by command; a short form otherwise). Needs the simulated device beside it.
 */
#include "capture_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#define KEPT_FILE "cudamempool-test-kept"

static cmpool_status pause_with(cmpool_t pool, cmpool_pause_request request)
{
    request.struct_size = sizeof request;
    return cmpool_pause_ex(pool, &request);
}

static void *take_tagged(cmpool_t pool, size_t bytes, CUstream stream, uint32_t tag)
{
    void *block;
    const cmpool_request request = {.struct_size = sizeof request, .bytes = bytes, .stream = stream, .tag = tag};
    DONE(cmpool_malloc_ex(pool, &block, &request));
    return block;
}

/* All memory is away, nothing is handed out, and the pool is as it was afterwards. */
static void everything_goes_and_comes_back(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *first = take_and_use(pool, 5 * MIB, a), *small = take_and_use(pool, 300, b), *gap = take_and_use(pool, 3 * MIB, a);
        void *last = take_and_use(pool, 9 * MIB + 512, b);
        give(pool, gap, a);
        cmpool_stats before = figures(pool);
        DONE(cmpool_pause(pool, CMPOOL_DISCARD));
        assert_int_equal(census_of(0).free_bytes, census_at_start.free_bytes);
        assert_int_equal(census_of(0).handles, 0);
        assert_int_equal(figures(pool).reserved_bytes, 0);
        assert_int_equal(figures(pool).live_bytes, before.live_bytes);
        assert_in_range(figures(pool).paused_bytes, before.live_bytes, before.reserved_bytes);
        must_be_sound(pool);
        void *none = pool_with;
        GIVES(CMPOOL_ERR_PAUSED, cmpool_malloc(pool, &none, 100, a));
        assert_null(none);
        GIVES(CMPOOL_ERR_PAUSED, cmpool_malloc_unordered(pool, &none, 5 * MIB));
        GIVES(CMPOOL_ERR_PAUSED, cmpool_reserve(pool, 64 * MIB));
        GIVES(CMPOOL_ERR_PAUSED, cmpool_pause(pool, CMPOOL_KEEP));
        size_t released;
        DONE(cmpool_trim(pool, 0, &released));
        assert_int_equal(released, 0);
        DONE(cmpool_resume(pool));
        DONE(cmpool_resume(pool));
        must_be_sound(pool);
        assert_int_equal(figures(pool).paused_bytes, 0);
        use(a, first, 5 * MIB);
        use(b, small, 300);
        use(b, last, 9 * MIB + 512);
        void *new = take_and_use(pool, 3 * MIB, b);
        give(pool, new, b);
        give(pool, first, a);
        give(pool, small, b);
        give(pool, last, b);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* What a kernel is still writing is saved when it has been written; and the host waits once. */
static void pending_work_is_waited_for_once(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream(), b = sim_test_stream();
    void *kept = take_and_use(pool, 4 * MIB, a), *freed = take_and_use(pool, 6 * MIB, b);
    DONE(cmpool_record_use(pool, freed, a));
    give(pool, freed, b);
    uint64_t waits = figures(pool).host_waits;
    DONE(cmpool_pause(pool, CMPOOL_KEEP));
    assert_int_equal(figures(pool).host_waits, waits + 1);
    assert_int_equal(census_of(0).handles, 0);
    DONE(cmpool_resume(pool));
    use(b, kept, 4 * MIB);
    give(pool, kept, a);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void frees_are_remembered(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *block[6], *small[40];
        for (int i = 0; i < 6; i++)
            block[i] = take_and_use(pool, (size_t)(i + 1) * MIB + 512, i & 1 ? a : b);
        for (int i = 0; i < 40; i++)
            small[i] = take_and_use(pool, 1000, a);
        DONE(cmpool_record_use(pool, small[3], b));
        DONE(cmpool_pause(pool, CMPOOL_KEEP));
        for (int i = 0; i < 6; i += 2)
            give(pool, block[i], a);
        for (int i = 0; i < 40; i++)
            give(pool, small[i], i & 1 ? a : b);
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block[0], a));
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, small[0], a));
        must_be_sound(pool);
        assert_int_equal(figures(pool).live_blocks, 3);
        assert_int_equal(census_of(0).handles, 0);
        DONE(cmpool_resume(pool));
        must_be_sound(pool);
        for (int i = 1; i < 6; i += 2) {
            use(a, block[i], (size_t)(i + 1) * MIB + 512);
            give(pool, block[i], a);
        }
        block[0] = take_and_use(pool, 40 * MIB, b);
        give(pool, block[0], b);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* The end of a paused pool: refused while blocks are live, whole afterwards. */
static void destroyed_while_paused(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), inside;
        DONE(cmpool_private_create(&inside, pool));
        CUstream a = sim_test_stream();
        void *block = take_and_use(pool, 5 * MIB, a), *other = take_and_use(inside, 700, a);
        GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_pause(inside, CMPOOL_KEEP));
        GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_resume(inside));
        DONE(cmpool_pause(pool, CMPOOL_KEEP));
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(inside));
        give(inside, other, a);
        DONE(cmpool_destroy(inside));
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
        give(pool, block, a);
        must_be_sound(pool);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Pages of the tag go, what it shares with others stays, and the rest of the pool works on. */
static void a_tag_goes_alone(void **state)
{
    (void)state;
    DONE(cmpool_tag_push("cache")); /* names stay for the life of the process */
    DONE(cmpool_tag_push("keys"));
    DONE(cmpool_tag_pop());
    DONE(cmpool_tag_pop());
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream();
        void *weights = take_tagged(pool, 7 * MIB, a, 1), *cache = take_tagged(pool, 20 * MIB, a, 2);
        DONE(cmpool_tag_push("cache"));
        DONE(cmpool_tag_push("keys"));
        void *keys = take(pool, 6 * MIB, a);
        DONE(cmpool_tag_pop());
        DONE(cmpool_tag_pop());
        DONE(pause_with(pool, (cmpool_pause_request){.contents = CMPOOL_KEEP, .tag = 2}));
        must_be_sound(pool);
        assert_in_range(figures(pool).paused_bytes, 16 * MIB, 20 * MIB);
        assert_int_equal(census_of(0).handle_bytes, figures(pool).reserved_bytes);
        use(a, weights, 7 * MIB);
        use(a, keys, 6 * MIB);
        void *more = take_and_use(pool, 40 * MIB, a), *small = take_and_use(pool, 100, a);
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_resume(pool));
        must_be_sound(pool);
        give(pool, more, a);
        DONE(cmpool_resume(pool)); /* idle pages make room */
        use(a, cache, 20 * MIB);
        DONE(pause_with(pool, (cmpool_pause_request){.tag_name = "cache"}));
        assert_in_range(figures(pool).paused_bytes, 2 * MIB, 6 * MIB);
        give(pool, keys, a);
        DONE(cmpool_resume(pool));
        give(pool, small, a);
        give(pool, weights, a);
        give(pool, cache, a);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Memory that others hold by its pages, and that of graphs. */
static void what_is_fixed_is_listed(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), set;
    CUstream a = sim_test_stream();
    void *plain = take_and_use(pool, 5 * MIB, a), *shared, *fixed[2] = {NULL, NULL};
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 3 * MIB, .stream = a, .flags = CMPOOL_EXPORTABLE, .tag = 4};
    DONE(cmpool_malloc_ex(pool, &shared, &request));
    cmpool_stats before = figures(pool);
    cmpool_pause_request ask = {.struct_size = sizeof ask, .fixed = fixed, .fixed_room = 2};
    GIVES(CMPOOL_ERR_BUSY, cmpool_pause_ex(pool, &ask));
    assert_int_equal(ask.fixed_count, 1);
    assert_ptr_equal(fixed[0], shared);
    assert_int_equal(figures(pool).live_bytes, before.live_bytes);
    use(a, plain, 5 * MIB);
    GIVES(CMPOOL_ERR_BUSY, pause_with(pool, (cmpool_pause_request){.tag = 4}));
    give(pool, shared, a);
    DONE(cmpool_capture_create(&set, pool));
    void *graph = take_and_use(set, 6 * MIB, a);
    give(set, graph, a);
    ask.fixed_count = 0;
    GIVES(CMPOOL_ERR_BUSY, cmpool_pause_ex(pool, &ask));
    assert_in_range(ask.fixed_count, 1, 2);
    DONE(cmpool_capture_release(set));
    DONE(cmpool_pause_ex(pool, &ask));
    assert_int_equal(census_of(0).handles, 0);
    DONE(cmpool_resume(pool));
    give(pool, plain, a);
    DONE(cmpool_destroy(pool));
    device_end();
}

/* Somebody else has taken the memory meanwhile: a second try when it is back. */
static void no_memory_on_resume(void **state)
{
    (void)state;
    device_start("sim:64MiB,content");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream();
    unsigned char *block = take_tagged(pool, 20 * MIB, a, 3);
    memset(block, 7, 20 * MIB);
    DONE(pause_with(pool, (cmpool_pause_request){.contents = CMPOOL_KEEP, .flags = CMPOOL_PAUSE_VERIFY, .file = KEPT_FILE}));
    assert_int_not_equal(access(KEPT_FILE, F_OK), 0);
    assert_int_equal(panel.sibling_take(0, 50 * MIB, NULL), 0);
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_resume(pool));
    must_be_sound(pool);
    assert_int_equal(census_of(0).handles, 0);
    panel.sibling_return(0, 50 * MIB);
    DONE(cmpool_resume(pool));
    for (size_t i = 0; i < 20 * MIB; i += 4099)
        assert_int_equal(block[i], 7);
    FILE *there = fopen(KEPT_FILE, "w");
    assert_non_null(there);
    fclose(there);
    GIVES(CMPOOL_ERR_FILE, pause_with(pool, (cmpool_pause_request){.contents = CMPOOL_KEEP, .file = KEPT_FILE}));
    unlink(KEPT_FILE);
    DONE(cmpool_set_limit(pool, 22 * MIB));
    DONE(cmpool_pinned_set_limit(pool, 4 * MIB));
    GIVES(CMPOOL_ERR_LIMIT, cmpool_pause(pool, CMPOOL_KEEP));
    assert_int_equal(block[0], 7);
    DONE(cmpool_pinned_set_limit(pool, 0));
    DONE(cmpool_pause(pool, CMPOOL_KEEP));
    DONE(cmpool_set_limit(pool, 8 * MIB));
    DONE(cmpool_resume(pool)); /* no more than it had */
    DONE(pause_with(pool, (cmpool_pause_request){.contents = CMPOOL_KEEP, .tag = 3}));
    void *other = take(pool, 7 * MIB, a);
    GIVES(CMPOOL_ERR_LIMIT, cmpool_resume(pool));
    give(pool, other, a);
    DONE(cmpool_set_limit(pool, 0));
    DONE(cmpool_resume(pool));
    assert_int_equal(block[20 * MIB - 1], 7);
    give(pool, block, a);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void a_child_is_told(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    void *block = take(pool, 5 * MIB, sim_test_stream());
    DONE(cmpool_pause(pool, CMPOOL_KEEP));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(cmpool_resume(pool) == CMPOOL_ERR_FORKED && cmpool_pause(pool, CMPOOL_KEEP) == CMPOOL_ERR_FORKED ? 0 : 1);
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    DONE(cmpool_resume(pool));
    give(pool, block, NULL);
    DONE(cmpool_destroy(pool));
    device_end();
}

/* ---- a driver that fails at one call, and from there on ------------------------------------------- */

static void try_with_failure(uint64_t nth, uint64_t count, int code, simcuda_when when, bool *reached)
{
    device_start("sim:64MiB,content");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream(), b = sim_test_stream();
    unsigned char *block[3], *gap = take(pool, 3 * MIB, a);
    for (int i = 0; i < 3; i++) {
        block[i] = take(pool, (size_t)(3 * i + 1) * MIB + 512, a);
        memset(block[i], 10 + i, (size_t)(3 * i + 1) * MIB + 512);
    }
    give(pool, gap, b);
    uint64_t before = panel.failures_injected();
    panel.plan_failure("*", nth, count, code, when);
    cmpool_status paused = cmpool_pause(pool, CMPOOL_KEEP);
    cmpool_status resumed = cmpool_resume(pool);
    *reached = panel.failures_injected() > before;
    panel.fail_clear();
    must_be_sound(pool);
    DONE(cmpool_resume(pool));
    must_be_sound(pool);
    assert_true(paused == CMPOOL_OK || paused == cmpool_last_error()->status || resumed == CMPOOL_OK || *reached);
    for (int i = 0; i < 3; i++) {
        for (size_t at = 0; at < (size_t)(3 * i + 1) * MIB + 512; at += 509)
            if (block[i][at] != 10 + i)
                fail_msg("call %llu failed: byte %zu of block %d is lost", (unsigned long long)nth, at, i);
        give(pool, block[i], b);
    }
    DONE(cmpool_pause(pool, CMPOOL_DISCARD)); /* and it can be paused again */
    assert_int_equal(figures(pool).reserved_bytes, 0);
    DONE(cmpool_resume(pool));
    DONE(cmpool_destroy(pool));
}

static void each_call_fails(void **state)
{
    (void)state;
    static const struct {
        uint64_t count;
        int code;
        simcuda_when when;
    } ways[] = {{1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE},
                {1, CUDA_ERROR_OUT_OF_MEMORY, SIMCUDA_BEFORE},
                {0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE},
                {1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER}};
    for (size_t way = 0; way < CMI_ARRAY_LENGTH(ways); way++) {
        bool reached = true;
        uint64_t nth = 0;
        while (reached)
            try_with_failure(++nth, ways[way].count, ways[way].code, ways[way].when, &reached);
        assert_in_range(nth, 20, 1000); /* the program's calls were all reached */
    }
}

/* ---- many pauses with random live sets ---------------------------------------------------------- */

enum { LIVE = 24 };

typedef struct held {
    unsigned char *at;
    size_t bytes;
    uint32_t tag;
    unsigned char fill;
} held;

static uint64_t random_below(uint64_t *chance, uint64_t bound)
{
    *chance = *chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*chance >> 33) % bound;
}

static void check(const held *h)
{
    for (size_t i = 0; i < h->bytes; i += 61)
        if (h->at[i] != h->fill)
            fail_msg("byte %zu of %zu at %p is not what was written", i, h->bytes, (void *)h->at);
    assert_int_equal(h->at[h->bytes - 1], h->fill);
}

static void cycle(cmpool_t pool, uint64_t *chance, held *live, CUstream *streams)
{
    for (int i = 0; i < LIVE; i++) {
        if (live[i].at && random_below(chance, 3) == 0) {
            give(pool, live[i].at, streams[random_below(chance, 2)]);
            live[i].at = NULL;
        } else if (!live[i].at && random_below(chance, 2)) {
            static const size_t most[] = {4000, 300 * 1024, 2 * MIB};
            live[i].bytes = 1 + random_below(chance, most[random_below(chance, 3)]);
            live[i].tag = 1 + (uint32_t)random_below(chance, 2);
            live[i].fill = (unsigned char)random_below(chance, 255);
            live[i].at = take_tagged(pool, live[i].bytes, streams[random_below(chance, 2)], live[i].tag);
            OK(cuCtxSynchronize());
            memset(live[i].at, live[i].fill, live[i].bytes);
        }
    }
    cmpool_pause_request ask = {.contents = CMPOOL_KEEP,
                                .flags = random_below(chance, 2) ? CMPOOL_PAUSE_VERIFY : 0,
                                .tag = (uint32_t)random_below(chance, 3),
                                .file = random_below(chance, 3) == 0 ? KEPT_FILE : NULL};
    DONE(pause_with(pool, ask));
    if (!ask.tag)
        assert_int_equal(census_of(0).free_bytes, census_at_start.free_bytes);
    for (int i = 0; i < LIVE; i++) {
        if (live[i].at && random_below(chance, 6) == 0) {
            give(pool, live[i].at, streams[0]);
            live[i].at = NULL;
        }
    }
    must_be_sound(pool);
    DONE(cmpool_resume(pool));
    for (int i = 0; i < LIVE; i++)
        if (live[i].at)
            check(&live[i]);
}

static void cycles(void **state)
{
    (void)state;
    const char *asked = getenv("CMPOOL_PAUSE_CYCLES");
    unsigned long count = asked ? strtoul(asked, NULL, 10) : 30;
    device_start("sim:128MiB,content,order=random:5");
    cmpool_t pool = pool_with(NULL);
    CUstream streams[2] = {sim_test_stream(), sim_test_stream()};
    uint64_t chance = 17;
    held live[LIVE] = {{0}};
    for (unsigned long i = 0; i < count; i++)
        cycle(pool, &chance, live, streams);
    assert_int_equal(figures(pool).paused_bytes, 0);
    for (int i = 0; i < LIVE; i++)
        if (live[i].at)
            give(pool, live[i].at, streams[0]);
    DONE(cmpool_destroy(pool));
    device_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_goes_and_comes_back),
        cmocka_unit_test(pending_work_is_waited_for_once),
        cmocka_unit_test(frees_are_remembered),
        cmocka_unit_test(destroyed_while_paused),
        cmocka_unit_test(a_tag_goes_alone),
        cmocka_unit_test(what_is_fixed_is_listed),
        cmocka_unit_test(no_memory_on_resume),
        cmocka_unit_test(a_child_is_told),
        cmocka_unit_test(each_call_fails),
        cmocka_unit_test(cycles),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
