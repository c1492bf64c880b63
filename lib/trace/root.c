/*
 * Owns how the records of a file become a picture: which segments and events its root names, in which order they stand, the program's
 * annotations and the allocator's settings. No locks; everything belongs to the call. Called by values.c when a file is read.
 */
#include "trace/values.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        const cmi_object *trace = cmi_value_object(v, &traces[i], CMI_OBJECT_EVENT);
        if (trace == NULL || !trace->listed)
            continue;
        if (trace->first < from)
            return cmi_reader_fault(v->builder->reader, "two devices have the same trace");
        if (i > CMI_MOST_ORDINAL)
            return cmi_reader_fault(v->builder->reader, "more than %d devices", CMI_MOST_ORDINAL + 1);
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
        const cmi_object *inner = cmi_value_object(v, value, CMI_OBJECT_PAIRS);
        cmi_string_id name = cmi_value_string(key), said;
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
        switch (cmi_value_string(key)) {
        case CMI_WORD_segments:
            snapshot = true;
            segments = cmi_value_object(v, value, CMI_OBJECT_SEGMENT);
            if (segments != NULL && !segments->listed)
                segments = NULL;
            break;
        case CMI_WORD_device_traces:
            snapshot = true;
            traces = cmi_value_object(v, value, CMI_OBJECT_ITEMS);
            break;
        case CMI_WORD_allocator_settings:
            settings = cmi_value_object(v, value, CMI_OBJECT_PAIRS);
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
