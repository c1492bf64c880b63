/*
 * Vector clocks: dense arrays of ticks, one entry per lane. Owned by lanes, events and the host; guarded by sim.lock.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static bool make_room(sim_clock *clock, uint32_t room)
{
    if (room <= clock->room)
        return true;
    room = (room + 15u) & ~15u;
    uint32_t *ticks = realloc(clock->ticks, room * sizeof *ticks);
    if (!ticks)
        return false;
    memset(ticks + clock->room, 0, (room - clock->room) * sizeof *ticks);
    clock->ticks = ticks;
    clock->room = room;
    return true;
}

bool sim_clock_join(sim_clock *clock, const sim_clock *other)
{
    if (!make_room(clock, other->room))
        abort(); /* an order forgotten would be a race invented */
    uint32_t changed = 0;
    uint32_t *to = clock->ticks;
    const uint32_t *from = other->ticks;
    for (uint32_t i = 0; i < other->room; i++) {
        uint32_t larger = to[i] > from[i] ? to[i] : from[i];
        changed |= larger ^ to[i];
        to[i] = larger;
    }
    return changed != 0;
}

void sim_clock_copy(sim_clock *clock, const sim_clock *other)
{
    if (!make_room(clock, other->room))
        abort();
    if (other->room)
        memcpy(clock->ticks, other->ticks, other->room * sizeof *clock->ticks);
    if (clock->room > other->room)
        memset(clock->ticks + other->room, 0, (clock->room - other->room) * sizeof *clock->ticks);
}

void sim_clock_set(sim_clock *clock, uint32_t lane, uint32_t tick)
{
    if (!make_room(clock, lane + 1))
        abort();
    clock->ticks[lane] = tick;
}

void sim_clock_free(sim_clock *clock)
{
    free(clock->ticks);
    *clock = (sim_clock){NULL, 0};
}
