/*
 * Owns what a random program does with captures and graphs: one capture at a time, graphs of one set never at the same time. One thread.
 * Called by run.c.
 */
#include "world.h"

static bool driver(world *w, const char *call, CUresult code)
{
    return code == CUDA_SUCCESS || world_fault(w, "capture: the program's own %s gave %d", call, (int)code);
}

bool world_begin_capture(world *w, unsigned set, unsigned stream, unsigned mode)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    if (!world_hand_over(w, stream)) {
        return false;
    }
    past_begin_capture(w);
    w->capturing = w->streams[stream].captures = true;
    w->capture_set = set;
    w->capture_stream = stream;
    return world_expect(w, "cmpool_capture_begin", cmpool_capture_begin(w->pools[set].handle), CMPOOL_OK) &&
           driver(w, "cuStreamBeginCapture", w->device.cuStreamBeginCapture_v2(w->streams[stream].handle, modes[mode % 3]));
}

bool world_end_capture(world *w)
{
    world_pool *set = &w->pools[w->capture_set];
    CUgraph graph = NULL;
    CUresult code = w->device.cuStreamEndCapture(w->streams[w->capture_stream].handle, &graph); /* an error where it was invalidated */
    w->capturing = w->streams[w->capture_stream].captures = false;
    return driver(w, "cuStreamEndCapture", code) &&
           driver(w, "cuGraphInstantiateWithFlags", w->device.cuGraphInstantiateWithFlags(&set->graphs[set->graph_count++], graph, 0)) &&
           driver(w, "cuGraphDestroy", w->device.cuGraphDestroy(graph)) &&
           world_expect(w, "cmpool_capture_end", cmpool_capture_end(set->handle), CMPOOL_OK);
}

bool world_launch(world *w, unsigned set, unsigned graph, unsigned stream)
{
    world_pool *pool = &w->pools[set];
    if (pool->last < STREAM_SLOTS && !world_order(w, pool->last, stream)) {
        return false;
    }
    pool->last = stream;
    return driver(w, "cuGraphLaunch", w->device.cuGraphLaunch(pool->graphs[graph % pool->graph_count], w->streams[stream].handle));
}

bool world_drop_graphs(world *w, unsigned set)
{
    world_pool *pool = &w->pools[set];
    bool good = true;
    while (good && pool->graph_count) {
        good = driver(w, "cuGraphExecDestroy", w->device.cuGraphExecDestroy(pool->graphs[--pool->graph_count]));
    }
    return good;
}
