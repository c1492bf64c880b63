/*
 * The simulated runtime, loaded as programs load it, in both of its forms: its own rules (size 0, NULL, last error, devices, reset), and
 * that it is a client of the simulated driver that was loaded as libcuda.so.1.
 */
#include "test_rt_driver.h"

#include "runtime/sim_runtime_abi.h"

#include <pthread.h>

#define PAGE ((size_t)2 << 20)

/* Functions whose prototypes are the same in both runtimes. */
/* clang-format off */
#define RUNTIME(F) \
    F(cudaGetLastError, (void)) F(cudaPeekAtLastError, (void)) \
    F(cudaRuntimeGetVersion, (int *)) F(cudaDriverGetVersion, (int *)) \
    F(cudaGetDeviceCount, (int *)) F(cudaSetDevice, (int)) F(cudaGetDevice, (int *)) F(cudaDeviceReset, (void)) \
    F(cudaDeviceSynchronize, (void)) F(cudaDeviceGetAttribute, (int *, int, int)) \
    F(cudaDeviceCanAccessPeer, (int *, int, int)) F(cudaDeviceEnablePeerAccess, (int, unsigned)) \
    F(cudaMalloc, (void **, size_t)) F(cudaFree, (void *)) F(cudaMallocPitch, (void **, size_t *, size_t, size_t)) \
    F(cudaMallocHost, (void **, size_t)) F(cudaFreeHost, (void *)) F(cudaMemGetInfo, (size_t *, size_t *)) \
    F(cudaMallocManaged, (void **, size_t, unsigned)) \
    F(cudaMallocAsync, (void **, size_t, CUstream)) F(cudaFreeAsync, (void *, CUstream)) \
    F(cudaMallocAsync_ptsz, (void **, size_t, CUstream)) F(cudaFreeAsync_ptsz, (void *, CUstream)) \
    F(cudaMemcpy, (void *, const void *, size_t, cudaMemcpyKind)) F(cudaMemset, (void *, int, size_t)) \
    F(cudaMemcpyAsync, (void *, const void *, size_t, cudaMemcpyKind, CUstream)) \
    F(cudaMemcpyPeer, (void *, int, const void *, int, size_t)) \
    F(cudaStreamCreate, (CUstream *)) F(cudaStreamDestroy, (CUstream)) F(cudaStreamSynchronize, (CUstream)) \
    F(cudaStreamCreateWithFlags, (CUstream *, unsigned)) F(cudaStreamGetId, (CUstream, unsigned long long *)) \
    F(cudaStreamGetId_ptsz, (CUstream, unsigned long long *)) F(cudaStreamQuery, (CUstream)) \
    F(cudaStreamBeginCapture, (CUstream, CUstreamCaptureMode)) F(cudaStreamEndCapture, (CUstream, CUgraph *)) \
    F(cudaGraphInstantiate, (CUgraphExec *, CUgraph, unsigned long long)) F(cudaGraphLaunch, (CUgraphExec, CUstream)) \
    F(cudaGraphDestroy, (CUgraph)) F(cudaGraphExecDestroy, (CUgraphExec)) \
    F(cudaEventCreateWithFlags, (CUevent *, unsigned)) F(cudaEventRecord, (CUevent, CUstream)) \
    F(cudaEventQuery, (CUevent)) F(cudaEventSynchronize, (CUevent)) \
    F(cudaPointerGetAttributes, (struct cudaPointerAttributes *, const void *)) \
    F(cudaGetDriverEntryPointByVersion, (const char *, void **, unsigned, unsigned long long, CUdriverProcAddressQueryResult *)) \
    F(cudaGetDriverEntryPoint_ptsz, (const char *, void **, unsigned long long, CUdriverProcAddressQueryResult *)) \
    F(cudaLaunchKernel, (void))
/* clang-format on */

static struct {
#define F(name, params) cudaError_t(*name) params;
    RUNTIME(F)
#undef F
    const char *(*cudaGetErrorName)(cudaError_t);
    const char *(*cudaGetErrorString)(cudaError_t);
} run;
static void *library;
static int major;

static void load_runtime(int which)
{
    library = dlopen(which == 12 ? SIMCUDA_DIR "/libcudart.so.12" : SIMCUDA_DIR "/libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        print_error("%s\n", dlerror());
        exit(2);
    }
    major = which;
#define F(name, params) TEST_ASSIGN(run.name, dlsym(library, #name));
    RUNTIME(F)
    F(cudaGetErrorName, )
    F(cudaGetErrorString, )
#undef F
}

static void *device_memory(size_t bytes)
{
    void *pointer = NULL;
    OK(run.cudaMalloc(&pointer, bytes));
    return pointer;
}

static void versions_and_symbols(void **state)
{
    (void)state;
    int version = 0;
    OK(run.cudaRuntimeGetVersion(&version));
    assert_int_equal(version / 1000, major);
    OK(run.cudaDriverGetVersion(&version));
    assert_int_equal(version, 13000);
    /* the version node of its own, under which programs look for it */
    const char *mine = major == 12 ? "libcudart.so.12" : "libcudart.so.13", *not_mine = major == 12 ? "libcudart.so.13" : "libcudart.so.12";
    assert_non_null(dlvsym(library, "cudaMalloc", mine));
    assert_null(dlvsym(library, "cudaMalloc", not_mine));
    assert_string_equal(run.cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    assert_string_equal(run.cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    assert_string_equal(run.cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

/* Calls reach the driver under the names and groups by which it counts them. */
static void it_is_a_client_of_the_driver(void **state)
{
    (void)state;
    OK(run.cudaFree(NULL)); /* initialises */
    uint64_t before = panel.calls_of("cuMemAlloc");
    void *pointer = device_memory(PAGE);
    assert_int_equal(panel.calls_of("cuMemAlloc"), before + 1);
    before = panel.calls_of("cuMemFree");
    OK(run.cudaFree(pointer));
    assert_int_equal(panel.calls_of("cuMemFree"), before + 1);
    simcuda_census census;
    panel.count_objects(0, &census);
    assert_int_equal(census.mallocs, 0);
}

static void sizes_and_nulls(void **state)
{
    (void)state;
    void *pointer = &pointer;
    size_t pitch = 9;
    OK(run.cudaMalloc(&pointer, 0));
    assert_null(pointer);
    OK(run.cudaFree(NULL));
    OK(run.cudaFreeHost(NULL));
    OK(run.cudaMallocHost(&pointer, 0));
    assert_null(pointer);
    OK(run.cudaMallocPitch(&pointer, &pitch, 100, 0));
    assert_null(pointer);
    OK(run.cudaMallocPitch(&pointer, &pitch, 100, 10));
    assert_int_equal(pitch % 512, 0);
    OK(run.cudaFree(pointer));
    GIVES(cudaErrorInvalidValue, run.cudaFree(pointer));
    GIVES(cudaErrorInvalidValue, run.cudaMalloc(NULL, 512));
    OK(run.cudaMemcpy(NULL, NULL, 0, cudaMemcpyHostToDevice));
    GIVES(cudaErrorInvalidMemcpyDirection, run.cudaMemcpy(&pointer, &pitch, 8, (cudaMemcpyKind)9));
    run.cudaGetLastError();
}

static void *last_error_here(void *unused)
{
    (void)unused;
    return (void *)(uintptr_t)run.cudaPeekAtLastError();
}

/* "Returns the last error that has been produced by any of the runtime calls in the same instance ... in the same host thread and resets
 * it to cudaSuccess." */
static void last_error(void **state)
{
    (void)state;
    void *pointer;
    OK(run.cudaGetLastError());
    GIVES(cudaErrorMemoryAllocation, run.cudaMalloc(&pointer, (size_t)1 << 40));
    OK(run.cudaFree(NULL)); /* success leaves it */
    GIVES(cudaErrorMemoryAllocation, run.cudaPeekAtLastError());
    pthread_t thread;
    void *elsewhere = &pointer;
    assert_int_equal(pthread_create(&thread, NULL, last_error_here, NULL), 0);
    pthread_join(thread, &elsewhere);
    assert_null(elsewhere);
    GIVES(cudaErrorMemoryAllocation, run.cudaGetLastError());
    OK(run.cudaGetLastError());
}

static void not_ready_is_a_last_error_too(void **state)
{
    (void)state;
    CUevent event;
    CUstream stream;
    OK(run.cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
    OK(run.cudaEventCreateWithFlags(&event, CU_EVENT_DISABLE_TIMING));
    int gate = panel.gate_close(stream);
    OK(run.cudaEventRecord(event, stream));
    GIVES(cudaErrorNotReady, run.cudaEventQuery(event));
    GIVES(cudaErrorNotReady, run.cudaGetLastError());
    panel.gate_open(gate);
    OK(run.cudaEventSynchronize(event));
    OK(run.cudaEventQuery(event));
    OK(run.cudaGetLastError());
}

static void devices_and_peers(void **state)
{
    (void)state;
    int count = 0, device = 9, can = 0;
    OK(run.cudaGetDeviceCount(&count));
    assert_int_equal(count, 2);
    GIVES(cudaErrorInvalidDevice, run.cudaSetDevice(2));
    GIVES(cudaErrorInvalidDevice, run.cudaSetDevice(-1));
    run.cudaGetLastError();
    OK(run.cudaSetDevice(1));
    OK(run.cudaGetDevice(&device));
    assert_int_equal(device, 1);
    void *far = device_memory(PAGE);
    struct cudaPointerAttributes attributes;
    OK(run.cudaPointerGetAttributes(&attributes, far));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(attributes.device, 1);
    OK(run.cudaSetDevice(0));
    OK(run.cudaPointerGetAttributes(&attributes, &count));
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    assert_int_equal(attributes.device, cudaInvalidDeviceId);
    assert_ptr_equal(attributes.hostPointer, &count);
    OK(run.cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(run.cudaDeviceEnablePeerAccess(1, 0));
    GIVES(cudaErrorPeerAccessAlreadyEnabled, run.cudaDeviceEnablePeerAccess(1, 0));
    run.cudaGetLastError();
    void *near = device_memory(PAGE);
    OK(run.cudaMemcpyPeer(near, 0, far, 1, PAGE));
    OK(run.cudaFree(far)); /* from another device: allowed */
}

static void properties(void **state)
{
    (void)state;
    struct {
        char name[256];
        char ids[28];
        size_t total;
        char rest[4096];
    } seen;
    cudaError_t (*get)(void *, int);
    TEST_ASSIGN(get, dlsym(library, major == 12 ? "cudaGetDeviceProperties_v2" : "cudaGetDeviceProperties"));
    memset(&seen, 0x5a, sizeof seen);
    OK(get(&seen, 0));
    assert_true(strlen(seen.name) > 0);
    assert_int_equal(seen.total, (size_t)1 << 30);
    /* the struct of this runtime and not a byte more */
    size_t bytes = major == 12 ? 1032 : 1008;
    assert_int_equal(((const char *)&seen)[bytes - 1], 0);
    assert_int_equal(((const char *)&seen)[bytes], 0x5a);
}

/* "Explicitly destroys and cleans up all resources associated with the current device in the current process." */
static void reset(void **state)
{
    (void)state;
    simcuda_census census;
    void *pointer = device_memory(PAGE);
    OK(run.cudaDeviceReset());
    panel.count_objects(0, &census);
    assert_int_equal(census.mallocs, 0);
    GIVES(cudaErrorInvalidValue, run.cudaFree(pointer));
    run.cudaGetLastError();
    pointer = device_memory(PAGE);
    OK(run.cudaFree(pointer));
}

/* However often it is asked for, the runtime retains a primary context once. */
static void one_retain_of_the_primary_context(void **state)
{
    (void)state;
    unsigned flags;
    int active = 0;
    for (int i = 0; i < 5; i++) {
        OK(run.cudaSetDevice(1));
        OK(run.cudaSetDevice(0));
    }
    OK(cu.DevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 1);
    OK(cu.DevicePrimaryCtxRelease(1));
    OK(cu.DevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    OK(run.cudaSetDevice(1)); /* and takes it anew */
    OK(run.cudaFree(NULL));
    OK(run.cudaSetDevice(0));
}

static void default_streams(void **state)
{
    (void)state;
    unsigned long long legacy, per_thread, by_handle;
    OK(run.cudaStreamGetId(NULL, &legacy));
    OK(run.cudaStreamGetId_ptsz(NULL, &per_thread));
    OK(run.cudaStreamGetId(CU_STREAM_PER_THREAD, &by_handle));
    assert_int_not_equal(legacy, per_thread);
    assert_int_equal(per_thread, by_handle);
    void *pointer = NULL;
    OK(run.cudaMallocAsync_ptsz(&pointer, PAGE, NULL));
    assert_int_equal(panel.touch(CU_STREAM_PER_THREAD, (uintptr_t)pointer, PAGE, 1), 0);
    OK(run.cudaFreeAsync_ptsz(pointer, NULL));
    assert_int_equal(panel.races(), 0);
}

static void entry_points(void **state)
{
    (void)state;
    void *function = NULL;
    CUdriverProcAddressQueryResult status = 99;
    OK(run.cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status));
    assert_ptr_equal(function, test_symbol("cuMemAlloc_v2"));
    OK(run.cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", &function, 12000, 0, &status));
    assert_null(function);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(run.cudaGetDriverEntryPoint_ptsz("cuMemFreeAsync", &function, 0, &status));
    assert_ptr_equal(function, test_symbol("cuMemFreeAsync_ptsz"));
}

static void copies_and_graphs(void **state)
{
    (void)state;
    char text[32] = "eleven pages", back[32] = "";
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream;
    char *memory = device_memory(PAGE);
    OK(run.cudaStreamCreate(&stream));
    OK(run.cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(run.cudaMemcpyAsync(memory, text, sizeof text, cudaMemcpyHostToDevice, stream));
    OK(run.cudaMemcpyAsync(memory + 4096, memory, sizeof text, cudaMemcpyDeviceToDevice, stream));
    GIVES(cudaErrorStreamCaptureUnsupported, run.cudaStreamQuery(stream));
    GIVES(cudaErrorStreamCaptureInvalidated, run.cudaStreamEndCapture(stream, &graph));
    run.cudaGetLastError();
    OK(run.cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(run.cudaMemcpyAsync(memory, text, sizeof text, cudaMemcpyHostToDevice, stream));
    OK(run.cudaMemcpyAsync(memory + 4096, memory, sizeof text, cudaMemcpyDefault, stream));
    OK(run.cudaStreamEndCapture(stream, &graph));
    OK(run.cudaGraphInstantiate(&exec, graph, 0));
    OK(run.cudaGraphDestroy(graph));
    OK(run.cudaGraphLaunch(exec, stream));
    OK(run.cudaStreamSynchronize(stream));
    OK(run.cudaMemcpy(back, memory + 4096, sizeof back, cudaMemcpyDeviceToHost));
    assert_string_equal(back, text);
    OK(run.cudaMemset(memory, 0, PAGE));
    OK(run.cudaMemcpy(back, memory, sizeof back, cudaMemcpyDefault));
    assert_string_equal(back, "");
    OK(run.cudaGraphExecDestroy(exec));
}

static void unsupported_calls_say_so(void **state)
{
    (void)state;
    void *pointer = NULL;
    uint64_t before = panel.findings(SIMCUDA_UNSUPPORTED_CALL);
    GIVES(cudaErrorNotSupported, run.cudaLaunchKernel());
    GIVES(cudaErrorNotSupported, run.cudaMallocManaged(&pointer, 512, 1));
    assert_int_equal(panel.findings(SIMCUDA_UNSUPPORTED_CALL), before + 2);
    GIVES(cudaErrorNotSupported, run.cudaGetLastError());
    OK(run.cudaGetLastError());
}

/* "This leaves the process in an inconsistent state and any further CUDA work will return the same error." */
static void sticky_errors_stay(void **state)
{
    (void)state;
    void *pointer;
    assert_true(panel.fail("cuCtxSynchronize", 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS, SIMCUDA_BEFORE) >= 0);
    GIVES(cudaErrorIllegalAddress, run.cudaDeviceSynchronize());
    GIVES(cudaErrorMemoryAllocation, run.cudaMalloc(&pointer, (size_t)1 << 40)); /* does not take its place */
    GIVES(cudaErrorIllegalAddress, run.cudaGetLastError());
    GIVES(cudaErrorIllegalAddress, run.cudaGetLastError());
    OK(run.cudaDeviceReset());
    OK(run.cudaGetLastError());
}

static int setup(void **state)
{
    (void)state;
    start("sim:1GiB,devices=2,content");
    OK(run.cudaSetDevice(0));
    run.cudaGetLastError();
    return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(versions_and_symbols),
        TEST(it_is_a_client_of_the_driver),
        TEST(sizes_and_nulls),
        TEST(last_error),
        TEST(not_ready_is_a_last_error_too),
        TEST(devices_and_peers),
        TEST(properties),
        TEST(reset),
        TEST(one_retain_of_the_primary_context),
        TEST(default_streams),
        TEST(entry_points),
        TEST(copies_and_graphs),
        TEST(unsupported_calls_say_so),
        TEST(sticky_errors_stay),
    };
    load_runtime(12);
    int failed = cmocka_run_group_tests_name("libcudart.so.12", tests, NULL, NULL);
    load_runtime(13);
    return failed + cmocka_run_group_tests_name("libcudart.so.13", tests, NULL, NULL);
}
