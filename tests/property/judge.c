/*
 * The judge of random programs. What memory there is it takes from the device's own tables, what is live from the program's list of blocks;
 * the pools are asked only how many bytes each of them holds, and these must add up to what the device has given. No state between calls.
 */
#include "judge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAPPINGS_MOST = 8192 };
#define OF_SEGMENTS (UINT64_C(1) << 63) /* no handle has this bit */

static simcuda_mapping mappings[MAPPINGS_MOST];

static uint64_t above(uint64_t have, uint64_t taken) { return have > taken ? have - taken : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A root pool has the slot it says its parent is. */
static bool is_root(const world *w, unsigned pool) { return w->pools[pool].handle && w->pools[pool].parent == pool; }

static int by_place(const void *a, const void *b)
{
    const part *x = a, *y = b;
    if (x->handle != y->handle) {
        return x->handle < y->handle ? -1 : 1;
    }
    return x->from < y->from ? -1 : x->from > y->from;
}

/* The first mapping that ends behind an address. */
static size_t first_behind(size_t count, uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].address + mappings[middle].bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool place_blocks(world *w, view *v)
{
    size_t count = w->device.mappings(mappings, MAPPINGS_MOST);
    if (count > MAPPINGS_MOST) {
        return world_fault(w, "judge: %zu mappings on a device of %" PRIu64 " pages", count, w->settings->pages);
    }
    v->part_count = 0;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        const world_block *block = &w->blocks[i];
        uint64_t at = block->address, end = block->address + block->bytes;
        unsigned root = w->pools[block->pool].parent, set = w->pools[block->pool].is_set ? block->pool : POOL_SLOTS;
        for (; at < end && w->pools[root].segments && v->part_count < PARTS_MOST; at = least(end, (at / v->page + 1) * v->page)) {
            /* Nothing of it has two addresses, so these stand for the bytes. */
            uint64_t stop = least(end, (at / v->page + 1) * v->page), from = at % v->page;
            v->parts[v->part_count++] = (part){OF_SEGMENTS | at / v->page, from, from + (stop - at), root, set, 1, i};
        }
        for (size_t m = first_behind(count, at); at < end; m++) {
            if (m == count || mappings[m].address > at || v->part_count == PARTS_MOST) {
                return world_fault(w, "block: slot %u has live bytes at 0x%" PRIx64 " without memory", i, at);
            }
            uint64_t stop = least(end, mappings[m].address + mappings[m].bytes);
            v->parts[v->part_count++] =
                (part){mappings[m].handle, at - mappings[m].address, stop - mappings[m].address, root, set, mappings[m].bytes / v->page, i};
            at = stop;
        }
    }
    qsort(v->parts, v->part_count, sizeof v->parts[0], by_place);
    return true;
}

static bool look(world *w, view *v)
{
    v->page = program_page_bytes(w->settings);
    if (!place_blocks(w, v)) {
        return false;
    }
    memset(v->live_pages, 0, sizeof v->live_pages);
    for (size_t i = 0; i < v->part_count; i++) {
        const part *one = &v->parts[i], *before = i ? one - 1 : NULL;
        if (!before || before->handle != one->handle) {
            v->live_pages[one->root] += one->pages;
        } else if (before->to > one->from || before->root != one->root) {
            return world_fault(w, "block: two live blocks lie on the same physical bytes, or two pools share a page");
        }
    }
    if (!past_look(w, v, mappings, w->device.mappings(mappings, MAPPINGS_MOST))) {
        return false;
    }
    w->device.count_objects(0, &v->census);
    uint64_t sum = 0;
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        cmpool_stats stats = {.struct_size = sizeof stats};
        v->reserved_pages[i] = 0;
        if (is_root(w, i)) {
            if (!world_expect(w, "cmpool_stats_get", cmpool_stats_get(w->pools[i].handle, &stats), CMPOOL_OK)) {
                return false;
            }
            v->reserved_pages[i] = stats.reserved_bytes / v->page;
            v->fixed[i] = stats.fixed_bytes;
            sum += stats.reserved_bytes;
            if (v->live_pages[i] > v->reserved_pages[i]) {
                return world_fault(w, "figures: pool %u has live bytes on %" PRIu64 " pages, and says it holds %" PRIu64, i,
                                   v->live_pages[i], v->reserved_pages[i]);
            }
        }
    }
    uint64_t given = v->census.handle_bytes + v->census.malloc_bytes;
    return sum == given || world_fault(w, "figures: pools say they hold %" PRIu64 " bytes, the device has given %" PRIu64, sum, given);
}

static view *looked(world *w)
{
    static view v;
    return look(w, &v) ? &v : NULL;
}

/* ---- after every operation -------------------------------------------------------------------------------------------------------- */

static bool judge_findings(world *w)
{
    static const simcuda_finding_kind never[] = {SIMCUDA_RACE_TOUCH, SIMCUDA_RACE_UNMAP, SIMCUDA_USE_AFTER_DESTROY, SIMCUDA_BAD_ACCESS,
                                                 SIMCUDA_UNSUPPORTED_CALL};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        if (w->device.findings(never[i])) {
            return world_fault(w, "finding %d: %s", (int)never[i], w->device.finding_text(0));
        }
    }
    return true;
}

static bool judge_figures(world *w, unsigned pool)
{
    uint64_t bytes = 0, blocks = 0;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        const world_block *block = &w->blocks[i];
        bool counts = block->bytes && (block->pool == pool || (is_root(w, pool) && w->pools[block->pool].parent == pool));
        bytes += counts ? block->bytes : 0;
        blocks += counts;
    }
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (!world_expect(w, "cmpool_stats_get", cmpool_stats_get(w->pools[pool].handle, &stats), CMPOOL_OK)) {
        return false;
    }
    if (stats.device_waits && !w->pools[w->pools[pool].parent].waits) {
        return world_fault(w, "order: pool %u made a stream wait, and was told not to", pool);
    }
    world_pool *one = &w->pools[pool];
    bool waited = is_root(w, pool) && stats.host_waits > one->host_waits;
    one->host_waits = stats.host_waits;
    if (waited && one->waits && !one->strict && !w->host_may_wait) {
        return world_fault(w, "order: a request of pool %u waited on the host, where the device could have been made to", pool);
    }
    return (stats.live_bytes == bytes && stats.live_blocks == blocks) ||
           world_fault(w, "figures: pool %u says %" PRIu64 " live bytes in %" PRIu64 " blocks, there are %" PRIu64 " in %" PRIu64, pool,
                       stats.live_bytes, stats.live_blocks, bytes, blocks);
}

/* A pool never grows while it holds as much as its limit allows, and others never take it below its floor. Memory of exportable blocks is
 * its own matter: it goes when they do. */
static bool judge_levels(world *w, const view *v, unsigned pool)
{
    world_pool *p = &w->pools[pool];
    uint64_t now = v->reserved_pages[pool] * v->page, before = p->reserved;
    bool may_shrink = p->segments || v->fixed[pool] < p->fixed || pool == w->shrinking;
    p->reserved = now;
    p->fixed = v->fixed[pool];
    if (now < before && now < p->floor && !may_shrink) {
        return world_fault(w, "floor: pool %u holds %" PRIu64 " bytes, before %" PRIu64 "; its floor is %" PRIu64, pool, now, before,
                           p->floor);
    }
    return !p->limit || now <= p->limit || now <= before ||
           world_fault(w, "limit: pool %u holds %" PRIu64 " bytes, before %" PRIu64 "; its limit is %" PRIu64, pool, now, before, p->limit);
}

bool judge_state(world *w)
{
    if (atomic_load(&w->bad_refusal)) {
        return world_fault(w, "refusal: a callback was told what does not fit together");
    }
    if (w->result->failed || !judge_findings(w)) {
        return false;
    }
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        const char *finding = NULL;
        if (w->pools[i].handle && (cmpool_validate(w->pools[i].handle, &finding) != CMPOOL_OK || !judge_figures(w, i))) {
            return world_fault(w, "validator: pool %u: %s", i, finding ? finding : "refused");
        }
    }
    const view *v = looked(w);
    bool good = v != NULL;
    for (unsigned i = 0; i < POOL_SLOTS && good; i++) {
        good = !is_root(w, i) || judge_levels(w, v, i);
    }
    return good;
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------------------- */

static uint64_t own_idle(const view *v, unsigned pool) { return v->reserved_pages[pool] - v->live_pages[pool]; }

/* Of the idle pages of a pool, those that others may have. Of segments only whole ones, about which nothing is promised. */
static uint64_t spared(const world *w, const view *v, unsigned pool, uint64_t idle)
{
    if (w->pools[pool].segments) {
        return 0;
    }
    uint64_t floor = (w->pools[pool].floor + v->page - 1) / v->page;
    return least(idle, above(v->reserved_pages[pool], floor));
}

/* Pages the limit leaves, and pages the device does. */
static uint64_t limit_room(const world *w, const view *v, unsigned root)
{
    const world_pool *pool = &w->pools[root];
    return pool->limit ? above(pool->limit / v->page, v->reserved_pages[root]) : UINT64_MAX;
}

static uint64_t device_room(const world *w, const view *v, unsigned root)
{
    return above(v->census.free_bytes, w->pools[root].headroom) / v->page;
}

/* Is there room for a small request between the live bytes of a partly used page? */
static bool run_on_used_page(const world *w, const view *v, unsigned root, uint64_t bytes, uint64_t align)
{
    for (size_t i = 0; i < v->part_count; i++) {
        const part *one = &v->parts[i];
        bool first = i == 0 || v->parts[i - 1].handle != one->handle,
             last = i + 1 == v->part_count || v->parts[i + 1].handle != one->handle;
        uint64_t behind = last ? v->page : v->parts[i + 1].from, start = (one->to + align - 1) / align * align;
        if (one->root == root && !past_is_graph_page(w, one->handle) && ((first && bytes <= one->from) || start + bytes <= behind)) {
            return true;
        }
    }
    return false;
}

/* Idle pages of a pool that a request may have. While a capture is live, nothing can be asked of the device, and nothing be unmapped. */
static uint64_t idle_for(const world *w, const view *v, unsigned pool, unsigned root, unsigned stream)
{
    if (!w->capturing) {
        return own_idle(v, pool);
    }
    return w->pools[root].unmaps_first ? 0 : past_idle_in_capture(w, v, pool, stream, w->pools[root].waits);
}

bool judge_refusal(world *w, unsigned pool, uint64_t bytes, uint64_t align, unsigned stream)
{
    unsigned root = w->pools[pool].parent;
    if (w->aside.lives) { /* what another thread has in hand is nobody's yet */
        return true;
    }
    const view *v = looked(w);
    if (!v || w->pools[root].segments) {
        return v != NULL;
    }
    uint64_t rounded = (bytes + 511) / 512 * 512, needed = (rounded + v->page - 1) / v->page, others = 0;
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        others += is_root(w, i) && i != root ? spared(w, v, i, idle_for(w, v, i, root, stream)) : 0;
    }
    uint64_t idle = idle_for(w, v, root, root, stream), limit = limit_room(w, v, root), device = device_room(w, v, root);
    w->result->capture_refusals += w->capturing;
    if (idle + least(limit, others + device) >= needed) {
        return world_fault(w,
                           "refusal: %" PRIu64 " bytes need %" PRIu64 " pages; idle are %" PRIu64 " of the pool's own and %" PRIu64
                           " of others', the device gives %" PRIu64 ", the limit allows %" PRIu64 " more%s",
                           bytes, needed, idle, others, device, limit, w->capturing ? ", during a capture" : "");
    }
    if (!w->capturing && rounded < v->page && run_on_used_page(w, v, root, rounded, align > 512 ? align : 512)) {
        return world_fault(w, "refusal: %" PRIu64 " bytes (align %" PRIu64 ") would fit between live bytes on a page", bytes, align);
    }
    return true;
}

bool judge_reserve(world *w, unsigned pool, uint64_t bytes)
{
    if (w->aside.lives) {
        return true;
    }
    unsigned root = w->pools[pool].parent;
    const view *v = looked(w);
    if (!v) {
        return false;
    }
    uint64_t missing = above((bytes + v->page - 1) / v->page, v->reserved_pages[root]);
    uint64_t room = least(limit_room(w, v, root), device_room(w, v, root));
    missing += w->pools[root].segments; /* their margin */
    return room < missing || world_fault(w, "refusal: reserve needs %" PRIu64 " pages, %" PRIu64 " are to be had", missing, room);
}

/* ---- trims ----------------------------------------------------------------------------------------------------------------------------
 */

bool judge_trim(world *w, unsigned pool, uint64_t keep)
{
    if (w->aside.lives) {
        return true;
    }
    const view *v = looked(w);
    if (!v) {
        return false;
    }
    return v->reserved_pages[pool] * v->page <= keep || own_idle(v, pool) == 0 || w->pools[pool].segments ||
           world_fault(w, "trim: pool %u holds %" PRIu64 " pages, %" PRIu64 " of them idle, and was to keep %" PRIu64 " bytes", pool,
                       v->reserved_pages[pool], own_idle(v, pool), keep);
}

bool judge_device_trim(world *w, uint64_t bytes, uint64_t released)
{
    if (w->aside.lives) {
        return true;
    }
    const view *v = looked(w);
    if (!v || released >= bytes) {
        return v != NULL;
    }
    uint64_t left = 0;
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        left += is_root(w, i) ? spared(w, v, i, own_idle(v, i)) : 0;
    }
    return !left || world_fault(w, "trim: %" PRIu64 " of %" PRIu64 " bytes given back, and %" PRIu64 " idle pages left above the floors",
                                released, bytes, left);
}
