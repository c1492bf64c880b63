/*
 * The reader's door: opens a source, tells the format by what the first bytes say, hands lines to its parser and makes fault lines.
 * Owns the text window. No locks; everything belongs to the call. Called by tools, benchmarks and tests.
 */
#include "trace/read.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1 << 17, LONGEST_LINE = 1 << 16 };

int cmi_reader_fault(cmi_reader *reader, const char *format, ...)
{
    va_list list;
    int used = snprintf(reader->fault, reader->fault_bytes, "%s:%u: ", reader->name, (unsigned)reader->line);
    if (used >= 0 && (size_t)used < reader->fault_bytes) {
        va_start(list, format);
        vsnprintf(reader->fault + used, reader->fault_bytes - (size_t)used, format, list);
        va_end(list);
    }
    return -1;
}

/* Move what is left to the front and fill the window behind it. */
static int fill_window(cmi_reader *r)
{
    memmove(r->text, r->text + r->next, r->end - r->next);
    r->end -= r->next;
    r->next = 0;
    while (!r->ended && r->end < WINDOW) {
        const char *reason = NULL;
        ssize_t got = cmi_source_read(r->source, r->text + r->end, WINDOW - r->end, &reason);
        if (got < 0) {
            for (size_t i = 0; i < r->end; i++)
                r->line += r->text[i] == '\n';
            r->line++;
            return cmi_reader_fault(r, "%s", reason);
        }
        r->ended = got == 0;
        r->end += (size_t)got;
    }
    return 0;
}

int cmi_reader_line(cmi_reader *r, const char **begin, const char **end)
{
    const char *newline = r->next < r->end ? memchr(r->text + r->next, '\n', r->end - r->next) : NULL;
    if (newline == NULL && !r->ended) {
        if (fill_window(r) != 0)
            return -1;
        newline = r->next < r->end ? memchr(r->text + r->next, '\n', r->end - r->next) : NULL;
    }
    if (r->next == r->end)
        return 0;
    *begin = r->text + r->next;
    *end = newline != NULL ? newline : r->text + r->end;
    r->next = (size_t)(*end - r->text) + (newline != NULL);
    if (r->line == UINT32_MAX)
        return cmi_reader_fault(r, "more lines than this reader counts");
    r->line++;
    if (*end - *begin > LONGEST_LINE)
        return cmi_reader_fault(r, "a line longer than %d bytes", LONGEST_LINE);
    return 1;
}

int cmi_reader_grow(cmi_reader *reader, void *array, size_t count, size_t item_bytes)
{
    if (count != 0 && (count & (count - 1)) != 0) /* room is always the next power of two */
        return 0;
    void *old, *larger;
    memcpy(&old, array, sizeof old);
    larger = realloc(old, (count == 0 ? 1 : 2 * count) * item_bytes);
    if (larger == NULL)
        return cmi_reader_fault(reader, "no host memory for the trace");
    memcpy(array, &larger, sizeof larger);
    return 0;
}

/* What a file is that this reader does not take, by its first bytes; NULL when it may be a cmtrace. */
static const char *foreign_format(const char *text, size_t bytes)
{
    static const char rmm[] = "Thread,Time,Action,";
    if (bytes >= 2 && (unsigned char)text[0] == 0x80 && text[1] >= 2 && text[1] <= 5)
        return "a pickle (PyTorch memory snapshot?); this version reads cmtrace files only";
    if (bytes >= sizeof rmm - 1 && memcmp(text, rmm, sizeof rmm - 1) == 0)
        return "an RMM log; this version reads cmtrace files only";
    if (memchr(text, '\0', bytes < 4096 ? bytes : 4096) != NULL)
        return "binary data, not a cmtrace file";
    return NULL;
}

/* After a fault in the text: was it the gzip data that made nonsense of it? Their checksum comes last. */
static bool damaged(cmi_reader *r, const char **reason)
{
    ssize_t got = 0;
    if (!cmi_source_is_gzip(r->source))
        return false;
    do
        got = cmi_source_read(r->source, r->text, WINDOW, reason);
    while (got > 0);
    return got < 0;
}

static int read_source(const char *name, cmi_source *source, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    cmi_reader r = {.name = name, .source = source, .trace = trace, .fault = fault, .fault_bytes = fault_bytes};
    const char *foreign, *reason = NULL;
    int result = -1;
    r.text = malloc(WINDOW);
    if (r.text == NULL) {
        cmi_reader_fault(&r, "no host memory for the trace");
        return -1;
    }
    if (fill_window(&r) != 0)
        goto done;
    if (r.end == 0) {
        r.line = 1;
        cmi_reader_fault(&r, "the file is empty");
        goto done;
    }
    foreign = foreign_format(r.text, r.end);
    if (foreign != NULL) {
        r.line = 1;
        cmi_reader_fault(&r, "%s", foreign);
        goto done;
    }
    trace->format = cmi_source_is_gzip(source) ? "cmtrace.gz" : "cmtrace";
    result = cmi_cmtrace_parse(&r);
    if (result != 0 && damaged(&r, &reason))
        cmi_reader_fault(&r, "%s", reason);
done:
    free(r.text);
    if (result != 0)
        cmi_trace_free(trace);
    return result;
}

static int read_opened(const char *name, cmi_source *source, const char *reason, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    memset(trace, 0, sizeof *trace);
    if (source == NULL) {
        snprintf(fault, fault_bytes, "%s:0: %s", name, reason);
        return -1;
    }
    int result = read_source(name, source, trace, fault, fault_bytes);
    cmi_source_close(source);
    return result;
}

int cmi_trace_read(const char *path, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open(path, &reason);
    return read_opened(path, source, reason, trace, fault, fault_bytes);
}

int cmi_trace_read_memory(const char *name, const void *data, size_t bytes, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open_memory(data, bytes, &reason);
    return read_opened(name, source, reason, trace, fault, fault_bytes);
}

void cmi_trace_free(cmi_trace *trace)
{
    for (size_t i = 0; i < trace->phase_count; i++)
        free(trace->phases[i]);
    for (size_t i = 0; i < trace->header_count; i++)
        free(trace->headers[i].key); /* the value is in the same piece */
    free(trace->phases);
    free(trace->headers);
    free(trace->events);
    free(trace->blocks);
    free(trace->streams);
    memset(trace, 0, sizeof *trace);
}
