/*
 * Owns the shapes of out-of-memory messages: what each kind begins with, and which words stand beside which figure in it. No locks; one
 * thread. Called by `cudamempool explain`. The shapes are those of PyTorch (1.0 to 2.x), RMM, TensorFlow and JAX, CuPy and PaddlePaddle.
 */
#include "trace/oom_message.h"
#include "trace/squeeze.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN CMI_FIGURE_UNKNOWN
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* What a context and its modules take on a device beside all allocators, roughly: it is nobody else's. */
#define CONTEXT_BYTES (512 * MIB)

/* Raw figures, in the words of the messages. */
typedef enum raw_figure {
    REQUEST,
    TOTAL,
    LIVE,
    DRIVER_FREE,
    IDLE,
    RESERVED,
    LIMIT,
    PRIVATE_LIVE,
    THIS_PROCESS,
    RAW_FIGURES,
} raw_figure;

typedef enum side { AT_END, BEFORE } side; /* the figure follows the words, or stands before them */

typedef struct figure_words {
    raw_figure figure;
    side side;
    const char *words; /* squeezed */
} figure_words;

static const figure_words pytorch_words[] = {
    {REQUEST, AT_END, "triedtoallocate"},
    {TOTAL, BEFORE, "totalcapacity;"},
    {TOTAL, AT_END, "totalcapacityof"},
    {TOTAL, AT_END, "totalcapactyof"},
    {LIVE, BEFORE, "alreadyallocated"},
    {LIVE, BEFORE, "isallocatedbypytorch"},
    {DRIVER_FREE, BEFORE, "free;"},
    {DRIVER_FREE, BEFORE, "isfree"},
    {IDLE, BEFORE, "cached)"},
    {IDLE, BEFORE, "isreservedbypytorchbutunallocated"},
    {RESERVED, BEFORE, "reservedintotalbypytorch"},
    {LIMIT, BEFORE, "allowed;"},
    {PRIVATE_LIVE, BEFORE, "allocatedinprivatepools"},
    {THIS_PROCESS, AT_END, "thisprocesshas"},
};
static const figure_words stream_ordered_words[] = {
    {REQUEST, AT_END, "requested:"},
    {LIVE, AT_END, "currentlyallocated:"},
    {TOTAL, AT_END, "devicelimit:"},
    {DRIVER_FREE, AT_END, "free(accordingtocuda):"},
    {LIMIT, AT_END, "user-suppliedmemoryfraction):"},
};
static const figure_words rmm_words[] = {
    {REQUEST, AT_END, "failedtoallocate"},
    {REQUEST, AT_END, "unabletoallocate"},
    {LIVE, AT_END, "totalrmmallocatedis"},
    {RESERVED, AT_END, "current/max/trysize="},
};
static const figure_words tensorflow_words[] = {
    {REQUEST, AT_END, "ranoutofmemorytryingtoallocate"},
    {REQUEST, AT_END, "outofmemorywhiletryingtoallocate"},
    {LIVE, AT_END, "inuse:"},
    {LIVE, AT_END, "sumtotalofin-usechunks:"},
    {RESERVED, AT_END, "total_region_allocated_bytes_:"},
    {LIMIT, AT_END, "limit:"},
    {LIMIT, AT_END, "memory_limit_:"},
    {DRIVER_FREE, AT_END, "availablebytes:"},
};
static const figure_words cupy_words[] = {
    {REQUEST, AT_END, "outofmemoryallocating"},
    {RESERVED, AT_END, "allocatedsofar:"},
    {LIMIT, AT_END, "limitsetto:"},
};
static const figure_words paddle_words[] = {
    {REQUEST, AT_END, "cannotallocate"},
    {RESERVED, BEFORE, "memoryhasbeenallocated"},
    {DRIVER_FREE, AT_END, "availablememoryisonly"},
};
static const figure_words bare_words[] = {
    {REQUEST, BEFORE, "ondevice"},
    {REQUEST, AT_END, "attemptingtoallocate"},
};

static const struct {
    cmi_oom_format format;
    const char *begins; /* squeezed */
} beginnings[] = {
    {CMI_OOM_PYTORCH, "triedtoallocate"},
    {CMI_OOM_STREAM_ORDERED, "wouldexceedallowedmemory"},
    {CMI_OOM_RMM, "maximumpoolsizeexceeded"},
    {CMI_OOM_RMM, "unabletoallocate"},
    {CMI_OOM_TENSORFLOW, "ranoutofmemorytryingtoallocate"},
    {CMI_OOM_TENSORFLOW, "outofmemorywhiletryingtoallocate"},
    {CMI_OOM_CUPY, "outofmemoryallocating"},
    {CMI_OOM_PADDLE, "cannotallocate"},
    {CMI_OOM_BARE, "cudaoutofmemory"},
    {CMI_OOM_BARE, "hipoutofmemory"},
    {CMI_OOM_BARE, "cudaerror:outofmemory"},
    {CMI_OOM_BARE, "cuda_error_out_of_memory"},
    {CMI_OOM_BARE, "cudaerrormemoryallocation"},
    {CMI_OOM_BARE, "cudamallocfailed:outofmemory"},
    {CMI_OOM_BARE, "cublas_status_alloc_failed"},
    {CMI_OOM_BARE, "std::bad_alloc"},
    {CMI_OOM_BARE, "outofmemoryerror"},
};
#define BEGINNING_COUNT (sizeof beginnings / sizeof *beginnings)

/* How far behind its beginning a message may go on, in squeezed characters. Arenas print a line for each of their chunks. */
static const struct {
    const char *name;
    const figure_words *words;
    size_t word_count, reach;
} shapes[CMI_OOM_FORMATS] = {
#define SHAPE(name, words, reach)                           \
    {                                                       \
        name, words, sizeof(words) / sizeof *(words), reach \
    }
    [CMI_OOM_PYTORCH] = SHAPE("pytorch", pytorch_words, 1500),
    [CMI_OOM_STREAM_ORDERED] = SHAPE("pytorch-stream-ordered", stream_ordered_words, 600),
    [CMI_OOM_RMM] = SHAPE("rmm", rmm_words, 400),
    [CMI_OOM_TENSORFLOW] = SHAPE("tensorflow", tensorflow_words, SIZE_MAX),
    [CMI_OOM_CUPY] = SHAPE("cupy", cupy_words, 300),
    [CMI_OOM_PADDLE] = SHAPE("paddle", paddle_words, 400),
    [CMI_OOM_BARE] = SHAPE("bare", bare_words, 200),
#undef SHAPE
};

const char *cmi_oom_format_name(cmi_oom_format format) { return shapes[format].name; }

/* ---- figures ------------------------------------------------------------------------------------------------------------------------ */

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
    figures->request = value[REQUEST];
    figures->total = value[TOTAL];
    figures->live = value[LIVE];
    figures->idle = value[IDLE];
    figures->driver_free = value[DRIVER_FREE];
    figures->limit = value[LIMIT];
    figures->private_live = value[PRIVATE_LIVE];
    figures->doubt = doubt;
    message->reserved = value[RESERVED];
    message->this_process = value[THIS_PROCESS] != 0 ? value[THIS_PROCESS] : UNKNOWN; /* containers see none of it */
}

/* ---- the program ----------------------------------------------------------------------------------------------------------------------
 */

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

/* ---- messages -------------------------------------------------------------------------------------------------------------------------
 */

typedef struct place {
    size_t at, end; /* of the words it begins with */
    cmi_oom_format format;
} place;

static int by_place(const void *a, const void *b)
{
    const place *left = a, *right = b;
    return left->at != right->at ? (left->at < right->at ? -1 : 1) : (int)left->format - (int)right->format;
}

static size_t find_places(const cmi_squeezed *log, place **places)
{
    size_t count = 0, room = 0;
    *places = NULL;
    for (size_t i = 0; i < BEGINNING_COUNT; i++)
        for (size_t at = 0; (at = cmi_squeezed_find(log, beginnings[i].begins, at, log->length)) != SIZE_MAX; at++) {
            if (count == room) {
                place *larger = realloc(*places, (room = 2 * (room + 16)) * sizeof *larger);
                if (larger == NULL) {
                    free(*places);
                    *places = NULL;
                    return SIZE_MAX;
                }
                *places = larger;
            }
            (*places)[count++] = (place){at, at + strlen(beginnings[i].begins), beginnings[i].format};
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
    raw_figures raw = {.doubt = {0}};
    for (int i = 0; i < RAW_FIGURES; i++)
        raw.value[i] = UNKNOWN;
    *message = (cmi_oom_message){.format = at->format, .line = cmi_squeezed_line(log, at->at)};
    cmi_shortage_init(&message->figures);
    size_t reach = shapes[at->format].reach;
    size_t end = to - at->at > reach ? at->at + reach : to;
    size_t begin = at->at;
    if (at->format == CMI_OOM_STREAM_ORDERED || at->format == CMI_OOM_BARE)
        begin = at->at - from > 60 ? at->at - 60 : from; /* these name the device, or the size, first */
    for (size_t i = 0; i < shapes[at->format].word_count; i++)
        look_for(log, &shapes[at->format].words[i], begin, end, &raw);
    if (at->format == CMI_OOM_TENSORFLOW) {
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
    message->listed_processes = at->format == CMI_OOM_PYTORCH ? of_listed_processes(log, begin, end) : 0;
    derive(message, &raw);
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
