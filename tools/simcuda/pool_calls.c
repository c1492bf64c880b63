/*
 * The calls about memory pools: allocate and free on a stream, create and destroy, attributes, access, a device's current pool. Guarded by
 * sim.lock; the pools themselves are in pool.c. Called by programs.
 */
#include "sim_other.h"
#include "sim_pool.h"

static CUresult alloc_async(CUdeviceptr *address, size_t bytes, CUstream stream, bool per_thread)
{
    SIM_ENTER("cuMemAllocAsync");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_RETURN(sim_pool_alloc(address, bytes, sim_pool_current(lane->context->device), lane));
}

static CUresult alloc_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
    SIM_ENTER("cuMemAllocFromPoolAsync");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_RETURN(sim_pool_alloc(address, bytes, sim_pool_of(pool), lane));
}

static CUresult free_async(CUdeviceptr address, CUstream stream, bool per_thread)
{
    SIM_ENTER("cuMemFreeAsync");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_RETURN(sim_pool_free_on(address, lane));
}

SIM_BOTH_STREAMS(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream), alloc_async, address, bytes, stream)
SIM_BOTH_STREAMS(cuMemAllocFromPoolAsync, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream), alloc_from_pool,
                 address, bytes, pool, stream)
SIM_BOTH_STREAMS(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_async, address, stream)

SIM_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    SIM_ENTER("cuMemPoolCreate");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    SIM_REFUSE_IF(pool == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        static int said;
        SIM_RETURN(sim_unsupported("cuMemPoolCreate for host memory", &said));
    }
    SIM_REFUSE_IF(!sim_device_valid(props->location.id), CUDA_ERROR_INVALID_VALUE);
    sim_pool *made = sim_pool_new(props->location.id, props->maxSize);
    SIM_REFUSE_IF(made == NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *pool = SIM_AS_HANDLE(CUmemoryPool, made->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER("cuMemPoolDestroy");
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || found->is_default || found->destroyed, CUDA_ERROR_INVALID_VALUE);
    sim_pool_destroy(found);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    SIM_ENTER("cuMemPoolTrimTo");
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL, CUDA_ERROR_INVALID_VALUE);
    sim_pool_trim(found, keep_bytes);
    SIM_RETURN(CUDA_SUCCESS);
}

/* The switches; NULL for other attributes. */
static int *switch_of(sim_pool *pool, CUmemPool_attribute attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return &pool->follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return &pool->opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return &pool->internal_dependencies;
    default:
        return NULL;
    }
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    SIM_ENTER("cuMemPoolSetAttribute");
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || value == NULL, CUDA_ERROR_INVALID_VALUE);
    int *flag = switch_of(found, attribute);
    if (flag != NULL) {
        *flag = *(const int *)value != 0;
        SIM_RETURN(CUDA_SUCCESS);
    }
    cuuint64_t number = *(const cuuint64_t *)value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        found->threshold = number;
        SIM_RETURN(CUDA_SUCCESS);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* can only be reset */
        SIM_REFUSE_IF(number != 0, CUDA_ERROR_INVALID_VALUE);
        found->reserved_high = found->reserved;
        SIM_RETURN(CUDA_SUCCESS);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        SIM_REFUSE_IF(number != 0, CUDA_ERROR_INVALID_VALUE);
        found->used_high = found->used;
        SIM_RETURN(CUDA_SUCCESS);
    default:
        SIM_RETURN(CUDA_ERROR_INVALID_VALUE);
    }
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    SIM_ENTER("cuMemPoolGetAttribute");
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || value == NULL, CUDA_ERROR_INVALID_VALUE);
    const int *flag = switch_of(found, attribute);
    if (flag != NULL) {
        *(int *)value = *flag;
        SIM_RETURN(CUDA_SUCCESS);
    }
    cuuint64_t *number = value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *number = found->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *number = found->reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *number = found->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *number = found->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *number = found->used_high;
        break;
    default:
        SIM_RETURN(CUDA_ERROR_INVALID_VALUE);
    }
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- access --------------------------------------------------------------------------------------------------------------------- */

static bool valid_access(const sim_pool *pool, const CUmemAccessDesc *access)
{
    bool known = access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                 access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!known || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_valid(access->location.id)) {
        return false;
    }
    if (access->location.id == pool->device) { /* a pool's own device keeps its access */
        return access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return sim.features[SIMCUDA_FEATURE_PEER] || access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    SIM_ENTER("cuMemPoolSetAccess");
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || (access == NULL && count != 0), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        SIM_REFUSE_IF(!valid_access(found, &access[i]), CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        sim_pool_set_access(found, access[i].location.id, access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE,
                            access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    SIM_ENTER("cuMemPoolGetAccess");
    const sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || flags == NULL || location == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(location->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_valid(location->id), CUDA_ERROR_INVALID_VALUE);
    uint64_t bit = UINT64_C(1) << location->id;
    *flags = found->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : found->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                    : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- a device's pools ------------------------------------------------------------------------------------------------------------- */

static CUresult show_pool(CUmemoryPool *result, sim_pool *pool)
{
    if (pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = SIM_AS_HANDLE(CUmemoryPool, pool->handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    SIM_ENTER("cuDeviceGetDefaultMemPool");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_REFUSE_IF(pool == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(show_pool(pool, sim_pool_default(device)));
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    SIM_ENTER("cuDeviceGetMemPool");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_REFUSE_IF(pool == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(show_pool(pool, sim_pool_current(device)));
}

SIM_EXPORT CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    SIM_ENTER("cuDeviceSetMemPool");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_ASYNC_POOLS);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    sim_pool *found = sim_pool_of(pool);
    SIM_REFUSE_IF(found == NULL || found->device != device || found->destroyed, CUDA_ERROR_INVALID_VALUE);
    sim_pool_set_current(device, found);
    SIM_RETURN(CUDA_SUCCESS);
}
