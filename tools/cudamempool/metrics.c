/*
 * The text exposition format of Prometheus over live pages. Names follow its conventions: base units as endings, _total for what only
 * grows; levels and peaks are gauges. All names and words come from counters.def and verdicts.def. No state; called by cmd_serve_metrics.c.
 */
#include "metrics.h"

#include <string.h>
#include <time.h>

#define PREFIX "cudamempool_"

/* What belongs to one metric stands together: help, type, then a line for each pool. */
static void head(FILE *out, const char *name, const char *ending, const char *type, const char *help)
{
    fprintf(out, "# HELP " PREFIX "%s%s ", name, ending);
    for (const char *c = help; *c != '\0'; c++)
        fputs(*c == '\\' ? "\\\\" : *c == '\n' ? "\\n" : (char[]){*c, '\0'}, out);
    fprintf(out, "\n# TYPE " PREFIX "%s%s %s\n", name, ending, type);
}

static void begin_line(FILE *out, const char *name, const char *ending, const live_pool *pool)
{
    fprintf(out, PREFIX "%s%s{device=\"%llu\",pid=\"%llu\",pool=\"%llu\"", name, ending, (unsigned long long)pool->figures.device,
            (unsigned long long)pool->process, (unsigned long long)pool->figures.number);
}

static void end_line(FILE *out, uint64_t value) { fprintf(out, "} %llu\n", (unsigned long long)value); }

/* A label's value; names of programs are printable ASCII. */
static void label(FILE *out, const char *name, const char *value)
{
    fprintf(out, ",%s=\"", name);
    for (const char *c = value; *c != '\0'; c++)
        fputs(*c == '\\' ? "\\\\" : *c == '"' ? "\\\"" : (char[]){*c, '\0'}, out);
    fputc('"', out);
}

static void write_counter(const live_view *view, int counter, FILE *out)
{
    const live_counter *about = &live_counters[counter];
    const char *ending = about->kind == LIVE_COUNT ? "_total" : "";
    head(out, about->name, ending, about->kind == LIVE_COUNT ? "counter" : "gauge", about->help);
    for (size_t i = 0; i < view->count; i++) {
        begin_line(out, about->name, ending, &view->pools[i]);
        end_line(out, view->pools[i].figures.counters[counter]);
    }
}

static void write_verdicts(const live_view *view, FILE *out)
{
    static const char name[] = "refusals_by_verdict";
    head(out, name, "_total", "counter", "requests refused for lack of memory, by what was the matter");
    for (size_t i = 0; i < view->count; i++)
        for (int v = 0; v < CMPOOL_LIVE_VERDICTS; v++) {
            begin_line(out, name, "_total", &view->pools[i]);
            label(out, "verdict", live_verdicts[v]);
            end_line(out, view->pools[i].figures.refusals_by[v]);
        }
}

static void write_level(const live_view *view, const char *name, const char *help, size_t offset, FILE *out)
{
    head(out, name, "", "gauge", help);
    for (size_t i = 0; i < view->count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&view->pools[i].figures + offset, sizeof value);
        begin_line(out, name, "", &view->pools[i]);
        end_line(out, value);
    }
}

/* Age is in a time of day that all machines agree on. */
static void write_times(const live_view *view, FILE *out)
{
    static const char name[] = "published_timestamp_seconds";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    head(out, name, "", "gauge", "time at which the process last wrote its figures");
    for (size_t i = 0; i < view->count; i++) {
        uint64_t written = view->pools[i].figures.published_ns;
        uint64_t age = view->time_ns > written ? view->time_ns - written : 0;
        uint64_t at = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 - age / 1000000;
        begin_line(out, name, "", &view->pools[i]);
        fprintf(out, "} %llu.%03llu\n", (unsigned long long)(at / 1000), (unsigned long long)(at % 1000));
    }
}

static void write_programs(const live_view *view, FILE *out)
{
    head(out, "pool_info", "", "gauge", "always 1: the program of a process, and its user");
    for (size_t i = 0; i < view->count; i++) {
        char user[24];
        snprintf(user, sizeof user, "%llu", (unsigned long long)view->pools[i].user);
        begin_line(out, "pool_info", "", &view->pools[i]);
        label(out, "program", view->pools[i].program);
        label(out, "uid", user);
        end_line(out, 1);
    }
}

void metrics_write(const live_view *view, FILE *out)
{
    head(out, "processes", "", "gauge", "processes that show their pools");
    fprintf(out, PREFIX "processes %u\n", view->processes);
    head(out, "unreadable_processes", "", "gauge", "processes with another version of the library, whose figures cannot be read");
    fprintf(out, PREFIX "unreadable_processes %u\n", view->unreadable);
    write_programs(view, out);
    write_times(view, out);
    write_level(view, "device_bytes", "memory of the device", offsetof(cmpool_live_pool, device_bytes), out);
    write_level(view, "limit_bytes", "most bytes the pool may hold; 0 is no limit", offsetof(cmpool_live_pool, limit_bytes), out);
    for (int i = 0; i < CMPOOL_LIVE_COUNTERS; i++)
        write_counter(view, i, out);
    write_verdicts(view, out);
}
