/*
 * Programs that know nothing of the library: what they do with the driver is the same in all of them, how they come by its functions is
 * what each is about.
 */
#ifndef PRELOAD_CLIENT_H
#define PRELOAD_CLIENT_H

#include "driver/driver_abi.h"

#include <stddef.h>

/* name as cuGetProcAddress takes it, name in the symbol table, version of the form */
#define CLIENT_FUNCTIONS(X)                                                                                                               \
    X(cuInit, cuInit, 2000, (unsigned flags))                                                                                             \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer))                                     \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                                   \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice device))                                                  \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, (CUdevice device))                                                      \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned *flags, int *active))                      \
    X(cuCtxCreate, cuCtxCreate_v4, 12050, (CUcontext * context, void *parameters, unsigned flags, CUdevice device))                       \
    X(cuCtxDestroy, cuCtxDestroy_v2, 4000, (CUcontext context))                                                                           \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext context))                                                                        \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext * context))                                                                      \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                                                                                   \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags))                                               \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr * address, size_t bytes))                                                             \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020, (CUdeviceptr * address, size_t * pitch, size_t width, size_t height, unsigned element))  \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000, (CUdeviceptr * address, size_t bytes, unsigned flags))                                  \
    X(cuMemAllocAsync, cuMemAllocAsync, 11020, (CUdeviceptr * address, size_t bytes, CUstream stream))                                    \
    X(cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                                                      \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream)) \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps *props))                                        \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool pool))                                                                     \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool pool, size_t keep))                                                          \
    X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count))                    \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool * pool, CUdevice device))                                \
    X(cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr address))                                                                               \
    X(cuMemGetInfo, cuMemGetInfo_v2, 3020, (size_t * free_bytes, size_t * total))                                                         \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, (CUdeviceptr * base, size_t * bytes, CUdeviceptr address))                     \
    X(cuMemCreate, cuMemCreate, 10020,                                                                                                    \
      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags))                   \
    X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                                           \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle * handle, void *address))            \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void *data, CUpointer_attribute attribute, CUdeviceptr address))               \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000,                                                                               \
      (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address))                                                \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020, (void **address, size_t bytes, unsigned flags))                                               \
    X(cuMemAllocHost, cuMemAllocHost_v2, 3020, (void **address, size_t bytes))                                                            \
    X(cuMemFreeHost, cuMemFreeHost, 2000, (void *address))                                                                                \
    X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, (unsigned *flags, void *address))                                                       \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, (CUdeviceptr * device, void *address, unsigned flags))               \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                   \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                   \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle * handle, CUdeviceptr address))                                         \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream * stream, unsigned flags))                                                          \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream stream))                                                                       \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream))                                                                  \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (CUstream stream, CUstreamCaptureMode mode))                                  \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream stream, CUgraph * graph))                                                  \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))     \
    X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream))                                                           \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec exec))                                                                  \
    X(cuGraphDestroy, cuGraphDestroy, 10000, (CUgraph graph))

typedef struct client_driver {
#define CLIENT_FIELD(name, symbol, version, params) CUresult(CUDAAPI *name) params;
    CLIENT_FUNCTIONS(CLIENT_FIELD)
#undef CLIENT_FIELD
} client_driver;

/* Run one of the behaviours by name; each call's outcome is a line on stdout, counts of the simulated device are lines that begin with #.
 * Returns the exit status. */
__attribute__((visibility("default"))) int client_behave(const client_driver *driver, const char *behaviour);

#endif
