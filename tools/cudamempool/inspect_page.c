/*
 * Owns the page of `inspect --html`: the data of a picture as columns and JSON, between the parts of the page's own source. No state; one
 * thread. Called by cmd_inspect.c.
 */
#include "inspect_page.h"
#include "explain.h"
#include "inspect.h"
#include "inspect_columns.h"
#include "tool.h"
#include <cudamempool/cudamempool.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A stretch of addresses that something of the picture lies in. */
typedef struct shelf {
    uint64_t address, bytes;
    double place;
} shelf;

typedef struct device_page {
    const cmi_picture *p;
    const cmi_picture_segment *segments; /* of the device, as all below */
    const cmi_picture_block *blocks;
    size_t segment_count, block_count, first_block;
    const cmi_picture_lives *lives;
    uint32_t *events;   /* their numbers in the picture */
    uint32_t *local_of; /* for each event of the picture its number here */
    uint32_t *steps;    /* events that change what is reserved, */
    uint32_t *marks;    /* and steps, phases and ranges */
    size_t event_count, step_count, mark_count;
    bool has_clock;
    shelf *shelves;
    size_t shelf_count;
} device_page;

/* ---- numbers of the page ------------------------------------------------------------------------------------------------------------ */

static const cmi_picture_event *event_at(const device_page *d, uint32_t local) { return &d->p->events[d->events[local]]; }
static uint32_t local_event(const device_page *d, uint32_t event) { return event == CMI_NONE ? CMI_NONE : d->local_of[event]; }
static uint32_t local_block(const device_page *d, uint32_t block)
{
    return block == CMI_NONE ? CMI_NONE : block - (uint32_t)d->first_block;
}

static double reserved_step(const cmi_picture_event *event)
{
    bool more = event->kind == CMI_EVENT_SEGMENT_ALLOC || event->kind == CMI_EVENT_SEGMENT_MAP;
    return more ? (double)event->bytes : -(double)event->bytes;
}

/* Clocks that stand still or go back are taken as standing still; the page sums the steps. */
static double time_step(const device_page *d, size_t i)
{
    int64_t before = i > 0 ? event_at(d, (uint32_t)i - 1)->time_ns : 0, now = event_at(d, (uint32_t)i)->time_ns;
    return i > 0 && now > before && before != 0 ? (double)now - (double)before : 0;
}

static double place_of(const device_page *d, uint64_t address)
{
    size_t low = 0, high = d->shelf_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (d->shelves[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? d->shelves[low - 1].place + (double)(address - d->shelves[low - 1].address) : 0;
}

/* ---- what a device has -------------------------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const shelf *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Segments and lives, put together where they touch. false without host memory. */
static bool build_shelves(device_page *d)
{
    size_t count = 0, kept = 0;
    d->shelves = malloc((d->segment_count + d->lives->count + 1) * sizeof *d->shelves);
    if (d->shelves == NULL)
        return false;
    for (size_t i = 0; i < d->segment_count; i++)
        d->shelves[count++] = (shelf){d->segments[i].address, d->segments[i].bytes, 0};
    for (size_t i = 0; i < d->lives->count; i++) {
        const cmi_picture_life *life = &d->lives->lives[i];
        uint64_t room = UINT64_MAX - life->address;
        d->shelves[count++] = (shelf){life->address, life->bytes < room ? life->bytes : room, 0};
    }
    if (count > 1)
        qsort(d->shelves, count, sizeof *d->shelves, by_address);
    for (size_t i = 0; i < count; i++) {
        shelf *last = kept > 0 ? &d->shelves[kept - 1] : NULL, next = d->shelves[i];
        if (last != NULL && next.address - last->address <= last->bytes) {
            uint64_t end = next.address - last->address + next.bytes;
            last->bytes = end > last->bytes ? end : last->bytes;
            continue;
        }
        next.place = last != NULL ? last->place + (double)last->bytes : 0;
        d->shelves[kept++] = next;
    }
    d->shelf_count = kept;
    return true;
}

static bool is_step(cmi_event_kind kind) { return kind >= CMI_EVENT_SEGMENT_ALLOC && kind <= CMI_EVENT_SEGMENT_UNMAP; }
static bool is_mark(cmi_event_kind kind) { return kind >= CMI_EVENT_STEP && kind <= CMI_EVENT_RANGE_BEGIN; }

static bool number_events(device_page *d, uint32_t device)
{
    const cmi_picture *p = d->p;
    size_t room = (p->event_count + 1) * sizeof(uint32_t);
    d->events = malloc(room);
    d->local_of = malloc(room);
    d->steps = malloc(room);
    d->marks = malloc(room);
    if (d->events == NULL || d->local_of == NULL || d->steps == NULL || d->marks == NULL)
        return false;
    for (uint32_t i = 0; i < p->event_count; i++) {
        const cmi_picture_event *event = &p->events[i];
        if (event->device != device)
            continue;
        const uint32_t local = (uint32_t)d->event_count++;
        d->events[local] = i;
        d->local_of[i] = local;
        d->has_clock = d->has_clock || (local > 0 && event->time_ns != 0 && event->time_ns != event_at(d, 0)->time_ns);
        if (is_step(event->kind))
            d->steps[d->step_count++] = local;
        if (is_mark(event->kind))
            d->marks[d->mark_count++] = local;
    }
    return true;
}

static bool build_device(device_page *d, const inspect_report *report)
{
    const cmi_picture *p = report->picture;
    *d = (device_page){.p = p, .lives = &report->lives};
    size_t first = 0;
    while (first < p->segment_count && p->segments[first].device < report->device)
        first++;
    d->segments = p->segments + first;
    while (first + d->segment_count < p->segment_count && d->segments[d->segment_count].device == report->device)
        d->block_count += d->segments[d->segment_count++].block_count;
    d->first_block = d->segment_count > 0 ? d->segments[0].first_block : 0;
    d->blocks = p->blocks + d->first_block;
    return number_events(d, report->device) && build_shelves(d);
}

static void free_device(device_page *d)
{
    free(d->events);
    free(d->local_of);
    free(d->steps);
    free(d->marks);
    free(d->shelves);
}

/* ---- columns ------------------------------------------------------------------------------------------------------------------------ */

#define PICTURE_COLUMN(name, type, count, value)              \
    static double value_of_##name(const void *user, size_t i) \
    {                                                         \
        const cmi_picture *p = user;                          \
        return (double)(value);                               \
    }
#define DEVICE_COLUMN(name, type, count, value)               \
    static double value_of_##name(const void *user, size_t i) \
    {                                                         \
        const device_page *d = user;                          \
        return (double)(value);                               \
    }
#include "inspect_columns.def"
#undef PICTURE_COLUMN
#undef DEVICE_COLUMN

static void put_picture_columns(inspect_columns *columns, json *out, const cmi_picture *p)
{
    json_begin_object(out, "columns");
#define PICTURE_COLUMN(name, type, count, value) inspect_column(columns, out, #name, type, count, value_of_##name, p);
#include "inspect_columns.def"
#undef PICTURE_COLUMN
    json_end_object(out);
}

static void put_device_columns(inspect_columns *columns, json *out, const device_page *d)
{
    json_begin_object(out, "columns");
#define DEVICE_COLUMN(name, type, count, value) inspect_column(columns, out, #name, type, count, value_of_##name, d);
#include "inspect_columns.def"
#undef DEVICE_COLUMN
    json_end_object(out);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------------------- */

static void put_refusals(json *out, const device_page *d, const inspect_report *report, const cmi_oom_message *messages)
{
    const cmi_picture *p = d->p;
    json_begin_array(out, "refusals");
    for (size_t i = 0; i < p->refusal_count; i++) {
        explain_answer answer;
        if (p->refusals[i].device != report->device)
            continue;
        explain_refusal(&messages[i], &answer);
        json_begin_object(out, NULL);
        json_figure(out, "event", p->refusals[i].event != CMI_NONE ? d->local_of[p->refusals[i].event] : CMI_UNKNOWN);
        json_integer(out, "stack", p->refusals[i].stack);
        explain_put(out, &messages[i], &answer);
        json_end_object(out);
    }
    json_end_array(out);
}

static void put_device(inspect_columns *columns, json *out, const device_page *d, const inspect_report *report,
                       const cmi_oom_message *messages)
{
    json_begin_object(out, NULL);
    json_integer(out, "ordinal", d->p->devices[report->device].ordinal);
    json_integer(out, "events", d->event_count);
    json_figure(out, "first_reserved_bytes", report->lives.run.first_reserved_bytes);
    json_begin_array(out, "segments"); /* addresses, which are beyond what a double keeps */
    for (size_t i = 0; i < d->segment_count; i++)
        json_address(out, NULL, d->segments[i].address);
    json_end_array(out);
    json_begin_array(out, "shelves");
    for (size_t i = 0; i < d->shelf_count; i++)
        json_address(out, NULL, d->shelves[i].address);
    json_end_array(out);
    put_refusals(out, d, report, messages);
    put_device_columns(columns, out, d);
    json_end_object(out);
}

static void put_names(json *out, const cmi_picture *p)
{
    char name[64];
    json_begin_array(out, "strings");
    for (size_t i = 0; i < p->string_count; i++)
        json_string(out, NULL, p->strings[i]);
    json_end_array(out);
    json_begin_array(out, "streams");
    for (uint32_t i = 0; i < p->stream_count; i++)
        json_string(out, NULL, inspect_stream_name(p, (uint16_t)i, name));
    json_end_array(out);
    json_begin_array(out, "pools");
    for (uint32_t i = 0; i < p->pool_count; i++)
        json_string(out, NULL, inspect_pool_name(p, i, name));
    json_end_array(out);
}

/* Devices with their columns; then what `inspect --json` says of each. false without host memory. */
static bool put_devices(inspect_columns *columns, json *out, const cmi_picture *p, const cmi_oom_message *messages)
{
    const inspect_options options = {.top = 100};
    json reports = {0};
    bool done = true;
    json_begin_array(out, "devices");
    json_begin_array(&reports, NULL);
    for (uint32_t device = 0; done && device < p->device_count; device++) {
        inspect_report report;
        device_page d = {0};
        done = inspect_make(p, device, &report) == 0;
        if (!done)
            break;
        done = build_device(&d, &report);
        if (done) {
            put_device(columns, out, &d, &report, messages);
            json_begin_object(&reports, NULL);
            inspect_put(&reports, &report, &options);
            json_end_object(&reports);
        }
        free_device(&d);
        inspect_free(&report);
    }
    json_end_array(out);
    json_end_array(&reports);
    json_put(out, "reports", &reports);
    return done;
}

/* ---- the page ----------------------------------------------------------------------------------------------------------------------- */

/* JSON inside a page: no letter of it may end the element it stands in. */
static bool write_json(json *out, FILE *file)
{
    bool written = !out->failed;
    for (size_t i = 0, from = 0; written && i <= out->used; i++) {
        if (i < out->used && out->text[i] != '<')
            continue;
        written = fwrite(out->text + from, 1, i - from, file) == i - from && (i == out->used || fputs("\\u003c", file) >= 0);
        from = i + 1;
    }
    json_forget(out);
    return written;
}

static bool write_data(FILE *file, const char *name, const cmi_picture *p, const cmi_oom_message *messages)
{
    inspect_columns columns;
    json about = {0};
    fputs("<script id=\"columns\" type=\"text/plain\">", file);
    if (!inspect_columns_begin(&columns, file))
        return false;
    json_begin_object(&about, NULL);
    json_integer(&about, "version", 1);
    json_string(&about, "library", cmpool_version());
    json_string(&about, "file", name);
    json_string(&about, "format", p->format);
    json_bool(&about, "has_state", p->has_state);
    put_names(&about, p);
    put_picture_columns(&columns, &about, p);
    bool done = put_devices(&columns, &about, p, messages);
    json_end_object(&about);
    done = inspect_columns_end(&columns) && done;
    fputs("</script>\n<script id=\"about\" type=\"application/json\">", file);
    done = write_json(&about, file) && done;
    return fputs("</script>\n", file) >= 0 && done;
}

/* The page's source up to a mark; where it goes on. */
static const char *write_up_to(FILE *file, const char *source, const char *mark)
{
    const char *at = strstr(source, mark);
    fwrite(source, 1, (size_t)(at - source), file);
    return at + strlen(mark);
}

static bool write_page(FILE *file, const char *name, const cmi_picture *picture, const cmi_oom_message *messages)
{
    const char *rest = write_up_to(file, inspect_page_html, "<!--style-->\n");
    fputs(inspect_page_css, file);
    rest = write_up_to(file, rest, "<!--data-->\n");
    bool done = write_data(file, name, picture, messages);
    rest = write_up_to(file, rest, "<!--script-->\n");
    fputs(inspect_page_js, file);
    fputs(rest, file);
    return done && !ferror(file);
}

int inspect_write_page(const char *name, const cmi_picture *picture, const char *out)
{
    bool standard = strcmp(out, "-") == 0;
    cmi_oom_message *messages;
    if (explain_picture(picture, &messages) == SIZE_MAX)
        return tool_say(EXIT_DEVICE, "%s: no host memory", name);
    FILE *file = standard ? stdout : fopen(out, "wbe");
    if (file == NULL) {
        free(messages);
        return tool_say(EXIT_DEVICE, "%s: %s", out, strerror(errno));
    }
    bool written = write_page(file, name, picture, messages);
    free(messages);
    written = (standard ? fflush(file) : fclose(file)) == 0 && written;
    return written ? EXIT_FINE : tool_say(EXIT_DEVICE, "%s: it could not be written whole", out);
}
