/*
 * What is still to be had while a capture is live: nothing can be asked of the device then, so what was known when it began has to last.
 * Each test fills the device to the last page. Needs the simulated device beside it.
 */
#include "capture_fixture.h"

static void fill_the_device(void) { assert_int_equal(panel.sibling_take(0, census_of(0).free_bytes, NULL), 0); }

static void empty_the_device(void) { panel.sibling_return(0, census_of(0).sibling_bytes); }

/* Memory that was free for everybody when the capture began goes to its set, also if a neighbour has been freed meanwhile. */
static void finished_memory_stays_finished(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream captured = sim_test_stream(), other = sim_test_stream();
        DONE(cmpool_reserve(pool, 10 * MIB));
        fill_the_device();
        void *block = take_and_use(pool, 2 * MIB, other);
        begin(set, captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
        give(pool, block, other);
        give(set, take_and_use(set, 8 * MIB, captured), captured);
        block = NULL;
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(set, &block, 9 * MIB, captured)); /* that one is still in use */
        end_set(set, end_capture(set, captured));
        give(pool, take_and_use(pool, 10 * MIB, other), other);
        empty_the_device();
        end_pool(pool);
    }
}

/* What is done when a capture begins is noted in every pool, also where the set is not. */
static void other_pools_are_looked_at(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=eager");
    cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL), set = set_in(pool);
    CUstream captured = sim_test_stream(), other = sim_test_stream();
    void *block = take_and_use(sibling, 8 * MIB, other), *neighbour = take_and_use(sibling, 2 * MIB, other);
    fill_the_device();
    give(sibling, block, other);
    begin(set, captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    give(sibling, neighbour, other);
    give(set, take_and_use(set, 8 * MIB, captured), captured);
    end_set(set, end_capture(set, captured));
    empty_the_device();
    DONE(cmpool_destroy(sibling));
    end_pool(pool);
}

/* What was freed before has an event behind it, what is freed meanwhile has none: only the first can be waited for. */
static void what_cannot_be_waited_for_is_left_out(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), set = set_in(pool);
        CUstream captured = sim_test_stream(), first = sim_test_stream(), second = sim_test_stream(), third = sim_test_stream();
        void *late = take_and_use(pool, 2 * MIB, second), *between = take_and_use(pool, 2 * MIB, third);
        void *early = take_and_use(pool, 2 * MIB, first);
        fill_the_device();
        int gate = panel.gate_close(first);
        give(pool, early, first);
        begin(set, captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        give(pool, late, second);
        void *block = take_and_use(pool, 2 * MIB, third), *more = NULL;
        assert_int_equal(figures(pool).device_waits, 1);
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &more, 2 * MIB, third));
        give(pool, take_and_use(pool, 2 * MIB, second), second); /* its own is another matter */
        end_set(set, end_capture(set, captured));
        panel.gate_open(gate);
        give(pool, block, third);
        give(pool, between, third);
        give(pool, take_and_use(pool, 6 * MIB, third), third);
        empty_the_device();
        end_pool(pool);
    }
}

/* With pending:wait other streams' memory comes before new pages, but not in the place of them. */
static void new_pages_where_nothing_can_be_waited_for(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with("pending:wait"), set = set_in(pool);
        CUstream captured = sim_test_stream(), other = sim_test_stream(), third = sim_test_stream();
        void *block = take_and_use(pool, 4 * MIB, other);
        begin(set, captured, CU_STREAM_CAPTURE_MODE_RELAXED);
        give(pool, block, other);
        give(pool, take_and_use(pool, 4 * MIB, third), third);
        end_set(set, end_capture(set, captured));
        end_pool(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finished_memory_stays_finished),
        cmocka_unit_test(other_pools_are_looked_at),
        cmocka_unit_test(what_cannot_be_waited_for_is_left_out),
        cmocka_unit_test(new_pages_where_nothing_can_be_waited_for),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
