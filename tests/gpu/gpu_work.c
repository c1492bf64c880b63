/*
 * Owns what the checks have the device do: kernels, gates that hold a stream, contents written and looked at. Gates and checks may be made
 * by several threads at once: numbers are taken atomically, the simulated device's list under list_lock. Called by the check programs.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern const char gpu_kernels_text[], gpu_dependent_text[]; /* kernels.ptx, dependent.ptx */

enum { THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8 };

static CUfunction gate_kernel, spin_kernel, fill_kernel, verify_kernel, fill_late_kernel, verify_after_kernel;
static CUdeviceptr wrong_words; /* one word that all checks add to */

typedef struct gate_words { /* what the gate kernel reads and writes */
    uint32_t open, gave_up;
} gate_words;
static volatile gate_words *gates; /* pinned */
static CUdeviceptr gates_on_device;
static int gate_count;

/* The simulated device: gates of its own, and checks as copies that are compared later. They go into memory that is there from the start,
 * since to ask for some would break a capture. */
enum { COPIES = 20000 };
#define COPY_BYTES (512 * MIB)
static int (*simulated_gate_close)(void *stream);
static void (*simulated_gate_open)(int gate);
static int simulated_gate[GPU_GATES];
static struct copies {
    char *room;
    size_t used, count;
    struct {
        uint32_t *words, seed;
        size_t count;
    } copy[COPIES];
} copies;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

#define WORK(call)                                          \
    do {                                                    \
        CUresult code_ = (call);                            \
        if (code_ != CUDA_SUCCESS)                          \
            gpu_fail("%s gave %s", #call, gpu_code(code_)); \
    } while (0)

/* ---- start -------------------------------------------------------------------------------------------------------------------------- */

static bool load(const char *text, const char *const *names, CUfunction **functions, size_t count)
{
    CUmodule module;
    CUresult code = cu.ModuleLoadData(&module, text);
    for (size_t i = 0; code == CUDA_SUCCESS && i < count; i++)
        code = cu.ModuleGetFunction(functions[i], module, names[i]);
    if (code != CUDA_SUCCESS)
        gpu_fail("the driver does not take the kernels: %s", gpu_code(code));
    return code == CUDA_SUCCESS;
}

static void find(const char *name, void *pointer)
{
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found = library ? dlsym(library, name) : NULL;
    memcpy(pointer, &found, sizeof found);
}

static void start_on_device(void)
{
    static const char *const names[] = {"gate", "spin", "fill", "verify"};
    static const char *const dependent_names[] = {"fill_late", "verify_after"};
    CUfunction *functions[] = {&gate_kernel, &spin_kernel, &fill_kernel, &verify_kernel};
    CUfunction *dependent[] = {&fill_late_kernel, &verify_after_kernel};
    void *host = NULL;
    if (!load(gpu_kernels_text, names, functions, 4))
        return;
    if (gpu_capability >= 90 && gpu_driver_version >= 11080 && cu.LaunchKernelEx &&
        !load(gpu_dependent_text, dependent_names, dependent, 2))
        return;
    MUST(cu.MemHostAlloc(&host, GPU_GATES * sizeof(gate_words), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cu.MemHostGetDevicePointer(&gates_on_device, host, 0));
    memset(host, 0, GPU_GATES * sizeof(gate_words));
    gates = host;
    MUST(cu.MemAlloc(&wrong_words, THREADS * sizeof(uint32_t)));
    MUST(cu.MemsetD32Async(wrong_words, 0, THREADS, NULL));

    /* Each kernel once, so that none is loaded for the first time while another one waits. */
    CUstream stream = gpu_stream();
    gpu_gate_open(gpu_gate_close(stream, 0));
    gpu_spin(stream, 0);
    MUST(cu.CtxSynchronize()); /* the memset has no order with this stream */
    const void *scratch = (const void *)(uintptr_t)(wrong_words + sizeof(uint32_t));
    gpu_fill(stream, scratch, 64 * sizeof(uint32_t), 1);
    gpu_check(stream, scratch, 64 * sizeof(uint32_t), 1);
    if (fill_late_kernel)
        gpu_dependent_launch(stream, scratch, scratch, 64 * sizeof(uint32_t), 3, true);
    uint64_t right = gpu_wrong_words();
    gpu_fill(stream, scratch, 64 * sizeof(uint32_t), 1);
    gpu_check(stream, scratch, 64 * sizeof(uint32_t), 2);
    uint64_t wrong = gpu_wrong_words();
    EXPECT(right == 0 && wrong == 64, "the kernels that check contents do not work: %llu and %llu words", (unsigned long long)right,
           (unsigned long long)wrong);
}

static void start_simulated(void)
{
    void *host = NULL;
    find("simcuda_gate_close", &simulated_gate_close);
    find("simcuda_gate_open", &simulated_gate_open);
    MUST(cu.MemHostAlloc(&host, COPY_BYTES, CU_MEMHOSTALLOC_PORTABLE));
    copies.room = host;
}

void gpu_work_start(void)
{
    if (gpu_simulated)
        start_simulated();
    else
        start_on_device();
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------ */

static unsigned blocks_for(size_t words)
{
    size_t most = (size_t)gpu_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) * BLOCKS_PER_MULTIPROCESSOR;
    size_t wanted = (words + THREADS - 1) / THREADS;
    return (unsigned)(wanted < most ? wanted : most);
}

static CUresult launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, void **arguments)
{
    return cu.LaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

void gpu_fill(CUstream stream, const void *address, size_t bytes, uint32_t seed)
{
    uint64_t at = (uintptr_t)address, words = bytes / sizeof(uint32_t);
    void *arguments[] = {&at, &words, &seed};
    if (words == 0)
        return;
    if (gpu_simulated)
        WORK(cu.MemsetD32Async(at, seed, words, stream));
    else
        WORK(launch(fill_kernel, blocks_for(words), THREADS, stream, arguments));
}

static void check_by_copy(CUstream stream, CUdeviceptr address, size_t words, uint32_t seed)
{
    size_t bytes = words * sizeof(uint32_t);
    uint32_t *to = NULL;
    pthread_mutex_lock(&list_lock);
    if (copies.count < COPIES && bytes <= COPY_BYTES - copies.used) {
        to = (uint32_t *)(void *)(copies.room + copies.used);
        copies.copy[copies.count].words = to;
        copies.copy[copies.count].seed = seed;
        copies.copy[copies.count++].count = words;
        copies.used += bytes;
    }
    pthread_mutex_unlock(&list_lock);
    if (!to)
        gpu_fail("no room for the copies of so many checks");
    else
        WORK(cu.MemcpyDtoHAsync(to, address, bytes, stream));
}

void gpu_check(CUstream stream, const void *address, size_t bytes, uint32_t seed)
{
    uint64_t at = (uintptr_t)address, words = bytes / sizeof(uint32_t), wrong = wrong_words;
    void *arguments[] = {&at, &words, &seed, &wrong};
    if (words == 0)
        return;
    if (gpu_simulated)
        check_by_copy(stream, at, words, seed);
    else
        WORK(launch(verify_kernel, blocks_for(words), THREADS, stream, arguments));
}

static uint64_t compare_copies(void)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < copies.count; i++)
        for (size_t j = 0; j < copies.copy[i].count; j++)
            wrong += copies.copy[i].words[j] != copies.copy[i].seed;
    copies.count = copies.used = 0;
    return wrong;
}

uint64_t gpu_wrong_words(void)
{
    uint32_t wrong = 0;
    WORK(cu.CtxSynchronize());
    if (gpu_simulated)
        return compare_copies();
    WORK(cu.MemcpyDtoH(&wrong, wrong_words, sizeof wrong));
    WORK(cu.MemsetD32Async(wrong_words, 0, 1, NULL));
    WORK(cu.CtxSynchronize());
    return wrong;
}

void gpu_spin(CUstream stream, uint64_t nanoseconds)
{
    void *arguments[] = {&nanoseconds};
    if (!gpu_simulated)
        WORK(launch(spin_kernel, 1, 1, stream, arguments));
}

/* ---- gates -------------------------------------------------------------------------------------------------------------------------- */

int gpu_gate_close(CUstream stream, uint64_t patience_ns)
{
    int gate = __atomic_fetch_add(&gate_count, 1, __ATOMIC_RELAXED);
    if (gate >= GPU_GATES) {
        gpu_fail("too many gates");
        return GPU_GATES - 1;
    }
    uint64_t words = gates_on_device + (uint64_t)gate * sizeof(gate_words);
    void *arguments[] = {&words, &patience_ns};
    if (gpu_simulated)
        simulated_gate[gate] = simulated_gate_close(stream);
    else
        WORK(launch(gate_kernel, 1, 1, stream, arguments));
    return gate;
}

void gpu_gate_open(int gate)
{
    if (gpu_simulated)
        simulated_gate_open(simulated_gate[gate]);
    else
        __atomic_store_n(&gates[gate].open, 1, __ATOMIC_SEQ_CST);
}

bool gpu_gate_gave_up(int gate) { return !gpu_simulated && gates[gate].gave_up != 0; }

/* ---- dependent launches ------------------------------------------------------------------------------------------------------------- */

bool gpu_dependent_launch(CUstream stream, const void *to, const void *from, size_t bytes, uint32_t seed, bool waits)
{
    uint64_t target = (uintptr_t)to, source = (uintptr_t)from, words = bytes / sizeof(uint32_t), late_ns = 20000, wrong = wrong_words;
    void *first[] = {&target, &words, &seed, &late_ns}, *second[] = {&source, &words, &seed, &wrong};
    if (!fill_late_kernel)
        return false;
    CUlaunchAttribute early = {.id = GPU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION, .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = blocks_for(words),
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &early,
                             .numAttrs = 1};
    WORK(launch(fill_late_kernel, config.gridDimX, THREADS, stream, first));
    WORK(cu.LaunchKernelEx(&config, waits ? verify_after_kernel : verify_kernel, second, NULL));
    return true;
}
