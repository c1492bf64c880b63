/*
 * The allocators that need nothing but the driver: our pool, the driver's own calls, and one that only counts, which shows what the loops
 * themselves cost. State is one pool and a few function pointers, set by open. Called through bench_allocator.
 */
#include "bench.h"

#include <cudamempool/cudamempool.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- our pool --------------------------------------------------------------------------------------------------------------------- */

static cmpool_t pool;

static int pool_open(void)
{
    cmpool_status status = cmpool_create(&pool, NULL);
    if (status == CMPOOL_OK)
        return 0;
    fprintf(stderr, "bench: no pool: %s\n", cmpool_status_text(status));
    return 3;
}

static void *pool_take(size_t bytes, void *stream)
{
    void *block;
    return cmpool_malloc(pool, &block, bytes, stream) == CMPOOL_OK ? block : NULL;
}

static void must(cmpool_status status)
{
    if (status != CMPOOL_OK)
        bench_fail(cmpool_status_text(status), (int)status);
}

static void pool_give(void *block, size_t bytes, void *stream)
{
    (void)bytes;
    must(cmpool_free(pool, block, stream));
}

static void pool_use(void *block, void *stream) { must(cmpool_record_use(pool, block, stream)); }

static uint64_t pool_host_bytes(void)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    must(cmpool_stats_get(pool, &stats));
    return stats.metadata_bytes;
}

/* ---- the driver's own calls ---------------------------------------------------------------------------------------------------------- */

static int (*driver_alloc)(uint64_t *address, size_t bytes);
static int (*driver_free)(uint64_t address);
static int (*driver_alloc_async)(uint64_t *address, size_t bytes, void *stream);
static int (*driver_free_async)(uint64_t address, void *stream);

static int driver_call(void *function, const char *name)
{
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    void *library = dlopen(path != NULL && *path != '\0' ? path : "libcuda.so.1", RTLD_NOW);
    void *address = library != NULL ? dlsym(library, name) : NULL;
    if (address == NULL) {
        fprintf(stderr, "bench: the driver has no %s\n", name);
        return 3;
    }
    memcpy(function, &address, sizeof address);
    return 0;
}

static int driver_open(void)
{
    int code = driver_call(&driver_alloc, "cuMemAlloc_v2");
    return code != 0 ? code : driver_call(&driver_free, "cuMemFree_v2");
}

/* Kept as it is: the pool of the device gives memory back at each synchronisation, and nobody synchronises here. */
static int async_open(void)
{
    int code = driver_call(&driver_alloc_async, "cuMemAllocAsync");
    return code != 0 ? code : driver_call(&driver_free_async, "cuMemFreeAsync");
}

static void *driver_take(size_t bytes, void *stream)
{
    uint64_t address;
    (void)stream;
    return driver_alloc(&address, bytes) == 0 ? (void *)(uintptr_t)address : NULL;
}

static void driver_give(void *block, size_t bytes, void *stream)
{
    (void)bytes, (void)stream;
    driver_free((uint64_t)(uintptr_t)block);
}

static void *async_take(size_t bytes, void *stream)
{
    uint64_t address;
    return driver_alloc_async(&address, bytes, stream) == 0 ? (void *)(uintptr_t)address : NULL;
}

static void async_give(void *block, size_t bytes, void *stream)
{
    (void)bytes;
    driver_free_async((uint64_t)(uintptr_t)block, stream);
}

/* ---- nothing ------------------------------------------------------------------------------------------------------------------------ */

static _Thread_local uintptr_t counter;

static int nothing_open(void) { return 0; }

static void *nothing_take(size_t bytes, void *stream)
{
    (void)bytes, (void)stream;
    return (void *)(counter += 512);
}

static void nothing_give(void *block, size_t bytes, void *stream) { (void)block, (void)bytes, (void)stream; }

static void nothing_use(void *block, void *stream) { (void)block, (void)stream; }

static const bench_allocator allocators[] = {
    {"cudamempool", "this library, default options", true, pool_open, pool_take, pool_give, pool_use, pool_host_bytes},
    {"driver", "cuMemAlloc and cuMemFree", true, driver_open, driver_take, driver_give, NULL, NULL},
    {"driver-async", "cuMemAllocAsync and cuMemFreeAsync", true, async_open, async_take, async_give, NULL, NULL},
    {"nothing", "no allocator: what the loops cost", true, nothing_open, nothing_take, nothing_give, nothing_use, NULL},
};

const bench_allocator *bench_allocator_named(const char *name)
{
    for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++)
        if (strcmp(allocators[i].name, name) == 0)
            return &allocators[i];
    return NULL;
}
