/*
 * A program that knows nothing of the library: cuMemAlloc and cuMemFree with contents that kernels write and look at, on streams that the
 * free does not know, in threads, beside a capture. The same must come of it with the preload library in front of the driver. Part
 * "preload" of tools/gpu-check.sh runs it both ways.
 */
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>

#define BLOCK (gpu_simulated ? 6 * MIB : 24 * MIB)

static const void *at(CUdeviceptr address) { return (const void *)(uintptr_t)address; }

static void must_be_right(void)
{
    uint64_t wrong = gpu_wrong_words();
    EXPECT(wrong == 0, "%llu words are not what was written", (unsigned long long)wrong);
}

/*
 * What was freed while a kernel of another stream still had work on it before, is written by a third. Without the library the free waits,
 * with it the third does. The plain driver may wait until the gate gives up.
 */
static void freed_while_in_use(void)
{
    CUstream one = gpu_stream(), other = gpu_stream();
    CUdeviceptr block, next;
    bool plain = getenv("CUDAMEMPOOL_REPORT") == NULL; /* which the script sets for the run behind the library */
    for (uint32_t round = 0; round < (gpu_simulated ? 2 : 20); round++) {
        MUST(cu.MemAlloc(&block, BLOCK));
        gpu_fill(one, at(block), BLOCK, round);
        int gate = gpu_gate_close(one, UINT64_C(30000000));
        gpu_check(one, at(block), BLOCK, round);
        if (plain)
            MUST(cu.StreamSynchronize(one));
        MUST(cu.MemFree(block));
        MUST(cu.MemAlloc(&next, BLOCK));
        gpu_fill(other, at(next), BLOCK, ~round);
        gpu_check(other, at(next), BLOCK, ~round);
        gpu_gate_open(gate);
        must_be_right();
        MUST(cu.MemFree(next));
    }
}

typedef struct worker {
    pthread_t thread;
    CUstream stream;
    uint64_t random;
} worker;

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Blocks of many sizes, a few live at a time. */
static void churn(worker *me)
{
    enum { LIVE = 16 };
    CUdeviceptr live[LIVE] = {0};
    size_t bytes[LIVE] = {0};
    for (unsigned step = 0; step < (gpu_simulated ? 100 : 4000) + LIVE; step++) {
        unsigned i = step % LIVE;
        if (live[i]) {
            gpu_check(me->stream, at(live[i]), bytes[i], step - LIVE);
            MUST(cu.StreamSynchronize(me->stream));
            MUST(cu.MemFree(live[i]));
        }
        bytes[i] = (size_t)4 << draw(&me->random) % 19;
        MUST(cu.MemAlloc(&live[i], bytes[i]));
        gpu_fill(me->stream, at(live[i]), bytes[i], step);
    }
    MUST(cu.StreamSynchronize(me->stream));
    for (unsigned i = 0; i < LIVE; i++)
        MUST(cu.MemFree(live[i]));
}

static void *work(void *argument)
{
    CUresult code = cu.CtxSetCurrent(gpu_context);
    if (code != CUDA_SUCCESS)
        gpu_fail("cuCtxSetCurrent gave %s", gpu_code(code));
    else
        churn(argument);
    return NULL;
}

static void threads(void)
{
    enum { COUNT = 8 };
    static worker workers[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        workers[i] = (worker){.stream = gpu_stream(), .random = 1000003 + i};
        EXPECT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < COUNT; i++)
        pthread_join(workers[i].thread, NULL);
    must_be_right();
}

/* A relaxed capture with memory taken in it, launched; what it used lives until it is gone. */
static void captured(void)
{
    CUstream stream = gpu_stream();
    CUdeviceptr before, inside;
    CUgraph graph;
    CUgraphExec exec;
    MUST(cu.MemAlloc(&before, MIB));
    MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cu.MemAlloc(&inside, 3 * MIB));
    gpu_fill(stream, at(inside), MIB, 3);
    MUST(cu.MemcpyDtoDAsync(before, inside, MIB, stream));
    gpu_check(stream, at(before), MIB, 3);
    MUST(cu.StreamEndCapture(stream, &graph));
    MUST(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned i = 0; i < (gpu_simulated ? 3 : 100); i++)
        MUST(cu.GraphLaunch(exec, stream));
    must_be_right();
    MUST(cu.GraphExecDestroy(exec));
    MUST(cu.GraphDestroy(graph));
    MUST(cu.MemFree(before));
    MUST(cu.MemFree(inside));
}

static const gpu_case cases[] = {
    {"freed_while_in_use", freed_while_in_use, false},
    {"threads", threads, false},
    {"captured", captured, false},
};
GPU_MAIN(cases)
