/*
 * Random work on three streams that wait for one another, done at once and done as a captured graph: the same pairs must be ordered, so
 * the race checker must find the same. A seed that fails is printed; give it in TEST_SEED to run that one alone.
 */
#include "test_rt_driver.h"

#define STREAMS 3
#define EVENTS 4
#define BLOCKS 6
#define STEPS 20
#define SEEDS 400

static uint64_t random_state;

static unsigned pick(unsigned below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % below;
}

static CUstream streams[STREAMS];
static CUevent events[EVENTS], ends[STREAMS];
static CUdeviceptr blocks[BLOCKS];

static void random_work(void)
{
    bool recorded[EVENTS] = {false};
    OK(cu.EventRecord(ends[0], streams[0]));
    for (int i = 1; i < STREAMS; i++) {
        OK(cu.StreamWaitEvent(streams[i], ends[0], 0));
    }
    for (int step = 0; step < STEPS; step++) {
        CUstream stream = streams[pick(STREAMS)];
        unsigned event = pick(EVENTS);
        switch (pick(3)) {
        case 0:
            assert_int_equal(panel.touch(stream, blocks[pick(BLOCKS)], 512, pick(3) == 0), 0);
            break;
        case 1:
            OK(cu.EventRecord(events[event], stream));
            recorded[event] = true;
            break;
        default:
            if (recorded[event]) {
                OK(cu.StreamWaitEvent(stream, events[event], 0));
            }
        }
    }
    for (int i = 1; i < STREAMS; i++) {
        OK(cu.EventRecord(ends[i], streams[i]));
        OK(cu.StreamWaitEvent(streams[0], ends[i], 0));
    }
}

static void prepare(const char *words)
{
    start(words);
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream();
        ends[i] = new_event();
    }
    for (int i = 0; i < EVENTS; i++) {
        events[i] = new_event();
    }
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = new_memory(512);
    }
}

static uint64_t races_at_once(uint64_t seed)
{
    prepare("sim:64MiB,order=lazy");
    random_state = seed;
    random_work();
    return panel.races();
}

/* Launched twice: the second launch is behind the first and so adds what the first had, no more. */
static uint64_t races_in_a_graph(uint64_t seed)
{
    CUgraph graph;
    CUgraphExec exec;
    prepare("sim:64MiB,order=eager");
    random_state = seed;
    OK(cu.StreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    random_work();
    OK(cu.StreamEndCapture(streams[0], &graph));
    assert_int_equal(panel.races(), 0);
    OK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu.GraphLaunch(exec, streams[0]));
    uint64_t once = panel.races();
    OK(cu.GraphLaunch(exec, streams[0]));
    assert_int_equal(panel.races(), 2 * once);
    OK(cu.GraphExecDestroy(exec));
    OK(cu.GraphDestroy(graph));
    return once;
}

static void graphs_order_what_streams_order(void **state)
{
    (void)state;
    const char *only = getenv("TEST_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : 1, last = only ? first : SEEDS;
    unsigned racing = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        uint64_t direct = races_at_once(seed), captured = races_in_a_graph(seed);
        if (direct != captured) {
            print_error("TEST_SEED=%llu: %llu races at once, %llu in a graph\n", (unsigned long long)seed, (unsigned long long)direct,
                        (unsigned long long)captured);
        }
        assert_int_equal(direct, captured);
        racing += direct != 0;
    }
    if (!only) { /* programs of both kinds were among them */
        assert_in_range(racing, SEEDS / 10, SEEDS - SEEDS / 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_order_what_streams_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
