/* Pages mapped at addresses, by the driver's own calls, for device checks that ask what those cost and promise. For use inside cases. */
#ifndef GPU_PAGES_H
#define GPU_PAGES_H

#include "gpu.h"

#define PAGE (2 * MIB)

static inline CUresult page_create(CUmemGenericAllocationHandle *handle)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
        .allocFlags.gpuDirectRDMACapable = gpu_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
    };
    return cu.MemCreate(handle, PAGE, &prop, 0);
}

static inline CUresult page_allow(CUdeviceptr address, size_t bytes)
{
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cu.MemSetAccess(address, bytes, &access, 1);
}

/* Each handle at its place in a range that begins at address. */
static inline CUresult pages_map(CUdeviceptr address, const CUmemGenericAllocationHandle *handle, size_t count)
{
    CUresult code = CUDA_SUCCESS;
    for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++)
        code = cu.MemMap(address + i * PAGE, PAGE, 0, handle[i], 0);
    return code == CUDA_SUCCESS ? page_allow(address, count * PAGE) : code;
}

/* At most `wanted` pages, and no more than a quarter of what is free: others may be on the device. */
static inline size_t pages_to_use(size_t wanted)
{
    size_t quarter = gpu_free_bytes() / 4 / PAGE;
    return wanted < quarter ? wanted : quarter;
}

#endif
