/*
 * Captures and threads: a capture that begins while other threads are in the middle of calls that would invalidate it, captures on two
 * threads at once, and threads whose requests run the device full meanwhile. Needs the simulated device beside it.
 */
#include "capture_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct worker {
    pthread_t thread;
    cmpool_t pool, set;
    CUcontext context;
    CUstream stream;
    CUstreamCaptureMode mode;
    _Atomic int *running; /* threads that are still capturing */
    _Atomic int done;
    CUgraphExec exec;
    const char *fault; /* cmocka's checks jump, so other threads only tell */
} worker;

#define EXPECT(w, holds)         \
    do {                         \
        if (!(holds)) {          \
            (w)->fault = #holds; \
            return NULL;         \
        }                        \
    } while (0)

static void start_thread(worker *w, void *(*body)(void *))
{
    OK(cuCtxGetCurrent(&w->context));
    assert_int_equal(pthread_create(&w->thread, NULL, body, w), 0);
}

static void join_thread(worker *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    if (w->fault)
        fail_msg("%s", w->fault);
}

/* ---- a begin waits for what is on its way ---------------------------------------------------------------------------------- */

static void *trims(void *argument)
{
    worker *w = argument;
    EXPECT(w, cuCtxSetCurrent(w->context) == CUDA_SUCCESS);
    cmpool_status status = cmpool_trim(w->pool, 0, NULL);
    EXPECT(w, status == CMPOOL_OK || status == CMPOOL_ERR_CAPTURE);
    return NULL;
}

static void *captures_once(void *argument)
{
    worker *w = argument;
    EXPECT(w, cuCtxSetCurrent(w->context) == CUDA_SUCCESS);
    EXPECT(w, cmpool_capture_begin(w->set) == CMPOOL_OK);
    EXPECT(w, cuStreamBeginCapture_v2(w->stream, w->mode) == CUDA_SUCCESS);
    atomic_store(&w->done, 1);
    void *block;
    EXPECT(w, cmpool_malloc(w->set ? w->set : w->pool, &block, 3 * MIB, w->stream) == CMPOOL_OK);
    EXPECT(w, cmpool_free(w->set ? w->set : w->pool, block, w->stream) == CMPOOL_OK);
    CUstreamCaptureStatus status;
    CUgraph graph;
    EXPECT(w, cuStreamIsCapturing(w->stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT(w, cuStreamEndCapture(w->stream, &graph) == CUDA_SUCCESS);
    EXPECT(w, cuGraphDestroy(graph) == CUDA_SUCCESS);
    EXPECT(w, cmpool_capture_end(w->set) == CMPOOL_OK);
    return NULL;
}

static void a_begin_waits_for_calls_on_their_way(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuCtxRecordEvent", "cuEventQuery", "cuCtxSynchronize", "cuMemUnmap"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(calls); i++) {
        for (int with_set = 0; with_set < 2; with_set++) {
            device_start("sim:64MiB,order=lazy");
            cmpool_t pool = pool_with(NULL), other = pool_with(NULL);
            CUstream stream = sim_test_stream(), second = sim_test_stream();
            give(pool, take_and_use(pool, 8 * MIB, stream), stream);
            give(pool, take_and_use(pool, 8 * MIB, second), second);
            worker trim = {.pool = pool}, capture = {.pool = pool, .set = with_set ? set_in(other) : 0, .stream = sim_test_stream()};
            assert_int_equal(panel.park(calls[i], 1), 0);
            start_thread(&trim, trims);
            assert_int_equal(panel.wait_parked(10000), 1);
            start_thread(&capture, captures_once);
            usleep(20000);
            assert_int_equal(atomic_load(&capture.done), 0); /* the call is still in the driver */
            panel.release_parked();
            join_thread(&trim);
            join_thread(&capture);
            if (with_set)
                DONE(cmpool_capture_release(capture.set));
            DONE(cmpool_destroy(other));
            end_pool(pool);
        }
    }
}

/* ---- two captures at once --------------------------------------------------------------------------------------------------- */

/* While others run the device full a request may be refused, and no more than that. */
static bool take_or_not(worker *w, void **block, size_t bytes)
{
    cmpool_status status = cmpool_malloc(w->set ? w->set : w->pool, block, bytes, w->stream);
    return status == CMPOOL_OK ? panel.touch(w->stream, (uint64_t)(uintptr_t)*block, bytes, 1) == 0
                               : status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && !*block;
}

static void *captures_a_model(void *argument)
{
    worker *w = argument;
    EXPECT(w, cuCtxSetCurrent(w->context) == CUDA_SUCCESS);
    EXPECT(w, cmpool_capture_begin(w->set) == CMPOOL_OK);
    EXPECT(w, cuStreamBeginCapture_v2(w->stream, w->mode) == CUDA_SUCCESS);
    for (int i = 0; i < 60; i++) {
        void *large, *small;
        size_t bytes = (size_t)(i % 4 + 1) * MIB;
        EXPECT(w, take_or_not(w, &large, bytes));
        EXPECT(w, take_or_not(w, &small, 700));
        EXPECT(w, cmpool_free(w->set, large, w->stream) == CMPOOL_OK);
        EXPECT(w, cmpool_free(w->set, small, w->stream) == CMPOOL_OK);
    }
    CUstreamCaptureStatus status;
    CUgraph graph;
    EXPECT(w, cuStreamIsCapturing(w->stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT(w, cuStreamEndCapture(w->stream, &graph) == CUDA_SUCCESS);
    EXPECT(w, cmpool_capture_end(w->set) == CMPOOL_OK);
    EXPECT(w, cuGraphInstantiateWithFlags(&w->exec, graph, 0) == CUDA_SUCCESS);
    EXPECT(w, cuGraphDestroy(graph) == CUDA_SUCCESS);
    atomic_fetch_sub(w->running, 1);
    return NULL;
}

/* Eager requests that want moves, events and waits for as long as somebody captures. */
static void *crowds(void *argument)
{
    worker *w = argument;
    EXPECT(w, cuCtxSetCurrent(w->context) == CUDA_SUCCESS);
    do {
        void *blocks[4];
        for (int i = 0; i < 4; i++) {
            EXPECT(w, take_or_not(w, &blocks[i], (size_t)(i + 2) * 2 * MIB));
        }
        for (int i = 0; i < 4; i++)
            EXPECT(w, cmpool_free(w->pool, blocks[(i * 3) % 4], w->stream) == CMPOOL_OK);
        cmpool_status status = cmpool_trim(w->pool, 20 * MIB, NULL);
        EXPECT(w, status == CMPOOL_OK || status == CMPOOL_ERR_CAPTURE);
    } while (atomic_load(w->running) > 0);
    return NULL;
}

static void captures_on_two_threads(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t mode = 0; mode < CMI_ARRAY_LENGTH(capture_modes); mode++) {
            for (int shared = 0; shared < 2; shared++) {
                device_start(words);
                cmpool_t pool = pool_with(NULL), first = set_in(pool), second = shared ? first : set_in(pool);
                _Atomic int running = 2;
                worker workers[4] = {{.pool = pool, .set = first, .mode = capture_modes[mode], .stream = sim_test_stream()},
                                     {.pool = pool, .set = second, .mode = capture_modes[mode], .stream = sim_test_stream()},
                                     {.pool = pool, .stream = sim_test_stream()},
                                     {.pool = pool, .stream = sim_test_stream()}};
                for (int i = 0; i < 4; i++) {
                    workers[i].running = &running;
                    start_thread(&workers[i], i < 2 ? captures_a_model : crowds);
                }
                for (int i = 0; i < 2; i++)
                    if (pthread_join(workers[i].thread, NULL) != 0 || workers[i].fault)
                        atomic_store(&running, 0); /* so that the others end as well */
                join_thread(&workers[2]);
                join_thread(&workers[3]);
                for (int i = 0; i < 2; i++)
                    if (workers[i].fault)
                        fail_msg("%s", workers[i].fault);
                must_be_sound(pool);
                CUstream runner = sim_test_stream();
                for (int i = 0; i < 6; i++) {
                    launch(workers[i % 2].exec, runner);
                    give(pool, take_and_use(pool, 30 * MIB, workers[2].stream), workers[2].stream);
                }
                OK(cuGraphExecDestroy(workers[0].exec));
                OK(cuGraphExecDestroy(workers[1].exec));
                DONE(cmpool_capture_release(first));
                if (!shared)
                    DONE(cmpool_capture_release(second));
                end_pool(pool);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_begin_waits_for_calls_on_their_way),
        cmocka_unit_test(captures_on_two_threads),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
