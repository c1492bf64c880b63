/*
 * Lanes: lines of device work, in what order they may run and how far they have got. Guarded by sim.lock, which is dropped only while a
 * host callback runs. Called by operation.c, stream.c, event.c, context.c and by graph launches.
 */
#include "sim.h"
#include "sim_inner.h"
#include "sim_other.h"

#include <stdlib.h>
#include <string.h>

/* A number in clocks. Once its lane is closed, done and observed by the host it goes to the next lane, whose ticks go on from there. */
typedef struct lane_entry {
    sim_lane *lane;
    uint32_t last_tick;
} lane_entry;

static struct {
    lane_entry *entries;
    uint32_t count, room;
    uint32_t *closed; /* indices of closed lanes that may come free */
    uint32_t closed_count, closed_room, closed_next;
    uint32_t *busy; /* indices of lanes with work not done */
    uint32_t busy_count, busy_room;
    sim_work *spare;
    uint32_t polled_lane, polled_tick, polls;
    uint64_t polled_call;
} lanes;

static bool push_index(uint32_t **list, uint32_t *count, uint32_t *room, uint32_t index)
{
    if (*count == *room) {
        uint32_t more = *room ? *room * 2 : 64;
        uint32_t *larger = realloc(*list, more * sizeof **list);
        if (!larger)
            return false;
        *list = larger;
        *room = more;
    }
    (*list)[(*count)++] = index;
    return true;
}

sim_lane *sim_lane_at(uint32_t index) { return index < lanes.count ? lanes.entries[index].lane : NULL; }

bool sim_lane_done(uint32_t index, uint32_t tick)
{
    const sim_lane *lane = sim_lane_at(index);
    return !lane || lane->completed >= tick;
}

static sim_work *work_new(void)
{
    sim_work *work = lanes.spare;
    if (work)
        lanes.spare = work->next;
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
    work->next = lanes.spare;
    lanes.spare = work;
}

static void lane_free(sim_lane *lane)
{
    while (lane->first) {
        sim_work *work = lane->first;
        lane->first = work->next;
        work_free(work);
    }
    sim_clock_free(&lane->clock);
    free(lane);
}

static void unlink_from_context(sim_lane *lane)
{
    if (!lane->context)
        return;
    if (lane->previous)
        lane->previous->next = lane->next;
    else
        lane->context->lanes = lane->next;
    if (lane->next)
        lane->next->previous = lane->previous;
    lane->context = NULL;
}

static bool can_be_reused(const sim_lane *lane)
{
    return lane->completed == lane->enqueued && !lane->calling && sim_clock_at(&sim.host, lane->index) >= lane->enqueued;
}

/* A number for a new lane: one of a few closed lanes looked at in turn, else a new one. */
static bool take_index(uint32_t *index)
{
    for (int tries = 0; tries < 4 && lanes.closed_count; tries++) {
        uint32_t at = lanes.closed_next++ % lanes.closed_count;
        sim_lane *lane = lanes.entries[lanes.closed[at]].lane;
        if (!can_be_reused(lane))
            continue;
        *index = lane->index;
        lanes.entries[*index] = (lane_entry){NULL, lane->enqueued};
        lanes.closed[at] = lanes.closed[--lanes.closed_count];
        unlink_from_context(lane);
        lane_free(lane);
        return true;
    }
    if (lanes.count == lanes.room) {
        uint32_t room = lanes.room ? lanes.room * 2 : 64;
        lane_entry *entries = realloc(lanes.entries, room * sizeof *entries);
        if (!entries)
            return false;
        lanes.entries = entries;
        lanes.room = room;
    }
    lanes.entries[lanes.count] = (lane_entry){NULL, 0};
    *index = lanes.count++;
    return true;
}

sim_lane *sim_lane_new(sim_context *context, bool blocking, const char *name)
{
    sim_lane *lane = calloc(1, sizeof *lane);
    if (!lane || !take_index(&lane->index)) {
        free(lane);
        return NULL;
    }
    lane_entry *entry = &lanes.entries[lane->index];
    lane->enqueued = lane->completed = entry->last_tick;
    lane->blocking = blocking;
    lane->open = true;
    lane->name = name;
    lane->context = context;
    lane->next = context->lanes;
    if (lane->next)
        lane->next->previous = lane;
    context->lanes = lane;
    entry->lane = lane;
    if (context->fence_holds)
        sim_lane_wait_lane(lane, context->fence);
    return lane;
}

void sim_lane_close(sim_lane *lane)
{
    lane->open = false;
    if (!push_index(&lanes.closed, &lanes.closed_count, &lanes.closed_room, lane->index))
        return; /* its number is not used again, that is all */
}

/* ---- order -------------------------------------------------------------------------------------------------------------------- */

void sim_host_observe(const sim_clock *clock)
{
    if (sim_clock_join(&sim.host, clock)) {
        sim.host_version++;
        sim_pool_synchronised();
    }
}

static void join(sim_lane *lane, const sim_clock *clock)
{
    if (sim_clock_join(&lane->clock, clock))
        lane->version++;
}

static void queue_wait(sim_lane *lane, uint32_t on_lane, uint32_t on_tick, uint32_t tick)
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
    if (lane->last)
        lane->last->next = work;
    else
        lane->first = work;
    lane->last = work;
}

static void set_busy(sim_lane *lane, bool busy)
{
    if (lane->busy == busy)
        return;
    if (busy) {
        if (!push_index(&lanes.busy, &lanes.busy_count, &lanes.busy_room, lane->index))
            abort();
        lane->busy_slot = lanes.busy_count - 1;
    } else {
        uint32_t last = lanes.busy[--lanes.busy_count];
        lanes.busy[lane->busy_slot] = last;
        lanes.entries[last].lane->busy_slot = lane->busy_slot;
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

/* What the new tick comes after besides the lane's own past: the host, and the legacy stream's implicit order (cuda.h, "stream
 * synchronization behavior"): it waits for all blocking streams of its context, and they wait for it. */
static void join_implicit(sim_lane *lane, uint32_t tick)
{
    if (lane->host_version != sim.host_version) {
        join(lane, &sim.host);
        lane->host_version = sim.host_version;
    }
    sim_context *context = lane->context;
    sim_lane *legacy = context ? context->legacy : NULL;
    if (!legacy)
        return;
    if (lane == legacy) {
        for (sim_lane *other = context->lanes; other; other = other->next)
            if (other->blocking && other != lane && other->seen_by_legacy != other->version) {
                join(lane, &other->clock);
                other->seen_by_legacy = other->version;
                queue_wait(lane, other->index, other->enqueued, tick);
            }
    } else if (lane->blocking && lane->legacy_version != legacy->version) {
        join(lane, &legacy->clock);
        lane->legacy_version = legacy->version;
        queue_wait(lane, legacy->index, legacy->enqueued, tick);
    }
}

uint32_t sim_lane_begin(sim_lane *lane)
{
    uint32_t tick = lane->enqueued + 1;
    join_implicit(lane, tick);
    lane->enqueued = tick;
    sim_clock_set(&lane->clock, lane->index, tick);
    lane->version++;
    if (lane->time_ns < sim.host_ns)
        lane->time_ns = sim.host_ns;
    return tick;
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
        if (lane->last)
            lane->last->next = work;
        else
            lane->first = work;
        lane->last = work;
    }
    settle(lane);
    if (sim.order == SIM_EAGER && lane->busy)
        run(lane, lane->enqueued);
    return true;
}

static void wait_clock(sim_lane *lane, const sim_clock *clock, uint32_t on_lane, uint32_t on_tick, uint64_t time_ns)
{
    uint32_t tick = sim_lane_begin(lane);
    join(lane, clock);
    queue_wait(lane, on_lane, on_tick, tick);
    if (lane->time_ns < time_ns)
        lane->time_ns = time_ns;
    sim_lane_enqueue(lane, NULL);
}

void sim_lane_wait_lane(sim_lane *lane, sim_lane *other) { wait_clock(lane, &other->clock, other->index, other->enqueued, other->time_ns); }

void sim_lane_wait_event(sim_lane *lane, const sim_event *event)
{
    if (event->recorded)
        wait_clock(lane, &event->clock, event->lane, event->tick, event->time_ns);
}

void sim_lane_record(sim_lane *lane, sim_event *event)
{
    event->tick = sim_lane_begin(lane);
    event->lane = lane->index;
    event->recorded = true;
    sim_clock_copy(&event->clock, &lane->clock);
    event->time_ns = lane->time_ns;
    sim_lane_enqueue(lane, NULL);
}

void sim_lane_barrier(sim_lane *lane)
{
    for (sim_lane *other = lane->context->lanes; other; other = other->next)
        if (other->blocking && other != lane && other->seen_by_legacy != other->version) {
            sim_lane_begin(lane);
            sim_lane_enqueue(lane, NULL);
            return;
        }
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
    if (lanes.polled_lane != index || lanes.polled_tick != tick || lanes.polled_call + 1 != sim.call_number) {
        lanes.polled_lane = index;
        lanes.polled_tick = tick;
        lanes.polls = 0;
    }
    lanes.polled_call = sim.call_number;
    if (++lanes.polls < POLLS_ARE_A_WAIT)
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
        for (uint32_t i = 0; i < lanes.busy_count; i++) {
            sim_lane *lane = lanes.entries[lanes.busy[i]].lane;
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
    if (!lanes.busy_count || sim.order == SIM_LAZY)
        return;
    if (sim.order == SIM_EAGER) {
        sim_device_run_all();
        return;
    }
    sim.random ^= sim.random << 13;
    sim.random ^= sim.random >> 7;
    sim.random ^= sim.random << 17;
    sim_lane *lane = lanes.entries[lanes.busy[(sim.random >> 8) % lanes.busy_count]].lane;
    uint32_t behind = lane->enqueued - lane->completed;
    run(lane, lane->completed + (uint32_t)((sim.random >> 32) % behind) + (sim.random & 1));
}

/* ---- ends -------------------------------------------------------------------------------------------------------------------------- */

void sim_lane_forget_context(sim_context *context)
{
    while (context->lanes) {
        sim_lane *lane = context->lanes;
        uint64_t generation = sim.generation;
        sim_lane_finish(lane, lane->enqueued);
        if (generation != sim.generation)
            return;
        if (lane->open)
            sim_lane_close(lane);
        unlink_from_context(lane);
    }
}

void sim_lane_reset(void)
{
    for (uint32_t i = 0; i < lanes.count; i++)
        if (lanes.entries[i].lane)
            lane_free(lanes.entries[i].lane);
    while (lanes.spare) {
        sim_work *work = lanes.spare;
        lanes.spare = work->next;
        free(work);
    }
    free(lanes.entries);
    free(lanes.closed);
    free(lanes.busy);
    memset(&lanes, 0, sizeof lanes);
}
