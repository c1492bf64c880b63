/*
 * Driver types that the device checks need beyond those of lib/driver/driver_abi.h, laid out as CUDA 13.0 lays them out; tests/abi compares
 * them with a toolkit's cuda.h.
 */
#ifndef GPU_ABI_H
#define GPU_ABI_H

#include "driver/driver_abi.h"

typedef struct CUctxCreateParams_st CUctxCreateParams;

/* One attribute of a launch: of the many that the driver knows, the one that lets a kernel start before the one before it has ended. */
enum { GPU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
typedef struct CUlaunchAttribute_st {
    int id;
    char pad[4];
    union {
        char pad[64];
        uint64_t alignment;
        int programmaticStreamSerializationAllowed;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

#endif
