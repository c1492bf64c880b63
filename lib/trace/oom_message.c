/*
 * Owns how out-of-memory messages are found in a log: where each begins and ends, which are echoes of others, and what the program was at.
 * No locks; one thread. Called by `cudamempool explain`.
 */
#include "trace/oom_message.h"
#include "trace/oom_shapes.h"
#include "trace/squeeze.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN CMI_FIGURE_UNKNOWN

const char *cmi_oom_format_name(cmi_oom_format format) { return cmi_oom_shapes[format].name; }

/* ---- the program ----------------------------------------------------------------------------- */

/* The line nearest to the message that names a phase wins, since tracebacks end where the error was. */
static cmi_oom_phase phase_of(const cmi_squeezed *log, size_t from, size_t to)
{
    static const struct {
        cmi_oom_phase phase;
        const char *words;
    } signs[] = {
        {CMI_OOM_LOADING, "from_pretrained("},  {CMI_OOM_LOADING, "load_state_dict("}, {CMI_OOM_LOADING, "load_checkpoint("},
        {CMI_OOM_LOADING, "model.cuda("},       {CMI_OOM_LOADING, "model.to("},        {CMI_OOM_BACKWARD, ".backward("},
        {CMI_OOM_OPTIMIZER, "optimizer.step("}, {CMI_OOM_OPTIMIZER, "zeros_like("},    {CMI_OOM_OPTIMIZER, "_init_group("},
        {CMI_OOM_GENERATING, ".generate("},     {CMI_OOM_GENERATING, "kv_cache"},
    };
    cmi_oom_phase phase = CMI_OOM_SOMEWHERE;
    size_t nearest = 0;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        for (size_t at = from; (at = cmi_squeezed_find(log, signs[i].words, at, to)) != SIZE_MAX; at++)
            if (at >= nearest) {
                nearest = at;
                phase = signs[i].phase;
            }
    return phase;
}

/* "try setting ...expandable_segments:True" is advice; anything else that says so is a setting. */
static bool has_expandable_segments(const cmi_squeezed *log)
{
    const char *words = "expandable_segments:true", *advice = "trysetting";
    for (size_t at = 0; (at = cmi_squeezed_find(log, words, at, log->length)) != SIZE_MAX; at++) {
        size_t before = at > 60 ? at - 60 : 0;
        if (cmi_squeezed_find(log, advice, before, at) == SIZE_MAX)
            return true;
    }
    return false;
}

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct place {
    size_t at, end; /* of the words it begins with */
    cmi_oom_format format;
} place;

static int by_place(const void *a, const void *b)
{
    const place *left = a, *right = b;
    return left->at != right->at ? (left->at < right->at ? -1 : 1) : (int)left->format - (int)right->format;
}

/* "refused 3.0 GiB on device 0 (limit), 1.0 GiB short": the words in brackets alone may be anybody's. */
static bool is_report(const cmi_squeezed *log, size_t at, size_t end)
{
    uint64_t bytes, doubt;
    size_t before = at > 60 ? at - 60 : 0;
    return cmi_squeezed_find(log, "refused", before, at) != SIZE_MAX && cmi_squeezed_size_at(log, end, &bytes, &doubt);
}

static size_t find_places(const cmi_squeezed *log, place **places)
{
    size_t count = 0, room = 0;
    *places = NULL;
    for (const oom_beginning *beginning = cmi_oom_beginnings; beginning->words != NULL; beginning++)
        for (size_t at = 0; (at = cmi_squeezed_find(log, beginning->words, at, log->length)) != SIZE_MAX; at++) {
            size_t end = at + strlen(beginning->words);
            if (beginning->format == CMI_OOM_CUDAMEMPOOL && !is_report(log, at, end))
                continue;
            if (count == room) {
                place *larger = realloc(*places, (room = 2 * (room + 16)) * sizeof *larger);
                if (larger == NULL) {
                    free(*places);
                    *places = NULL;
                    return SIZE_MAX;
                }
                *places = larger;
            }
            (*places)[count++] = (place){at, end, beginning->format};
        }
    if (count > 0)
        qsort(*places, count, sizeof **places, by_place);
    return count;
}

/* Words that only say that memory ran out begin a fuller message that stands right behind them, and several of them in a row are one. */
static size_t drop_bare_ones(place *places, size_t count)
{
    const size_t ahead = 400, behind = 60;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool told = false;
        if (places[i].format == CMI_OOM_BARE) {
            const place *last = kept > 0 ? &places[kept - 1] : NULL;
            told = last != NULL && places[i].at < last->end + (last->format == CMI_OOM_BARE ? ahead : behind);
            for (size_t j = i + 1; !told && j < count && places[j].at - places[i].at < ahead; j++)
                told = places[j].format != CMI_OOM_BARE;
        }
        if (!told)
            places[kept++] = places[i];
    }
    return kept;
}

static void read_message(const cmi_squeezed *log, const place *at, size_t from, size_t to, cmi_oom_message *message)
{
    *message = (cmi_oom_message){.format = at->format, .line = cmi_squeezed_line(log, at->at)};
    size_t reach = cmi_oom_shapes[at->format].reach, back = cmi_oom_shapes[at->format].back;
    size_t end = to - at->at > reach ? at->at + reach : to;
    if (at->format == CMI_OOM_PYTORCH && cmi_squeezed_find(log, "libcudamempool", at->at, end) != SIZE_MAX)
        message->format = CMI_OOM_CUDAMEMPOOL; /* its exception, in PyTorch's words at first */
    cmi_oom_read_figures(log, at->at - from > back ? at->at - back : from, end, message);
    size_t before = at->at - from > 6000 ? at->at - 6000 : from;
    message->phase = phase_of(log, before, at->at);
}

static bool says_only_request(const cmi_oom_message *message)
{
    const cmi_shortage *figures = &message->figures;
    return figures->live == UNKNOWN && figures->idle == UNKNOWN && figures->driver_free == UNKNOWN && figures->total == UNKNOWN &&
           message->reserved == UNKNOWN;
}

/* A title or a re-raised exception often repeats the first words of a message that stands in full near it. */
static size_t drop_echoes(cmi_oom_message *messages, size_t count)
{
    const size_t near = 16;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool echo = false;
        size_t first = i > near ? i - near : 0;
        for (size_t j = first; j < count && j <= i + near && says_only_request(&messages[i]) && !echo; j++) {
            uint64_t one = messages[i].figures.request, other = messages[j].figures.request;
            bool same = one != UNKNOWN && other != UNKNOWN && (one > other ? one - other : other - one) <= one / 100;
            echo = same && j != i && (!says_only_request(&messages[j]) || j < i);
        }
        if (echo)
            messages[i].line = 0; /* out, once all have been compared */
    }
    for (size_t i = 0; i < count; i++)
        if (messages[i].line != 0)
            messages[kept++] = messages[i];
    return kept;
}

size_t cmi_oom_messages_find(const char *text, size_t bytes, cmi_oom_message **messages)
{
    cmi_squeezed log;
    place *places;
    *messages = NULL;
    if (!cmi_squeeze(text, bytes, &log))
        return SIZE_MAX;
    size_t count = find_places(&log, &places);
    if (count != SIZE_MAX && count > 0) {
        count = drop_bare_ones(places, count);
        *messages = malloc(count * sizeof **messages);
        size_t from = 0;
        for (size_t i = 0; *messages != NULL && i < count; i++) {
            size_t to = i + 1 < count ? places[i + 1].at : log.length;
            read_message(&log, &places[i], from, to, &(*messages)[i]);
            from = places[i].end < to ? places[i].end : to; /* the words of two may overlap */
        }
        count = *messages != NULL ? drop_echoes(*messages, count) : SIZE_MAX;
        bool expandable = has_expandable_segments(&log);
        for (size_t i = 0; *messages != NULL && i < count; i++)
            (*messages)[i].expandable_segments = expandable;
    }
    free(places);
    cmi_squeezed_free(&log);
    return count;
}
