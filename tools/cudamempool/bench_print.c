/* Owns how benchmarks look: JSON lines, a table, the list of workloads. No state. Called by cmd_bench.c. */
#include "bench_tool.h"
#include "json.h"
#include "tool.h"
#include <cudamempool/cudamempool.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* The words after "model name" in /proc/cpuinfo; empty where there are none. */
static void read_processor(char text[128])
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    text[0] = '\0';
    while (file != NULL && text[0] == '\0' && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", strlen("model name")) == 0 && strchr(line, ':') != NULL)
            snprintf(text, 128, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
    if (file != NULL)
        fclose(file);
}

static int print_header_json(const bench_options *options)
{
    json out = {0};
    char text[256];
    struct utsname system;
    double load = 0;
    time_t now = time(NULL);
    struct tm utc;
    json_begin_object(&out, NULL);
    json_string(&out, "command", options->command);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_string(&out, "date", text);
    json_begin_object(&out, "machine");
    read_processor(text);
    json_string(&out, "processor", text);
    json_integer(&out, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    if (uname(&system) == 0) {
        snprintf(text, sizeof text, "%.60s %.60s %.60s", system.sysname, system.release, system.machine);
        json_string(&out, "system", text);
    }
    if (getloadavg(&load, 1) == 1)
        json_real(&out, "load", load, 2);
    json_end_object(&out);
    json_begin_object(&out, "build");
    json_string(&out, "version", cmpool_version());
    json_string(&out, "compiler", __VERSION__);
    json_string(&out, "type", TOOL_BUILD_TYPE);
    json_end_object(&out);
    json_end_object(&out);
    return json_print(&out, stdout);
}

int bench_print_header(const bench_options *options)
{
    if (options->json)
        return print_header_json(options);
    printf("%-18s %10s %10s %10s %8s %8s %8s %10s %9s\n%-18s %10s %10s %10s %8s %8s %8s %10s %9s\n", options->allocator, "ns per", "median",
           "of it in", "p50", "p99", "p99.9", "worst", "host", "", "operation", "", "driver", "ns a call", "", "", "", "B a block");
    return 0;
}

static int print_json(const bench_workload *workload, const char *label, const bench_options *options, const bench_outcome *outcome)
{
    json out = {0};
    json_begin_object(&out, NULL);
    json_string(&out, "workload", label);
    json_string(&out, "operation", workload->meaning);
    json_string(&out, "allocator", outcome->allocator);
    json_string(&out, "about", outcome->about);
    json_string(&out, "device", options->device != NULL ? options->device : "simulated");
    json_string(&out, "order", options->device != NULL ? "" : options->order);
    if (outcome->skipped[0] != '\0')
        json_string(&out, "skipped", outcome->skipped);
    else
        for (size_t i = 0; i < BENCH_FIGURES; i++)
            if (!isnan(outcome->figures[i]))
                json_real(&out, bench_figure_words[i].name, outcome->figures[i], bench_figure_words[i].decimals);
    json_end_object(&out);
    return json_print(&out, stdout);
}

static void print_cell(int width, int decimals, double value)
{
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, decimals, value);
}

int bench_print(const bench_workload *workload, const char *label, const bench_options *options, const bench_outcome *outcome)
{
    const double *f = outcome->figures;
    if (options->json)
        return print_json(workload, label, options, outcome);
    printf("%-18s", label);
    if (outcome->skipped[0] != '\0')
        printf(" left out: %s", outcome->skipped);
    else {
        print_cell(10, 1, f[BENCH_ns]);
        print_cell(10, 1, f[BENCH_median_ns]);
        print_cell(10, 1, f[BENCH_driver_ns]);
        print_cell(8, 0, f[BENCH_p50_ns]);
        print_cell(8, 0, f[BENCH_p99_ns]);
        print_cell(8, 0, f[BENCH_p999_ns]);
        print_cell(10, 0, f[BENCH_worst_ns]);
        print_cell(9, 1, f[BENCH_host_bytes_per_block]);
        if (f[BENCH_refused] > 0)
            printf("  %.0f refused", f[BENCH_refused]);
    }
    printf("\n");
    return fflush(stdout);
}

void bench_print_list(void)
{
    for (size_t i = 0; i < bench_workload_count; i++)
        printf("%-18s %s\n", bench_workloads[i].name, bench_workloads[i].meaning);
}
