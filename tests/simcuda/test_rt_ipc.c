/*
 * IPC handles and pointer attributes of every kind of memory (cuda.h, cuIpc... and cuPointerGetAttribute).
 */
#include "test_rt_driver.h"

#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)2 << 20)
#define LAZY_PEER_ACCESS 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

static CUdeviceptr pool_memory(CUstream stream)
{
    CUdeviceptr address = 0;
    OK(cu.MemAllocAsync(&address, PAGE, stream));
    return address;
}

static void handles_of_memory(void **state)
{
    (void)state;
    CUipcMemHandle handle, inside, other;
    CUdeviceptr memory = new_memory(PAGE), opened = 0;
    OK(cu.IpcGetMemHandle(&handle, memory));
    OK(cu.IpcGetMemHandle(&inside, memory + 4096));
    assert_memory_equal(&handle, &inside, sizeof handle);
    /* the exporting process cannot open it */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.IpcOpenMemHandle(&opened, handle, LAZY_PEER_ACCESS));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcCloseMemHandle(memory));
    memset(&other, 7, sizeof other);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.IpcOpenMemHandle(&opened, other, LAZY_PEER_ACCESS));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcOpenMemHandle(&opened, handle, 0));
    /* "a subsequent call to cuMemAlloc returns memory with the same device address, cuIpcGetMemHandle will return a unique handle" */
    OK(cu.MemFree(memory));
    assert_int_equal(new_memory(PAGE), memory);
    OK(cu.IpcGetMemHandle(&other, memory));
    assert_memory_not_equal(&handle, &other, sizeof handle);
}

static void memory_without_handles(void **state)
{
    (void)state;
    CUipcMemHandle handle;
    void *host;
    OK(cu.MemHostAlloc(&host, 4096, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcGetMemHandle(&handle, new_vmm_page(PAGE)));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcGetMemHandle(&handle, pool_memory(new_stream())));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)host));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcGetMemHandle(&handle, 4096));
}

/* Run in a process of its own, which is given the handle in this variable. */
#define HANDLE_VARIABLE "TEST_RT_IPC_HANDLE"

static void use_handle_here(void **state)
{
    (void)state;
    CUipcMemHandle handle;
    CUdeviceptr first = 0, second = 0;
    simcuda_census census;
    const char *text = getenv(HANDLE_VARIABLE);
    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned byte;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
        handle.reserved[i] = (char)byte;
    }
    OK(cu.IpcOpenMemHandle(&first, handle, LAZY_PEER_ACCESS));
    /* "If the memory handle has already been opened by the current context ... the existing device pointer is returned." */
    OK(cu.IpcOpenMemHandle(&second, handle, LAZY_PEER_ACCESS));
    assert_int_equal(first, second);
    panel.count_objects(0, &census);
    assert_int_equal(census.free_bytes, census.capacity_bytes);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFree(first));
    for (int opened = 2; opened > 0; opened--) {
        assert_int_equal(panel.touch(NULL, first, PAGE, 1), 0);
        OK(cu.CtxSynchronize());
        OK(cu.IpcCloseMemHandle(first));
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcCloseMemHandle(first));
    assert_int_equal(panel.touch(NULL, first, PAGE, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(panel.races(), 0);
}

static void opened_in_another_process(void **state)
{
    (void)state;
    CUipcMemHandle handle;
    char text[2 * sizeof handle + 1];
    OK(cu.IpcGetMemHandle(&handle, new_memory(PAGE)));
    for (size_t i = 0; i < sizeof handle; i++) {
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)handle.reserved[i]);
    }
    pid_t child = fork();
    if (child == 0) {
        setenv(HANDLE_VARIABLE, text, 1);
        execl("/proc/self/exe", "test_rt_ipc", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* "created with the CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING flags set" */
static void handles_of_events(void **state)
{
    (void)state;
    CUipcEventHandle handle;
    CUevent event, opened;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.IpcGetEventHandle(&handle, new_event()));
    OK(cu.EventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cu.IpcGetEventHandle(&handle, event));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.IpcOpenEventHandle(&opened, handle));
    memset(&handle, 7, sizeof handle);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.IpcOpenEventHandle(&opened, handle));
}

/* ---- pointer attributes --------------------------------------------------------------------------------------------------------- */

static uint64_t ask(CUpointer_attribute attribute, CUdeviceptr address)
{
    uint64_t value = 0;
    OK(cu.PointerGetAttribute(&value, attribute, address));
    return value;
}

static void attributes_of_plain_memory(void **state)
{
    (void)state;
    CUdeviceptr memory = new_memory(PAGE), inside = memory + 4096;
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_CONTEXT, inside), (uintptr_t)context);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), memory);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), PAGE);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), 1);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), 3);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), 0);
    uint64_t value, id = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside));
    /* "IDs from previous freed allocations" are not reused */
    OK(cu.MemFree(memory));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside));
    assert_int_equal(new_memory(PAGE), memory);
    assert_int_not_equal(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside), id);
}

static void attributes_of_vmm_memory(void **state)
{
    (void)state;
    uint64_t value;
    CUdeviceptr page = new_vmm_page(PAGE), behind = page + PAGE; /* reserved, not mapped */
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_CONTEXT, page), 0);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, page), CU_MEMORYTYPE_DEVICE);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, page), 0);
    /* "not necessarily the address of the mapped region, but ... of the mappable address range" */
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, page + 512), page);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, page), 2 * PAGE);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, page), PAGE);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MAPPED, page), 1);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, behind), page);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MAPPED, behind), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, behind));
    /* a mapping without a grant has no pointer through which this context may reach it */
    CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    OK(cu.MemSetAccess(page, PAGE, &none, 1));
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, page), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, page));
}

static void attributes_of_pool_and_host_memory(void **state)
{
    (void)state;
    void *host;
    CUmemoryPool pool;
    CUdeviceptr memory = pool_memory(new_stream());
    OK(cu.DeviceGetDefaultMemPool(&pool, 0));
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory), (uintptr_t)pool);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_CONTEXT, memory), 0);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory), 0);
    OK(cu.MemHostAlloc(&host, 4096, 0));
    CUdeviceptr pinned = (CUdeviceptr)(uintptr_t)host;
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned + 8), CU_MEMORYTYPE_HOST);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, pinned + 8), pinned + 8);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pinned), pinned);
    void *plain = aligned_alloc(4096, 4096);
    OK(cu.MemHostRegister(plain, 4096, 0));
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)plain), CU_MEMORYTYPE_HOST);
    OK(cu.MemHostUnregister(plain));
    free(plain);
}

/* "this function will not return an error when the ptr encountered is not a valid CUDA pointer. Instead, the attributes are assigned
 * default NULL values and CUDA_SUCCESS is returned." */
static void several_at_once(void **state)
{
    (void)state;
    unsigned type = 99;
    int device = 99, here = 0;
    CUcontext owner = (CUcontext)&owner;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT};
    void *answers[] = {&type, &device, &owner};
    OK(cu.PointerGetAttributes(3, asked, answers, (CUdeviceptr)(uintptr_t)&here));
    assert_int_equal(type, 0);
    assert_int_equal(device, CU_DEVICE_INVALID);
    assert_null(owner);
    OK(cu.PointerGetAttributes(3, asked, answers, new_memory(512)));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(device, 0);
    assert_ptr_equal(owner, context);
    asked[1] = 77;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttributes(3, asked, answers, new_memory(512)));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerGetAttributes(0, asked, answers, new_memory(512)));
}

static void sync_memops(void **state)
{
    (void)state;
    unsigned on = 1;
    CUdeviceptr memory = new_memory(512);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory), 0);
    OK(cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory), 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, new_vmm_page(PAGE)));
    OK(cu.MemFree(memory)); /* the setting goes with the allocation */
    assert_int_equal(new_memory(512), memory);
    assert_int_equal(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory), 0);
}

static int setup(void **state)
{
    (void)state;
    start("sim:1GiB");
    return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest in_child[] = {TEST(use_handle_here)};
    if (getenv(HANDLE_VARIABLE) != NULL) {
        return cmocka_run_group_tests(in_child, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        TEST(handles_of_memory),
        TEST(memory_without_handles),
        TEST(opened_in_another_process),
        TEST(handles_of_events),
        TEST(attributes_of_plain_memory),
        TEST(attributes_of_vmm_memory),
        TEST(attributes_of_pool_and_host_memory),
        TEST(several_at_once),
        TEST(sync_memops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
