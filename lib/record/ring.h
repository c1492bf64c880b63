/*
 * A bounded ring of events (events.def): the newest ones stay, older ones are overwritten. Off (capacity 0) it costs one comparison.
 * Guarded by the device lock of the pool it belongs to.
 */
#ifndef CMI_RING_H
#define CMI_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cmi_event_kind {
#define CMPOOL_EVENT(name, help) CMI_EVENT_##name,
#include <cudamempool/events.def>
#undef CMPOOL_EVENT
    CMI_EVENT_KINDS
} cmi_event_kind;

typedef struct cmi_event {
    uint64_t time_ns; /* cmi_clock_ns */
    uint64_t address;
    uint64_t bytes;
    uint32_t stream; /* the pool's number of the stream, not its handle */
    uint32_t tag, stack;
    uint16_t owner;
    uint16_t kind; /* cmi_event_kind */
} cmi_event;

/* All zero is a ring that is off. */
typedef struct cmi_ring {
    cmi_event *events;
    uint64_t capacity; /* events that fit; 0 is off */
    uint64_t written;  /* since it was opened, overwritten ones included */
} cmi_ring;

/* Start with room for `capacity` events (0: off). false when there is no host memory: the ring is off then. */
bool cmi_ring_open(cmi_ring *ring, uint64_t capacity);
/* Give the memory back; the ring is off. */
void cmi_ring_close(cmi_ring *ring);

/* The event's time is now. Only into a ring that is on. */
void cmi_ring_append(cmi_ring *ring, const cmi_event *event);
/* What has no tag and no stack. */
static inline void cmi_ring_write(cmi_ring *ring, cmi_event_kind kind, uint64_t address, uint64_t bytes, uint32_t stream)
{
    if (ring->capacity != 0)
        cmi_ring_append(ring, &(cmi_event){.address = address, .bytes = bytes, .stream = stream, .kind = (uint16_t)kind});
}

/* Events that are there now. */
uint64_t cmi_ring_held(const cmi_ring *ring);
/* Copy the newest events, oldest of them first, at most `room`. Returns how many. */
uint64_t cmi_ring_copy(const cmi_ring *ring, cmi_event *events, uint64_t room);
/* Events that were overwritten before anyone could read them now. */
uint64_t cmi_ring_lost(const cmi_ring *ring);

/* "WAIT_HOST", or "?" for a number that is no kind. */
const char *cmi_event_name(uint32_t kind);

#endif
