/* Owns the JSON of `inspect`: one device's report as members of an object. No state; one thread. Called by cmd_inspect.c. */
#include "inspect.h"

static void put_share(json *out, const char *name, const inspect_share *share)
{
    json_begin_object(out, NULL);
    json_string(out, "name", name);
    json_integer(out, "reserved_bytes", share->reserved);
    json_integer(out, "live_bytes", share->live);
    json_integer(out, "pending_bytes", share->pending);
    json_integer(out, "idle_bytes", share->idle);
    json_integer(out, "fixed_bytes", share->fixed);
    json_integer(out, "live_blocks", share->live_blocks);
    json_end_object(out);
}

static void put_shares(json *out, const inspect_report *r)
{
    const cmi_picture *p = r->picture;
    char name[64];
    json_begin_array(out, "streams");
    for (uint32_t i = 0; i < p->stream_count; i++)
        if (r->streams[i].reserved > 0)
            put_share(out, inspect_stream_name(p, (uint16_t)i, name), &r->streams[i]);
    json_end_array(out);
    json_begin_array(out, "pools");
    for (uint32_t i = 0; i < p->pool_count; i++)
        if (r->pools[i].reserved > 0)
            put_share(out, inspect_pool_name(p, i, name), &r->pools[i]);
    json_end_array(out);
}

static void put_runs(json *out, const inspect_runs *runs)
{
    json_begin_array(out, "idle_runs");
    for (int i = 0; i < INSPECT_RUN_CLASSES; i++) {
        if (runs->runs[i] == 0)
            continue;
        json_begin_object(out, NULL);
        json_integer(out, "from_bytes", (uint64_t)1 << 2 * i);
        json_integer(out, "runs", runs->runs[i]);
        json_integer(out, "bytes", runs->bytes[i]);
        json_end_object(out);
    }
    json_end_array(out);
}

static void put_largest(json *out, const inspect_largest *largest)
{
    json_begin_object(out, "largest_request");
    json_figure(out, "driver_room_bytes", largest->driver_room);
    json_integer(out, "now_bytes", largest->now);
    json_integer(out, "after_waiting_bytes", largest->after_waiting);
    json_integer(out, "after_moving_bytes", largest->after_moving);
    json_integer(out, "after_trim_bytes", largest->after_trim);
    json_integer(out, "without_moving_bytes", largest->without_moving);
    json_end_object(out);
}

static void put_stack(json *out, const cmi_picture *p, cmi_stack_id id)
{
    const cmi_picture_stack *stack = &p->stacks[id];
    char text[512];
    json_begin_array(out, "frames");
    for (uint32_t i = 0; i < stack->count; i++)
        json_string(out, NULL, inspect_frame(p, p->stack_frames[stack->first + i], text));
    json_end_array(out);
}

static void put_holders(json *out, const char *key, const inspect_report *r, const inspect_holders *list, bool by_tag, uint64_t top)
{
    json_begin_array(out, key);
    for (size_t i = 0; i < list->count && i < top; i++) {
        json_begin_object(out, NULL);
        json_integer(out, "bytes", list->holders[i].bytes);
        json_integer(out, "blocks", list->holders[i].blocks);
        if (by_tag)
            json_string(out, "tag", r->picture->strings[list->holders[i].key]);
        else
            put_stack(out, r->picture, list->holders[i].key);
        json_end_object(out);
    }
    json_end_array(out);
}

static void put_stuck(json *out, const inspect_report *r, uint64_t top)
{
    const cmi_picture *p = r->picture;
    if (r->stuck_segment == CMI_NONE) {
        json_null(out, "largest_idle_segment");
        return;
    }
    const cmi_picture_segment *segment = &p->segments[r->stuck_segment];
    uint64_t blocks = 0;
    json_begin_object(out, "largest_idle_segment");
    json_address(out, "address", segment->address);
    json_integer(out, "bytes", segment->bytes);
    json_integer(out, "idle_bytes", r->stuck_bytes);
    json_bool(out, "expandable", segment->expandable);
    json_begin_array(out, "held_by");
    for (uint32_t i = 0; i < segment->block_count; i++) {
        const cmi_picture_block *block = &p->blocks[segment->first_block + i];
        if ((block->state == CMI_BLOCK_IDLE && !block->fixed) || blocks++ >= top)
            continue;
        int64_t age = inspect_age_ns(r, segment->first_block + i);
        json_begin_object(out, NULL);
        json_address(out, "address", block->address);
        json_integer(out, "bytes", block->bytes);
        json_string(out, "state", cmi_block_state_name(block->state));
        json_bool(out, "fixed", block->fixed);
        json_string(out, "tag", p->strings[block->tag]);
        json_figure(out, "age_ns", age >= 0 ? (uint64_t)age : CMI_UNKNOWN);
        put_stack(out, p, block->stack);
        json_end_object(out);
    }
    json_end_array(out);
    json_integer(out, "held_by_blocks", blocks);
    json_end_object(out);
}

void inspect_put_totals(json *out, const cmi_picture_totals *t)
{
    json_integer(out, "reserved_bytes", t->reserved_bytes);
    json_integer(out, "live_bytes", t->live_bytes);
    json_integer(out, "pending_bytes", t->pending_bytes);
    json_integer(out, "idle_bytes", t->idle_bytes);
    json_integer(out, "fixed_bytes", t->fixed_bytes);
    json_integer(out, "private_bytes", t->private_bytes);
    json_integer(out, "segments", t->segments);
    json_integer(out, "live_blocks", t->live_blocks);
}

void inspect_put(json *out, const inspect_report *r, const inspect_options *options)
{
    const cmi_picture_device *device = &r->picture->devices[r->device];
    const cmi_picture_run *run = &r->lives.run;
    json_integer(out, "device", device->ordinal);
    json_figure(out, "device_bytes", device->total_bytes);
    inspect_put_totals(out, &r->totals);
    json_figure(out, "peak_live_bytes", r->picture->has_history ? run->peak_live_bytes : CMI_UNKNOWN);
    json_figure(out, "peak_reserved_bytes", r->picture->has_history ? run->peak_reserved_bytes : CMI_UNKNOWN);
    put_shares(out, r);
    put_runs(out, &r->runs);
    put_largest(out, &r->largest);
    put_holders(out, "tags", r, &r->tags, true, options->top);
    put_holders(out, "stacks", r, &r->stacks, false, options->top);
    put_stuck(out, r, options->top);
    json_begin_object(out, "pinned");
    json_integer(out, "held_bytes", inspect_pinned(r->picture, "held_bytes"));
    json_integer(out, "live_bytes", inspect_pinned(r->picture, "live_bytes"));
    json_integer(out, "pending_bytes", inspect_pinned(r->picture, "pending_bytes"));
    json_end_object(out);
}
