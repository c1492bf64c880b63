/*
 * For tests of captures: the driver's graph functions beside those of pool_fixture.h, a capture begun and ended as a program does it, and
 * the list of calls that no pool may make meanwhile.
 */
#ifndef CAPTURE_FIXTURE_H
#define CAPTURE_FIXTURE_H

#include "pool_fixture.h"

#define GRAPH_CALLS(CALL)                                                                            \
    CALL(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                       \
    CALL(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                     \
    CALL(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
    CALL(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                         \
    CALL(cuGraphExecDestroy, (CUgraphExec exec))                                                     \
    CALL(cuGraphDestroy, (CUgraph graph))

#define GRAPH_DECLARE(name, params) static CUresult(CUDAAPI *name) params;
GRAPH_CALLS(GRAPH_DECLARE)
#undef GRAPH_DECLARE

static int capture_open(void **state)
{
    int failed = sim_test_open(state);
    void *library = failed ? NULL : dlopen(SIMCUDA_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 1;
#define GRAPH_FIND(name, params) sim_test_find(library, #name, &name);
    GRAPH_CALLS(GRAPH_FIND)
#undef GRAPH_FIND
    return 0;
}

static const CUstreamCaptureMode capture_modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                    CU_STREAM_CAPTURE_MODE_RELAXED};

static inline cmpool_t set_in(cmpool_t parent)
{
    cmpool_t set;
    DONE(cmpool_capture_create(&set, parent));
    return set;
}

static inline CUstreamCaptureStatus capture_state(CUstream stream)
{
    CUstreamCaptureStatus state;
    OK(cuStreamIsCapturing(stream, &state));
    return state;
}

/* Nothing of this is called while a capture is live. */
static const char *const barred_calls[] = {"cuEventQuery",     "cuEventSynchronize", "cuEventRecord",       "cuStreamQuery",
                                           "cuCtxRecordEvent", "cuCtxWaitEvent",     "cuCtxSynchronize",    "cuMemUnmap",
                                           "cuMemAddressFree", "cuMemAlloc_v2",      "cuStreamSynchronize", "cuCtxSynchronize_v2",
                                           "cuMemFree_v2"};

static inline uint64_t barred_call_count(void)
{
    uint64_t count = 0;
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(barred_calls); i++)
        count += panel.calls_of(barred_calls[i]);
    return count;
}

static inline void nothing_barred_was_called(void)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(barred_calls); i++)
        if (panel.calls_of(barred_calls[i]) != 0)
            fail_msg("%s was called during a capture", barred_calls[i]);
}

static inline void begin(cmpool_t set, CUstream stream, CUstreamCaptureMode mode)
{
    DONE(cmpool_capture_begin(set));
    OK(cuStreamBeginCapture_v2(stream, mode));
    panel.counts_reset();
}

/* The capture is still valid; what it holds can be launched. */
static inline CUgraphExec end_capture(cmpool_t set, CUstream stream)
{
    nothing_barred_was_called();
    assert_int_equal(capture_state(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamEndCapture(stream, &graph));
    DONE(cmpool_capture_end(set));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static inline void launch(CUgraphExec exec, CUstream stream) { OK(cuGraphLaunch(exec, stream)); }

static inline void end_pool(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

/* The program does not launch the graph again, and says so. */
static inline void end_set(cmpool_t set, CUgraphExec exec)
{
    OK(cuGraphExecDestroy(exec));
    DONE(cmpool_capture_release(set));
}

/* The physical page behind an address. */
static inline uint64_t page_behind(const void *address)
{
    simcuda_mapping mapping;
    uint64_t at = (uint64_t)(uintptr_t)address;
    for (size_t i = 0; panel.mapping_at(i, &mapping); i++)
        if (mapping.address <= at && at < mapping.address + mapping.bytes)
            return mapping.handle;
    fail_msg("nothing is mapped at %p", address);
    return 0;
}

#endif
