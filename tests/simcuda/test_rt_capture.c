/*
 * Stream capture: what it forbids, to whom, and what breaks it. Each rule is one of cuda.h: the comments of cuStreamBeginCapture,
 * cuStreamEndCapture, cuStreamIsCapturing, cuThreadExchangeStreamCaptureMode, cuCtxRecordEvent, and of the codes 900 to 908.
 */
#include "test_rt_driver.h"

#include <pthread.h>

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status = 99;
    OK(cu.StreamIsCapturing(stream, &status));
    return status;
}

static CUstream capturing(CUstreamCaptureMode mode)
{
    CUstream stream = new_stream();
    OK(cu.StreamBeginCapture(stream, mode));
    return stream;
}

static void end_well(CUstream stream, size_t nodes)
{
    CUgraph graph = NULL;
    size_t count = 0;
    OK(cu.StreamEndCapture(stream, &graph));
    assert_non_null(graph);
    OK(cu.GraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, nodes);
    OK(cu.GraphDestroy(graph));
    assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

/* "If capture was invalidated ... then a NULL graph will be returned." */
static void end_badly(CUstream stream, CUresult code)
{
    CUgraph graph = (CUgraph)&graph;
    GIVES(code, cu.StreamEndCapture(stream, &graph));
    assert_null(graph);
    assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

/* Run in another thread, with that thread's capture mode set first. */
static struct {
    CUstreamCaptureMode mode;
    CUresult code;
    CUstream stream;
} other;

static void *allocate_elsewhere(void *unused)
{
    (void)unused;
    CUdeviceptr address = 0;
    exchange(other.mode);
    cu.CtxSetCurrent(context);
    other.code = cu.MemAlloc(&address, 512);
    return NULL;
}

static void *end_elsewhere(void *unused)
{
    (void)unused;
    CUgraph graph;
    cu.CtxSetCurrent(context);
    other.code = cu.StreamEndCapture(other.stream, &graph);
    return NULL;
}

static CUresult in_thread(void *(*body)(void *))
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, NULL), 0);
    pthread_join(thread, NULL);
    return other.code;
}

static CUresult allocate_in_thread(CUstreamCaptureMode mode)
{
    other.mode = mode;
    return in_thread(allocate_elsewhere);
}

static CUresult end_in_thread(CUstream stream)
{
    other.stream = stream;
    return in_thread(end_elsewhere);
}

static void work_becomes_nodes(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(4096);
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(panel.touch(stream, memory, 512, 1), 0);
    OK(cu.MemsetD8Async(memory, 1, 512, stream));
    OK(cu.MemcpyDtoDAsync(memory + 1024, memory, 512, stream));
    end_well(stream, 3);
}

static void bad_begins_and_ends(void **state)
{
    (void)state;
    CUgraph graph;
    CUstream stream = new_stream();
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.StreamBeginCapture(stream, 7));
    assert_int_not_equal(cu.StreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    assert_int_not_equal(cu.StreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    assert_int_not_equal(cu.StreamEndCapture(stream, &graph), CUDA_SUCCESS);
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_int_not_equal(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    end_well(stream, 0);
    OK(cu.StreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    end_well(CU_STREAM_PER_THREAD, 0);
}

/* GLOBAL: "If the local thread has an ongoing capture sequence that was not initiated with RELAXED, or if any other thread has a
 * concurrent capture sequence initiated with GLOBAL, this thread is prohibited from potentially unsafe API calls." */
static void who_is_barred(void **state)
{
    (void)state;
    const CUstreamCaptureMode g = CU_STREAM_CAPTURE_MODE_GLOBAL, l = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                              r = CU_STREAM_CAPTURE_MODE_RELAXED;
    const struct {
        CUstreamCaptureMode capture, thread;
        bool own_barred, other_barred;
    } rules[] = {{g, g, true, true},   {g, l, true, false},  {g, r, false, false}, {l, g, true, false}, {l, l, true, false},
                 {l, r, false, false}, {r, g, false, false}, {r, l, false, false}, {r, r, false, false}};
    for (size_t i = 0; i < 2 * (sizeof rules / sizeof rules[0]); i++) {
        bool elsewhere = i % 2 != 0, barred = elsewhere ? rules[i / 2].other_barred : rules[i / 2].own_barred;
        CUstream stream = capturing(rules[i / 2].capture);
        CUdeviceptr address;
        CUresult code;
        if (elsewhere) {
            code = allocate_in_thread(rules[i / 2].thread);
        } else {
            CUstreamCaptureMode before = exchange(rules[i / 2].thread);
            code = cu.MemAlloc(&address, 512);
            assert_int_equal(exchange(before), rules[i / 2].thread);
        }
        assert_int_equal(code, barred ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        if (barred) {
            assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        } else {
            end_well(stream, 0);
        }
    }
}

static void pool_calls_pass_in_relaxed_mode(void **state)
{
    (void)state;
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUdeviceptr page = new_vmm_page(2 << 20), memory = new_memory(512);
    OK(cu.MemFree(memory));
    exchange(before);
    assert_int_equal(panel.touch(stream, page, 512, 1), 0);
    end_well(stream, 1);
}

/* "the current capture sequence on the stream has been invalidated due to a previous error" (901) */
static void an_invalid_capture_takes_no_work(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(512), more;
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CUevent event = new_event();
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.MemAlloc(&more, 512));
    assert_int_equal(panel.touch(stream, memory, 512, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.EventRecord(event, stream));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(panel.touch(stream, memory, 512, 1), 0);
}

static void fork_and_join(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(4096);
    CUstream main_stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL), side = new_stream();
    CUevent fork = new_event(), join = new_event();
    assert_int_equal(panel.touch(main_stream, memory, 512, 1), 0);
    OK(cu.EventRecord(fork, main_stream));
    assert_int_equal(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cu.StreamWaitEvent(side, fork, 0));
    assert_int_equal(status_of(side), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(panel.touch(side, memory + 512, 512, 1), 0);
    assert_int_equal(panel.touch(main_stream, memory + 1024, 512, 1), 0);
    OK(cu.EventRecord(join, side));
    OK(cu.StreamWaitEvent(main_stream, join, 0));
    assert_int_equal(panel.touch(main_stream, memory, 2048, 1), 0);

    CUstreamCaptureStatus status;
    cuuint64_t id = 0, side_id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *after = NULL;
    size_t count = 99, edges = 0;
    const CUgraphEdgeData *data = NULL;
    OK(cu.StreamGetCaptureInfo(main_stream, &status, &id, &graph, &after, &data, &count));
    assert_int_equal(data[0].type, 0);
    OK(cu.StreamGetCaptureInfo(side, &status, &side_id, NULL, NULL, NULL, NULL));
    assert_int_equal(id, side_id);
    assert_int_equal(count, 1);
    assert_non_null(after[0]);
    OK(cu.GraphGetEdges(graph, NULL, NULL, NULL, &edges));
    assert_int_equal(edges, 4); /* a diamond */

    end_well(main_stream, 4);
    assert_int_equal(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
}

/* "the capture sequence contains a fork that was not joined to the primary stream" (904) */
static void unjoined_work_breaks_it(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(4096);
    CUstream main_stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL), side = new_stream();
    CUevent fork = new_event(), join = new_event();
    OK(cu.EventRecord(fork, main_stream));
    OK(cu.StreamWaitEvent(side, fork, 0));
    OK(cu.EventRecord(join, side));
    assert_int_equal(panel.touch(side, memory, 512, 1), 0); /* after the record: not in what is joined */
    OK(cu.StreamWaitEvent(main_stream, join, 0));
    end_badly(main_stream, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_int_equal(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
}

/* "the capture was not initiated in this stream" (903) */
static void ended_in_the_wrong_stream(void **state)
{
    (void)state;
    CUgraph graph;
    CUstream main_stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL), side = new_stream();
    CUevent fork = new_event();
    OK(cu.EventRecord(fork, main_stream));
    OK(cu.StreamWaitEvent(side, fork, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu.StreamEndCapture(side, &graph));
    end_badly(main_stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* "If mode is not RELAXED, cuStreamEndCapture must be called on this stream from the same thread." (908) */
static void ended_in_the_wrong_thread(void **state)
{
    (void)state;
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, end_in_thread(stream));
    end_well(stream, 0);
    stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    GIVES(CUDA_SUCCESS, end_in_thread(stream));
}

/* "a dependency would have been created which crosses the capture sequence boundary" (905) */
static void waits_across_the_boundary(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(512);
    CUstream outside = new_stream();
    CUevent event = new_event(), never_recorded = new_event();
    assert_int_equal(panel.touch(outside, memory, 512, 1), 0);
    OK(cu.EventRecord(event, outside));
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cu.StreamWaitEvent(stream, never_recorded, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu.StreamWaitEvent(stream, event, 0));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* "the operation would have resulted in a merge of two independent capture sequences" (902) */
static void two_captures_do_not_merge(void **state)
{
    (void)state;
    CUevent event = new_event();
    CUstream one = capturing(CU_STREAM_CAPTURE_MODE_RELAXED), two = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cu.EventRecord(event, one));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_MERGE, cu.StreamWaitEvent(two, event, 0));
    end_badly(two, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_badly(one, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* "the operation is not permitted on an event which was last recorded in a capturing stream" (907); RELAXED does not help. */
static void captured_events_cannot_be_asked(void **state)
{
    (void)state;
    CUevent event = new_event();
    CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cu.EventRecord(event, stream));
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.EventQuery(event));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cu.EventRecord(event, stream));
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.EventSynchronize(event));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    /* still, after its capture; recorded anew it is an event like others */
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.EventQuery(event));
    OK(cu.EventRecord(event, stream));
    OK(cu.EventSynchronize(event));
    exchange(before);
}

static void capturing_streams_cannot_be_asked(void **state)
{
    (void)state;
    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.StreamQuery(stream));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.StreamSynchronize(stream));
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.CtxSynchronize());
    end_badly(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* cuCtxRecordEvent: "will return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the specified context has a stream in the capture mode. In such
 * a case, the call will invalidate all the conflicting captures." */
static void context_events_break_captures(void **state)
{
    (void)state;
    CUevent event = new_event(), earlier = new_event();
    OK(cu.CtxRecordEvent(context, earlier));
    CUstream one = capturing(CU_STREAM_CAPTURE_MODE_RELAXED), two = capturing(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.CtxRecordEvent(context, event));
    end_badly(one, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_badly(two, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    one = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.CtxWaitEvent(context, earlier));
    end_badly(one, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.CtxRecordEvent(context, event));

    CUcontext second;
    OK(cu.CtxCreate(&second, 0, 0));
    one = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cu.CtxRecordEvent(context, event)); /* another context's */
    end_well(one, 0);
    OK(cu.CtxDestroy(second));
}

/* "When a blocking stream is capturing, the legacy stream is in an unusable state until the blocking stream capture is terminated." */
static void legacy_stream_while_a_blocking_stream_captures(void **state)
{
    (void)state;
    CUstream blocking = NULL;
    CUdeviceptr memory = new_memory(512);
    CUstreamCaptureStatus status;
    OK(cu.StreamCreate(&blocking, 0));
    OK(cu.StreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    /* to ask does no harm: "The blocking stream capture is not invalidated." */
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu.StreamIsCapturing(CU_STREAM_LEGACY, &status));
    assert_int_equal(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu.MemsetD8Async(memory, 0, 512, NULL));
    end_badly(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(status_of(CU_STREAM_LEGACY), CU_STREAM_CAPTURE_STATUS_NONE);

    CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED); /* non-blocking: the legacy stream may be used */
    OK(cu.MemsetD8Async(memory, 0, 512, NULL));
    assert_int_equal(status_of(CU_STREAM_LEGACY), CU_STREAM_CAPTURE_STATUS_NONE);
    end_well(stream, 0);
}

static void capture_into_a_graph(void **state)
{
    (void)state;
    CUgraph graph, ended;
    CUgraphExec exec;
    CUgraphNode node;
    size_t count = 1, edges;
    CUdeviceptr memory = new_memory(512);
    CUstream stream = new_stream();
    OK(cu.GraphCreate(&graph, 0));
    OK(cu.StreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(panel.touch(stream, memory, 512, 1), 0);
    /* "The graph will not be instantiable until the user calls cuStreamEndCapture." */
    assert_int_not_equal(cu.GraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    OK(cu.StreamEndCapture(stream, &ended));
    assert_ptr_equal(ended, graph);
    OK(cu.GraphGetNodes(graph, &node, &count));
    OK(cu.StreamBeginCaptureToGraph(stream, graph, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(panel.touch(stream, memory, 512, 1), 0);
    OK(cu.StreamEndCapture(stream, &ended));
    OK(cu.GraphGetEdges(graph, NULL, NULL, NULL, &edges));
    assert_int_equal(edges, 1);
    OK(cu.GraphDestroy(graph));
}

static void destroyed_while_capturing(void **state)
{
    (void)state;
    simcuda_census census;
    CUevent fork = new_event();
    CUstream main_stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL), side = new_stream();
    OK(cu.EventRecord(fork, main_stream));
    OK(cu.StreamWaitEvent(side, fork, 0));
    OK(cu.StreamDestroy(side));
    assert_int_equal(status_of(main_stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    OK(cu.StreamDestroy(main_stream));
    OK(cu.EventDestroy(fork));
    panel.count_objects(0, &census);
    assert_int_equal(census.graphs, 0);
    CUdeviceptr memory = new_memory(512); /* nobody is barred any more */
    OK(cu.MemFree(memory));
}

static int setup(void **state)
{
    (void)state;
    start("sim:1GiB");
    return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(work_becomes_nodes),
        TEST(bad_begins_and_ends),
        TEST(who_is_barred),
        TEST(pool_calls_pass_in_relaxed_mode),
        TEST(an_invalid_capture_takes_no_work),
        TEST(fork_and_join),
        TEST(unjoined_work_breaks_it),
        TEST(ended_in_the_wrong_stream),
        TEST(ended_in_the_wrong_thread),
        TEST(waits_across_the_boundary),
        TEST(two_captures_do_not_merge),
        TEST(captured_events_cannot_be_asked),
        TEST(capturing_streams_cannot_be_asked),
        TEST(context_events_break_captures),
        TEST(legacy_stream_while_a_blocking_stream_captures),
        TEST(capture_into_a_graph),
        TEST(destroyed_while_capturing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
