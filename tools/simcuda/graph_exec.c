/*
 * Executable graphs: a copy of a graph's nodes, spread over lanes so that nodes which do not depend on one another may run at the same
 * time, and launched behind the stream's work and behind the previous launch. Guarded by sim.lock. Called by programs.
 */
#include "sim_graph.h"
#include "sim_other.h"

#include <stdlib.h>
#include <string.h>

/* A line of nodes each after the one before it. The first one runs in the launching stream itself. */
typedef struct branch {
    uint64_t context, context_id;
    uint32_t tail;  /* its last node */
    sim_lane *lane; /* NULL until used, and for the first branch */
    bool started;   /* in the launch under way */
} branch;

typedef struct sim_exec {
    uint64_t handle, flags;
    sim_node *nodes;
    uint32_t count;
    uint32_t *branch_of; /* per node */
    bool *awaited;       /* per node: another branch waits for it */
    branch *branches;
    uint32_t branch_count;
    sim_event last; /* end of the last launch */
} sim_exec;

static void exec_delete(sim_exec *exec)
{
    for (uint32_t i = 0; i < exec->branch_count; i++) {
        if (exec->branches[i].lane != NULL) {
            sim_lane_close(exec->branches[i].lane);
        }
    }
    sim_nodes_free(exec->nodes, exec->count);
    sim_clock_free(&exec->last.clock);
    free(exec->branch_of);
    free(exec->awaited);
    free(exec->branches);
    if (exec->handle) {
        sim_handle_drop(SIM_GRAPH_EXEC, exec->handle);
    }
    free(exec);
}

/* A node goes on with the branch of the first node it depends on that nobody has gone on with and that has its context. */
static void spread(sim_exec *exec)
{
    for (uint32_t i = 0; i < exec->count; i++) {
        const sim_node *node = &exec->nodes[i];
        uint32_t chosen = exec->branch_count;
        for (uint32_t j = 0; j < node->after_count && chosen == exec->branch_count; j++) {
            uint32_t candidate = exec->branch_of[node->after[j]];
            const branch *at = &exec->branches[candidate];
            if (at->tail == node->after[j] && at->context_id == node->context_id) {
                chosen = candidate;
            }
        }
        if (chosen == exec->branch_count) {
            exec->branches[exec->branch_count++] = (branch){.context = node->context, .context_id = node->context_id};
        }
        exec->branch_of[i] = chosen;
        exec->branches[chosen].tail = i;
        for (uint32_t j = 0; j < node->after_count; j++) {
            exec->awaited[node->after[j]] |= exec->branch_of[node->after[j]] != chosen;
        }
    }
}

static CUresult instantiate(CUgraphExec *result, CUgraph handle, cuuint64_t flags)
{
    const sim_graph *graph = sim_graph_of(handle);
    const cuuint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                             CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == NULL || graph == NULL || graph->capturing || (flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t room = graph->count ? graph->count : 1;
    exec->flags = flags;
    exec->branch_of = calloc(room, sizeof *exec->branch_of);
    exec->awaited = calloc(room, sizeof *exec->awaited);
    exec->branches = calloc(room, sizeof *exec->branches);
    bool good = exec->branch_of && exec->awaited && exec->branches && sim_nodes_copy(&exec->nodes, graph->nodes, graph->count);
    if (good) {
        exec->count = graph->count;
        spread(exec);
        exec->handle = sim_handle_new(SIM_GRAPH_EXEC, exec);
    }
    if (exec->handle == 0) {
        exec_delete(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = SIM_AS_HANDLE(CUgraphExec, exec->handle);
    return CUDA_SUCCESS;
}

/* The lane of a branch in this launch, behind the launch's beginning. NULL: *code. */
static sim_lane *branch_lane(branch *at, bool first, sim_lane *stream, const sim_event *begin, CUresult *code)
{
    if (first && at->context_id == stream->context->id) {
        return stream;
    }
    if (at->lane == NULL) {
        sim_context *context = sim_context_of(SIM_AS_HANDLE(CUcontext, at->context), code);
        if (context == NULL || context->id != at->context_id) {
            *code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
            return NULL;
        }
        at->lane = sim_lane_new(context, false, "graph");
        if (at->lane == NULL) {
            *code = CUDA_ERROR_OUT_OF_MEMORY;
            return NULL;
        }
    }
    if (!at->started) {
        sim_lane_wait_event(at->lane, begin);
        at->started = true;
    }
    return at->lane;
}

static CUresult run_node(const sim_node *node, sim_lane *lane)
{
    CUresult code;
    if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        sim_event *event = sim_event_of(node->event, &code);
        if (event == NULL) {
            return code;
        }
        if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            sim_lane_record(lane, event);
        } else {
            sim_lane_wait_event(lane, event);
        }
        return CUDA_SUCCESS;
    }
    sim_op op;
    code = sim_op_copy(&op, &node->op);
    return code == CUDA_SUCCESS ? sim_op_run(lane, &op) : code;
}

/* Nodes in their order, each behind those it depends on; then the stream goes on behind all of them. */
static CUresult launch(sim_exec *exec, sim_lane *stream)
{
    CUresult code = CUDA_SUCCESS;
    sim_event begin = {0};
    sim_event *ends = calloc(exec->count ? exec->count : 1, sizeof *ends);
    if (ends == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lane_wait_event(stream, &exec->last);
    sim_lane_record(stream, &begin);
    for (uint32_t i = 0; i < exec->branch_count; i++) {
        exec->branches[i].started = false;
    }
    for (uint32_t i = 0; i < exec->count && code == CUDA_SUCCESS; i++) {
        const sim_node *node = &exec->nodes[i];
        uint32_t number = exec->branch_of[i];
        sim_lane *lane = branch_lane(&exec->branches[number], number == 0, stream, &begin, &code);
        if (lane == NULL) {
            break;
        }
        for (uint32_t j = 0; j < node->after_count; j++) {
            if (exec->branch_of[node->after[j]] != number) {
                sim_lane_wait_event(lane, &ends[node->after[j]]);
            }
        }
        code = run_node(node, lane);
        if (exec->awaited[i]) {
            sim_lane_record(lane, &ends[i]);
        }
    }
    for (uint32_t i = 0; i < exec->branch_count; i++) {
        if (exec->branches[i].started) {
            sim_lane_wait_lane(stream, exec->branches[i].lane);
        }
    }
    sim_lane_record(stream, &exec->last);
    for (uint32_t i = 0; i < exec->count; i++) {
        sim_clock_free(&ends[i].clock);
    }
    sim_clock_free(&begin.clock);
    free(ends);
    return code;
}

/* Its lanes are gone with the context; the nodes stay, and a launch is refused. */
void sim_exec_context_gone(const sim_context *context)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_GRAPH_EXEC, i, &object); i++) {
        sim_exec *exec = object;
        for (uint32_t j = 0; exec != NULL && j < exec->branch_count; j++) {
            if (exec->branches[j].context_id == context->id) {
                exec->branches[j].lane = NULL;
            }
        }
    }
}

void sim_exec_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_GRAPH_EXEC, i, &object); i++) {
        if (object != NULL) {
            exec_delete(object);
        }
    }
}

/* ---- entry points ------------------------------------------------------------------------------------------------------------- */

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    SIM_ENTER("cuGraphInstantiateWithFlags");
    SIM_RETURN(instantiate(exec, graph, flags));
}

/* The forms of CUDA 10 and 11 return a log, which stays empty. */
static CUresult instantiate_with_log(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    SIM_ENTER("cuGraphInstantiate");
    if (error_node != NULL) {
        *error_node = NULL;
    }
    if (log != NULL && log_bytes != 0) {
        log[0] = '\0';
    }
    SIM_RETURN(instantiate(exec, graph, 0));
}

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    return instantiate_with_log(exec, graph, error_node, log, log_bytes);
}

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    return instantiate_with_log(exec, graph, error_node, log, log_bytes);
}

static CUresult instantiate_with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread)
{
    SIM_ENTER("cuGraphInstantiateWithParams");
    SIM_REFUSE_IF(params == NULL, CUDA_ERROR_INVALID_VALUE);
    params->hErrNode_out = NULL;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
        SIM_NEED_LANE(params->hUploadStream, per_thread);
    }
    CUresult code = instantiate(exec, graph, params->flags);
    if (code == CUDA_SUCCESS) {
        params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    }
    SIM_RETURN(code);
}

static CUresult upload_graph(CUgraphExec exec, CUstream stream, bool per_thread)
{
    SIM_ENTER("cuGraphUpload");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    SIM_REFUSE_IF(lane->capture != NULL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(sim_handle_get(SIM_GRAPH_EXEC, SIM_NUMBER(exec)) == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult launch_graph(CUgraphExec handle, CUstream stream, bool per_thread)
{
    SIM_ENTER("cuGraphLaunch");
    sim_lane *lane = SIM_NEED_LANE(stream, per_thread);
    sim_exec *exec = sim_handle_get(SIM_GRAPH_EXEC, SIM_NUMBER(handle));
    SIM_REFUSE_IF(exec == NULL, CUDA_ERROR_INVALID_VALUE);
    if (lane->capture != NULL) {
        static int said;
        SIM_RETURN(sim_unsupported("cuGraphLaunch in a capture", &said));
    }
    if (lane == lane->context->legacy) {
        CUresult code = sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    }
    SIM_RETURN(launch(exec, lane));
}

SIM_BOTH_STREAMS(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
                 instantiate_with_params, exec, graph, params)
SIM_BOTH_STREAMS(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload_graph, exec, stream)
SIM_BOTH_STREAMS(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch_graph, exec, stream)

SIM_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    SIM_ENTER("cuGraphExecDestroy");
    sim_exec *found = sim_handle_get(SIM_GRAPH_EXEC, SIM_NUMBER(exec));
    SIM_REFUSE_IF(found == NULL, CUDA_ERROR_INVALID_VALUE);
    exec_delete(found);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    SIM_ENTER("cuGraphExecGetFlags");
    const sim_exec *found = sim_handle_get(SIM_GRAPH_EXEC, SIM_NUMBER(exec));
    SIM_REFUSE_IF(found == NULL || flags == NULL, CUDA_ERROR_INVALID_VALUE);
    *flags = found->flags;
    SIM_RETURN(CUDA_SUCCESS);
}
