/* What the files of the ladder share: one request on its way up, and the plan that serves it. */
#ifndef CMI_POOL_CLIMB_H
#define CMI_POOL_CLIMB_H

#include "pool/pool.h"

/* How far a search may reach. */
typedef enum reach {
    REACH_FINISHED,       /* memory this stream may use at once */
    REACH_FINISHED_BYTES, /* of that also, in place, bytes of other owners and of small pages */
    REACH_PENDING,        /* also memory that other streams have to finish with: a device-side wait */
    REACH_ANY             /* also, in place, bytes of other owners and of small pages */
} reach;

typedef struct climb {
    cmi_pool *pool;
    const cmi_ask *ask;
    cmi_hand hand;
    cmi_donor *donors;
    uint32_t donor_room, donor_count;
    cmi_idle_run *runs; /* scratch */
    uint32_t run_room;
    reach reach;
    bool may_grow, use_siblings;
    bool in_place;       /* only memory that lies together already */
    uint64_t missing;    /* pages short at the last plan */
    uint64_t taken;      /* pages that the donors give */
    bool no_device_wait; /* the driver has no event for what must be waited for, or a capture bars it */
    bool limited;        /* the pool's limit, not the device, is what stops growth */
    bool alone;          /* no other thread has pages on their way, nor will have */
    bool others;         /* another had, at some time during this climb */
    uint64_t carried;    /* cmi_device.carried when it was last looked at */
    uint64_t freed_by_callback;
    uint64_t released; /* pages that went back to the driver for this request: taking them anew leaves the headroom as it was */
    uint64_t given_up; /* of those the pool's own: it may hold as many again, whatever its limit is by now */
    size_t rung_bytes[CMPOOL_RUNG_COUNT]; /* what each rung had to give */
} climb;

/* PLAN_AGAIN: something was got, or the lock was dropped: look again. PLAN_SHORT: not enough within this reach. */
typedef enum outcome { PLAN_DONE, PLAN_AGAIN, PLAN_SHORT, PLAN_FAILED } outcome;

/* ---- plan.c ------------------------------------------------------------------------------------- */

/* Fill pool->use for a search on behalf of a request of `asker` (ask NULL: of nobody in particular). false: no host memory. */
bool cmi_plan_mark_usable(cmi_pool *pool, const cmi_pool *asker, const cmi_ask *ask, reach far);
/* In the same array, pages that have been left in growing regions: they may be taken away, but nobody lives there. */
void cmi_plan_add_region_pages(cmi_pool *pool, const cmi_ask *ask, reach far);
/* Serve the request from memory that lies together already, within reach. */
outcome cmi_plan_in_place(climb *c, reach far, cmi_block_id *block, cmpool_status *status);
/* Serve it from a window that pages are brought to; new pages only if it may grow. */
outcome cmi_plan_until_settled(climb *c, reach far, bool may_grow, cmi_block_id *block, cmpool_status *status);
/* Addresses for a window: unmapped old ones, else another range. */
outcome cmi_plan_want_addresses(climb *c, cmpool_status *status);
/* New pages into the hand. */
outcome cmi_plan_create(climb *c, uint64_t wanted, uint64_t slack, cmpool_status *status);
/* New pages that limit and headroom allow, as far as is known without trying. */
uint64_t cmi_plan_growth_pages(climb *c);
uint64_t cmi_plan_pages_below_limit(const cmi_pool *pool);

/* ---- donors.c ----------------------------------------------------------------------------------- */

/* Append the idle runs of one pool, at most `most` pages of them. Returns pages added; *count grows. UINT64_MAX: no host memory. */
uint64_t cmi_donors_add(climb *c, cmi_pool *from, uint64_t skip, uint64_t skip_bytes, uint64_t most, uint32_t *count);
/* The same for the device's other pools, down to their floors. */
uint64_t cmi_donors_add_siblings(climb *c, uint64_t most, uint32_t *count);

#endif
