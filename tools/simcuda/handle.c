/*
 * The values that programs hold for contexts, streams, events and the like: a kind and a number, never an address of ours, so that a
 * stale one is recognised. Freed numbers are given out again last in, first out, as drivers do. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>

#define KIND_SHIFT 40
#define NUMBER_SHIFT 8 /* values look like aligned pointers */

typedef struct handle_slot {
    void *object;       /* NULL: free */
    uint32_t next_free; /* index + 1 */
} handle_slot;

static struct {
    handle_slot *slots;
    uint32_t count, room, free_head;
    uint64_t live;
} tables[SIM_KINDS];

static const char *const kind_names[SIM_KINDS] = {"",      "context",    "stream",     "event",  "memory handle", "memory pool",
                                                  "graph", "graph node", "graph exec", "module", "notification",  "kernel"};

uint64_t sim_handle_new(sim_kind kind, void *object)
{
    uint32_t index;
    if (tables[kind].free_head) {
        index = tables[kind].free_head - 1;
        tables[kind].free_head = tables[kind].slots[index].next_free;
    } else {
        if (tables[kind].count == tables[kind].room) {
            uint32_t room = tables[kind].room ? tables[kind].room * 2 : 64;
            handle_slot *slots = realloc(tables[kind].slots, room * sizeof *slots);
            if (!slots)
                return 0;
            tables[kind].slots = slots;
            tables[kind].room = room;
        }
        index = tables[kind].count++;
    }
    tables[kind].slots[index] = (handle_slot){object, 0};
    tables[kind].live++;
    return (uint64_t)kind << KIND_SHIFT | (uint64_t)(index + 1) << NUMBER_SHIFT;
}

/* The slot of a value of this kind that has been given out at some time, or NULL. */
static handle_slot *slot_of(sim_kind kind, uint64_t handle)
{
    uint64_t number = (handle & ((UINT64_C(1) << KIND_SHIFT) - 1)) >> NUMBER_SHIFT;
    if (handle >> KIND_SHIFT != (uint64_t)kind || (handle & ((1u << NUMBER_SHIFT) - 1)) || number == 0 || number > tables[kind].count)
        return NULL;
    return &tables[kind].slots[number - 1];
}

void sim_handle_drop(sim_kind kind, uint64_t handle)
{
    handle_slot *slot = slot_of(kind, handle);
    slot->object = NULL;
    slot->next_free = tables[kind].free_head;
    tables[kind].free_head = (uint32_t)(slot - tables[kind].slots) + 1;
    tables[kind].live--;
}

void *sim_handle_peek(sim_kind kind, uint64_t handle)
{
    handle_slot *slot = slot_of(kind, handle);
    return slot ? slot->object : NULL;
}

void *sim_handle_get(sim_kind kind, uint64_t handle)
{
    handle_slot *slot = slot_of(kind, handle);
    if (slot && !slot->object)
        sim_find(SIMCUDA_USE_AFTER_DESTROY, "%s 0x%llx was destroyed before", kind_names[kind], (unsigned long long)handle);
    return slot ? slot->object : NULL;
}

uint64_t sim_handle_live(sim_kind kind) { return tables[kind].live; }

bool sim_handle_at(sim_kind kind, size_t index, void **object)
{
    if (index >= tables[kind].count)
        return false;
    *object = tables[kind].slots[index].object;
    return true;
}

void sim_handle_reset(void)
{
    for (int kind = 0; kind < SIM_KINDS; kind++) {
        free(tables[kind].slots);
        tables[kind].slots = NULL;
        tables[kind].count = tables[kind].room = tables[kind].free_head = 0;
        tables[kind].live = 0;
    }
}
