/*
 * Devices, peers, pools of a device. The device of a thread is kept by rt_load.c; everything else is the driver's.
 */
#include "runtime/rt.h"

#include <string.h>

RT_API cudaError_t cudaGetDeviceCount(int *count);
RT_API cudaError_t cudaSetDevice(int device);
RT_API cudaError_t cudaGetDevice(int *device);
RT_API cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags);
RT_API cudaError_t cudaSetDeviceFlags(unsigned int flags);
RT_API cudaError_t cudaGetDeviceFlags(unsigned int *flags);
RT_API cudaError_t cudaDeviceReset(void);
RT_API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device);
RT_API cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device);
RT_API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id);
RT_API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
RT_API cudaError_t cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer);
RT_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
RT_API cudaError_t cudaDeviceDisablePeerAccess(int peer);
RT_API cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int device);
RT_API cudaError_t cudaDeviceGetMemPool(CUmemoryPool *pool, int device);
RT_API cudaError_t cudaDeviceSetMemPool(int device, CUmemoryPool pool);

RT_FORWARD(cudaDeviceSynchronize, (void), CtxSynchronize, ())
RT_FORWARD(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), CtxGetStreamPriorityRange, (least, greatest))

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t code = rt_load();
    if (code == cudaSuccess && count == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        code = RT_CALL(DeviceGetCount, (count));
    }
    if (code == cudaSuccess && *count == 0) {
        code = cudaErrorNoDevice;
    }
    return rt_leave(code);
}

/* Since CUDA 12 this initialises the device and makes its primary context current. */
cudaError_t cudaSetDevice(int device)
{
    CUcontext context;
    cudaError_t code = rt_load();
    if (code == cudaSuccess) {
        code = rt_primary_context(device, &context);
    }
    if (code == cudaSuccess) {
        rt_set_thread_device(device);
        rt.CtxSetCurrent(NULL);
        code = rt_enter();
    }
    return rt_leave(code);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t code = rt_load();
    if (code == cudaSuccess && device == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        CUcontext current = NULL;
        *device = rt_thread_device();
        if (rt.CtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL) {
            code = RT_CALL(CtxGetDevice, (device));
        }
    }
    return rt_leave(code);
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    CUcontext context;
    cudaError_t code = rt_load();
    if (code == cudaSuccess && flags != 0) {
        code = RT_CALL(DevicePrimaryCtxSetFlags, (device, device_flags));
    }
    if (code == cudaSuccess) {
        code = rt_primary_context(device, &context);
    }
    return rt_leave(code);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    cudaError_t code = rt_load();
    if (code == cudaSuccess) {
        code = RT_CALL(DevicePrimaryCtxSetFlags, (rt_thread_device(), flags));
    }
    return rt_leave(code);
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
    int active = 0;
    cudaError_t code = rt_load();
    if (code == cudaSuccess) {
        code = RT_CALL(DevicePrimaryCtxGetState, (rt_thread_device(), flags, &active));
    }
    return rt_leave(code);
}

cudaError_t cudaDeviceReset(void)
{
    int device = rt_thread_device();
    cudaError_t code = rt_load();
    if (code == cudaSuccess) {
        code = RT_CALL(DevicePrimaryCtxReset, (device));
        rt_forget_contexts(device);
    }
    return rt_leave(code);
}

static void fill_properties(struct cudaDeviceProp *properties, CUdevice device)
{
    int value;
    memset(properties, 0, sizeof *properties);
    rt.DeviceGetName(properties->name, sizeof properties->name, device);
    rt.DeviceGetUuid(&properties->uuid, device);
    rt.DeviceTotalMem(&properties->totalGlobalMem, device);
#define SIM_PROPERTY(type, field, count, attribute)                                   \
    for (int i = 0; (attribute) != 0 && i < (count); i++) {                           \
        if (rt.DeviceGetAttribute(&value, (attribute) + i, device) == CUDA_SUCCESS) { \
            properties->field[i] = (type)value;                                       \
        }                                                                             \
    }
#include "runtime/rt_properties.def"
#undef SIM_PROPERTY
}

/* The name under which a program of this CUDA version asks for the struct of this version. */
#if SIM_RUNTIME_MAJOR == 12
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif
RT_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    CUdevice handle;
    cudaError_t code = rt_load();
    if (code == cudaSuccess && properties == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        code = RT_CALL(DeviceGet, (&handle, device));
    }
    if (code == cudaSuccess) {
        fill_properties(properties, handle);
    }
    return rt_leave(code);
}

/* Questions about a device need no context. */
#define DEVICE_FORWARD(function, params, name, arguments) \
    cudaError_t function params                           \
    {                                                     \
        cudaError_t code = rt_load();                     \
        if (code == cudaSuccess) {                        \
            code = RT_CALL(name, arguments);              \
        }                                                 \
        return rt_leave(code);                            \
    }

DEVICE_FORWARD(cudaDeviceGetAttribute, (int *value, int attribute, int device), DeviceGetAttribute, (value, attribute, device))
DEVICE_FORWARD(cudaDeviceGetPCIBusId, (char *id, int bytes, int device), DeviceGetPCIBusId, (id, bytes, device))
DEVICE_FORWARD(cudaDeviceGetByPCIBusId, (int *device, const char *id), DeviceGetByPCIBusId, (device, id))
DEVICE_FORWARD(cudaDeviceCanAccessPeer, (int *can, int device, int peer), DeviceCanAccessPeer, (can, device, peer))
DEVICE_FORWARD(cudaDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer), DeviceGetP2PAttribute,
               (value, attribute, device, peer))
DEVICE_FORWARD(cudaDeviceGetDefaultMemPool, (CUmemoryPool * pool, int device), DeviceGetDefaultMemPool, (pool, device))
DEVICE_FORWARD(cudaDeviceGetMemPool, (CUmemoryPool * pool, int device), DeviceGetMemPool, (pool, device))
DEVICE_FORWARD(cudaDeviceSetMemPool, (int device, CUmemoryPool pool), DeviceSetMemPool, (device, pool))

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    CUcontext context = NULL;
    cudaError_t code = rt_enter();
    if (code == cudaSuccess) {
        code = rt_primary_context(peer, &context);
    }
    if (code == cudaSuccess) {
        code = RT_CALL(CtxEnablePeerAccess, (context, flags));
    }
    return rt_leave(code);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context = NULL;
    cudaError_t code = rt_enter();
    if (code == cudaSuccess) {
        code = rt_primary_context(peer, &context);
    }
    if (code == cudaSuccess) {
        code = RT_CALL(CtxDisablePeerAccess, (context));
    }
    return rt_leave(code);
}
