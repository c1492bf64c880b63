/*
 * Donors: the whole idle pages that may leave their place, in the order in which they should. Owns nothing; runs under the device lock;
 * called by plans.
 */
#include "pool/climb.h"

enum { FEW_RUNS = 256 }; /* the scratch that a climb begins with */

static bool gives_before(const cmi_idle_run *a, const cmi_idle_run *b)
{
    bool a_edge = a->hole_before || a->hole_behind, b_edge = b->hole_before || b->hole_behind;
    if (a_edge != b_edge) {
        return a_edge;
    }
    return a->pages != b->pages ? a->pages < b->pages : a->offset < b->offset;
}

/* A heap, with the run that gives first on top; only as many as are needed come off it. Let the one at `at` sink to its place. */
static void sink(cmi_idle_run *runs, uint32_t count, uint32_t at)
{
    cmi_idle_run moving = runs[at];
    for (uint32_t under; (under = 2 * at + 1) < count; at = under) {
        under += under + 1 < count && gives_before(&runs[under + 1], &runs[under]);
        if (!gives_before(&runs[under], &moving)) {
            break;
        }
        runs[at] = runs[under];
    }
    runs[at] = moving;
}

/* Append the idle runs of one pool, at most `most` pages of them. Returns pages added; *count grows. UINT64_MAX: no host memory. */
uint64_t cmi_donors_add(climb *c, cmi_pool *from, uint64_t skip, uint64_t skip_bytes, uint64_t most, uint32_t *count)
{
    if (!most) {
        return 0;
    }
    /* One walk is enough where the scratch is long enough; else it says how long it has to be. */
    uint32_t runs = c->run_room ? 0 : FEW_RUNS / 2;
    do {
        if (runs > c->run_room) {
            cmi_meta_free(c->runs, c->run_room * sizeof *c->runs);
            c->run_room = 0;
            c->runs = cmi_meta_alloc(2 * runs * sizeof *c->runs);
            if (!c->runs) {
                return UINT64_MAX;
            }
            c->run_room = 2 * runs;
        }
        runs = cmi_heap_idle_runs(&from->heap, from->use, skip, skip_bytes, c->runs, c->run_room, NULL);
    } while (runs > c->run_room);
    if (!runs) {
        return 0;
    }
    uint32_t needed = *count + (uint32_t)cmi_min_u64(runs, most); /* each gives a page at least */
    if (needed > c->donor_room) {
        uint32_t room = 2 * needed;
        cmi_donor *grown = cmi_meta_resize(c->donors, c->donor_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return UINT64_MAX;
        }
        c->donors = grown;
        c->donor_room = room;
    }
    for (uint32_t i = runs / 2; i-- > 0;) {
        sink(c->runs, runs, i);
    }
    uint64_t sum = 0;
    while (runs && sum < most) {
        cmi_donor *donor = &c->donors[(*count)++];
        *donor = (cmi_donor){from, c->runs[0]};
        donor->run.pages = (uint32_t)cmi_min_u64(donor->run.pages, most - sum);
        sum += donor->run.pages;
        c->runs[0] = c->runs[--runs];
        if (runs) {
            sink(c->runs, runs, 0);
        }
    }
    return sum;
}

/* At most `most` pages, since what siblings give counts against the pool's own limit. */
uint64_t cmi_donors_add_siblings(climb *c, uint64_t most, uint32_t *count)
{
    uint64_t total = 0;
    /* During a capture a wait may be impossible, which only a climb that reaches so far can tell. */
    bool may_wait = c->pool->options.cross_stream_wait && (c->reach >= REACH_PENDING || !cmi_capture_is_live());
    reach far = may_wait ? REACH_PENDING : REACH_FINISHED;
    for (cmi_pool *other = c->pool->device->pools; other; other = other->next) {
        if (other == c->pool || other->dying || other->segmented || !cmi_plan_mark_usable(other, c->pool, c->ask, far)) {
            continue;
        }
        cmi_plan_add_region_pages(other, c->ask, far);
        uint64_t floor = CMI_MUTATION(FLOOR_IGNORED) ? 0 : cmi_div_up(other->options.floor, other->heap.source.page_bytes);
        uint64_t spare = other->reserved_pages > floor ? other->reserved_pages - floor : 0;
        uint64_t pages = cmi_donors_add(c, other, 0, 0, cmi_min_u64(spare, most - total), count);
        total += pages == UINT64_MAX ? 0 : pages;
    }
    return total;
}
