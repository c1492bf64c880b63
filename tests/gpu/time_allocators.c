/*
 * The same requests made of the library, of cudaMallocAsync (the driver's pool, told to keep what it has) and of cuMemAlloc, in one run on
 * one device: pairs by size, a random mix, and two threads. Nothing uses the memory. Part "allocators" of tools/gpu-check.sh.
 */
#include "gpu_pool.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct allocator {
    const char *name;
    int (*take)(void **block, size_t bytes, CUstream stream);
    int (*give)(void *block, CUstream stream);
    unsigned slower; /* it gets one in so many of the requests */
} allocator;

static cmpool_t pool;

static int pool_take(void **block, size_t bytes, CUstream stream) { return cmpool_malloc(pool, block, bytes, stream); }
static int pool_give(void *block, CUstream stream) { return cmpool_free(pool, block, stream); }

static int async_take(void **block, size_t bytes, CUstream stream)
{
    CUdeviceptr address = 0;
    int code = cu.MemAllocAsync(&address, bytes, stream);
    *block = (void *)(uintptr_t)address;
    return code;
}
static int async_give(void *block, CUstream stream) { return cu.MemFreeAsync((CUdeviceptr)(uintptr_t)block, stream); }

static int plain_take(void **block, size_t bytes, CUstream stream)
{
    CUdeviceptr address = 0;
    int code = cu.MemAlloc(&address, bytes);
    (void)stream;
    *block = (void *)(uintptr_t)address;
    return code;
}
static int plain_give(void *block, CUstream stream)
{
    (void)stream;
    return cu.MemFree((CUdeviceptr)(uintptr_t)block);
}

static const allocator allocators[] = {
    {"libcudamempool", pool_take, pool_give, 1},
    {"cudaMallocAsync", async_take, async_give, 10},
    {"cuMemAlloc", plain_take, plain_give, 1000},
};

/* The driver's pool gives back what is free at each synchronisation, unless it is told to keep it. */
static bool keep_driver_pool(CUmemoryPool *driver_pool)
{
    uint64_t everything = UINT64_MAX;
    return cu.MemAllocAsync && gpu_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) &&
           cu.DeviceGetDefaultMemPool(driver_pool, 0) == CUDA_SUCCESS &&
           cu.MemPoolSetAttribute(*driver_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything) == CUDA_SUCCESS;
}

/* Each allocator by turns, with the device's memory to itself. */
static void each_allocator(void (*run)(const allocator *of))
{
    CUmemoryPool driver_pool = NULL;
    size_t released;
    bool has_driver_pool = keep_driver_pool(&driver_pool);
    DONE(pool_make(&pool, ""));
    run(&allocators[0]);
    DONE(cmpool_trim(pool, 0, &released));
    if (has_driver_pool) {
        run(&allocators[1]);
        MUST(cu.CtxSynchronize());
        MUST(cu.MemPoolTrimTo(driver_pool, 0));
    }
    run(&allocators[2]);
    pool_end(pool);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------------------------------
 */

/* Nanoseconds a pair; below 0 if a call fails. */
static double pairs(const allocator *of, CUstream stream, size_t bytes, unsigned count)
{
    double start = gpu_now_us();
    void *block;
    for (unsigned i = 0; i < count; i++)
        if (of->take(&block, bytes, stream) != 0 || of->give(block, stream) != 0)
            return -1;
    return (gpu_now_us() - start) * 1e3 / count;
}

static void pair_with(const allocator *of)
{
    static const size_t sizes[] = {512, 4096, 64 << 10, MIB, 16 * MIB, 64 * MIB};
    CUstream stream = gpu_stream();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[80];
        unsigned count = (gpu_simulated ? 2000 : 1000000) / of->slower;
        double warm = pairs(of, stream, sizes[i], count / 10 + 1), ns = pairs(of, stream, sizes[i], count);
        EXPECT(warm >= 0 && ns >= 0, "%s refuses %zu bytes", of->name, sizes[i]);
        snprintf(name, sizeof name, "pair of %zu bytes: %s", sizes[i], of->name);
        gpu_figure(name, ns, "ns", "mean of %u", count);
    }
}

static void pair(void) { each_allocator(pair_with); }

/* ---- single calls -----------------------------------------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Each call timed, both kinds together. What the clock itself costs is told and not taken off. */
static void latency_with(const allocator *of)
{
    CUstream stream = gpu_stream();
    char name[80];
    unsigned count = (gpu_simulated ? 2000 : 1000000) / of->slower + 100;
    float *ns = calloc(2 * (size_t)count, sizeof *ns), timer = 1e9f;
    EXPECT(ns, "no host memory");
    bool fine = pairs(of, stream, 4096, 100) >= 0;
    for (unsigned i = 0; i < count && fine; i++) {
        void *block;
        double start = gpu_now_us();
        fine = of->take(&block, 4096, stream) == 0;
        double middle = gpu_now_us();
        fine = fine && of->give(block, stream) == 0;
        ns[2 * i] = (float)((middle - start) * 1e3);
        ns[2 * i + 1] = (float)((gpu_now_us() - middle) * 1e3);
    }
    for (unsigned i = 0; i < 1000; i++) {
        double start = gpu_now_us();
        float cost = (float)((gpu_now_us() - start) * 1e3);
        timer = cost < timer ? cost : timer;
    }
    size_t calls = 2 * (size_t)count;
    qsort(ns, calls, sizeof *ns, by_value);
    snprintf(name, sizeof name, "99.9 %% of calls for 4096 bytes: %s", of->name);
    if (fine)
        gpu_figure(name, (double)ns[calls * 999 / 1000], "ns",
                   "at most; half of them %.0f, 99 %% %.0f, the worst of %zu %.0f; the clock takes %.0f", (double)ns[calls / 2],
                   (double)ns[calls * 99 / 100], calls, (double)ns[calls - 1], (double)timer);
    else
        gpu_fail("%s refuses", of->name);
    free(ns);
}

static void latency(void) { each_allocator(latency_with); }

/* ---- mix --------------------------------------------------------------------------------------------------------------------------------
 */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Log-uniform from 512 bytes to 16 MiB. */
static size_t draw_size(uint64_t *state)
{
    double unit = (double)(draw(state) >> 11) * 0x1p-53;
    return (size_t)(512.0 * pow((double)(16 * MIB) / 512.0, unit));
}

/* One step gives a block drawn at random back and asks for one of another size; ns a step. */
static double steps(const allocator *of, CUstream stream, void **blocks, unsigned live, unsigned count)
{
    enum { SIZES = 4096 };
    static size_t sizes[SIZES];
    uint64_t state = 88172645463325252u;
    for (unsigned i = 0; i < SIZES; i++)
        sizes[i] = draw_size(&state);
    for (unsigned i = 0; i < live; i++)
        if (of->take(&blocks[i], sizes[i % SIZES], stream) != 0)
            return -1;
    double start = gpu_now_us();
    for (unsigned i = 0; i < count; i++) {
        void **block = &blocks[draw(&state) % live];
        if (of->give(*block, stream) != 0 || of->take(block, sizes[draw(&state) % SIZES], stream) != 0)
            return -1;
    }
    double ns = (gpu_now_us() - start) * 1e3 / count;
    for (unsigned i = 0; i < live; i++)
        if (of->give(blocks[i], stream) != 0)
            return -1;
    return ns;
}

static void mix_with(const allocator *of)
{
    enum { LIVE = 1000 };
    static void *blocks[LIVE];
    CUstream stream = gpu_stream();
    char name[80];
    unsigned live = gpu_simulated ? 100 : LIVE, count = (gpu_simulated ? 2000 : 500000) / of->slower + 100;
    double warm = steps(of, stream, blocks, live, count / 2), ns = steps(of, stream, blocks, live, count);
    EXPECT(warm >= 0 && ns >= 0, "%s refuses", of->name);
    snprintf(name, sizeof name, "mix of %u live blocks: %s", live, of->name);
    gpu_figure(name, ns, "ns", "a step: one given back, one taken; mean of %u", count);
}

static void mix(void)
{
    if (!gpu_simulated && gpu_free_bytes() < 6 * GIB)
        gpu_skip("too little free memory: %zu MiB", gpu_free_bytes() >> 20);
    else
        each_allocator(mix_with);
}

/* ---- threads ----------------------------------------------------------------------------------------------------------------------------
 */

typedef struct worker {
    pthread_t thread;
    const allocator *of;
    CUstream stream;
    double ns;
} worker;

static void *work(void *argument)
{
    worker *me = argument;
    unsigned count = (gpu_simulated ? 2000 : 500000) / me->of->slower + 1;
    if (cu.CtxSetCurrent(gpu_context) == CUDA_SUCCESS && pairs(me->of, me->stream, 4096, count / 10 + 1) >= 0)
        me->ns = pairs(me->of, me->stream, 4096, count);
    else
        me->ns = -1;
    return NULL;
}

static void threads_with(const allocator *of)
{
    enum { COUNT = 4 };
    worker workers[COUNT];
    double sum = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        workers[i] = (worker){.of = of, .stream = gpu_stream()};
        EXPECT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < COUNT; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        EXPECT(workers[i].ns >= 0, "%s refuses", of->name);
        sum += workers[i].ns;
    }
    char name[100];
    snprintf(name, sizeof name, "pair of 4096 bytes, %d threads with streams of their own: %s", COUNT, of->name);
    gpu_figure(name, sum / COUNT, "ns", "mean of a thread");
}

static void threads(void) { each_allocator(threads_with); }

static const gpu_case cases[] = {
    {"pair", pair, false},
    {"latency", latency, false},
    {"mix", mix, false},
    {"threads", threads, false},
};
GPU_MAIN(cases)
