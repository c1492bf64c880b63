/*
 * cuMemAlloc and its family. cuMemFree is held to what is documented: it "may" synchronise, so a program that frees what the device may
 * still use is reported. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#define PITCH_ALIGNMENT 512
#define PRICE_PAGE (UINT64_C(2) << 20)

static sim_mapping *allocate(sim_context *context, uint64_t bytes, CUresult *code)
{
    sim_mapping *mapping = sim_memory_new(SIM_MEMORY_ALLOC, context->device, bytes, code);
    if (mapping)
        mapping->context = context;
    return mapping;
}

SIM_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    SIM_ENTER("cuMemAlloc_v2");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(!address || bytes == 0, CUDA_ERROR_INVALID_VALUE);
    CUresult code;
    sim_mapping *mapping = allocate(context, bytes, &code);
    SIM_REFUSE_IF(!mapping, code);
    *address = mapping->address;
    sim_here.pages = (bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    SIM_ENTER("cuMemAllocPitch_v2");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(!address || !pitch || width == 0 || height == 0, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(element != 4 && element != 8 && element != 16, CUDA_ERROR_INVALID_VALUE);
    size_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT, bytes;
    SIM_REFUSE_IF(row < width || __builtin_mul_overflow(row, height, &bytes), CUDA_ERROR_OUT_OF_MEMORY);
    CUresult code;
    sim_mapping *mapping = allocate(context, bytes, &code);
    SIM_REFUSE_IF(!mapping, code);
    *address = mapping->address;
    *pitch = row;
    sim_here.pages = (bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
    SIM_ENTER("cuMemFree_v2");
    (void)SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(!address, CUDA_SUCCESS);
    sim_mapping *mapping = sim_mapping_find(address);
    SIM_REFUSE_IF(!mapping || mapping->address != address, CUDA_ERROR_INVALID_VALUE);
    if (mapping->kind == SIM_MEMORY_POOL) /* cuda.h: cuMemFree takes what cuMemAllocAsync gave */
        SIM_RETURN(sim_pool_free(mapping));
    SIM_REFUSE_IF(mapping->kind != SIM_MEMORY_ALLOC, CUDA_ERROR_INVALID_VALUE);
    sim_here.pages = (mapping->bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    sim_check_free(mapping);
    sim_memory_delete(mapping);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    SIM_ENTER("cuMemGetInfo_v2");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(!free_bytes || !total, CUDA_ERROR_INVALID_VALUE);
    *free_bytes = sim_device_free(context->device);
    *total = sim.devices[context->device].capacity;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    SIM_ENTER("cuMemGetAddressRange_v2");
    const sim_mapping *mapping = sim_mapping_find(address);
    SIM_REFUSE_IF(!mapping || mapping->kind == SIM_MEMORY_HOST, CUDA_ERROR_NOT_FOUND);
    if (base)
        *base = mapping->address;
    if (bytes)
        *bytes = mapping->bytes;
    SIM_RETURN(CUDA_SUCCESS);
}
