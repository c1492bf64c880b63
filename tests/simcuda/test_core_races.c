/*
 * The race checker: wrong programs are reported in every order of the device, also the one where everything is finished at once; right
 * programs never are. Order comes from stream order, event record -> wait, and event record -> successful query or synchronise -> later
 * calls of the host (cuda.h: cuEventRecord, cuStreamWaitEvent, cuEventQuery, cuEventSynchronize, cuStreamSynchronize, cuCtxSynchronize,
 * cuCtxRecordEvent, cuCtxWaitEvent), and from nothing else.
 */
#include "sim_test.h"

typedef struct world {
    CUstream a, b;
    CUevent event;
    CUdeviceptr base; /* eight slots, the first one mapped */
    CUmemGenericAllocationHandle page;
} world;

static world start(const char *words)
{
    sim_test_start(words);
    world w = {sim_test_stream(), sim_test_stream(), sim_test_event(), sim_test_reserve(8 * PAGE), sim_test_page()};
    sim_test_map(w.base, w.page);
    return w;
}

static void expect(simcuda_finding_kind kind, uint64_t count)
{
    if (panel.findings(kind) != count && panel.finding_text(0))
        print_message("%s\n", panel.finding_text(0));
    assert_int_equal(panel.findings(kind), count);
}

static void write_on(CUstream stream, CUdeviceptr address, size_t bytes) { OK(panel.touch(stream, address, bytes, 1)); }

static void read_on(CUstream stream, CUdeviceptr address, size_t bytes) { OK(panel.touch(stream, address, bytes, 0)); }

/* ---- between streams ---------------------------------------------------------------------------------------------------------- */

static void missing_wait_is_a_race(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        panel.run_device(); /* being finished is not being ordered */
        write_on(w.b, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
        assert_int_equal(panel.races(), 1);
        assert_non_null(strstr(panel.finding_text(0), "is not ordered after a write on stream"));
        read_on(w.a, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 2);
    }
}

static void readers_do_not_race(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        read_on(w.a, w.base, PAGE);
        read_on(w.b, w.base, PAGE);
        read_on(w.a, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
        write_on(w.a, w.base, PAGE); /* b's read is not over */
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

static void record_and_wait_order(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUstream c = sim_test_stream();
        write_on(w.a, w.base, PAGE);
        OK(cuEventRecord(w.event, w.a));
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        write_on(w.b, w.base, PAGE);
        OK(cuEventRecord(w.event, w.b)); /* order goes on through b: transitive */
        OK(cuStreamWaitEvent(c, w.event, 0));
        read_on(c, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
        write_on(w.b, w.base, PAGE); /* but not back */
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

/* cuStreamWaitEvent "use[s] the most recently captured state at the time of the API call": work after the record is not in it. */
static void wait_covers_what_was_recorded(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        OK(cuEventRecord(w.event, w.a));
        write_on(w.a, w.base, PAGE);
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        write_on(w.b, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

/* cuEventRecord: "Before the first call to cuEventRecord(), an event represents an empty set of work". */
static void empty_event_orders_nothing(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuEventQuery(w.event));
        OK(cuEventSynchronize(w.event));
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        write_on(w.b, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

static void host_waits_order(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        for (int how = 0; how < 4; how++) {
            world w = start(words);
            write_on(w.a, w.base, PAGE);
            OK(cuEventRecord(w.event, w.a));
            if (how == 0)
                OK(cuEventSynchronize(w.event));
            else if (how == 1)
                OK(cuStreamSynchronize(w.a));
            else if (how == 2)
                OK(cuCtxSynchronize());
            else
                while (cuEventQuery(w.event) != CUDA_SUCCESS)
                    panel.run_device();
            write_on(w.b, w.base, PAGE);
            assert_int_equal(panel.races(), 0);
            OK(cuStreamSynchronize(w.b));
            OK(cuMemUnmap(w.base, PAGE));
            assert_int_equal(panel.races(), 0);
        }
    }
}

/* Context events: cuCtxRecordEvent captures "all the activities of the context", cuCtxWaitEvent holds "all future work". */
static void context_events_order(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuCtxRecordEvent(NULL, w.event));
        OK(cuCtxWaitEvent(NULL, w.event));
        write_on(w.b, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
        OK(cuCtxRecordEvent(NULL, w.event));
        OK(cuCtxWaitEvent(NULL, w.event));
        CUstream later = sim_test_stream(); /* work on streams made afterwards is future work too */
        write_on(later, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
        OK(cuCtxRecordEvent(NULL, w.event));
        OK(cuEventSynchronize(w.event));
        OK(cuMemUnmap(w.base, PAGE));
        assert_int_equal(panel.races(), 0);
    }
}

/* An event destroyed or a stream destroyed takes nothing of the order with it. */
static void order_outlives_its_objects(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuEventRecord(w.event, w.a));
        OK(cuStreamDestroy_v2(w.a));
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        OK(cuEventDestroy_v2(w.event));
        write_on(w.b, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
    }
}

/* A stream that gets the value of a destroyed one is another stream. */
static void recycled_stream_is_not_the_old_one(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuStreamDestroy_v2(w.a));
        CUstream again = sim_test_stream();
        assert_ptr_equal(again, w.a);
        write_on(again, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

/* ---- the legacy stream: cuda.h, "stream synchronization behavior" ---------------------------------------------------------------- */

static void legacy_stream_orders_blocking_streams(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUstream blocking, other;
        OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
        OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
        write_on(blocking, w.base, PAGE);
        write_on(NULL, w.base, PAGE);  /* waits for all blocking streams */
        write_on(other, w.base, PAGE); /* and they wait for it */
        write_on(CU_STREAM_LEGACY, w.base, PAGE);
        write_on(CU_STREAM_PER_THREAD, w.base, PAGE); /* "will synchronize with the legacy default stream" */
        write_on(NULL, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 0);
        write_on(w.a, w.base, PAGE); /* a non-blocking stream does not take part */
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

static void blocking_streams_are_not_ordered_alone(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUstream one, two;
        OK(cuStreamCreate(&one, CU_STREAM_DEFAULT));
        OK(cuStreamCreate(&two, CU_STREAM_DEFAULT));
        write_on(one, w.base, PAGE);
        write_on(two, w.base, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

/* ---- bytes, not addresses ------------------------------------------------------------------------------------------------------- */

static void aliases_are_the_same_bytes(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        sim_test_map(w.base + 4 * PAGE, w.page);
        write_on(w.a, w.base, PAGE);
        write_on(w.b, w.base + 4 * PAGE, PAGE);
        expect(SIMCUDA_RACE_TOUCH, 1);
        sim_test_map(w.base + PAGE, sim_test_page());
        write_on(w.a, w.base + PAGE, PAGE); /* other memory */
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

static void parts_of_a_page(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, 512);
        write_on(w.b, w.base + 512, 512); /* the neighbour */
        write_on(w.b, w.base + 4096, 8192);
        expect(SIMCUDA_RACE_TOUCH, 0);
        read_on(w.a, w.base + 5000, 1);
        expect(SIMCUDA_RACE_TOUCH, 1);
        write_on(w.a, w.base, PAGE); /* over both of b's; one finding a touch */
        expect(SIMCUDA_RACE_TOUCH, 2);
        write_on(w.a, w.base + 100, 100);
        expect(SIMCUDA_RACE_TOUCH, 2);
        write_on(w.b, w.base + 150, 10);
        expect(SIMCUDA_RACE_TOUCH, 3);
    }
}

/* A range over several mappings and a handle of several pages. */
static void wide_touches(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUmemAllocationProp prop = sim_test_prop(0);
        CUmemGenericAllocationHandle wide;
        OK(cuMemCreate(&wide, 3 * PAGE, &prop, 0));
        OK(cuMemMap(w.base + PAGE, 3 * PAGE, 0, wide, 0));
        OK(sim_test_grant(w.base + PAGE, 3 * PAGE));
        write_on(w.a, w.base + PAGE / 2, 3 * PAGE);
        write_on(w.b, w.base + 3 * PAGE + PAGE / 2, PAGE / 2); /* just behind it */
        write_on(w.b, w.base, PAGE / 2);                       /* just before it */
        expect(SIMCUDA_RACE_TOUCH, 0);
        read_on(w.b, w.base + 3 * PAGE + PAGE / 2 - 1, 1);
        expect(SIMCUDA_RACE_TOUCH, 1);
        REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(w.a, w.base + 3 * PAGE, 2 * PAGE, 0));
        expect(SIMCUDA_BAD_ACCESS, 1);
    }
}

/* ---- taking memory away ------------------------------------------------------------------------------------------------------------ */

static void unmap_too_early(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        panel.run_device();
        OK(cuMemUnmap(w.base, PAGE)); /* the driver does it; the device would fault */
        expect(SIMCUDA_RACE_UNMAP, 1);
        REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(w.a, w.base, PAGE, 1)); /* touch after unmap */
        expect(SIMCUDA_BAD_ACCESS, 1);
        assert_int_equal(panel.races(), 1);
    }
}

/* Waiting on the device is not enough for the host to unmap. */
static void device_side_wait_does_not_cover_unmap(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuEventRecord(w.event, w.a));
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        OK(cuMemUnmap(w.base, PAGE));
        expect(SIMCUDA_RACE_UNMAP, 1);
    }
}

/* A page may be mapped at a second address while the first is in use; only touches through a mapping hold that mapping. */
static void page_moves_by_map_now_unmap_later(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuEventRecord(w.event, w.a));
        sim_test_map(w.base + PAGE, w.page);
        OK(cuStreamWaitEvent(w.b, w.event, 0));
        write_on(w.b, w.base + PAGE, PAGE);
        OK(cuEventSynchronize(w.event));
        OK(cuMemUnmap(w.base, PAGE)); /* b's touch goes through the other address */
        assert_int_equal(panel.races(), 0);
        OK(cuMemUnmap(w.base + PAGE, PAGE));
        expect(SIMCUDA_RACE_UNMAP, 1);
    }
}

/* Remap without order: the bytes are handed on through a new address, and the next stream does not know of the last. */
static void remap_without_order(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        write_on(w.a, w.base, PAGE);
        OK(cuMemUnmap(w.base, PAGE));
        sim_test_map(w.base + PAGE, w.page);
        write_on(w.b, w.base + PAGE, PAGE);
        expect(SIMCUDA_RACE_UNMAP, 1);
        expect(SIMCUDA_RACE_TOUCH, 1);
    }
}

static void free_too_early(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUdeviceptr block;
        void *pinned;
        OK(cuMemAlloc_v2(&block, 3 * PAGE + 5));
        OK(cuMemHostAlloc(&pinned, 4096, 0));
        write_on(w.a, block, 3 * PAGE + 5);
        read_on(w.b, (uintptr_t)pinned, 4096);
        OK(cuMemFree_v2(block)); /* cuda.h: it "may" synchronise */
        expect(SIMCUDA_RACE_UNMAP, 1);
        OK(cuMemFreeHost(pinned));
        expect(SIMCUDA_RACE_UNMAP, 2);
        REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, panel.touch(w.a, block, 512, 0));
    }
}

/* cuMemSetAccess may take rights away: for the device that is an unmap. */
static void access_taken_too_early(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
        write_on(w.a, w.base, PAGE);
        OK(sim_test_grant(w.base, PAGE)); /* nothing is taken */
        expect(SIMCUDA_RACE_UNMAP, 0);
        OK(cuMemSetAccess(w.base, PAGE, &access, 1));
        expect(SIMCUDA_RACE_UNMAP, 1);
        OK(cuStreamSynchronize(w.a));
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        OK(cuMemSetAccess(w.base, PAGE, &access, 1));
        expect(SIMCUDA_RACE_UNMAP, 1);
    }
}

/* Several streams hold a mapping: the host must have seen all of them. */
static void every_toucher_counts(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        CUstream streams[6];
        for (int i = 0; i < 6; i++) {
            streams[i] = sim_test_stream();
            read_on(streams[i], w.base + 4096 * (uint64_t)i, 4096);
        }
        for (int i = 0; i < 6; i++)
            if (i != 4)
                OK(cuStreamSynchronize(streams[i]));
        OK(cuMemUnmap(w.base, PAGE));
        expect(SIMCUDA_RACE_UNMAP, 1);
    }
}

/* ---- dead objects ------------------------------------------------------------------------------------------------------------------- */

static void use_after_destroy(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        OK(cuStreamDestroy_v2(w.a));
        REFUSED(CUDA_ERROR_INVALID_HANDLE, panel.touch(w.a, w.base, PAGE, 1));
        expect(SIMCUDA_USE_AFTER_DESTROY, 1);
        REFUSED(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(w.a));
        REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(w.event, w.a));
        expect(SIMCUDA_USE_AFTER_DESTROY, 3);
        OK(cuEventDestroy_v2(w.event));
        REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(w.event));
        REFUSED(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(w.b, w.event, 0));
        expect(SIMCUDA_USE_AFTER_DESTROY, 5);
        REFUSED(CUDA_ERROR_INVALID_HANDLE, cuEventQuery((CUevent)(uintptr_t)0x1234)); /* never was one: refused, no finding */
        expect(SIMCUDA_USE_AFTER_DESTROY, 5);
        assert_int_equal(panel.races(), 0);
    }
}

/* cuStreamDestroy: "the function will return immediately and the resources ... will be released automatically once the device has
 * completed all work". */
static void destroy_with_work_outstanding(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        world w = start(words);
        int gate = panel.gate_close(w.a);
        write_on(w.a, w.base, PAGE);
        OK(cuEventRecord(w.event, w.a));
        OK(cuStreamDestroy_v2(w.a));
        panel.run_device();
        REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery(w.event));
        panel.gate_open(gate);
        panel.run_device();
        OK(cuEventQuery(w.event));
        OK(cuMemUnmap(w.base, PAGE));
        assert_int_equal(panel.races(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_wait_is_a_race),
        cmocka_unit_test(readers_do_not_race),
        cmocka_unit_test(record_and_wait_order),
        cmocka_unit_test(wait_covers_what_was_recorded),
        cmocka_unit_test(empty_event_orders_nothing),
        cmocka_unit_test(host_waits_order),
        cmocka_unit_test(context_events_order),
        cmocka_unit_test(order_outlives_its_objects),
        cmocka_unit_test(recycled_stream_is_not_the_old_one),
        cmocka_unit_test(legacy_stream_orders_blocking_streams),
        cmocka_unit_test(blocking_streams_are_not_ordered_alone),
        cmocka_unit_test(aliases_are_the_same_bytes),
        cmocka_unit_test(parts_of_a_page),
        cmocka_unit_test(wide_touches),
        cmocka_unit_test(unmap_too_early),
        cmocka_unit_test(device_side_wait_does_not_cover_unmap),
        cmocka_unit_test(page_moves_by_map_now_unmap_later),
        cmocka_unit_test(remap_without_order),
        cmocka_unit_test(free_too_early),
        cmocka_unit_test(access_taken_too_early),
        cmocka_unit_test(every_toucher_counts),
        cmocka_unit_test(use_after_destroy),
        cmocka_unit_test(destroy_with_work_outstanding),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
