/*
 * The cmtrace-1 parser: strict, in one pass, one fault line for the first thing wrong. Owns the index from ids to blocks while it
 * reads. No locks; everything belongs to the call. Called by read.c.
 */
#include "trace/read.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = UINT16_MAX, FIRST_INDEX_ROOM = 1 << 10 };

typedef struct parser {
    cmi_reader *reader;
    cmi_trace *trace;
    const char *at, *end; /* rest of the line */
    uint32_t *index;      /* open addressing: block number + 1 by id, 0 is empty */
    unsigned index_bits;
    size_t last_stream; /* most lines name the same stream as the one before */
} parser;

/* ---- fields --------------------------------------------------------------------------------------------------------------- */

static void skip_blanks(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t'))
        p->at++;
}

static size_t word_length(const parser *p)
{
    const char *q = p->at;
    while (q < p->end && *q != ' ' && *q != '\t')
        q++;
    return (size_t)(q - p->at);
}

/* For messages: a word cut to a sensible length, with anything unprintable as '?'. */
static const char *shown(const char *word, size_t length, char out[48])
{
    size_t kept = length < 40 ? length : 40;
    for (size_t i = 0; i < kept; i++)
        out[i] = word[i] >= ' ' && word[i] <= '~' ? word[i] : '?';
    strcpy(out + kept, length > kept ? "..." : "");
    return out;
}

static int number(parser *p, const char *what, uint64_t *value)
{
    char text[48];
    skip_blanks(p);
    size_t length = word_length(p);
    if (length == 0)
        return cmi_reader_fault(p->reader, "the %s is missing", what);
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)(unsigned char)p->at[i] - '0';
        if (digit > 9)
            return cmi_reader_fault(p->reader, "the %s '%s' is not a number", what, shown(p->at, length, text));
        if (__builtin_mul_overflow(sum, (uint64_t)10, &sum) || __builtin_add_overflow(sum, (uint64_t)digit, &sum))
            return cmi_reader_fault(p->reader, "the %s '%s' is beyond 2^64", what, shown(p->at, length, text));
    }
    p->at += length;
    *value = sum;
    return 0;
}

static int end_of_line(parser *p)
{
    char text[48];
    skip_blanks(p);
    if (p->at == p->end)
        return 0;
    return cmi_reader_fault(p->reader, "'%s' after the end of the item", shown(p->at, (size_t)(p->end - p->at), text));
}

static int stream_field(parser *p, uint16_t *stream)
{
    uint64_t value;
    cmi_trace *t = p->trace;
    if (number(p, "stream", &value) != 0)
        return -1;
    size_t i = p->last_stream;
    if (i >= t->stream_count || t->streams[i] != value)
        for (i = 0; i < t->stream_count && t->streams[i] != value; i++)
            ;
    if (i == t->stream_count) {
        if (i == MOST_STREAMS)
            return cmi_reader_fault(p->reader, "more than %d streams", MOST_STREAMS);
        if (cmi_reader_grow(p->reader, &t->streams, i, sizeof *t->streams) != 0)
            return -1;
        t->streams[t->stream_count++] = value;
    }
    p->last_stream = i;
    *stream = (uint16_t)i;
    return 0;
}

/* ---- blocks by id ----------------------------------------------------------------------------------------------------------- */

/* The index entry that holds id, or the empty one where it belongs. */
static uint32_t *find(const parser *p, uint64_t id)
{
    size_t mask = ((size_t)1 << p->index_bits) - 1;
    size_t i = (size_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> (64 - p->index_bits));
    while (p->index[i] != 0 && p->trace->blocks[p->index[i] - 1].id != id)
        i = (i + 1) & mask;
    return &p->index[i];
}

static int grow_index(parser *p)
{
    size_t room = (size_t)1 << p->index_bits;
    if (p->trace->block_count < room / 2)
        return 0;
    uint32_t *larger = calloc(2 * room, sizeof *larger);
    if (larger == NULL)
        return cmi_reader_fault(p->reader, "no host memory for the trace");
    free(p->index);
    p->index = larger;
    p->index_bits++;
    for (size_t i = 0; i < p->trace->block_count; i++)
        *find(p, p->trace->blocks[i].id) = (uint32_t)i + 1;
    return 0;
}

static int live_block(parser *p, const char *verb, uint32_t *subject)
{
    uint64_t id;
    if (number(p, "id", &id) != 0)
        return -1;
    uint32_t found = *find(p, id);
    if (found == 0)
        return cmi_reader_fault(p->reader, "%s of id %llu, which was never allocated", verb, (unsigned long long)id);
    const cmi_trace_block *block = &p->trace->blocks[found - 1];
    if (block->free_line != 0)
        return cmi_reader_fault(p->reader, "%s of id %llu, which was freed at line %u", verb, (unsigned long long)id, block->free_line);
    *subject = found - 1;
    return 0;
}

/* ---- items ------------------------------------------------------------------------------------------------------------------ */

static int add_event(parser *p, cmi_trace_kind kind, uint32_t subject, uint16_t stream)
{
    cmi_trace *t = p->trace;
    if (cmi_reader_grow(p->reader, &t->events, t->event_count, sizeof *t->events) != 0)
        return -1;
    t->events[t->event_count++] = (cmi_trace_event){subject, p->reader->line, stream, (uint8_t)kind};
    t->call_count += kind == CMI_TRACE_ALLOC || kind == CMI_TRACE_FREE || kind == CMI_TRACE_USE;
    return 0;
}

static uint64_t live_size(uint64_t bytes) { return (bytes + CMI_TRACE_BLOCK_UNIT - 1) / CMI_TRACE_BLOCK_UNIT * CMI_TRACE_BLOCK_UNIT; }

static int alloc_item(parser *p)
{
    cmi_trace *t = p->trace;
    cmi_trace_block block = {.alloc_line = p->reader->line};
    if (number(p, "id", &block.id) != 0 || number(p, "size", &block.bytes) != 0 || stream_field(p, &block.stream) != 0 ||
        end_of_line(p) != 0)
        return -1;
    if (block.bytes == 0)
        return cmi_reader_fault(p->reader, "a size of 0");
    if (block.bytes > CMI_TRACE_LARGEST_BLOCK)
        return cmi_reader_fault(p->reader, "the size %llu is beyond 2^47", (unsigned long long)block.bytes);
    if (t->block_count == UINT32_MAX - 1)
        return cmi_reader_fault(p->reader, "more blocks than this reader counts");
    uint32_t *entry = find(p, block.id);
    if (*entry != 0)
        return cmi_reader_fault(p->reader, "id %llu was already used at line %u", (unsigned long long)block.id,
                                t->blocks[*entry - 1].alloc_line);
    if (cmi_reader_grow(p->reader, &t->blocks, t->block_count, sizeof *t->blocks) != 0)
        return -1;
    t->blocks[t->block_count] = block;
    *entry = (uint32_t)++t->block_count;
    if (grow_index(p) != 0)
        return -1;
    t->end_live_bytes += live_size(block.bytes);
    if (t->end_live_bytes > UINT64_MAX / 4)
        return cmi_reader_fault(p->reader, "more than 2^62 bytes live at once");
    if (t->end_live_bytes > t->peak_live_bytes)
        t->peak_live_bytes = t->end_live_bytes;
    return add_event(p, CMI_TRACE_ALLOC, (uint32_t)t->block_count - 1, block.stream);
}

static int free_item(parser *p)
{
    uint32_t subject;
    uint16_t stream;
    if (live_block(p, "free", &subject) != 0 || stream_field(p, &stream) != 0 || end_of_line(p) != 0)
        return -1;
    p->trace->blocks[subject].free_line = p->reader->line;
    p->trace->end_live_bytes -= live_size(p->trace->blocks[subject].bytes);
    return add_event(p, CMI_TRACE_FREE, subject, stream);
}

static int use_item(parser *p)
{
    uint32_t subject;
    uint16_t stream;
    if (live_block(p, "use", &subject) != 0 || stream_field(p, &stream) != 0 || end_of_line(p) != 0)
        return -1;
    return add_event(p, CMI_TRACE_USE, subject, stream);
}

static int step_item(parser *p)
{
    uint64_t value;
    if (number(p, "step", &value) != 0 || end_of_line(p) != 0)
        return -1;
    if (value > UINT32_MAX)
        return cmi_reader_fault(p->reader, "the step %llu is beyond 2^32", (unsigned long long)value);
    p->trace->step_count++;
    return add_event(p, CMI_TRACE_STEP, (uint32_t)value, 0);
}

static int phase_item(parser *p)
{
    cmi_trace *t = p->trace;
    skip_blanks(p);
    const char *word = p->at;
    size_t length = word_length(p), i;
    p->at += length;
    if (length == 0)
        return cmi_reader_fault(p->reader, "the phase is missing");
    if (end_of_line(p) != 0)
        return -1;
    for (i = 0; i < t->phase_count; i++)
        if (strlen(t->phases[i]) == length && memcmp(t->phases[i], word, length) == 0)
            return add_event(p, CMI_TRACE_PHASE, (uint32_t)i, 0);
    if (i == UINT16_MAX)
        return cmi_reader_fault(p->reader, "more than %d phases", UINT16_MAX);
    if (cmi_reader_grow(p->reader, &t->phases, i, sizeof *t->phases) != 0)
        return -1;
    t->phases[i] = strndup(word, length);
    if (t->phases[i] == NULL)
        return cmi_reader_fault(p->reader, "no host memory for the trace");
    t->phase_count++;
    return add_event(p, CMI_TRACE_PHASE, (uint32_t)i, 0);
}

static int header_item(parser *p)
{
    cmi_trace *t = p->trace;
    char text[48];
    skip_blanks(p);
    if (p->at == p->end)
        return 0; /* a bare '#' is a comment */
    if (cmi_reader_grow(p->reader, &t->headers, t->header_count, sizeof *t->headers) != 0)
        return -1;
    const char *word = p->at;
    size_t key_length = word_length(p), length = (size_t)(p->end - word);
    p->at += key_length;
    skip_blanks(p);
    char *copy = malloc(length + 1);
    if (copy == NULL)
        return cmi_reader_fault(p->reader, "no host memory for the trace");
    memcpy(copy, word, length);
    copy[length] = copy[key_length] = '\0';
    cmi_trace_header header = {copy, copy + (p->at - word)};
    t->headers[t->header_count++] = header;
    if (strcmp(header.key, "format") == 0 && strcmp(header.value, "cmtrace-1") != 0)
        return cmi_reader_fault(p->reader, "the format '%s' is not known; this version reads cmtrace-1",
                                shown(header.value, strlen(header.value), text));
    return 0;
}

static int item(parser *p)
{
    char text[48];
    skip_blanks(p);
    if (p->at == p->end)
        return 0;
    const char *word = p->at;
    if (*word == '#') {
        p->at++;
        return header_item(p);
    }
    size_t length = word_length(p);
    p->at += length;
    switch (length == 1 ? *word : '\0') {
    case 'a':
        return alloc_item(p);
    case 'f':
        return free_item(p);
    case 'u':
        return use_item(p);
    case 'p':
        return phase_item(p);
    case 's':
        return step_item(p);
    default:
        return cmi_reader_fault(p->reader, "unknown event '%s'", shown(word, length, text));
    }
}

int cmi_cmtrace_parse(cmi_reader *reader)
{
    parser p = {.reader = reader, .trace = reader->trace, .index_bits = 10};
    int more = 1;
    p.index = calloc(FIRST_INDEX_ROOM, sizeof *p.index);
    if (p.index == NULL)
        return cmi_reader_fault(reader, "no host memory for the trace");
    while (more == 1) {
        more = cmi_reader_line(reader, &p.at, &p.end);
        if (more == 1 && item(&p) != 0)
            more = -1;
    }
    free(p.index);
    if (more < 0)
        return -1;
    if (reader->trace->block_count == 0)
        return cmi_reader_fault(reader, "the file holds no allocation");
    return 0;
}
