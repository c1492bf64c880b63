/*
 * What the client programs do: each behaviour calls the driver as programs do, rightly and wrongly, and says what came of it. Owns nothing
 * between runs: a process runs one behaviour.
 */
#include "client.h"

#include "simcuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static const client_driver *cu;

static struct {
    __typeof__(simcuda_touch) *touch;
    __typeof__(simcuda_calls) *calls;
    __typeof__(simcuda_calls_of) *calls_of;
    __typeof__(simcuda_races) *races;
    __typeof__(simcuda_finding_text) *finding_text;
    __typeof__(simcuda_findings) *findings;
    __typeof__(simcuda_count_objects) *count_objects;
} panel;

#define SAY(call) printf("%s: %d\n", #call, (int)(call))
#define MUST(call)                                           \
    do {                                                     \
        int code_ = (int)(call);                             \
        if (code_) {                                         \
            printf("%s gave %d: giving up\n", #call, code_); \
            return 1;                                        \
        }                                                    \
    } while (0)

static void find_panel(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
#define FIND(name)                                       \
    do {                                                 \
        void *found_ = dlsym(library, "simcuda_" #name); \
        memcpy(&panel.name, &found_, sizeof found_);     \
    } while (0)
    FIND(touch);
    FIND(calls);
    FIND(calls_of);
    FIND(races);
    FIND(finding_text);
    FIND(findings);
    FIND(count_objects);
}

static void say_counts(void)
{
    printf("# cuMemAlloc_v2 %llu\n", (unsigned long long)(panel.calls_of("cuMemAlloc_v2") + panel.calls_of("cuMemAllocPitch_v2")));
    printf("# races %llu\n", (unsigned long long)panel.races());
    for (size_t i = 0; panel.finding_text(i); i++) {
        printf("# finding %s\n", panel.finding_text(i));
    }
    fflush(stdout);
}

static CUcontext primary;

static int start(void)
{
    MUST(cu->cuInit(0));
    MUST(cu->cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cu->cuCtxSetCurrent(primary));
    return 0;
}

/* ---- malloc and free ------------------------------------------------------------------------------------------------------------------
 */

static int behave_malloc(void)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 100000, MIB, 3 * MIB + 1, 64 * MIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    CUdeviceptr address[COUNT] = {0}, kept = 42;
    for (int i = 0; i < COUNT; i++) {
        printf("%zu bytes: %d, aligned %d\n", sizes[i], cu->cuMemAlloc(&address[i], sizes[i]), address[i] != 0 && address[i] % 512 == 0);
        for (int j = 0; j < i; j++) {
            if (address[i] < address[j] + sizes[j] && address[j] < address[i] + sizes[i]) {
                printf("blocks %d and %d overlap\n", j, i);
            }
        }
    }
    SAY(cu->cuMemAlloc(&kept, 0));
    SAY(cu->cuMemAlloc(NULL, 512));
    SAY(cu->cuMemAlloc(&kept, (size_t)1 << 40));
    SAY(cu->cuMemAlloc(&kept, (size_t)1 << 60));
    printf("untouched: %d\n", kept == 42);
    CUcontext current;
    SAY(cu->cuCtxGetCurrent(&current));
    printf("same context: %d\n", current == primary);
    for (int i = 0; i < COUNT; i++) {
        SAY(cu->cuMemFree(address[i]));
    }
    SAY(cu->cuCtxSetCurrent(NULL));
    SAY(cu->cuMemAlloc(&kept, 512));
    return 0;
}

static void *free_without_context(void *block)
{
    SAY(cu->cuMemFree(*(CUdeviceptr *)block));
    SAY(cu->cuCtxSetCurrent(primary));
    SAY(cu->cuMemFree(*(CUdeviceptr *)block));
    return NULL;
}

static int behave_free(void)
{
    CUdeviceptr small, large, managed = 0, pooled = 0, other;
    CUcontext context;
    CUstream stream;
    int host = 0;
    SAY(cu->cuMemFree(0));
    MUST(cu->cuMemAlloc(&small, 5000));
    MUST(cu->cuMemAlloc(&large, 5 * MIB));
    SAY(cu->cuMemFree(small + 1));
    SAY(cu->cuMemFree(large + 2 * MIB));
    SAY(cu->cuMemFree(small));
    SAY(cu->cuMemFree(small));
    SAY(cu->cuMemFree(large));
    SAY(cu->cuMemFree(large));
    SAY(cu->cuMemFree(512));
    SAY(cu->cuMemFree((CUdeviceptr)(uintptr_t)&host));
    SAY(cu->cuMemAllocManaged(&managed, 4096, 1));
    SAY(cu->cuMemFree(managed));
    SAY(cu->cuMemFree(managed));
    SAY(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(cu->cuMemAllocAsync(&pooled, 4096, stream));
    SAY(cu->cuMemFreeAsync(pooled, stream));
    SAY(cu->cuMemAllocAsync(&pooled, 4096, stream));
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuMemFree(pooled));
    SAY(cu->cuStreamDestroy(stream));
    pthread_t thread;
    MUST(cu->cuMemAlloc(&other, 4096));
    pthread_create(&thread, NULL, free_without_context, &other);
    pthread_join(thread, NULL);
    MUST(cu->cuMemAlloc(&other, 4096));
    SAY(cu->cuCtxCreate(&context, NULL, 0, 0));
    SAY(cu->cuMemFree(other));
    SAY(cu->cuMemFree(other));
    SAY(cu->cuCtxDestroy(context));
    return 0;
}

static int behave_pitch(void)
{
    CUdeviceptr address;
    size_t pitch = 0;
    for (unsigned element = 2; element <= 16; element *= 2) {
        pitch = 0;
        int code = cu->cuMemAllocPitch(&address, &pitch, 1000, 100, element);
        printf("element %u: %d, pitch %zu\n", element, code, pitch);
        if (code == 0) {
            SAY(cu->cuMemFree(address));
        }
    }
    SAY(cu->cuMemAllocPitch(&address, &pitch, 0, 100, 4));
    SAY(cu->cuMemAllocPitch(&address, &pitch, 100, 0, 4));
    SAY(cu->cuMemAllocPitch(&address, NULL, 100, 100, 4));
    SAY(cu->cuMemAllocPitch(&address, &pitch, (size_t)1 << 40, (size_t)1 << 40, 4));
    return 0;
}

/* ---- what is known of memory
 * -------------------------------------------------------------------------------------------------------------- */

static int behave_info(void)
{
    size_t before, during, after, total;
    CUdeviceptr address[4];
    MUST(cu->cuMemGetInfo(&before, &total));
    printf("total %zu\n", total);
    for (int i = 0; i < 4; i++) {
        MUST(cu->cuMemAlloc(&address[i], 16 * MIB));
    }
    MUST(cu->cuMemGetInfo(&during, &total));
    printf("64 MiB taken: %zu MiB less\n", (before - during) / MIB);
    for (int i = 0; i < 4; i++) {
        MUST(cu->cuMemFree(address[i]));
    }
    MUST(cu->cuMemGetInfo(&after, &total));
    printf("given back: %zu less\n", before - after);
    SAY(cu->cuMemGetInfo(NULL, &total));
    return 0;
}

static void ask_all(CUdeviceptr address, CUdeviceptr start)
{
    CUcontext context = NULL;
    CUdeviceptr base = 0, range = 0;
    size_t bytes = 0, range_bytes = 0;
    unsigned type = 99;
    int device = -7;
    SAY(cu->cuMemGetAddressRange(&base, &bytes, address));
    printf("base %d, bytes %zu\n", base == start, bytes);
    SAY(cu->cuMemGetAddressRange(NULL, NULL, address));
    SAY(cu->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
    SAY(cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    SAY(cu->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
    SAY(cu->cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
    SAY(cu->cuPointerGetAttribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
    printf("context %d, type %u, device %d, range %d, %zu\n", context == primary, type, device, range == start, range_bytes);
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *data[] = {&context, &type, &device, &range_bytes};
    SAY(cu->cuPointerGetAttributes(4, attributes, data, address));
    printf("together: context %d, type %u, device %d, %zu\n", context == primary, type, device, range_bytes);
    SAY(cu->cuPointerGetAttributes(0, attributes, data, address));
}

static int behave_attributes(void)
{
    static const size_t sizes[] = {700, 100000, 5 * MIB + 3};
    CUmemGenericAllocationHandle handle;
    for (int i = 0; i < 3; i++) {
        CUdeviceptr address;
        MUST(cu->cuMemAlloc(&address, sizes[i]));
        ask_all(address, address);
        ask_all(address + sizes[i] - 1, address);
        SAY(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address));
        MUST(cu->cuMemFree(address));
        ask_all(address, address);
    }
    int host = 0;
    ask_all((CUdeviceptr)(uintptr_t)&host, 0);
    ask_all(0, 0);
    return 0;
}

/* ---- captures
 * ------------------------------------------------------------------------------------------------------------------------------ */

static int capture_with(CUstreamCaptureMode mode, bool allocate)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUdeviceptr before, inside = 0;
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cu->cuMemAlloc(&before, MIB));
    SAY(cu->cuStreamBeginCapture(stream, mode));
    SAY(cu->cuStreamBeginCapture(stream, mode));
    SAY(panel.touch(stream, before, MIB, 1));
    if (allocate) {
        SAY(cu->cuMemAlloc(&inside, 3 * MIB));
        SAY(panel.touch(stream, inside, MIB, 1));
    }
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        SAY(cu->cuGraphLaunch(exec, stream));
    }
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuGraphExecDestroy(exec));
    SAY(cu->cuGraphDestroy(graph));
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuMemFree(before));
    if (allocate) {
        SAY(cu->cuMemFree(inside));
    }
    SAY(cu->cuStreamDestroy(stream));
    return 0;
}

static void *allocate_beside(void *unused)
{
    CUdeviceptr address;
    (void)unused;
    SAY(cu->cuCtxSetCurrent(primary));
    SAY(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuMemFree(address));
    return NULL;
}

static int behave_capture(void)
{
    MUST(capture_with(CU_STREAM_CAPTURE_MODE_GLOBAL, false));
    MUST(capture_with(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false));
    MUST(capture_with(CU_STREAM_CAPTURE_MODE_RELAXED, true));

    CUstream stream;
    CUgraph graph = NULL;
    pthread_t thread;
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_create(&thread, NULL, allocate_beside, NULL);
    pthread_join(thread, NULL);
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuGraphDestroy(graph));

    /* one that the program breaks, and one whose stream goes */
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY(cu->cuStreamDestroy(stream));

    CUdeviceptr address;
    SAY(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuMemFree(address));
    return 0;
}

/* A program that asks for memory, and gives some back, in a capture that forbids it. */
static int behave_forbidden(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr address, before;
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(cu->cuMemAlloc(&before, MIB));
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cu->cuMemFree(before));
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuMemFree(address));
    return 0;
}

/* ---- contexts and devices
 * -------------------------------------------------------------------------------------------------------------------- */

static int behave_reset(void)
{
    size_t before, after, total;
    CUdeviceptr address[3];
    CUstream stream;
    MUST(cu->cuMemGetInfo(&before, &total));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            MUST(cu->cuMemAlloc(&address[i], (size_t)(i + 1) * MIB));
        }
        MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(panel.touch(stream, address[1], MIB, 1));
        MUST(cu->cuMemFree(address[2]));
        MUST(cu->cuStreamSynchronize(stream));
        SAY(cu->cuDevicePrimaryCtxReset(0));
        SAY(cu->cuMemFree(address[0]));
        SAY(cu->cuMemFree(address[2]));
        MUST(cu->cuMemGetInfo(&after, &total));
        printf("round %d: %zu less\n", round, before - after);
    }
    unsigned flags;
    int active = -1;
    MUST(cu->cuMemAlloc(&address[0], MIB));
    SAY(cu->cuDevicePrimaryCtxRelease(0));
    SAY(cu->cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active: %d\n", active);
    SAY(cu->cuDevicePrimaryCtxRelease(0));
    MUST(start());
    SAY(cu->cuMemFree(address[0]));
    SAY(cu->cuMemAlloc(&address[0], MIB));
    SAY(cu->cuMemFree(address[0]));
    return 0;
}

static int behave_contexts(void)
{
    size_t before, after, total;
    CUdeviceptr mine, theirs;
    CUcontext other;
    CUstream stream;
    MUST(cu->cuMemGetInfo(&before, &total));
    MUST(cu->cuMemAlloc(&mine, MIB));
    for (int round = 0; round < 3; round++) {
        MUST(cu->cuCtxCreate(&other, NULL, 0, 0));
        MUST(cu->cuMemAlloc(&theirs, 3 * MIB));
        MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(panel.touch(stream, theirs, 3 * MIB, 1));
        MUST(cu->cuStreamSynchronize(stream));
        CUcontext context = NULL;
        SAY(cu->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, theirs));
        printf("belongs to its context: %d\n", context == other);
        SAY(cu->cuCtxDestroy(other));
        SAY(cu->cuCtxSetCurrent(primary));
        SAY(cu->cuMemFree(theirs));
        SAY(cu->cuMemGetAddressRange(NULL, NULL, mine));
    }
    SAY(cu->cuMemFree(mine));
    MUST(cu->cuMemGetInfo(&after, &total));
    printf("%zu less\n", before - after);
    return 0;
}

static int behave_peer(void)
{
    CUcontext second;
    CUdeviceptr early, late;
    CUstream stream;
    MUST(cu->cuMemAlloc(&early, 3 * MIB));
    MUST(cu->cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cu->cuCtxSetCurrent(second));
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(panel.touch(stream, early, MIB, 0) != 0);
    SAY(cu->cuCtxEnablePeerAccess(primary, 0));
    SAY(cu->cuCtxEnablePeerAccess(primary, 0));
    SAY(panel.touch(stream, early, MIB, 0));
    MUST(cu->cuCtxSetCurrent(primary));
    MUST(cu->cuMemAlloc(&late, 3 * MIB));
    MUST(cu->cuCtxSetCurrent(second));
    SAY(panel.touch(stream, late, MIB, 1));
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuMemFree(late));
    SAY(cu->cuMemFree(early));
    return 0;
}

/* A copy from one device to another of a program that never enabled peer access. */
static int behave_between(void)
{
    CUcontext second;
    CUdeviceptr here, there;
    CUstream stream;
    MUST(cu->cuMemAlloc(&here, 3 * MIB));
    MUST(cu->cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cu->cuCtxSetCurrent(second));
    MUST(cu->cuMemAlloc(&there, 3 * MIB));
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 10; i++) {
        CUdeviceptr late;
        SAY(cu->cuMemcpyDtoDAsync(there, here, 3 * MIB, stream));
        SAY(cu->cuMemcpyDtoDAsync(here, there, 3 * MIB, stream));
        MUST(cu->cuCtxSetCurrent(primary));
        SAY(cu->cuMemAlloc(&late, 30 * MIB));
        MUST(cu->cuCtxSetCurrent(second));
        SAY(cu->cuMemcpyDtoDAsync(there, late + 20 * MIB, 3 * MIB, stream));
        SAY(cu->cuMemFree(late));
    }
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuMemFree(there));
    SAY(cu->cuMemFree(here));
    return 0;
}

/* ---- neighbours
 * ------------------------------------------------------------------------------------------------------------------------------- */

static int behave_sibling(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CUstream stream;
    MUST(cu->cuMemAlloc(&address, 200 * MIB));
    SAY(cu->cuMemCreate(&handle, 200 * MIB, &prop, 0));
    MUST(cu->cuMemFree(address));
    SAY(cu->cuMemCreate(&handle, 200 * MIB, &prop, 0));
    SAY(cu->cuMemRelease(handle));
    MUST(cu->cuMemAlloc(&address, 200 * MIB));
    MUST(cu->cuMemFree(address));
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(cu->cuMemAllocAsync(&address, 200 * MIB, stream));
    SAY(cu->cuMemFreeAsync(address, stream));
    return 0;
}

static int behave_ipc(void)
{
    CUdeviceptr address;
    CUipcMemHandle handle;
    MUST(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuIpcGetMemHandle(&handle, address));
    SAY(cu->cuIpcGetMemHandle(&handle, address));
    return 0;
}

/* ---- the life of a process
 * ------------------------------------------------------------------------------------------------------------------ */

static CUdeviceptr kept;

static void at_exit(void)
{
    SAY(cu->cuMemFree(kept));
    SAY(cu->cuMemFree(kept));
    fflush(stdout);
}

static int behave_exit(void)
{
    MUST(cu->cuMemAlloc(&kept, MIB));
    atexit(at_exit);
    exit(7);
}

static int behave_fork(void)
{
    CUdeviceptr address;
    MUST(cu->cuMemAlloc(&kept, MIB));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child: %d\n", cu->cuMemAlloc(&address, 3 * MIB));
        printf("child: %d\n", cu->cuMemFree(address));
        fflush(stdout);
        _exit(5);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    SAY(cu->cuMemAlloc(&address, MIB));
    SAY(cu->cuMemFree(address));
    SAY(cu->cuMemFree(kept));
    return 0;
}

/* ---- a steady loop
 * ----------------------------------------------------------------------------------------------------------------------------- */

/* Two streams that never wait for each other or for the host; each block is used on one of them and freed at once. */
static int steady(int rounds)
{
    static const size_t sizes[] = {600, 5000, 70000, MIB, 3 * MIB};
    enum { WARM = 2000 };
    CUstream streams[2];
    unsigned long long memory = 0, waits = 0;
    for (int i = 0; i < 2; i++) {
        MUST(cu->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr address;
        size_t bytes = sizes[i % 5];
        if (i == WARM) {
            memory = panel.calls(SIMCUDA_MEMORY);
            waits = panel.calls(SIMCUDA_HOST_SYNC);
        }
        MUST(cu->cuMemAlloc(&address, bytes));
        MUST(panel.touch(streams[i / 5 % 2], address, bytes, 1));
        MUST(cu->cuMemFree(address));
    }
    printf("# memory calls %llu\n", panel.calls(SIMCUDA_MEMORY) - memory);
    printf("# host waits %llu\n", panel.calls(SIMCUDA_HOST_SYNC) - waits);
    printf("# order calls %llu\n", (unsigned long long)panel.calls(SIMCUDA_ORDER));
    return 0;
}

static int behave_steady(void) { return steady(100000); }
static int behave_steady_short(void) { return steady(10000); }

/* ---- threads, and ends without waiting
 * ------------------------------------------------------------------------------------------------------ */

typedef struct worker {
    unsigned seed;
    int failures;
} worker;

/* Each thread works on a stream of its own, which it changes for a new one now and then, and frees blocks of others. */
static void *work(void *argument)
{
    static CUdeviceptr shared[64];
    static size_t lengths[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    worker *self = argument;
    CUstream stream = NULL;
    self->failures += cu->cuCtxSetCurrent(primary) != 0;
    self->failures += cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != 0;
    for (int i = 0; i < 2000; i++) {
        unsigned place = (unsigned)rand_r(&self->seed) % 64;
        CUdeviceptr fresh = 0;
        size_t bytes = (size_t)512 << rand_r(&self->seed) % 11;
        self->failures += cu->cuMemAlloc(&fresh, bytes) != 0;
        self->failures += panel.touch(stream, fresh, bytes, 1) != 0;
        pthread_mutex_lock(&lock);
        CUdeviceptr old = shared[place];
        size_t old_bytes = lengths[place];
        shared[place] = fresh;
        lengths[place] = bytes;
        pthread_mutex_unlock(&lock);
        if (old) {
            CUdeviceptr base;
            size_t length = 0;
            self->failures += cu->cuMemGetAddressRange(&base, &length, old + old_bytes / 2) != 0 || base != old || length != old_bytes;
            self->failures += cu->cuMemFree(old) != 0;
        }
        if (i % 50 == 49) {
            self->failures += cu->cuStreamDestroy(stream) != 0;
            self->failures += cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != 0;
        }
    }
    self->failures += cu->cuStreamDestroy(stream) != 0;
    return NULL;
}

static int behave_threads(void)
{
    pthread_t threads[4];
    worker workers[4];
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (worker){.seed = i + 1};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        printf("thread %u: %d failures\n", i, workers[i].failures);
    }
    return 0;
}

/* Contexts, streams and the device are given up while the device still works for them; what comes after must not get in its way. */
static int behave_ends(void)
{
    CUcontext other;
    CUdeviceptr block;
    CUstream stream, after;
    MUST(cu->cuStreamCreate(&after, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 20; round++) {
        MUST(cu->cuCtxCreate(&other, NULL, 0, 0));
        MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cu->cuMemAlloc(&block, 3 * MIB));
        MUST(panel.touch(stream, block, 3 * MIB, 1));
        if (round % 3 == 1) {
            MUST(cu->cuMemFree(block));
        }
        if (round % 3 == 2) {
            MUST(cu->cuStreamDestroy(stream));
        }
        SAY(cu->cuCtxDestroy(other));
        MUST(cu->cuCtxSetCurrent(primary));
        for (int i = 0; i < 4; i++) {
            MUST(cu->cuMemAlloc(&block, 3 * MIB));
            MUST(panel.touch(after, block, 3 * MIB, 1));
            MUST(cu->cuMemFree(block));
        }
    }
    MUST(cu->cuMemAlloc(&block, 3 * MIB));
    MUST(panel.touch(after, block, 3 * MIB, 1));
    SAY(cu->cuDevicePrimaryCtxReset(0));
    MUST(cu->cuMemAlloc(&block, 3 * MIB));
    MUST(cu->cuMemFree(block));
    return 0;
}

/* Memory without a stream is given back in the order of one, and of a thread's own default stream. */
static int behave_ordered(void)
{
    CUstream first, second;
    CUdeviceptr block;
    MUST(cu->cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    MUST(cu->cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 200; i++) {
        CUstream stream = i % 2 ? first : second;
        size_t bytes = (size_t)(1 + i % 5) * MIB;
        MUST(cu->cuMemAlloc(&block, bytes));
        MUST(panel.touch(stream, block, bytes, 1));
        MUST(cu->cuMemFreeAsync(block, stream));
    }
    SAY(cu->cuMemFreeAsync(block, first) != 0);
    return 0;
}

/* ---- memory in the order of a stream, and memory pools
 * ------------------------------------------------------------------------------------- */

static int ask_of_ordered(CUdeviceptr address, CUmemoryPool expected)
{
    CUcontext context = primary;
    CUmemoryPool pool = NULL;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    SAY(cu->cuMemGetAddressRange(&base, &bytes, address + 100));
    printf("base %d, bytes %zu\n", base == address, bytes);
    SAY(cu->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
    SAY(cu->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
    printf("no context %d, its pool %d\n", context == NULL, pool == expected);
    return 0;
}

static int use_pool(CUmemoryPool pool, CUmemoryPool preset, CUstream first, CUstream second)
{
    CUdeviceptr block;
    SAY(cu->cuMemAllocFromPoolAsync(&block, 3 * MIB, pool, first));
    ask_of_ordered(block, pool);
    SAY(panel.touch(first, block, 3 * MIB, 1));
    SAY(cu->cuMemFreeAsync(block, first));
    SAY(cu->cuMemFreeAsync(block, first));
    SAY(cu->cuMemAllocFromPoolAsync(&block, 5120, preset, second));
    ask_of_ordered(block, preset);
    SAY(cu->cuStreamSynchronize(second));
    SAY(cu->cuMemFree(block));
    SAY(cu->cuMemFree(block));
    SAY(cu->cuMemAllocFromPoolAsync(&block, 0, pool, first));
    SAY(cu->cuMemAllocFromPoolAsync(&block, 512, NULL, first));
    SAY(cu->cuMemAllocAsync(NULL, 512, first));
    SAY(cu->cuMemAllocAsync(&block, (size_t)1 << 40, first));
    return 0;
}

/* Memory that a graph owns. */
static int capture_ordered(CUstream stream)
{
    CUdeviceptr block;
    CUgraph graph = NULL;
    CUgraphExec exec;
    SAY(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cu->cuMemAllocAsync(&block, MIB, stream));
    SAY(panel.touch(stream, block, MIB, 1));
    SAY(cu->cuMemFreeAsync(block, stream));
    SAY(cu->cuStreamEndCapture(stream, &graph));
    SAY(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    SAY(cu->cuGraphLaunch(exec, stream));
    SAY(cu->cuStreamSynchronize(stream));
    SAY(cu->cuGraphExecDestroy(exec));
    SAY(cu->cuGraphDestroy(graph));
    return 0;
}

static int behave_async(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool, preset;
    CUstream streams[2], other;
    CUcontext second;
    CUdeviceptr block;
    for (int i = 0; i < 2; i++) {
        MUST(cu->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    MUST(cu->cuDeviceGetDefaultMemPool(&preset, 0));
    MUST(cu->cuMemPoolCreate(&pool, &props));
    MUST(use_pool(pool, preset, streams[0], streams[1]));
    MUST(capture_ordered(streams[0]));
    for (int i = 0; i < 300; i++) { /* each stream reuses its own at once, the other's behind it */
        size_t bytes = (size_t)(1 + i % 7) * MIB;
        MUST(cu->cuMemAllocAsync(&block, bytes, streams[i / 3 % 2]));
        MUST(panel.touch(streams[i / 3 % 2], block, bytes, 1));
        MUST(cu->cuMemFreeAsync(block, streams[i / 3 % 2]));
    }
    /* another device uses it */
    SAY(cu->cuMemPoolSetAccess(pool, &access, 1));
    SAY(cu->cuMemAllocFromPoolAsync(&block, MIB, pool, streams[0]));
    SAY(cu->cuStreamSynchronize(streams[0]));
    MUST(cu->cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cu->cuCtxSetCurrent(second));
    MUST(cu->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    SAY(panel.touch(other, block, MIB, 1));
    SAY(cu->cuStreamSynchronize(other));
    MUST(cu->cuCtxSetCurrent(primary));
    SAY(cu->cuMemPoolTrimTo(pool, 0));
    SAY(cu->cuMemPoolDestroy(pool)); /* the block lives on */
    SAY(cu->cuMemFreeAsync(block, streams[0]));
    for (int i = 0; i < 2; i++) {
        SAY(cu->cuStreamDestroy(streams[i]));
    }
    printf("# ordered requests %llu\n",
           (unsigned long long)(panel.calls_of("cuMemAllocAsync") + panel.calls_of("cuMemAllocFromPoolAsync")));
    return 0;
}

/* ---- pinned host memory ----------------------------------------------------------------------------------------------------------------
 */

static void say_pinned(const char *what, char *at)
{
    unsigned flags = 99;
    int type = 0;
    CUdeviceptr device = 0, start = 0;
    size_t range = 0;
    printf("%s: flags %d", what, cu->cuMemHostGetFlags(&flags, at));
    printf(" %u", flags);
    printf(", device pointer %d", cu->cuMemHostGetDevicePointer(&device, at, 0));
    printf(" same %d", device == (CUdeviceptr)(uintptr_t)at);
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *data[] = {&type, &start, &range};
    printf(", attributes %d", cu->cuPointerGetAttributes(3, wanted, data, (CUdeviceptr)(uintptr_t)at));
    printf(" type %d offset %lld bytes %zu\n", type, start ? (long long)((CUdeviceptr)(uintptr_t)at - start) : -1, range);
}

static int behave_pinned(void)
{
    static const size_t sizes[] = {1, 4096, 100000, MIB, 3 * MIB + 5};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    void *blocks[COUNT][2], *none = &none;
    CUstream stream;
    CUdeviceptr on_device;
    MUST(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cu->cuMemAlloc(&on_device, 4 * MIB));
    for (int i = 0; i < COUNT; i++) {
        MUST(cu->cuMemHostAlloc(&blocks[i][0], sizes[i], i % 3 == 2 ? CU_MEMHOSTALLOC_WRITECOMBINED : CU_MEMHOSTALLOC_PORTABLE));
        MUST(cu->cuMemAllocHost(&blocks[i][1], sizes[i]));
        printf("aligned %d\n", (uintptr_t)blocks[i][0] % 4096 == 0 && (uintptr_t)blocks[i][1] % 4096 == 0);
        say_pinned("start", blocks[i][0]);
        say_pinned("inside", (char *)blocks[i][1] + sizes[i] - 1);
    }
    SAY(cu->cuMemFree((CUdeviceptr)(uintptr_t)blocks[1][0]));
    SAY(cu->cuMemFreeHost((char *)blocks[1][0] + 8));
    SAY(cu->cuMemHostAlloc(&none, 4096, 0x80));
    SAY(cu->cuMemHostAlloc(&none, 0, 0));
    SAY(cu->cuMemHostAlloc(NULL, 4096, 0));
    for (int round = 0; round < 200; round++) {
        void *passing;
        MUST(cu->cuMemHostAlloc(&passing, sizes[round % COUNT], 0));
        memset(passing, round, sizes[round % COUNT]);
        MUST(cu->cuMemcpyHtoDAsync(on_device, passing, sizes[round % COUNT], stream));
        MUST(cu->cuStreamSynchronize(stream));
        MUST(cu->cuMemFreeHost(passing));
    }
    for (int i = 0; i < COUNT - 1; i++) {
        SAY(cu->cuMemFreeHost(blocks[i][0]));
        SAY(cu->cuMemFreeHost(blocks[i][1]));
        SAY(cu->cuMemFreeHost(blocks[i][1]));
    }
    SAY(cu->cuMemFree(on_device));
    MUST(cu->cuStreamDestroy(stream));
    SAY(cu->cuDevicePrimaryCtxReset(0)); /* the last ones go with the context */
    simcuda_census census;
    panel.count_objects(0, &census);
    printf("pinned bytes left: %llu\n", (unsigned long long)census.pinned_bytes);
    printf("# pinned requests %llu\n", (unsigned long long)(panel.calls_of("cuMemHostAlloc") + panel.calls_of("cuMemAllocHost_v2")));
    return 0;
}

static const struct {
    const char *name;
    int (*behave)(void);
} behaviours[] = {
    {"malloc", behave_malloc},
    {"free", behave_free},
    {"pitch", behave_pitch},
    {"info", behave_info},
    {"attributes", behave_attributes},
    {"capture", behave_capture},
    {"forbidden", behave_forbidden},
    {"reset", behave_reset},
    {"contexts", behave_contexts},
    {"peer", behave_peer},
    {"between", behave_between},
    {"sibling", behave_sibling},
    {"ipc", behave_ipc},
    {"exit", behave_exit},
    {"fork", behave_fork},
    {"steady", behave_steady},
    {"steady_short", behave_steady_short},
    {"threads", behave_threads},
    {"ends", behave_ends},
    {"ordered", behave_ordered},
    {"async", behave_async},
    {"pinned", behave_pinned},
};

int client_behave(const client_driver *driver, const char *behaviour)
{
    cu = driver;
    find_panel();
    for (size_t i = 0; i < sizeof behaviours / sizeof *behaviours; i++) {
        if (strcmp(behaviours[i].name, behaviour) == 0) {
            int status = start();
            if (status == 0) {
                status = behaviours[i].behave();
            }
            say_counts();
            return status;
        }
    }
    fprintf(stderr, "there is no behaviour '%s'\n", behaviour);
    return 2;
}
