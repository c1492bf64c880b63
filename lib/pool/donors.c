/*
 * Donors: the whole idle pages that may leave their place, in the order in which they should. Owns nothing; runs under the device lock;
 * called by plans.
 */
#include "pool/climb.h"

static bool gives_before(const cmi_donor *a, const cmi_donor *b)
{
    bool a_edge = a->run.hole_before || a->run.hole_behind, b_edge = b->run.hole_before || b->run.hole_behind;
    if (a_edge != b_edge) {
        return a_edge;
    }
    return a->run.pages != b->run.pages ? a->run.pages < b->run.pages : a->run.offset < b->run.offset;
}

/* Sorted in place by halving gaps; the C library's qsort may call malloc. */
static void sort_donors(cmi_donor *donors, uint32_t count)
{
    for (uint32_t gap = count / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < count; i++) {
            cmi_donor moving = donors[i];
            uint32_t j = i;
            for (; j >= gap && gives_before(&moving, &donors[j - gap]); j -= gap) {
                donors[j] = donors[j - gap];
            }
            donors[j] = moving;
        }
    }
}

/* Append the idle runs of one pool, at most `most` pages of them. Returns pages added; *count grows. UINT64_MAX: no host memory. */
uint64_t cmi_donors_add(climb *c, cmi_pool *from, uint64_t skip, uint64_t skip_bytes, uint64_t most, uint32_t *count)
{
    if (!most) {
        return 0;
    }
    /* One walk is enough once the scratch is as long as it has ever had to be. */
    uint32_t runs = cmi_heap_idle_runs(&from->heap, from->use, skip, skip_bytes, c->runs, c->run_room, NULL);
    while (runs > c->run_room) {
        cmi_meta_free(c->runs, c->run_room * sizeof *c->runs);
        c->run_room = 0;
        c->runs = cmi_meta_alloc(2 * runs * sizeof *c->runs);
        if (!c->runs) {
            return UINT64_MAX;
        }
        c->run_room = 2 * runs;
        runs = cmi_heap_idle_runs(&from->heap, from->use, skip, skip_bytes, c->runs, c->run_room, NULL);
    }
    if (!runs) {
        return 0;
    }
    if (*count + runs > c->donor_room) {
        uint32_t room = 2 * (*count + runs);
        cmi_donor *grown = cmi_meta_resize(c->donors, c->donor_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return UINT64_MAX;
        }
        c->donors = grown;
        c->donor_room = room;
    }
    cmi_donor *added = c->donors + *count;
    for (uint32_t i = 0; i < runs; i++) {
        added[i] = (cmi_donor){from, c->runs[i]};
    }
    sort_donors(added, runs);
    uint64_t sum = 0;
    uint32_t used = 0;
    for (; used < runs && sum < most; used++) {
        added[used].run.pages = (uint32_t)cmi_min_u64(added[used].run.pages, most - sum);
        sum += added[used].run.pages;
    }
    *count += used;
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
