/*
 * What the tests of the simulated device share: the library opened by path, its driver functions as pointers of their exported names,
 * its panel, and short forms of what most tests do.
 */
#ifndef SIM_TEST_H
#define SIM_TEST_H

#include "driver/driver_abi.h"
#include "simcuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Functions that the library's own list does not have. */
#define SIM_TEST_MORE(X)                                                                                          \
    X(cuCtxCreate_v4, (CUcontext * context, void *params, unsigned flags, CUdevice device))                       \
    X(cuCtxDestroy_v2, (CUcontext context))                                                                       \
    X(cuCtxGetFlags, (unsigned *flags))                                                                           \
    X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                                    \
    X(cuCtxDisablePeerAccess, (CUcontext peer))                                                                   \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice device))                                                              \
    X(cuStreamCreate, (CUstream * stream, unsigned flags))                                                        \
    X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))                              \
    X(cuStreamGetPriority, (CUstream stream, int *priority))                                                      \
    X(cuStreamGetFlags, (CUstream stream, unsigned *flags))                                                       \
    X(cuStreamDestroy_v2, (CUstream stream))                                                                      \
    X(cuStreamQuery, (CUstream stream))                                                                           \
    X(cuStreamGetId_ptsz, (CUstream stream, unsigned long long *id))                                              \
    X(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data))                                         \
    X(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))                                      \
    X(cuMemAllocPitch_v2, (CUdeviceptr * address, size_t * pitch, size_t width, size_t height, unsigned element)) \
    X(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * bytes, CUdeviceptr address))                         \
    X(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))                                        \
    X(cuMemHostUnregister, (void *address))                                                                       \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void *address, unsigned flags))                        \
    X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                                          \
    X(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                                \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                    \
    X(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *rectangle))                                                            \
    X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *rectangle, CUstream stream))                                      \
    X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                          \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                    \
    X(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count))                                         \
    X(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))                          \
    X(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address))            \
    X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address))                        \
    X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))  \
    X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type))

#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) static result(CUDAAPI *exported) params;
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
#define SIM_TEST_DECLARE(name, params) static CUresult(CUDAAPI *name) params;
SIM_TEST_MORE(SIM_TEST_DECLARE)
#undef SIM_TEST_DECLARE

/* The panel under its own names, as pointers in a struct: panel.touch(...). */
/* clang-format off */
#define SIM_TEST_PANEL(X) \
    X(configure) X(reset) X(set_feature) X(touch) X(gate_close) X(gate_open) X(run_device) X(clock_ns) X(sibling_take) \
    X(sibling_return) X(notify_over_budget) X(refuse_memory) X(set_mapping_ceiling) X(fail_clear) X(failures_injected) X(park) X(wait_parked) \
    X(release_parked) X(calls) X(calls_of) X(call_at) X(counts_reset) X(cost_us) X(inside_ns) X(count_objects) X(mapping_at) \
    X(mappings) X(findings) X(races) X(finding_text) X(findings_reset)
/* clang-format on */

static struct {
#define SIM_TEST_FIELD(name) __typeof__(simcuda_##name) *name;
    SIM_TEST_PANEL(SIM_TEST_FIELD)
#undef SIM_TEST_FIELD
    __typeof__(simcuda_fail) *plan_failure; /* cmocka has a macro fail() */
} panel;

/* dlsym gives an object pointer; POSIX says it may be used as a function's. */
static void sim_test_find(void *library, const char *name, void *pointer)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s is not exported\n", name);
        exit(1);
    }
    memcpy(pointer, &found, sizeof found);
}

static int sim_test_open(void **state)
{
    (void)state;
    void *library = dlopen(SIMCUDA_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) sim_test_find(library, #exported, &exported);
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
#define SIM_TEST_FIND(name, params) sim_test_find(library, #name, &name);
    SIM_TEST_MORE(SIM_TEST_FIND)
#undef SIM_TEST_FIND
#define SIM_TEST_FIND(name) sim_test_find(library, "simcuda_" #name, &panel.name);
    SIM_TEST_PANEL(SIM_TEST_FIND)
#undef SIM_TEST_FIND
    sim_test_find(library, "simcuda_fail", &panel.plan_failure);
    return 0;
}

#define PAGE (UINT64_C(2) << 20)
#define OK(call) assert_int_equal((call), CUDA_SUCCESS)
#define REFUSED(code, call) assert_int_equal((call), (code))

/* Configure, initialise, and make device 0's primary context current. */
static inline CUcontext sim_test_start(const char *words)
{
    char error[256] = "";
    if (panel.configure(words, error, sizeof error) != 0)
        fail_msg("%s", error);
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

static inline CUstream sim_test_stream(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent sim_test_event(void)
{
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline CUmemAllocationProp sim_test_prop(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static inline CUmemGenericAllocationHandle sim_test_page(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = sim_test_prop(0);
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    return handle;
}

static inline CUdeviceptr sim_test_reserve(uint64_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

static inline CUresult sim_test_grant(CUdeviceptr address, uint64_t bytes)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, bytes, &access, 1);
}

static inline void sim_test_map(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
    OK(cuMemMap(address, PAGE, 0, handle, 0));
    OK(sim_test_grant(address, PAGE));
}

static inline simcuda_census sim_test_census(void)
{
    simcuda_census census;
    panel.count_objects(0, &census);
    return census;
}

/* A wrong program is reported in every order, a right one in none. */
static const char *const sim_test_orders[] = {"sim:1GiB,order=eager", "sim:1GiB,order=lazy", "sim:1GiB,order=random:7"};
#define EACH_ORDER(words) \
    for (const char *const *order_ = sim_test_orders, *words = *order_; order_ < sim_test_orders + 3 && (words = *order_, true); order_++)

#endif /* SIM_TEST_H */
