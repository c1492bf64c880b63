/*
 * This library's own snapshot (include/cudamempool/snapshot.schema.json) as a picture. Its tables name their columns, so that those of
 * later writers are read too. A segment is a stretch of addresses with pages behind them that belongs to one owner: the pool, a private
 * pool or a capture set. No locks; everything belongs to the call. Called by root.c.
 */
#include "trace/library_tables.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool is_fixed(const library_reader *r, uint64_t address)
{
    uint32_t low = 0, high = cmi_library_rows(&r->fixed); /* the last row that does not begin behind it */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (cmi_library_number(r, &r->fixed, middle, 0) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && cmi_library_number(r, &r->fixed, low - 1, 1) > 0;
}

static int add_block(library_reader *r, cmi_picture_block block, bool joins)
{
    cmi_picture *p = r->p;
    cmi_picture_segment *segment = &p->segments[p->segment_count - 1];
    cmi_picture_block *last = segment->block_count > 0 ? &p->blocks[p->block_count - 1] : NULL;
    block.fixed = is_fixed(r, block.address);
    segment->bytes += block.bytes;
    if (joins && last != NULL && last->state == block.state && block.state == CMI_BLOCK_IDLE) {
        last->bytes += block.bytes;
        return 0;
    }
    if (p->block_count >= CMI_NONE - 1 || !cmi_grow(&p->blocks, p->block_count, sizeof *p->blocks))
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    p->blocks[p->block_count++] = block;
    segment->block_count++;
    return 0;
}

/* A run that is cut into slots: each live one is a block, free neighbours are one. */
static int add_slab(library_reader *r, const cmi_picture_block *run)
{
    while (r->slab_row < cmi_library_rows(&r->slabs) && cmi_library_number(r, &r->slabs, r->slab_row, 0) < run->address)
        r->slab_row++;
    const bool known = r->slab_row < cmi_library_rows(&r->slabs) && cmi_library_number(r, &r->slabs, r->slab_row, 0) == run->address;
    const char *slots = known ? cmi_library_text(r, cmi_library_cell(r, &r->slabs, r->slab_row, 2)) : "";
    const uint64_t bytes = known ? cmi_library_number(r, &r->slabs, r->slab_row, 1) : 0;
    uint64_t used = 0;
    for (size_t i = 0; slots[i] != '\0' && bytes > 0 && bytes <= run->bytes - used; i++, used += bytes) {
        cmi_picture_block block = {.address = run->address + used, .bytes = bytes, .stream = run->stream};
        block.state = slots[i] == 'L' ? CMI_BLOCK_LIVE : slots[i] == 'P' ? CMI_BLOCK_PENDING : CMI_BLOCK_IDLE;
        uint32_t note = block.state == CMI_BLOCK_LIVE ? cmi_library_find(r, &r->notes, block.address) : CMI_NONE;
        if (note != CMI_NONE) {
            block.allocated_ns = (int64_t)cmi_library_number(r, &r->notes, note, 1);
            block.stack = cmi_library_stack(r, cmi_library_number(r, &r->notes, note, 3));
            if (cmi_library_tag(r, cmi_library_number(r, &r->notes, note, 2), &block.tag) != 0)
                return -1;
        }
        if (add_block(r, block, i > 0) != 0)
            return -1;
    }
    cmi_picture_block rest = {.address = run->address + used, .bytes = run->bytes - used, .stream = run->stream};
    return rest.bytes == 0 ? 0 : add_block(r, rest, used > 0);
}

static int read_runs(library_reader *r, const cmi_object *pool, const uint32_t *pool_of, size_t owners)
{
    static const char *const names[] = {"address", "bytes", "state", "owner", "stream", "requested", "time_ns", "tag", "stack", NULL};
    const library_table t = cmi_library_table(r, pool, "runs", names);
    cmi_picture *p = r->p;
    bool open = false;
    for (uint32_t row = 0; row < cmi_library_rows(&t); row++) {
        const char *state = cmi_library_text(r, cmi_library_cell(r, &t, row, 2));
        const uint64_t owner = cmi_library_number(r, &t, row, 3);
        cmi_picture_block run = {.address = cmi_library_number(r, &t, row, 0), .bytes = cmi_library_number(r, &t, row, 1)};
        const uint32_t owned_by = owner < owners ? pool_of[owner] : pool_of[0];
        run.stream = cmi_library_stream(r, cmi_library_number(r, &t, row, 4));
        if (run.bytes > INT64_MAX || run.bytes > UINT64_MAX - run.address)
            return cmi_reader_fault(r->v->builder->reader, "a run without a place");
        if (strcmp(state, "hole") == 0 || strcmp(state, "stale") == 0 || strcmp(state, "busy") == 0) {
            open = false;
            continue;
        }
        const cmi_picture_segment *last = open ? &p->segments[p->segment_count - 1] : NULL;
        if (last == NULL || last->address + last->bytes != run.address || last->pool != owned_by) {
            if (p->segment_count >= CMI_NONE - 1 || !cmi_grow(&p->segments, p->segment_count, sizeof *p->segments))
                return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
            p->segments[p->segment_count++] = (cmi_picture_segment){.address = run.address,
                                                                    .first_block = (uint32_t)p->block_count,
                                                                    .pool = owned_by,
                                                                    .device = r->ordinal,
                                                                    .stream = run.stream,
                                                                    .expandable = true};
            open = true;
        }
        if (strcmp(state, "live") == 0) {
            run.state = CMI_BLOCK_LIVE;
            run.requested_bytes = cmi_library_number(r, &t, row, 5);
            run.allocated_ns = (int64_t)cmi_library_number(r, &t, row, 6);
            run.stack = cmi_library_stack(r, cmi_library_number(r, &t, row, 8));
            if (cmi_library_tag(r, cmi_library_number(r, &t, row, 7), &run.tag) != 0)
                return -1;
        } else if (strcmp(state, "pending") == 0)
            run.state = CMI_BLOCK_PENDING;
        if (strcmp(state, "slab") == 0 ? add_slab(r, &run) != 0 : add_block(r, run, false) != 0)
            return -1;
    }
    return 0;
}

/* ---- events and refusals --------------------------------------------------------------------- */

static int add_event(library_reader *r, const char *what, cmi_picture_event event)
{
    static const struct {
        const char *name;
        uint8_t kind;
    } kinds[] = {{"ALLOC", CMI_EVENT_ALLOC},      {"FREE", CMI_EVENT_FREE_REQUESTED},     {"USE", CMI_EVENT_USE},
                 {"GROW", CMI_EVENT_SEGMENT_MAP}, {"RELEASE", CMI_EVENT_SEGMENT_UNMAP},   {"REFUSE", CMI_EVENT_REFUSED},
                 {"MOVE", CMI_EVENT_MOVE},        {"WAIT_DEVICE", CMI_EVENT_WAIT_DEVICE}, {"WAIT_HOST", CMI_EVENT_WAIT_HOST}};
    event.kind = CMI_EVENT_KINDS;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(what, kinds[i].name) == 0)
            event.kind = kinds[i].kind;
    if (event.kind == CMI_EVENT_KINDS) /* unmapped old addresses, and what later writers may add */
        return 0;
    if (event.kind == CMI_EVENT_REFUSED)
        event.address = CMI_UNKNOWN;
    if (cmi_build_event(r->v->builder, &event) != 0)
        return -1;
    event.kind = event.kind == CMI_EVENT_FREE_REQUESTED ? CMI_EVENT_FREE_COMPLETED : CMI_EVENT_KINDS;
    return event.kind == CMI_EVENT_FREE_COMPLETED ? cmi_build_event(r->v->builder, &event) : 0;
}

static int read_history(library_reader *r, const cmi_object *pool, const uint32_t *pool_of, size_t owners)
{
    static const char *const names[] = {"time_ns", "event", "address", "bytes", "stream", "tag", "stack", "owner", NULL};
    const library_table t =
        cmi_library_table(r, cmi_value_object(r->v, cmi_library_member(r, pool, "history"), CMI_OBJECT_PAIRS), "events", names);
    for (uint32_t row = 0; row < cmi_library_rows(&t); row++) {
        const uint64_t owner = cmi_library_number(r, &t, row, 7);
        cmi_picture_event event = {.time_ns = (int64_t)cmi_library_number(r, &t, row, 0),
                                   .address = cmi_library_number(r, &t, row, 2),
                                   .bytes = cmi_library_number(r, &t, row, 3),
                                   .stream = cmi_library_stream(r, cmi_library_number(r, &t, row, 4)),
                                   .stack = cmi_library_stack(r, cmi_library_number(r, &t, row, 6)),
                                   .device = r->ordinal,
                                   .pool = (uint16_t)(owner < owners ? pool_of[owner] : pool_of[0])};
        if (event.bytes > INT64_MAX)
            return cmi_reader_fault(r->v->builder->reader, "an event of %" PRIu64 " bytes", event.bytes);
        if (cmi_library_tag(r, cmi_library_number(r, &t, row, 5), &event.tag) != 0 ||
            add_event(r, cmi_library_text(r, cmi_library_cell(r, &t, row, 1)), event) != 0)
            return -1;
    }
    return 0;
}

/* What could have served it, as the library counts: whole pages, pending ones apart, those of other pools with them. */
static void refusal_in_pages(cmi_picture_refusal *refusal, uint64_t siblings, uint64_t headroom)
{
    if (refusal->idle_bytes != CMI_UNKNOWN && refusal->pending_bytes != CMI_UNKNOWN) {
        uint64_t pages = refusal->idle_bytes + siblings;
        refusal->pending_bytes = refusal->pending_bytes < pages ? refusal->pending_bytes : pages;
        refusal->idle_bytes = pages - refusal->pending_bytes;
    }
    if (refusal->device_free_bytes != CMI_UNKNOWN)
        refusal->device_free_bytes -= refusal->device_free_bytes < headroom ? refusal->device_free_bytes : headroom;
}

/* In the file's own words and figures; the same refusal, worked out from the history, gives way to it when the picture is finished. */
static int read_refusal(library_reader *r, const cmi_object *pool)
{
    const cmi_object *said = cmi_value_object(r->v, cmi_library_member(r, pool, "last_refusal"), CMI_OBJECT_PAIRS);
    const cmi_object *ladder = cmi_value_object(r->v, cmi_library_member(r, said, "ladder"), CMI_OBJECT_ITEMS);
    cmi_picture *p = r->p;
    if (said == NULL)
        return 0;
#define FIGURE(key) cmi_library_natural(cmi_library_member(r, said, key), CMI_UNKNOWN)
    const uint64_t headroom = cmi_library_natural(cmi_library_member(r, said, "headroom_bytes"), 0);
    const bool by_limit = strcmp(cmi_library_text(r, cmi_library_member(r, said, "status")), "LIMIT") == 0 && FIGURE("limit_bytes") != 0;
    cmi_picture_refusal refusal = {.event = CMI_NONE,
                                   .device = r->ordinal,
                                   .request_bytes = cmi_library_natural(cmi_library_member(r, said, "request_bytes"), 0),
                                   .live_bytes = FIGURE("live_bytes"),
                                   .pending_bytes = FIGURE("pending_bytes"),
                                   .reserved_bytes = FIGURE("reserved_bytes"),
                                   .idle_bytes = FIGURE("idle_bytes"),
                                   .largest_idle_bytes = FIGURE("largest_free_bytes"),
                                   .private_idle_bytes = FIGURE("graph_bytes"),
                                   .device_free_bytes = FIGURE("driver_free_bytes"),
                                   .limit_bytes = by_limit ? FIGURE("limit_bytes") : CMI_UNKNOWN,
                                   .stack = cmi_library_stack(r, cmi_library_natural(cmi_library_member(r, said, "stack"), 0)),
                                   .first_rung = (uint32_t)p->rung_count};
#undef FIGURE
    refusal_in_pages(&refusal, cmi_library_natural(cmi_library_member(r, said, "sibling_idle_bytes"), 0), headroom);
    const char *verdict = cmi_library_text(r, cmi_library_member(r, said, "verdict"));
    if (cmi_build_string(r->v->builder, verdict, strlen(verdict), &refusal.reason) != 0)
        return -1;
    for (uint32_t i = 0; ladder != NULL && i < ladder->count; i++) {
        const cmi_object *rung = cmi_value_object(r->v, &r->v->items[ladder->first + i], CMI_OBJECT_PAIRS);
        const cmi_value *name = cmi_library_member(r, rung, "rung");
        if (!cmi_grow(&p->rungs, p->rung_count, sizeof *p->rungs))
            return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
        p->rungs[p->rung_count++] = (cmi_picture_rung){name != NULL && name->kind == CMI_VALUE_STRING ? name->id : 0,
                                                       cmi_library_natural(cmi_library_member(r, rung, "bytes"), 0)};
        refusal.rung_count++;
    }
    if (!cmi_grow(&p->refusals, p->refusal_count, sizeof *p->refusals))
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    p->refusals[p->refusal_count++] = refusal;
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int read_notes(library_reader *r, const cmi_object *dict, const char *group)
{
    for (uint32_t i = 0; dict != NULL && i < 2 * dict->count; i += 2) {
        const cmi_value *key = &r->v->items[dict->first + i], *value = key + 1;
        cmi_string_id said = value->kind == CMI_VALUE_STRING ? value->id : 0;
        char digits[24];
        if (key->kind != CMI_VALUE_STRING || value->kind == CMI_VALUE_OBJECT || value->kind == CMI_VALUE_NONE)
            continue;
        if (value->kind == CMI_VALUE_BOOL)
            snprintf(digits, sizeof digits, "%s", value->integer ? "true" : "false");
        else
            snprintf(digits, sizeof digits, "%" PRIu64, cmi_library_natural(value, 0));
        if ((value->kind != CMI_VALUE_STRING && cmi_build_string(r->v->builder, digits, strlen(digits), &said) != 0) ||
            cmi_build_note(r->v->builder, group, key->id, said) != 0)
            return -1;
    }
    return 0;
}

/* Owners of a pool as pools of the picture. */
static int read_owners(library_reader *r, const cmi_object *pool, uint32_t **pool_of, size_t *owners)
{
    static const char *const names[] = {"owner", "kind", NULL};
    const library_table t = cmi_library_table(r, pool, "owners", names);
    const uint64_t handle = cmi_library_natural(cmi_library_member(r, pool, "pool"), 0);
    *owners = (size_t)cmi_library_rows(&t) + 1;
    *pool_of = calloc(*owners, sizeof **pool_of);
    if (*pool_of == NULL)
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    for (uint32_t row = 0; row < cmi_library_rows(&t); row++) {
        const uint64_t owner = cmi_library_number(r, &t, row, 0);
        const cmi_value *kind = cmi_library_cell(r, &t, row, 1);
        uint32_t number;
        if (cmi_build_pool(r->v->builder, handle, owner, &number) != 0)
            return -1;
        r->p->pools[number].is_private = strcmp(cmi_library_text(r, kind), "pool") != 0;
        r->p->pools[number].name = kind != NULL && kind->kind == CMI_VALUE_STRING ? kind->id : 0;
        if (owner < *owners)
            (*pool_of)[owner] = number;
    }
    return 0;
}

static int read_pool(library_reader *r, const cmi_object *pool, cmi_picture_device *device)
{
    static const char *const slot_names[] = {"address", "fixed", NULL};
    static const char *const slab_names[] = {"address", "slot_bytes", "slots", NULL};
    static const char *const note_names[] = {"address", "time_ns", "tag", "stack", NULL};
    const cmi_object *options = cmi_value_object(r->v, cmi_library_member(r, pool, "options"), CMI_OBJECT_PAIRS);
    uint32_t *pool_of = NULL;
    size_t owners = 0;
    r->fixed = cmi_library_table(r, pool, "slots", slot_names);
    r->slabs = cmi_library_table(r, pool, "slabs", slab_names);
    r->notes = cmi_library_table(r, pool, "slot_notes", note_names);
    r->slab_row = 0;
    if (cmi_library_natural(cmi_library_member(r, options, "limit"), 0) != 0)
        device->limit_bytes = cmi_library_natural(cmi_library_member(r, options, "limit"), 0);
    int result = read_owners(r, pool, &pool_of, &owners);
    if (result == 0)
        result = read_runs(r, pool, pool_of, owners) != 0 || read_history(r, pool, pool_of, owners) != 0 || read_refusal(r, pool) != 0 ||
                         read_notes(r, options, "setting") != 0 ||
                         read_notes(r, cmi_value_object(r->v, cmi_library_member(r, pool, "counters"), CMI_OBJECT_PAIRS), "counter") != 0 ||
                         read_notes(r, cmi_value_object(r->v, cmi_library_member(r, pool, "pinned"), CMI_OBJECT_PAIRS), "pinned") != 0
                     ? -1
                     : 0;
    free(pool_of);
    return result;
}

static int read_device(library_reader *r, const cmi_object *device)
{
    const cmi_object *pools = cmi_value_object(r->v, cmi_library_member(r, device, "pools"), CMI_OBJECT_ITEMS);
    const uint64_t ordinal = cmi_library_natural(cmi_library_member(r, device, "device"), 0);
    cmi_picture *p = r->p;
    if (ordinal > CMI_MOST_ORDINAL)
        return cmi_reader_fault(r->v->builder->reader, "a device is not a number from 0 to %d", CMI_MOST_ORDINAL);
    for (size_t i = 0; i < p->device_count; i++)
        if (p->devices[i].ordinal >= ordinal)
            return cmi_reader_fault(r->v->builder->reader, "devices are not in order");
    if (!cmi_grow(&p->devices, p->device_count, sizeof *p->devices))
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    cmi_picture_device *made = &p->devices[p->device_count++];
    *made = (cmi_picture_device){.ordinal = (uint32_t)ordinal,
                                 .total_bytes = cmi_library_natural(cmi_library_member(r, device, "device_bytes"), CMI_UNKNOWN),
                                 .free_bytes = cmi_library_natural(cmi_library_member(r, device, "driver_free_bytes"), CMI_UNKNOWN),
                                 .limit_bytes = CMI_UNKNOWN};
    r->ordinal = (uint32_t)ordinal;
    if (cmi_library_read_streams(r, device) != 0)
        return -1;
    for (uint32_t i = 0; pools != NULL && i < pools->count; i++)
        if (read_pool(r, cmi_value_object(r->v, &r->v->items[pools->first + i], CMI_OBJECT_PAIRS), made) != 0)
            return -1;
    return 0;
}

int cmi_library_root(cmi_values *v, const cmi_object *root)
{
    static const char *const tag_names[] = {"tag", "name", NULL};
    static const char *const stack_names[] = {"stack", "frames", NULL};
    library_reader r = {.v = v, .p = v->builder->picture};
    const cmi_object *whole = root->kind == CMI_OBJECT_PAIRS ? root : NULL;
    const cmi_object *devices = cmi_value_object(r.v, cmi_library_member(&r, whole, "devices"), CMI_OBJECT_ITEMS);
    if (strcmp(cmi_library_text(&r, cmi_library_member(&r, whole, "format")), "cudamempool-snapshot") != 0 ||
        cmi_library_natural(cmi_library_member(&r, whole, "version"), 0) != 1)
        return cmi_reader_fault(v->builder->reader, "a snapshot of a version that is not known (1 is)");
    r.p->format = "cudamempool";
    r.p->has_state = true;
    r.tags = cmi_library_table(&r, whole, "tags", tag_names);
    r.stacks = cmi_library_table(&r, whole, "stacks", stack_names);
    int result = cmi_library_read_stacks(&r) != 0 || read_notes(&r, whole, "about") != 0 ||
                         read_notes(&r, cmi_value_object(r.v, cmi_library_member(&r, whole, "process"), CMI_OBJECT_PAIRS), "about") != 0
                     ? -1
                     : 0;
    for (uint32_t i = 0; result == 0 && devices != NULL && i < devices->count; i++)
        result = read_device(&r, cmi_value_object(r.v, &v->items[devices->first + i], CMI_OBJECT_PAIRS));
    r.p->has_history = r.p->event_count > 0;
    free(r.stack_of);
    free(r.stream_of);
    return result;
}
