/*
 * PyTorch's functions as PyTorch calls them, over the simulated device: blocks in stream order, the hooks, routes of captures and of
 * private pools by filters that look like std::function, bad arguments, and a failure at every driver call and every request
 * for host memory. What of it needs a C++ runtime is in tests/pytorch. Needs the simulated device beside it.
 */
#include "capture_fixture.h"

#include <cudamempool/pytorch.h>
#include <limits.h>

/* ---- filters: libstdc++'s std::function<bool(cudaStream_t)> ------------------------------------------------------------------------ */

typedef struct stream_filter {
    void *functor[2];
    bool (*manage)(void *to, const void *from, int operation);
    bool (*invoke)(const void *functor, cmpool_stream *stream);
} stream_filter;

static int clones; /* made and not destroyed */

static bool manage(void *to, const void *from, int operation)
{
    if (operation == 2) {
        memcpy(to, from, 2 * sizeof(void *));
        clones++;
    } else if (operation == 3) {
        clones--;
    }
    return false;
}

static bool is_that_stream(const void *functor, cmpool_stream *stream) { return *stream == *(CUstream const *)functor; }
static bool is_any(const void *functor, cmpool_stream *stream) { return functor && stream; }

/* That of a CUDA graph: the captured stream and no other. */
static stream_filter captures_of(CUstream stream) { return (stream_filter){{stream, NULL}, manage, is_that_stream}; }
static const stream_filter whole_thread = {{NULL, NULL}, manage, is_any};

static cmpool_t pool_of_block(const void *block)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    DONE(cmpool_lookup(block, &info));
    return info.pool;
}

static void *torch_take(size_t bytes, int device, CUstream stream)
{
    void *block = cmpool_torch_malloc(bytes, device, stream);
    assert_non_null(block);
    return block;
}

static void end_torch(void)
{
    DONE(cmpool_torch_close());
    assert_int_equal(clones, 0);
    device_end();
}

/* ---- blocks ------------------------------------------------------------------------------------------------------------------------ */

static void blocks_in_stream_order(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        CUevent event = sim_test_event();
        assert_int_equal(cmpool_torch_pool(0), 0);
        uint64_t served_before, freed_before;
        cmpool_torch_totals(0, &served_before, &freed_before);
        for (int i = 0; i < 50; i++) {
            size_t bytes = i % 3 ? 1000 : 20 * MIB;
            void *block = torch_take(bytes, 0, a);
            use(a, block, bytes);
            OK(cuEventRecord(event, a));
            OK(cuStreamWaitEvent(b, event, 0));
            cmpool_torch_record_stream(block, b);
            use(b, block, bytes);
            cmpool_torch_free(block, bytes, 0, a);
            block = torch_take(bytes, 0, b);
            use(b, block, bytes);
            cmpool_torch_free(block, bytes, 0, b);
        }
        uint64_t served, freed;
        cmpool_torch_totals(0, &served, &freed);
        assert_int_equal(served - served_before, freed - freed_before);
        assert_true(served - served_before >= 17 * 2 * 20 * MIB);
        assert_int_equal(figures(cmpool_torch_pool(0)).live_blocks, 0);
        OK(cuEventDestroy_v2(event));
        end_torch();
    }
}

/* A stream that is gone when PyTorch frees: behind everything instead. */
static void free_on_a_dead_stream(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    CUstream a = sim_test_stream(), dead = sim_test_stream();
    void *block = torch_take(4 * MIB, 0, a);
    use(a, block, 4 * MIB);
    OK(cuStreamDestroy_v2(dead));
    panel.findings_reset();
    cmpool_torch_free(block, 4 * MIB, 0, dead);
    panel.findings_reset(); /* that it was used after its end */
    assert_int_equal(figures(cmpool_torch_pool(0)).live_blocks, 0);
    end_torch();
}

static void bad_arguments(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=2");
    static const int no_devices[] = {-1, 2, 7, 64, INT_MAX, INT_MIN};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(no_devices); i++) {
        uint64_t served = 1, freed = 1;
        assert_null(cmpool_torch_malloc(512, no_devices[i], NULL));
        assert_null(cmpool_torch_malloc_or_raise(512, no_devices[i], NULL)); /* nobody to throw to */
        assert_int_equal(cmpool_torch_pool(no_devices[i]), 0);
        cmpool_torch_memory_fraction(0.5, no_devices[i]);
        cmpool_torch_totals(no_devices[i], &served, &freed);
        assert_int_equal(served + freed, 0);
        cmpool_torch_begin_pool(no_devices[i], 0, 1, &whole_thread);
        cmpool_torch_end_pool(no_devices[i], 0, 1);
        cmpool_torch_release_pool(no_devices[i], 0, 1);
    }
    assert_null(cmpool_torch_malloc(0, 0, NULL));
    assert_null(cmpool_torch_malloc(SIZE_MAX, 0, NULL));
    assert_null(cmpool_torch_malloc((size_t)1 << 40, 0, NULL));
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_last_error()->status);
    assert_int_equal(cmpool_torch_can_raise(), 0);
    assert_null(cmpool_torch_malloc_or_raise((size_t)1 << 40, 0, NULL));
    int host;
    size_t bytes = 7;
    cmpool_stats before = figures(cmpool_torch_pool(0));
    cmpool_torch_free(NULL, 0, 0, NULL);
    cmpool_torch_record_stream(NULL, NULL);
    cmpool_torch_record_stream(&host, NULL);
    assert_null(cmpool_torch_base_alloc(&host, &bytes));
    assert_int_equal(bytes, 0);
    assert_null(cmpool_torch_base_alloc(NULL, NULL));
    cmpool_torch_begin_pool(0, 1, 2, NULL);
    cmpool_torch_end_pool(0, 1, 2);
    cmpool_torch_release_pool(0, 1, 2);
    cmpool_torch_memory_fraction(-1, 0);
    cmpool_torch_memory_fraction(__builtin_nan(""), 0);
    cmpool_torch_init(-1);
    GIVES(CMPOOL_ERR_BUSY, cmpool_torch_configure(NULL)); /* a pool is there */
    must_be_unchanged(cmpool_torch_pool(0), &before);
    end_torch();
    char *endless = malloc(5000);
    memset(endless, ',', 4999);
    endless[4999] = '\0';
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_torch_configure(endless));
    free(endless);
}

static void base_of_a_block(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    size_t bytes;
    char *block = torch_take(3 * MIB, 0, NULL);
    assert_ptr_equal(cmpool_torch_base_alloc(block + 12345, &bytes), block);
    assert_int_equal(bytes, 3 * MIB);
    cmpool_torch_free(block, 3 * MIB, 0, NULL);
    end_torch();
}

/* ---- the whole --------------------------------------------------------------------------------------------------------------------- */

static void empty_cache_and_fraction(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    DONE(cmpool_torch_configure("limit:40MiB"));
    void *block = torch_take(32 * MIB, 0, NULL);
    cmpool_torch_free(block, 32 * MIB, 0, NULL);
    assert_int_equal(figures(cmpool_torch_pool(0)).reserved_bytes, 32 * MIB);
    cmpool_torch_reset();
    assert_int_equal(figures(cmpool_torch_pool(0)).reserved_bytes, 0);
    cmpool_torch_memory_fraction(0.25, 0);
    assert_null(cmpool_torch_malloc(18 * MIB, 0, NULL));
    cmpool_torch_free(torch_take(16 * MIB, 0, NULL), 16 * MIB, 0, NULL);
    cmpool_torch_memory_fraction(0, 0);
    assert_null(cmpool_torch_malloc(18 * MIB, 0, NULL));
    cmpool_torch_memory_fraction(1, 0); /* what the options say is left */
    assert_null(cmpool_torch_malloc(42 * MIB, 0, NULL));
    cmpool_torch_free(torch_take(40 * MIB, 0, NULL), 40 * MIB, 0, NULL);
    end_torch();
    DONE(cmpool_torch_configure(NULL));
}

static void counters_have_names(void **state)
{
    (void)state;
    unsigned count = 0;
#define CMPOOL_COUNTER(name, kind, help) assert_string_equal(cmpool_counter_name(count++), #name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    assert_null(cmpool_counter_name(count));
    assert_null(cmpool_counter_name(UINT_MAX));
}

/* ---- graphs and private pools ------------------------------------------------------------------------------------------------------ */

static void a_graph(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        CUstream stream = sim_test_stream(), other = sim_test_stream();
        CUgraph graph;
        CUgraphExec exec;
        void *outside = torch_take(1 * MIB, 0, other);
        stream_filter filter = captures_of(stream);
        cmpool_torch_begin_pool(0, 1, 0, &filter);
        memset(&filter, 0, sizeof filter); /* PyTorch's own is gone after the call */
        OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        void *block = torch_take(5 * MIB, 0, stream);
        use(stream, block, 5 * MIB);
        void *beside = torch_take(1 * MIB, 0, other); /* another stream meanwhile */
        cmpool_torch_free(block, 5 * MIB, 0, stream);
        void *again = torch_take(5 * MIB, 0, stream);
        assert_ptr_equal(again, block);
        use(stream, again, 5 * MIB);
        OK(cuStreamEndCapture(stream, &graph));
        cmpool_torch_end_pool(0, 1, 0);
        assert_true(pool_of_block(again) != cmpool_torch_pool(0));
        assert_true(pool_of_block(beside) == cmpool_torch_pool(0));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        for (int i = 0; i < 3; i++)
            OK(cuGraphLaunch(exec, other));
        void *later = torch_take(5 * MIB, 0, stream);
        assert_true(pool_of_block(later) == cmpool_torch_pool(0)); /* the route has ended */
        OK(cuCtxSynchronize());
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        cmpool_torch_release_pool(0, 1, 0);
        assert_true(pool_of_block(again) == cmpool_torch_pool(0));
        cmpool_torch_free(again, 5 * MIB, 0, stream);
        cmpool_torch_free(later, 5 * MIB, 0, stream);
        cmpool_torch_free(beside, 1 * MIB, 0, other);
        cmpool_torch_free(outside, 1 * MIB, 0, other);
        end_torch();
    }
}

/* PyTorch announces a capture, which then fails: its release ends it, and memory can be given back again. */
static void a_capture_that_has_no_end(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    stream_filter filter = captures_of(sim_test_stream());
    cmpool_torch_free(torch_take(8 * MIB, 0, NULL), 8 * MIB, 0, NULL);
    cmpool_torch_begin_pool(0, 9, 0, &filter);
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(cmpool_torch_pool(0), 0, NULL));
    cmpool_torch_release_pool(0, 9, 0);
    DONE(cmpool_trim(cmpool_torch_pool(0), 0, NULL));
    end_torch();
}

static void private_pools(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=2");
    CUstream stream = sim_test_stream();
    cmpool_torch_begin_pool(0, 0, 5, &whole_thread);
    void *inner = torch_take(4 * MIB, 0, stream), *small = torch_take(600, 0, NULL);
    cmpool_t private_pool = pool_of_block(inner);
    assert_true(private_pool != cmpool_torch_pool(0));
    assert_true(pool_of_block(small) == private_pool);
    cmpool_torch_begin_pool(0, 0, 6, &whole_thread); /* the newest counts */
    void *innermost = torch_take(4 * MIB, 0, stream);
    assert_true(pool_of_block(innermost) != private_pool && pool_of_block(innermost) != cmpool_torch_pool(0));
    cmpool_torch_end_pool(0, 0, 6);
    cmpool_torch_free(torch_take(4 * MIB, 0, stream), 4 * MIB, 0, stream);
    cmpool_torch_end_pool(0, 0, 5);
    cmpool_torch_release_pool(0, 0, 5); /* tensors live: it stays */
    cmpool_torch_release_pool(0, 0, 6);
    assert_true(pool_of_block(inner) == private_pool);
    cmpool_torch_begin_pool(0, 0, 5, &whole_thread); /* the same again */
    void *more = torch_take(4 * MIB, 0, stream);
    assert_true(pool_of_block(more) == private_pool);
    cmpool_torch_end_pool(0, 0, 5);
    GIVES(CMPOOL_ERR_BUSY, cmpool_torch_close());
    cmpool_torch_free(inner, 4 * MIB, 0, stream);
    cmpool_torch_free(innermost, 4 * MIB, 0, stream);
    cmpool_torch_free(more, 4 * MIB, 0, stream);
    cmpool_torch_free(small, 600, 0, NULL);
    cmpool_torch_release_pool(0, 0, 5);
    end_torch();
}

/* ---- failures ---------------------------------------------------------------------------------------------------------------------- */

static void like_a_training_step(CUstream a, CUstream b)
{
    stream_filter filter = captures_of(b);
    void *blocks[6];
    for (int i = 0; i < 6; i++)
        blocks[i] = cmpool_torch_malloc(i % 2 ? 3 * MIB : 700, 0, i % 3 ? a : b);
    cmpool_torch_record_stream(blocks[1], b);
    cmpool_torch_begin_pool(0, 0, 3, &whole_thread);
    void *inner = cmpool_torch_malloc(2 * MIB, 0, a);
    cmpool_torch_end_pool(0, 0, 3);
    for (int i = 0; i < 6; i++)
        cmpool_torch_free(blocks[i], i % 2 ? 3 * MIB : 700, 0, i % 2 ? b : a);
    cmpool_torch_begin_pool(0, 4, 0, &filter);
    cmpool_torch_end_pool(0, 4, 0);
    void *large = cmpool_torch_malloc(30 * MIB, 0, b);
    cmpool_torch_free(large, 30 * MIB, 0, b);
    cmpool_torch_release_pool(0, 4, 0);
    cmpool_torch_free(inner, 2 * MIB, 0, a);
    cmpool_torch_release_pool(0, 0, 3);
    cmpool_torch_reset();
}

/* The program with one failure in it; whatever fails, no block is lost. false: it was over before. */
static bool survives(uint64_t driver_call, uint64_t meta_request)
{
    device_start("sim:48MiB");
    CUstream a = sim_test_stream(), b = sim_test_stream();
    if (driver_call)
        assert_true(panel.plan_failure("*", driver_call, 1, CUDA_ERROR_OUT_OF_MEMORY, SIMCUDA_BEFORE) >= 0);
    cmi_meta_fail(meta_request, 1);
    like_a_training_step(a, b);
    bool struck = panel.failures_injected() != 0;
    panel.fail_clear();
    cmi_meta_fail(0, 0);
    if (cmpool_torch_pool(0)) {
        must_be_sound(cmpool_torch_pool(0));
        assert_int_equal(figures(cmpool_torch_pool(0)).live_blocks, 0);
    }
    DONE(cmpool_torch_close());
    assert_int_equal(clones, 0);
    assert_int_equal(panel.races(), 0);
    return struck;
}

static void every_driver_call_fails_once(void **state)
{
    (void)state;
    uint64_t nth = 1;
    while (survives(nth, 0))
        nth++;
    assert_true(nth > 50); /* the program does call the driver */
}

static void every_request_for_host_memory_fails_once(void **state)
{
    enum { MORE_THAN_THERE_ARE = 80 };
    (void)state;
    for (uint64_t nth = 1; nth <= MORE_THAN_THERE_ARE; nth++)
        survives(0, nth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_in_stream_order),
        cmocka_unit_test(free_on_a_dead_stream),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(base_of_a_block),
        cmocka_unit_test(empty_cache_and_fraction),
        cmocka_unit_test(counters_have_names),
        cmocka_unit_test(a_graph),
        cmocka_unit_test(a_capture_that_has_no_end),
        cmocka_unit_test(private_pools),
        cmocka_unit_test(every_driver_call_fails_once),
        cmocka_unit_test(every_request_for_host_memory_fails_once),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
