/*
 * Owns what dictionaries mean: which keys make a segment, a block, a frame, an event of a PyTorch snapshot (pickle or JSON, all
 * generations) or a memory event of its profiler, and how the whole becomes a picture. No locks; everything belongs to the call. Called
 * by values.c.
 */
#include "trace/values.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CMI_WORD_Total_Reserved < 64, "keys are bits of a 64-bit set");

enum { MOST_ORDINAL = 4095 };

#define KEY(word) (UINT64_C(1) << CMI_WORD_##word)
#define HAS(keys, of) (((keys) & (of)) == (of))

static const uint8_t action_kind[CMI_WORDS] = {
    [CMI_WORD_alloc] = CMI_EVENT_ALLOC,
    [CMI_WORD_free_requested] = CMI_EVENT_FREE_REQUESTED,
    [CMI_WORD_free_completed] = CMI_EVENT_FREE_COMPLETED,
    [CMI_WORD_segment_alloc] = CMI_EVENT_SEGMENT_ALLOC,
    [CMI_WORD_segment_free] = CMI_EVENT_SEGMENT_FREE,
    [CMI_WORD_segment_map] = CMI_EVENT_SEGMENT_MAP,
    [CMI_WORD_segment_unmap] = CMI_EVENT_SEGMENT_UNMAP,
    [CMI_WORD_oom] = CMI_EVENT_REFUSED,
    [CMI_WORD_snapshot] = CMI_EVENT_SNAPSHOT,
};

static const cmi_object *as_object(const cmi_values *v, const cmi_value *value, cmi_object_kind kind)
{
    const cmi_object *object = value->kind == CMI_VALUE_OBJECT ? &v->objects[value->id] : NULL;
    return object != NULL && object->kind == kind ? object : NULL;
}

/* ---- fields ------------------------------------------------------------------------------------------------------------------------- */

static int bytes_field(cmi_values *v, const cmi_value *value, const char *what, uint64_t *bytes)
{
    if (!cmi_value_natural(value, bytes))
        return cmi_reader_fault(v->builder->reader, "the %s is not a number", what);
    if (*bytes > INT64_MAX)
        return cmi_reader_fault(v->builder->reader, "the %s %" PRIu64 " is beyond 2^63", what, *bytes);
    return 0;
}

static int address_field(cmi_values *v, const cmi_value *value, uint64_t *address)
{
    return cmi_value_natural(value, address) ? 0 : cmi_reader_fault(v->builder->reader, "an address is not a number");
}

static int stream_field(cmi_values *v, const cmi_value *value, uint16_t *stream)
{
    uint64_t handle = 0;
    if (value->kind == CMI_VALUE_INTEGER)
        handle = value->natural; /* a handle whose highest bit is set may have been written as a signed number */
    else
        (void)cmi_value_natural(value, &handle);
    return cmi_build_stream(v->builder, handle, stream);
}

static void stack_field(const cmi_values *v, const cmi_value *value, cmi_stack_id *stack)
{
    const cmi_object *object = as_object(v, value, CMI_OBJECT_STACK);
    *stack = object != NULL ? object->first : 0;
}

static int pool_field(cmi_values *v, const cmi_value *value, uint32_t *pool)
{
    const cmi_object *two = as_object(v, value, CMI_OBJECT_TWO);
    return two != NULL ? cmi_build_pool(v->builder, two->first, two->count, pool) : 0;
}

static int ordinal_field(cmi_values *v, const cmi_value *value, uint32_t *ordinal)
{
    uint64_t number;
    if (!cmi_value_natural(value, &number) || number > MOST_ORDINAL)
        return cmi_reader_fault(v->builder->reader, "a device is not a number from 0 to %d", MOST_ORDINAL);
    *ordinal = (uint32_t)number;
    return 0;
}

static int64_t microseconds(const cmi_value *value)
{
    int64_t ns = 0;
    if (value->kind == CMI_VALUE_REAL)
        return value->real > -9e15 && value->real < 9e15 ? (int64_t)(value->real * 1000.0) : 0;
    return value->kind == CMI_VALUE_INTEGER && !__builtin_mul_overflow(value->integer, (int64_t)1000, &ns) ? ns : 0;
}

static cmi_string_id string_field(const cmi_value *value) { return value->kind == CMI_VALUE_STRING ? value->id : 0; }

/* ---- records: one function each, called for each of their keys ------------------------------------------------------------------------
 */

static int frame_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_frame frame = {0};
    uint64_t line;
    if (object->count != 0) /* has some of its keys already */
        frame = v->builder->picture->frames[object->first];
    if (key == CMI_WORD_filename)
        frame.file = string_field(value);
    else if (key == CMI_WORD_name)
        frame.function = string_field(value);
    else if (key == CMI_WORD_line)
        frame.line = cmi_value_natural(value, &line) && line <= UINT32_MAX ? (uint32_t)line : 0;
    else
        return 0;
    uint32_t number;
    int result = cmi_build_frame(v->builder, &frame, &number);
    *object = (cmi_object){.first = number, .count = 1, .kind = CMI_OBJECT_FRAME};
    return result;
}

static int past_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_past *past = &v->pasts[object->first];
    if (key == CMI_WORD_real_size)
        return bytes_field(v, value, "size", &past->bytes);
    if (key == CMI_WORD_frames)
        stack_field(v, value, &past->stack);
    return 0;
}

static int block_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_block *block = &v->builder->picture->blocks[object->first];
    const cmi_object *past;
    switch (key) {
    case CMI_WORD_address:
        return address_field(v, value, &block->address);
    case CMI_WORD_size:
        return bytes_field(v, value, "size of a block", &block->bytes);
    case CMI_WORD_requested_size:
        return bytes_field(v, value, "requested size", &block->requested_bytes);
    case CMI_WORD_frames:
        stack_field(v, value, &block->stack);
        return 0;
    case CMI_WORD_history: /* the newest comes first */
        past = as_object(v, value, CMI_OBJECT_PAST);
        if (past != NULL && past->listed) {
            block->stack = v->pasts[past->first].stack;
            if (block->requested_bytes == 0)
                block->requested_bytes = v->pasts[past->first].bytes;
        }
        return 0;
    case CMI_WORD_state:
        if (string_field(value) == CMI_WORD_active_allocated)
            block->state = CMI_BLOCK_LIVE;
        else if (string_field(value) == CMI_WORD_active_pending_free || string_field(value) == CMI_WORD_active_awaiting_free)
            block->state = CMI_BLOCK_PENDING;
        else if (string_field(value) != CMI_WORD_inactive)
            return cmi_reader_fault(v->builder->reader, "a block in a state that is not known");
        return 0;
    default:
        return 0;
    }
}

static int segment_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_segment *segment = &v->builder->picture->segments[object->first];
    const cmi_object *blocks;
    switch (key) {
    case CMI_WORD_device:
        return ordinal_field(v, value, &segment->device);
    case CMI_WORD_address:
        return address_field(v, value, &segment->address);
    case CMI_WORD_total_size:
        return bytes_field(v, value, "size of a segment", &segment->bytes);
    case CMI_WORD_stream:
        return stream_field(v, value, &segment->stream);
    case CMI_WORD_segment_pool_id:
        return pool_field(v, value, &segment->pool);
    case CMI_WORD_is_expandable:
        segment->expandable = value->kind == CMI_VALUE_BOOL && value->integer != 0;
        return 0;
    case CMI_WORD_frames:
        stack_field(v, value, &segment->stack);
        return 0;
    case CMI_WORD_blocks:
        blocks = as_object(v, value, CMI_OBJECT_BLOCK);
        if (blocks != NULL && blocks->listed) {
            segment->first_block = blocks->first;
            segment->block_count = blocks->count;
        }
        return 0;
    default:
        return 0;
    }
}

static int event_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_event *event = &v->builder->picture->events[object->first];
    uint32_t pool = 0;
    switch (key) {
    case CMI_WORD_action:
        event->kind = CMI_EVENT_KINDS; /* one that newer versions have: left out in the end */
        if (string_field(value) >= CMI_WORD_alloc && string_field(value) <= CMI_WORD_snapshot)
            event->kind = action_kind[string_field(value)];
        return 0;
    case CMI_WORD_addr:
    case CMI_WORD_device_free:
        return address_field(v, value, &event->address);
    case CMI_WORD_size:
        return bytes_field(v, value, "size of an event", &event->bytes);
    case CMI_WORD_stream:
        return stream_field(v, value, &event->stream);
    case CMI_WORD_time_us:
        event->time_ns = microseconds(value);
        return 0;
    case CMI_WORD_frames:
        stack_field(v, value, &event->stack);
        return 0;
    case CMI_WORD_user_metadata:
        event->tag = string_field(value);
        return 0;
    case CMI_WORD_pool_id:
        if (pool_field(v, value, &pool) != 0)
            return -1;
        event->pool = (uint16_t)pool;
        return 0;
    default:
        return 0;
    }
}

static int range_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_event *range = &v->ranges[object->first];
    if (key == CMI_WORD_name)
        range->tag = string_field(value);
    else if (key == CMI_WORD_stage)
        range->kind = string_field(value) == CMI_WORD_END ? CMI_EVENT_RANGE_END : CMI_EVENT_RANGE_BEGIN;
    else if (key == CMI_WORD_time_us)
        range->time_ns = microseconds(value);
    else if (key == CMI_WORD_device)
        return ordinal_field(v, value, &range->device);
    return 0;
}

static int memory_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_profiler_memory *memory = &v->memory[object->first];
    uint64_t type;
    switch (key) {
    case CMI_WORD_Addr:
        return address_field(v, value, &memory->address);
    case CMI_WORD_Bytes:
        if (value->kind != CMI_VALUE_INTEGER)
            return cmi_reader_fault(v->builder->reader, "the bytes of a memory event are not a number");
        memory->bytes = value->integer;
        return 0;
    case CMI_WORD_Device_Type: /* 0 is the host, 1 CUDA, 20 HIP */
        memory->on_device = cmi_value_natural(value, &type) && type != 0;
        return 0;
    case CMI_WORD_Device_Id:
        if (value->kind == CMI_VALUE_INTEGER && value->integer < 0) /* the host */
            return 0;
        return ordinal_field(v, value, &memory->ordinal);
    case CMI_WORD_Total_Reserved:
        (void)cmi_value_natural(value, &memory->reserved_bytes);
        return 0;
    default:
        return 0;
    }
}

typedef int record_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value);
static record_key *const keys_of[CMI_OBJECT_KINDS] = {
    [CMI_OBJECT_FRAME] = frame_key, [CMI_OBJECT_PAST] = past_key,   [CMI_OBJECT_BLOCK] = block_key,   [CMI_OBJECT_SEGMENT] = segment_key,
    [CMI_OBJECT_EVENT] = event_key, [CMI_OBJECT_RANGE] = range_key, [CMI_OBJECT_MEMORY] = memory_key,
};

int cmi_record_add(cmi_values *v, cmi_object *object, const cmi_value *pairs, size_t count)
{
    record_key *take = keys_of[object->kind];
    for (size_t i = 0; take != NULL && i < 2 * count; i += 2)
        if (pairs[i].kind == CMI_VALUE_STRING && take(v, object, pairs[i].id, &pairs[i + 1]) != 0)
            return -1;
    return 0;
}

/* ---- which record it is ----------------------------------------------------------------------------------------------------------------
 */

/* A new record at the end of its array. */
static int begin_record(cmi_values *v, cmi_object *object, cmi_object_kind kind)
{
    cmi_picture *p = v->builder->picture;
    size_t first = 0;
    bool room = true;
    switch (kind) {
    case CMI_OBJECT_PAST:
        if ((room = cmi_grow(&v->pasts, first = v->past_count, sizeof *v->pasts)))
            v->pasts[v->past_count++] = (cmi_past){0};
        break;
    case CMI_OBJECT_BLOCK:
        if ((room = cmi_grow(&p->blocks, first = p->block_count, sizeof *p->blocks)))
            p->blocks[p->block_count++] = (cmi_picture_block){.address = CMI_UNKNOWN, .stream = CMI_STREAM_OF_SEGMENT};
        break;
    case CMI_OBJECT_SEGMENT:
        if ((room = cmi_grow(&p->segments, first = p->segment_count, sizeof *p->segments)))
            p->segments[p->segment_count++] = (cmi_picture_segment){.address = CMI_UNKNOWN};
        break;
    case CMI_OBJECT_EVENT:
        first = p->event_count;
        if (cmi_build_event(v->builder, &(cmi_picture_event){.address = CMI_UNKNOWN}) != 0)
            return -1;
        break;
    case CMI_OBJECT_RANGE:
        if ((room = cmi_grow(&v->ranges, first = v->range_count, sizeof *v->ranges)))
            v->ranges[v->range_count++] = (cmi_picture_event){.bytes = first};
        break;
    case CMI_OBJECT_MEMORY:
        if ((room = cmi_grow(&v->memory, first = v->memory_count, sizeof *v->memory)))
            v->memory[v->memory_count++] = (cmi_profiler_memory){.reserved_bytes = CMI_UNKNOWN};
        break;
    default:
        break;
    }
    if (!room || first >= CMI_NONE)
        return cmi_reader_fault(v->builder->reader, "no host memory for what it holds");
    *object = (cmi_object){.first = (uint32_t)first, .kind = kind & 15};
    return 0;
}

/* An event of the profiler's trace; of all of them only those count that tell of memory, which is in their arguments. */
static void profiler_event(cmi_values *v, cmi_object *object, const cmi_value *pairs, size_t count)
{
    const cmi_object *memory = NULL;
    const cmi_value *ts = NULL;
    for (size_t i = 0; i < 2 * count; i += 2)
        if (pairs[i].kind == CMI_VALUE_STRING && pairs[i].id == CMI_WORD_args)
            memory = as_object(v, &pairs[i + 1], CMI_OBJECT_MEMORY);
        else if (pairs[i].kind == CMI_VALUE_STRING && pairs[i].id == CMI_WORD_ts)
            ts = &pairs[i + 1];
    if (memory != NULL && !memory->listed && ts != NULL) {
        v->memory[memory->first].time_ns = microseconds(ts);
        v->memory[memory->first].timed = true;
    }
    *object = (cmi_object){.kind = CMI_OBJECT_OTHER};
}

int cmi_record_make(cmi_values *v, cmi_object *object, const cmi_value *pairs, size_t count)
{
    static const struct {
        uint64_t keys;
        cmi_object_kind kind;
    } record[] = {
        {KEY(action), CMI_OBJECT_EVENT},
        {KEY(filename) | KEY(line), CMI_OBJECT_FRAME},
        {KEY(size) | KEY(state), CMI_OBJECT_BLOCK},
        {KEY(blocks) | KEY(total_size), CMI_OBJECT_SEGMENT},
        {KEY(real_size), CMI_OBJECT_PAST},
        {KEY(stage) | KEY(name), CMI_OBJECT_RANGE},
        {KEY(Addr) | KEY(Bytes), CMI_OBJECT_MEMORY},
    };
    uint64_t keys = 0;
    for (size_t i = 0; i < 2 * count; i += 2)
        if (pairs[i].kind == CMI_VALUE_STRING && pairs[i].id < 64)
            keys |= UINT64_C(1) << pairs[i].id;
    for (size_t i = 0; i < sizeof record / sizeof *record; i++)
        if (HAS(keys, record[i].keys))
            return begin_record(v, object, record[i].kind) != 0 ? -1 : cmi_record_add(v, object, pairs, count);
    if (HAS(keys, KEY(ts)))
        profiler_event(v, object, pairs, count);
    return 0;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------------------------
 */

/* The segments that the root names, with their blocks, moved to the front; others are gone. */
static int keep_segments(cmi_values *v, const cmi_object *listed)
{
    cmi_picture *p = v->builder->picture;
    size_t kept = 0, from = 0;
    p->segment_count = listed != NULL ? listed->count : 0;
    if (p->segment_count > 0)
        memmove(p->segments, p->segments + listed->first, p->segment_count * sizeof *p->segments);
    for (size_t i = 0; i < p->segment_count; i++) {
        cmi_picture_segment *segment = &p->segments[i];
        if (segment->block_count > 0 && segment->first_block < from)
            return cmi_reader_fault(v->builder->reader, "two segments have the same blocks");
        from = segment->block_count > 0 ? segment->first_block + segment->block_count : from;
        if (segment->block_count > 0)
            memmove(p->blocks + kept, p->blocks + segment->first_block, segment->block_count * sizeof *p->blocks);
        segment->first_block = (uint32_t)kept;
        kept += segment->block_count;
    }
    p->block_count = kept;
    p->has_state = listed != NULL;
    return 0;
}

/* One trace for each device: its events get its number, and are moved behind those before. */
static int keep_events(cmi_values *v, const cmi_value *traces, size_t count)
{
    cmi_picture *p = v->builder->picture;
    size_t kept = 0, from = 0;
    for (size_t i = 0; i < count; i++) {
        const cmi_object *trace = as_object(v, &traces[i], CMI_OBJECT_EVENT);
        if (trace == NULL || !trace->listed)
            continue;
        if (trace->first < from)
            return cmi_reader_fault(v->builder->reader, "two devices have the same trace");
        if (i > MOST_ORDINAL)
            return cmi_reader_fault(v->builder->reader, "more than %d devices", MOST_ORDINAL + 1);
        from = trace->first + trace->count;
        for (size_t j = trace->first; j < from; j++) {
            cmi_picture_event event = p->events[j];
            event.device = (uint32_t)i;
            if (event.kind != CMI_EVENT_KINDS && (event.address != CMI_UNKNOWN || event.kind == CMI_EVENT_REFUSED))
                p->events[kept++] = event;
        }
    }
    p->event_count = kept;
    return 0;
}

static int by_device_and_time(const void *a, const void *b)
{
    const cmi_picture_event *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns);
}

/* Ranges hold their number in the file in bytes until they are in place. */
static int by_order(const void *a, const void *b)
{
    const cmi_picture_event *x = a, *y = b;
    int order = by_device_and_time(a, b);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The program's annotations go between the events of their device, by time. */
static int merge_ranges(cmi_values *v)
{
    cmi_picture *p = v->builder->picture;
    size_t events = p->event_count, ranges = v->range_count;
    if (ranges == 0 || events == 0)
        return 0;
    qsort(v->ranges, ranges, sizeof *v->ranges, by_order);
    for (size_t i = 0; i < ranges; i++) /* room for all */
        if (cmi_build_event(v->builder, &v->ranges[i]) != 0)
            return -1;
    for (size_t at = events + ranges; ranges > 0;) /* from the end on, so that nothing is in the way */
        if (events > 0 && by_device_and_time(&p->events[events - 1], &v->ranges[ranges - 1]) > 0)
            p->events[--at] = p->events[--events];
        else {
            p->events[--at] = v->ranges[--ranges];
            p->events[at].bytes = 0;
        }
    return 0;
}

static int setting_text(cmi_values *v, const cmi_value *value, char *text, size_t room)
{
    switch (value->kind) {
    case CMI_VALUE_BOOL:
        return snprintf(text, room, "%s", value->integer ? "True" : "False");
    case CMI_VALUE_INTEGER:
        return snprintf(text, room, "%" PRId64, value->integer);
    case CMI_VALUE_NATURAL:
        return snprintf(text, room, "%" PRIu64, value->natural);
    case CMI_VALUE_REAL:
        return snprintf(text, room, "%g", value->real);
    case CMI_VALUE_STRING:
        return snprintf(text, room, "%s", v->builder->picture->strings[value->id]);
    default:
        return 0;
    }
}

/* The allocator's settings, in the words that PyTorch prints; what is a dictionary again has its keys behind a colon. */
static int keep_settings(cmi_values *v, const cmi_object *settings, cmi_string_id outer)
{
    for (uint32_t i = 0; i < 2 * settings->count; i += 2) {
        const cmi_value *key = &v->items[settings->first + i], *value = key + 1;
        const cmi_object *inner = as_object(v, value, CMI_OBJECT_PAIRS);
        cmi_string_id name = string_field(key), said;
        char text[512];
        if (name == 0 || (outer != 0 && value->kind == CMI_VALUE_INTEGER && value->integer == 0))
            continue;
        if (inner != NULL && outer == 0 && keep_settings(v, inner, name) != 0)
            return -1;
        if (inner != NULL || value->kind == CMI_VALUE_OBJECT)
            continue;
        if (outer != 0) {
            snprintf(text, sizeof text, "%s:%s", v->builder->picture->strings[outer], v->builder->picture->strings[name]);
            if (cmi_build_string(v->builder, text, strlen(text), &name) != 0)
                return -1;
        }
        text[0] = '\0';
        (void)setting_text(v, value, text, sizeof text);
        if (cmi_build_string(v->builder, text, strlen(text), &said) != 0 || cmi_build_note(v->builder, "setting", name, said) != 0)
            return -1;
    }
    return 0;
}

int cmi_record_root(cmi_values *v, const cmi_object *root)
{
    cmi_picture *p = v->builder->picture;
    const cmi_object *segments = NULL, *traces = NULL, *settings = NULL;
    bool snapshot = false, profile = false;
    if (v->whole)
        return cmi_library_root(v, root);
    if (root->listed && root->kind == CMI_OBJECT_SEGMENT) { /* the first snapshots were just the list */
        segments = root;
        snapshot = true;
    }
    for (uint32_t i = 0; root->kind == CMI_OBJECT_PAIRS && i < 2 * root->count; i += 2) {
        const cmi_value *key = &v->items[root->first + i], *value = key + 1;
        switch (string_field(key)) {
        case CMI_WORD_segments:
            snapshot = true;
            segments = as_object(v, value, CMI_OBJECT_SEGMENT);
            if (segments != NULL && !segments->listed)
                segments = NULL;
            break;
        case CMI_WORD_device_traces:
            snapshot = true;
            traces = as_object(v, value, CMI_OBJECT_ITEMS);
            break;
        case CMI_WORD_allocator_settings:
            settings = as_object(v, value, CMI_OBJECT_PAIRS);
            break;
        case CMI_WORD_traceEvents:
            profile = true;
            break;
        default:
            break;
        }
    }
    if (profile && !snapshot)
        return cmi_profiler_finish(v);
    if (!snapshot)
        return cmi_reader_fault(v->builder->reader, "no memory picture: it has neither segments and device_traces nor traceEvents");
    if (keep_segments(v, segments) != 0 ||
        keep_events(v, traces != NULL ? v->items + traces->first : NULL, traces != NULL ? traces->count : 0) != 0)
        return -1;
    p->has_history = p->event_count > 0;
    return merge_ranges(v) != 0 || (settings != NULL && keep_settings(v, settings, 0) != 0) ? -1 : 0;
}
