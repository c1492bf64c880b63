/*
 * What interposition costs: a look-up of a symbol that is not the driver's, and a pair of cuMemAlloc and cuMemFree against the same pair of
 * the library's own calls. Prints both; exits with 1 where a look-up costs more than half again as much. Run with LD_PRELOAD.
 */
#include "driver/driver_abi.h"

#include <cudamempool/cudamempool.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LOOK_UPS = 20000, PAIRS = 20000, REPEATS = 40 };

CUresult CUDAAPI cuInit(unsigned flags);
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context);
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context);
CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address);

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

/* The best of several runs of two things in turn, in nanoseconds each. */
static void best(void (*run)(void *), void *first, void *second, int times, double least[2])
{
    least[0] = least[1] = 1e18;
    for (int i = 0; i < 2 * REPEATS; i++) {
        double start = now();
        run(i % 2 ? second : first);
        double each = (now() - start) / times;
        least[i % 2] = each < least[i % 2] ? each : least[i % 2];
    }
}

typedef void *(*look_up_function)(void *, const char *);

static void look_up(void *function)
{
    look_up_function find = *(look_up_function *)function;
    for (int i = 0; i < LOOK_UPS; i++) {
        if (!find(RTLD_DEFAULT, "strtol")) {
            return;
        }
    }
}

/* NULL: through the driver's names; else the pool itself. */
static void pairs(void *pool)
{
    CUdeviceptr address;
    void *block;
    for (int i = 0; i < PAIRS; i++) {
        if (!pool && cuMemAlloc_v2(&address, 4096) == CUDA_SUCCESS) {
            (void)cuMemFree_v2(address);
        } else if (pool && cmpool_malloc_unordered(*(cmpool_t *)pool, &block, 4096) == CMPOOL_OK) {
            (void)cmpool_free_unordered(*(cmpool_t *)pool, block);
        }
    }
}

/* A pair asks the driver twice which context is current. */
static void questions(void *unused)
{
    (void)unused;
    CUcontext context;
    for (int i = 0; i < PAIRS; i++) {
        (void)cuCtxGetCurrent(&context);
        (void)cuCtxGetCurrent(&context);
    }
}

int main(void)
{
    void *c_library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *found = c_library ? dlvsym(c_library, "dlsym", "GLIBC_2.34") : NULL;
    look_up_function original, ours = (look_up_function)dlsym;
    if (!found) {
        printf("this C library has its dlsym elsewhere\n");
        return 77;
    }
    memcpy(&original, &found, sizeof found);
    double look_ups[2], pair[2], asked[2];
    best(look_up, &original, &ours, LOOK_UPS, look_ups);
    printf("dlsym of another symbol: %.1f ns, interposed %.1f ns, ratio %.2f\n", look_ups[0], look_ups[1], look_ups[1] / look_ups[0]);

    CUcontext context;
    cmpool_t pool;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cmpool_create(&pool, NULL)) {
        return 3;
    }
    best(pairs, &pool, NULL, PAIRS, pair);
    best(questions, NULL, NULL, PAIRS, asked);
    printf("malloc and free: %.0f ns, interposed %.0f ns, %.0f ns more, of which the driver's cuCtxGetCurrent %.0f ns\n", pair[0], pair[1],
           pair[1] - pair[0], asked[0]);
    return look_ups[1] > 1.5 * look_ups[0];
}
