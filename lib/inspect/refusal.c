/*
 * What is told of a refusal: the verdict, the report in words, advice, and the same as JSON. Owns the words; pure functions, no lock.
 * Called by api and by snapshot.c.
 */
#include "inspect/refusal.h"

#include "record/record.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const rungs[CMPOOL_RUNG_COUNT] = {
    [CMPOOL_RUNG_BINS] = "bins",         [CMPOOL_RUNG_PROMOTE] = "promote",    [CMPOOL_RUNG_SLACK] = "slack",
    [CMPOOL_RUNG_MOVE] = "move",         [CMPOOL_RUNG_GROW] = "grow",          [CMPOOL_RUNG_PENDING] = "pending",
    [CMPOOL_RUNG_SIBLINGS] = "siblings", [CMPOOL_RUNG_HOST_WAIT] = "host_wait"};

static const char *const rung_words[CMPOOL_RUNG_COUNT] = {[CMPOOL_RUNG_BINS] = "free memory that lies together",
                                                          [CMPOOL_RUNG_PROMOTE] = "memory that events showed done",
                                                          [CMPOOL_RUNG_SLACK] = "new pages within the slack",
                                                          [CMPOOL_RUNG_MOVE] = "idle pages moved",
                                                          [CMPOOL_RUNG_GROW] = "new pages of the device",
                                                          [CMPOOL_RUNG_PENDING] = "memory of other streams, behind a wait on the device",
                                                          [CMPOOL_RUNG_SIBLINGS] = "other pools and the program's callback",
                                                          [CMPOOL_RUNG_HOST_WAIT] = "memory the host waited for"};

static const char *const holder_names[CMPOOL_BY_COUNT] = {[CMPOOL_BY_TAG] = "tag", [CMPOOL_BY_STACK] = "stack", [CMPOOL_BY_SIZE] = "size"};

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* Memory of the device that neither this process' pools nor the driver's free memory account for. */
static uint64_t outside_bytes(const cmpool_refusal *r)
{
    return r->driver_free_bytes == UINT64_MAX ? CMI_FIGURE_UNKNOWN : less(r->device_bytes, r->driver_free_bytes + r->process_bytes);
}

cmpool_verdict cmi_refusal_verdict(const cmpool_refusal *r)
{
    cmi_shortage s;
    cmi_shortage_init(&s);
    s.request = r->request_bytes;
    s.live = r->live_bytes;
    s.idle = r->idle_bytes + r->sibling_idle_bytes;
    s.total = r->device_bytes;
    s.limit = r->status == CMPOOL_ERR_LIMIT && r->limit_bytes ? r->limit_bytes : CMI_FIGURE_UNKNOWN;
    s.driver_free = r->driver_free_bytes == UINT64_MAX ? CMI_FIGURE_UNKNOWN : less(r->driver_free_bytes, r->headroom_bytes);
    s.pending = r->pending_bytes;
    s.private_idle = r->graph_bytes;
    s.largest_idle = r->largest_free_bytes;
    s.outside = outside_bytes(r);
    return (cmpool_verdict)cmi_verdict_of(&s);
}

/* ---- words ------------------------------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t room, used; /* used may pass room: then nothing more is written */
} page;

static void say(page *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(page *to, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(to->used < to->room ? to->text + to->used : NULL, to->used < to->room ? to->room - to->used : 0, format, list);
    va_end(list);
    to->used += length > 0 ? (size_t)length : 0;
}

/* "3.4 GiB", with integers alone. */
typedef struct amount {
    char text[32];
} amount;

static amount show(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    amount a;
    unsigned unit = 0;
    uint64_t scale = 1;
    while (unit + 1 < CMI_ARRAY_LENGTH(units) && bytes / scale >= 1024) {
        scale *= 1024;
        unit++;
    }
    unsigned long long whole = bytes / scale, tenths = bytes % scale * 10 / scale;
    if (unit) {
        snprintf(a.text, sizeof a.text, "%llu.%llu %s", whole, tenths, units[unit]);
    } else {
        snprintf(a.text, sizeof a.text, "%llu B", whole);
    }
    return a;
}

static void advice_of_demand(const cmpool_refusal *r, unsigned number, page *to)
{
    uint64_t room = r->driver_free_bytes == UINT64_MAX ? 0 : less(r->driver_free_bytes, r->headroom_bytes);
    if (number == 0 && r->status == CMPOOL_ERR_LIMIT) {
        say(to, "The pool's own limit of %s stops it; the driver has %s more: raise limit if they are meant for this pool.",
            show(r->limit_bytes).text, show(room).text);
    } else if (number == 0) {
        say(to, "%s less must be live at this point: moving or packing memory cannot help.", show(r->short_bytes).text);
    } else if (number == 1 && r->holder_count) {
        say(to, "Look at the largest holders first; tags (cmpool_tag_push) and stacks:all say whose they are.");
    }
}

void cmi_refusal_advice(const cmpool_refusal *r, unsigned number, char *text, size_t bytes)
{
    page to = {text, bytes, 0};
    if (bytes) {
        text[0] = '\0';
    }
    switch (cmi_refusal_verdict(r)) {
    case CMPOOL_VERDICT_TRUE_DEMAND:
        advice_of_demand(r, number, &to);
        break;
    case CMPOOL_VERDICT_PENDING:
        if (number == 0) {
            say(&to, "%s wait for other streams: let streams wait for each other (cross_stream_wait:true), or synchronise before.",
                show(r->pending_bytes).text);
        }
        break;
    case CMPOOL_VERDICT_PRIVATE_POOLS:
        if (number == 0) {
            say(&to, "%s are kept for graphs: release the capture sets of graphs that will not run again.", show(r->graph_bytes).text);
        }
        break;
    case CMPOOL_VERDICT_CACHE_HELD:
        if (number == 0) {
            say(&to, "%s lie idle in other pools of the process: lower their floor.", show(r->sibling_idle_bytes).text);
        }
        break;
    case CMPOOL_VERDICT_OTHER_PROCESSES:
        if (number == 0) {
            say(&to, "%s of the device are held by others: see who they are (nvidia-smi), or use another device.",
                show(outside_bytes(r)).text);
        }
        break;
    case CMPOOL_VERDICT_DRIVER_REFUSED:
        if (number == 0) {
            say(&to, "The driver reports %s free: another limit than memory applies (a container, a vGPU, mappings); try again later.",
                show(r->driver_free_bytes).text);
        }
        break;
    case CMPOOL_VERDICT_PACKING:
    case CMPOOL_VERDICT_UNCLEAR:
        if (number == 0) {
            say(&to, "A snapshot (snapshot_on_refusal) shows where the memory is.");
        }
        break;
    }
}

static void say_holders(const cmpool_refusal *r, page *to)
{
    for (uint32_t i = 0; i < r->holder_count && i < CMPOOL_HOLDERS; i++) {
        const cmpool_holder *holder = &r->holders[i];
        uint32_t parent;
        say(to, "  held: %s in %llu blocks of ", show(holder->bytes).text, (unsigned long long)holder->blocks);
        if (holder->by == CMPOOL_BY_SIZE) {
            say(to, "%s\n", show(holder->key).text);
        } else if (holder->by == CMPOOL_BY_TAG && holder->key >= CMI_TAG_FIRST && holder->key - CMI_TAG_FIRST < cmi_tag_count()) {
            say(to, "tag \"%s\"\n", cmi_tag_name((uint32_t)holder->key, &parent));
        } else {
            say(to, "%s %llu\n", holder->by == CMPOOL_BY_TAG ? "tag" : "call stack", (unsigned long long)holder->key);
        }
    }
}

size_t cmi_refusal_text(const cmpool_refusal *r, char *text, size_t bytes)
{
    page to = {text, bytes, 0};
    char sentence[256];
    say(&to, "refused %s on device %d (%s), %s short\n", show(r->request_bytes).text, r->device,
        r->status == CMPOOL_ERR_LIMIT ? "limit" : "out of device memory", show(r->short_bytes).text);
    say(&to, "  verdict: %s: %s\n", cmi_verdict_key((cmi_verdict)r->verdict), cmi_verdict_sentence((cmi_verdict)r->verdict));
    say(&to, "  pool: %s live, %s held, %s idle in whole pages, %s free in all, longest run %s", show(r->live_bytes).text,
        show(r->reserved_bytes).text, show(r->idle_bytes).text, show(r->free_bytes).text, show(r->largest_free_bytes).text);
    say(&to, r->limit_bytes ? ", limit %s\n" : "%s\n", r->limit_bytes ? show(r->limit_bytes).text : "");
    say(&to, "  of the free bytes: %s wait for streams, %s are kept for graphs; idle in other pools: %s\n", show(r->pending_bytes).text,
        show(r->graph_bytes).text, show(r->sibling_idle_bytes).text);
    say(&to, "  device: %s, %s held by this process' pools", show(r->device_bytes).text, show(r->process_bytes).text);
    if (r->driver_free_bytes == UINT64_MAX) {
        say(&to, ", the driver could not be asked what is free\n");
    } else {
        say(&to, ", %s free, %s held by others\n", show(r->driver_free_bytes).text, show(outside_bytes(r)).text);
    }
    for (unsigned i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        say(&to, "  %s: %s\n", rung_words[i], show(r->rung_bytes[i]).text);
    }
    say_holders(r, &to);
    for (unsigned i = 0; cmi_refusal_advice(r, i, sentence, sizeof sentence), sentence[0]; i++) {
        say(&to, "  advice: %s\n", sentence);
    }
    return to.used;
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

static void write_lists(cmi_json *json, const cmpool_refusal *r)
{
    char sentence[256];
    cmi_json_begin(json, "ladder", '[');
    for (unsigned i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        cmi_json_begin(json, NULL, '{');
        cmi_json_text(json, "rung", rungs[i]);
        cmi_json_number(json, "bytes", r->rung_bytes[i]);
        cmi_json_end(json, '}');
    }
    cmi_json_end(json, ']');
    cmi_json_begin(json, "holders", '[');
    for (uint32_t i = 0; i < r->holder_count; i++) {
        cmi_json_begin(json, NULL, '{');
        cmi_json_text(json, "by", holder_names[r->holders[i].by]);
        cmi_json_number(json, "key", r->holders[i].key);
        cmi_json_number(json, "bytes", r->holders[i].bytes);
        cmi_json_number(json, "blocks", r->holders[i].blocks);
        cmi_json_end(json, '}');
    }
    cmi_json_end(json, ']');
    cmi_json_begin(json, "advice", '[');
    for (unsigned i = 0; cmi_refusal_advice(r, i, sentence, sizeof sentence), sentence[0]; i++) {
        cmi_json_text(json, NULL, sentence);
    }
    cmi_json_end(json, ']');
}

void cmi_refusal_write(cmi_json *json, const char *key, const cmpool_refusal *r)
{
    char text[4096];
    if (!r->number) {
        cmi_json_null(json, key);
        return;
    }
    cmi_refusal_text(r, text, sizeof text);
    cmi_json_begin(json, key, '{');
    cmi_json_number(json, "time_ns", r->time_ns);
    cmi_json_text(json, "status", r->status == CMPOOL_ERR_LIMIT ? "LIMIT" : "OUT_OF_DEVICE_MEMORY");
    cmi_json_text(json, "verdict", cmi_verdict_key((cmi_verdict)r->verdict));
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {{"request_bytes", r->request_bytes},
                   {"stream", r->stream},
                   {"owner", r->owner},
                   {"tag", r->tag},
                   {"stack", r->stack},
                   {"live_bytes", r->live_bytes},
                   {"reserved_bytes", r->reserved_bytes},
                   {"idle_bytes", r->idle_bytes},
                   {"free_bytes", r->free_bytes},
                   {"pending_bytes", r->pending_bytes},
                   {"graph_bytes", r->graph_bytes},
                   {"sibling_idle_bytes", r->sibling_idle_bytes},
                   {"largest_free_bytes", r->largest_free_bytes},
                   {"driver_free_bytes", r->driver_free_bytes},
                   {"device_bytes", r->device_bytes},
                   {"process_bytes", r->process_bytes},
                   {"limit_bytes", r->limit_bytes},
                   {"headroom_bytes", r->headroom_bytes},
                   {"short_by_bytes", r->short_bytes}};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(figures); i++) {
        if (figures[i].value == UINT64_MAX) {
            cmi_json_null(json, figures[i].name);
        } else {
            cmi_json_number(json, figures[i].name, figures[i].value);
        }
    }
    write_lists(json, r);
    cmi_json_text(json, "text", text);
    cmi_json_end(json, '}');
}
