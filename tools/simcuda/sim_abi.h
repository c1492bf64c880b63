/*
 * Driver types that simcuda needs beyond those of lib/driver/driver_abi.h, laid out as CUDA 13.0 lays them out.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#include "driver/driver_abi.h"

#ifndef __cuda_cuda_h__ /* as in driver_abi.h */

/* cuCtxCreate_v3 and _v4: seen only to be refused, so what the pointers lead to stays unknown. */
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUctxCigParam_st CUctxCigParam;
typedef struct CUctxCreateParams_st {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    CUctxCigParam *cigParams;
} CUctxCreateParams;

/* Kernels: options of compilers that are not there, and what a launch is given. */
typedef unsigned int CUjit_option, CUlibraryOption, CUmoduleLoadingMode, CUfunction_attribute;
typedef struct CUlaunchAttribute_st CUlaunchAttribute;
typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

#endif

#endif
