/*
 * Operations: what streams are asked to do, checked and ordered when asked, done when the device gets there. Also gates, which stand
 * for work that takes as long as a test likes. Guarded by sim.lock; called by copy.c, stream.c, panel.c and by graph launches.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

/* Device time of one operation: a launch, and a terabyte a second. */
#define OP_NS 2000
#define BYTES_PER_NS 1000

static struct {
    bool *open;
    int count, room;
} gates;

int sim_gate_new(void)
{
    if (gates.count == gates.room) {
        int room = gates.room ? gates.room * 2 : 16;
        bool *open = realloc(gates.open, (size_t)room * sizeof *open);
        if (!open)
            return 0;
        gates.open = open;
        gates.room = room;
    }
    gates.open[gates.count++] = false;
    return gates.count;
}

bool sim_gate_is_open(int gate) { return gates.open[gate - 1]; }

void sim_gate_set(int gate)
{
    if (gate > 0 && gate <= gates.count)
        gates.open[gate - 1] = true;
}

void sim_gate_reset(void)
{
    free(gates.open);
    gates.open = NULL;
    gates.count = gates.room = 0;
}

void sim_op_free(sim_op *op)
{
    if (op->kind == SIM_OP_COPY) {
        free(op->u.copy.staged);
        op->u.copy.staged = NULL;
    }
}

CUresult sim_op_copy(sim_op *to, const sim_op *from)
{
    *to = *from;
    if (from->kind != SIM_OP_COPY || !from->u.copy.staged)
        return CUDA_SUCCESS;
    size_t bytes = from->u.copy.width * from->u.copy.rows;
    to->u.copy.staged = malloc(bytes);
    if (!to->u.copy.staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(to->u.copy.staged, from->u.copy.staged, bytes);
    return CUDA_SUCCESS;
}

/* Where the bytes of an address are in this process, or NULL where there are none (ghost memory, or unmapped by now). */
static unsigned char *bytes_at(uint64_t address, uint64_t *run)
{
    const sim_mapping *mapping = sim_mapping_find(address);
    *run = UINT64_MAX;
    if (!mapping)
        return (unsigned char *)(uintptr_t)address; /* pageable or registered host memory */
    uint64_t offset = address - mapping->address;
    *run = mapping->bytes - offset;
    return mapping->physical->view ? mapping->physical->view + offset : NULL;
}

static void copy_row(uint64_t to, uint64_t from, const unsigned char *staged, size_t width)
{
    while (width) {
        uint64_t to_run, from_run = width;
        unsigned char *target = bytes_at(to, &to_run);
        const unsigned char *source = staged ? staged : bytes_at(from, &from_run);
        size_t part = width;
        if (part > to_run)
            part = to_run;
        if (part > from_run)
            part = from_run;
        if (target && source)
            memmove(target, source, part);
        to += part;
        from += part;
        staged = staged ? staged + part : NULL;
        width -= part;
    }
}

static void fill_row(uint64_t to, size_t elements, unsigned value, unsigned element)
{
    for (size_t i = 0; i < elements; i++) {
        uint64_t run;
        unsigned char *target = bytes_at(to + i * element, &run);
        if (target)
            memcpy(target, &value, element); /* little endian, as the device */
    }
}

void sim_op_execute(const sim_op *op)
{
    if (op->kind == SIM_OP_COPY) {
        for (size_t row = 0; row < op->u.copy.rows; row++) {
            const unsigned char *staged = op->u.copy.staged;
            copy_row(op->u.copy.to + row * op->u.copy.to_pitch, op->u.copy.from + row * op->u.copy.from_pitch,
                     staged ? staged + row * op->u.copy.width : NULL, op->u.copy.width);
        }
    } else if (op->kind == SIM_OP_FILL) {
        for (size_t row = 0; row < op->u.fill.rows; row++)
            fill_row(op->u.fill.to + row * op->u.fill.pitch, op->u.fill.width, op->u.fill.value, op->u.fill.element);
    }
}

/* Must the device do something for it at its time? In ghost memory copies and fills only count as touches. */
static bool has_effect(const sim_op *op)
{
    switch (op->kind) {
    case SIM_OP_CALLBACK:
    case SIM_OP_GATE:
        return true;
    case SIM_OP_COPY:
    case SIM_OP_FILL:
        return sim.content;
    default:
        return false;
    }
}

CUresult sim_op_run(sim_lane *lane, sim_op *op)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < op->reach_count; i++) {
        CUresult code = sim_check_reach(lane->context, &op->reach[i]);
        if (code != CUDA_SUCCESS) {
            sim_op_free(op);
            return code;
        }
        bytes += op->reach[i].bytes;
    }
    sim_lane_begin(lane);
    lane->time_ns += OP_NS + bytes / BYTES_PER_NS;
    for (unsigned i = 0; i < op->reach_count; i++)
        sim_check_touch(lane, &op->reach[i]);
    if (!has_effect(op)) {
        sim_op_free(op);
        op = NULL;
    }
    return sim_lane_enqueue(lane, op) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_submit(sim_lane *lane, sim_op *op)
{
    if (lane->capture)
        return sim_capture_submit(lane, op);
    if (lane->context->captures && lane == lane->context->legacy) {
        CUresult code = sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        if (code != CUDA_SUCCESS) {
            sim_op_free(op);
            return code;
        }
    }
    return sim_op_run(lane, op);
}
