/*
 * Memory: device, pinned, pools, IPC, pointer attributes. Each call is the driver's, with the runtime's own rules about size 0, NULL and
 * pitched memory. No state.
 */
#include "runtime/rt.h"

#include <string.h>

RT_API cudaError_t cudaMalloc(void **pointer, size_t bytes);
RT_API cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
RT_API cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent);
RT_API cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags);
RT_API cudaError_t cudaFree(void *pointer);
RT_API cudaError_t cudaMallocHost(void **host, size_t bytes);
RT_API cudaError_t cudaHostAlloc(void **host, size_t bytes, unsigned int flags);
RT_API cudaError_t cudaFreeHost(void *host);
RT_API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);

RT_FORWARD(cudaMemGetInfo, (size_t * free_bytes, size_t *total_bytes), MemGetInfo, (free_bytes, total_bytes))
RT_FORWARD(cudaHostRegister, (void *host, size_t bytes, unsigned int flags), MemHostRegister, (host, bytes, flags))
RT_FORWARD(cudaHostUnregister, (void *host), MemHostUnregister, (host))
RT_FORWARD(cudaHostGetDevicePointer, (void **pointer, void *host, unsigned int flags), MemHostGetDevicePointer,
           ((CUdeviceptr *)pointer, host, flags))
RT_FORWARD(cudaHostGetFlags, (unsigned int *flags, void *host), MemHostGetFlags, (flags, host))

RT_FORWARD(cudaIpcGetMemHandle, (CUipcMemHandle * handle, void *pointer), IpcGetMemHandle, (handle, rt_address(pointer)))
RT_FORWARD(cudaIpcOpenMemHandle, (void **pointer, CUipcMemHandle handle, unsigned int flags), IpcOpenMemHandle,
           ((CUdeviceptr *)pointer, handle, flags))
RT_FORWARD(cudaIpcCloseMemHandle, (void *pointer), IpcCloseMemHandle, (rt_address(pointer)))
RT_FORWARD(cudaIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), IpcGetEventHandle, (handle, event))
RT_FORWARD(cudaIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), IpcOpenEventHandle, (event, handle))

RT_FORWARD(cudaMallocAsync, (void **pointer, size_t bytes, CUstream stream), MemAllocAsync, ((CUdeviceptr *)pointer, bytes, stream))
RT_FORWARD(cudaMallocAsync_ptsz, (void **pointer, size_t bytes, CUstream stream), MemAllocAsync,
           ((CUdeviceptr *)pointer, bytes, rt_per_thread(stream)))
RT_FORWARD(cudaMallocFromPoolAsync, (void **pointer, size_t bytes, CUmemoryPool pool, CUstream stream), MemAllocFromPoolAsync,
           ((CUdeviceptr *)pointer, bytes, pool, stream))
RT_FORWARD(cudaMallocFromPoolAsync_ptsz, (void **pointer, size_t bytes, CUmemoryPool pool, CUstream stream), MemAllocFromPoolAsync,
           ((CUdeviceptr *)pointer, bytes, pool, rt_per_thread(stream)))
RT_FORWARD(cudaFreeAsync, (void *pointer, CUstream stream), MemFreeAsync, (rt_address(pointer), stream))
RT_FORWARD(cudaFreeAsync_ptsz, (void *pointer, CUstream stream), MemFreeAsync, (rt_address(pointer), rt_per_thread(stream)))

RT_FORWARD(cudaMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), MemPoolCreate, (pool, props))
RT_FORWARD(cudaMemPoolDestroy, (CUmemoryPool pool), MemPoolDestroy, (pool))
RT_FORWARD(cudaMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes), MemPoolTrimTo, (pool, keep_bytes))
RT_FORWARD(cudaMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value), MemPoolSetAttribute, (pool, attribute, value))
RT_FORWARD(cudaMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value), MemPoolGetAttribute, (pool, attribute, value))
RT_FORWARD(cudaMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count), MemPoolSetAccess, (pool, access, count))
RT_FORWARD(cudaMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *location), MemPoolGetAccess,
           (flags, pool, location))

/* The driver refuses size 0, the runtime answers NULL. */
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && pointer == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess && bytes == 0) {
        *pointer = NULL;
    } else if (code == cudaSuccess) {
        code = RT_CALL(MemAlloc, ((CUdeviceptr *)pointer, bytes));
    }
    return rt_leave(code);
}

cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && (pointer == NULL || pitch == NULL)) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess && (width == 0 || height == 0)) {
        *pointer = NULL;
        *pitch = 0;
    } else if (code == cudaSuccess) {
        code = RT_CALL(MemAllocPitch, ((CUdeviceptr *)pointer, pitch, width, height, 4));
    }
    return rt_leave(code);
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent)
{
    if (pitched == NULL || (extent.depth != 0 && extent.height > SIZE_MAX / extent.depth)) {
        return rt_leave(cudaErrorInvalidValue);
    }
    pitched->xsize = extent.width;
    pitched->ysize = extent.height;
    return cudaMallocPitch(&pitched->ptr, &pitched->pitch, extent.width, extent.height * extent.depth);
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess) {
        code = RT_CALL(MemAllocManaged, ((CUdeviceptr *)pointer, bytes, flags));
    }
    return rt_leave(code);
}

/* NULL is no error and still initialises: cudaFree(0) is the customary first call of a program. */
cudaError_t cudaFree(void *pointer)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && pointer != NULL) {
        code = RT_CALL(MemFree, (rt_address(pointer)));
    }
    return rt_leave(code);
}

cudaError_t cudaHostAlloc(void **host, size_t bytes, unsigned int flags)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && host == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess && bytes == 0) {
        *host = NULL;
    } else if (code == cudaSuccess) {
        code = RT_CALL(MemHostAlloc, (host, bytes, flags));
    }
    return rt_leave(code);
}

cudaError_t cudaMallocHost(void **host, size_t bytes) { return cudaHostAlloc(host, bytes, 0); }

cudaError_t cudaFreeHost(void *host)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && host != NULL) {
        code = RT_CALL(MemFreeHost, (host));
    }
    return rt_leave(code);
}

/* Memory that CUDA does not know is no error: it is unregistered host memory. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    unsigned int type = 0, managed = 0;
    int device = cudaInvalidDeviceId;
    CUdeviceptr on_device = 0;
    void *on_host = NULL;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *answers[] = {&type, &managed, &device, &on_device, &on_host};
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && attributes == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        code = RT_CALL(PointerGetAttributes, (sizeof asked / sizeof asked[0], asked, answers, rt_address(pointer)));
    }
    if (code == cudaSuccess) {
        memset(attributes, 0, sizeof *attributes);
        if (type == 0) {
            attributes->type = cudaMemoryTypeUnregistered;
            attributes->device = cudaInvalidDeviceId;
            attributes->hostPointer = (void *)(uintptr_t)pointer;
        } else {
            attributes->type = managed ? cudaMemoryTypeManaged : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
            attributes->device = device;
            attributes->devicePointer = (void *)(uintptr_t)on_device;
            attributes->hostPointer = on_host;
        }
    }
    return rt_leave(code);
}
