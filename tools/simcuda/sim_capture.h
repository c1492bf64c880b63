/*
 * Stream capture from inside: what capture.c (the sequences) and capture_rules.c (what they forbid) share. All of it is called with
 * sim.lock held.
 */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "sim_graph.h"

/* A set of nodes: what the next node of a stream depends on, or what an event stands for. */
typedef struct sim_node_set {
    uint32_t *nodes; /* indices in the capture's graph */
    uint32_t count;
} sim_node_set;

/*
 * One stream in a capture. `knows` is a clock over the participants of the capture: how much of each one's work comes before the next
 * node here. A participant whose work the origin does not know at the end is an unjoined fork.
 */
typedef struct sim_participant {
    sim_lane *lane; /* NULL once its stream is destroyed */
    uint32_t tick;  /* moves with everything captured here, the fork itself included */
    sim_clock knows;
    sim_node_set before;
    CUgraphNode *shown; /* `before` as cuStreamGetCaptureInfo last returned it, and as much edge data, all zero */
    CUgraphEdgeData *shown_edges;
} sim_participant;

struct sim_capture {
    sim_capture *next; /* live captures */
    uint64_t id;
    CUstreamCaptureMode mode;
    uint32_t thread; /* number of the thread that began it */
    bool live, invalid;
    bool into_program_graph; /* cuStreamBeginCaptureToGraph: the graph is the program's */
    sim_graph *graph;
    sim_participant *participants; /* [0] is the origin */
    uint32_t participant_count;
    uint32_t references; /* while live, and each event that was last recorded in it */
};

/* What an event recorded in a capture stands for there. */
typedef struct sim_captured {
    sim_clock knows;
    sim_node_set before;
} sim_captured;

extern sim_capture *sim_captures; /* the live ones */

/* into NULL: a graph of the capture's own; else the program's, with the nodes that the first node comes after. */
CUresult sim_capture_begin(sim_lane *lane, sim_graph *into, const sim_node_set *after, CUstreamCaptureMode mode);
CUresult sim_capture_end(sim_lane *lane, CUgraph *graph);
/* What the lane's next node depends on; each result is optional. */
CUresult sim_capture_show(sim_lane *lane, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count);
void sim_capture_invalidate(sim_capture *capture);

#endif /* SIM_CAPTURE_H */
