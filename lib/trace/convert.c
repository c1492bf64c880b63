/*
 * Pictures into traces and traces into pictures, and a made-up state for pictures that have a history only. No locks; everything belongs
 * to the call. Called by read.c and by tools.
 */
#include "trace/convert.h"
#include "trace/build.h"
#include <stdlib.h>
#include <string.h>

static uint64_t rounded(uint64_t bytes) { return (bytes + CMI_TRACE_BLOCK_UNIT - 1) / CMI_TRACE_BLOCK_UNIT * CMI_TRACE_BLOCK_UNIT; }

uint32_t cmi_picture_busiest_device(const cmi_picture *p)
{
    uint32_t best = CMI_NONE;
    uint64_t best_events = 0, best_bytes = 0;
    for (uint32_t device = 0; device < p->device_count; device++) {
        cmi_picture_totals totals;
        uint64_t events = 0;
        for (size_t i = 0; i < p->event_count; i++)
            events += p->events[i].device == device && p->events[i].kind <= CMI_EVENT_USE;
        cmi_picture_total(p, device, &totals);
        if (best == CMI_NONE || events > best_events || (events == best_events && totals.live_bytes > best_bytes)) {
            best = device;
            best_events = events;
            best_bytes = totals.live_bytes;
        }
    }
    return best;
}

/* ---- picture to trace
 * -------------------------------------------------------------------------------------------------------------------- */

typedef struct maker {
    cmi_reader *reader;
    const cmi_picture *p;
    const cmi_picture_lives *lives;
    cmi_trace *trace;
    uint32_t *block_of;  /* by life: its block, CMI_NONE */
    uint32_t *stream_of; /* by the picture's stream: the trace's, CMI_NONE */
} maker;

static int add_event(maker *m, cmi_trace_kind kind, uint32_t subject, uint16_t stream)
{
    cmi_trace *t = m->trace;
    if (cmi_reader_grow(m->reader, &t->events, t->event_count, sizeof *t->events) != 0)
        return -1;
    t->events[t->event_count++] = (cmi_trace_event){subject, m->reader->line, stream, (uint8_t)kind};
    t->call_count += kind == CMI_TRACE_ALLOC || kind == CMI_TRACE_FREE || kind == CMI_TRACE_USE;
    return 0;
}

static int number_stream(maker *m, uint16_t stream, uint16_t *number)
{
    cmi_trace *t = m->trace;
    if (m->stream_of[stream] == CMI_NONE) {
        if (cmi_reader_grow(m->reader, &t->streams, t->stream_count, sizeof *t->streams) != 0)
            return -1;
        m->stream_of[stream] = (uint32_t)t->stream_count;
        t->streams[t->stream_count++] = m->p->streams[stream].value;
    }
    *number = (uint16_t)m->stream_of[stream];
    return 0;
}

static int begin_life(maker *m, uint32_t number)
{
    const cmi_picture_life *life = &m->lives->lives[number];
    cmi_trace *t = m->trace;
    cmi_trace_block block = {.id = (uint64_t)number + 1, .bytes = life->bytes, .alloc_line = m->reader->line};
    if (life->bytes == 0)
        return 0;
    if (life->bytes > CMI_TRACE_LARGEST_BLOCK)
        return cmi_reader_fault(m->reader, "a block of %llu bytes is beyond 2^47", (unsigned long long)life->bytes);
    if (number_stream(m, life->stream, &block.stream) != 0 ||
        cmi_reader_grow(m->reader, &t->blocks, t->block_count, sizeof *t->blocks) != 0)
        return -1;
    m->block_of[number] = (uint32_t)t->block_count;
    t->blocks[t->block_count++] = block;
    t->end_live_bytes += rounded(block.bytes);
    if (t->end_live_bytes > UINT64_MAX / 4)
        return cmi_reader_fault(m->reader, "more than 2^62 bytes live at once");
    if (t->end_live_bytes > t->peak_live_bytes)
        t->peak_live_bytes = t->end_live_bytes;
    return add_event(m, CMI_TRACE_ALLOC, m->block_of[number], block.stream);
}

static int end_life(maker *m, uint32_t number)
{
    cmi_trace_block *block = m->block_of[number] != CMI_NONE ? &m->trace->blocks[m->block_of[number]] : NULL;
    if (block == NULL || block->free_line != 0)
        return 0;
    block->free_line = m->reader->line;
    m->trace->end_live_bytes -= rounded(block->bytes);
    return add_event(m, CMI_TRACE_FREE, m->block_of[number], block->stream);
}

static int use_life(maker *m, uint32_t number, const cmi_picture_event *event)
{
    uint16_t stream;
    const cmi_trace_block *block = m->block_of[number] != CMI_NONE ? &m->trace->blocks[m->block_of[number]] : NULL;
    if (block == NULL || block->free_line != 0)
        return 0;
    return number_stream(m, event->stream, &stream) != 0 ? -1 : add_event(m, CMI_TRACE_USE, m->block_of[number], stream);
}

static int name_phase(maker *m, cmi_string_id name)
{
    cmi_trace *t = m->trace;
    const char *text = name != 0 ? m->p->strings[name] : "phase";
    size_t i = 0;
    while (i < t->phase_count && strcmp(t->phases[i], text) != 0)
        i++;
    if (i == t->phase_count) {
        if (i >= UINT16_MAX)
            return cmi_reader_fault(m->reader, "more than %d phases", UINT16_MAX);
        if (cmi_reader_grow(m->reader, &t->phases, i, sizeof *t->phases) != 0)
            return -1;
        t->phases[i] = strdup(text);
        if (t->phases[i] == NULL)
            return cmi_reader_fault(m->reader, "no host memory for the trace");
        t->phase_count++;
    }
    return add_event(m, CMI_TRACE_PHASE, (uint32_t)i, 0);
}

static int make_event(maker *m, uint32_t number)
{
    const cmi_picture_event *event = &m->p->events[number];
    const uint32_t life = m->lives->of_event[number];
    switch ((cmi_event_kind)event->kind) {
    case CMI_EVENT_ALLOC:
        if (life == CMI_NONE)
            return 0;
        if (m->lives->lives[life].replaces != CMI_NONE && end_life(m, m->lives->lives[life].replaces) != 0)
            return -1;
        return begin_life(m, life);
    case CMI_EVENT_FREE_REQUESTED:
    case CMI_EVENT_FREE_COMPLETED:
        return life == CMI_NONE ? 0 : end_life(m, life);
    case CMI_EVENT_USE:
        return life == CMI_NONE ? 0 : use_life(m, life, event);
    case CMI_EVENT_STEP:
        m->trace->step_count++;
        return add_event(m, CMI_TRACE_STEP, (uint32_t)event->bytes, 0);
    case CMI_EVENT_PHASE:
        return name_phase(m, event->tag);
    default:
        return 0;
    }
}

static int make_events(maker *m, uint32_t device)
{
    m->reader->line = 1;
    for (uint32_t i = 0; i < m->lives->count && m->lives->lives[i].alloc_event == CMI_NONE; i++)
        if (begin_life(m, i) != 0)
            return -1;
    for (uint32_t i = 0; i < m->p->event_count; i++) {
        m->reader->line = i + 1;
        if (m->p->events[i].device == device && make_event(m, i) != 0)
            return -1;
    }
    m->reader->line = 1;
    if (m->trace->block_count == 0)
        return cmi_reader_fault(m->reader, "the file holds no allocation");
    return 0;
}

int cmi_trace_of_picture(cmi_reader *reader, const cmi_picture *picture, uint32_t device, cmi_trace *trace)
{
    cmi_picture_lives lives = {0};
    maker m = {.reader = reader, .p = picture, .lives = &lives, .trace = trace};
    int result = -1;
    reader->binary = false;
    reader->line = 1;
    if (device == CMI_NONE)
        return cmi_reader_fault(reader, "the file holds no allocation");
    bool room = cmi_picture_match(picture, device, &lives) == 0;
    m.block_of = room ? malloc((lives.count + 1) * sizeof *m.block_of) : NULL;
    m.stream_of = malloc((picture->stream_count + 1) * sizeof *m.stream_of);
    if (m.block_of == NULL || m.stream_of == NULL)
        cmi_reader_fault(reader, "no host memory for the trace");
    else {
        memset(m.block_of, 0xff, (lives.count + 1) * sizeof *m.block_of);
        memset(m.stream_of, 0xff, (picture->stream_count + 1) * sizeof *m.stream_of);
        trace->format = picture->format;
        trace->recorded = (cmi_trace_recorded){.known = lives.run.peak_reserved_bytes != CMI_UNKNOWN,
                                               .peak_reserved_bytes = lives.run.peak_reserved_bytes,
                                               .stranded_bytes = lives.run.stranded_bytes,
                                               .device = picture->devices[device].ordinal,
                                               .devices = (uint32_t)picture->device_count};
        result = make_events(&m, device);
    }
    free(m.block_of);
    free(m.stream_of);
    cmi_picture_lives_free(&lives);
    return result;
}

int cmi_trace_from_picture(const char *name, const cmi_picture *picture, uint32_t device, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    cmi_reader reader = {.name = name, .fault = fault, .fault_bytes = fault_bytes};
    memset(trace, 0, sizeof *trace);
    int result = cmi_trace_of_picture(&reader, picture, device, trace);
    if (result != 0)
        cmi_trace_free(trace);
    return result;
}

/* ---- trace to picture
 * -------------------------------------------------------------------------------------------------------------------- */

/* A trace has no addresses: blocks get some, each that of the last freed block of its size, or a new one. */
typedef struct places {
    cmi_index sizes; /* rounded size to class */
    uint32_t *last;  /* by class: the block freed last, CMI_NONE */
    uint64_t *size;  /* by class */
    size_t class_count;
    uint32_t *next;    /* by block: the one freed before it in its class */
    uint64_t *address; /* by block */
    uint64_t top;
} places;

/* The class of a size; CMI_NONE without host memory. */
static uint32_t class_of(places *s, uint64_t bytes)
{
    uint32_t hash = cmi_index_hash(&bytes, sizeof bytes), number;
    size_t at = SIZE_MAX;
    if (!cmi_index_reserve(&s->sizes))
        return CMI_NONE;
    while ((number = cmi_index_next(&s->sizes, hash, &at)) != CMI_NONE)
        if (s->size[number] == bytes)
            return number;
    if (!cmi_grow(&s->last, s->class_count, sizeof *s->last) || !cmi_grow(&s->size, s->class_count, sizeof *s->size))
        return CMI_NONE;
    number = (uint32_t)s->class_count++;
    s->last[number] = CMI_NONE;
    s->size[number] = bytes;
    cmi_index_put(&s->sizes, at, hash, number);
    return number;
}

static bool place_block(places *s, const cmi_trace *t, uint32_t block, bool free_it)
{
    uint64_t bytes = rounded(t->blocks[block].bytes);
    uint32_t class = class_of(s, bytes);
    if (class == CMI_NONE)
        return false;
    if (free_it) {
        s->next[block] = s->last[class];
        s->last[class] = block;
    } else if (s->last[class] != CMI_NONE) {
        s->address[block] = s->address[s->last[class]];
        s->last[class] = s->next[s->last[class]];
    } else {
        s->address[block] = s->top;
        s->top += bytes;
    }
    return true;
}

static int picture_event(cmi_builder *b, places *s, const cmi_trace *t, const cmi_trace_event *from)
{
    static const uint8_t kind[] = {[CMI_TRACE_ALLOC] = CMI_EVENT_ALLOC,
                                   [CMI_TRACE_FREE] = CMI_EVENT_FREE_REQUESTED,
                                   [CMI_TRACE_USE] = CMI_EVENT_USE,
                                   [CMI_TRACE_PHASE] = CMI_EVENT_PHASE,
                                   [CMI_TRACE_STEP] = CMI_EVENT_STEP};
    cmi_picture_event event = {.bytes = from->subject, .kind = kind[from->kind]};
    if (from->kind == CMI_TRACE_PHASE) {
        event.bytes = 0;
        if (cmi_build_string(b, t->phases[from->subject], strlen(t->phases[from->subject]), &event.tag) != 0)
            return -1;
    } else if (from->kind != CMI_TRACE_STEP) {
        if (from->kind != CMI_TRACE_USE && !place_block(s, t, from->subject, from->kind == CMI_TRACE_FREE))
            return cmi_reader_fault(b->reader, "no host memory for what it holds");
        event.address = s->address[from->subject];
        event.bytes = t->blocks[from->subject].bytes;
        if (cmi_build_stream(b, t->streams[from->stream], &event.stream) != 0)
            return -1;
    }
    if (cmi_build_event(b, &event) != 0)
        return -1;
    event.kind = CMI_EVENT_FREE_COMPLETED;
    return from->kind == CMI_TRACE_FREE ? cmi_build_event(b, &event) : 0;
}

int cmi_picture_of_trace(cmi_reader *reader, const cmi_trace *trace, cmi_picture *picture)
{
    cmi_builder b;
    places s = {.top = UINT64_C(1) << 40};
    int result = cmi_build_begin(&b, reader, picture);
    picture->format = trace->format;
    s.next = malloc(trace->block_count * sizeof *s.next);
    s.address = malloc(trace->block_count * sizeof *s.address);
    if (result == 0 && (s.next == NULL || s.address == NULL))
        result = cmi_reader_fault(reader, "no host memory for what it holds");
    for (size_t i = 0; result == 0 && i < trace->event_count; i++)
        result = picture_event(&b, &s, trace, &trace->events[i]);
    picture->has_history = true;
    if (result == 0)
        result = cmi_build_finish(&b);
    free(s.sizes.slots);
    free(s.last);
    free(s.size);
    free(s.next);
    free(s.address);
    cmi_build_end(&b);
    return result;
}

/* ---- a state that is made up
 * -------------------------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const cmi_picture_life *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Segments are where the device's blocks ever were; what is live at the end lies in them. Orders the lives anew. */
static bool add_state(cmi_picture *p, uint32_t device, cmi_picture_lives *lives)
{
    cmi_picture_segment *segment = NULL;
    if (lives->count > 1)
        qsort(lives->lives, lives->count, sizeof *lives->lives, by_address);
    for (size_t i = 0; i < lives->count; i++) {
        const cmi_picture_life *life = &lives->lives[i];
        uint64_t bytes = rounded(life->bytes);
        if (bytes == 0 || bytes > CMI_TRACE_LARGEST_BLOCK || bytes > UINT64_MAX - life->address)
            continue;
        if (segment == NULL || life->address > segment->address + segment->bytes) {
            if (!cmi_grow(&p->segments, p->segment_count, sizeof *p->segments))
                return false;
            segment = &p->segments[p->segment_count++];
            *segment = (cmi_picture_segment){
                .address = life->address, .first_block = (uint32_t)p->block_count, .device = device, .stream = life->stream};
        }
        if (life->address + bytes > segment->address + segment->bytes)
            segment->bytes = life->address + bytes - segment->address;
        const cmi_picture_block *last = segment->block_count > 0 ? &p->blocks[p->block_count - 1] : NULL;
        if (life->free_event != CMI_NONE || (last != NULL && last->address + last->bytes > life->address))
            continue; /* freed, or the file has two blocks in one place */
        if (!cmi_grow(&p->blocks, p->block_count, sizeof *p->blocks))
            return false;
        p->blocks[p->block_count++] = (cmi_picture_block){.address = life->address,
                                                          .bytes = bytes,
                                                          .requested_bytes = life->bytes,
                                                          .stack = life->stack,
                                                          .tag = life->tag,
                                                          .stream = life->stream,
                                                          .state = CMI_BLOCK_LIVE};
        segment->block_count++;
    }
    return true;
}

int cmi_picture_make_state(cmi_picture *p)
{
    bool room = true;
    for (uint32_t device = 0; room && device < p->device_count; device++) {
        cmi_picture_lives lives;
        room = cmi_picture_match(p, device, &lives) == 0 && add_state(p, device, &lives);
        cmi_picture_lives_free(&lives);
    }
    char fault[64]; /* nothing but the lack of host memory: what is made up fits */
    cmi_reader reader = {.name = "", .fault = fault, .fault_bytes = sizeof fault};
    cmi_builder builder = {.reader = &reader, .picture = p};
    return room ? cmi_build_segments(&builder) : -1;
}
