/*
 * Pinned host memory of a pool: sizes, alignment, reuse only behind finished work, limits, trims, NUMA nodes, bad pointers; that nothing of
 * it is touched by the library, and that each extent goes back. With the simulated device beside it, whose race checker looks on.
 */
#include "pinned_fixture.h"

#define EACH_ORDER_OF(words, rest)                                                                                    \
    for (const char *const *order_ = (const char *const[]){"sim:64MiB,order=eager" rest, "sim:64MiB,order=lazy" rest, \
                                                           "sim:64MiB,order=random:5" rest, NULL},                    \
                           *words = *order_;                                                                          \
         (words = *order_) != NULL; order_++)                                                                         \
        if (order_is_asked_for(words))

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------ */

static void every_size_is_aligned_and_apart(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    enum { COUNT = 160 };
    unsigned char *blocks[COUNT];
    size_t sizes[COUNT], bytes = 1;
    for (int i = 0; i < COUNT; i++, bytes += 1 + bytes / 8) {
        bytes = bytes > 5 * MIB ? 1 : bytes;
        sizes[i] = bytes;
        blocks[i] = pin(pool, bytes, stream);
        assert_int_equal((uintptr_t)blocks[i] % 512, 0);
        memset(blocks[i], i + 1, bytes); /* the CPU's, since no work uses it */
        cmpool_block_info info = {.struct_size = sizeof info};
        DONE(cmpool_pinned_lookup(blocks[i] + bytes - 1, &info));
        assert_ptr_equal(info.base, blocks[i]);
        assert_int_equal(info.requested_bytes, bytes);
        assert_true(info.usable_bytes >= bytes && info.usable_bytes <= bytes + bytes / 4 + 4096);
    }
    for (int i = 0; i < COUNT; i++) {
        for (size_t at = 0; at < sizes[i]; at += 1 + sizes[i] / 100)
            assert_int_equal(blocks[i][at], i + 1);
        assert_int_equal(blocks[i][sizes[i] - 1], i + 1);
        unpin(pool, blocks[i], stream);
    }
    pinned_must_end(pool);
    device_end();
}

static void flags_and_alignments(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    for (size_t bytes = 1; bytes < 8 * MIB; bytes = bytes * 7 + 3)
        for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
            void *blocks[2];
            for (uint32_t kind = 0; kind < 2; kind++) {
                cmpool_pinned_request request = {.struct_size = sizeof request,
                                                 .bytes = bytes,
                                                 .alignment = alignment,
                                                 .tag = 7,
                                                 .flags = CMPOOL_PINNED_UNORDERED | (kind ? CMPOOL_PINNED_WRITE_COMBINED : 0)};
                DONE(cmpool_pinned_malloc_ex(pool, &blocks[kind], &request));
                assert_int_equal((uintptr_t)blocks[kind] % alignment, 0);
                unsigned flags;
                OK(cuMemHostGetFlags(&flags, blocks[kind]));
                assert_int_equal(flags & CU_MEMHOSTALLOC_WRITECOMBINED, kind ? CU_MEMHOSTALLOC_WRITECOMBINED : 0);
                assert_true(flags & CU_MEMHOSTALLOC_PORTABLE && flags & CU_MEMHOSTALLOC_DEVICEMAP);
            }
            DONE(cmpool_pinned_free_unordered(pool, blocks[0]));
            DONE(cmpool_pinned_free_unordered(pool, blocks[1]));
        }
    pinned_must_end(pool);
    device_end();
}

/*
 * What an offload run of a 7B model pins: fp32 parameters and two moments in buckets of 129.5 MiB, gradients in buckets half as large, and
 * many small ones. Caches that round up to a power of two would hold up to twice as much.
 */
static void an_offload_run_holds_little_more_than_it_asks_for(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    const size_t bucket = (size_t)259 << 19; /* 129.5 MiB */
    const size_t round[] = {bucket, bucket, bucket, bucket / 2, 33554432, 16777216 + 4096, 1050624, 98304, 8192, 4097, 512};
    enum { ROUNDS = 8, KINDS = sizeof round / sizeof round[0] };
    static void *blocks[ROUNDS][KINDS];
    uint64_t asked = 0, power_of_two = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
        asked = power_of_two = 0;
        for (int i = 0; i < ROUNDS; i++)
            for (int k = 0; k < KINDS; k++) {
                blocks[i][k] = pin(pool, round[k], stream);
                asked += round[k];
                power_of_two += UINT64_C(1) << (64 - __builtin_clzll(round[k] - 1));
            }
        cmpool_pinned_stats stats = pinned_figures(pool);
        assert_int_equal(stats.requested_bytes, asked);
        assert_true(stats.live_bytes >= asked && stats.held_bytes >= stats.live_bytes);
        assert_true((double)stats.peak_held_bytes <= 1.05 * (double)asked);
        assert_true((double)power_of_two > 1.8 * (double)asked); /* what the bound is held against */
        for (int i = 0; i < ROUNDS; i++)
            for (int k = 0; k < KINDS; k++)
                unpin(pool, blocks[i][k], stream);
        OK(cuStreamSynchronize(stream));
    }
    pinned_must_end(pool);
    device_end();
}

/* ---- order ------------------------------------------------------------------------------------------------------------------------ */

/* A block that the device still reads serves nobody; the CPU would overwrite what is to be copied. */
static void reuse_comes_behind_the_copy(void **state)
{
    (void)state;
    EACH_ORDER_OF(words, ",content")
    {
        for (size_t bytes = 3000; bytes <= 3 * MIB; bytes *= 1000) {
            device_start(words);
            cmpool_t pool = pool_with(NULL);
            CUstream stream = sim_test_stream(), other = sim_test_stream();
            enum { ROUNDS = 6 };
            unsigned char *on_device = take(pool, ROUNDS * bytes, stream);
            for (int i = 0; i < ROUNDS; i++) {
                unsigned char *block = pin(pool, bytes, i % 2 ? other : stream);
                memset(block, 'a' + i, bytes);
                OK(cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)(on_device + i * bytes), block, bytes, i % 2 ? other : stream));
                unpin(pool, block, i % 2 ? other : stream);
            }
            OK(cuStreamSynchronize(stream));
            OK(cuStreamSynchronize(other));
            unsigned char *back = pin(pool, ROUNDS * bytes, stream);
            OK(cuMemcpyDtoHAsync_v2(back, (uint64_t)(uintptr_t)on_device, ROUNDS * bytes, stream));
            OK(cuStreamSynchronize(stream));
            for (size_t i = 0; i < ROUNDS * bytes; i += 97)
                assert_int_equal(back[i], 'a' + i / bytes);
            unpin(pool, back, stream);
            give(pool, on_device, stream);
            pinned_must_end(pool);
            device_end();
        }
    }
}

static void finished_memory_serves_again_without_a_wait(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=eager");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    for (size_t bytes = 70000; bytes < 40 * MIB; bytes *= 20) {
        void *first = pin(pool, bytes, stream);
        unpin(pool, first, stream);
        cmpool_pinned_stats before = pinned_figures(pool);
        for (int i = 0; i < 50; i++)
            unpin(pool, pin(pool, bytes, stream), stream);
        assert_true(pinned_figures(pool).extents_made <= before.extents_made + 1);
        assert_int_equal(pinned_figures(pool).host_waits, 0);
    }
    pinned_must_end(pool);
    device_end();
}

/* Streams that were only named by record_use, or for the allocation, are waited for too; also where their handles are dead by then. */
static void every_stream_that_was_named_counts(void **state)
{
    (void)state;
    EACH_ORDER_OF(words, "")
    for (int told = 0; told < 3; told++) {
        device_start(words);
        cmpool_t pool = pool_with("pinned_limit:4MiB");
        CUstream first = sim_test_stream(), second = sim_test_stream(), third = sim_test_stream();
        void *on_device = take(pool, 3 * MIB, first);
        OK(cuStreamSynchronize(first));
        void *block = pin(pool, 3 * MIB, told == 1 ? second : first);
        if (told == 0)
            DONE(cmpool_pinned_record_use(pool, block, second));
        int gate = panel.gate_close(second);
        OK(cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)on_device, block, 3 * MIB, second));
        if (told == 2)
            DONE(cmpool_pinned_free_unordered(pool, block));
        else
            unpin(pool, block, third);
        uint64_t waits = pinned_figures(pool).host_waits;
        void *next = pin(pool, 3 * MIB, third); /* the limit leaves no other memory: the host waits */
        assert_int_equal(pinned_figures(pool).host_waits, waits + 1);
        OK(cuMemcpyDtoHAsync_v2(next, (uint64_t)(uintptr_t)on_device, 3 * MIB, second));
        unpin(pool, next, second);
        panel.gate_open(gate);
        give(pool, on_device, second);
        pinned_must_end(pool);
        assert_int_equal(panel.races(), 0);
        device_end();
    }
}

/* Without context events there is the stream's own event, and else the wait. */
static void an_older_driver(void **state)
{
    (void)state;
    EACH_ORDER_OF(words, "")
    {
        device_start(words);
        panel.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, 0);
        cmi_driver_forget();
        cmpool_t pool = pool_with("pinned_limit:8MiB");
        CUstream first = sim_test_stream(), second = sim_test_stream();
        for (int i = 0; i < 20; i++) {
            void *block = pin(pool, 3 * MIB, first);
            void *target = take(pool, 3 * MIB, i % 2 ? second : first);
            OK(cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)target, block, 3 * MIB, i % 2 ? second : first));
            give(pool, target, i % 2 ? second : first);
            unpin(pool, block, i % 2 ? second : first);
        }
        pinned_must_end(pool);
        assert_int_equal(panel.races(), 0);
    }
}

/* ---- how much is held ------------------------------------------------------------------------------------------------------------- */

static void limits_hold_and_leave_nothing_unused(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("pinned_limit:16MiB");
    CUstream stream = sim_test_stream();
    void *block, *small[40];
    GIVES(CMPOOL_ERR_LIMIT, cmpool_pinned_malloc(pool, &block, 16 * MIB + 1, stream));
    assert_null(block);
    assert_int_equal(cmpool_last_error()->limit_bytes, 16 * MIB);
    block = pin(pool, 16 * MIB, stream);
    GIVES(CMPOOL_ERR_LIMIT, cmpool_pinned_malloc(pool, &small[0], 1, stream));
    unpin(pool, block, stream);
    for (int i = 0; i < 40; i++) /* what is held for large ones makes room for small ones, of another kind of memory too */
        small[i] = pin(pool, 300000, stream);
    cmpool_pinned_request other = {.struct_size = sizeof other, .bytes = MIB, .flags = CMPOOL_PINNED_WRITE_COMBINED, .stream = stream};
    for (int i = 0; i < 40; i++)
        unpin(pool, small[i], stream);
    DONE(cmpool_pinned_malloc_ex(pool, &block, &other));
    unpin(pool, block, stream);
    block = pin(pool, 16 * MIB, stream);
    assert_true(pinned_figures(pool).peak_held_bytes <= 16 * MIB);

    DONE(cmpool_pinned_set_limit(pool, 4 * MIB)); /* below what lives: nothing new */
    GIVES(CMPOOL_ERR_LIMIT, cmpool_pinned_malloc(pool, &small[0], 1, stream));
    unpin(pool, block, stream);
    DONE(cmpool_pinned_trim(pool, 4 * MIB, NULL));
    small[0] = pin(pool, 4 * MIB, stream);
    assert_int_equal(pinned_figures(pool).held_bytes, 4 * MIB);
    DONE(cmpool_pinned_set_limit(pool, 0));
    block = pin(pool, 50 * MIB, stream);
    unpin(pool, block, stream);
    unpin(pool, small[0], stream);
    assert_int_equal(pinned_figures(pool).refusals, 3);
    pinned_must_end(pool);
    device_end();
}

static void a_trim_gives_whole_extents_back(void **state)
{
    (void)state;
    EACH_ORDER_OF(words, "")
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream stream = sim_test_stream();
        void *blocks[4];
        size_t released = 0;
        for (int i = 0; i < 4; i++)
            blocks[i] = pin(pool, 10 * MIB, stream);
        unpin(pool, blocks[0], stream);
        unpin(pool, blocks[2], stream);
        DONE(cmpool_pinned_trim(pool, 35 * MIB, &released)); /* one extent is enough */
        assert_int_equal(released, 10 * MIB);
        DONE(cmpool_pinned_trim(pool, 0, &released));
        assert_int_equal(released, 10 * MIB);
        assert_int_equal(census_of(0).pinned_bytes, 20 * MIB);
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
        unpin(pool, blocks[1], stream);
        unpin(pool, blocks[3], stream);
        pinned_must_end(pool);
        device_end();
    }
}

/* Without a trim, a pool's end does it. */
static void destroy_gives_everything_back(void **state)
{
    (void)state;
    EACH_ORDER_OF(words, "")
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream stream = sim_test_stream();
        void *on_device = take(pool, MIB, stream);
        for (int i = 0; i < 30; i++) {
            void *block = pin(pool, 1 + (size_t)i * 50000, stream);
            OK(cuMemcpyDtoHAsync_v2(block, (uint64_t)(uintptr_t)on_device, i ? (size_t)i * 30000 : 1, stream));
            unpin(pool, block, stream);
        }
        give(pool, on_device, stream);
        DONE(cmpool_destroy(pool));
        assert_int_equal(census_of(0).pinned, 0);
        device_end();
    }
}

/* What is free lies together again, small blocks among large ones too. */
static void free_memory_joins(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("pinned_limit:32MiB");
    CUstream stream = sim_test_stream();
    enum { COUNT = 200 };
    void *blocks[COUNT];
    uint64_t seed = 17;
    unpin(pool, pin(pool, 32 * MIB, stream), stream);
    for (int round = 0; round < 10; round++) {
        int count = 0;
        while (count < COUNT &&
               cmpool_pinned_malloc(pool, &blocks[count], 1 + (seed >> 33) % (count % 5 ? 60000 : 3 * MIB), stream) == CMPOOL_OK) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            count++;
        }
        for (int i = 0; i < count; i++)
            unpin(pool, blocks[round % 2 ? i : count - 1 - i], stream);
        void *all = pin(pool, 32 * MIB, stream);
        unpin(pool, all, stream);
    }
    pinned_must_end(pool);
    device_end();
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------------------ */

static void each_node_has_its_own_memory(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("pinned_limit:8MiB");
    CUstream stream = sim_test_stream();
    cmi_pinned_pretend_node(0);
    void *here = pin(pool, 1000, stream);
    cmi_pinned_pretend_node(1);
    void *there = pin(pool, 1000, stream);
    assert_int_equal(pinned_figures(pool).extents, 2);
    void *large = pin(pool, 2 * MIB, stream);
    assert_int_equal(pinned_figures(pool).extents, 3);
    cmi_pinned_pretend_node(2); /* nothing may be added: a neighbour's memory does */
    void *two = pin(pool, 2 * MIB, stream), *far = pin(pool, 1000, stream);
    cmi_pinned_pretend_node(CMI_PINNED_NODES + 1);
    assert_int_equal(cmi_pinned_node(), 1);
    unpin(pool, two, stream);
    unpin(pool, far, stream);
    unpin(pool, here, stream);
    unpin(pool, there, stream);
    unpin(pool, large, stream);
    cmi_pinned_pretend_node(-1);
    assert_true(cmi_pinned_node() < CMI_PINNED_NODES);
    pinned_must_end(pool);
    device_end();
}

/* ---- bad pointers, captures ------------------------------------------------------------------------------------------------------- */

static void bad_pointers_are_told_apart(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), private_pool;
    DONE(cmpool_private_create(&private_pool, pool));
    CUstream stream = sim_test_stream();
    int on_stack;
    cmpool_block_info info = {.struct_size = sizeof info};
    for (size_t bytes = 5000; bytes < 10 * MIB; bytes *= 1000) {
        char *block = pin(private_pool, bytes, stream); /* the parent's, as all are */
        char *on_device = take(pool, MIB, stream);
        for (int i = 0; i < 2; i++) {
            void *bad = i ? (void *)on_device : (void *)&on_stack;
            GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_free(pool, bad, stream));
            GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_free_unordered(pool, bad));
            GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_record_use(pool, bad, stream));
            GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_lookup(bad, &info));
        }
        GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, block, stream));
        GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_pinned_free(pool, block + 1, stream));
        GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_pinned_record_use(pool, block + bytes - 1, stream));
        DONE(cmpool_pinned_lookup(block + bytes - 1, &info));
        unpin(pool, block, stream);
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_pinned_free(pool, block, stream));
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_pinned_lookup(block, &info));
        give(pool, on_device, stream);
    }
    DONE(cmpool_destroy(private_pool));
    pinned_must_end(pool);
    device_end();
}

static void bad_arguments_change_nothing(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    void *kept = pin(pool, 5000, NULL), *block = kept;
    cmpool_pinned_stats before = pinned_figures(pool), after;
    const cmpool_pinned_request fine = {.struct_size = sizeof fine, .bytes = 4096};
    cmpool_pinned_request request;
#define REFUSED_WITH(...)                                                                    \
    do {                                                                                     \
        request = fine;                                                                      \
        __VA_ARGS__;                                                                         \
        block = kept;                                                                        \
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_malloc_ex(pool, &block, &request)); \
        assert_null(block);                                                                  \
        assert_string_equal(cmpool_last_error()->call, "cmpool_pinned_malloc_ex");           \
    } while (0)
    REFUSED_WITH(request.struct_size = 0);
    REFUSED_WITH(request.struct_size++);
    REFUSED_WITH(request.bytes = SIZE_MAX);
    REFUSED_WITH(request.bytes = CMI_MAX_BYTES + 1);
    REFUSED_WITH(request.alignment = 3);
    REFUSED_WITH(request.alignment = 8192);
    REFUSED_WITH(request.alignment = SIZE_MAX);
    for (unsigned bit = 3; bit < 32; bit++)
        if (bit != 8)
            REFUSED_WITH(request.flags = 1u << bit);
#undef REFUSED_WITH
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_malloc_ex(pool, NULL, &fine));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_malloc_ex(pool, &block, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_malloc(pool, NULL, 1, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_malloc(pool, &block, SIZE_MAX, NULL));
    GIVES(CMPOOL_ERR_OUT_OF_HOST_MEMORY, cmpool_pinned_malloc(pool, &block, CMI_MAX_BYTES, NULL));
    assert_null(block);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_lookup(kept, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_lookup(kept, &(cmpool_block_info){.struct_size = 1}));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_stats_get(pool, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_stats_get(pool, &(cmpool_pinned_stats){.struct_size = 8}));
    cmpool_pinned_stats shorter = {.struct_size = 2 * sizeof(uint64_t) + sizeof(size_t), .requested_bytes = 77};
    DONE(cmpool_pinned_stats_get(pool, &shorter));
    assert_int_equal(shorter.live_blocks, 1);
    assert_int_equal(shorter.requested_bytes, 77);
    DONE(cmpool_pinned_malloc(pool, &block, 0, NULL));
    assert_null(block);
    DONE(cmpool_pinned_free(pool, NULL, NULL));
    DONE(cmpool_pinned_free_unordered(pool, NULL));
    after = pinned_figures(pool);
    before.refusals++; /* the largest one */
    assert_memory_equal(&before, &after, sizeof before);
    unpin(pool, kept, NULL);
    pinned_must_end(pool);
    device_end();
}

/* While a capture is live nothing is asked of the driver that would end it, and requests are served from new memory. */
static void captures_are_left_alone(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream(), captured = sim_test_stream();
    void *before = pin(pool, 3 * MIB, stream), *small = pin(pool, 100, stream);
    DONE(cmpool_capture_begin(0));
    CUresult(CUDAAPI * begin)(CUstream, CUstreamCaptureMode), (CUDAAPI * end)(CUstream, CUgraph *);
    void *library = dlopen(SIMCUDA_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    sim_test_find(library, "cuStreamBeginCapture_v2", &begin);
    sim_test_find(library, "cuStreamEndCapture", &end);
    OK(begin(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    unpin(pool, before, stream);
    unpin(pool, small, stream);
    void *during = pin(pool, 3 * MIB, stream);
    assert_ptr_not_equal(during, before);
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_pinned_trim(pool, 0, NULL));
    unpin(pool, during, stream);
    CUgraph graph;
    OK(end(captured, &graph));
    DONE(cmpool_capture_end(0));
    dlclose(library);
    pinned_must_end(pool);
    device_must_be_as_at_start(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_aligned_and_apart),
        cmocka_unit_test(flags_and_alignments),
        cmocka_unit_test(an_offload_run_holds_little_more_than_it_asks_for),
        cmocka_unit_test(reuse_comes_behind_the_copy),
        cmocka_unit_test(finished_memory_serves_again_without_a_wait),
        cmocka_unit_test(every_stream_that_was_named_counts),
        cmocka_unit_test(an_older_driver),
        cmocka_unit_test(limits_hold_and_leave_nothing_unused),
        cmocka_unit_test(a_trim_gives_whole_extents_back),
        cmocka_unit_test(destroy_gives_everything_back),
        cmocka_unit_test(free_memory_joins),
        cmocka_unit_test(each_node_has_its_own_memory),
        cmocka_unit_test(bad_pointers_are_told_apart),
        cmocka_unit_test(bad_arguments_change_nothing),
        cmocka_unit_test(captures_are_left_alone),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
