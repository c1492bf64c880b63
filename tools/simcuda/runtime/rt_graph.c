/*
 * Graphs: the driver's calls under the runtime's names. No state.
 */
#include "runtime/rt.h"

RT_FORWARD(cudaGraphCreate, (CUgraph * graph, unsigned int flags), GraphCreate, (graph, flags))
RT_FORWARD(cudaGraphDestroy, (CUgraph graph), GraphDestroy, (graph))
RT_FORWARD(cudaGraphClone, (CUgraph * clone, CUgraph graph), GraphClone, (clone, graph))
RT_FORWARD(cudaGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), GraphGetNodes, (graph, nodes, count))
RT_FORWARD(cudaGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), GraphGetRootNodes, (graph, nodes, count))
RT_FORWARD(cudaGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type), GraphNodeGetType, (node, type))
RT_FORWARD(cudaGraphInstantiate, (CUgraphExec * exec, CUgraph graph, unsigned long long flags), GraphInstantiateWithFlags,
           (exec, graph, flags))
RT_FORWARD(cudaGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags), GraphInstantiateWithFlags,
           (exec, graph, flags))
RT_FORWARD(cudaGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
           GraphInstantiateWithParams, (exec, graph, params))
RT_FORWARD_STREAM(cudaGraphLaunch, cudaGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), GraphLaunch, (exec, stream))
RT_FORWARD_STREAM(cudaGraphUpload, cudaGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), GraphUpload, (exec, stream))
RT_FORWARD(cudaGraphExecDestroy, (CUgraphExec exec), GraphExecDestroy, (exec))

/* CUDA 12 has the question without edge data under the plain name. */
#if SIM_RUNTIME_MAJOR == 12
RT_FORWARD(cudaGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count), GraphGetEdges,
           (graph, from, to, NULL, count))
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#endif
RT_FORWARD(cudaGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count), GraphGetEdges,
           (graph, from, to, edges, count))
