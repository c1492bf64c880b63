/*
 * Many threads in the driver at once, each with memory and streams of its own: nothing is lost, nothing is reported. Run under
 * ThreadSanitizer too.
 */
#include "sim_test.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 300

static CUcontext context;

static void count_call(void *counter) { ++*(unsigned *)counter; }

/* One thread's life: map, write, hand to its second stream, free. Returns NULL or what failed. */
static const char *live(unsigned seed)
{
#define NEED(call)                  \
    do {                            \
        if ((call) != CUDA_SUCCESS) \
            return #call;           \
    } while (0)
    CUstream a, b;
    CUevent event;
    CUdeviceptr base, block;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = sim_test_prop(0);
    unsigned called = 0;
    NEED(cuCtxSetCurrent(context));
    NEED(cuMemAddressReserve(&base, 4 * PAGE, 0, 0, 0));
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr slot = base + (round + seed) % 4 * PAGE;
        NEED(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
        NEED(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
        NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        NEED(cuMemCreate(&page, PAGE, &prop, 0));
        NEED(cuMemMap(slot, PAGE, 0, page, 0));
        NEED(sim_test_grant(slot, PAGE));
        NEED(cuMemAlloc_v2(&block, 1000 + 4096 * seed));
        NEED(panel.touch(a, slot, PAGE, 1));
        NEED(cuMemcpyDtoDAsync_v2(block, slot, 1000, a));
        NEED(cuLaunchHostFunc(a, count_call, &called));
        NEED(cuEventRecord(event, a));
        NEED(cuStreamWaitEvent(b, event, 0));
        NEED(panel.touch(b, slot + 512, 512, 0));
        NEED(cuStreamDestroy_v2(a));
        NEED(cuEventRecord(event, b));
        NEED(round % 2 ? cuEventSynchronize(event) : cuStreamSynchronize(b));
        if (called != round + 1)
            return "a host function was not called";
        NEED(cuMemUnmap(slot, PAGE));
        NEED(cuMemRelease(page));
        NEED(cuMemFree_v2(block));
        NEED(cuEventDestroy_v2(event));
        NEED(cuStreamDestroy_v2(b));
    }
    NEED(cuMemAddressFree(base, 4 * PAGE));
    return NULL;
#undef NEED
}

static void *live_in_thread(void *seed) { return (void *)(uintptr_t)live((unsigned)(uintptr_t)seed); }

static void threads_do_not_disturb_each_other(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        context = sim_test_start(words);
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, live_in_thread, (void *)i), 0);
        for (int i = 0; i < THREADS; i++) {
            void *failed;
            pthread_join(threads[i], &failed);
            if (failed)
                fail_msg("%s", (const char *)failed);
        }
        simcuda_census census = sim_test_census();
        assert_int_equal(census.handles + census.mappings + census.reservations + census.mallocs + census.streams + census.events, 0);
        assert_int_equal(census.free_bytes, census.capacity_bytes);
        if (panel.finding_text(0))
            fail_msg("%s", panel.finding_text(0));
        assert_int_equal(panel.calls_of("cuMemMap"), THREADS * ROUNDS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
