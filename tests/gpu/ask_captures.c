/*
 * Questions to the driver about stream captures and events of contexts: what each call gives while a capture is live, and whether the
 * capture survives it; what an event of a context covers, whom its wait holds, and what both cost beside a wait of the host. A case fails
 * where the library could not work. Part "captures" of tools/gpu-check.sh.
 */
#include "pages.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- calls during a capture
 * -------------------------------------------------------------------------------------------------------------- */

static struct {
    CUstream captured, free_stream;
    CUevent event, recorded;
    CUmemGenericAllocationHandle page;
    CUdeviceptr base, block;
    size_t left, total;
} thing;

static CUresult call_alloc(void)
{
    CUdeviceptr address = 0;
    CUresult code = cu.MemAlloc(&address, MIB);
    if (code == CUDA_SUCCESS)
        thing.block = address;
    return code;
}
static CUresult call_free(void) { return cu.MemFree(thing.block); }
static CUresult call_create(void)
{
    CUmemGenericAllocationHandle handle;
    CUresult code = page_create(&handle);
    return code == CUDA_SUCCESS ? cu.MemRelease(handle) : code;
}
static CUresult call_map(void) { return cu.MemMap(thing.base, PAGE, 0, thing.page, 0); }
static CUresult call_allow(void) { return page_allow(thing.base, PAGE); }
static CUresult call_unmap(void) { return cu.MemUnmap(thing.base, PAGE); }
static CUresult call_info(void) { return cu.MemGetInfo(&thing.left, &thing.total); }
static CUresult call_record(void) { return cu.EventRecord(thing.event, thing.free_stream); }
static CUresult call_query(void) { return cu.EventQuery(thing.recorded); }
static CUresult call_wait(void) { return cu.StreamWaitEvent(thing.free_stream, thing.recorded, 0); }
static CUresult call_context_record(void) { return cu.CtxRecordEvent(gpu_context, thing.event); }
static CUresult call_context_wait(void) { return cu.CtxWaitEvent(gpu_context, thing.recorded); }
static CUresult call_synchronize(void) { return cu.CtxSynchronize(); }

/* In an order in which each finds what it needs. The library makes the calls of the first kind while a capture is live, relaxed. */
static const struct {
    const char *name;
    CUresult (*make)(void);
    bool relied_on;
} calls[] = {
    {"cuMemAlloc", call_alloc, true},
    {"cuMemFree", call_free, false},
    {"cuMemCreate and cuMemRelease", call_create, true},
    {"cuMemMap", call_map, true},
    {"cuMemSetAccess", call_allow, true},
    {"cuMemUnmap", call_unmap, false},
    {"cuMemGetInfo", call_info, true},
    {"cuEventRecord on another stream", call_record, false},
    {"cuEventQuery", call_query, false},
    {"cuStreamWaitEvent on another stream", call_wait, true},
    {"cuCtxRecordEvent", call_context_record, false},
    {"cuCtxWaitEvent", call_context_wait, false},
    {"cuCtxSynchronize", call_synchronize, false},
};

typedef struct attempt {
    CUresult (*make)(void);
    bool relaxed;
    CUresult code;
} attempt;

static void *try_call(void *argument)
{
    attempt *a = argument;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu.CtxSetCurrent(gpu_context);
    if (a->relaxed)
        cu.ThreadExchangeStreamCaptureMode(&mode);
    a->code = a->make();
    if (a->relaxed)
        cu.ThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

/* One call in one capture; whether the capture was there afterwards. */
static bool survives(CUstreamCaptureMode mode, bool elsewhere, attempt *a)
{
    CUgraph graph = NULL;
    pthread_t thread;
    CUresult code = cu.StreamBeginCapture(thing.captured, mode);
    if (code != CUDA_SUCCESS) {
        gpu_fail("cuStreamBeginCapture gave %s", gpu_code(code));
        return false;
    }
    if (!elsewhere || pthread_create(&thread, NULL, try_call, a) != 0)
        try_call(a);
    else
        pthread_join(thread, NULL);
    code = cu.StreamEndCapture(thing.captured, &graph);
    if (graph)
        cu.GraphDestroy(graph);
    return code == CUDA_SUCCESS;
}

/* What the call needs, or has left behind, is put right between captures. */
static CUresult prepare(CUresult (*make)(void), CUresult last)
{
    CUresult code = CUDA_SUCCESS;
    if (make == call_free && last == CUDA_SUCCESS)
        code = cu.MemAlloc(&thing.block, MIB);
    if (make == call_alloc && last == CUDA_SUCCESS)
        code = cu.MemFree(thing.block);
    if (make == call_map && last == CUDA_SUCCESS)
        code = cu.MemUnmap(thing.base, PAGE);
    if (make == call_unmap && last == CUDA_SUCCESS)
        code = cu.MemMap(thing.base, PAGE, 0, thing.page, 0);
    return code;
}

static void ask(unsigned which)
{
    static const char *const mode_names[] = {"global", "thread-local", "relaxed"};
    char text[500] = "";
    CUresult last = CUDA_SUCCESS;
    bool found = false;
    if ((calls[which].make == call_context_record && !cu.CtxRecordEvent) || (calls[which].make == call_context_wait && !cu.CtxWaitEvent)) {
        gpu_no_answer(calls[which].name, "this driver has none");
        return;
    }
    for (unsigned mode = 0; mode < 3; mode++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s:", used ? "; " : "", mode_names[mode]);
        for (unsigned who = 0; who < 4; who++) {
            attempt a = {calls[which].make, who % 2 != 0, CUDA_SUCCESS};
            bool there = survives((CUstreamCaptureMode)mode, who >= 2, &a);
            used = strlen(text);
            snprintf(text + used, sizeof text - used, " %d%s", (int)a.code, there ? "" : "!");
            if (a.relaxed && calls[which].relied_on && (a.code != CUDA_SUCCESS || !there))
                found = true;
            last = a.code;
            MUST(prepare(calls[which].make, last));
        }
    }
    char name[100];
    snprintf(name, sizeof name, "during a capture: %s", calls[which].name);
    gpu_answer(name, "%s", text);
    EXPECT(!found, "%s breaks a capture, or is refused, in a thread that is relaxed: %s", calls[which].name, text);
}

/* Answers are four codes for each mode: in the capturing thread, there relaxed, in another thread, there relaxed; ! is a broken capture. */
static void calls_during_captures(void)
{
    thing.captured = gpu_stream();
    thing.free_stream = gpu_stream();
    thing.event = gpu_event();
    thing.recorded = gpu_event();
    MUST(page_create(&thing.page));
    MUST(cu.MemAddressReserve(&thing.base, PAGE, 0, 0, 0));
    MUST(cu.EventRecord(thing.recorded, thing.free_stream));
    MUST(cu.CtxSynchronize());
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (calls[i].make == call_free)
            MUST(cu.MemAlloc(&thing.block, MIB));
        if (calls[i].make == call_allow || calls[i].make == call_unmap)
            cu.MemMap(thing.base, PAGE, 0, thing.page, 0);
        ask(i);
        MUST(cu.CtxSynchronize());
        if (calls[i].make == call_free)
            MUST(cu.MemFree(thing.block));
    }
    cu.MemUnmap(thing.base, PAGE);
    MUST(cu.MemAddressFree(thing.base, PAGE));
    MUST(cu.MemRelease(thing.page));
}

/* ---- events of contexts
 * -------------------------------------------------------------------------------------------------------------------- */

static bool has_context_events(void)
{
    if (cu.CtxRecordEvent && cu.CtxWaitEvent)
        return true;
    gpu_no_answer("events of contexts", "this driver has none (CUDA 12.5)");
    return false;
}

/* An event of the context is not ready while any stream of it has work from before: non-blocking, per-thread, legacy. */
static void what_context_events_cover(void)
{
    static const char *const names[] = {"a non-blocking stream", "the per-thread default stream", "the legacy default stream"};
    CUstream streams[] = {gpu_stream(), CU_STREAM_PER_THREAD, CU_STREAM_LEGACY};
    CUevent event = gpu_event();
    if (!has_context_events())
        return;
    for (unsigned i = 0; i < 3; i++) {
        int gate = gpu_gate_close(streams[i], GPU_PATIENCE_NS);
        CUresult recorded = cu.CtxRecordEvent(gpu_context, event), before = cu.EventQuery(event);
        gpu_gate_open(gate);
        MUST(cu.StreamSynchronize(streams[i]));
        MUST(cu.EventSynchronize(event));
        EXPECT(recorded == CUDA_SUCCESS && before == CUDA_ERROR_NOT_READY, "%s: record gives %s, query before the kernel's end %s",
               names[i], gpu_code(recorded), gpu_code(before));
        EXPECT(!gpu_gate_gave_up(gate), "%s: the host waited", names[i]);
        MUST(cu.EventQuery(event));
    }
    gpu_answer("cuCtxRecordEvent covers", "a non-blocking, the per-thread and the legacy stream; the host does not wait");
}

/* Work given to any stream after cuCtxWaitEvent comes after the event; the host does not wait. */
static void what_context_waits_hold(void)
{
    CUstream one = gpu_stream(), other = gpu_stream();
    CUevent event = gpu_event();
    CUdeviceptr block;
    if (!has_context_events())
        return;
    MUST(cu.MemAlloc(&block, 16 * MIB));
    const void *at = (const void *)(uintptr_t)block;
    for (uint32_t i = 0; i < (gpu_simulated ? 2 : 20); i++) {
        gpu_fill(one, at, 16 * MIB, i);
        int gate = gpu_gate_close(one, GPU_PATIENCE_NS);
        gpu_check(one, at, 16 * MIB, i);
        MUST(cu.EventRecord(event, one));
        MUST(cu.CtxWaitEvent(gpu_context, event));
        gpu_fill(other, at, 16 * MIB, ~i);
        gpu_check(other, at, 16 * MIB, ~i);
        gpu_gate_open(gate);
        uint64_t wrong = gpu_wrong_words();
        EXPECT(wrong == 0, "%llu words: later work of another stream did not wait", (unsigned long long)wrong);
        EXPECT(!gpu_gate_gave_up(gate), "the host waited");
    }
    MUST(cu.MemFree(block));
    gpu_answer("cuCtxWaitEvent holds", "later work of another non-blocking stream; the host does not wait");
}

/* ---- costs
 * -------------------------------------------------------------------------------------------------------------------------------- */

#define COST(question, times, call)                                            \
    do {                                                                       \
        double start_ = gpu_now_us();                                          \
        for (unsigned i_ = 0; i_ < (times); i_++)                              \
            call;                                                              \
        gpu_figure(question, (gpu_now_us() - start_) / (times), "us", "each"); \
    } while (0)

static void costs_of_events(void)
{
    enum { STREAMS = 16, TIMES = 1000 };
    CUstream streams[STREAMS];
    CUevent event = gpu_event();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int gates[STREAMS];
    for (unsigned i = 0; i < STREAMS; i++)
        streams[i] = gpu_stream();
    COST("cuEventRecord, idle", TIMES, cu.EventRecord(event, streams[0]));
    MUST(cu.CtxSynchronize());
    COST("cuEventQuery, idle", TIMES, cu.EventQuery(event));
    COST("cuCtxSynchronize, idle", TIMES, cu.CtxSynchronize());
    if (!has_context_events())
        return;
    COST("cuCtxRecordEvent and cuEventQuery, idle", TIMES, (cu.CtxRecordEvent(gpu_context, event), cu.EventQuery(event)));
    MUST(cu.ThreadExchangeStreamCaptureMode(&mode));
    COST("the same, relaxed", TIMES, (cu.CtxRecordEvent(gpu_context, event), cu.EventQuery(event)));
    MUST(cu.ThreadExchangeStreamCaptureMode(&mode));
    COST("cuCtxWaitEvent, idle", TIMES, cu.CtxWaitEvent(gpu_context, event));
    for (unsigned i = 0; i < STREAMS; i++)
        gates[i] = gpu_gate_close(streams[i], GPU_PATIENCE_NS);
    COST("cuCtxRecordEvent and cuEventQuery, 16 busy streams", 50, (cu.CtxRecordEvent(gpu_context, event), cu.EventQuery(event)));
    COST("cuEventQuery of an event that is not ready", 50, cu.EventQuery(event));
    for (unsigned i = 0; i < STREAMS; i++)
        gpu_gate_open(gates[i]);
    MUST(cu.CtxSynchronize());
    for (unsigned i = 0; i < STREAMS; i++)
        EXPECT(!gpu_gate_gave_up(gates[i]), "the host waited for a stream");
}

static const gpu_case cases[] = {
    {"calls_during_captures", calls_during_captures, false},
    {"what_context_events_cover", what_context_events_cover, false},
    {"what_context_waits_hold", what_context_waits_hold, false},
    {"costs_of_events", costs_of_events, false},
};
GPU_MAIN(cases)
