/*
 * Device check: CUDA graphs whose memory comes from a capture set. Captured while the pool goes on elsewhere, launched a hundred times
 * while the pool serves others, with contents looked at inside the graph and behind it. Part "graphs" of tools/gpu-check.sh.
 */
#include "gpu_pool.h"

#include <string.h>

enum { LAUNCHES = 100 };
#define BLOCK (gpu_simulated ? 2 * MIB : 8 * MIB)

typedef struct graph {
    cmpool_t set;
    CUgraphExec exec;
    void *output; /* of the last block of the graph */
} graph;

/*
 * Three blocks, the first of which is freed before the last is taken, so that they may share memory: filled, checked, copied from one to
 * the next. `in_between` happens while the capture is live. Without an exec the case has failed.
 */
static void capture(cmpool_t pool, CUstream stream, uint32_t seed, void (*in_between)(cmpool_t), graph *made)
{
    void *first, *second;
    CUgraph captured;
    *made = (graph){0};
    DONE(cmpool_capture_create(&made->set, pool));
    DONE(cmpool_capture_begin(made->set));
    MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cmpool_malloc(made->set, &first, BLOCK, stream));
    gpu_fill(stream, first, BLOCK, seed);
    DONE(cmpool_malloc(made->set, &second, BLOCK, stream));
    MUST(cu.MemcpyDtoDAsync((CUdeviceptr)(uintptr_t)second, (CUdeviceptr)(uintptr_t)first, BLOCK, stream));
    gpu_check(stream, first, BLOCK, seed);
    DONE(cmpool_free(made->set, first, stream));
    if (in_between)
        in_between(pool);
    DONE(cmpool_malloc(made->set, &made->output, BLOCK, stream));
    gpu_fill(stream, made->output, BLOCK, seed + 1);
    gpu_check(stream, second, BLOCK, seed);
    gpu_check(stream, made->output, BLOCK, seed + 1);
    DONE(cmpool_free(made->set, second, stream));
    MUST(cu.StreamEndCapture(stream, &captured));
    DONE(cmpool_capture_end(made->set));
    MUST(cu.GraphInstantiateWithFlags(&made->exec, captured, 0));
    MUST(cu.GraphDestroy(captured));
}

static void give_up(graph *gone, CUstream stream)
{
    MUST(cu.CtxSynchronize());
    MUST(cu.GraphExecDestroy(gone->exec));
    DONE(cmpool_free(gone->set, gone->output, stream));
    DONE(cmpool_capture_release(gone->set));
}

static void launched_often(void)
{
    cmpool_t pool;
    graph made;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, ""));
    capture(pool, stream, 11, NULL, &made);
    if (!made.exec)
        return;
    for (int i = 0; i < LAUNCHES; i++)
        MUST(cu.GraphLaunch(made.exec, stream));
    gpu_check(stream, made.output, BLOCK, 12);
    contents_must_be_right();
    give_up(&made, stream);
    pool_end(pool);
}

/* The pool works on another stream, with frees, reuse across streams and pages that move, between launches that nobody waits for. */
static void beside_a_busy_pool(void)
{
    enum { COUNT = 10 };
    void *block[COUNT], *large;
    cmpool_t pool;
    graph made;
    CUstream stream = gpu_stream(), other = gpu_stream();
    DONE(pool_make(&pool, "limit:128MiB"));
    capture(pool, stream, 21, NULL, &made);
    if (!made.exec)
        return;
    for (uint32_t round = 0; round < (gpu_simulated ? 2 : LAUNCHES); round++) {
        MUST(cu.GraphLaunch(made.exec, stream));
        for (unsigned i = 0; i < COUNT; i++) {
            DONE(cmpool_malloc(pool, &block[i], 8 * MIB, other));
            gpu_fill(other, block[i], 8 * MIB, round + i);
        }
        for (unsigned i = 0; i < COUNT; i += 2)
            DONE(cmpool_free(pool, block[i], other));
        DONE(cmpool_malloc(pool, &large, 40 * MIB, other));
        gpu_fill(other, large, 40 * MIB, ~round);
        for (unsigned i = 1; i < COUNT; i += 2) {
            gpu_check(other, block[i], 8 * MIB, round + i);
            DONE(cmpool_free(pool, block[i], other));
        }
        gpu_check(other, large, 40 * MIB, ~round);
        DONE(cmpool_free(pool, large, other));
        gpu_check(stream, made.output, BLOCK, 22);
    }
    contents_must_be_right();
    EXPECT(pool_figures(pool).page_moves > 0, "no page was moved");
    give_up(&made, stream);
    pool_end(pool);
}

/* What a pool is asked for while a capture is live anywhere: frees on several streams, requests that want memory of other streams. */
static void work_of_others(cmpool_t pool)
{
    static CUstream one, other;
    void *block[6];
    if (!one) { /* the first time no capture is live */
        one = gpu_stream();
        other = gpu_stream();
    }
    for (unsigned i = 0; i < 6; i++)
        DONE(cmpool_malloc(pool, &block[i], 4 * MIB, i % 2 ? one : other));
    for (unsigned i = 0; i < 6; i++)
        DONE(cmpool_free(pool, block[i], i % 2 ? other : one));
    for (unsigned i = 0; i < 6; i++)
        DONE(cmpool_malloc(pool, &block[i], 4 * MIB, one));
    for (unsigned i = 0; i < 6; i++)
        DONE(cmpool_free(pool, block[i], one));
}

static void captures_survive(void)
{
    cmpool_t pool;
    graph made;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, ""));
    work_of_others(pool);
    capture(pool, stream, 31, work_of_others, &made);
    if (!made.exec)
        return;
    for (int i = 0; i < 3; i++) {
        work_of_others(pool);
        MUST(cu.GraphLaunch(made.exec, stream));
    }
    contents_must_be_right();
    give_up(&made, stream);
    pool_end(pool);
}

/* Two graphs of two sets, launched on two streams at the same time: neither has memory of the other. */
static void two_graphs_at_once(void)
{
    cmpool_t pool;
    graph one, other;
    CUstream first = gpu_stream(), second = gpu_stream();
    DONE(pool_make(&pool, ""));
    capture(pool, first, 41, NULL, &one);
    capture(pool, second, 51, NULL, &other);
    if (!one.exec || !other.exec)
        return;
    for (int i = 0; i < (gpu_simulated ? 3 : LAUNCHES); i++) {
        MUST(cu.GraphLaunch(one.exec, first));
        MUST(cu.GraphLaunch(other.exec, second));
    }
    gpu_check(first, one.output, BLOCK, 42);
    gpu_check(second, other.output, BLOCK, 52);
    contents_must_be_right();
    give_up(&one, first);
    give_up(&other, second);
    pool_end(pool);
}

static const gpu_case cases[] = {
    {"launched_often", launched_often, false},
    {"beside_a_busy_pool", beside_a_busy_pool, false},
    {"captures_survive", captures_survive, false},
    {"two_graphs_at_once", two_graphs_at_once, false},
};
GPU_MAIN(cases)
