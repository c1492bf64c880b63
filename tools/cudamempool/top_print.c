/* `cudamempool top` for scripts: one table, or one line of JSON. No state; one thread. Called by cmd_top.c. */
#include "json.h"
#include "tool.h"
#include "top.h"

#include <stdio.h>

int top_print(const top_list *list)
{
    char live[16], reserved[16], idle[16], peak[16];
    printf("%8s %-15s %3s %4s %8s %8s %8s %8s %12s %10s %8s %7s\n", "PID", "PROGRAM", "GPU", "POOL", "LIVE", "RESERVED", "IDLE", "PEAK",
           "ALLOCATIONS", "MOVES", "REFUSED", "AGE");
    for (size_t i = 0; i < list->count; i++) {
        const live_pool *pool = &list->rows[i].now;
        printf("%8llu %-15.15s %3llu %4llu %8s %8s %8s %8s %12llu %10llu %8llu %6.1fs\n", (unsigned long long)pool->process, pool->program,
               (unsigned long long)pool->figures.device, (unsigned long long)pool->figures.number,
               top_amount(TOP(pool, live_bytes), live, sizeof live), top_amount(TOP(pool, reserved_bytes), reserved, sizeof reserved),
               top_amount(TOP(pool, idle_bytes), idle, sizeof idle), top_amount(TOP(pool, peak_live_bytes), peak, sizeof peak),
               (unsigned long long)TOP(pool, allocations), (unsigned long long)TOP(pool, page_moves),
               (unsigned long long)TOP(pool, refusals), top_age(list, &list->rows[i]));
    }
    return fflush(stdout) == 0 ? EXIT_FINE : EXIT_DEVICE;
}

static void print_pool(json *out, const top_list *list, const top_row *row)
{
    const live_pool *pool = &row->now;
    json_begin_object(out, NULL);
    json_integer(out, "process", pool->process);
    json_integer(out, "user", pool->user);
    json_string(out, "program", pool->program);
    json_integer(out, "device", pool->figures.device);
    json_integer(out, "pool", pool->figures.number);
    json_integer(out, "device_bytes", pool->figures.device_bytes);
    json_integer(out, "limit_bytes", pool->figures.limit_bytes);
    json_real(out, "age_seconds", top_age(list, row), 3);
    json_begin_object(out, "counters");
    for (int i = 0; i < CMPOOL_LIVE_COUNTERS; i++)
        json_integer(out, live_counters[i].name, top_figure(pool, i));
    json_end_object(out);
    json_begin_object(out, "refusals_by");
    for (int i = 0; i < CMPOOL_LIVE_VERDICTS; i++)
        json_integer(out, live_verdicts[i], pool->figures.refusals_by[i]);
    json_end_object(out);
    json_end_object(out);
}

int top_print_json(const top_list *list)
{
    json out = {0};
    json_begin_object(&out, NULL);
    json_integer(&out, "processes", list->view.processes);
    json_integer(&out, "unreadable", list->view.unreadable);
    json_begin_array(&out, "pools");
    for (size_t i = 0; i < list->count; i++)
        print_pool(&out, list, &list->rows[i]);
    json_end_array(&out);
    json_end_object(&out);
    return json_print(&out, stdout) == 0 ? EXIT_FINE : tool_say(EXIT_DEVICE, "no host memory, or the output cannot be written");
}
