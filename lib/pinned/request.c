/*
 * One pinned request. It goes: own finished memory; what events show done; one more extent; memory of other NUMA nodes; and where memory is
 * short, a wait of the host and free extents of other groups for one that fits. Owns nothing beyond the call; guarded by the device lock;
 * called by api.
 */
#include "pinned/pinned.h"

typedef struct climb {
    cmi_pinned *pinned;
    const cmi_pinned_ask *ask;
    uint64_t bytes; /* that a block of the heap would have, or an extent needs */
    uint64_t address;
} climb;

static void publish(climb *c, unsigned group, uint64_t address, uint64_t bytes, bool small)
{
    cmi_pinned *pinned = c->pinned;
    cmi_pinned_block block = {.address = address,
                              .bytes = bytes,
                              .requested = c->ask->requested,
                              .stamp = CMI_NO_STAMP,
                              .tag = c->ask->tag,
                              .state = CMI_PINNED_LIVE,
                              .group = (uint8_t)group,
                              .small = small,
                              .unordered = c->ask->stream == CMI_NO_STREAM,
                              .flags = c->ask->flags};
    if (!block.unordered) { /* a stream that blocks name is never another's, see cmi_stream.keeps */
        block.stamp = cmi_stamp_new(pinned->pool->device, c->ask->stream, 0);
        pinned->pool->device->streams[c->ask->stream].keeps = true;
    }
    cmi_pinned_add_block(pinned, &block);
    c->address = address;
    cmi_pinned_figures *figures = &pinned->figures;
    figures->live_bytes += bytes;
    figures->live_blocks++;
    figures->requested_bytes += block.requested;
    figures->allocations++;
    figures->peak_live_bytes = cmi_max_u64(figures->peak_live_bytes, figures->live_bytes);
}

/* From finished memory of a group. SHORT (LIMIT here) means that there is none. */
static cmpool_status serve(climb *c, unsigned group)
{
    cmi_pinned *pinned = c->pinned;
    cmi_heap *heap = &pinned->heap;
    if (!cmi_pinned_make_ready(pinned) || !cmi_pinned_open_group(pinned, group)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (c->ask->requested <= CMI_PINNED_SMALL && cmi_pinned_has_arena(pinned, group)) {
        uint64_t bytes, address = cmi_pinned_arena_alloc(pinned, group, c->ask->requested, c->ask->align, &bytes);
        c->bytes = bytes;
        if (address) {
            publish(c, group, address, bytes, true);
        }
        return address ? CMPOOL_OK : CMPOOL_ERR_LIMIT;
    }
    /* Large ones are whole steps, so that they stay aligned; small ones without an arena are not: eight to a step. */
    uint64_t step = c->ask->requested <= CMI_PINNED_SMALL ? CMI_UNIT : CMI_PINNED_STEP;
    uint64_t align = cmi_max_u64(step, c->ask->align);
    c->bytes = cmi_round_up(c->ask->requested, step);
    cmi_block_id id = cmi_heap_best_fit(heap, pinned->groups[group].done, c->bytes, align);
    if (!id) {
        return CMPOOL_ERR_LIMIT;
    }
    uint64_t offset = cmi_round_up(cmi_heap_block(heap, id)->offset, align);
    id = cmi_heap_take(heap, id, offset, c->bytes);
    cmi_heap_make_live(heap, id, pinned->groups[group].done, c->bytes, c->ask->tag, 0);
    publish(c, group, offset, c->bytes, false);
    return CMPOOL_OK;
}

static cmpool_status grow_and_serve(climb *c, unsigned group)
{
    cmpool_status status = cmi_pinned_grow(c->pinned, group, c->bytes);
    return status == CMPOOL_OK ? serve(c, group) : status;
}

/* The same kind of memory of every other node. */
static cmpool_status serve_elsewhere(climb *c, unsigned group)
{
    cmpool_status status = CMPOOL_ERR_LIMIT;
    unsigned kind = group - group % CMI_PINNED_NODES;
    for (unsigned i = kind; i < kind + CMI_PINNED_NODES && status == CMPOOL_ERR_LIMIT; i++) {
        if (i != group && c->pinned->groups[i].done) {
            status = serve(c, i);
        }
    }
    return status;
}

static bool is_short(cmpool_status status) { return status == CMPOOL_ERR_LIMIT || status == CMPOOL_ERR_OUT_OF_HOST_MEMORY; }

/* Free extents, of whatever kind and node, make room for one that fits. Not while a capture is live: the driver would wait. */
static cmpool_status exchange(climb *c, unsigned group)
{
    cmi_pinned *pinned = c->pinned;
    uint64_t limit = pinned->figures.limit_bytes, need = cmi_round_up(c->bytes, CMI_PINNED_PAGE);
    if (cmi_capture_is_live() || (limit && need > limit)) {
        return CMPOOL_ERR_LIMIT;
    }
    cmpool_status status = cmi_pinned_shrink(pinned, limit ? limit - need : 0);
    return status == CMPOOL_OK || is_short(status) ? grow_and_serve(c, group) : status;
}

/* Everything, in order of what it costs; `changing` is ours. Drops and retakes the lock. */
static cmpool_status climb_all(climb *c, unsigned group)
{
    cmi_pinned *pinned = c->pinned;
    cmpool_status status = serve(c, group); /* who was here before may have left something */
    if (status == CMPOOL_ERR_LIMIT && cmi_pinned_pending_bytes(pinned)) {
        cmi_pinned_settle(pinned);
        status = serve(c, group);
    }
    if (status == CMPOOL_ERR_LIMIT) {
        status = grow_and_serve(c, group);
    }
    if (!is_short(status)) {
        return status;
    }
    cmpool_status why = status;
    status = serve_elsewhere(c, group);
    if (status == CMPOOL_ERR_LIMIT && pinned->figures.held_bytes > 0) {
        status = exchange(c, group);
    }
    if (is_short(status) && cmi_pinned_pending_bytes(pinned) && !cmi_capture_is_live()) {
        status = cmi_pinned_wait(pinned);
        status = status == CMPOOL_OK ? serve(c, group) : status;
        status = status == CMPOOL_ERR_LIMIT ? serve_elsewhere(c, group) : status;
        status = status == CMPOOL_ERR_LIMIT ? exchange(c, group) : status;
    }
    return is_short(status) ? why : status;
}

static void explain(const climb *c)
{
    const cmi_pinned_figures *figures = &c->pinned->figures;
    cmpool_error *error = cmi_error_detail();
    error->call = "";
    error->bytes = c->bytes;
    error->live_bytes = figures->live_bytes;
    error->reserved_bytes = figures->held_bytes;
    error->idle_bytes = figures->held_bytes - figures->live_bytes;
    error->device_free_bytes = SIZE_MAX;
    error->limit_bytes = figures->limit_bytes;
    error->largest_free_bytes = error->short_bytes = 0;
    for (unsigned i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        error->rung_bytes[i] = 0;
    }
}

cmpool_status cmi_pinned_malloc(cmi_pool *pool, const cmi_pinned_ask *ask, uint64_t *address)
{
    climb c = {.pinned = cmi_pinned_open(pool), .ask = ask};
    if (!c.pinned) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    unsigned group = cmi_pinned_node() + (ask->flags & CMPOOL_PINNED_WRITE_COMBINED ? CMI_PINNED_NODES : 0);
    cmpool_status status = serve(&c, group);
    if (status == CMPOOL_ERR_LIMIT) {
        cmi_pinned_begin_change(c.pinned);
        status = climb_all(&c, group);
        cmi_pinned_end_change(c.pinned);
        if (is_short(status)) {
            c.pinned->figures.refusals++;
            explain(&c);
        }
    }
    *address = c.address;
    return status;
}
