/*
 * Driver types that simcuda needs beyond those of lib/driver/driver_abi.h, laid out as CUDA 13.0 lays them out.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#include "driver/driver_abi.h"

/* cuCtxCreate_v4; only the size of its parts matters here, since affinity and CIG are refused. */
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;

#endif
