/*
 * Replacements for memory in the order of a stream, and for the driver's memory pools, which such requests name. Owns the list of memory
 * pools that programs made, under its own lock, which is never held over a call. Called by programs.
 *
 * Frees of blocks are served always; requests are the driver's, or the pool's with the option async:pool. What is captured becomes part of
 * a graph and is the driver's in any case; so is memory of a memory pool that can be exported or does not lie on the stream's device.
 */
#include "preload/preload.h"

#include <pthread.h>

#define PER_THREAD ((CUstream)2)

enum { MOST_MEMORY_POOLS = 128 };

typedef struct memory_pool {
    CUmemoryPool handle;
    int device;
} memory_pool;

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static memory_pool pools[MOST_MEMORY_POOLS]; /* that the pool can stand for; no gaps */
static uint32_t pool_count;

/* The device of a memory pool that the pool can stand for; forget: it goes. */
static bool find_pool(CUmemoryPool handle, int *device, bool forget)
{
    uint32_t at = 0;
    pthread_mutex_lock(&pools_lock);
    while (at < pool_count && pools[at].handle != handle) {
        at++;
    }
    bool found = at < pool_count;
    if (found) {
        *device = pools[at].device;
    }
    if (found && forget) {
        pools[at] = pools[--pool_count];
    }
    pthread_mutex_unlock(&pools_lock);
    return found;
}

static bool is_default_pool(CUmemoryPool handle, int device)
{
    CUmemoryPool preset = NULL;
    const preload_driver *driver = cmi_preload_driver();
    return driver->cuDeviceGetDefaultMemPool && driver->cuDeviceGetDefaultMemPool(&preset, device) == CUDA_SUCCESS && preset == handle;
}

/* ---- requests -------------------------------------------------------------------------------------------------------------------------
 */

/* from NULL: the device's present memory pool. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool from, CUstream stream, bool per_thread, const void *caller)
{
    const preload_driver *driver = cmi_preload_driver();
    preload_block block = {.bytes = bytes, .origin = {.memory_pool = from, .how = PRELOAD_IN_ORDER}};
    cmpool_t pool;
    void *memory;
    int pools_device;
    if (!cmi_preload_stream_device(stream, per_thread, &block.origin.device) ||
        cmi_preload_caller(caller, bytes) == PRELOAD_CALLER_BYPASS) {
        return PRELOAD_ASK_DRIVER;
    }
    if (!from &&
        (!driver->cuDeviceGetMemPool || driver->cuDeviceGetMemPool(&block.origin.memory_pool, block.origin.device) != CUDA_SUCCESS)) {
        return PRELOAD_ASK_DRIVER;
    }
    bool ours = find_pool(block.origin.memory_pool, &pools_device, false) ? pools_device == block.origin.device
                                                                          : is_default_pool(block.origin.memory_pool, block.origin.device);
    cmpool_status status = ours ? cmi_preload_pool(block.origin.device, &pool) : CMPOOL_OK;
    if (status == CMPOOL_OK && (!ours || !pool)) {
        return PRELOAD_ASK_DRIVER;
    }
    if (status == CMPOOL_OK) {
        status = cmpool_malloc(pool, &memory, bytes, per_thread && !stream ? PER_THREAD : stream);
    }
    if (status != CMPOOL_OK) {
        return cmi_preload_waited_for_resume(status) ? allocate(address, bytes, from, stream, per_thread, caller)
                                                     : cmi_preload_answer(status);
    }
    block.address = (uint64_t)(uintptr_t)memory;
    return cmi_preload_hand_out(pool, &block, address);
}

/* Return what the pool answers, or the driver. `from` is NULL or a memory pool. */
#define ALLOCATE(name, from, per_thread, address, bytes, stream, ...)                                  \
    do {                                                                                               \
        CUresult answer_ = PRELOAD_ASK_DRIVER;                                                         \
        if (address && bytes && cmi_preload_async_from_pool() && cmi_preload_enter()) {                \
            answer_ = allocate(address, bytes, from, stream, per_thread, __builtin_return_address(0)); \
            cmi_preload_leave();                                                                       \
        }                                                                                              \
        if (answer_ != PRELOAD_ASK_DRIVER) {                                                           \
            return answer_;                                                                            \
        }                                                                                              \
        PRELOAD_WITH_ROOM(-1, bytes, name, __VA_ARGS__);                                               \
    } while (0)

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync, NULL, false, address, bytes, stream, address, bytes, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync_ptsz, NULL, true, address, bytes, stream, address, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!pool) {
        return PRELOAD_FORWARD(cuMemAllocFromPoolAsync, address, bytes, pool, stream);
    }
    ALLOCATE(cuMemAllocFromPoolAsync, pool, false, address, bytes, stream, address, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!pool) {
        return PRELOAD_FORWARD(cuMemAllocFromPoolAsync_ptsz, address, bytes, pool, stream);
    }
    ALLOCATE(cuMemAllocFromPoolAsync_ptsz, pool, true, address, bytes, stream, address, bytes, pool, stream);
}

/* ---- frees ----------------------------------------------------------------------------------------------------------------------------
 */

static CUresult free_ordered(CUdeviceptr address, CUstream stream)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    if (address && cmi_preload_enter()) {
        code = cmi_preload_give_back(address, true, stream);
        cmi_preload_leave();
    }
    return code;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult code = free_ordered(address, stream);
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemFreeAsync, address, stream) : code;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    CUresult code = free_ordered(address, stream ? stream : PER_THREAD);
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemFreeAsync_ptsz, address, stream) : code;
}

/* ---- memory pools ---------------------------------------------------------------------------------------------------------------------
 */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult code = PRELOAD_FORWARD(cuMemPoolCreate, pool, props);
    bool plain = code == CUDA_SUCCESS && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->handle_types == 0;
    if (plain && props->location.id < PRELOAD_DEVICES && cmi_preload_async_from_pool()) {
        pthread_mutex_lock(&pools_lock);
        if (pool_count < MOST_MEMORY_POOLS) { /* what is not in the list is the driver's */
            pools[pool_count++] = (memory_pool){*pool, props->location.id};
        }
        pthread_mutex_unlock(&pools_lock);
    }
    return code;
}

/* Blocks taken from it live on, as the driver's do. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    int device;
    (void)find_pool(pool, &device, true);
    return PRELOAD_FORWARD(cuMemPoolDestroy, pool);
}

/* The device of a memory pool that the pool may stand for, asked between enter and leave; -1: there is none. */
static int device_of(CUmemoryPool handle)
{
    int device;
    CUcontext context;
    if (find_pool(handle, &device, false)) {
        return device;
    }
    return cmi_preload_here(&context, &device) && is_default_pool(handle, device) ? device : -1;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    CUresult code = PRELOAD_FORWARD(cuMemPoolSetAccess, pool, access, count);
    if (code == CUDA_SUCCESS && cmi_preload_async_from_pool() && cmi_preload_enter()) {
        int device = device_of(pool);
        for (size_t i = 0; i < count && device >= 0; i++) {
            int peer = access[i].location.id;
            if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].flags && peer < PRELOAD_DEVICES && peer != device) {
                cmi_preload_pool_add_peer(device, peer);
                cmi_preload_contexts_tell(device);
            }
        }
        cmi_preload_leave();
    }
    return code;
}

/* What the pool holds for all memory pools of a device is one. */
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult code = PRELOAD_FORWARD(cuMemPoolTrimTo, pool, keep);
    if (code == CUDA_SUCCESS && cmi_preload_async_from_pool() && cmi_preload_enter()) {
        int device = device_of(pool);
        if (device >= 0 && cmi_preload_pool_of(device)) {
            (void)cmpool_trim(cmi_preload_pool_of(device), keep, NULL);
        }
        cmi_preload_leave();
    }
    return code;
}
