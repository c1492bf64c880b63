/*
 * Graphs: nodes and what they depend on, as captures build them and programs look at them. Guarded by sim.lock. Called by capture.c,
 * graph_exec.c and by programs.
 */
#include "sim_graph.h"

#include <stdlib.h>
#include <string.h>

CUgraphNodeType sim_node_type(const sim_op *op)
{
    switch (op->kind) {
    case SIM_OP_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_OP_FILL:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_OP_CALLBACK:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SIM_OP_NOTHING:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    default:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    }
}

void sim_nodes_free(sim_node *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (nodes[i].handle) {
            sim_handle_drop(SIM_GRAPH_NODE, nodes[i].handle);
        }
        sim_op_free(&nodes[i].op);
        free(nodes[i].after);
    }
    free(nodes);
}

static bool copy_after(sim_node *to, const uint32_t *after, uint32_t count)
{
    to->after = NULL;
    to->after_count = count;
    if (count == 0) {
        return true;
    }
    to->after = malloc(count * sizeof *after);
    if (to->after != NULL) {
        memcpy(to->after, after, count * sizeof *after);
    }
    return to->after != NULL;
}

bool sim_nodes_copy(sim_node **to, const sim_node *from, uint32_t count)
{
    sim_node *nodes = calloc(count ? count : 1, sizeof *nodes);
    uint32_t done = 0;
    bool good = nodes != NULL;
    while (good && done < count) {
        sim_node *node = &nodes[done];
        *node = from[done];
        node->handle = 0;
        good = copy_after(node, from[done].after, from[done].after_count);
        if (good && sim_op_copy(&node->op, &from[done].op) != CUDA_SUCCESS) {
            free(node->after);
            good = false;
        }
        done += good;
    }
    if (!good && nodes != NULL) {
        sim_nodes_free(nodes, done);
        nodes = NULL;
    }
    *to = nodes;
    return good;
}

sim_graph *sim_graph_new(void)
{
    sim_graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL) {
        graph->handle = sim_handle_new(SIM_GRAPH, graph);
        if (graph->handle == 0) {
            free(graph);
            graph = NULL;
        }
    }
    return graph;
}

void sim_graph_delete(sim_graph *graph)
{
    sim_nodes_free(graph->nodes, graph->count);
    sim_handle_drop(SIM_GRAPH, graph->handle);
    free(graph);
}

sim_graph *sim_graph_of(CUgraph handle) { return sim_handle_get(SIM_GRAPH, SIM_NUMBER(handle)); }

bool sim_graph_add(sim_graph *graph, const sim_node *node, const uint32_t *after, uint32_t after_count, uint32_t *index)
{
    sim_node added = *node;
    if (graph->count == graph->room) {
        uint32_t room = graph->room ? graph->room * 2 : 16;
        sim_node *nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (nodes == NULL) {
            sim_op_free(&added.op);
            return false;
        }
        graph->nodes = nodes;
        graph->room = room;
    }
    added.handle = sim_handle_new(SIM_GRAPH_NODE, graph);
    if (added.handle == 0 || !copy_after(&added, after, after_count)) {
        if (added.handle != 0) {
            sim_handle_drop(SIM_GRAPH_NODE, added.handle);
        }
        sim_op_free(&added.op);
        return false;
    }
    *index = graph->count;
    graph->nodes[graph->count++] = added;
    return true;
}

bool sim_graph_index(const sim_graph *graph, CUgraphNode handle, uint32_t *index)
{
    for (uint32_t i = 0; i < graph->count; i++) {
        if (graph->nodes[i].handle == SIM_NUMBER(handle)) {
            *index = i;
            return true;
        }
    }
    return false;
}

uint64_t sim_other_graphs(void) { return sim_handle_live(SIM_GRAPH) + sim_handle_live(SIM_GRAPH_EXEC); }

void sim_other_context_gone(sim_context *context)
{
    sim_capture_context_gone(context);
    sim_exec_context_gone(context);
}

void sim_other_reset(void)
{
    void *object;
    sim_capture_reset();
    sim_exec_reset();
    for (size_t i = 0; sim_handle_at(SIM_GRAPH, i, &object); i++) {
        if (object != NULL) {
            sim_graph_delete(object);
        }
    }
    sim_pool_reset();
    sim_ipc_reset();
    sim_attr_reset();
}

/* ---- entry points ------------------------------------------------------------------------------------------------------------- */

SIM_EXPORT CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    SIM_ENTER("cuGraphCreate");
    SIM_REFUSE_IF(graph == NULL || flags != 0, CUDA_ERROR_INVALID_VALUE);
    sim_graph *made = sim_graph_new();
    SIM_REFUSE_IF(made == NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *graph = SIM_AS_HANDLE(CUgraph, made->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    SIM_ENTER("cuGraphDestroy");
    sim_graph *found = sim_graph_of(graph);
    SIM_REFUSE_IF(found == NULL || found->capturing, CUDA_ERROR_INVALID_VALUE);
    sim_graph_delete(found);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuGraphClone(CUgraph *clone, CUgraph graph)
{
    SIM_ENTER("cuGraphClone");
    const sim_graph *from = sim_graph_of(graph);
    SIM_REFUSE_IF(clone == NULL || from == NULL, CUDA_ERROR_INVALID_VALUE);
    sim_graph *made = sim_graph_new();
    SIM_REFUSE_IF(made == NULL, CUDA_ERROR_OUT_OF_MEMORY);
    for (uint32_t i = 0; i < from->count; i++) {
        const sim_node *node = &from->nodes[i];
        sim_node copy = *node;
        uint32_t index;
        if (sim_op_copy(&copy.op, &node->op) != CUDA_SUCCESS || !sim_graph_add(made, &copy, node->after, node->after_count, &index)) {
            sim_graph_delete(made);
            SIM_RETURN(CUDA_ERROR_OUT_OF_MEMORY);
        }
    }
    *clone = SIM_AS_HANDLE(CUgraph, made->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

/* cuda.h, cuGraphGetNodes: without an array the count; else that many entries, those beyond the last node NULL. */
static void list_nodes(const sim_graph *graph, bool roots_only, CUgraphNode *nodes, size_t *count)
{
    size_t room = nodes ? *count : 0, found = 0;
    for (uint32_t i = 0; i < graph->count; i++) {
        if (roots_only && graph->nodes[i].after_count != 0) {
            continue;
        }
        if (nodes == NULL) {
            found++;
        } else if (found < room) {
            nodes[found++] = SIM_AS_HANDLE(CUgraphNode, graph->nodes[i].handle);
        }
    }
    for (size_t i = found; i < room; i++) {
        nodes[i] = NULL;
    }
    *count = found;
}

SIM_EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    SIM_ENTER("cuGraphGetNodes");
    const sim_graph *found = sim_graph_of(graph);
    SIM_REFUSE_IF(found == NULL || count == NULL, CUDA_ERROR_INVALID_VALUE);
    list_nodes(found, false, nodes, count);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    SIM_ENTER("cuGraphGetRootNodes");
    const sim_graph *found = sim_graph_of(graph);
    SIM_REFUSE_IF(found == NULL || count == NULL, CUDA_ERROR_INVALID_VALUE);
    list_nodes(found, true, nodes, count);
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult list_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    SIM_ENTER("cuGraphGetEdges");
    const sim_graph *found = sim_graph_of(graph);
    SIM_REFUSE_IF(found == NULL || count == NULL || (from == NULL) != (to == NULL), CUDA_ERROR_INVALID_VALUE);
    size_t room = from ? *count : 0, edges = 0;
    for (uint32_t i = 0; i < found->count; i++) {
        const sim_node *node = &found->nodes[i];
        for (uint32_t j = 0; j < node->after_count; j++) {
            if (from == NULL) {
                edges++;
            } else if (edges < room) {
                from[edges] = SIM_AS_HANDLE(CUgraphNode, found->nodes[node->after[j]].handle);
                to[edges++] = SIM_AS_HANDLE(CUgraphNode, node->handle);
            }
        }
    }
    for (size_t i = edges; i < room; i++) {
        from[i] = to[i] = NULL;
    }
    if (data != NULL) {
        memset(data, 0, room * sizeof *data);
    }
    *count = edges;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return list_edges(graph, from, to, NULL, count);
}

SIM_EXPORT CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    return list_edges(graph, from, to, data, count);
}

SIM_EXPORT CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    SIM_ENTER("cuGraphNodeGetType");
    const sim_graph *graph = sim_handle_get(SIM_GRAPH_NODE, SIM_NUMBER(node));
    uint32_t index;
    SIM_REFUSE_IF(graph == NULL || type == NULL || !sim_graph_index(graph, node, &index), CUDA_ERROR_INVALID_VALUE);
    *type = graph->nodes[index].type;
    SIM_RETURN(CUDA_SUCCESS);
}
