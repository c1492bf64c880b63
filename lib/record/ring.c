/*
 * The event ring. Owns its array (metadata memory); guarded by the device lock of the pool it belongs to, so a writer never waits
 * and a reader copies what is there. Written by vm's and pool's callers in lib/pool, read by lib/inspect.
 */
#include "record/ring.h"

#include "base/base.h"

bool cmi_ring_open(cmi_ring *ring, uint64_t capacity)
{
    *ring = (cmi_ring){0};
    if (capacity == 0)
        return true;
    size_t bytes;
    if (__builtin_mul_overflow(capacity, sizeof(cmi_event), &bytes) || (ring->events = cmi_meta_alloc(bytes)) == NULL)
        return false;
    ring->capacity = capacity;
    return true;
}

void cmi_ring_close(cmi_ring *ring)
{
    cmi_meta_free(ring->events, ring->capacity * sizeof(cmi_event));
    *ring = (cmi_ring){0};
}

void cmi_ring_append(cmi_ring *ring, const cmi_event *event)
{
    cmi_event *to = &ring->events[ring->written++ % ring->capacity];
    *to = *event;
    to->time_ns = cmi_clock_ns();
}

uint64_t cmi_ring_held(const cmi_ring *ring) { return cmi_min_u64(ring->written, ring->capacity); }

uint64_t cmi_ring_copy(const cmi_ring *ring, cmi_event *events, uint64_t room)
{
    uint64_t count = cmi_min_u64(room, cmi_ring_held(ring));
    for (uint64_t i = 0; i < count; i++)
        events[i] = ring->events[(ring->written - count + i) % ring->capacity];
    return count;
}

uint64_t cmi_ring_lost(const cmi_ring *ring) { return ring->written - cmi_ring_held(ring); }

const char *cmi_event_name(uint32_t kind)
{
    static const char *const names[] = {
#define CMPOOL_EVENT(name, help) #name,
#include <cudamempool/events.def>
#undef CMPOOL_EVENT
    };
    return kind < CMI_ARRAY_LENGTH(names) ? names[kind] : "?";
}
