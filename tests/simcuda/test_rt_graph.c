/*
 * Graphs: what a launch orders and what it leaves unordered, told by the race checker in every order of the device.
 */
#include "test_rt_driver.h"

static const char *const orders[] = {"sim:1GiB,order=eager", "sim:1GiB,order=lazy", "sim:1GiB,order=random:7"};
#define FOR_EACH_ORDER for (size_t order = 0; order < sizeof orders / sizeof orders[0]; order++)

#define TOUCH(stream, address, write) assert_int_equal(panel.touch((stream), (address), 512, (write)), 0)

static CUgraphExec instantiate(CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu.GraphDestroy(graph)); /* an executable graph is a thing of its own */
    return exec;
}

/* A graph that writes the bytes once. */
static CUgraphExec writing_graph(CUdeviceptr address)
{
    CUstream stream = new_stream();
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    TOUCH(stream, address, 1);
    CUgraphExec exec = instantiate(stream);
    OK(cu.StreamDestroy(stream));
    return exec;
}

static void capturing_runs_nothing(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUdeviceptr memory = new_memory(512);
        CUstream busy = new_stream();
        TOUCH(busy, memory, 1);
        CUgraphExec exec = writing_graph(memory); /* would race, did it run */
        assert_int_equal(panel.races(), 0);
        OK(cu.GraphLaunch(exec, busy)); /* behind the first */
        assert_int_equal(panel.races(), 0);
        OK(cu.GraphLaunch(exec, new_stream())); /* "ordered behind any previous launches of hGraphExec" */
        assert_int_equal(panel.races(), 0);
        TOUCH(new_stream(), memory, 0);
        assert_int_equal(panel.races(), 1);
        OK(cu.GraphExecDestroy(exec));
    }
}

static void a_launch_is_behind_its_stream_only(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUdeviceptr memory = new_memory(512);
        CUgraphExec exec = writing_graph(memory);
        TOUCH(new_stream(), memory, 1);
        OK(cu.GraphLaunch(exec, new_stream()));
        assert_int_equal(panel.races(), 1);
    }
}

static void launched_again_and_again(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        CUdeviceptr memory = new_memory(512);
        CUgraphExec exec = writing_graph(memory);
        CUstream stream = new_stream(), reader = new_stream();
        CUevent done = new_event();
        for (int i = 0; i < 20; i++) {
            OK(cu.GraphLaunch(exec, stream));
            OK(cu.EventRecord(done, stream));
            OK(cu.StreamWaitEvent(reader, done, 0));
            TOUCH(reader, memory, 0);
            OK(cu.EventRecord(done, reader));
            OK(cu.StreamWaitEvent(stream, done, 0));
        }
        assert_int_equal(panel.races(), 0);
        OK(cu.GraphLaunch(exec, stream)); /* the reader does not wait for this one */
        TOUCH(reader, memory, 0);
        assert_int_equal(panel.races(), 1);
    }
}

/* Work on a forked stream that both sides write is unordered; ordered when the fork comes after the write. */
static void branches_run_at_the_same_time(void **state)
{
    (void)state;
    for (int racing = 0; racing < 2; racing++) {
        FOR_EACH_ORDER
        {
            start(orders[order]);
            CUdeviceptr memory = new_memory(512);
            CUstream stream = new_stream(), side = new_stream();
            CUevent fork = new_event(), join = new_event();
            OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
            if (!racing) {
                TOUCH(stream, memory, 1);
            }
            OK(cu.EventRecord(fork, stream));
            if (racing) {
                TOUCH(stream, memory, 1);
            }
            OK(cu.StreamWaitEvent(side, fork, 0));
            TOUCH(side, memory, 1);
            OK(cu.EventRecord(join, side));
            OK(cu.StreamWaitEvent(stream, join, 0));
            TOUCH(stream, memory, 1);
            CUgraphExec exec = instantiate(stream);
            assert_int_equal(panel.races(), 0);
            OK(cu.GraphLaunch(exec, stream));
            assert_int_equal(panel.races(), racing);
            /* all branches are behind the launch's beginning and before its end */
            uint64_t so_far = panel.races();
            TOUCH(stream, memory, 1);
            assert_int_equal(panel.races(), so_far);
        }
    }
}

static void memory_freed_under_a_graph(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUdeviceptr memory = new_memory(512);
    CUgraphExec exec = writing_graph(memory);
    CUstream stream = new_stream();
    OK(cu.MemFree(memory));
    assert_int_equal(panel.findings(SIMCUDA_BAD_ACCESS), 0);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.GraphLaunch(exec, stream));
    assert_int_equal(panel.findings(SIMCUDA_BAD_ACCESS), 1);
}

static void copies_move_bytes_at_each_launch(void **state)
{
    (void)state;
    start("sim:64MiB,content,order=lazy");
    unsigned char source[64], back[64];
    CUdeviceptr memory = new_memory(4096);
    CUstream stream = new_stream();
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cu.MemcpyHtoDAsync(memory, source, sizeof source, stream));
    OK(cu.MemcpyDtoDAsync(memory + 1024, memory, sizeof source, stream));
    OK(cu.MemsetD8Async(memory, 0, sizeof source, stream));
    CUgraphExec exec = instantiate(stream);
    for (int value = 1; value < 4; value++) {
        memset(source, value, sizeof source); /* read when the graph runs, not when it was captured */
        OK(cu.GraphLaunch(exec, stream));
        OK(cu.StreamSynchronize(stream));
        OK(cu.MemcpyDtoH(back, memory + 1024, sizeof back));
        assert_int_equal(back[0], value);
        assert_int_equal(back[63], value);
        OK(cu.MemcpyDtoH(back, memory, sizeof back));
        assert_int_equal(back[0], 0);
    }
    assert_int_equal(panel.races(), 0);
}

static void count_up(void *counter) { ++*(int *)counter; }

static void host_functions_run_at_each_launch(void **state)
{
    (void)state;
    FOR_EACH_ORDER
    {
        start(orders[order]);
        int calls = 0;
        CUstream stream = new_stream();
        OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cu.LaunchHostFunc(stream, count_up, &calls));
        CUgraphExec exec = instantiate(stream);
        assert_int_equal(calls, 0);
        OK(cu.GraphLaunch(exec, stream));
        OK(cu.GraphLaunch(exec, stream));
        OK(cu.StreamSynchronize(stream));
        assert_int_equal(calls, 2);
    }
}

/* CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL make nodes that work on the event at each launch. */
static void external_events(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUdeviceptr memory = new_memory(512);
    CUevent before = new_event(), after = new_event();
    CUstream stream = new_stream(), outside = new_stream();
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cu.StreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
    TOUCH(stream, memory, 1);
    OK(cu.EventRecordWithFlags(after, stream, CU_EVENT_RECORD_EXTERNAL));
    CUgraphExec exec = instantiate(stream);
    TOUCH(outside, memory, 1);
    OK(cu.EventRecord(before, outside));
    OK(cu.GraphLaunch(exec, stream));
    OK(cu.StreamWaitEvent(outside, after, 0));
    TOUCH(outside, memory, 1);
    assert_int_equal(panel.races(), 0);
}

static void handles_and_clones(void **state)
{
    (void)state;
    start("sim:1GiB");
    CUgraph graph, clone;
    CUgraphExec exec;
    CUgraphNode nodes[3], roots[1];
    CUgraphNodeType type;
    size_t count = 3;
    cuuint64_t flags = 99;
    simcuda_census census;
    CUdeviceptr memory = new_memory(512);
    CUstream stream = new_stream();
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TOUCH(stream, memory, 1);
    OK(cu.MemsetD8Async(memory, 1, 512, stream));
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphGetNodes(graph, nodes, &count)); /* "the remaining entries in nodes will be set to NULL" */
    assert_int_equal(count, 2);
    assert_null(nodes[2]);
    OK(cu.GraphNodeGetType(nodes[0], &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);
    OK(cu.GraphNodeGetType(nodes[1], &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_MEMSET);
    count = 1;
    OK(cu.GraphGetRootNodes(graph, roots, &count));
    assert_ptr_equal(roots[0], nodes[0]);
    OK(cu.GraphClone(&clone, graph));
    OK(cu.GraphDestroy(graph));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.GraphDestroy(graph));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 1);
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
    OK(cu.GraphInstantiateWithParams(&exec, clone, &params));
    assert_int_equal(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    OK(cu.GraphExecGetFlags(exec, &flags));
    assert_int_equal(flags, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    panel.count_objects(0, &census);
    assert_int_equal(census.graphs, 2);
    OK(cu.GraphDestroy(clone));
    OK(cu.GraphUpload(exec, stream));
    OK(cu.GraphLaunch(exec, stream));
    OK(cu.GraphExecDestroy(exec));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.GraphLaunch(exec, stream));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 2);
    panel.count_objects(0, &census);
    assert_int_equal(census.graphs, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capturing_runs_nothing),
        cmocka_unit_test(a_launch_is_behind_its_stream_only),
        cmocka_unit_test(launched_again_and_again),
        cmocka_unit_test(branches_run_at_the_same_time),
        cmocka_unit_test(memory_freed_under_a_graph),
        cmocka_unit_test(copies_move_bytes_at_each_launch),
        cmocka_unit_test(host_functions_run_at_each_launch),
        cmocka_unit_test(external_events),
        cmocka_unit_test(handles_and_clones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
