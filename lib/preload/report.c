/*
 * What a process used: one line of JSON added to the file that CUDAMEMPOOL_REPORT names, and with verbose:1 one line of words on stderr,
 * when it ends by exit or by returning from main. Owns the last refusals and the figures of pools that ended before, under report_lock,
 * which is never held over a call. The end runs once, by the loader, after the program's own exit handlers.
 */
#include "preload/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_REFUSALS = 16, TEXT_BYTES = 256 << 10 };

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static cmpool_error refusals[MOST_REFUSALS]; /* the last ones, number n in place n % MOST_REFUSALS */
static uint32_t refusal_count;
static cmpool_stats ended[PRELOAD_DEVICES]; /* struct_size 0: no pool has ended */

/* ---- while the program runs -----------------------------------------------------------------------------------------------------------
 */

void cmi_preload_report_refusal(const cmpool_error *error)
{
    pthread_mutex_lock(&report_lock);
    refusals[refusal_count++ % MOST_REFUSALS] = *error;
    pthread_mutex_unlock(&report_lock);
}

/* What a later pool of the same device has, put together with what earlier ones had. */
static void merge(cmpool_stats *into, const cmpool_stats *from)
{
    into->struct_size = sizeof *into;
#define MERGE_GAUGE(name) into->name = from->name;
#define MERGE_PEAK(name) into->name = into->name > from->name ? into->name : from->name;
#define MERGE_COUNT(name) into->name += from->name;
#define CMPOOL_COUNTER(name, kind, help) MERGE_##kind(name)
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
}

void cmi_preload_report_ended(int device, cmpool_t pool)
{
    cmpool_stats last = {.struct_size = sizeof last};
    if (cmpool_stats_get(pool, &last) == CMPOOL_OK) {
        pthread_mutex_lock(&report_lock);
        merge(&ended[device], &last);
#define FORGET_GAUGE(name) ended[device].name = 0; /* they ended with it */
#define FORGET_PEAK(name)
#define FORGET_COUNT(name)
#define CMPOOL_COUNTER(name, kind, help) FORGET_##kind(name)
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
        pthread_mutex_unlock(&report_lock);
    }
}

/* false: the device never had a pool. */
static bool device_stats(int device, cmpool_stats *stats)
{
    cmpool_stats now = {.struct_size = sizeof now};
    cmpool_t pool = cmi_preload_pool_of(device);
    bool lives = pool && cmpool_stats_get(pool, &now) == CMPOOL_OK;
    pthread_mutex_lock(&report_lock);
    *stats = ended[device];
    pthread_mutex_unlock(&report_lock);
    if (lives) {
        merge(stats, &now);
    }
    return stats->struct_size != 0;
}

/* ---- at its end -----------------------------------------------------------------------------------------------------------------------
 */

typedef struct text {
    size_t length;
    char bytes[TEXT_BYTES];
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

static void add_refusal(text *to, const cmpool_error *refusal)
{
    static const char *const rungs[CMPOOL_RUNG_COUNT] = {"bins", "promote", "slack", "move", "grow", "pending", "siblings", "host_wait"};
    const struct {
        const char *name;
        size_t value;
    } figures[] = {
        {"bytes", refusal->bytes},
        {"short_bytes", refusal->short_bytes},
        {"live_bytes", refusal->live_bytes},
        {"reserved_bytes", refusal->reserved_bytes},
        {"idle_bytes", refusal->idle_bytes},
        {"largest_free_bytes", refusal->largest_free_bytes},
        {"limit_bytes", refusal->limit_bytes},
    };
    add(to, "{\"reason\":");
    add_quoted(to, cmpool_status_text(refusal->status));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        add(to, ",\"%s\":%zu", figures[i].name, figures[i].value);
    }
    if (refusal->device_free_bytes != SIZE_MAX) {
        add(to, ",\"device_free_bytes\":%zu", refusal->device_free_bytes);
    }
    add(to, ",\"rung_bytes\":{");
    for (int i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        add(to, "%s\"%s\":%zu", i ? "," : "", rungs[i], refusal->rung_bytes[i]);
    }
    add(to, "}}");
}

static void add_refusals(text *to)
{
    pthread_mutex_lock(&report_lock);
    uint32_t first = refusal_count > MOST_REFUSALS ? refusal_count - MOST_REFUSALS : 0;
    add(to, "],\"refusals\":%u,\"last_refusals\":[", refusal_count);
    for (uint32_t i = first; i < refusal_count; i++) {
        add(to, "%s", i > first ? "," : "");
        add_refusal(to, &refusals[i % MOST_REFUSALS]);
    }
    add(to, "]");
    pthread_mutex_unlock(&report_lock);
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

/* The memory as it is at the end, in a file of the process beside the report. */
static void add_snapshot(text *to, const char *report)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s.%ld.snapshot", report, (long)getpid());
    int file = length > 0 && (size_t)length < sizeof path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    bool written = file >= 0 && cmpool_snapshot_write_fd(file) == CMPOOL_OK;
    if (file >= 0) {
        close(file);
    }
    add(to, ",\"snapshot\":");
    if (written) {
        add_quoted(to, path);
    } else {
        add(to, "null");
    }
}

static void write_report(const char *path)
{
    text *line = cmi_preload_map(sizeof *line);
    int devices = 0;
    if (!line) {
        return;
    }
    add(line, "{\"program\":");
    add_quoted(line, program_invocation_name);
    add(line, ",\"process\":%ld,\"devices\":[", (long)getpid());
    for (int i = 0; i < PRELOAD_DEVICES; i++) {
        cmpool_stats stats;
        if (device_stats(i, &stats)) {
            add(line, "%s", devices++ ? "," : "");
            add_device(line, i, &stats);
        }
    }
    add_refusals(line);
    add_snapshot(line, path);
    add(line, "}\n");
    if (devices || !cmi_preload_stands_aside()) { /* else the line is written by who serves instead */
        write_all(path, line);
    }
    cmi_preload_unmap(line, sizeof *line);
}

static double mebibytes(uint64_t bytes) { return (double)bytes / (1 << 20); }

static void say_summary(void)
{
    char words[400] = "no device memory asked for";
    size_t length = 0;
    for (int i = 0; i < PRELOAD_DEVICES; i++) {
        cmpool_stats stats;
        if (device_stats(i, &stats) && length < sizeof words) {
            length +=
                (size_t)snprintf(words + length, sizeof words - length,
                                 "%sdevice %d: %llu requests, at most %.1f MiB in use and %.1f MiB held, %llu refused", length ? "; " : "",
                                 i, (unsigned long long)(stats.allocations + stats.refusals), mebibytes(stats.peak_live_bytes),
                                 mebibytes(stats.peak_reserved_bytes), (unsigned long long)stats.refusals);
        }
    }
    cmi_preload_say("cudamempool: %s (%ld): %s", program_invocation_short_name, (long)getpid(), words);
}

__attribute__((destructor)) static void report(void)
{
    cmi_preload_control_close(); /* a process that is paused can end */
    size_t length = 0;
    const char *path = getenv("CUDAMEMPOOL_REPORT"), *verbose = cmi_preload_setting("verbose", &length);
    bool to_file = path && path[0], in_words = verbose && length == 1 && verbose[0] >= '1' && verbose[0] <= '3';
    if ((!to_file && !in_words) || !cmi_preload_enter()) {
        return; /* not asked for, no driver in this process, or a fork's child */
    }
    if (to_file) {
        write_report(path);
    }
    if (in_words) {
        say_summary();
    }
    cmi_preload_leave();
}
