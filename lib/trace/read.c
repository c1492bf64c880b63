/*
 * The reader's door: opens a source, tells the format by what the first bytes say, hands lines to its parser and makes fault lines.
 * Owns the text window. No locks; everything belongs to the call. Called by tools, benchmarks and tests.
 */
#include "trace/build.h"
#include "trace/convert.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1 << 17, LONGEST_LINE = 1 << 16 };

int cmi_reader_fault(cmi_reader *reader, const char *format, ...)
{
    va_list list;
    int used = snprintf(reader->fault, reader->fault_bytes, "%s:%u: ", reader->name, (unsigned)reader->line);
    if (reader->binary && used >= 0 && (size_t)used < reader->fault_bytes)
        used += snprintf(reader->fault + used, reader->fault_bytes - (size_t)used,
                         "byte %llu: ", (unsigned long long)(reader->taken + reader->next));
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
    r->taken += r->next;
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

int cmi_reader_fill(cmi_reader *r, size_t bytes)
{
    if (!r->ended && fill_window(r) != 0)
        return -1;
    return r->end - r->next >= bytes;
}

int cmi_reader_grow(cmi_reader *reader, void *array, size_t count, size_t item_bytes)
{
    return cmi_grow(array, count, item_bytes) ? 0 : cmi_reader_fault(reader, "no host memory for the trace");
}

typedef enum format { CMTRACE, PICKLE, JSON, RMM, UNKNOWN } format;

static bool has(const cmi_reader *r, const char *word)
{
    size_t bytes = r->end - r->next < 4096 ? r->end - r->next : 4096;
    return memmem(r->text + r->next, bytes, word, strlen(word)) != NULL;
}

/* What a file is, by its first bytes; for UNKNOWN the fault is set. */
static format recognise(cmi_reader *r)
{
    const unsigned char *text = (const unsigned char *)r->text;
    size_t line = 0, blank = 0;
    while (blank < r->end && (text[blank] == ' ' || text[blank] == '\t' || text[blank] == '\r' || text[blank] == '\n'))
        blank++;
    while (line < r->end && text[line] != '\n')
        line++;
    if (text[0] == 0x80 && r->end >= 2)
        return PICKLE;
    if (blank < r->end && (text[blank] == '{' || text[blank] == '['))
        return JSON;
    if (memmem(text, line, "Thread,Time,Action", 18) != NULL || memmem(text, line, "Event Type,", 11) != NULL ||
        memmem(text, line, ",allocate", 9) != NULL || memmem(text, line, ",free,", 6) != NULL)
        return RMM;
    r->line = 1;
    if (r->end >= 4 && memcmp(text, "PK\3\4", 4) == 0)
        cmi_reader_fault(r, "a zip archive (torch.save?); a memory snapshot is the pickle alone");
    else if (has(r, "(dp0") || has(r, "(lp0"))
        cmi_reader_fault(r, "a pickle of protocol 0 or 1, which no memory snapshot is");
    else if (memchr(text, '\0', r->end < 4096 ? r->end : 4096) != NULL)
        cmi_reader_fault(r, "binary data of no format that is known");
    else {
        r->line = 0;
        return CMTRACE;
    }
    return UNKNOWN;
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

/* A picture or a trace is asked for; the other is NULL. */
static int parse_cmtrace(cmi_reader *r, cmi_picture *picture, cmi_trace *trace)
{
    cmi_trace own = {0};
    r->trace = trace != NULL ? trace : &own;
    r->trace->format = cmi_source_is_gzip(r->source) ? "cmtrace.gz" : "cmtrace";
    int result = cmi_cmtrace_parse(r);
    if (result == 0 && picture != NULL)
        result = cmi_picture_of_trace(r, &own, picture);
    cmi_trace_free(&own);
    return result;
}

static int parse_picture(cmi_reader *r, format which, cmi_picture *picture)
{
    cmi_builder builder;
    int result = cmi_build_begin(&builder, r, picture);
    r->binary = which == PICKLE; /* one line, whose bytes are named */
    r->line = r->binary;
    picture->format = which == PICKLE ? "pytorch" : which == JSON ? "memory_viz-json" : "rmm-csv";
    if (result == 0)
        result = which == PICKLE ? cmi_pickle_parse(r, &builder) : which == JSON ? cmi_json_parse(r, &builder) : cmi_rmm_parse(r, &builder);
    cmi_build_end(&builder);
    return result;
}

static int parse_foreign(cmi_reader *r, format which, cmi_picture *picture, cmi_trace *trace)
{
    cmi_picture own = {0};
    int result = parse_picture(r, which, picture != NULL ? picture : &own);
    if (result == 0 && trace != NULL)
        result = cmi_trace_of_picture(r, &own, cmi_picture_busiest_device(&own), trace);
    cmi_picture_free(&own);
    return result;
}

static int read_source(const char *name, cmi_source *source, cmi_picture *picture, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    cmi_reader r = {.name = name, .source = source, .fault = fault, .fault_bytes = fault_bytes};
    const char *reason = NULL;
    format which;
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
    which = recognise(&r);
    if (which != UNKNOWN)
        result = which == CMTRACE ? parse_cmtrace(&r, picture, trace) : parse_foreign(&r, which, picture, trace);
    if (result != 0 && damaged(&r, &reason))
        cmi_reader_fault(&r, "%s", reason);
done:
    free(r.text);
    return result;
}

static int read_opened(const char *name, cmi_source *source, const char *reason, cmi_picture *picture, cmi_trace *trace, char *fault,
                       size_t fault_bytes)
{
    if (picture != NULL)
        memset(picture, 0, sizeof *picture);
    if (trace != NULL)
        memset(trace, 0, sizeof *trace);
    if (source == NULL) {
        snprintf(fault, fault_bytes, "%s:0: %s", name, reason);
        return -1;
    }
    int result = read_source(name, source, picture, trace, fault, fault_bytes);
    cmi_source_close(source);
    if (result != 0 && picture != NULL)
        cmi_picture_free(picture);
    if (result != 0 && trace != NULL)
        cmi_trace_free(trace);
    return result;
}

int cmi_trace_read(const char *path, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open(path, &reason);
    return read_opened(path, source, reason, NULL, trace, fault, fault_bytes);
}

int cmi_trace_read_memory(const char *name, const void *data, size_t bytes, cmi_trace *trace, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open_memory(data, bytes, &reason);
    return read_opened(name, source, reason, NULL, trace, fault, fault_bytes);
}

int cmi_picture_read(const char *path, cmi_picture *picture, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open(path, &reason);
    return read_opened(path, source, reason, picture, NULL, fault, fault_bytes);
}

int cmi_picture_read_memory(const char *name, const void *data, size_t bytes, cmi_picture *picture, char *fault, size_t fault_bytes)
{
    const char *reason = NULL;
    cmi_source *source = cmi_source_open_memory(data, bytes, &reason);
    return read_opened(name, source, reason, picture, NULL, fault, fault_bytes);
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
