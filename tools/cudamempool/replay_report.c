/* Owns how the result of a replay looks: a JSON line, a row of the table, prose on stderr. No state. Called by cmd_replay.c. */
#include "json.h"
#include "replay_tool.h"
#include <stdio.h>
#include <string.h>

/* Group names as the JSON has them. */
static const char *const group_name[SIMCUDA_GROUPS] = {
    [SIMCUDA_MEMORY] = "memory", [SIMCUDA_ORDER] = "order", [SIMCUDA_HOST_SYNC] = "host_sync", [SIMCUDA_OTHER] = "other"};

static double ratio(uint64_t a, uint64_t b) { return b == 0 ? 0 : (double)a / (double)b; }

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

static void put_calls(json *out, const replay_outcome *run)
{
    json_begin_object(out, "driver_calls");
    json_integer(out, "total", run->counts.total);
    for (size_t i = 0; i < SIMCUDA_GROUPS; i++)
        json_integer(out, group_name[i], run->counts.group[i]);
    json_begin_object(out, "by_name");
    for (size_t i = 0; i < run->counts.name_count; i++)
        json_integer(out, run->counts.name[i].name, run->counts.name[i].count);
    json_end_object(out);
    if (run->steady_per_step < 0)
        json_null(out, "steady_per_step");
    else
        json_real(out, "steady_per_step", run->steady_per_step, 3);
    json_begin_array(out, "per_step");
    for (size_t i = 0; i < run->step_count; i++)
        json_integer(out, NULL, run->step_calls[i]);
    json_end_array(out);
    json_end_object(out);
    json_begin_object(out, "driver_us");
    for (size_t i = 0; i < DEVICE_COST_TABLES; i++)
        json_real(out, device_cost_table[i], run->counts.cost_us[i], 3);
    json_end_object(out);
}

/* Only files that tell of the run that was recorded have these. */
static void put_recorded(json *out, const cmi_trace_recorded *recorded)
{
    if (!recorded->known)
        return;
    json_integer(out, "as_run_peak_reserved_bytes", recorded->peak_reserved_bytes);
    json_integer(out, "as_run_stranded_bytes", recorded->stranded_bytes);
}

int replay_print_json(const replay_report *r)
{
    json out = {0};
    const replay_outcome *run = r->run;
    bool simulated = r->options->words.simulated;
    json_begin_object(&out, NULL);
    json_string(&out, "file", r->file);
    json_string(&out, "format", r->trace->format);
    json_integer(&out, "events", r->trace->call_count);
    json_integer(&out, "steps", r->trace->step_count);
    json_integer(&out, "streams", r->trace->stream_count);
    json_integer(&out, "peak_live_bytes", r->trace->peak_live_bytes);
    json_integer(&out, "peak_reserved_bytes", run->peak_reserved_bytes);
    put_recorded(&out, &r->trace->recorded);
    json_real(&out, "efficiency", ratio(run->peak_live_bytes, run->peak_reserved_bytes), 6);
    json_bool(&out, "served", run->refusals == 0);
    json_integer(&out, "refusals", run->refusals);
    if (simulated) {
        json_integer(&out, "false_refusals", run->false_refusals);
        json_integer(&out, "races", run->races);
        put_calls(&out, run);
    } else {
        json_null(&out, "false_refusals");
        json_null(&out, "races");
        json_null(&out, "driver_calls");
        json_null(&out, "driver_us");
    }
    json_integer(&out, "page_moves", run->page_moves);
    if (r->ns_per_call >= 0)
        json_real(&out, "ns_per_call", r->ns_per_call, 1);
    else
        json_null(&out, "ns_per_call");
    if (r->options->find_capacity && r->capacity_bytes != 0) {
        json_integer(&out, "min_capacity_bytes", r->capacity_bytes);
        json_real(&out, "capacity_ratio", ratio(r->capacity_bytes, r->trace->peak_live_bytes), 6);
    } else if (r->options->find_capacity) {
        json_null(&out, "min_capacity_bytes");
        json_null(&out, "capacity_ratio");
    }
    json_end_object(&out);
    return json_print(&out, stdout);
}

/* ---- table ------------------------------------------------------------------------------------------------------------------ */

static double gib(uint64_t bytes) { return (double)bytes / (double)(1u << 30); }

void replay_table_begin(const replay_options *options)
{
    printf("%-26s %8s %9s %9s %6s %8s", "trace", "requests", "peak live", "peak held", "live/", "refused");
    if (options->words.simulated)
        printf(" %6s %9s %8s", "races", "calls per", "ns per");
    if (options->find_capacity)
        printf(" %9s %8s", "smallest", "device/");
    printf("\non %-23.23s %8s %9s %9s %6s %8s", options->device, "", "GiB", "GiB", "held", "");
    if (options->words.simulated)
        printf(" %6s %9s %8s", "", "step", "call");
    if (options->find_capacity)
        printf(" %9s %8s", "GiB", "live");
    printf("\n");
    fflush(stdout);
}

void replay_table_row(const replay_report *r)
{
    const replay_outcome *run = r->run;
    const char *slash = strrchr(r->file, '/'), *name = slash != NULL ? slash + 1 : r->file;
    const char *suffix = strstr(name, ".cmtrace");
    int length = suffix != NULL ? (int)(suffix - name) : (int)strlen(name);
    printf("%-26.*s %8zu %9.3f %9.3f %5.1f%% %8llu", length < 26 ? length : 26, name, r->trace->block_count, gib(r->trace->peak_live_bytes),
           gib(run->peak_reserved_bytes), 100 * ratio(run->peak_live_bytes, run->peak_reserved_bytes), (unsigned long long)run->refusals);
    if (r->options->words.simulated) {
        printf(" %6llu", (unsigned long long)run->races);
        if (run->steady_per_step < 0)
            printf(" %9s", "-");
        else
            printf(" %9.0f", run->steady_per_step);
        if (r->ns_per_call < 0)
            printf(" %8s", "-");
        else
            printf(" %8.0f", r->ns_per_call);
    }
    if (r->options->find_capacity && r->capacity_bytes != 0)
        printf(" %9.3f %8.4f", gib(r->capacity_bytes), ratio(r->capacity_bytes, r->trace->peak_live_bytes));
    else if (r->options->find_capacity)
        printf(" %9s %8s", "-", "-");
    printf("\n");
    fflush(stdout);
}

void replay_table_end(const replay_options *options)
{
    printf("\npeak live: bytes the program held at its peak; peak held: device memory taken for them.\n");
    if (options->words.simulated)
        printf("calls per step: driver calls that take, move or give memory or wait for the device, from the third step on.\n"
               "ns per call: time of one pool call on this machine, driver left out.\n");
    if (options->find_capacity)
        printf("smallest: the smallest simulated device found on which every request is served.\n");
}

/* ---- prose ------------------------------------------------------------------------------------------------------------------ */

void replay_explain(const replay_report *r)
{
    const replay_outcome *run = r->run;
    if (run->refusals > 0) {
        tool_say(0, "%s:%u: first of %llu refusals: %llu bytes wanted, %llu missing; %llu idle, largest run %llu", r->file,
                 (unsigned)run->first_refusal_line, (unsigned long long)run->refusals, (unsigned long long)run->refused_bytes,
                 (unsigned long long)run->short_bytes, (unsigned long long)run->idle_bytes, (unsigned long long)run->largest_free_bytes);
    }
    if (run->false_refusals > 0)
        tool_say(0, "%s:%u: first of %llu refusals for which there were pages enough", r->file, (unsigned)run->first_false_line,
                 (unsigned long long)run->false_refusals);
    if (run->races + run->other_findings > 0) {
        tool_say(0, "%s: the device reports %llu races and %llu other findings:", r->file, (unsigned long long)run->races,
                 (unsigned long long)run->other_findings);
        for (size_t i = 0; i < REPLAY_MOST_FINDINGS && run->finding[i][0] != '\0'; i++)
            tool_say(0, "%s:   %s", r->file, run->finding[i]);
    }
}

void replay_closing(const replay_report *r, FILE *closing)
{
    const cmi_trace_recorded *recorded = &r->trace->recorded;
    const replay_outcome *run = r->run;
    if (recorded->devices > 1)
        fprintf(closing, "%s: of %u GPUs, this is GPU %u, which has the most events.\n", r->file, (unsigned)recorded->devices,
                (unsigned)recorded->device);
    if (!recorded->known)
        return;
    fprintf(closing, "%s: this run reserved %.2f GiB for %.2f GiB live; libcudamempool ", r->file, gib(recorded->peak_reserved_bytes),
            gib(r->trace->peak_live_bytes));
    if (r->capacity_bytes != 0 || run->refusals == 0)
        fprintf(closing, "serves it in %.2f GiB", gib(r->capacity_bytes != 0 ? r->capacity_bytes : run->peak_reserved_bytes));
    else
        fprintf(closing, "cannot serve it on %s", r->options->device);
    fprintf(closing, " (%.2f GiB were stranded).\n", gib(recorded->stranded_bytes));
}
