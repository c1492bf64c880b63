/*
 * For tests of the simulated driver: its functions as cu.Name(...), asked for through cuGetProcAddress_v2, and its control panel as
 * panel.name(...). Brings cmocka with it.
 */
#ifndef TEST_RT_DRIVER_H
#define TEST_RT_DRIVER_H

#include "driver/driver_abi.h"
#include "sim_abi.h"
#include "simcuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#undef fail

/* clang-format off */
#define TEST_PANEL(F) \
    F(configure) F(set_feature) F(touch) F(gate_close) F(gate_open) F(fail) F(calls_of) F(count_objects) F(findings) F(races) \
    F(finding_text) F(findings_reset)
/* Beside what the runtime asks for. */
#define TEST_MORE_DRIVER(F) \
    F(Init, 2000, (unsigned int flags)) \
    F(GetErrorName, 6000, (CUresult code, const char **name)) \
    F(GetErrorString, 6000, (CUresult code, const char **text)) \
    F(CtxCreate, 3020, (CUcontext * context, unsigned int flags, CUdevice device)) \
    F(CtxDestroy, 4000, (CUcontext context)) \
    F(CtxRecordEvent, 12050, (CUcontext context, CUevent event)) \
    F(CtxWaitEvent, 12050, (CUcontext context, CUevent event)) \
    F(PointerGetAttribute, 4000, (void *data, CUpointer_attribute attribute, CUdeviceptr address)) \
    F(PointerSetAttribute, 6000, (const void *value, CUpointer_attribute attribute, CUdeviceptr address)) \
    F(MemAddressReserve, 10020, (CUdeviceptr * address, size_t bytes, size_t align, CUdeviceptr hint, unsigned long long flags)) \
    F(MemAddressFree, 10020, (CUdeviceptr address, size_t bytes)) \
    F(MemCreate, 10020, (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)) \
    F(MemRelease, 10020, (CUmemGenericAllocationHandle handle)) \
    F(MemMap, 10020, (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
    F(MemUnmap, 10020, (CUdeviceptr address, size_t bytes)) \
    F(MemSetAccess, 10020, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)) \
    F(GraphExecGetFlags, 12000, (CUgraphExec exec, cuuint64_t *flags))
/* clang-format on */

static struct {
#define F(name) __typeof__(simcuda_##name) *name;
    TEST_PANEL(F)
#undef F
} panel;

static struct {
#define RT_DRIVER(name, version, params) CUresult(*name) params;
#include "runtime/rt_driver.def"
    TEST_MORE_DRIVER(RT_DRIVER)
#undef RT_DRIVER
} cu;

typedef CUresult (*get_proc_address_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static get_proc_address_fn get_proc_address;
static CUcontext context;

static void *test_symbol(const char *name)
{
    static void *library;
    if (library == NULL) {
        library = dlopen(SIMCUDA_DIR "/libcuda.so.1", RTLD_NOW);
    }
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        print_error("%s: %s\n", name, dlerror());
        exit(2);
    }
    return symbol;
}

#define TEST_ASSIGN(to, symbol)                   \
    do {                                          \
        void *found_symbol = (symbol);            \
        memcpy(&(to), &found_symbol, sizeof(to)); \
    } while (0)

/* Fresh devices, and the primary context of device 0 current. */
static inline void start(const char *words)
{
#define F(name) TEST_ASSIGN(panel.name, test_symbol("simcuda_" #name));
    TEST_PANEL(F)
#undef F
    char why[200] = "";
    if (panel.configure(words, why, sizeof why) != 0) {
        print_error("%s: %s\n", words, why);
        exit(2);
    }
    TEST_ASSIGN(get_proc_address, test_symbol("cuGetProcAddress_v2"));
#define RT_DRIVER(name, version, params) assert_int_equal(get_proc_address("cu" #name, (void **)&cu.name, version, 0, NULL), CUDA_SUCCESS);
#include "runtime/rt_driver.def"
    TEST_MORE_DRIVER(RT_DRIVER)
#undef RT_DRIVER
    assert_int_equal(cu.Init(0), CUDA_SUCCESS);
    assert_int_equal(cu.DevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cu.CtxSetCurrent(context), CUDA_SUCCESS);
}

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)
#define GIVES(code, call) assert_int_equal((call), (code))

static inline CUstream new_stream(void)
{
    CUstream stream = NULL;
    OK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent new_event(void)
{
    CUevent event = NULL;
    OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline CUdeviceptr new_memory(size_t bytes)
{
    CUdeviceptr address = 0;
    OK(cu.MemAlloc(&address, bytes));
    return address;
}

/* One page of VMM memory with a grant for device 0, and the handle already released. */
static inline CUdeviceptr new_vmm_page(size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = 0;
    OK(cu.MemAddressReserve(&address, 2 * bytes, 0, 0, 0));
    OK(cu.MemCreate(&handle, bytes, &prop, 0));
    OK(cu.MemMap(address, bytes, 0, handle, 0));
    OK(cu.MemSetAccess(address, bytes, &access, 1));
    OK(cu.MemRelease(handle));
    return address;
}

#endif
