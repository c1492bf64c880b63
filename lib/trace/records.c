/*
 * Owns what dictionaries mean: which keys make a segment, a block, a frame, an event of a PyTorch snapshot (pickle or JSON, all
 * generations) or a memory event of its profiler. No locks; everything belongs to the call. Called by values.c.
 */
#include "trace/values.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CMI_WORD_Total_Reserved < 64, "keys are bits of a 64-bit set");

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

/* ---- fields ---------------------------------------------------------------------------------- */

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
    const cmi_object *object = cmi_value_object(v, value, CMI_OBJECT_STACK);
    *stack = object != NULL ? object->first : 0;
}

static int pool_field(cmi_values *v, const cmi_value *value, uint32_t *pool)
{
    const cmi_object *two = cmi_value_object(v, value, CMI_OBJECT_TWO);
    return two != NULL ? cmi_build_pool(v->builder, two->first, two->count, pool) : 0;
}

static int ordinal_field(cmi_values *v, const cmi_value *value, uint32_t *ordinal)
{
    uint64_t number;
    if (!cmi_value_natural(value, &number) || number > CMI_MOST_ORDINAL)
        return cmi_reader_fault(v->builder->reader, "a device is not a number from 0 to %d", CMI_MOST_ORDINAL);
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

/* ---- records: one function each, called for each of their keys ------------------------------- */

static int frame_key(cmi_values *v, cmi_object *object, cmi_string_id key, const cmi_value *value)
{
    cmi_picture_frame frame = {0};
    uint64_t line;
    if (object->count != 0) /* has some of its keys already */
        frame = v->builder->picture->frames[object->first];
    if (key == CMI_WORD_filename)
        frame.file = cmi_value_string(value);
    else if (key == CMI_WORD_name)
        frame.function = cmi_value_string(value);
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
        past = cmi_value_object(v, value, CMI_OBJECT_PAST);
        if (past != NULL && past->listed) {
            block->stack = v->pasts[past->first].stack;
            if (block->requested_bytes == 0)
                block->requested_bytes = v->pasts[past->first].bytes;
        }
        return 0;
    case CMI_WORD_state:
        if (cmi_value_string(value) == CMI_WORD_active_allocated)
            block->state = CMI_BLOCK_LIVE;
        else if (cmi_value_string(value) == CMI_WORD_active_pending_free || cmi_value_string(value) == CMI_WORD_active_awaiting_free)
            block->state = CMI_BLOCK_PENDING;
        else if (cmi_value_string(value) != CMI_WORD_inactive)
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
        blocks = cmi_value_object(v, value, CMI_OBJECT_BLOCK);
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
        if (cmi_value_string(value) >= CMI_WORD_alloc && cmi_value_string(value) <= CMI_WORD_snapshot)
            event->kind = action_kind[cmi_value_string(value)];
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
        event->tag = cmi_value_string(value);
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
        range->tag = cmi_value_string(value);
    else if (key == CMI_WORD_stage)
        range->kind = cmi_value_string(value) == CMI_WORD_END ? CMI_EVENT_RANGE_END : CMI_EVENT_RANGE_BEGIN;
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

/* ---- which record it is ---------------------------------------------------------------------- */

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
            memory = cmi_value_object(v, &pairs[i + 1], CMI_OBJECT_MEMORY);
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
