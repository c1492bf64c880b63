/*
 * The CUDA runtime API's types, as far as the simulated runtime serves them, laid out as the toolkits of CUDA 12 and 13 lay them out.
 * Handles and the structs of pools, graphs and IPC are the driver's own, under other names.
 */
#ifndef SIM_RUNTIME_ABI_H
#define SIM_RUNTIME_ABI_H

#include "driver/driver_abi.h"
#include "sim_abi.h"

/* Which runtime this is: one source makes both libraries. */
#ifndef SIM_RUNTIME_MAJOR
#define SIM_RUNTIME_MAJOR 13
#endif
#if SIM_RUNTIME_MAJOR == 12
#define SIM_RUNTIME_VERSION 12080
#else
#define SIM_RUNTIME_VERSION 13000
#endif

typedef enum cudaError {
#define SIM_ERROR(number, name, text) name = number,
#include "sim_errors.def"
#undef SIM_ERROR
} cudaError_t;

typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault /* told from the addresses */
} cudaMemcpyKind;

typedef enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged } cudaMemoryType;

struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
#if SIM_RUNTIME_MAJOR >= 13
    long reserved[8];
#endif
};

/* The device that memory nobody registered belongs to. */
#define cudaInvalidDeviceId (-2)

struct cudaExtent {
    size_t width, height, depth;
};

struct cudaPitchedPtr {
    void *ptr;
    size_t pitch, xsize, ysize;
};

struct dim3 {
    unsigned int x, y, z;
};

struct cudaLaunchConfig_st {
    struct dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    CUstream stream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout;
    int clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
    int clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed, reserved[16];
};

struct cudaDeviceProp {
    char name[256];
    CUuuid uuid;
    char luid[8];
    unsigned int luidDeviceNodeMask;
    size_t totalGlobalMem;
#define SIM_PROPERTY(type, name, count, attribute) type name[count];
#include "runtime/rt_properties.def"
#undef SIM_PROPERTY
};

#endif
