/*
 * What a process used, as one line of JSON added to the file that CUDAMEMPOOL_REPORT names, when it ends by exit or by returning from main.
 * Owns nothing; reads the counters of the pools there are. Runs once, by the loader, after the program's own exit handlers.
 */
#include "preload/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct text {
    size_t length;
    char bytes[16384];
} text;

static void add(text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *to, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(to->bytes + to->length, sizeof to->bytes - to->length, format, list);
    va_end(list);
    if (length > 0 && (size_t)length < sizeof to->bytes - to->length) {
        to->length += (size_t)length;
    }
}

static void add_quoted(text *to, const char *words)
{
    add(to, "\"");
    for (const unsigned char *at = (const unsigned char *)words; *at; at++) {
        if (*at < 0x20 || *at == '"' || *at == '\\') {
            add(to, "\\u%04x", *at);
        } else {
            add(to, "%c", *at);
        }
    }
    add(to, "\"");
}

static void add_device(text *to, int device, const cmpool_stats *stats)
{
    add(to, "{\"device\":%d", device);
#define CMPOOL_COUNTER(name, kind, help) add(to, ",\"" #name "\":%llu", (unsigned long long)stats->name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    add(to, "}");
}

static void add_refusal(text *to)
{
    cmpool_error last;
    if (!cmi_preload_last_refusal(&last)) {
        add(to, "null");
        return;
    }
    add(to, "{\"reason\":");
    add_quoted(to, cmpool_status_text(last.status));
    const struct {
        const char *name;
        size_t value;
    } figures[] = {
        {"bytes", last.bytes},
        {"short_bytes", last.short_bytes},
        {"live_bytes", last.live_bytes},
        {"reserved_bytes", last.reserved_bytes},
        {"idle_bytes", last.idle_bytes},
        {"largest_free_bytes", last.largest_free_bytes},
        {"limit_bytes", last.limit_bytes},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        add(to, ",\"%s\":%zu", figures[i].name, figures[i].value);
    }
    add(to, "}");
}

static void write_all(const char *path, const text *from)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) {
        cmi_preload_say("cudamempool: %s: %s", path, strerror(errno));
        return;
    }
    while (write(file, from->bytes, from->length) < 0 && errno == EINTR) { /* one write, so that lines of two processes do not mix */
    }
    close(file);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("CUDAMEMPOOL_REPORT");
    if (!path || !path[0] || !cmi_preload_enter()) {
        return; /* not asked for, no driver in this process, or a fork's child */
    }
    text line = {0};
    int devices = 0;
    add(&line, "{\"program\":");
    add_quoted(&line, program_invocation_name);
    add(&line, ",\"process\":%ld,\"devices\":[", (long)getpid());
    for (int i = 0; i < PRELOAD_DEVICES; i++) {
        cmpool_stats stats = {.struct_size = sizeof stats};
        cmpool_t pool = cmi_preload_pool_of(i);
        if (pool && cmpool_stats_get(pool, &stats) == CMPOOL_OK) {
            add(&line, "%s", devices++ ? "," : "");
            add_device(&line, i, &stats);
        }
    }
    add(&line, "],\"last_refusal\":");
    add_refusal(&line);
    add(&line, "}\n");
    write_all(path, &line);
    cmi_preload_leave();
}
