/*
 * Virtual memory management, cuMemAlloc and pinned memory against the text of cuda.h (CUDA 13.0): each test names the function whose
 * documentation it holds the device to.
 */
#include "sim_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* cuMemGetAllocationGranularity, cuMemCreate: "size ... must be a multiple of" the minimum granularity; flags "must be zero now". */
static void create_refuses(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = sim_test_prop(0);
    size_t granularity = 0;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    assert_int_equal(granularity, PAGE);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PAGE / 2, &prop, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PAGE, &prop, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PAGE, NULL, 0));
    prop.location.id = 1;
    REFUSED(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, PAGE, &prop, 0));
    prop = sim_test_prop(0);
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PAGE, &prop, 0));
}

/* cuMemCreate returns OUT_OF_MEMORY when the device is full; cuMemGetInfo counts what was created, not what was reserved. */
static void capacity_is_kept(void **state)
{
    (void)state;
    sim_test_start("sim:6MiB");
    size_t there, total;
    sim_test_reserve(64 * PAGE);
    OK(cuMemGetInfo_v2(&there, &total));
    assert_int_equal(there, 3 * PAGE);
    assert_int_equal(total, 3 * PAGE);
    CUmemAllocationProp prop = sim_test_prop(0);
    CUmemGenericAllocationHandle first = sim_test_page(), second;
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&second, 3 * PAGE, &prop, 0));
    OK(cuMemCreate(&second, 2 * PAGE, &prop, 0));
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&second, PAGE, &prop, 0));
    OK(cuMemRelease(first));
    OK(cuMemGetInfo_v2(&there, &total));
    assert_int_equal(there, PAGE);
}

/* cuMemMap: address, size multiples of the granularity, offset zero, flags zero, inside one reservation, not mapped yet. */
static void map_refuses(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    CUmemGenericAllocationHandle handle = sim_test_page();
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 4096, PAGE, 0, handle, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE / 2, 0, handle, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, PAGE, handle, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, 0, handle, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, 2 * PAGE, 0, handle, 0)); /* larger than the memory */
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 4 * PAGE, PAGE, 0, handle, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, 0, 12345, 0));
    OK(cuMemMap(base, PAGE, 0, handle, 0));
    CUmemGenericAllocationHandle other = sim_test_page();
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, 0, other, 0));
    CUmemAllocationProp prop = sim_test_prop(0);
    OK(cuMemCreate(&other, 2 * PAGE, &prop, 0));
    OK(cuMemMap(base + PAGE, 2 * PAGE, 0, other, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 3 * PAGE, 2 * PAGE, 0, other, 0)); /* past the end of the reservation */
    assert_int_equal(sim_test_census().mappings, 2);
}

/* cuMemUnmap: "The range must be the entire contiguous address range that was mapped to"; several mappings in one call are one range. */
static void unmap_takes_whole_mappings(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base = sim_test_reserve(8 * PAGE);
    CUmemAllocationProp prop = sim_test_prop(0);
    CUmemGenericAllocationHandle two;
    OK(cuMemCreate(&two, 2 * PAGE, &prop, 0));
    OK(cuMemMap(base, 2 * PAGE, 0, two, 0));
    OK(cuMemMap(base + 2 * PAGE, PAGE, 0, sim_test_page(), 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base + PAGE, PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, 4 * PAGE)); /* the last page is not mapped */
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base + 4 * PAGE, PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, 0));
    assert_int_equal(sim_test_census().mappings, 2);
    OK(cuMemUnmap(base, 3 * PAGE));
    assert_int_equal(sim_test_census().mappings, 0);
    OK(cuMemMap(base, 2 * PAGE, 0, two, 0)); /* "can be used for a future calls to cuMemMap" */
}

/* cuMemAddressFree: base and size must match; a range with a mapping in it is refused. cuMemAddressReserve: alignment, sizes. */
static void reservations(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base, other;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&base, 100, 0, 0, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&base, 0, 0, 0, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&base, PAGE, 3 * PAGE, 0, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&base, PAGE, 0, 0, 1));
    OK(cuMemAddressReserve(&base, PAGE, 64 * PAGE, 0, 0));
    assert_int_equal(base % (64 * PAGE), 0);
    OK(cuMemAddressFree(base, PAGE));
    base = sim_test_reserve(4 * PAGE);
    other = sim_test_reserve(4 * PAGE);
    assert_true(base + 4 * PAGE <= other || other + 4 * PAGE <= base);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base + PAGE, 3 * PAGE));
    sim_test_map(base + PAGE, sim_test_page());
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 4 * PAGE));
    OK(cuMemUnmap(base + PAGE, PAGE));
    OK(cuMemAddressFree(base, 4 * PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 4 * PAGE));
    OK(cuMemAddressFree(other, 4 * PAGE));
    assert_int_equal(sim_test_census().reservations, 0);
}

/* cuMemSetAccess: "The range must be a fully mapped address range"; grants are per mapping and lost with it (cuMemUnmap). */
static void access_is_per_mapping(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,devices=2");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    CUmemGenericAllocationHandle handle = sim_test_page();
    CUstream stream = sim_test_stream();
    OK(cuMemMap(base, PAGE, 0, handle, 0));
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, base, PAGE, 0));
    assert_int_equal(panel.findings(SIMCUDA_BAD_ACCESS), 1);
    REFUSED(CUDA_ERROR_INVALID_VALUE, sim_test_grant(base, 2 * PAGE));
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    OK(cuMemSetAccess(base, PAGE, &access, 1));
    OK(panel.touch(stream, base, PAGE, 0));
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, base, PAGE, 1));
    OK(sim_test_grant(base, PAGE));
    OK(panel.touch(stream, base, PAGE, 1));
    unsigned long long flags;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, there = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    OK(cuMemGetAccess(&flags, &here, base));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemGetAccess(&flags, &there, base));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    access = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 7}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    REFUSED(CUDA_ERROR_INVALID_DEVICE, cuMemSetAccess(base, PAGE, &access, 1));

    OK(cuMemMap(base + PAGE, PAGE, 0, handle, 0)); /* the same memory elsewhere: its own grants */
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, base + PAGE, PAGE, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemUnmap(base, PAGE));
    OK(cuMemMap(base, PAGE, 0, handle, 0));
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, base, PAGE, 0));
}

/* Grants are per device too: a context of the other device needs its own. */
static void access_is_per_device(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,devices=2");
    CUdeviceptr base = sim_test_reserve(PAGE);
    sim_test_map(base, sim_test_page());
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent_v2(other));
    CUstream stream = sim_test_stream();
    CUdeviceptr block;
    OK(cuMemAlloc_v2(&block, PAGE));
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(stream, base, PAGE, 0));
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoDAsync_v2(block, base, PAGE, stream)); /* a copy needs the grant too */
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(base, PAGE, &access, 1));
    OK(panel.touch(stream, base, PAGE, 1));
    OK(cuMemcpyDtoDAsync_v2(block, base, PAGE, stream));
    panel.set_feature(SIMCUDA_FEATURE_PEER, 0);
    REFUSED(CUDA_ERROR_INVALID_DEVICE, cuMemSetAccess(base, PAGE, &access, 1));
}

/* cuMemRelease: "The memory allocation will be freed when all outstanding mappings ... are unmapped and when all outstanding references
 * ... are also released". */
static void memory_counts_until_last_mapping_and_handle(void **state)
{
    (void)state;
    sim_test_start("sim:8MiB");
    CUdeviceptr base = sim_test_reserve(2 * PAGE);
    CUmemGenericAllocationHandle handle = sim_test_page(), again;
    sim_test_map(base, handle);
    sim_test_map(base + PAGE, handle);
    OK(cuMemRelease(handle));
    assert_int_equal(sim_test_census().handles, 1);
    assert_int_equal(sim_test_census().free_bytes, 3 * PAGE);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, 0, handle, 0));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 2);
    OK(cuMemUnmap(base, PAGE));
    assert_int_equal(sim_test_census().free_bytes, 3 * PAGE);
    /* cuMemRetainAllocationHandle: "The handle is guaranteed to be the same handle value used to map the memory" */
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + PAGE + 4096)));
    assert_int_equal(again, handle);
    OK(cuMemUnmap(base + PAGE, PAGE));
    assert_int_equal(sim_test_census().handles, 1);
    OK(cuMemRelease(again));
    assert_int_equal(sim_test_census().handles, 0);
    assert_int_equal(sim_test_census().free_bytes, 4 * PAGE);
}

/* cuMemRetainAllocationHandle: "must be released with corresponding number of calls to cuMemRelease". */
static void retained_handles_count(void **state)
{
    (void)state;
    sim_test_start("sim:8MiB");
    CUdeviceptr base = sim_test_reserve(PAGE);
    CUmemGenericAllocationHandle handle = sim_test_page(), again;
    sim_test_map(base, handle);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base));
    OK(cuMemUnmap(base, PAGE));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(handle));
    assert_int_equal(sim_test_census().free_bytes, 4 * PAGE);
}

/* Values and addresses come back last in, first out, as they do from real drivers: a stale one names something else. */
static void values_are_reused(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUmemGenericAllocationHandle a = sim_test_page(), b = sim_test_page();
    OK(cuMemRelease(a));
    OK(cuMemRelease(b));
    assert_int_equal(sim_test_page(), b);
    assert_int_equal(sim_test_page(), a);
    CUdeviceptr x = sim_test_reserve(PAGE), y = sim_test_reserve(PAGE);
    OK(cuMemAddressFree(x, PAGE));
    OK(cuMemAddressFree(y, PAGE));
    assert_int_equal(sim_test_reserve(PAGE), y);
    assert_int_equal(sim_test_reserve(PAGE), x);
    CUstream s = sim_test_stream(), t;
    OK(cuStreamDestroy_v2(s));
    t = sim_test_stream();
    assert_ptr_equal(s, t);
    CUevent e = sim_test_event();
    OK(cuEventDestroy_v2(e));
    assert_ptr_equal(e, sim_test_event());
    CUdeviceptr m, n;
    OK(cuMemAlloc_v2(&m, 100));
    OK(cuMemFree_v2(m));
    OK(cuMemAlloc_v2(&n, 100));
    assert_int_equal(m, n);
}

/* Reported of real drivers: too many live mappings show as a failure of cuMemSetAccess. */
static void mapping_ceiling(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    panel.set_mapping_ceiling(3);
    CUdeviceptr base = sim_test_reserve(8 * PAGE);
    CUmemGenericAllocationHandle handle = sim_test_page();
    for (int i = 0; i < 3; i++)
        sim_test_map(base + i * PAGE, handle);
    OK(cuMemMap(base + 3 * PAGE, PAGE, 0, handle, 0));
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, sim_test_grant(base + 3 * PAGE, PAGE));
    OK(sim_test_grant(base, 3 * PAGE)); /* again on what has it */
    OK(cuMemUnmap(base, PAGE));
    OK(sim_test_grant(base + 3 * PAGE, PAGE));
    assert_int_equal(sim_test_census().peak_mappings, 4);
}

/* cuMemGetAllocationPropertiesFromHandle: what was asked for, as far as the device has it. */
static void properties_are_read_back(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUmemAllocationProp prop = sim_test_prop(0), back;
    CUmemGenericAllocationHandle handle;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&back, handle));
    assert_int_equal(back.allocFlags.gpuDirectRDMACapable, 1);
    assert_int_equal(back.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    panel.set_feature(SIMCUDA_FEATURE_RDMA, 0);
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&back, handle));
    assert_int_equal(back.allocFlags.gpuDirectRDMACapable, 0); /* a request, not a promise */
}

/* cuMemAlloc: 0 bytes and NULL are INVALID_VALUE; cuMemFree: "ptr" must be what cuMemAlloc gave; NULL is fine, twice is not. */
static void alloc_and_free(void **state)
{
    (void)state;
    sim_test_start("sim:8MiB");
    CUdeviceptr a, b, base;
    size_t bytes, pitch;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&a, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 100));
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, 5 * PAGE));
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, SIZE_MAX));
    OK(cuMemAlloc_v2(&a, 1000));
    assert_int_equal(a % 512, 0);
    assert_int_equal(sim_test_census().free_bytes, 4 * PAGE - 1024);
    OK(cuMemAlloc_v2(&b, 3 * PAGE - 100));
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&b, PAGE));
    OK(cuMemGetAddressRange_v2(&base, &bytes, b + 70000));
    assert_int_equal(base, b);
    assert_int_equal(bytes, 3 * PAGE - 100);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(b + 512));
    OK(cuMemFree_v2(b));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(b));
    OK(cuMemFree_v2(0));
    OK(cuMemFree_v2(a));
    OK(cuMemAllocPitch_v2(&a, &pitch, 700, 10, 4));
    assert_int_equal(pitch, 1024);
    OK(cuMemFree_v2(a));
    assert_int_equal(sim_test_census().free_bytes, 4 * PAGE);
}

/* cuMemHostAlloc, cuMemHostRegister: unified addressing, so the device pointer is the host's; registered once only. */
static void pinned_memory(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    void *host;
    CUdeviceptr device;
    CUstream stream = sim_test_stream();
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&host, 0, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&host, 100, 0x80));
    OK(cuMemHostAlloc(&host, 100000, CU_MEMHOSTALLOC_PORTABLE));
    memset(host, 5, 100000);
    OK(cuMemHostGetDevicePointer_v2(&device, host, 0));
    assert_int_equal(device, (uintptr_t)host);
    OK(panel.touch(stream, device, 100000, 1));
    assert_int_equal(sim_test_census().pinned_bytes, 100000);
    OK(cuStreamSynchronize(stream));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((char *)host + 64));
    OK(cuMemFreeHost(host));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));

    static char own[8192];
    OK(cuMemHostRegister_v2(own, sizeof own, 0));
    REFUSED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own + 4096, 4096, 0));
    OK(cuMemHostGetDevicePointer_v2(&device, own, 0));
    REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own + 4096));
    OK(cuMemHostUnregister(own));
    REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
    assert_int_equal(panel.races(), 0);
}

/* Ghost memory: no CPU may touch it, and nothing can hide there. */
static void cpu_touch_faults(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr mapped = sim_test_reserve(PAGE), allocated;
    sim_test_map(mapped, sim_test_page());
    OK(cuMemAlloc_v2(&allocated, 4096));
    CUdeviceptr places[] = {mapped, allocated};
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            *(volatile char *)(uintptr_t)places[i] = 1;
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGSEGV);
    }
}

/* A device without VMM: attribute 102 reads 0, the calls are refused. */
static void features_off(void **state)
{
    (void)state;
    CUcontext context = sim_test_start("sim:1GiB");
    int value;
    CUdeviceptr address;
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
    panel.set_feature(SIMCUDA_FEATURE_VMM, 0);
    panel.set_feature(SIMCUDA_FEATURE_RDMA, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0));
    assert_int_equal(value, 0);
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemAddressReserve(&address, PAGE, 0, 0, 0));
    panel.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, 0);
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuCtxRecordEvent(context, sim_test_event()));
    panel.set_feature(SIMCUDA_FEATURE_STREAM_ID, 0);
    unsigned long long id;
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuStreamGetId(NULL, &id));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_refuses),
        cmocka_unit_test(capacity_is_kept),
        cmocka_unit_test(map_refuses),
        cmocka_unit_test(unmap_takes_whole_mappings),
        cmocka_unit_test(reservations),
        cmocka_unit_test(access_is_per_mapping),
        cmocka_unit_test(access_is_per_device),
        cmocka_unit_test(memory_counts_until_last_mapping_and_handle),
        cmocka_unit_test(retained_handles_count),
        cmocka_unit_test(values_are_reused),
        cmocka_unit_test(mapping_ceiling),
        cmocka_unit_test(properties_are_read_back),
        cmocka_unit_test(alloc_and_free),
        cmocka_unit_test(pinned_memory),
        cmocka_unit_test(cpu_touch_faults),
        cmocka_unit_test(features_off),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
