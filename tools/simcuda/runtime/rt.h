/*
 * What the files of the simulated runtime share: the driver's functions, the calling thread's state, and the way in and out that every
 * runtime call takes.
 */
#ifndef SIM_RT_H
#define SIM_RT_H

#include "runtime/sim_runtime_abi.h"

#include <stdbool.h>

/* The version script decides what is exported; this keeps the names of the runtime apart from those of these files. */
#define RT_API __attribute__((visibility("default")))

typedef struct rt_driver {
#define RT_DRIVER(name, version, params) CUresult(CUDAAPI *name) params;
#include "runtime/rt_driver.def"
#undef RT_DRIVER
    CUresult(CUDAAPI *get_proc_address)(const char *name, void **function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status);
} rt_driver;

extern rt_driver rt;

/* Load and initialise the driver at the first call of the process. */
cudaError_t rt_load(void);
/* As rt_load, and see to a current context: the thread's own, else the primary context of its device. */
cudaError_t rt_enter(void);
/* Store code as the thread's last error unless it is success, and return it. */
cudaError_t rt_leave(cudaError_t code);
cudaError_t rt_last_error(bool clear);

/* The driver's code is the runtime's: both use the same numbers. */
static inline cudaError_t rt_code(CUresult code) { return (cudaError_t)code; }

/* The device that calls of this thread go to. */
int rt_thread_device(void);
void rt_set_thread_device(int device);
/* The primary contexts of device are gone: threads take them anew at their next call. */
void rt_forget_contexts(int device);
cudaError_t rt_primary_context(int device, CUcontext *context);

/* Say that name is not simulated unless *said, and count the finding; both are done by the driver, if it is the simulated one. */
void rt_say_unsupported(const char *name, int *said);
/* Whether the driver is the simulated one and takes launches of kernels, which it does not execute. */
bool rt_accepts_kernels(void);

static inline CUdeviceptr rt_address(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

/* What stream 0 means to a program compiled for per-thread default streams. */
static inline CUstream rt_per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

/* The driver call of a runtime function: not supported where the driver lacks it. */
#define RT_CALL(name, arguments) (rt.name == NULL ? cudaErrorNotSupported : rt_code(rt.name arguments))

/* A runtime function that is its driver function. */
#define RT_FORWARD(function, params, name, arguments) \
    RT_API cudaError_t function params;               \
    cudaError_t function params                       \
    {                                                 \
        cudaError_t code = rt_enter();                \
        if (code == cudaSuccess) {                    \
            code = RT_CALL(name, arguments);          \
        }                                             \
        return rt_leave(code);                        \
    }

/* The same with a parameter called stream, in both of its forms; function_ps is the name of the per-thread form. */
#define RT_FORWARD_STREAM(function, function_ps, params, name, arguments) \
    RT_FORWARD(function, params, name, arguments)                         \
    RT_API cudaError_t function_ps params;                                \
    cudaError_t function_ps params                                        \
    {                                                                     \
        stream = rt_per_thread(stream);                                   \
        return function arguments;                                        \
    }

#endif
