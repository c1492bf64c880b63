/*
 * Contexts, streams, events and how far the device has got, against the text of cuda.h (CUDA 13.0); each test names the function whose
 * documentation it holds the device to.
 */
#include "sim_test.h"

#include <pthread.h>

/* ---- orders: eager, lazy, random; gates ------------------------------------------------------------------------------------------ */

static void eager_is_done_at_once(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,order=eager");
    CUstream stream = sim_test_stream();
    CUevent event = sim_test_event();
    CUdeviceptr block;
    OK(cuMemAlloc_v2(&block, 4096));
    OK(panel.touch(stream, block, 4096, 1));
    OK(cuEventRecord(event, stream));
    OK(cuStreamQuery(stream));
    OK(cuEventQuery(event));
}

static void lazy_waits_for_the_host(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,order=lazy");
    CUstream stream = sim_test_stream(), other = sim_test_stream();
    CUevent event = sim_test_event(), later = sim_test_event();
    CUdeviceptr block;
    OK(cuMemAlloc_v2(&block, 4096));
    OK(panel.touch(stream, block, 4096, 1));
    OK(cuEventRecord(event, stream));
    OK(cuEventRecord(later, stream));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamSynchronize(other));
    REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(event)); /* nobody waits for it */
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(later)); /* only what was waited for is done */
    panel.run_device();
    OK(cuEventQuery(later));
}

/* A program that does nothing but ask is waiting; it is not held for ever. */
static void asking_again_and_again_ends(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,order=lazy");
    CUstream stream = sim_test_stream();
    CUevent event = sim_test_event();
    panel.gate_close(stream);
    OK(cuEventRecord(event, stream));
    int asked = 0;
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY)
        assert_true(++asked < 100000);
    assert_true(asked > 100);
    /* one that does something in between is not waiting */
    CUstream other = sim_test_stream();
    panel.gate_close(stream);
    OK(cuEventRecord(event, stream));
    for (asked = 0; asked < 30000; asked++) {
        REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        OK(cuStreamQuery(other));
    }
    for (asked = 0; cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; asked++)
        assert_true(asked < 100000);
}

static uint64_t random_outcome(const char *words)
{
    sim_test_start(words);
    CUstream streams[4];
    CUevent events[4];
    uint64_t seen = 0;
    for (int i = 0; i < 4; i++) {
        streams[i] = sim_test_stream();
        events[i] = sim_test_event();
    }
    for (int round = 0; round < 16; round++)
        for (int i = 0; i < 4; i++) {
            seen = seen << 1 ^ (cuEventQuery(events[i]) == CUDA_SUCCESS) ^ (seen >> 63);
            OK(cuEventRecord(events[i], streams[i]));
        }
    return seen;
}

static void random_follows_its_seed(void **state)
{
    (void)state;
    uint64_t one = random_outcome("sim:1GiB,order=random:1"), again = random_outcome("sim:1GiB,order=random:1");
    assert_true(one == again);
    int different = 0;
    char words[64];
    for (int seed = 2; seed < 8; seed++) {
        snprintf(words, sizeof words, "sim:1GiB,order=random:%d", seed);
        different += random_outcome(words) != one;
    }
    assert_true(different > 0);
}

static void gates_hold_the_device(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        sim_test_start(words);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        CUevent event = sim_test_event();
        int gate = panel.gate_close(a);
        assert_true(gate > 0);
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0)); /* a device-side wait does not end it */
        panel.run_device();
        REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
        panel.gate_open(gate);
        panel.run_device();
        OK(cuEventQuery(event));
        OK(cuStreamQuery(b));
        panel.gate_close(a);
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0));
        OK(cuStreamSynchronize(b)); /* the host waits for it, through b: it ends */
        OK(cuEventQuery(event));
    }
}

/* ---- streams --------------------------------------------------------------------------------------------------------------------- */

/* cuStreamGetId: "The Id is unique for the life of the program", for created and special streams; handles are not. */
static void stream_ids(void **state)
{
    (void)state;
    CUcontext primary = sim_test_start("sim:1GiB");
    unsigned long long ids[6];
    CUstream first = sim_test_stream(), again;
    OK(cuStreamGetId(first, &ids[0]));
    OK(cuStreamDestroy_v2(first));
    again = sim_test_stream();
    assert_ptr_equal(first, again);
    OK(cuStreamGetId(again, &ids[1]));
    OK(cuStreamGetId(NULL, &ids[2]));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[3]));
    OK(cuStreamGetId(CU_STREAM_LEGACY, &ids[4]));
    OK(cuStreamGetId_ptsz(NULL, &ids[5]));
    assert_int_equal(ids[2], ids[4]);
    assert_int_equal(ids[3], ids[5]);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(ids[i], ids[j]);
    CUcontext context;
    OK(cuStreamGetCtx(again, &context));
    assert_ptr_equal(context, primary);
}

/* cuStreamCreateWithPriority: lower numbers are higher priorities; values outside the range are clamped. */
static void stream_attributes(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUstream stream;
    int priority;
    unsigned flags;
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100));
    OK(cuStreamGetPriority(stream, &priority));
    assert_int_equal(priority, -5);
    OK(cuStreamGetFlags(stream, &flags));
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 0x40));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(CU_STREAM_LEGACY));
}

static void *default_stream_id(void *id)
{
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuStreamGetId(CU_STREAM_PER_THREAD, id) != CUDA_SUCCESS)
        return id;
    return NULL;
}

static void every_thread_has_its_default_stream(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    unsigned long long mine, again, other;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
    assert_int_equal(mine, again);
    pthread_t thread;
    void *failed;
    assert_int_equal(pthread_create(&thread, NULL, default_stream_id, &other), 0);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_not_equal(mine, other);
}

/* cuEventRecord: "hEvent and hStream must be from the same context otherwise CUDA_ERROR_INVALID_HANDLE"; cuStreamWaitEvent: the event
 * "may be from a different context". cuEventElapsedTime: needs two recorded events with timing. */
static void events_and_contexts(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUstream stream = sim_test_stream();
    CUevent event = sim_test_event(), timed, end;
    CUcontext other;
    OK(cuCtxCreate_v4(&other, NULL, 0, 0));
    CUstream there = sim_test_stream();
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, there));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(other, event));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(there, event, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(there, event, 1)); /* EXTERNAL outside of a capture */
    float milliseconds = -1;
    OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, timed, end));
    OK(cuEventRecord(timed, there));
    CUdeviceptr block;
    OK(cuMemAlloc_v2(&block, 64 << 20));
    OK(panel.touch(there, block, 64 << 20, 1));
    OK(cuEventRecord(end, there));
    OK(cuEventElapsedTime(&milliseconds, timed, end));
    assert_true(milliseconds > 0);
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, event, end));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&end, CU_EVENT_INTERPROCESS));
    OK(cuCtxDestroy_v2(other));
}

/* ---- host functions ---------------------------------------------------------------------------------------------------------------- */

static int calls_in_order[8], calls_made;
static CUresult call_inside;

static void note(void *number) { calls_in_order[calls_made++] = (int)(intptr_t)number; }

static void call_the_driver(void *unused)
{
    (void)unused;
    size_t there, total;
    call_inside = cuMemGetInfo_v2(&there, &total);
}

/* cuLaunchHostFunc: "will be called after currently enqueued work and will block work added after it"; "must not make any CUDA API
 * calls". */
static void host_functions(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        sim_test_start(words);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        CUevent event = sim_test_event();
        calls_made = 0;
        int gate = panel.gate_close(a);
        OK(cuLaunchHostFunc(a, note, (void *)1));
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0));
        OK(cuLaunchHostFunc(b, note, (void *)2));
        OK(cuLaunchHostFunc(a, note, (void *)3));
        panel.run_device();
        assert_int_equal(calls_made, 0);
        panel.gate_open(gate);
        OK(cuStreamSynchronize(b));
        OK(cuStreamSynchronize(a));
        assert_int_equal(calls_made, 3);
        assert_int_equal(calls_in_order[0], 1);
        call_inside = CUDA_SUCCESS;
        OK(cuLaunchHostFunc(a, call_the_driver, NULL));
        OK(cuStreamSynchronize(a));
        assert_int_equal(call_inside, CUDA_ERROR_NOT_PERMITTED);
        REFUSED(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(a, NULL, NULL));
    }
}

/* ---- contexts ------------------------------------------------------------------------------------------------------------------------ */

/* cuCtxPushCurrent, cuCtxPopCurrent, cuCtxSetCurrent: a stack per thread; SetCurrent(NULL) pops, an empty stack has none. */
static void context_stack(void **state)
{
    (void)state;
    panel.configure("sim:1GiB,devices=2", NULL, 0);
    CUcontext a, b, top;
    CUdevice device;
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 1));
    OK(cuCtxGetCurrent(&top));
    assert_null(top);
    CUdeviceptr block;
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&block, 100));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&top));
    OK(cuCtxPushCurrent_v2(a));
    OK(cuCtxPushCurrent_v2(b));
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    OK(cuCtxPopCurrent_v2(&top));
    assert_ptr_equal(top, b);
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 0);
    OK(cuCtxSetCurrent(b)); /* "will replace the top of that stack" */
    OK(cuCtxPopCurrent_v2(&top));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
    OK(cuCtxSetCurrent(NULL));
}

/* cuCtxDestroy: pops it if current; frees its cuMemAlloc memory, not that of cuMemCreate; later use is an error. */
static void context_destroy(void **state)
{
    (void)state;
    CUcontext primary = sim_test_start("sim:8MiB"), context, top;
    CUdeviceptr block;
    unsigned long long first, second;
    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    OK(cuCtxGetId(context, &first));
    OK(cuMemAlloc_v2(&block, PAGE));
    CUmemGenericAllocationHandle page = sim_test_page();
    CUstream stream = sim_test_stream();
    CUevent event = sim_test_event();
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxDestroy_v2(context));
    /* still on the stack below: "attempting to access ctx ... will result in the error CUDA_ERROR_CONTEXT_IS_DESTROYED" */
    REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&block, 100));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 1);
    OK(cuCtxPopCurrent_v2(&top));
    OK(cuCtxGetCurrent(&top));
    assert_ptr_equal(top, primary);
    assert_int_equal(sim_test_census().mallocs, 0);
    assert_int_equal(sim_test_census().free_bytes, 3 * PAGE);
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(stream));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy_v2(event));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(context));
    OK(cuMemRelease(page));
    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    OK(cuCtxGetId(context, &second));
    assert_int_not_equal(first, second);
}

/* cuDevicePrimaryCtxRetain / Release / Reset / GetState. */
static void primary_context(void **state)
{
    (void)state;
    CUcontext context = sim_test_start("sim:1GiB"), again;
    unsigned flags;
    int active;
    CUdeviceptr block;
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    assert_ptr_equal(context, again);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 1);
    OK(cuMemAlloc_v2(&block, 4096));
    CUstream stream = sim_test_stream();
    OK(cuDevicePrimaryCtxReset_v2(0)); /* "does not release it" */
    assert_int_equal(sim_test_census().mallocs, 0);
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(stream));
    OK(cuMemAlloc_v2(&block, 4096));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 0);
    REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&block, 4096));
    /* "Releasing a primary context that has not been previously retained will fail with CUDA_ERROR_INVALID_CONTEXT" */
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
}

/* cuCtxEnablePeerAccess: once only, not to itself; work of the context may then touch the peer's memory. Copies may in any case. */
static void peers(void **state)
{
    (void)state;
    CUcontext here = sim_test_start("sim:1GiB,devices=2"), there;
    CUdeviceptr block, mine;
    int can;
    OK(cuMemAlloc_v2(&mine, 4096));
    OK(cuDevicePrimaryCtxRetain(&there, 1));
    OK(cuCtxPushCurrent_v2(there));
    OK(cuMemAlloc_v2(&block, 4096));
    OK(cuCtxPopCurrent_v2(&there));
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    CUstream stream = sim_test_stream();
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, block, 4096, 0));
    OK(cuMemcpyDtoDAsync_v2(mine, block, 4096, stream));
    OK(cuMemcpyDtoDAsync_v2(block, mine, 4096, stream));
    OK(cuCtxEnablePeerAccess(there, 0));
    REFUSED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(there, 0));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(here, 0));
    OK(panel.touch(stream, block, 4096, 0));
    OK(cuCtxDisablePeerAccess(there));
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(there));
    panel.set_feature(SIMCUDA_FEATURE_PEER, 0);
    REFUSED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(there, 0));
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eager_is_done_at_once),
        cmocka_unit_test(lazy_waits_for_the_host),
        cmocka_unit_test(asking_again_and_again_ends),
        cmocka_unit_test(random_follows_its_seed),
        cmocka_unit_test(gates_hold_the_device),
        cmocka_unit_test(stream_ids),
        cmocka_unit_test(stream_attributes),
        cmocka_unit_test(every_thread_has_its_default_stream),
        cmocka_unit_test(events_and_contexts),
        cmocka_unit_test(host_functions),
        cmocka_unit_test(context_stack),
        cmocka_unit_test(context_destroy),
        cmocka_unit_test(primary_context),
        cmocka_unit_test(peers),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
