/*
 * What interposition costs: a look-up of a symbol that is not the driver's, and a pair of cuMemAlloc and cuMemFree against the same pair of
 * the library's own calls. Prints both; exits with 1 where a look-up costs more than half again as much. `cost interposed N` and
 * `cost own N` make N pairs, to be counted in instructions. Run with LD_PRELOAD.
 */
#include "driver/driver_abi.h"
#include "simcuda.h"

#include <cudamempool/cudamempool.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_UPS = 20000, PAIRS = 20000, REPEATS = 40, BYTES = 4096 };

static int pair_count = PAIRS;

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

typedef struct timed {
    void (*run)(void *);
    void *data;
    double least; /* nanoseconds */
} timed;

/* The best of several runs of some things in turn, in nanoseconds each. */
static void best(timed *all, int count, int times)
{
    for (int i = 0; i < count * REPEATS; i++) {
        timed *now_timed = &all[i % count];
        double start = now();
        now_timed->run(now_timed->data);
        double each = (now() - start) / times;
        now_timed->least = i < count || each < now_timed->least ? each : now_timed->least;
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

/* Through the driver's names. */
static void interposed_pairs(void *unused)
{
    CUdeviceptr address;
    (void)unused;
    for (int i = 0; i < pair_count; i++) {
        if (cuMemAlloc_v2(&address, BYTES) == CUDA_SUCCESS) {
            (void)cuMemFree_v2(address);
        }
    }
}

static void own_pairs(void *pool)
{
    void *block;
    for (int i = 0; i < pair_count; i++) {
        if (cmpool_malloc_unordered(*(cmpool_t *)pool, &block, BYTES) == CMPOOL_OK) {
            (void)cmpool_free_unordered(*(cmpool_t *)pool, block);
        }
    }
}

/* An interposed call asks the driver which context is current, as the driver asks itself. What the simulated one takes for its answer is
 * not the interposition's, and it is not the same by itself as between other work; so it is asked here too. */
static void own_pairs_with_questions(void *pool)
{
    CUcontext context;
    void *block;
    for (int i = 0; i < pair_count; i++) {
        (void)cuCtxGetCurrent(&context);
        if (cmpool_malloc_unordered(*(cmpool_t *)pool, &block, BYTES) == CMPOOL_OK) {
            (void)cuCtxGetCurrent(&context);
            (void)cmpool_free_unordered(*(cmpool_t *)pool, block);
        }
    }
}

static double event_calls(void)
{
    static const char *const names[] = {"cuCtxRecordEvent", "cuCtxWaitEvent", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"};
    double calls = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        calls += (double)simcuda_calls_of(names[i]);
    }
    return calls;
}

static int make_pool(cmpool_t *pool)
{
    CUcontext context;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cmpool_create(pool, NULL) ? 3 : 0;
}

static int time_all(void)
{
    void *c_library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *found = c_library ? dlvsym(c_library, "dlsym", "GLIBC_2.34") : NULL;
    look_up_function original, ours = (look_up_function)dlsym;
    if (!found) {
        printf("this C library has its dlsym elsewhere\n");
        return 77;
    }
    memcpy(&original, &found, sizeof found);
    timed look_ups[] = {{look_up, &original, 0}, {look_up, &ours, 0}};
    best(look_ups, 2, LOOK_UPS);
    printf("dlsym of another symbol: %.1f ns, interposed %.1f ns, ratio %.2f\n", look_ups[0].least, look_ups[1].least,
           look_ups[1].least / look_ups[0].least);

    cmpool_t pool;
    if (make_pool(&pool)) {
        return 3;
    }
    timed pairs[] = {{own_pairs, &pool, 0}, {own_pairs_with_questions, &pool, 0}, {interposed_pairs, NULL, 0}};
    best(pairs, 3, pair_count);
    double before = event_calls();
    interposed_pairs(NULL);
    printf("malloc and free: %.0f ns, interposed %.0f ns: %.0f ns for two questions to the driver, %.0f ns more; %.4f event calls a pair\n",
           pairs[0].least, pairs[2].least, pairs[1].least - pairs[0].least, pairs[2].least - pairs[1].least,
           (event_calls() - before) / pair_count);
    return look_ups[1].least > 1.5 * look_ups[0].least;
}

int main(int argc, char **argv)
{
    cmpool_t pool;
    if (argc == 1) {
        return time_all();
    }
    pair_count = argc == 3 ? atoi(argv[2]) : 0;
    if (pair_count <= 0 || make_pool(&pool)) {
        return 3;
    }
    strcmp(argv[1], "interposed") == 0 ? interposed_pairs(NULL) : own_pairs_with_questions(&pool);
    return 0;
}
