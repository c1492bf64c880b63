/*
 * Initialisation and what devices say about themselves. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_VERSION 13000

SIM_EXPORT CUresult CUDAAPI cuInit(unsigned flags)
{
    SIM_ENTER_UNINITIALISED("cuInit");
    SIM_REFUSE_IF(flags, CUDA_ERROR_INVALID_VALUE);
    if (!sim.configured)
        sim_config_default();
    SIM_REFUSE_IF(sim.forked, CUDA_ERROR_NOT_INITIALIZED);
    SIM_REFUSE_IF(sim.device_count == 0, CUDA_ERROR_NO_DEVICE);
    sim.initialised = true;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    SIM_ENTER_UNINITIALISED("cuDriverGetVersion");
    SIM_REFUSE_IF(!version, CUDA_ERROR_INVALID_VALUE);
    *version = DRIVER_VERSION;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    SIM_ENTER("cuDeviceGetCount");
    SIM_REFUSE_IF(!count, CUDA_ERROR_INVALID_VALUE);
    *count = sim.device_count;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_ENTER("cuDeviceGet");
    SIM_REFUSE_IF(!device, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int room, CUdevice device)
{
    SIM_ENTER("cuDeviceGetName");
    SIM_REFUSE_IF(!name || room <= 0, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)room, "simcuda device %d", device);
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    char text[sizeof uuid->bytes + 1];
    snprintf(text, sizeof text, "simcuda-dev-%03d", device & 63);
    memcpy(uuid->bytes, text, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    SIM_ENTER("cuDeviceGetUuid");
    SIM_RETURN(get_uuid(uuid, device));
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    SIM_ENTER("cuDeviceGetUuid_v2");
    SIM_RETURN(get_uuid(uuid, device));
}

SIM_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    SIM_ENTER("cuDeviceTotalMem_v2");
    SIM_REFUSE_IF(!bytes, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    *bytes = sim.devices[device].capacity;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    SIM_ENTER("cuDeviceComputeCapability");
    SIM_REFUSE_IF(!major || !minor, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    *major = 9;
    *minor = 0;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int room, CUdevice device)
{
    SIM_ENTER("cuDeviceGetPCIBusId");
    SIM_REFUSE_IF(!text || room < 13, CUDA_ERROR_INVALID_VALUE); /* cuda.h: "large enough to store 13 characters" */
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    snprintf(text, (size_t)room, "0000:%02x:00.0", (unsigned)device + 1);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    SIM_ENTER("cuDeviceGetByPCIBusId");
    SIM_REFUSE_IF(!device || !text, CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0, bus, slot, function = 0;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        SIM_REFUSE_IF(sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(domain || slot || function || bus == 0 || !sim_device_valid((int)bus - 1), CUDA_ERROR_INVALID_DEVICE);
    *device = (int)bus - 1;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)
{
    SIM_ENTER("cuDeviceGetP2PAttribute");
    SIM_REFUSE_IF(!value, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(from) || !sim_device_valid(to) || from == to, CUDA_ERROR_INVALID_DEVICE);
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        break;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = sim.features[SIMCUDA_FEATURE_PEER];
        break;
    default:
        SIM_RETURN(CUDA_ERROR_INVALID_VALUE);
    }
    SIM_RETURN(CUDA_SUCCESS);
}

/* Attributes that differ from 0: number, value. The device looks like one of compute capability 9.0. */
typedef struct attribute {
    CUdevice_attribute number;
    int value;
    int feature; /* a simcuda_feature without which it is 0, or -1 */
} attribute;
static const attribute attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152, -1},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536, -1},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536, -1},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1755000, -1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512, -1},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1, -1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 114, -1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1, -1},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512, -1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1, -1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1, -1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1593000, -1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120, -1},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048, -1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3, -1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1, -1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32, -1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9, -1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0, -1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472, -1},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536, -1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1, -1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1, SIMCUDA_FEATURE_VMM},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1, SIMCUDA_FEATURE_VMM},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1, SIMCUDA_FEATURE_RDMA},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1, -1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1, SIMCUDA_FEATURE_ASYNC_POOLS},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1, SIMCUDA_FEATURE_RDMA},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1, -1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1, -1},
};

SIM_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice device)
{
    SIM_ENTER("cuDeviceGetAttribute");
    SIM_REFUSE_IF(!value || (int)number <= 0, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    *value = 0;
    if (number == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = device + 1;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].number == number && (attributes[i].feature < 0 || sim.features[attributes[i].feature]))
            *value = attributes[i].value;
    SIM_RETURN(CUDA_SUCCESS);
}
