/*
 * Lanes: lines of device work, their numbers in clocks, and what is ordered before what. How far the device gets is progress.c's.
 * Guarded by sim.lock. Called by operation.c, stream.c, event.c, context.c and by graph launches.
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
    sim_indices closed; /* lanes that may come free */
    uint32_t closed_next;
} lanes;

bool sim_index_push(sim_indices *list, uint32_t index)
{
    if (list->count == list->room) {
        uint32_t room = list->room ? list->room * 2 : 64;
        uint32_t *larger = realloc(list->list, room * sizeof *larger);
        if (!larger)
            return false;
        list->list = larger;
        list->room = room;
    }
    list->list[list->count++] = index;
    return true;
}

sim_lane *sim_lane_at(uint32_t index) { return index < lanes.count ? lanes.entries[index].lane : NULL; }

bool sim_lane_done(uint32_t index, uint32_t tick)
{
    const sim_lane *lane = sim_lane_at(index);
    return !lane || lane->completed >= tick;
}

static void lane_free(sim_lane *lane)
{
    sim_work_drop(lane);
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
    for (int tries = 0; tries < 4 && lanes.closed.count; tries++) {
        uint32_t at = lanes.closed_next++ % lanes.closed.count;
        sim_lane *lane = lanes.entries[lanes.closed.list[at]].lane;
        if (!can_be_reused(lane))
            continue;
        *index = lane->index;
        lanes.entries[*index] = (lane_entry){NULL, lane->enqueued};
        lanes.closed.list[at] = lanes.closed.list[--lanes.closed.count];
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
    if (!sim_index_push(&lanes.closed, lane->index))
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
                sim_work_wait(lane, other->index, other->enqueued, tick);
            }
    } else if (lane->blocking && lane->legacy_version != legacy->version) {
        join(lane, &legacy->clock);
        lane->legacy_version = legacy->version;
        sim_work_wait(lane, legacy->index, legacy->enqueued, tick);
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

static void wait_clock(sim_lane *lane, const sim_clock *clock, uint32_t on_lane, uint32_t on_tick, uint64_t time_ns)
{
    uint32_t tick = sim_lane_begin(lane);
    join(lane, clock);
    sim_work_wait(lane, on_lane, on_tick, tick);
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
    sim_progress_reset();
    free(lanes.entries);
    free(lanes.closed.list);
    memset(&lanes, 0, sizeof lanes);
}
