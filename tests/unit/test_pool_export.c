/*
 * Exportable blocks on the simulated device, in each order: one driver allocation of their own that another process really opens, never
 * moved while live, given back in stream order, within limit, floor and headroom, refused where it cannot be. Needs the simulated device
 * beside it.
 */
#include "../simcuda/share_fixture.h"
#include "capture_fixture.h"

static cmpool_status ask_for(cmpool_t pool, void **block, size_t bytes, CUstream stream)
{
    const cmpool_request request = {.struct_size = sizeof request, .bytes = bytes, .stream = stream, .flags = CMPOOL_EXPORTABLE, .tag = 9};
    *block = &pool;
    return cmpool_malloc_ex(pool, block, &request);
}

static void *take_exportable(cmpool_t pool, size_t bytes, CUstream stream)
{
    void *block;
    DONE(ask_for(pool, &block, bytes, stream));
    use(stream, block, bytes);
    return block;
}

static void another_process_opens_it(void **state)
{
    (void)state;
    pid_t reader;
    int socket = start_reader("sim:64MiB,content", 6 * MIB, 3, 4, &reader), fd;
    device_start("sim:64MiB,content");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    void *block = take_exportable(pool, 5 * MIB, stream);
    OK(cuStreamSynchronize(stream));
    memset(block, 3, 6 * MIB); /* whole pages, as its usable size says */
    size_t usable;
    DONE(cmpool_usable_size(pool, block, &usable));
    assert_int_equal(usable, 6 * MIB);
    DONE(cmpool_export_fd(pool, block, &fd));
    assert_true(send_descriptor(socket, fd));
    reader_must_have_seen_it(reader);
    assert_int_equal(((unsigned char *)block)[6 * MIB - 1], 4);
    close(fd);
    close(socket);
    give(pool, block, stream);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void one_handle_of_its_own(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), inside;
        DONE(cmpool_private_create(&inside, pool));
        CUstream stream = sim_test_stream();
        void *block = take_exportable(inside, 5 * MIB, stream);
        assert_int_equal(panel.calls_of("cuMemCreate"), 1);
        simcuda_mapping mapping;
        assert_true(panel.mapping_at(0, &mapping));
        assert_int_equal(mapping.address, (uintptr_t)block);
        assert_int_equal(mapping.bytes, 6 * MIB);
        cmpool_stats now = figures(pool);
        assert_int_equal(now.reserved_bytes, 6 * MIB);
        assert_int_equal(now.fixed_bytes, 6 * MIB);
        assert_int_equal(now.segments, 1);
        assert_int_equal(figures(inside).live_bytes, 6 * MIB);
        cmpool_block_info info = {.struct_size = sizeof info};
        DONE(cmpool_lookup((char *)block + 5 * MIB, &info));
        assert_ptr_equal(info.base, block);
        assert_int_equal(info.pool, inside);
        assert_int_equal(info.tag, 9);
        must_be_sound(pool);

        int fd, plain_fd = 5;
        DONE(cmpool_export_fd(inside, block, &fd));
        close(fd);
        void *plain = take(pool, 5 * MIB, stream), *small = take(pool, 100, stream);
        GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_export_fd(pool, plain, &plain_fd));
        assert_int_equal(plain_fd, -1);
        GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_export_fd(pool, small, &plain_fd));
        GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_export_fd(pool, (char *)block + 512, &plain_fd));
        give(pool, plain, stream);
        give(pool, small, stream);
        give(inside, block, stream);
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
        DONE(cmpool_destroy(inside));
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Freed while kernels may still use it, it is neither unmapped nor handed out; once they are seen done it goes back by itself. */
static void it_goes_back_when_its_work_is_done(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *block = take_exportable(pool, 40 * MIB, a);
        int gate = panel.gate_close(b);
        DONE(cmpool_record_use(pool, block, b));
        order(a, b);
        use(b, block, 40 * MIB);
        give(pool, block, a);
        assert_int_equal(census_of(0).handle_bytes, 40 * MIB);
        assert_int_equal(figures(pool).live_bytes, 0);
        GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, a));
        must_be_sound(pool);
        void *other = take_exportable(pool, 20 * MIB, a); /* beside it */
        panel.gate_open(gate);
        void *large = take_exportable(pool, 44 * MIB, b); /* not without its memory */
        assert_int_equal(census_of(0).handle_bytes, 64 * MIB);
        give(pool, large, b);
        give(pool, other, a);
        large = take_and_use(pool, 64 * MIB, b); /* nor is an ordinary request refused for it */
        give(pool, large, b);
        assert_int_equal(figures(pool).segments, 0);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* It stays at its place when pages are scarce, and idle pages make room for it. */
static void beside_pages_that_move(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL);
        CUstream stream = sim_test_stream();
        void *blocks[16];
        for (int i = 0; i < 16; i++)
            blocks[i] = take_and_use(i % 2 ? pool : sibling, 4 * MIB, stream);
        for (int i = 0; i < 14; i++)
            give(i % 2 ? pool : sibling, blocks[i], stream);
        void *kept = take_exportable(pool, 20 * MIB, stream);
        void *large = take_and_use(sibling, 36 * MIB, stream), *none; /* every page but those */
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, ask_for(pool, &none, 2 * MIB, stream));
        assert_null(none);
        assert_int_equal(cmpool_last_error()->fixed_bytes, 20 * MIB);
        assert_int_equal(cmpool_last_error()->short_bytes, 2 * MIB);
        use(stream, kept, 20 * MIB);
        give(sibling, large, stream);
        DONE(cmpool_set_limit(pool, 30 * MIB));
        GIVES(CMPOOL_ERR_LIMIT, ask_for(pool, &none, 10 * MIB, stream));
        DONE(cmpool_set_limit(pool, 0));
        give(pool, kept, stream);
        give(sibling, blocks[14], stream);
        give(pool, blocks[15], stream);
        DONE(cmpool_destroy(sibling));
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

static void where_it_cannot_be(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    CUstream stream = sim_test_stream();
    void *none;
    cmpool_t pool = pool_with("backend:malloc");
    GIVES(CMPOOL_ERR_UNSUPPORTED, ask_for(pool, &none, MIB, stream));
    DONE(cmpool_destroy(pool));
    pool = pool_with(NULL);
    cmpool_t set = set_in(pool);
    GIVES(CMPOOL_ERR_UNSUPPORTED, ask_for(set, &none, MIB, stream));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED)); /* and nobody said so */
    GIVES(CMPOOL_ERR_CAPTURE, ask_for(pool, &none, MIB, stream));
    CUgraph graph;
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    DONE(ask_for(pool, &none, 0, stream));
    assert_null(none);
    DONE(cmpool_capture_release(set));
    DONE(cmpool_destroy(pool));
    device_end();
}

/* While a capture is live one can be had, and one that is freed stays until it has ended. */
static void during_a_capture(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream stream = sim_test_stream(), other = sim_test_stream();
        void *before = take_exportable(pool, 8 * MIB, other);
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        void *block = take_and_use(set, MIB, stream), *during = take_exportable(pool, 4 * MIB, other);
        give(pool, before, other);
        give(pool, during, other);
        assert_int_equal(census_of(0).handle_bytes, 14 * MIB);
        give(set, block, stream);
        CUgraphExec exec = end_capture(set, stream);
        size_t released;
        DONE(cmpool_trim(pool, 0, &released));
        assert_int_equal(released, 12 * MIB);
        end_set(set, exec);
        end_pool(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_process_opens_it), /* first, see start_reader */
        cmocka_unit_test(one_handle_of_its_own),    cmocka_unit_test(it_goes_back_when_its_work_is_done),
        cmocka_unit_test(beside_pages_that_move),   cmocka_unit_test(where_it_cannot_be),
        cmocka_unit_test(during_a_capture),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
