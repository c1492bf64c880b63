/*
 * The control panel against its header: words, counts, costs, failure plans, parking, the sibling; and copies and fills in content mode.
 */
#include "sim_test.h"

#include <pthread.h>

static void words_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "sim",
                                      "sim:",
                                      "sim:0",
                                      "sim:12Gb",
                                      "sim:-1",
                                      "sim:1GiB,",
                                      "sim:1GiB,order=slow",
                                      "sim:1GiB,order=random",
                                      "sim:1GiB,order=random:",
                                      "sim:1GiB,order=random:x",
                                      "sim:1GiB,page=3MiB",
                                      "sim:1GiB,page=4KiB",
                                      "sim:1GiB,devices=0",
                                      "sim:1GiB,devices=65",
                                      "sim:1GiB,devices=two",
                                      "sim:99999999999GiB",
                                      "cuda:0",
                                      "sim:1GiB,what"};
    sim_test_start("sim:4MiB");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char error[256] = "";
        if (panel.configure(bad[i], error, sizeof error) != -1)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_true(error[0] != 0);
        assert_null(strchr(error, '\n'));
    }
    assert_int_equal(panel.configure(bad[0], NULL, 0), -1);
    assert_int_equal(sim_test_census().capacity_bytes, 4 << 20); /* nothing changed */

    sim_test_start("sim:64MiB,order=random:5,page=32MiB,devices=3");
    CUmemAllocationProp prop = sim_test_prop(2);
    size_t granularity;
    int count;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(granularity, 32 << 20);
    OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 3);
    sim_test_start("sim:4096");
    assert_int_equal(sim_test_census().capacity_bytes, 4096);
}

static void reset_forgets(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    sim_test_map(base, sim_test_page());
    sim_test_page();
    sim_test_stream();
    panel.touch(NULL, 4096, 1, 1);
    panel.refuse_memory(0, 1);
    panel.plan_failure("*", 1, 0, 999, SIMCUDA_BEFORE);
    panel.reset();
    simcuda_census census = sim_test_census();
    assert_int_equal(census.handles + census.mappings + census.reservations + census.streams + census.contexts, 0);
    assert_int_equal(census.free_bytes, 64 << 20);
    assert_int_equal(panel.findings(SIMCUDA_BAD_ACCESS), 0);
    int count;
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    sim_test_start("sim:64MiB");
    sim_test_page();
}

static void calls_are_counted_in_groups(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUstream stream = sim_test_stream();
    CUevent event = sim_test_event();
    panel.counts_reset();
    CUdeviceptr base = sim_test_reserve(2 * PAGE), block;
    sim_test_map(base, sim_test_page());
    OK(cuMemUnmap(base, PAGE));
    OK(cuMemAddressFree(base, 2 * PAGE));
    OK(cuMemAlloc_v2(&block, 100));
    OK(cuMemFree_v2(block));
    assert_int_equal(panel.calls(SIMCUDA_MEMORY), 8);
    OK(cuEventRecord(event, stream));
    OK(cuEventQuery(event));
    OK(cuStreamWaitEvent(stream, event, 0));
    OK(cuCtxRecordEvent(NULL, event));
    OK(cuCtxWaitEvent(NULL, event));
    assert_int_equal(panel.calls(SIMCUDA_ORDER), 5);
    assert_int_equal(panel.calls(SIMCUDA_HOST_SYNC), 0);
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxSynchronize());
    assert_int_equal(panel.calls(SIMCUDA_HOST_SYNC), 3);
    char bytes[16];
    OK(cuMemAlloc_v2(&block, 100));
    OK(cuMemcpyDtoH_v2(bytes, block, sizeof bytes)); /* the host waits for the device */
    assert_int_equal(panel.calls(SIMCUDA_HOST_SYNC), 4);
    assert_int_equal(panel.calls(SIMCUDA_OTHER), 0);

    assert_int_equal(panel.calls_of("cuMemMap"), 1);
    assert_int_equal(panel.calls_of("cuMemAlloc"), 2); /* by either name */
    assert_int_equal(panel.calls_of("cuMemAlloc_v2"), 2);
    assert_int_equal(panel.calls_of("cuNoSuchCall"), 0);
    uint64_t count, all = 0, before = UINT64_MAX;
    const char *name;
    for (size_t i = 0; (name = panel.call_at(i, &count)); i++) {
        assert_true(count > 0 && count <= before);
        assert_int_equal(panel.calls_of(name), count);
        before = count;
        all += count;
    }
    assert_int_equal(all, panel.calls(SIMCUDA_MEMORY) + panel.calls(SIMCUDA_ORDER) + panel.calls(SIMCUDA_HOST_SYNC));
    assert_true(panel.inside_ns() > 0);
}

static void costs_by_two_tables(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    for (int i = 0; i < 4; i++)
        OK(cuMemMap(base + (uint64_t)i * PAGE, PAGE, 0, sim_test_page(), 0));
    uint64_t clock = panel.clock_ns();
    panel.counts_reset();
    OK(sim_test_grant(base, 4 * PAGE));
    assert_true(panel.cost_us("per_page") > 250 && panel.cost_us("per_page") < 280);
    assert_true(panel.cost_us("per_range") > 60 && panel.cost_us("per_range") < 70);
    assert_true(panel.clock_ns() - clock > 250000);
    assert_true(panel.cost_us("no such table") == -1);
    panel.counts_reset();
    OK(cuMemUnmap(base, 4 * PAGE));
    assert_true(panel.cost_us("per_page") > 140 && panel.cost_us("per_range") < 40);
}

static void calls_fail_before_and_after(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base = sim_test_reserve(8 * PAGE);
    CUmemGenericAllocationHandle page = sim_test_page();
    assert_int_equal(panel.plan_failure("cuNoSuchCall", 1, 1, 1, SIMCUDA_BEFORE), -1);
    assert_true(panel.plan_failure("cuMemMap", 2, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE) >= 0);
    OK(cuMemMap(base, PAGE, 0, page, 0));
    REFUSED(CUDA_ERROR_UNKNOWN, cuMemMap(base + PAGE, PAGE, 0, page, 0));
    assert_int_equal(sim_test_census().mappings, 1); /* no effect */
    OK(cuMemMap(base + PAGE, PAGE, 0, page, 0));
    assert_int_equal(panel.failures_injected(), 1);

    panel.fail_clear();
    panel.plan_failure("cuMemMap", 1, 2, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER);
    REFUSED(CUDA_ERROR_UNKNOWN, cuMemMap(base + 2 * PAGE, PAGE, 0, page, 0));
    assert_int_equal(sim_test_census().mappings, 3);                     /* its whole effect */
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, PAGE, 0, page, 0)); /* its own error is not replaced */
    OK(cuMemMap(base + 3 * PAGE, PAGE, 0, page, 0));

    panel.fail_clear();
    panel.plan_failure("*", 3, 0, CUDA_ERROR_LAUNCH_FAILED, SIMCUDA_BEFORE);
    int count;
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGetCount(&count));
    REFUSED(CUDA_ERROR_LAUNCH_FAILED, cuDeviceGetCount(&count));
    REFUSED(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
    panel.fail_clear();
    OK(cuDeviceGetCount(&count));
}

static CUmemGenericAllocationHandle parked_handle;

static void *create_one(void *result)
{
    CUmemAllocationProp prop = sim_test_prop(0);
    *(CUresult *)result = cuMemCreate(&parked_handle, PAGE, &prop, 0);
    return NULL;
}

static void parked_call_holds_nobody(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    assert_int_equal(panel.park("cuNoSuchCall", 1), -1);
    assert_int_equal(panel.park("cuMemCreate", 1), 0);
    assert_int_equal(panel.wait_parked(1), 0);
    pthread_t thread;
    CUresult result = CUDA_ERROR_UNKNOWN;
    assert_int_equal(pthread_create(&thread, NULL, create_one, &result), 0);
    assert_int_equal(panel.wait_parked(10000), 1);
    assert_int_equal(sim_test_census().handles, 0);
    sim_test_page(); /* others go on, in the same function too */
    assert_int_equal(sim_test_census().handles, 1);
    panel.release_parked();
    pthread_join(thread, NULL);
    assert_int_equal(result, CUDA_SUCCESS);
    assert_int_equal(sim_test_census().handles, 2);
}

static void sibling_takes_and_returns(void **state)
{
    (void)state;
    sim_test_start("sim:8MiB");
    uint64_t missing;
    CUmemGenericAllocationHandle page = sim_test_page();
    assert_int_equal(panel.sibling_take(0, 4 * PAGE, &missing), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(missing, PAGE);
    OK(panel.sibling_take(0, 3 * PAGE, &missing));
    CUmemAllocationProp prop = sim_test_prop(0);
    CUmemGenericAllocationHandle other;
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&other, PAGE, &prop, 0));
    assert_int_equal(sim_test_census().sibling_bytes, 3 * PAGE);
    panel.sibling_return(0, PAGE);
    OK(cuMemCreate(&other, PAGE, &prop, 0));
    OK(cuMemRelease(page));
    panel.refuse_memory(0, 1);
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&other, PAGE, &prop, 0));
    CUdeviceptr block;
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&block, 512));
    panel.refuse_memory(0, 0);
    OK(cuMemAlloc_v2(&block, 512));
    assert_int_equal(sim_test_census().peak_used_bytes, 2 * PAGE);
}

static void mappings_are_listed(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    CUmemGenericAllocationHandle a = sim_test_page(), b = sim_test_page();
    sim_test_map(base + 2 * PAGE, a);
    sim_test_map(base + PAGE, b);
    sim_test_map(base, a);
    simcuda_mapping all[3], one;
    assert_int_equal(panel.mappings(all, 3), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(all[i].address, base + (uint64_t)i * PAGE);
        assert_int_equal(all[i].bytes, PAGE);
    }
    assert_int_equal(all[0].handle, all[2].handle);
    assert_int_not_equal(all[0].handle, all[1].handle);
    int count = 0;
    while (panel.mapping_at((size_t)count, &one))
        count++;
    assert_int_equal(count, 3);
    assert_int_equal(panel.mappings(all, 1), 3); /* fills what there is room for */
}

/* ---- bytes --------------------------------------------------------------------------------------------------------------------------- */

static const char *const content_orders[] = {"sim:64MiB,content,order=eager", "sim:64MiB,content,order=lazy",
                                             "sim:64MiB,content,order=random:3"};

static void copies_move_bytes(void **state)
{
    (void)state;
    for (int o = 0; o < 3; o++) {
        sim_test_start(content_orders[o]);
        CUstream stream = sim_test_stream();
        CUdeviceptr base = sim_test_reserve(4 * PAGE), block;
        sim_test_map(base, sim_test_page());
        sim_test_map(base + PAGE, sim_test_page());
        OK(cuMemAlloc_v2(&block, 5000));
        static unsigned char out[5000], in[5000];
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (unsigned char)(i * 7);
        OK(cuMemcpyHtoDAsync_v2(base + PAGE - 2000, out, sizeof out, stream)); /* across two mappings */
        unsigned char keep = out[100];
        out[100] ^= 0xff; /* cuda.h: pageable memory is staged at the call */
        OK(cuMemcpyDtoDAsync_v2(block, base + PAGE - 2000, sizeof out, stream));
        OK(cuMemcpyDtoHAsync_v2(in, block, sizeof in, stream)); /* to pageable memory: returns when it is done */
        out[100] = keep;
        assert_memory_equal(in, out, sizeof out);
        OK(cuMemsetD32Async(base, 0x01020304, 1000, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH_v2(in, base, 4000));
        assert_int_equal(in[0] | in[1] << 8 | in[2] << 16 | in[3] << 24, 0x01020304);
        assert_int_equal(in[3996], 4);
        OK(cuMemsetD8_v2(block, 9, 10));
        OK(cuMemcpyDtoH_v2(in, block, 11));
        assert_int_equal(in[9], 9);
        assert_int_equal(in[10], out[10]);
        assert_int_equal(panel.races(), 0);
    }
}

/* Rows of linear memory; arrays are not simulated. */
static void rectangles_move_bytes(void **state)
{
    (void)state;
    enum { WIDTH = 100, ROWS = 5, HOST_PITCH = 110, PITCH = 512 };
    for (int o = 0; o < 3; o++) {
        sim_test_start(content_orders[o]);
        CUstream stream = sim_test_stream();
        CUdeviceptr block;
        unsigned char out[(ROWS + 1) * HOST_PITCH], in[ROWS * WIDTH]; /* a row more for the one too many below */
        OK(cuMemAlloc_v2(&block, (ROWS + 1) * PITCH));
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (unsigned char)(i * 7);
        CUDA_MEMCPY2D there = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                               .srcHost = out,
                               .srcPitch = HOST_PITCH,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = block,
                               .dstPitch = PITCH,
                               .dstXInBytes = 3,
                               .dstY = 1,
                               .WidthInBytes = WIDTH,
                               .Height = ROWS};
        CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .srcDevice = block,
                              .srcPitch = PITCH,
                              .srcXInBytes = 3,
                              .srcY = 1,
                              .dstMemoryType = CU_MEMORYTYPE_HOST,
                              .dstHost = in,
                              .dstPitch = WIDTH,
                              .WidthInBytes = WIDTH,
                              .Height = ROWS};
        OK(cuMemcpy2DAsync_v2(&there, stream));
        OK(cuMemcpy2DAsync_v2(&back, stream)); /* to pageable memory: returns when it is done */
        for (size_t row = 0; row < ROWS; row++)
            assert_memory_equal(in + row * WIDTH, out + row * HOST_PITCH, WIDTH);
        memset(in, 0, sizeof in);
        OK(cuMemcpy2D_v2(&back));
        assert_memory_equal(in + WIDTH, out + HOST_PITCH, WIDTH);
        assert_int_equal(panel.races(), 0);
        back.srcPitch = WIDTH; /* no room for what comes before the row */
        REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&back));
        back.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemcpy2D_v2(&back));
        REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(NULL));
        there.Height = ROWS + 1; /* beyond the block */
        REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpy2DAsync_v2(&there, stream));
    }
}

/* Bytes belong to the physical memory: both addresses show them, and the CPU may look. */
static void aliases_show_the_same_bytes(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB,content");
    CUdeviceptr base = sim_test_reserve(4 * PAGE);
    CUmemGenericAllocationHandle page = sim_test_page();
    sim_test_map(base, page);
    *(volatile int *)(uintptr_t)base = 12345;
    sim_test_map(base + PAGE, page);
    assert_int_equal(*(volatile int *)(uintptr_t)(base + PAGE), 12345);
    OK(cuMemUnmap(base, PAGE));
    sim_test_map(base + 2 * PAGE, page);
    assert_int_equal(*(volatile int *)(uintptr_t)(base + 2 * PAGE), 12345);
}

/* The device gets to a copy when it gets there, not when it was asked. */
static void pinned_copies_happen_in_device_order(void **state)
{
    (void)state;
    for (int o = 0; o < 3; o++) {
        sim_test_start(content_orders[o]);
        CUstream stream = sim_test_stream();
        CUdeviceptr block;
        void *memory;
        OK(cuMemAlloc_v2(&block, 4));
        OK(cuMemHostAlloc(&memory, 8, 0));
        int *pinned = memory;
        pinned[0] = 1;
        int gate = panel.gate_close(stream);
        OK(cuMemcpyHtoDAsync_v2(block, &pinned[0], 4, stream));
        OK(cuMemcpyDtoHAsync_v2(&pinned[1], block, 4, stream));
        pinned[0] = 2; /* too early: the device has not read it */
        panel.gate_open(gate);
        OK(cuStreamSynchronize(stream));
        assert_int_equal(pinned[1], 2);
    }
}

/* A copy is a touch like any other, in ghost memory too; what is not device memory is refused. */
static void copies_are_touches(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        sim_test_start(words);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        CUdeviceptr block;
        char bytes[64] = "";
        OK(cuMemAlloc_v2(&block, 4096));
        OK(cuMemcpyHtoDAsync_v2(block, bytes, 64, a));
        OK(cuMemsetD32Async(block, 0, 4, b));
        assert_int_equal(panel.findings(SIMCUDA_RACE_TOUCH), 1);
        OK(cuMemcpyDtoDAsync_v2(block + 2048, block, 64, b)); /* reads what a wrote, beyond what b filled */
        assert_int_equal(panel.findings(SIMCUDA_RACE_TOUCH), 2);
        REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyHtoDAsync_v2(block + 4090, bytes, 64, b));
        REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(block + 1, 0, 4, b));
        REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async((uintptr_t)bytes & ~UINT64_C(3), 0, 1, b));
    }
}

/* ---- notifications ------------------------------------------------------------------------------ */

typedef struct heard {
    uint64_t bytes;
    int times;
    CUasyncCallbackHandle handle;
    CUresult inside; /* what a driver call from within gave */
} heard;

static void hear(CUasyncNotificationInfo *info, void *user, CUasyncCallbackHandle handle)
{
    heard *to = user;
    assert_int_equal(info->type, CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET);
    to->bytes = info->info.overBudget.bytesOverBudget;
    to->times++;
    to->handle = handle;
    to->inside = cuDeviceUnregisterAsyncNotification(0, handle);
}

static void notifications_reach_who_registered(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB,devices=2");
    CUasyncCallbackHandle first, second, other;
    heard a = {0}, b = {0}, c = {0};
    assert_int_equal(panel.notify_over_budget(0, 1), 0);
    OK(cuDeviceRegisterAsyncNotification(0, hear, &a, &first));
    OK(cuDeviceRegisterAsyncNotification(0, hear, &b, &second));
    OK(cuDeviceRegisterAsyncNotification(1, hear, &c, &other));
    assert_int_equal(sim_test_census().notifications, 3);
    assert_int_equal(panel.notify_over_budget(0, 5 * PAGE), 2);
    assert_int_equal(a.bytes, 5 * PAGE);
    assert_ptr_equal(a.handle, first);
    assert_int_equal(a.inside, CUDA_ERROR_NOT_PERMITTED);
    assert_int_equal(b.times, 1);
    assert_int_equal(c.times, 0);

    REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceUnregisterAsyncNotification(1, first));
    OK(cuDeviceUnregisterAsyncNotification(0, first));
    assert_int_equal(panel.notify_over_budget(0, 7), 1);
    assert_int_equal(a.times, 1);
    assert_int_equal(b.bytes, 7);
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 0);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceUnregisterAsyncNotification(0, first));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 1);

    REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceRegisterAsyncNotification(0, NULL, &a, &first));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceRegisterAsyncNotification(0, hear, &a, NULL));
    REFUSED(CUDA_ERROR_INVALID_DEVICE, cuDeviceRegisterAsyncNotification(2, hear, &a, &first));
    panel.set_feature(SIMCUDA_FEATURE_NOTIFICATIONS, 0);
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuDeviceRegisterAsyncNotification(0, hear, &a, &first));
    panel.reset();
    assert_int_equal(panel.notify_over_budget(1, 1), 0);
    assert_int_equal(c.times, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_checked),           cmocka_unit_test(reset_forgets),
        cmocka_unit_test(calls_are_counted_in_groups), cmocka_unit_test(costs_by_two_tables),
        cmocka_unit_test(calls_fail_before_and_after), cmocka_unit_test(parked_call_holds_nobody),
        cmocka_unit_test(sibling_takes_and_returns),   cmocka_unit_test(mappings_are_listed),
        cmocka_unit_test(copies_move_bytes),           cmocka_unit_test(rectangles_move_bytes),
        cmocka_unit_test(aliases_show_the_same_bytes), cmocka_unit_test(pinned_copies_happen_in_device_order),
        cmocka_unit_test(copies_are_touches),          cmocka_unit_test(notifications_reach_who_registered),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
