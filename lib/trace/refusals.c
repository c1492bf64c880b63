/*
 * What was held when a request of the history was refused. A snapshot that is taken after the exception shows a program that has let go of
 * most of its blocks; the history still tells what was live at the refusal, and where there was room. No locks; everything belongs to the
 * call. Called when a picture is finished.
 */
#include "trace/build.h"
#include <stdlib.h>

enum { MOST_LOOKED_AT = 32, LIVE_UNIT = 512 }; /* programs that retry are refused thousands of times: the last are looked at */

/* One edge of a range: how far what is covered and what is taken changes there. */
typedef struct edge {
    uint64_t address;
    int8_t covered, taken;
    bool cut; /* idle bytes on the two sides do not make one run */
} edge;

typedef struct edges {
    edge *edges;
    size_t count;
} edges;

static bool add_range(edges *e, uint64_t address, uint64_t bytes, int covered, int taken, bool cut)
{
    const edge ends[2] = {{address, (int8_t)covered, (int8_t)taken, cut}, {address + bytes, (int8_t)-covered, (int8_t)-taken, cut}};
    for (size_t i = 0; i < 2; i++) {
        if (!cmi_grow(&e->edges, e->count, sizeof *e->edges))
            return false;
        e->edges[e->count++] = ends[i];
    }
    return true;
}

static int by_address(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Stretches that are covered and not taken: the longest, and all of them together. */
typedef struct idle {
    uint64_t longest, all;
} idle;

static void count_idle(idle *sums, uint64_t bytes)
{
    sums->all += bytes;
    sums->longest = bytes > sums->longest ? bytes : sums->longest;
}

static idle sum_idle(edges *e)
{
    idle sums = {0};
    uint64_t begin = 0;
    int64_t covered = 0, taken = 0;
    bool inside = false;
    if (e->count > 1)
        qsort(e->edges, e->count, sizeof *e->edges, by_address);
    for (size_t i = 0; i < e->count;) {
        const uint64_t address = e->edges[i].address;
        bool cut = false;
        for (; i < e->count && e->edges[i].address == address; i++) {
            covered += e->edges[i].covered;
            taken += e->edges[i].taken;
            cut = cut || e->edges[i].cut;
        }
        bool is_idle = covered > 0 && taken <= 0;
        if (inside && (!is_idle || cut))
            count_idle(&sums, address - begin);
        if (is_idle && (!inside || cut))
            begin = address;
        inside = is_idle;
    }
    return sums;
}

/* Which segments are looked at: all of the device, or those of pools that keep what is idle in them from the request. */
typedef enum which { ALL, SHUT } which;

static bool is_meant(const cmi_picture *p, const cmi_picture_refusal *r, which wanted, uint32_t pool)
{
    return wanted == ALL || (cmi_picture_is_shut(p, pool) && pool != p->events[r->event].pool);
}

/* Segments as they were at an event: those at the end, and every later change undone. */
static bool segments_at(const cmi_picture *p, const cmi_picture_refusal *r, which wanted, edges *e)
{
    bool room = true;
    for (size_t i = 0; room && i < p->segment_count; i++)
        if (p->segments[i].device == r->device && is_meant(p, r, wanted, p->segments[i].pool))
            room = add_range(e, p->segments[i].address, p->segments[i].bytes, 1, 0, !p->segments[i].expandable);
    for (size_t i = r->event + 1; room && i < p->event_count; i++) {
        const cmi_picture_event *event = &p->events[i];
        if (event->device != r->device || event->address == CMI_UNKNOWN || !is_meant(p, r, wanted, event->pool))
            continue;
        if (event->kind == CMI_EVENT_SEGMENT_ALLOC || event->kind == CMI_EVENT_SEGMENT_MAP)
            room = add_range(e, event->address, event->bytes, -1, 0, event->kind == CMI_EVENT_SEGMENT_ALLOC);
        else if (event->kind == CMI_EVENT_SEGMENT_FREE || event->kind == CMI_EVENT_SEGMENT_UNMAP)
            room = add_range(e, event->address, event->bytes, 1, 0, event->kind == CMI_EVENT_SEGMENT_FREE);
    }
    return room;
}

/* Whether it can be told which pools the segments at an event belonged to: none came or went since, or events say their pool. */
static bool pools_are_known(const cmi_picture *p, const cmi_picture_refusal *r)
{
    bool changed = false, named = false;
    for (size_t i = 0; i < p->event_count; i++) {
        const cmi_picture_event *event = &p->events[i];
        if (event->device == r->device) {
            changed = changed || (i > r->event && event->kind >= CMI_EVENT_SEGMENT_ALLOC && event->kind <= CMI_EVENT_SEGMENT_UNMAP);
            named = named || event->pool != 0;
        }
    }
    return p->has_state && (named || !changed);
}

static uint64_t reserved_at(const cmi_picture *p, const cmi_picture_lives *lives, const cmi_picture_refusal *r)
{
    uint64_t reserved = lives->run.first_reserved_bytes;
    for (size_t i = 0; reserved != CMI_UNKNOWN && i < r->event; i++) {
        const cmi_picture_event *event = &p->events[i];
        if (event->device == r->device && (event->kind == CMI_EVENT_SEGMENT_ALLOC || event->kind == CMI_EVENT_SEGMENT_MAP))
            reserved += event->bytes;
        else if (event->device == r->device && (event->kind == CMI_EVENT_SEGMENT_FREE || event->kind == CMI_EVENT_SEGMENT_UNMAP))
            reserved -= event->bytes;
    }
    return reserved;
}

static bool look_at(const cmi_picture *p, const cmi_picture_lives *lives, cmi_picture_refusal *r)
{
    edges e = {0}, shut = {0};
    bool room = segments_at(p, r, ALL, &e) && segments_at(p, r, SHUT, &shut);
    r->live_bytes = r->pending_bytes = 0;
    for (size_t i = 0; room && i < lives->count; i++) {
        const cmi_picture_life *life = &lives->lives[i];
        bool begun = life->alloc_event == CMI_NONE || life->alloc_event < r->event, done = life->done_event < r->event;
        if (!begun || done)
            continue;
        uint64_t bytes = (life->bytes + LIVE_UNIT - 1) / LIVE_UNIT * LIVE_UNIT;
        *(life->free_event < r->event ? &r->pending_bytes : &r->live_bytes) += bytes;
        room = add_range(&e, life->address, bytes, 0, 1, false) && add_range(&shut, life->address, bytes, 0, 1, false);
    }
    r->reserved_bytes = reserved_at(p, lives, r);
    if (r->reserved_bytes != CMI_UNKNOWN)
        r->idle_bytes = r->reserved_bytes > r->live_bytes + r->pending_bytes ? r->reserved_bytes - r->live_bytes - r->pending_bytes : 0;
    if (p->has_state && room)
        r->largest_idle_bytes = sum_idle(&e).longest;
    if (room && pools_are_known(p, r))
        r->private_idle_bytes = sum_idle(&shut).all;
    free(e.edges);
    free(shut.edges);
    return room;
}

static bool add_refusal(cmi_picture *p, uint32_t number)
{
    const cmi_picture_event *event = &p->events[number];
    if (!cmi_grow(&p->refusals, p->refusal_count, sizeof *p->refusals))
        return false;
    p->refusals[p->refusal_count++] = (cmi_picture_refusal){.event = number,
                                                            .device = event->device,
                                                            .request_bytes = event->bytes,
                                                            .live_bytes = CMI_UNKNOWN,
                                                            .pending_bytes = CMI_UNKNOWN,
                                                            .reserved_bytes = CMI_UNKNOWN,
                                                            .idle_bytes = CMI_UNKNOWN,
                                                            .largest_idle_bytes = CMI_UNKNOWN,
                                                            .private_idle_bytes = CMI_UNKNOWN,
                                                            .device_free_bytes = event->address,
                                                            .limit_bytes = CMI_UNKNOWN,
                                                            .stack = event->stack};
    return true;
}

/* Refusals that the file states stand first: each takes the place of what was worked out for its event, or goes to the end. */
static bool place_stated(cmi_picture *p, size_t stated)
{
    if (stated == 0)
        return true;
    cmi_picture_refusal *ordered = malloc(p->refusal_count * sizeof *ordered);
    size_t count = p->refusal_count - stated;
    if (ordered == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        ordered[i] = p->refusals[stated + i];
    for (size_t i = 0; i < stated; i++) {
        cmi_picture_refusal said = p->refusals[i];
        size_t at = p->refusal_count - stated;
        while (at > 0 && (ordered[at - 1].device != said.device || ordered[at - 1].request_bytes != said.request_bytes ||
                          ordered[at - 1].rung_count > 0))
            at--;
        said.event = at > 0 ? ordered[at - 1].event : CMI_NONE;
        ordered[at > 0 ? at - 1 : count++] = said;
    }
    free(p->refusals);
    p->refusals = ordered;
    p->refusal_count = count;
    return true;
}

int cmi_build_refusals(cmi_builder *b)
{
    cmi_picture *p = b->picture;
    const size_t stated = p->refusal_count;
    bool room = true;
    for (uint32_t i = 0; room && i < p->event_count; i++)
        if (p->events[i].kind == CMI_EVENT_REFUSED)
            room = add_refusal(p, i);
    for (uint32_t device = 0; room && device < p->device_count; device++) {
        cmi_picture_lives lives = {0};
        unsigned looked = 0;
        for (size_t i = p->refusal_count; room && i-- > stated && looked < MOST_LOOKED_AT;) {
            if (p->refusals[i].device != device)
                continue;
            if (looked++ == 0)
                room = cmi_picture_match(p, device, &lives) == 0;
            room = room && look_at(p, &lives, &p->refusals[i]);
        }
        cmi_picture_lives_free(&lives);
    }
    room = room && place_stated(p, stated);
    return room ? 0 : cmi_reader_fault(b->reader, "no host memory for what it holds");
}
