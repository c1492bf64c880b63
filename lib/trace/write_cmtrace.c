/* A trace as cmtrace-1. No state. Called by tools. */
#include "trace/convert.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    cmi_write *write;
    void *user;
    bool failed;
    size_t used;
    char buffer[1 << 14];
} text;

static void flush(text *t)
{
    if (!t->failed && t->used > 0 && t->write(t->user, t->buffer, t->used) != 0)
        t->failed = true;
    t->used = 0;
}

/* A line that is sure to be short. */
static void line(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(text *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int used = vsnprintf(t->buffer + t->used, sizeof t->buffer - t->used, format, list);
    va_end(list);
    t->used += used > 0 ? (size_t)used : 0;
    if (t->used > sizeof t->buffer / 2)
        flush(t);
}

/* Phases and headers are words and lines: whatever would end one becomes '_' or a blank. */
static void one_line(text *t, const char *before, const char *name, char blank)
{
    char kept[256];
    size_t i = 0;
    for (; name[i] != '\0' && i < sizeof kept - 1; i++)
        kept[i] = (unsigned char)name[i] > ' ' ? name[i] : blank;
    kept[i] = '\0';
    line(t, "%s%s\n", before, kept);
}

static void write_event(text *t, const cmi_trace *trace, const cmi_trace_event *event)
{
    const cmi_trace_block *block = &trace->blocks[event->subject]; /* where it is one */
    const uint64_t stream = event->kind <= CMI_TRACE_USE ? trace->streams[event->stream] : 0;
    switch ((cmi_trace_kind)event->kind) {
    case CMI_TRACE_ALLOC:
        line(t, "a %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", block->id, block->bytes, stream);
        break;
    case CMI_TRACE_FREE:
    case CMI_TRACE_USE:
        line(t, "%c %" PRIu64 " %" PRIu64 "\n", event->kind == CMI_TRACE_FREE ? 'f' : 'u', block->id, stream);
        break;
    case CMI_TRACE_PHASE:
        one_line(t, "p ", trace->phases[event->subject], '_');
        break;
    case CMI_TRACE_STEP:
        line(t, "s %u\n", (unsigned)event->subject);
        break;
    }
}

int cmi_write_cmtrace(const cmi_trace *trace, cmi_write *write, void *user)
{
    text t = {.write = write, .user = user};
    line(&t, "# format cmtrace-1\n");
    for (size_t i = 0; i < trace->header_count; i++) {
        char key[128];
        if (strcmp(trace->headers[i].key, "format") == 0)
            continue;
        snprintf(key, sizeof key, "# %s ", trace->headers[i].key);
        one_line(&t, key, trace->headers[i].value, ' ');
    }
    for (size_t i = 0; i < trace->event_count; i++)
        write_event(&t, trace, &trace->events[i]);
    flush(&t);
    return t.failed ? -1 : 0;
}
