/*
 * A device and its pools as they were at one moment, in memory of their own, so that they can be walked without a lock. For the files of
 * lib/inspect.
 */
#ifndef CMI_INSPECT_COPY_H
#define CMI_INSPECT_COPY_H

#include "pinned/pinned.h"
#include "pool/pool.h"

/* A pool: its record with the parts that are read here replaced by copies: options, counters, heap (blocks, slabs, bin sets, spaces),
 * owners and the ranges of the arena. Nothing of it may be changed, and no other pointer in it followed. */
typedef struct cmi_pool_copy {
    cmi_pool pool;
    cmi_range *ranges;
    cmi_event *events; /* the newest, oldest of them first */
    uint64_t event_count, events_lost;
    cmi_pinned_figures pinned;
} cmi_pool_copy;

typedef struct cmi_copy {
    cmi_device device; /* streams, contexts and stamps are copies */
    uint64_t held_pages, mapped_slots, stranded_pages;
    uint64_t driver_free_bytes; /* UINT64_MAX: not asked */
    uint64_t time_ns;
    uint64_t stopped_ns; /* how long the pools were held up for the copy: the longest stretch under the lock */
    cmi_pool_copy *pools;
    uint32_t pool_count;
    void *memory; /* all of the above that is pointed to */
    size_t bytes;
} cmi_copy;

/*
 * Copy a device; ask: its free bytes are asked of the driver first. false: it has no pool (pool_count 0), or there was no host memory for
 * the copy. The device lock, which must not be held, is taken once for the copy itself and before that to find its length.
 */
bool cmi_copy_take(cmi_device *device, bool ask, cmi_copy *copy);
void cmi_copy_free(cmi_copy *copy);

/* Bytes of whole idle pages of a copied pool; longest: its longest run of free bytes. false: no host memory. */
bool cmi_copy_idle(const cmi_copy *copy, const cmi_pool_copy *pool, uint64_t *idle, uint64_t *longest);

#endif
