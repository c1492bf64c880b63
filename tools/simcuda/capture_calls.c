/*
 * The calls that begin, end and look at captures, and the capture mode of a thread. Guarded by sim.lock; the captures themselves are in
 * capture.c. Called by programs.
 */
#include "sim_capture.h"
#include "sim_other.h"

#include <stdlib.h>

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode, bool per_thread)
{
    SIM_ENTER("cuStreamBeginCapture");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_RETURN(sim_capture_begin(lane, NULL, &(sim_node_set){0}, mode));
}

static CUresult begin_capture_to_graph(CUstream stream, CUgraph handle, const CUgraphNode *after, const CUgraphEdgeData *edges,
                                       size_t count, CUstreamCaptureMode mode, bool per_thread)
{
    SIM_ENTER("cuStreamBeginCaptureToGraph");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    sim_graph *graph = sim_graph_of(handle);
    (void)edges; /* annotations of edges between kernels */
    SIM_REFUSE_IF(graph == NULL || graph->capturing || (count != 0 && after == NULL) || count > graph->count, CUDA_ERROR_INVALID_VALUE);
    sim_node_set set = {malloc((count + 1) * sizeof *set.nodes), 0};
    SIM_REFUSE_IF(set.nodes == NULL, CUDA_ERROR_OUT_OF_MEMORY);
    while (set.count < count && sim_graph_index(graph, after[set.count], &set.nodes[set.count])) {
        set.count++;
    }
    CUresult code = set.count < count ? CUDA_ERROR_INVALID_VALUE : sim_capture_begin(lane, graph, &set, mode);
    free(set.nodes);
    SIM_RETURN(code);
}

static CUresult end_capture(CUstream stream, CUgraph *graph, bool per_thread)
{
    SIM_ENTER("cuStreamEndCapture");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_REFUSE_IF(graph == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(sim_capture_end(lane, graph));
}

static bool blocking_capture(const sim_context *context)
{
    for (const sim_lane *lane = context->lanes; lane != NULL; lane = lane->next) {
        if (lane->capture != NULL && lane->blocking) {
            return true;
        }
    }
    return false;
}

static CUstreamCaptureStatus status_of(const sim_lane *lane)
{
    return lane->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
           : lane->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asking about the legacy stream while a blocking stream captures is an error, but does the capture no harm (cuda.h). */
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status, bool per_thread)
{
    SIM_ENTER("cuStreamIsCapturing");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_REFUSE_IF(status == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(lane == lane->context->legacy && blocking_capture(lane->context), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = status_of(lane);
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                             const CUgraphEdgeData **edges, size_t *count, bool per_thread)
{
    SIM_ENTER("cuStreamGetCaptureInfo");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_REFUSE_IF(status == NULL || (edges != NULL && after == NULL), CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(lane == lane->context->legacy && blocking_capture(lane->context), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = status_of(lane);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        SIM_RETURN(CUDA_SUCCESS);
    }
    if (id != NULL) {
        *id = lane->capture->id;
    }
    if (graph != NULL) {
        *graph = SIM_AS_HANDLE(CUgraph, lane->capture->graph->handle);
    }
    SIM_RETURN(sim_capture_show(lane, after, edges, count));
}

/* CUDA 10.0 had no modes: its captures are global. */
SIM_BOTH_STREAMS(cuStreamBeginCapture, (CUstream stream), begin_capture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
SIM_BOTH_STREAMS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), begin_capture, stream, mode)
SIM_BOTH_STREAMS(cuStreamBeginCaptureToGraph,
                 (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
                  CUstreamCaptureMode mode),
                 begin_capture_to_graph, stream, graph, after, edges, count, mode)
SIM_BOTH_STREAMS(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end_capture, stream, graph)
SIM_BOTH_STREAMS(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), is_capturing, stream, status)
SIM_BOTH_STREAMS(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id), capture_info, stream, status, id,
                 NULL, NULL, NULL, NULL)
SIM_BOTH_STREAMS(cuStreamGetCaptureInfo_v2,
                 (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, size_t *count),
                 capture_info, stream, status, id, graph, after, NULL, count)
SIM_BOTH_STREAMS(cuStreamGetCaptureInfo_v3,
                 (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                  const CUgraphEdgeData **edges, size_t *count),
                 capture_info, stream, status, id, graph, after, edges, count)

SIM_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER("cuThreadExchangeStreamCaptureMode");
    SIM_REFUSE_IF(mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode previous = sim_self()->capture_mode;
    sim_self()->capture_mode = *mode;
    *mode = previous;
    SIM_RETURN(CUDA_SUCCESS);
}
