/* What the judge's files share: one look at where the live bytes are. */
#ifndef PROPERTY_JUDGE_H
#define PROPERTY_JUDGE_H

#include "world.h"

enum { PARTS_MOST = 8192 };

/* A piece of a live block on one page. */
typedef struct part {
    uint64_t handle, from, to; /* bytes within the page */
    unsigned root;             /* slot of the pool that holds it */
    unsigned set;              /* slot of the capture set whose block it is, or POOL_SLOTS */
    uint64_t pages;            /* of the handle: more than one of an exportable block */
    unsigned block;            /* its slot */
} part;

typedef struct view {
    uint64_t page;
    size_t part_count;
    part parts[PARTS_MOST];                                                         /* by handle, then by place */
    uint64_t reserved_pages[POOL_SLOTS], live_pages[POOL_SLOTS], fixed[POOL_SLOTS]; /* by slot of the root pool */
    simcuda_census census;
} view;

/* ---- past.c --------------------------------------------------------------------------------------------------------------------- */

/* Notes what lies where. A page that a capture set keeps counts as live, whatever is on it. */
bool past_look(world *w, view *v, const simcuda_mapping *mappings, size_t count);
bool past_is_graph_page(const world *w, uint64_t handle);
/* Idle pages of a root pool that a request on the stream may have while the capture is live, whatever else is free. */
uint64_t past_idle_in_capture(const world *w, const view *v, unsigned root, unsigned stream, bool may_wait);

#endif
