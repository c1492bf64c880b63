/*
 * Graphs from inside: what capture.c writes into, graph.c shows and graph_exec.c runs. All of it is called with sim.lock held.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "sim.h"

/* One node. Nodes are only ever added, each after those it depends on, so a graph's array is in an order that can be run. */
typedef struct sim_node {
    uint64_t handle; /* 0 in an executable graph: the program has no name for its nodes */
    CUgraphNodeType type;
    sim_op op;
    CUevent event;    /* event record and wait nodes */
    uint64_t context; /* handle and id of the context the work was captured in */
    uint64_t context_id;
    uint32_t *after; /* indices of the nodes it depends on */
    uint32_t after_count;
} sim_node;

typedef struct sim_graph {
    uint64_t handle;
    sim_node *nodes;
    uint32_t count, room;
    bool capturing; /* it belongs to a capture: neither instantiated nor destroyed by the program */
} sim_graph;

/* NULL when the host has no memory. */
sim_graph *sim_graph_new(void);
void sim_graph_delete(sim_graph *graph);
/* The graph of a handle, or NULL. */
sim_graph *sim_graph_of(CUgraph handle);
/* A node like the one given, with a handle of its own, after those named; op passes to it. False: no memory, and op is freed. */
bool sim_graph_add(sim_graph *graph, const sim_node *node, const uint32_t *after, uint32_t after_count, uint32_t *index);
/* Index of a node of the graph by its handle; false: it is not one of its nodes. */
bool sim_graph_index(const sim_graph *graph, CUgraphNode handle, uint32_t *index);
/* A deep copy of nodes without handles; false: no memory. */
bool sim_nodes_copy(sim_node **to, const sim_node *from, uint32_t count);
void sim_nodes_free(sim_node *nodes, uint32_t count);
CUgraphNodeType sim_node_type(const sim_op *op);

/* graph_exec.c */
void sim_exec_context_gone(const sim_context *context);
void sim_exec_reset(void);
/* capture.c */
void sim_capture_context_gone(sim_context *context);
void sim_capture_reset(void);
/* pool.c, ipc.c, attr.c */
void sim_pool_reset(void);
CUmemoryPool sim_pool_handle(const sim_mapping *mapping); /* of memory that came from one, else NULL */
void sim_ipc_reset(void);
void sim_attr_reset(void);

#endif /* SIM_GRAPH_H */
