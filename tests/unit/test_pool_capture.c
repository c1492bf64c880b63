/*
 * Memory of graphs: real captures on the simulated device, in each mode and each order of the device. A capture stays valid whatever the
 * pools are asked meanwhile; what a graph was captured with is its set's alone, at its place, until the set is released, and comes back
 * then. Simulated kernels touch every block, and the simulated device reports each touch that no order covers. Needs it beside it.
 */
#include "capture_fixture.h"

#include <pthread.h>

/* ---- one capture -------------------------------------------------------------------------------------------------- */

/* Small, large and very large blocks, freed and taken again, more pages than there were before. */
static void allocate_like_a_model(cmpool_t set, CUstream stream)
{
    static const size_t sizes[] = {100, 4096, 100000, 300000, 3 * MIB, 10 * MIB};
    enum { SIZES = CMI_ARRAY_LENGTH(sizes) };
    void *blocks[SIZES];
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < SIZES; i++)
            blocks[i] = take_and_use(set, sizes[i], stream);
        for (int i = turn % 2; i < SIZES; i += 2)
            give(set, blocks[i], stream);
        for (int i = turn % 2; i < SIZES; i += 2)
            blocks[i] = take_and_use(set, sizes[i], stream);
        for (int i = 0; i < SIZES; i++)
            give(set, blocks[i], stream);
    }
}

static void a_capture_in_each_mode(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            device_start(words);
            cmpool_t pool = pool_with(NULL), set = set_in(pool);
            CUstream stream = sim_test_stream(), other = sim_test_stream();
            give(pool, take_and_use(pool, 1 * MIB, other), other); /* so that two streams are in play */
            begin(set, stream, capture_modes[mode]);
            allocate_like_a_model(set, stream);
            assert_true(panel.calls_of("cuMemCreate") > 5);
            CUgraphExec exec = end_capture(set, stream);
            for (int i = 0; i < 5; i++)
                launch(exec, i % 2 ? stream : other);
            end_set(set, exec);
            end_pool(pool);
        }
    }
}

/* Within a capture a stream may have again at once what it has freed, on a fork of it only what it has not. */
static void reuse_within_a_capture(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream stream = sim_test_stream(), fork = sim_test_stream();
        DONE(cmpool_capture_begin(set));
        OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        order(stream, fork); /* from here on both are captured */
        panel.counts_reset();
        char *first = take_and_use(set, 4 * MIB, stream);
        give(set, first, stream);
        char *there = take_and_use(set, 4 * MIB, fork);
        assert_true(there >= first + 4 * MIB || there + 4 * MIB <= first);
        assert_ptr_equal(take_and_use(set, 4 * MIB, stream), first);
        give(set, there, fork);
        give(set, first, stream);
        nothing_barred_was_called();
        order(fork, stream);
        panel.counts_reset();
        CUgraphExec exec = end_capture(set, stream);
        launch(exec, fork);
        launch(exec, stream);
        end_set(set, exec);
        end_pool(pool);
    }
}

/* ---- everything else goes on meanwhile ------------------------------------------------------------------------------- */

/*
 * A device that is nearly full of the pool's pages, every second one free: large requests want moves, and memory that another stream has
 * freed wants events. Blocks of `stream`; the free ones are half of `stream`'s and half of `other`'s.
 */
typedef struct crowd {
    void *live[15];
    CUstream stream, other;
} crowd;

static void fill_device(cmpool_t pool, crowd *c)
{
    void *blocks[30];
    for (int i = 0; i < 30; i++)
        blocks[i] = take_and_use(pool, 2 * MIB, i % 4 == 3 ? c->other : c->stream);
    for (int i = 0; i < 15; i++) {
        c->live[i] = blocks[2 * i];
        give(pool, blocks[2 * i + 1], i % 2 ? c->other : c->stream);
    }
}

static void empty_device(cmpool_t pool, crowd *c)
{
    for (int i = 0; i < 15; i++)
        give(pool, c->live[i], c->stream);
}

static void eager_requests(cmpool_t pool, crowd *c, cmpool_t set)
{
    void *served[3] = {NULL};
    static const size_t sizes[3] = {12 * MIB, 1000, 10 * MIB};
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < 3; i++) {
            CUstream stream = i % 2 ? c->other : c->stream;
            cmpool_status status = cmpool_malloc(pool, &served[i], sizes[i], stream);
            if (status == CMPOOL_OK) {
                use(stream, served[i], sizes[i]);
                DONE(cmpool_record_use(pool, served[i], c->stream));
            } else {
                GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, status);
            }
        }
        for (int i = 0; i < 3; i++)
            give(pool, served[i], i % 2 ? c->other : c->stream);
        GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(pool, 0, NULL));
        GIVES(CMPOOL_ERR_CAPTURE, cmpool_device_trim(0, MIB, NULL));
    }
    for (int i = 0; i < 200; i++) /* so many frees would have an event behind them */
        give(pool, take_and_use(pool, 600, i % 2 ? c->other : c->stream), i % 2 ? c->other : c->stream);
    DONE(cmpool_stream_retire(0, c->other));
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_capture_release(set));
}

typedef struct neighbour {
    cmpool_t pool, set;
    crowd *crowd;
    CUcontext context;
} neighbour;

static void *requests_of_a_thread(void *argument)
{
    neighbour *n = argument;
    OK(cuCtxSetCurrent(n->context));
    eager_requests(n->pool, n->crowd, n->set);
    return NULL;
}

static void eager_work_goes_on(void **state)
{
    (void)state;
    static const char *const options[] = {NULL, "stale_budget:0", "pending:wait", "cross_stream_wait:off"};
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            for (int variant = 0; variant < 8; variant++) {
                device_start(words);
                cmpool_t pool = pool_with(options[variant / 2]), set = set_in(pool);
                CUcontext context;
                OK(cuCtxGetCurrent(&context));
                crowd c = {.stream = sim_test_stream(), .other = sim_test_stream()};
                CUstream stream = sim_test_stream();
                fill_device(pool, &c);
                begin(set, stream, capture_modes[mode]);
                void *first = take_and_use(set, 1 * MIB, stream);
                neighbour n = {pool, set, &c, context};
                if (variant % 2) {
                    pthread_t thread;
                    assert_int_equal(pthread_create(&thread, NULL, requests_of_a_thread, &n), 0);
                    assert_int_equal(pthread_join(thread, NULL), 0);
                } else {
                    eager_requests(pool, &c, set);
                }
                use(stream, first, 1 * MIB);
                give(set, first, stream);
                CUgraphExec exec = end_capture(set, stream);
                launch(exec, stream);
                empty_device(pool, &c);
                must_be_sound(pool);
                end_set(set, exec);
                /* What was put off is made up for. */
                give(pool, take_and_use(pool, 60 * MIB, stream), stream);
                end_pool(pool);
            }
        }
    }
}

static void a_capture_without_a_set(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        crowd c = {.stream = sim_test_stream(), .other = sim_test_stream()};
        CUstream stream = sim_test_stream();
        CUdeviceptr memory;
        OK(cuMemAlloc_v2(&memory, 512));
        fill_device(pool, &c);
        begin(0, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        assert_int_equal(panel.touch(stream, memory, 512, 1), 0);
        DONE(cmpool_capture_begin(set)); /* so that a release is refused here too */
        eager_requests(pool, &c, set);
        DONE(cmpool_capture_end(set));
        CUgraphExec exec = end_capture(0, stream);
        launch(exec, c.stream);
        empty_device(pool, &c);
        OK(cuCtxSynchronize());
        OK(cuGraphExecDestroy(exec));
        OK(cuMemFree_v2(memory));
        DONE(cmpool_capture_release(set));
        end_pool(pool);
    }
}

/* Nobody has told the library. A request on the very stream leaves the capture as it is, and gets only what needs no wait. */
static void a_capture_that_nobody_announced(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            device_start(words);
            cmpool_t pool = pool_with(NULL), set = set_in(pool);
            CUstream stream = sim_test_stream(), other = sim_test_stream();
            give(pool, take_and_use(pool, 40 * MIB, other), other);
            OK(cuStreamBeginCapture_v2(stream, capture_modes[mode]));
            panel.counts_reset();
            void *none, *small = take(pool, 3 * MIB, stream);
            GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &none, 60 * MIB, stream)); /* 40 MiB are pending */
            void *graphs = take(set, 4 * MIB, stream);
            use(stream, graphs, 4 * MIB);
            give(set, graphs, stream);
            give(pool, small, stream);
            for (int i = 0; i < 200; i++)
                give(pool, take(pool, 600, stream), stream);
            DONE(cmpool_stream_retire(0, stream));
            nothing_barred_was_called();
            assert_int_equal(capture_state(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
            CUgraph graph;
            OK(cuStreamEndCapture(stream, &graph));
            OK(cuGraphDestroy(graph));
            DONE(cmpool_trim(pool, 0, NULL)); /* it counted as live for its own requests only */
            DONE(cmpool_capture_release(set));
            end_pool(pool);
        }
    }
}

/* ---- whose memory it is --------------------------------------------------------------------------------------------- */

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

/* Eager requests of all lengths until the pool refuses even the smallest; then all is freed. */
static void exhaust(cmpool_t pool, CUstream stream, const char *kept, size_t kept_bytes)
{
    enum { MOST = 4096 };
    static void *blocks[MOST];
    int count = 0;
    for (size_t bytes = 32 * MIB; bytes >= 512; bytes /= 2) {
        void *block;
        while (count < MOST && cmpool_malloc(pool, &block, bytes, stream) == CMPOOL_OK) {
            assert_false(overlap(block, bytes, kept, kept_bytes));
            use(stream, block, bytes);
            blocks[count++] = block;
        }
    }
    void *none;
    assert_int_equal(cmpool_malloc(pool, &none, 512, stream), CMPOOL_ERR_OUT_OF_DEVICE_MEMORY);
    while (count > 0)
        give(pool, blocks[--count], stream);
}

static void memory_of_graphs_serves_nobody_else(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL), set = set_in(pool), private_pool;
        DONE(cmpool_private_create(&private_pool, pool));
        CUstream stream = sim_test_stream(), other = sim_test_stream();
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        char *large = take_and_use(set, 8 * MIB, stream), *small = take_and_use(set, 1000, stream);
        give(set, large, stream);
        give(set, small, stream);
        CUgraphExec exec = end_capture(set, stream);
        uint64_t pages[5];
        for (int i = 0; i < 4; i++)
            pages[i] = page_behind(large + i * 2 * MIB);
        pages[4] = page_behind(small);
        for (int turn = 0; turn < 3; turn++) {
            launch(exec, stream);
            exhaust(turn == 0 ? pool : turn == 1 ? private_pool : sibling, turn % 2 ? stream : other, large, 8 * MIB);
            launch(exec, other);
            DONE(cmpool_trim(pool, 0, NULL));
            DONE(cmpool_device_trim(0, 64 * MIB, NULL));
            DONE(cmpool_trim(set, 0, NULL));
            must_be_sound(pool);
            for (int i = 0; i < 4; i++)
                assert_int_equal(page_behind(large + i * 2 * MIB), pages[i]);
            assert_int_equal(page_behind(small), pages[4]);
            assert_int_equal(figures(pool).reserved_bytes, 10 * MIB);
        }
        end_set(set, exec);
        DONE(cmpool_destroy(private_pool));
        DONE(cmpool_destroy(sibling));
        end_pool(pool);
    }
}

/* The set's own later requests leave what an earlier graph uses where it is. */
static void memory_of_graphs_stays_at_its_place(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("limit:32MiB"), set = set_in(pool);
        CUstream stream = sim_test_stream();
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        char *blocks[16];
        uint64_t pages[16];
        for (int i = 0; i < 16; i++)
            blocks[i] = take_and_use(set, 2 * MIB, stream);
        for (int i = 0; i < 16; i += 2)
            give(set, blocks[i], stream);
        CUgraphExec first = end_capture(set, stream);
        for (int i = 0; i < 16; i++)
            pages[i] = page_behind(blocks[i]);

        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        void *none;
        GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(set, &none, 4 * MIB, stream)); /* 16 MiB are free, but they are places too */
        void *again = take_and_use(set, 2 * MIB, stream);
        give(set, again, stream);
        CUgraphExec second = end_capture(set, stream);
        assert_int_equal(figures(pool).page_moves, 0);
        for (int i = 0; i < 16; i++)
            assert_int_equal(page_behind(blocks[i]), pages[i]);
        launch(first, stream);
        launch(second, stream);
        for (int i = 1; i < 16; i += 2)
            give(set, blocks[i], stream);
        OK(cuGraphExecDestroy(first));
        end_set(set, second);
        end_pool(pool);
    }
}

/* Pages that the host saw idle before the capture began serve it; a page that is pending does not, and nobody waits. */
static void only_idle_pages_go_into_a_set(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream stream = sim_test_stream(), eager = sim_test_stream(), third = sim_test_stream();
        give(pool, take_and_use(pool, 20 * MIB, third), third);
        give(pool, take_and_use(pool, 40 * MIB, eager), eager);
        give(pool, take_and_use(pool, 20 * MIB, third), third);
        OK(cuStreamSynchronize(eager)); /* of `third` nothing is known */
        int gate = panel.gate_close(third);
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        void *block = NULL;
        size_t got = 0;
        for (size_t bytes = 62 * MIB; bytes && !block; bytes -= 2 * MIB)
            if (cmpool_malloc(set, &block, bytes, stream) == CMPOOL_OK)
                got = bytes;
        if (block)
            use(stream, block, got);
        CUgraphExec exec = end_capture(set, stream);
        launch(exec, stream); /* not ordered behind `third` */
        launch(exec, eager);
        panel.gate_open(gate);
        if (block)
            give(set, block, stream);
        end_set(set, exec);
        end_pool(pool);
    }
}

/* The output of a graph: used by the program after a launch, freed while it is in use, and wanted by the next capture on the same stream,
 * whose graph runs on another one. */
static void what_the_program_freed_is_not_the_next_captures(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t bytes = 1000; bytes < 8 * MIB; bytes *= 4000) {
            device_start(words);
            cmpool_t pool = pool_with(NULL), set = set_in(pool);
            CUstream stream = sim_test_stream(), other = sim_test_stream();
            begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
            void *output = take_and_use(set, bytes, stream);
            CUgraphExec first = end_capture(set, stream);
            launch(first, stream);
            int gate = panel.gate_close(stream);
            use(stream, output, bytes);
            give(set, output, stream);
            begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
            void *next = take_and_use(set, bytes, stream);
            assert_ptr_not_equal(next, output);
            give(set, next, stream);
            assert_ptr_equal(take_and_use(set, bytes, stream), next); /* while captured frees are had at once */
            give(set, next, stream);
            CUgraphExec second = end_capture(set, stream);
            launch(second, other);
            panel.gate_open(gate);
            OK(cuCtxSynchronize());
            DONE(cmpool_trim(pool, 0, NULL)); /* now the pool knows too */
            begin(set, other, CU_STREAM_CAPTURE_MODE_GLOBAL);
            void *a = take(set, bytes, other), *b = take(set, bytes, other);
            if (bytes > MIB) { /* small ones are slots of a slab of the stream */
                assert_true(a == output || b == output);
                assert_true(a == next || b == next);
            }
            give(set, a, other);
            give(set, b, other);
            OK(cuGraphExecDestroy(end_capture(set, other)));
            OK(cuGraphExecDestroy(first));
            end_set(set, second);
            end_pool(pool);
        }
    }
}

static void captures_share_a_set(void **state)
{
    (void)state;
    enum { CAPTURES = 4 };
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream streams[CAPTURES], runner = sim_test_stream();
        CUgraphExec execs[CAPTURES];
        uint64_t held = 0;
        for (int i = 0; i < CAPTURES; i++) {
            streams[i] = i == 1 ? streams[0] : sim_test_stream();
            begin(set, streams[i], capture_modes[i % 3]);
            allocate_like_a_model(set, streams[i]);
            execs[i] = end_capture(set, streams[i]);
            held = held ? held : figures(pool).reserved_bytes;
            assert_int_equal(figures(pool).reserved_bytes, held); /* each has what the one before has freed */
            launch(execs[i], runner);                             /* while nothing is finished */
        }
        for (int turn = 0; turn < 3; turn++)
            for (int i = 0; i < CAPTURES; i++)
                launch(execs[i], runner);
        for (int i = 1; i < CAPTURES; i++)
            OK(cuGraphExecDestroy(execs[i]));
        end_set(set, execs[0]);
        end_pool(pool);
    }
}

/* ---- release ---------------------------------------------------------------------------------------------------------- */

static void release_gives_all_back(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("limit:62MiB"), set = set_in(pool);
        CUstream stream = sim_test_stream(), other = sim_test_stream(), third = sim_test_stream();
        give(pool, take_and_use(pool, 1 * MIB, third), third);
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        void *freed = take_and_use(set, 30 * MIB, stream), *small = take_and_use(set, 700, stream),
             *large = take_and_use(set, 5 * MIB, stream);
        give(set, freed, stream);
        void *slot = take_and_use(set, 700, stream);
        give(set, slot, stream);
        CUgraphExec exec = end_capture(set, stream);
        launch(exec, other); /* on a stream that the pool has not met */
        panel.counts_reset();
        end_set(set, exec);
        assert_int_equal(panel.calls(SIMCUDA_HOST_SYNC), 0);
        must_be_sound(pool);
        assert_int_equal(figures(pool).live_blocks, 2);

        /* Behind the launch the rest of the memory serves anybody, then what the live blocks had too. */
        void *rest = take_and_use(pool, 54 * MIB, third);
        assert_int_equal(figures(pool).host_waits, 0);
        if (strstr(words, "lazy"))
            assert_true(figures(pool).device_waits > 0);
        give(pool, small, stream);
        give(pool, large, stream);
        give(pool, rest, third);
        give(pool, take_and_use(pool, 62 * MIB, stream), stream);
        must_be_sound(pool);
        end_pool(pool);
    }
}

/* A program that launches a graph after it has released the set is wrong, and is told so in every order: the checker sees such things. */
static void a_launch_after_release_is_told(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("limit:8MiB"), set = set_in(pool);
        CUstream stream = sim_test_stream(), other = sim_test_stream();
        begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        give(set, take_and_use(set, 8 * MIB, stream), stream);
        CUgraphExec exec = end_capture(set, stream);
        DONE(cmpool_capture_release(set));
        void *block = take_and_use(pool, 8 * MIB, other);
        launch(exec, stream);
        assert_true(panel.races() > 0);
        panel.findings_reset();
        OK(cuCtxSynchronize());
        OK(cuGraphExecDestroy(exec));
        give(pool, block, other);
        end_pool(pool);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static void a_refusal_leaves_the_capture_valid(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            for (int limited = 0; limited < 2; limited++) {
                device_start(words);
                cmpool_t pool = pool_with(limited ? "limit:32MiB" : NULL), set = set_in(pool);
                CUstream stream = sim_test_stream(), other = sim_test_stream();
                give(pool, take_and_use(pool, 10 * MIB, other), other);
                begin(set, stream, capture_modes[mode]);
                void *blocks[64], *block;
                int count = 0;
                cmpool_status status;
                while ((status = cmpool_malloc(set, &block, 3 * MIB, stream)) == CMPOOL_OK) {
                    use(stream, block, 3 * MIB);
                    blocks[count++] = block;
                }
                GIVES(limited ? CMPOOL_ERR_LIMIT : CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, status);
                assert_null(block);
                assert_true(count >= (limited ? 7 : 17));
                GIVES(status, cmpool_malloc(set, &block, 40 * MIB, stream));
                give(set, blocks[--count], stream);
                blocks[count] = take_and_use(set, 3 * MIB, stream);
                count++;
                must_be_sound(pool);
                CUgraphExec exec = end_capture(set, stream);
                launch(exec, stream);
                launch(exec, other);
                while (count > 0)
                    give(set, blocks[--count], stream);
                end_set(set, exec);
                end_pool(pool);
            }
        }
    }
}

/* ---- the whole of it ------------------------------------------------------------------------------------------------------ */

static void a_hundred_launches_on_a_full_device(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream streams[3] = {sim_test_stream(), sim_test_stream(), sim_test_stream()};
        begin(set, streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
        allocate_like_a_model(set, streams[0]);
        void *output = take_and_use(set, 2 * MIB, streams[0]);
        CUgraphExec exec = end_capture(set, streams[0]);
        size_t room = 62 * MIB - figures(pool).reserved_bytes; /* a page is for small blocks */
        void *odd[3] = {NULL};
        for (int i = 0; i < 100; i++) {
            CUstream stream = streams[i % 3];
            launch(exec, stream);
            use(stream, output, 2 * MIB);
            order(stream, streams[(i + 1) % 3]); /* where the next launch writes the output again */
            size_t bytes = room - (size_t)(i % 7) * 3 * MIB;
            give(pool, odd[0], stream);
            give(pool, take_and_use(pool, bytes, stream), stream); /* all there is, in one piece or in several */
            void *pieces[4];
            for (int k = 0; k < 4; k++)
                pieces[k] = take_and_use(pool, room / 4 - MIB, streams[(i + k) % 3]);
            for (int k = 0; k < 4; k++)
                give(pool, pieces[k], streams[(i + k) % 3]);
            odd[0] = take_and_use(pool, 700, stream);
            if (i % 10 == 0)
                must_be_sound(pool);
        }
        give(pool, odd[0], streams[0]);
        assert_int_equal(figures(pool).refusals, 0);
        assert_int_equal(figures(pool).host_waits, 0);
        assert_int_equal(panel.races(), 0);
        give(set, output, streams[0]);
        end_set(set, exec);
        give(pool, take_and_use(pool, 62 * MIB, streams[1]), streams[1]);
        end_pool(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_capture_in_each_mode),
        cmocka_unit_test(reuse_within_a_capture),
        cmocka_unit_test(eager_work_goes_on),
        cmocka_unit_test(a_capture_without_a_set),
        cmocka_unit_test(a_capture_that_nobody_announced),
        cmocka_unit_test(memory_of_graphs_serves_nobody_else),
        cmocka_unit_test(memory_of_graphs_stays_at_its_place),
        cmocka_unit_test(only_idle_pages_go_into_a_set),
        cmocka_unit_test(what_the_program_freed_is_not_the_next_captures),
        cmocka_unit_test(captures_share_a_set),
        cmocka_unit_test(release_gives_all_back),
        cmocka_unit_test(a_launch_after_release_is_told),
        cmocka_unit_test(a_refusal_leaves_the_capture_valid),
        cmocka_unit_test(a_hundred_launches_on_a_full_device),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
