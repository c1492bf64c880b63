/*
 * Growing regions: contiguous addresses of a pool's arena of which a first part has pages. That part is one LIVE block; behind it lie slots
 * that are HELD (kept without a page) under BUSY blocks, and pages that a shrink has left, FREE in the bin sets of the pool's region owner:
 * any request may take such pages away, none may live there. A held page before and behind keeps neighbours from joining.
 */
#ifndef CMI_POOL_REGION_H
#define CMI_POOL_REGION_H

#include "pool/climb.h"

typedef struct cmi_region {
    uint64_t base, most; /* address, and bytes it may grow to */
    uint64_t bytes;      /* with pages, from base on; whole pages, as most */
    uint32_t tag;
    bool busy; /* a growth is under way */
} cmi_region;

/* Drops and retakes the lock. */
cmpool_status cmi_region_create(cmi_pool *pool, uint64_t most, uint32_t tag, uint64_t *base);
/* NOT_OURS: no region starts there. ask: stream, handle, context. grow: at least `bytes`; shrink: no more than that, rounded up to pages.
 * All drop and retake the lock. */
cmpool_status cmi_region_grow(cmi_pool *pool, const cmi_ask *ask, uint64_t base, uint64_t bytes);
cmpool_status cmi_region_shrink(cmi_pool *pool, const cmi_ask *ask, uint64_t base, uint64_t bytes);
cmpool_status cmi_region_destroy(cmi_pool *pool, const cmi_ask *ask, uint64_t base);
/* The region that an address lies in, or NULL; good until the next create or destroy. */
cmi_region *cmi_region_at(const cmi_pool *pool, uint64_t address);

/* The window that ask->at means; false: not now, see clear. For plans. */
bool cmi_region_window(const cmi_pool *pool, const cmi_ask *ask, cmi_window *window);
/* Old addresses and pages on their way are in the window: make or await room. Drops and retakes the lock. */
outcome cmi_region_clear(cmi_pool *pool, cmpool_status *status);

#endif
