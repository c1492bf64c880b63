/*
 * How far the device gets: each lane's queue of work that has an effect or waits for another lane, done at once, when the host waits, or by
 * chance. Guarded by sim.lock, which is dropped only while a host callback runs. Called by lane.c and by every call that waits or asks.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

static struct {
    sim_indices busy; /* lanes with work not done */
    sim_work *spare;
    uint32_t polled_lane, polled_tick, polls;
    uint64_t polled_call;
} device;

static sim_work *work_new(void)
{
    sim_work *work = device.spare;
    if (work)
        device.spare = work->next;
    else
        work = malloc(sizeof *work);
    if (work)
        memset(work, 0, sizeof *work);
    return work;
}

static void work_free(sim_work *work)
{
    if (!work->waits)
        sim_op_free(&work->op);
    work->next = device.spare;
    device.spare = work;
}

void sim_work_drop(sim_lane *lane)
{
    while (lane->first) {
        sim_work *work = lane->first;
        lane->first = work->next;
        work_free(work);
    }
}

static void append(sim_lane *lane, sim_work *work)
{
    if (lane->last)
        lane->last->next = work;
    else
        lane->first = work;
    lane->last = work;
}

void sim_work_wait(sim_lane *lane, uint32_t on_lane, uint32_t on_tick, uint32_t tick)
{
    if (on_lane == lane->index || sim_lane_done(on_lane, on_tick))
        return;
    sim_work *work = work_new();
    if (!work)
        abort(); /* a wait left out would let the device run ahead */
    work->waits = true;
    work->on_lane = on_lane;
    work->on_tick = on_tick;
    work->tick = tick;
    append(lane, work);
}

static void set_busy(sim_lane *lane, bool busy)
{
    if (lane->busy == busy)
        return;
    if (busy) {
        if (!sim_index_push(&device.busy, lane->index))
            abort();
        lane->busy_slot = device.busy.count - 1;
    } else {
        uint32_t last = device.busy.list[--device.busy.count];
        device.busy.list[lane->busy_slot] = last;
        sim_lane_at(last)->busy_slot = lane->busy_slot;
    }
    lane->busy = busy;
}

static void complete(sim_lane *lane, uint32_t tick)
{
    if (tick > lane->completed)
        lane->completed = tick;
    if (lane->completed == lane->enqueued)
        set_busy(lane, false);
}

/* The work of the newest tick is in the queue, if it needs to be. */
static void settle(sim_lane *lane)
{
    if (!lane->first && !lane->calling && sim.order == SIM_EAGER)
        complete(lane, lane->enqueued);
    else
        set_busy(lane, true);
}

static void run(sim_lane *lane, uint32_t tick);

bool sim_lane_enqueue(sim_lane *lane, const sim_op *op)
{
    if (op) {
        sim_work *work = work_new();
        if (!work)
            return false;
        work->tick = lane->enqueued;
        work->op = *op;
        append(lane, work);
    }
    settle(lane);
    if (sim.order == SIM_EAGER && lane->busy)
        run(lane, lane->enqueued);
    return true;
}

/* ---- the device runs ------------------------------------------------------------------------------------------------------------- */

static void pop(sim_lane *lane)
{
    sim_work *work = lane->first;
    lane->first = work->next;
    if (!lane->first)
        lane->last = NULL;
    work_free(work);
}

static void call_back(sim_lane *lane, const sim_op *op)
{
    lane->calling = true;
    sim_thread *self = sim_self();
    self->in_callback = true;
    pthread_mutex_unlock(&sim.lock);
    if (op->u.call.function)
        op->u.call.function(op->u.call.data);
    else
        op->u.call.callback(op->u.call.stream, CUDA_SUCCESS, op->u.call.data);
    pthread_mutex_lock(&sim.lock);
    self->in_callback = false;
    lane->calling = false;
    pthread_cond_broadcast(&sim.changed);
}

/* Do the first work in the queue. False: it cannot be done yet. */
static bool do_first(sim_lane *lane)
{
    sim_work *work = lane->first;
    uint32_t tick = work->tick;
    if (work->waits) {
        if (!sim_lane_done(work->on_lane, work->on_tick))
            return false;
        pop(lane);
    } else if (work->op.kind == SIM_OP_GATE) {
        if (!sim_gate_is_open(work->op.u.gate))
            return false;
        pop(lane);
    } else if (work->op.kind == SIM_OP_CALLBACK) {
        sim_op op = work->op;
        pop(lane);
        complete(lane, tick - 1);
        uint64_t generation = sim.generation;
        call_back(lane, &op);
        if (generation != sim.generation)
            return false; /* simcuda_reset from a callback: the lane is gone */
    } else {
        sim_op_execute(&work->op);
        pop(lane);
    }
    /* several waits may share a tick: it is done when the last of them is */
    complete(lane, lane->first && lane->first->tick == tick ? tick - 1 : tick);
    return true;
}

/* As far as nothing stands in the way, up to tick. */
static void run(sim_lane *lane, uint32_t tick)
{
    uint64_t generation = sim.generation;
    while (!lane->calling && lane->first && lane->first->tick <= tick)
        if (!do_first(lane)) {
            if (generation == sim.generation && lane->first)
                complete(lane, lane->first->tick - 1);
            return;
        }
    if (!lane->calling)
        complete(lane, tick);
}

typedef struct goal {
    uint32_t lane, tick;
} goal;

void sim_lane_finish(sim_lane *lane, uint32_t tick)
{
    goal few[32], *goals = few;
    size_t depth = 1, room = sizeof few / sizeof few[0];
    goals[0] = (goal){lane->index, tick};
    uint64_t generation = sim.generation;
    while (depth && generation == sim.generation) {
        goal top = goals[depth - 1];
        sim_lane *here = sim_lane_at(top.lane);
        if (!here || here->completed >= top.tick) {
            depth--;
            continue;
        }
        if (here->calling) {
            pthread_cond_wait(&sim.changed, &sim.lock);
            continue;
        }
        run(here, top.tick);
        if (generation != sim.generation || here->calling || here->completed >= top.tick || !here->first)
            continue;
        const sim_work *work = here->first;
        if (!work->waits) {
            sim_gate_set(work->op.u.gate); /* the host waits for it: the gate opens */
            continue;
        }
        if (depth == room) {
            goal *more = malloc(2 * room * sizeof *more);
            if (!more)
                abort();
            memcpy(more, goals, depth * sizeof *more);
            if (goals != few)
                free(goals);
            goals = more;
            room *= 2;
        }
        goals[depth++] = (goal){work->on_lane, work->on_tick};
    }
    if (goals != few)
        free(goals);
}

void sim_lane_synchronise(sim_frame *frame, sim_lane *lane)
{
    if (frame)
        frame->host_waited = true;
    uint64_t generation = sim.generation;
    sim_lane_finish(lane, lane->enqueued);
    if (generation == sim.generation)
        sim_host_observe(&lane->clock);
}

/* In order lazy nothing ends by itself: a program that asks again and again, and does nothing else, would wait for ever. */
#define POLLS_ARE_A_WAIT 10000

bool sim_lane_poll(uint32_t index, uint32_t tick)
{
    if (device.polled_lane != index || device.polled_tick != tick || device.polled_call + 1 != sim.call_number) {
        device.polled_lane = index;
        device.polled_tick = tick;
        device.polls = 0;
    }
    device.polled_call = sim.call_number;
    if (++device.polls < POLLS_ARE_A_WAIT)
        return false;
    sim_lane *lane = sim_lane_at(index);
    if (lane)
        sim_lane_finish(lane, tick);
    return true;
}

void sim_device_run_all(void)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < device.busy.count; i++) {
            sim_lane *lane = sim_lane_at(device.busy.list[i]);
            uint32_t before = lane->completed;
            uint64_t generation = sim.generation;
            run(lane, lane->enqueued);
            if (generation != sim.generation)
                return;
            moved |= lane->completed != before;
        }
    }
}

void sim_device_after_call(void)
{
    if (!device.busy.count || sim.order == SIM_LAZY)
        return;
    if (sim.order == SIM_EAGER) {
        sim_device_run_all();
        return;
    }
    sim.random ^= sim.random << 13;
    sim.random ^= sim.random >> 7;
    sim.random ^= sim.random << 17;
    sim_lane *lane = sim_lane_at(device.busy.list[(sim.random >> 8) % device.busy.count]);
    uint32_t behind = lane->enqueued - lane->completed;
    run(lane, lane->completed + (uint32_t)((sim.random >> 32) % behind) + (sim.random & 1));
}

void sim_progress_reset(void)
{
    while (device.spare) {
        sim_work *work = device.spare;
        device.spare = work->next;
        free(work);
    }
    free(device.busy.list);
    memset(&device, 0, sizeof device);
}
