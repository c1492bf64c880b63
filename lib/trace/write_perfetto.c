/*
 * A picture as Chrome trace JSON, for Perfetto: a process for each device with counters of live, pending and reserved bytes, refusals and
 * annotations on its track, and each allocation and free as PyTorch's profiler writes them. No locks; everything belongs to the call.
 * Called by tools.
 */
#include "trace/emit.h"
#include <stdio.h>
#include <stdlib.h>

enum { LIVE_UNIT = 512, CUDA_DEVICE = 1 };

typedef struct writer {
    cmi_emitter *e;
    const cmi_picture *p;
    cmi_picture_lives lives;
    uint32_t device;
    uint64_t live, pending, reserved; /* at the event; reserved may be CMI_UNKNOWN */
} writer;

static void put_text(writer *w, const char *key, const char *text)
{
    cmi_emit_key(w->e, key);
    cmi_emit_text(w->e, text);
}

static void put_natural(writer *w, const char *key, uint64_t number)
{
    cmi_emit_key(w->e, key);
    cmi_emit_natural(w->e, number);
}

/* Begins an event of the trace, up to its arguments. Events without a time are a microsecond apart. */
static void begin(writer *w, const char *phase, const char *name, size_t number)
{
    const int64_t ns = number < w->p->event_count ? w->p->events[number].time_ns : 0;
    cmi_emit_raw(w->e, "\n", 1);
    cmi_emit_open(w->e, false);
    put_text(w, "ph", phase);
    put_text(w, "name", name);
    put_natural(w, "pid", w->p->devices[w->device].ordinal);
    put_natural(w, "tid", 0);
    cmi_emit_key(w->e, "ts");
    cmi_emit_microseconds(w->e, ns != 0 ? ns : (int64_t)number * 1000);
}

static void begin_arguments(writer *w)
{
    cmi_emit_key(w->e, "args");
    cmi_emit_open(w->e, false);
}

static void finish(writer *w)
{
    cmi_emit_close(w->e);
    cmi_emit_close(w->e);
}

static void counters(writer *w, size_t number)
{
    begin(w, "C", "memory", number);
    begin_arguments(w);
    put_natural(w, "live bytes", w->live);
    put_natural(w, "pending bytes", w->pending);
    finish(w);
    if (w->reserved == CMI_UNKNOWN)
        return;
    begin(w, "C", "reserved", number);
    begin_arguments(w);
    put_natural(w, "reserved bytes", w->reserved);
    finish(w);
}

/* As the profiler writes allocations, so that what reads those reads this too. */
static void memory(writer *w, size_t number, const cmi_picture_life *life, bool freed)
{
    const cmi_picture_event *event = &w->p->events[number];
    begin(w, "i", "[memory]", number);
    put_text(w, "cat", "cpu_instant_event");
    put_text(w, "s", "t");
    begin_arguments(w);
    put_natural(w, "Device Type", CUDA_DEVICE);
    put_natural(w, "Device Id", w->p->devices[w->device].ordinal);
    put_natural(w, "Addr", event->address);
    cmi_emit_key(w->e, "Bytes");
    cmi_emit_integer(w->e, freed ? -(int64_t)life->bytes : (int64_t)life->bytes);
    put_natural(w, "Total Allocated", w->live);
    if (w->reserved != CMI_UNKNOWN)
        put_natural(w, "Total Reserved", w->reserved);
    put_natural(w, "Stream", w->p->streams[life->stream].value);
    finish(w);
}

static void mark(writer *w, const char *phase, const char *name, size_t number)
{
    begin(w, phase, name, number);
    if (phase[0] == 'i')
        put_text(w, "s", "p");
    begin_arguments(w);
    finish(w);
}

static void refusal(writer *w, size_t number)
{
    const cmi_picture_event *event = &w->p->events[number];
    begin(w, "i", "refused", number);
    put_text(w, "s", "p");
    begin_arguments(w);
    put_natural(w, "bytes", event->bytes);
    if (event->address != CMI_UNKNOWN)
        put_natural(w, "device free bytes", event->address);
    finish(w);
}

static uint64_t held(const cmi_picture_life *life) { return (life->bytes + LIVE_UNIT - 1) / LIVE_UNIT * LIVE_UNIT; }

/* The end of a life at an event: of its use, or of the work on it. */
static void end_life(writer *w, size_t number, const cmi_picture_life *life)
{
    if (life->free_event == number) {
        w->live -= held(life);
        w->pending += held(life);
        memory(w, number, life, true);
    }
    if (life->done_event == number)
        w->pending -= held(life);
}

static void block_event(writer *w, size_t number, const cmi_picture_life *life)
{
    if (life->alloc_event == number) {
        if (life->replaces != CMI_NONE)
            end_life(w, number, &w->lives.lives[life->replaces]);
        w->live += held(life);
        memory(w, number, life, false);
    } else
        end_life(w, number, life);
    counters(w, number);
}

static void event(writer *w, size_t number)
{
    const cmi_picture_event *v = &w->p->events[number];
    const uint32_t life = w->lives.of_event[number];
    switch ((cmi_event_kind)v->kind) {
    case CMI_EVENT_ALLOC:
    case CMI_EVENT_FREE_REQUESTED:
    case CMI_EVENT_FREE_COMPLETED:
        if (life != CMI_NONE)
            block_event(w, number, &w->lives.lives[life]);
        break;
    case CMI_EVENT_SEGMENT_ALLOC:
    case CMI_EVENT_SEGMENT_MAP:
        w->reserved += w->reserved != CMI_UNKNOWN ? v->bytes : 0;
        counters(w, number);
        break;
    case CMI_EVENT_SEGMENT_FREE:
    case CMI_EVENT_SEGMENT_UNMAP:
        w->reserved -= w->reserved != CMI_UNKNOWN ? v->bytes : 0;
        counters(w, number);
        break;
    case CMI_EVENT_REFUSED:
        refusal(w, number);
        break;
    case CMI_EVENT_RANGE_BEGIN:
    case CMI_EVENT_RANGE_END:
        mark(w, v->kind == CMI_EVENT_RANGE_BEGIN ? "B" : "E", w->p->strings[v->tag], number);
        break;
    case CMI_EVENT_STEP:
        mark(w, "i", "step", number);
        break;
    case CMI_EVENT_PHASE:
        mark(w, "i", w->p->strings[v->tag], number);
        break;
    case CMI_EVENT_MOVE:
    case CMI_EVENT_WAIT_DEVICE:
    case CMI_EVENT_WAIT_HOST:
        mark(w, "i", cmi_event_kind_name((cmi_event_kind)v->kind), number);
        break;
    default:
        break;
    }
}

static void device(writer *w)
{
    char name[32];
    snprintf(name, sizeof name, "GPU %u", (unsigned)w->p->devices[w->device].ordinal);
    begin(w, "M", "process_name", 0);
    begin_arguments(w);
    put_text(w, "name", name);
    finish(w);
    w->live = w->lives.run.first_live_bytes;
    w->pending = 0;
    w->reserved = w->lives.run.first_reserved_bytes;
    counters(w, 0);
    for (size_t i = 0; i < w->p->event_count; i++)
        if (w->p->events[i].device == w->device)
            event(w, i);
}

int cmi_write_perfetto(const cmi_picture *picture, cmi_write *write, void *user)
{
    cmi_emitter *e = malloc(sizeof *e);
    writer w = {.e = e, .p = picture};
    bool room = e != NULL;
    if (!room)
        return -1;
    cmi_emit_begin(e, true, 0, write, user);
    cmi_emit_open(e, false);
    put_text(&w, "displayTimeUnit", "ns");
    cmi_emit_key(e, "traceEvents");
    cmi_emit_open(e, true);
    for (w.device = 0; room && w.device < picture->device_count; w.device++) {
        room = cmi_picture_match(picture, w.device, &w.lives) == 0;
        if (room)
            device(&w);
        cmi_picture_lives_free(&w.lives);
    }
    cmi_emit_close(e);
    cmi_emit_close(e);
    int result = cmi_emit_end(e);
    free(e);
    return room ? result : -1;
}
