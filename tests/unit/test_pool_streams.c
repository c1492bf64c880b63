/*
 * Stream order as a user of the pool sees it: memory goes to another stream only when its uses are finished or made to come first, at the
 * least cost that allows it. Each case runs in the three orders where the outcome does not hang on one; simulated kernels touch every
 * block, and the simulated device reports a touch that no order covers. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#include <pthread.h>

static void end(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

/* ---- one stream -----------------------------------------------------------------------------------------------------------------------
 */

static void one_stream_calls_no_driver(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream stream = sim_test_stream();
        static const size_t sizes[] = {100, 4096, 100000, 300000, 3 << 20, 10 << 20};
        void *blocks[6];
        for (int step = 0; step < 4; step++) {
            if (step > 0)
                panel.counts_reset();
            for (int i = 0; i < 6; i++)
                blocks[i] = take_and_use(pool, sizes[i], stream);
            for (int i = 0; i < 6; i++)
                give(pool, blocks[i], stream);
            if (step > 0)
                assert_int_equal(driver_calls(), 0);
        }
        assert_int_equal(figures(pool).events_recorded, 0);
        end(pool);
    }
}

/* ---- two streams ------------------------------------------------------------------------------------------------------------------------
 */

static void no_wait_while_the_device_has_room(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream a = sim_test_stream(), b = sim_test_stream();
    give(pool, take_and_use(pool, 20 * MIB, a), a);
    give(pool, take_and_use(pool, 20 * MIB, b), b);
    cmpool_stats stats = figures(pool);
    assert_int_equal(stats.reserved_bytes, 40 * MIB);
    assert_int_equal(stats.device_waits, 0);
    assert_int_equal(stats.host_waits, 0);
    end(pool);
}

static void a_full_device_makes_streams_wait(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        give(pool, take_and_use(pool, 1 * MIB, b), b);
        panel.counts_reset();
        for (int turn = 0; turn < 4; turn++) {
            give(pool, take_and_use(pool, 60 * MIB, a), a);
            give(pool, take_and_use(pool, 60 * MIB, b), b);
        }
        cmpool_stats stats = figures(pool);
        assert_int_equal(stats.host_waits, 0);
        assert_int_equal(panel.calls(SIMCUDA_HOST_SYNC), 0);
        assert_true(stats.reserved_bytes <= 64 * MIB);
        if (strstr(words, "lazy"))
            assert_true(stats.device_waits >= 7);
        if (strstr(words, "eager"))
            assert_int_equal(stats.device_waits, 0); /* events tell that all is done */
        end(pool);
    }
}

/* A window made of pages of both streams: bytes of either are waited for, and pages move. */
static void moved_pages_carry_their_order(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream streams[3] = {sim_test_stream(), sim_test_stream(), sim_test_stream()};
        void *blocks[30];
        for (int i = 0; i < 30; i++)
            blocks[i] = take_and_use(pool, 2 * MIB, streams[i % 2]);
        for (int turn = 0; turn < 3; turn++) {
            for (int i = turn % 2; i < 30; i += 2)
                give(pool, blocks[i], streams[i % 2]);
            void *large = take_and_use(pool, 30 * MIB, streams[2 - turn]);
            give(pool, large, streams[2 - turn]);
            must_be_sound(pool);
            for (int i = turn % 2; i < 30; i += 2)
                blocks[i] = take_and_use(pool, 2 * MIB, streams[i % 2]);
        }
        for (int i = 0; i < 30; i++)
            give(pool, blocks[i], streams[i % 2]);
        cmpool_stats stats = figures(pool);
        assert_true(stats.page_moves >= 15);
        assert_int_equal(stats.host_waits, 0);
        end(pool);
    }
}

/* Memory of one stream that joins is finished when the part that was freed last is. */
static void joined_memory_is_as_old_as_its_youngest_part(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("thread_cache:0"); /* each free is to count */
        CUstream a = sim_test_stream(), b = sim_test_stream();
        give(pool, take_and_use(pool, 1000, b), b);
        void *low = take_and_use(pool, 20 * MIB, a), *high = take_and_use(pool, 20 * MIB, a);
        assert_ptr_equal((char *)low + 20 * MIB, high);
        give(pool, low, a);
        for (uint64_t before = figures(pool).events_recorded; figures(pool).events_recorded == before;) /* one for a batch of frees */
            give(pool, take_and_use(pool, 1000, a), a);
        OK(cuStreamSynchronize(a));
        int gate = panel.gate_close(a);
        use(a, high, 20 * MIB);
        give(pool, high, a);
        give(pool, take_and_use(pool, 40 * MIB, b), b);
        panel.gate_open(gate);
        end(pool);
    }
}

/* A stream that waits for an event of one other has not waited for the rest of the context. */
static void a_wait_for_one_is_no_wait_for_all(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream(), c = sim_test_stream();
        void *first = take_and_use(pool, 30 * MIB, a), *second = take_and_use(pool, 30 * MIB, b);
        int gates[2] = {panel.gate_close(a), panel.gate_close(b)};
        give(pool, second, b);
        give(pool, first, a);
        DONE(cmpool_stream_retire(0, a)); /* an event of its own lies behind `first` */
        void *again = take_and_use(pool, 30 * MIB, c);
        assert_ptr_equal(again, first);
        give(pool, take_and_use(pool, 30 * MIB, c), c);
        give(pool, again, c);
        assert_int_equal(figures(pool).device_waits, 2);
        panel.gate_open(gates[0]);
        panel.gate_open(gates[1]);
        end(pool);
    }
}

static void streams_that_must_not_wait(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("cross_stream_wait:off");
        CUstream a = sim_test_stream(), b = sim_test_stream();
        give(pool, take_and_use(pool, 1 * MIB, b), b);
        for (int turn = 0; turn < 3; turn++) {
            give(pool, take_and_use(pool, 60 * MIB, a), a);
            give(pool, take_and_use(pool, 60 * MIB, b), b);
            give(pool, take_and_use(pool, 1000, a), a);
            give(pool, take_and_use(pool, 1000, b), b);
        }
        cmpool_stats stats = figures(pool);
        assert_int_equal(stats.device_waits, 0);
        assert_int_equal(panel.calls_of("cuStreamWaitEvent"), 0);
        if (strstr(words, "lazy"))
            assert_true(stats.host_waits > 0);
        end(pool);
    }
}

/* Two streams in turn: what one frees the other is given. words: devices too small for pages beyond the share that slack is. */
static uint64_t footprint(const char *words, const char *options)
{
    device_start(words);
    cmpool_t pool = pool_with(options);
    CUstream a = sim_test_stream(), b = sim_test_stream();
    give(pool, take_and_use(pool, 512, a), a);
    give(pool, take_and_use(pool, 512, b), b);
    for (int turn = 0; turn < 8; turn++) {
        give(pool, take_and_use(pool, 30 * MIB, a), a);
        give(pool, take_and_use(pool, 30 * MIB, b), b);
    }
    cmpool_stats stats = figures(pool);
    assert_int_equal(stats.host_waits, 0);
    assert_int_equal(stats.refusals, 0);
    end(pool);
    return stats.peak_reserved_bytes;
}

static void waiting_first_keeps_the_footprint(void **state)
{
    (void)state;
    /* Twice 30 MiB, and a page for small blocks, which pages serve too below. */
    assert_int_equal(footprint("sim:64MiB,order=lazy", "pending:grow"), 62 * MIB);
    assert_int_equal(footprint("sim:64MiB,order=lazy", "pending:wait"), 30 * MIB);
    assert_int_equal(footprint("sim:64MiB,order=eager", "pending:grow"), 30 * MIB); /* nothing to wait for: as much as one stream needs */
    static const char *const room_for_one[] = {"sim:32MiB,order=eager", "sim:32MiB,order=lazy", "sim:32MiB,order=random:7"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(room_for_one); i++)
        assert_true(footprint(room_for_one[i], "pending:grow") <= 32 * MIB);
}

/* ---- uses and frees on other streams
 * ------------------------------------------------------------------------------------------------------ */

static void recorded_uses_come_first(void **state)
{
    (void)state;
    enum { STREAMS = 9 }; /* more than a stamp tells apart */
    EACH_SMALL_DEVICE(words)
    {
        for (int users = 1; users < STREAMS; users++) {
            for (size_t bytes = 1000; bytes < 80 * MIB; bytes *= 500) {
                device_start(words);
                cmpool_t pool = pool_with(NULL);
                CUstream streams[STREAMS];
                for (int i = 0; i < STREAMS; i++)
                    streams[i] = sim_test_stream();
                for (int turn = 0; turn < 3; turn++) {
                    void *block = take_and_use(pool, bytes, streams[0]);
                    for (int i = 1; i <= users; i++) {
                        order(streams[0], streams[i]);
                        DONE(cmpool_record_use(pool, block, streams[i]));
                        assert_int_equal(panel.touch(streams[i], (uint64_t)(uintptr_t)block, bytes, 0), 0);
                    }
                    give(pool, block, streams[0]);
                    give(pool, take_and_use(pool, bytes, streams[0]), streams[0]);
                    void *rest = take_and_use(pool, 62 * MIB, streams[users]);
                    give(pool, rest, streams[users]);
                    must_be_sound(pool);
                }
                assert_int_equal(figures(pool).uses_recorded, 3 * users);
                end(pool);
            }
        }
    }
}

/* Neighbours that other streams have to finish with become one block, which is behind all of those: also where all but one have an event.
 */
static void joined_blocks_are_behind_all_their_streams(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (int turn = 0; turn < 4; turn++) { /* whichever is freed first, and whichever has an event */
            device_start(words);
            cmpool_t pool = pool_with(NULL);
            CUstream own = sim_test_stream(), users[2] = {sim_test_stream(), sim_test_stream()}, next = sim_test_stream();
            void *blocks[2] = {take_and_use(pool, 4 * MIB, own), take_and_use(pool, 4 * MIB, own)};
            uint64_t others = census_of(0).free_bytes;
            assert_int_equal(panel.sibling_take(0, others, NULL), 0);
            int gates[2];
            for (int i = 0; i < 2; i++) {
                order(own, users[i]);
                gates[i] = panel.gate_close(users[i]);
                DONE(cmpool_record_use(pool, blocks[i], users[i]));
                use(users[i], blocks[i], 4 * MIB);
            }
            give(pool, blocks[turn & 1], own);
            give(pool, blocks[!(turn & 1)], own);
            DONE(cmpool_stream_retire(0, own));
            DONE(cmpool_stream_retire(0, users[turn >> 1]));
            void *both = take_and_use(pool, 8 * MIB, next);
            assert_int_equal(panel.races(), 0);
            for (int i = 0; i < 2; i++)
                panel.gate_open(gates[i]);
            give(pool, both, next);
            panel.sibling_return(0, others);
            end(pool);
        }
    }
}

static void a_free_may_name_another_stream(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (size_t bytes = 1000; bytes < 80 * MIB; bytes *= 500) {
            device_start(words);
            cmpool_t pool = pool_with(NULL);
            CUstream a = sim_test_stream(), b = sim_test_stream(), c = sim_test_stream();
            for (int turn = 0; turn < 4; turn++) {
                void *block = take_and_use(pool, bytes, a);
                order(a, b);
                use(b, block, bytes);
                give(pool, block, b);
                CUstream next = turn % 3 == 0 ? a : turn % 3 == 1 ? b : c;
                give(pool, take_and_use(pool, bytes, next), next);
                give(pool, take_and_use(pool, 60 * MIB, c), c);
            }
            end(pool);
        }
    }
}

/* ---- handles that die
 * ---------------------------------------------------------------------------------------------------------------------- */

static uint64_t die_and_come_back(const char *words, const char *options, bool retire, bool expect_same_handle)
{
    device_start(words);
    cmpool_t pool = pool_with(options);
    CUstream keeper = sim_test_stream();
    give(pool, take_and_use(pool, 1 * MIB, keeper), keeper);
    for (int turn = 0; turn < 4; turn++) {
        CUstream stream = sim_test_stream();
        give(pool, take_and_use(pool, 30 * MIB, stream), stream);
        give(pool, take_and_use(pool, 1000, stream), stream);
        if (retire)
            DONE(cmpool_stream_retire(0, stream));
        OK(cuStreamDestroy_v2(stream));
        CUstream next = sim_test_stream();
        if (expect_same_handle)
            assert_ptr_equal(next, stream);
        give(pool, take_and_use(pool, 34 * MIB, next), next);
        give(pool, take_and_use(pool, 1000, next), next);
        give(pool, take_and_use(pool, 60 * MIB, keeper), keeper);
        if (retire)
            DONE(cmpool_stream_retire(0, next));
        OK(cuStreamDestroy_v2(next));
        must_be_sound(pool);
    }
    uint64_t unretired = figures(pool).unretired_streams;
    end(pool);
    return unretired;
}

static void handles_come_back(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        assert_int_equal(die_and_come_back(words, NULL, true, true), 0);
        assert_int_equal(die_and_come_back(words, "stream_check:always", true, true), 0);
        assert_int_equal(die_and_come_back(words, "stream_check:off", true, true), 0);
        assert_int_equal(die_and_come_back(words, "stream_check:always", false, true), 7);
    }
}

/* Records of streams are used again, but not while a stamp names one whose work is not done. */
static void dead_streams_are_waited_for(void **state)
{
    (void)state;
    enum { STREAMS = 40, MORE = 12 };
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream keeper = sim_test_stream(), other = sim_test_stream();
        void *between[STREAMS], *block = take_and_use(pool, 512 * 1024, other);
        int gates[STREAMS];
        for (int i = 0; i < STREAMS; i++) {
            CUstream stream = sim_test_stream();
            void *dead = take_and_use(pool, 512 * 1024, keeper);
            between[i] = take_and_use(pool, 512 * 1024, keeper); /* so that freed blocks, and their stamps, do not join */
            order(keeper, stream);
            use(stream, dead, 512 * 1024);
            gates[i] = panel.gate_close(stream);
            give(pool, dead, stream);
            DONE(cmpool_stream_retire(0, stream));
            OK(cuStreamDestroy_v2(stream));
        }
        give(pool, block, other);
        DONE(cmpool_stream_retire(0, other));
        OK(cuStreamSynchronize(other)); /* something is done, so free memory is looked through */
        void *next[MORE];
        for (int i = 0; i < MORE; i++)
            next[i] = take_and_use(pool, 512 * 1024, keeper);
        for (int i = 0; i < MORE; i++)
            give(pool, next[i], keeper);
        for (int i = 0; i < STREAMS; i++) {
            give(pool, between[i], keeper);
            panel.gate_open(gates[i]);
        }
        end(pool);
    }
}

/* By default the handle is looked at when a request leaves the bins. */
static void an_unretired_handle_is_told(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream stream = sim_test_stream();
        give(pool, take_and_use(pool, 20 * MIB, stream), stream);
        OK(cuStreamDestroy_v2(stream));
        CUstream next = sim_test_stream();
        assert_ptr_equal(next, stream);
        give(pool, take_and_use(pool, 30 * MIB, next), next);
        assert_int_equal(figures(pool).unretired_streams, 1);
        give(pool, take_and_use(pool, 62 * MIB, next), next);
        assert_int_equal(figures(pool).unretired_streams, 1);
        end(pool);
    }
}

/* ---- the default streams
 * ------------------------------------------------------------------------------------------------------------------- */

static void the_legacy_stream_has_two_names(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        for (int turn = 0; turn < 3; turn++) {
            give(pool, take_and_use(pool, 60 * MIB, NULL), CU_STREAM_LEGACY);
            give(pool, take_and_use(pool, 60 * MIB, CU_STREAM_LEGACY), NULL);
        }
        cmpool_stats stats = figures(pool);
        assert_int_equal(stats.events_recorded + stats.device_waits + stats.host_waits, 0);
        CUstream other = sim_test_stream();
        give(pool, take_and_use(pool, 60 * MIB, other), other);
        give(pool, take_and_use(pool, 60 * MIB, NULL), NULL);
        assert_int_equal(figures(pool).host_waits, 0);
        end(pool);
    }
}

static cmpool_t shared_pool;

static void *use_per_thread_stream(void *context)
{
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return "no context";
    for (int turn = 0; turn < 3; turn++) {
        void *block;
        if (cmpool_malloc(shared_pool, &block, 60 * MIB, CU_STREAM_PER_THREAD) != CMPOOL_OK)
            return "refused";
        if (panel.touch(CU_STREAM_PER_THREAD, (uint64_t)(uintptr_t)block, 60 * MIB, 1) != 0)
            return "not touched";
        if (cmpool_free(shared_pool, block, CU_STREAM_PER_THREAD) != CMPOOL_OK)
            return "not freed";
    }
    return NULL;
}

static void each_thread_has_its_default_stream(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        shared_pool = pool_with(NULL);
        for (int i = 0; i < 3; i++) {
            assert_null(use_per_thread_stream(context));
            pthread_t thread;
            void *answer;
            assert_int_equal(pthread_create(&thread, NULL, use_per_thread_stream, context), 0);
            assert_int_equal(pthread_join(thread, &answer), 0);
            if (answer)
                fail_msg("%s", (const char *)answer);
            must_be_sound(shared_pool);
        }
        if (strstr(words, "lazy"))
            assert_true(figures(shared_pool).device_waits > 0);
        end(shared_pool);
    }
}

/* ---- older drivers
 * --------------------------------------------------------------------------------------------------------------------------- */

static void drivers_that_can_do_less(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        for (int lacks = 1; lacks < 4; lacks++) {
            device_start(words);
            panel.set_feature(SIMCUDA_FEATURE_STREAM_ID, !(lacks & 1));
            panel.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, !(lacks & 2));
            cmi_driver_forget();
            cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL);
            CUstream a = sim_test_stream(), b = sim_test_stream();
            for (int turn = 0; turn < 3; turn++) {
                give(pool, take_and_use(pool, 60 * MIB, a), a);
                give(sibling, take_and_use(sibling, 60 * MIB, b), b);
                give(pool, take_and_use(pool, 60 * MIB, b), b);
                void *small = take_and_use(pool, 1000, a);
                order(a, b);
                use(b, small, 1000);
                DONE(cmpool_record_use(pool, small, b));
                give(pool, small, a);
                give(pool, take_and_use(pool, 1000, a), a);
                DONE(cmpool_trim(pool, 0, NULL));
                must_be_sound(pool);
            }
            CUstream c = sim_test_stream();
            give(pool, take_and_use(pool, 30 * MIB, c), c);
            DONE(cmpool_stream_retire(0, c));
            OK(cuStreamDestroy_v2(c));
            c = sim_test_stream();
            give(pool, take_and_use(pool, 60 * MIB, c), c);
            DONE(cmpool_destroy(sibling));
            end(pool);
        }
    }
}

/* ---- contexts
 * ------------------------------------------------------------------------------------------------------------------------------ */

static void contexts_besides_the_primary_one(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUcontext primary, own, current;
        OK(cuCtxGetCurrent(&primary));
        CUstream a = sim_test_stream();
        OK(cuCtxCreate_v4(&own, NULL, 0, 0));
        CUstream b = sim_test_stream();
        for (int turn = 0; turn < 4; turn++) {
            OK(cuCtxSetCurrent(turn % 2 ? primary : own)); /* whichever: the pool finds its way and leaves it as it was */
            void *block = take(pool, 60 * MIB, a);
            OK(cuCtxGetCurrent(&current));
            assert_ptr_equal(current, turn % 2 ? primary : own);
            OK(cuCtxSetCurrent(primary));
            use(a, block, 60 * MIB);
            give(pool, block, a);
            block = take(pool, 60 * MIB, b);
            OK(cuCtxSetCurrent(own));
            use(b, block, 60 * MIB);
            give(pool, block, b);
            OK(cuCtxGetCurrent(&current));
            assert_ptr_equal(current, own);
            must_be_sound(pool);
        }
        do { /* no context at all */
            OK(cuCtxPopCurrent_v2(&current));
            OK(cuCtxGetCurrent(&current));
        } while (current);
        give(pool, take(pool, 1000, a), a);
        DONE(cmpool_trim(pool, 0, NULL));
        OK(cuCtxGetCurrent(&current));
        assert_null(current);
        must_be_sound(pool);
        DONE(cmpool_destroy(pool));
        OK(cuCtxDestroy_v2(own));
        OK(cuCtxSetCurrent(primary));
        device_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_calls_no_driver),
        cmocka_unit_test(no_wait_while_the_device_has_room),
        cmocka_unit_test(a_full_device_makes_streams_wait),
        cmocka_unit_test(moved_pages_carry_their_order),
        cmocka_unit_test(joined_memory_is_as_old_as_its_youngest_part),
        cmocka_unit_test(a_wait_for_one_is_no_wait_for_all),
        cmocka_unit_test(streams_that_must_not_wait),
        cmocka_unit_test(waiting_first_keeps_the_footprint),
        cmocka_unit_test(recorded_uses_come_first),
        cmocka_unit_test(joined_blocks_are_behind_all_their_streams),
        cmocka_unit_test(a_free_may_name_another_stream),
        cmocka_unit_test(handles_come_back),
        cmocka_unit_test(dead_streams_are_waited_for),
        cmocka_unit_test(an_unretired_handle_is_told),
        cmocka_unit_test(the_legacy_stream_has_two_names),
        cmocka_unit_test(each_thread_has_its_default_stream),
        cmocka_unit_test(drivers_that_can_do_less),
        cmocka_unit_test(contexts_besides_the_primary_one),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
