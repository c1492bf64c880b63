/*
 * Owns how the figures of one out-of-memory message are read, and which follow from which. No state, no locks; one thread. Called by the
 * reader of out-of-memory messages for each that it finds.
 */
#include "trace/oom_shapes.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN CMI_FIGURE_UNKNOWN
#define MIB ((uint64_t)1 << 20)

/* What a context and its modules take on a device beside all allocators, roughly: it is nobody else's. */
#define CONTEXT_BYTES (512 * MIB)

typedef struct raw_figures {
    uint64_t value[RAW_FIGURES], doubt[RAW_FIGURES];
} raw_figures;

/* The first place of the words that has a size beside it. */
static void look_for(const cmi_squeezed *log, const figure_words *word, size_t from, size_t to, raw_figures *raw)
{
    uint64_t bytes, doubt;
    for (size_t at = from; raw->value[word->figure] == UNKNOWN; at++) {
        at = cmi_squeezed_find(log, word->words, at, to);
        if (at == SIZE_MAX)
            return;
        if (at > 0 && word->side == AT_END && strcmp(word->words, "inuse:") == 0 && log->text[at - 1] == 'x')
            continue; /* the most that ever was */
        bool found = word->side == BEFORE ? cmi_squeezed_size_before(log, at, &bytes, &doubt)
                                          : cmi_squeezed_size_at(log, at + strlen(word->words), &bytes, &doubt);
        if (found) {
            raw->value[word->figure] = bytes;
            raw->doubt[word->figure] = doubt;
            if (bytes == UNKNOWN)
                return; /* 2^64 and the like: no figure at all, and no second one to be looked for */
        }
    }
}

/* Whole numbers without a unit count bytes in these messages: "Limit: 7846428672", "(rounded to 2428108800)". */
static void look_for_bytes(const cmi_squeezed *log, const char *words, size_t from, size_t to, uint64_t *value, uint64_t *doubt)
{
    size_t at = cmi_squeezed_find(log, words, from, to);
    while (at != SIZE_MAX && at > 0 && log->text[at - 1] == 'x')
        at = cmi_squeezed_find(log, words, at + 1, to);
    if (at == SIZE_MAX || !isdigit((unsigned char)log->text[at + strlen(words)]))
        return;
    char *end;
    unsigned long long number = strtoull(log->text + at + strlen(words), &end, 10);
    if (*end == '.' || number > (unsigned long long)1 << 62)
        return;
    *value = number;
    *doubt = 0;
}

static uint64_t of_listed_processes(const cmi_squeezed *log, size_t from, size_t to)
{
    uint64_t sum = 0, bytes, doubt;
    for (size_t at = from; (at = cmi_squeezed_find(log, "process", at, to)) != SIZE_MAX;) {
        at += strlen("process");
        size_t number = at;
        while (isdigit((unsigned char)log->text[at]))
            at++;
        if (at == number || strncmp(log->text + at, "has", 3) != 0)
            continue;
        if (cmi_squeezed_size_at(log, at + 3, &bytes, &doubt) && bytes != UNKNOWN)
            sum += bytes;
    }
    return sum;
}

static int number_after(const cmi_squeezed *log, const char *words, size_t from, size_t to)
{
    for (size_t at = from; (at = cmi_squeezed_find(log, words, at, to)) != SIZE_MAX;) {
        at += strlen(words);
        long number = isdigit((unsigned char)log->text[at]) ? strtol(log->text + at, NULL, 10) : -1;
        if (number >= 0 && number < 1024)
            return (int)number;
    }
    return -1;
}

/* Figures that follow from others; what the rounding of the printed ones hides. */
static void derive(cmi_oom_message *message, raw_figures *raw)
{
    cmi_shortage *figures = &message->figures;
    uint64_t *value = raw->value;
    uint64_t doubt = raw->doubt[REQUEST] + raw->doubt[DRIVER_FREE];
    if (message->format == CMI_OOM_CUDAMEMPOOL) {
        if (value[RESERVED] == UNKNOWN && value[LIVE] != UNKNOWN && value[UNALLOCATED] != UNKNOWN)
            value[RESERVED] = value[LIVE] + value[UNALLOCATED];
        if (value[IDLE] != UNKNOWN && value[SIBLING_IDLE] != UNKNOWN)
            value[IDLE] = (value[IDLE] + value[SIBLING_IDLE]) & INT64_MAX; /* each is below 2^63 */
    }
    if (message->format == CMI_OOM_STREAM_ORDERED) {
        figures->stream_ordered = true;
        if (value[TOTAL] != UNKNOWN && value[LIVE] != UNKNOWN && value[DRIVER_FREE] != UNKNOWN &&
            value[TOTAL] >= value[LIVE] + value[DRIVER_FREE]) {
            value[IDLE] = value[TOTAL] - value[LIVE] - value[DRIVER_FREE];
            doubt += raw->doubt[TOTAL] + raw->doubt[LIVE] + 2 * CONTEXT_BYTES; /* contexts and others are in this difference */
        }
    }
    if (message->format == CMI_OOM_TENSORFLOW && value[LIMIT] != UNKNOWN) {
        if (value[RESERVED] == UNKNOWN) {
            value[RESERVED] = value[LIMIT]; /* the arena takes all it may have at its start */
            value[DRIVER_FREE] = 0;
        } else if (value[DRIVER_FREE] == UNKNOWN) {
            value[DRIVER_FREE] = value[LIMIT] > value[RESERVED] ? value[LIMIT] - value[RESERVED] : 0;
        }
    }
    if (value[IDLE] != UNKNOWN) {
        doubt += raw->doubt[IDLE];
    } else if (value[RESERVED] != UNKNOWN && value[LIVE] != UNKNOWN) {
        value[IDLE] = value[RESERVED] > value[LIVE] ? value[RESERVED] - value[LIVE] : 0;
        doubt += raw->doubt[RESERVED] + raw->doubt[LIVE];
    }
    if (value[RESERVED] == UNKNOWN && value[LIVE] != UNKNOWN && value[IDLE] != UNKNOWN)
        value[RESERVED] = value[LIVE] + value[IDLE];
    if (value[TOTAL] != UNKNOWN && value[DRIVER_FREE] != UNKNOWN && value[RESERVED] != UNKNOWN && !figures->stream_ordered) {
        uint64_t known = value[DRIVER_FREE] + value[RESERVED] + CONTEXT_BYTES;
        figures->outside = value[TOTAL] > known ? value[TOTAL] - known : 0;
    }
    if (value[OUTSIDE] != UNKNOWN)
        figures->outside = value[OUTSIDE];
    figures->request = value[REQUEST];
    figures->total = value[TOTAL];
    figures->live = value[LIVE];
    figures->idle = value[IDLE];
    figures->driver_free = value[DRIVER_FREE];
    figures->limit = value[LIMIT];
    figures->private_live = value[PRIVATE_LIVE];
    figures->private_idle = value[PRIVATE_IDLE];
    figures->pending = value[PENDING];
    figures->largest_idle = value[LARGEST];
    figures->doubt = doubt;
    message->reserved = value[RESERVED];
    message->short_by = value[SHORT];
    message->this_process = value[THIS_PROCESS] != 0 ? value[THIS_PROCESS] : UNKNOWN; /* containers see none of it */
}

/* The library's own words for what was the matter. */
static void read_verdict(const cmi_squeezed *log, size_t begin, size_t end, cmi_oom_message *message)
{
    size_t at = cmi_squeezed_find(log, "verdict:", begin, end);
    for (int i = 0; at != SIZE_MAX && i < CMI_VERDICTS; i++) {
        const char *key = cmi_verdict_key((cmi_verdict)i);
        size_t length = strlen(key);
        if (strncmp(log->text + at + strlen("verdict:"), key, length) == 0 && log->text[at + strlen("verdict:") + length] == ':') {
            message->verdict = (cmi_verdict)i;
            message->says_verdict = true;
        }
    }
}

void cmi_oom_read_figures(const cmi_squeezed *log, size_t begin, size_t end, cmi_oom_message *message)
{
    const oom_shape *shape = &cmi_oom_shapes[message->format];
    raw_figures raw = {.doubt = {0}};
    for (int i = 0; i < RAW_FIGURES; i++)
        raw.value[i] = UNKNOWN;
    cmi_shortage_init(&message->figures);
    for (size_t i = 0; i < shape->word_count; i++)
        look_for(log, &shape->words[i], begin, end, &raw);
    if (message->format == CMI_OOM_TENSORFLOW) {
        static const struct {
            raw_figure figure;
            const char *words;
        } plain[] = {{REQUEST, "(roundedto"},           {LIVE, "inuse:"},  {RESERVED, "total_region_allocated_bytes_:"},
                     {LIMIT, "memory_limit_:"},         {LIMIT, "limit:"}, {DRIVER_FREE, "availablebytes:"},
                     {REQUEST, "whiletryingtoallocate"}};
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            look_for_bytes(log, plain[i].words, begin, end, &raw.value[plain[i].figure], &raw.doubt[plain[i].figure]);
    }
    message->device = number_after(log, "gpu", begin, end);
    if (message->device < 0)
        message->device = number_after(log, "device", begin, end);
    message->listed_processes = message->format == CMI_OOM_PYTORCH ? of_listed_processes(log, begin, end) : 0;
    if (message->format == CMI_OOM_CUDAMEMPOOL)
        read_verdict(log, begin, end, message);
    derive(message, &raw);
}
