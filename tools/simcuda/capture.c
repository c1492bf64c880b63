/*
 * Capture sequences: which streams take part, what the next node of each depends on, how events fork and join them, how they begin and
 * end. Guarded by sim.lock. Called by capture_calls.c and, for work on capturing streams, by operation.c, stream.c and event.c.
 */
#include "sim_capture.h"

#include <stdlib.h>
#include <string.h>

sim_capture *sim_captures;

/* ---- node sets ---------------------------------------------------------------------------------------------------------------- */

static bool set_assign(sim_node_set *set, const uint32_t *nodes, uint32_t count)
{
    uint32_t *copy = malloc((count ? count : 1) * sizeof *copy);
    if (copy == NULL) {
        return false;
    }
    if (count != 0) {
        memcpy(copy, nodes, count * sizeof *copy);
    }
    free(set->nodes);
    set->nodes = copy;
    set->count = count;
    return true;
}

static bool set_join(sim_node_set *set, const sim_node_set *other)
{
    uint32_t *joined = malloc(((size_t)set->count + other->count + 1) * sizeof *joined);
    if (joined == NULL) {
        return false;
    }
    uint32_t count = set->count;
    if (count != 0) {
        memcpy(joined, set->nodes, count * sizeof *joined);
    }
    for (uint32_t i = 0; i < other->count; i++) {
        bool there = false;
        for (uint32_t j = 0; j < set->count; j++) {
            there |= set->nodes[j] == other->nodes[i];
        }
        if (!there) {
            joined[count++] = other->nodes[i];
        }
    }
    free(set->nodes);
    set->nodes = joined;
    set->count = count;
    return true;
}

/* ---- sequences ---------------------------------------------------------------------------------------------------------------- */

static sim_participant *participant_of(const sim_lane *lane)
{
    sim_capture *capture = lane->capture;
    for (uint32_t i = 0; i < capture->participant_count; i++) {
        if (capture->participants[i].lane == lane) {
            return &capture->participants[i];
        }
    }
    return NULL;
}

static void advance(sim_capture *capture, sim_participant *at)
{
    sim_clock_set(&at->knows, (uint32_t)(at - capture->participants), ++at->tick);
}

static sim_participant *add_participant(sim_capture *capture, sim_lane *lane)
{
    sim_participant *more = realloc(capture->participants, (capture->participant_count + 1) * sizeof *more);
    if (more == NULL) {
        return NULL;
    }
    capture->participants = more;
    sim_participant *added = &more[capture->participant_count++];
    *added = (sim_participant){.lane = lane};
    lane->capture = capture;
    lane->context->captures++;
    advance(capture, added);
    return added;
}

static void leave(sim_participant *participant)
{
    if (participant->lane != NULL) {
        participant->lane->capture = NULL;
        participant->lane->context->captures--;
        participant->lane = NULL;
    }
}

static void release(sim_capture *capture)
{
    if (--capture->references == 0) {
        free(capture);
    }
}

/* The sequence is over: its streams are free again. The graph is left to the caller. */
static void finish_capture(sim_capture *capture)
{
    for (sim_capture **link = &sim_captures; *link != NULL; link = &(*link)->next) {
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    }
    for (uint32_t i = 0; i < capture->participant_count; i++) {
        sim_participant *participant = &capture->participants[i];
        leave(participant);
        sim_clock_free(&participant->knows);
        free(participant->before.nodes);
        free(participant->shown);
        free(participant->shown_edges);
    }
    free(capture->participants);
    capture->participants = NULL;
    capture->participant_count = 0;
    capture->live = false;
    capture->graph->capturing = false;
    release(capture);
}

/* The same where nobody wants what was captured. */
static void abandon(sim_capture *capture)
{
    sim_graph *graph = capture->into_program_graph ? NULL : capture->graph;
    finish_capture(capture);
    if (graph != NULL) {
        sim_graph_delete(graph);
    }
}

CUresult sim_capture_begin(sim_lane *lane, sim_graph *into, const sim_node_set *after, CUstreamCaptureMode mode)
{
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (lane == lane->context->legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (lane->capture != NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    sim_capture *capture = calloc(1, sizeof *capture);
    sim_graph *graph = into != NULL ? into : sim_graph_new();
    if (capture != NULL && graph != NULL) {
        capture->id = sim.next_id++;
        capture->mode = mode;
        capture->thread = sim_self()->number;
        capture->live = true;
        capture->into_program_graph = into != NULL;
        capture->graph = graph;
        sim_participant *origin = add_participant(capture, lane);
        if (origin != NULL && set_assign(&origin->before, after->nodes, after->count)) {
            graph->capturing = true;
            capture->references = 1;
            capture->next = sim_captures;
            sim_captures = capture;
            return CUDA_SUCCESS;
        }
        if (origin != NULL) {
            leave(origin);
            sim_clock_free(&origin->knows);
        }
        free(capture->participants);
    }
    free(capture);
    if (into == NULL && graph != NULL) {
        sim_graph_delete(graph);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool is_joined(const sim_capture *capture)
{
    for (uint32_t i = 1; i < capture->participant_count; i++) {
        if (sim_clock_at(&capture->participants[0].knows, i) < capture->participants[i].tick) {
            return false;
        }
    }
    return true;
}

CUresult sim_capture_end(sim_lane *lane, CUgraph *graph)
{
    sim_capture *capture = lane->capture;
    *graph = NULL;
    if (capture == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capture->participants[0].lane != lane) {
        sim_capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_self()->number) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUresult code = capture->invalid      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                    : !is_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                          : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) {
        abandon(capture);
        return code;
    }
    *graph = SIM_AS_HANDLE(CUgraph, capture->graph->handle);
    finish_capture(capture);
    return CUDA_SUCCESS;
}

CUresult sim_capture_show(sim_lane *lane, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count)
{
    sim_participant *participant = participant_of(lane);
    const sim_node_set *before = &participant->before;
    CUgraphNode *nodes = realloc(participant->shown, ((size_t)before->count + 1) * sizeof *nodes);
    if (nodes == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    participant->shown = nodes;
    for (uint32_t i = 0; i < before->count; i++) {
        nodes[i] = SIM_AS_HANDLE(CUgraphNode, lane->capture->graph->nodes[before->nodes[i]].handle);
    }
    if (edges != NULL) {
        free(participant->shown_edges);
        participant->shown_edges = calloc((size_t)before->count + 1, sizeof **edges);
        if (participant->shown_edges == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *edges = participant->shown_edges;
    }
    if (after != NULL) {
        *after = nodes;
    }
    if (count != NULL) {
        *count = before->count;
    }
    return CUDA_SUCCESS;
}

/* ---- work on capturing streams -------------------------------------------------------------------------------------------------- */

/* A node in the lane's stream. Takes over node->op. */
static CUresult append(sim_lane *lane, sim_node *node)
{
    sim_capture *capture = lane->capture;
    sim_participant *participant = participant_of(lane);
    uint32_t index;
    node->context = lane->context->handle;
    node->context_id = lane->context->id;
    if (!sim_graph_add(capture->graph, node, participant->before.nodes, participant->before.count, &index) ||
        !set_assign(&participant->before, &index, 1)) {
        sim_capture_invalidate(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    advance(capture, participant);
    return CUDA_SUCCESS;
}

CUresult sim_capture_submit(sim_lane *lane, sim_op *op)
{
    CUresult code = CUDA_SUCCESS;
    if (lane->capture->invalid) {
        code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (op->kind == SIM_OP_GATE || (op->kind == SIM_OP_CALLBACK && op->u.call.callback != NULL)) {
        sim_capture_invalidate(lane->capture); /* neither has a node that stands for it */
        code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (op->kind == SIM_OP_COPY) { /* a pageable source is read when the graph runs, not now */
        sim_op_free(op);
    }
    if (code != CUDA_SUCCESS) {
        return code;
    }
    sim_node node = {.type = sim_node_type(op), .op = *op};
    return append(lane, &node);
}

CUresult sim_capture_record(sim_lane *lane, sim_event *event, unsigned flags)
{
    sim_capture *capture = lane->capture;
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (flags & CU_EVENT_RECORD_EXTERNAL) {
        sim_node node = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = SIM_AS_HANDLE(CUevent, event->handle)};
        return append(lane, &node);
    }
    const sim_participant *participant = participant_of(lane);
    sim_captured *captured = calloc(1, sizeof *captured);
    if (captured == NULL || !set_assign(&captured->before, participant->before.nodes, participant->before.count)) {
        free(captured);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_clock_copy(&captured->knows, &participant->knows);
    sim_capture_forget_event(event);
    event->capture = capture;
    event->capture_nodes = captured;
    capture->references++;
    return CUDA_SUCCESS;
}

static CUresult fail(sim_capture *capture, CUresult code)
{
    sim_capture_invalidate(capture);
    return code;
}

static CUresult join_event(sim_lane *lane, sim_capture *capture, const sim_captured *captured)
{
    sim_participant *participant = lane->capture != NULL ? participant_of(lane) : add_participant(capture, lane);
    if (participant == NULL || !set_join(&participant->before, &captured->before)) {
        return fail(capture, CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_clock_join(&participant->knows, &captured->knows);
    return CUDA_SUCCESS;
}

CUresult sim_capture_wait(sim_lane *lane, sim_event *event, unsigned flags)
{
    sim_capture *mine = lane->capture, *other = event->capture;
    if (mine != NULL && mine->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (other != NULL && (!other->live || (flags & CU_EVENT_WAIT_EXTERNAL))) {
        return mine != NULL ? fail(mine, CUDA_ERROR_CAPTURED_EVENT) : CUDA_ERROR_CAPTURED_EVENT;
    }
    if (other != NULL && other->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (mine != NULL && (flags & CU_EVENT_WAIT_EXTERNAL)) {
        sim_node node = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = SIM_AS_HANDLE(CUevent, event->handle)};
        return append(lane, &node);
    }
    if (other == NULL) {
        return event->recorded ? fail(mine, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
    }
    if (mine != NULL && mine != other) {
        sim_capture_invalidate(other);
        return fail(mine, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (lane == lane->context->legacy) {
        return fail(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    return join_event(lane, other, event->capture_nodes);
}

void sim_capture_forget_event(sim_event *event)
{
    sim_captured *captured = event->capture_nodes;
    if (event->capture != NULL) {
        release(event->capture);
        event->capture = NULL;
    }
    if (captured != NULL) {
        sim_clock_free(&captured->knows);
        free(captured->before.nodes);
        free(captured);
        event->capture_nodes = NULL;
    }
}

/* A capture cannot outlive the stream it began in; without another stream it cannot be complete. */
void sim_capture_forget_lane(sim_lane *lane)
{
    sim_capture *capture = lane->capture;
    if (capture == NULL) {
        return;
    }
    if (capture->participants[0].lane == lane) {
        abandon(capture);
    } else {
        leave(participant_of(lane));
        sim_capture_invalidate(capture);
    }
}

void sim_capture_context_gone(sim_context *context)
{
    for (sim_lane *lane = context->lanes; lane != NULL; lane = lane->next) {
        sim_capture_forget_lane(lane);
    }
}

void sim_capture_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_EVENT, i, &object); i++) {
        if (object != NULL) {
            sim_capture_forget_event(object);
        }
    }
    while (sim_captures != NULL) {
        abandon(sim_captures);
    }
}
