/*
 * Memory pools: stream order told by the race checker in every order of the device, reuse, attributes, access, and how memory goes back
 * (cuda.h, cuMemAllocAsync and cuMemPool...).
 */
#include "test_rt_driver.h"

#define PAGE ((size_t)2 << 20)
static const char *const orders[] = {"sim:1GiB,order=eager", "sim:1GiB,order=lazy", "sim:1GiB,order=random:11"};
#define FOR_EACH_ORDER for (size_t order = 0; order < sizeof orders / sizeof orders[0]; order++)

static CUdeviceptr alloc_on(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    OK(cu.MemAllocAsync(&address, bytes, stream));
    assert_int_not_equal(address, 0);
    return address;
}

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;
    OK(cu.DeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = 0;
    OK(cu.MemPoolGetAttribute(pool, which, &value));
    return value;
}

static void set_threshold(CUmemoryPool pool, cuuint64_t bytes)
{
    OK(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static int touch(CUstream stream, CUdeviceptr address) { return panel.touch(stream, address, 512, 1); }

static void used_between_alloc_and_free(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUstream one = new_stream(), two = new_stream();
        CUevent event = new_event();
        CUdeviceptr memory = alloc_on(one, PAGE);
        assert_int_equal(touch(one, memory), 0);
        OK(cu.EventRecord(event, one));
        OK(cu.StreamWaitEvent(two, event, 0));
        assert_int_equal(touch(two, memory), 0);
        OK(cu.EventRecord(event, two));
        OK(cu.StreamWaitEvent(one, event, 0));
        OK(cu.MemFreeAsync(memory, one));
        assert_int_equal(panel.races(), 0);
    }
}

/* "The allocation must not be accessed until the allocation operation completes." */
static void used_before_the_alloc(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUdeviceptr memory = alloc_on(new_stream(), PAGE);
        assert_int_equal(touch(new_stream(), memory), 0);
        assert_int_equal(panel.races(), 1);
    }
}

/* "The allocation must not be accessed after stream execution reaches the free." */
static void freed_under_another_stream(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUstream one = new_stream(), two = new_stream();
        CUevent event = new_event();
        CUdeviceptr memory = alloc_on(one, PAGE);
        OK(cu.EventRecord(event, one));
        OK(cu.StreamWaitEvent(two, event, 0));
        assert_int_equal(touch(two, memory), 0);
        OK(cu.MemFreeAsync(memory, one)); /* does not wait for two */
        assert_int_equal(panel.races(), 1);
        assert_int_equal(touch(one, memory), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_int_equal(panel.findings(SIMCUDA_BAD_ACCESS), 1);
    }
}

static void same_stream_reuses_at_once(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUstream stream = new_stream();
        for (int i = 0; i < 10; i++) {
            CUdeviceptr memory = alloc_on(stream, 3 * PAGE);
            assert_int_equal(touch(stream, memory), 0);
            OK(cu.MemFreeAsync(memory, stream));
        }
        assert_int_equal(attribute(default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 3 * PAGE);
        assert_int_equal(panel.races(), 0);
    }
}

/* Another stream may have it at once only behind a wait; switched off, the pool grows. */
static void other_streams_wait_or_grow(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        start("sim:64MiB,order=lazy");
        int on = allowed;
        CUmemoryPool pool = default_pool();
        OK(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &on));
        CUstream one = new_stream(), two = new_stream();
        CUdeviceptr again = 0, memory = alloc_on(one, (size_t)40 << 20);
        assert_int_equal(touch(one, memory), 0);
        OK(cu.MemFreeAsync(memory, one));
        GIVES(allowed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, cu.MemAllocAsync(&again, (size_t)40 << 20, two));
        if (allowed) {
            assert_int_equal(touch(two, again), 0);
        }
        assert_int_equal(panel.races(), 0);
    }
}

/* The release threshold: "the allocator will try to release memory back to the OS on the next call to stream, event or context
 * synchronize"; trim: what "has not been observed on the host" can count as outstanding. */
static void memory_goes_back(void **state)
{
    (void)state;
    start("sim:1GiB,order=lazy");
    CUmemoryPool pool = default_pool();
    CUstream stream = new_stream();
    set_threshold(pool, UINT64_MAX);
    CUdeviceptr memory = alloc_on(stream, 8 * PAGE);
    OK(cu.MemFreeAsync(memory, stream));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    OK(cu.MemPoolTrimTo(pool, 0));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * PAGE);
    OK(cu.StreamSynchronize(stream));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8 * PAGE);
    OK(cu.MemPoolTrimTo(pool, 0));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    set_threshold(pool, 2 * PAGE);
    CUdeviceptr small = alloc_on(stream, 2 * PAGE);
    memory = alloc_on(stream, 8 * PAGE);
    OK(cu.MemFreeAsync(small, stream));
    OK(cu.MemFreeAsync(memory, stream));
    OK(cu.StreamSynchronize(stream));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * PAGE);
    set_threshold(pool, 0);
    OK(cu.MemFreeAsync(alloc_on(stream, PAGE), stream));
    OK(cu.CtxSynchronize());
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    simcuda_census census;
    panel.count_objects(0, &census);
    assert_int_equal(census.free_bytes, census.capacity_bytes);
    assert_int_equal(panel.races(), 0);
}

static void attributes(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUmemoryPool pool = default_pool();
    CUstream stream = new_stream();
    int on = 0;
    OK(cu.MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &on));
    assert_int_equal(on, 1);
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    CUdeviceptr memory = alloc_on(stream, 1000);
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024);
    OK(cu.MemFreeAsync(memory, stream));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1024);
    cuuint64_t value = 5; /* "It is illegal to set this attribute to a non-zero value." */
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
    value = 0;
    OK(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
}

static CUmemoryPool new_pool(int device, size_t max_bytes)
{
    CUmemoryPool pool = NULL;
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .maxSize = max_bytes};
    OK(cu.MemPoolCreate(&pool, &props));
    return pool;
}

static void pools_of_a_device(void **state)
{
    (void)state;
    start("sim:1GiB,devices=2");
    CUmemoryPool current, pool = new_pool(0, 4 * PAGE), far = new_pool(1, 0);
    CUstream stream = new_stream();
    CUdeviceptr memory, more;
    OK(cu.DeviceGetMemPool(&current, 0));
    assert_ptr_equal(current, default_pool());
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.DeviceSetMemPool(0, far)); /* "The memory pool must be local to the specified device." */
    OK(cu.DeviceSetMemPool(0, pool));
    memory = alloc_on(stream, 3 * PAGE);
    assert_int_equal(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * PAGE);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.MemAllocAsync(&more, 2 * PAGE, stream)); /* maxSize */
    OK(cu.MemPoolDestroy(pool)); /* "sets the default mempool of that device as the current mempool" */
    OK(cu.DeviceGetMemPool(&current, 0));
    assert_ptr_equal(current, default_pool());
    assert_int_equal(touch(stream, memory), 0); /* outstanding allocations live on */
    OK(cu.MemFreeAsync(memory, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemPoolDestroy(default_pool())); /* "cannot be destroyed" */
    OK(cu.StreamSynchronize(stream));
    simcuda_census census;
    panel.count_objects(0, &census);
    assert_int_equal(census.free_bytes, census.capacity_bytes);
}

static void access_from_another_device(void **state)
{
    (void)state;
    start("sim:1GiB,devices=2");
    CUmemoryPool far = new_pool(1, 0);
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc grant = {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                    own = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    CUmemAccess_flags flags;
    CUdeviceptr memory = 0;
    CUstream stream = new_stream();
    OK(cu.MemAllocFromPoolAsync(&memory, PAGE, far, stream)); /* "may be from a device different than that of the specified hStream" */
    assert_int_equal(touch(stream, memory), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cu.MemPoolSetAccess(far, &grant, 1));
    assert_int_equal(touch(stream, memory), 0);
    OK(cu.MemPoolGetAccess(&flags, far, &here));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemPoolSetAccess(far, &own, 1));
}

static void bad_calls(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUdeviceptr memory = 0, plain = new_memory(512);
    CUstream stream = new_stream();
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemAllocAsync(&memory, 0, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemAllocAsync(NULL, 512, stream));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.MemAllocAsync(&memory, SIZE_MAX, stream));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.MemAllocAsync(&memory, (size_t)2 << 30, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFreeAsync(plain, stream));
    memory = alloc_on(stream, PAGE);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFreeAsync(memory + 512, stream));
    OK(cu.MemFreeAsync(memory, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFreeAsync(memory, stream));
    memory = alloc_on(stream, PAGE); /* cuMemFree takes pool memory too */
    OK(cu.StreamSynchronize(stream));
    OK(cu.MemFree(memory));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFree(memory));
    assert_int_equal(panel.races(), 0);
    panel.set_feature(SIMCUDA_FEATURE_ASYNC_POOLS, 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.MemAllocAsync(&memory, 512, stream));
}

/* Memory nodes are not simulated, and say so. */
static void in_a_capture(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUgraph graph;
    CUdeviceptr memory = 0, before;
    CUstream stream = new_stream();
    before = alloc_on(stream, 512);
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.MemAllocAsync(&memory, 512, stream));
    assert_int_equal(panel.findings(SIMCUDA_UNSUPPORTED_CALL), 1);
    /* "must therefore be passed the address of a graph allocation" */
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.MemFreeAsync(before, stream));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.StreamEndCapture(stream, &graph));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(used_between_alloc_and_free),
        cmocka_unit_test(used_before_the_alloc),
        cmocka_unit_test(freed_under_another_stream),
        cmocka_unit_test(same_stream_reuses_at_once),
        cmocka_unit_test(other_streams_wait_or_grow),
        cmocka_unit_test(memory_goes_back),
        cmocka_unit_test(attributes),
        cmocka_unit_test(pools_of_a_device),
        cmocka_unit_test(access_from_another_device),
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(in_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
