/*
 * Owns one run of a trace: brings up device, streams and pool in the process of the run, replays or times, reads the figures, takes all
 * down again and looks whether anything was left behind. Called by cmd_replay.c and capacity.c through replay_run.
 */
#include "replay_tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct task {
    const char *file;
    const cmi_trace *trace;
    const replay_options *options;
    replay_mode mode;
    uint64_t capacity_bytes;
    tool_progress *progress;
    size_t steps;
} task;

typedef struct session {
    const task *task;
    replay_outcome *outcome;
    device *device;
    cmpool_t pool;
    cmpool_stream *streams;
} session;

size_t replay_outcome_bytes(size_t steps) { return sizeof(replay_outcome) + steps * sizeof(uint64_t); }

/* ---- up ------------------------------------------------------------------------------------------------------------------- */

static int make_streams(session *s)
{
    size_t count = s->task->trace->stream_count;
    s->streams = calloc(count, sizeof *s->streams);
    if (s->streams == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for %zu streams", count);
    for (size_t i = 0; i < count; i++) {
        int code = device_stream_create(s->device, &s->streams[i]);
        if (code != 0)
            return tool_say(EXIT_DEVICE, "%s: creating stream %zu of %zu: the driver gave %d", s->task->file, i + 1, count, code);
    }
    return EXIT_FINE;
}

/* ---- figures ---------------------------------------------------------------------------------------------------------------- */

/* Before the blocks that stay live are given back: what follows is the tool's tidying up, not the trace. */
static void read_figures(void *user)
{
    session *s = user;
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (cmpool_stats_get(s->pool, &stats) == CMPOOL_OK) {
        s->outcome->peak_reserved_bytes = stats.peak_reserved_bytes;
        s->outcome->page_moves = stats.page_moves;
        s->outcome->host_waits = stats.host_waits;
    }
    if (s->task->options->words.simulated)
        device_counts_read(s->device, &s->outcome->counts);
}

static void read_findings(session *s)
{
    const device_panel *panel = device_get_panel(s->device);
    const char *text;
    s->outcome->races = panel->races();
    for (int kind = 0; kind < SIMCUDA_FINDING_KINDS; kind++)
        if (kind != SIMCUDA_RACE_TOUCH && kind != SIMCUDA_RACE_UNMAP)
            s->outcome->other_findings += panel->findings((simcuda_finding_kind)kind);
    for (size_t i = 0; i < REPLAY_MOST_FINDINGS && (text = panel->finding_text(i)) != NULL; i++)
        snprintf(s->outcome->finding[i], sizeof s->outcome->finding[i], "%s", text);
}

static void keep_result(session *s, const cmi_replay_result *result)
{
    replay_outcome *o = s->outcome;
    o->refusals = result->refusals;
    o->false_refusals = result->false_refusals;
    o->first_refusal_line = result->first_refusal_line;
    o->first_false_line = result->first_false_line;
    o->refused_bytes = result->first_refusal.bytes;
    o->short_bytes = result->first_refusal.short_bytes;
    o->idle_bytes = result->first_refusal.idle_bytes;
    o->largest_free_bytes = result->first_refusal.largest_free_bytes;
    o->device_free_bytes = result->first_refusal.device_free_bytes;
    o->limit_bytes = result->first_refusal.limit_bytes;
    o->peak_live_bytes = result->peak_live_bytes;
    o->steady_per_step = cmi_replay_steady_per_step(result);
    for (size_t i = 0; i < result->step_count && i < s->task->steps; i++)
        o->step_calls[o->step_count++] = result->step_calls[i];
}

static int replay(session *s)
{
    const task *t = s->task;
    cmi_replay_config config = {
        .trace = t->trace,
        .pool = s->pool,
        .streams = s->streams,
        .device = device_operations(s->device),
        .touch = t->mode == REPLAY_PROBE ? CMI_TOUCH_FIRST : CMI_TOUCH_WHOLE,
        .stop_at_refusal = t->mode == REPLAY_PROBE,
        .sync_steps = t->options->sync_steps,
        .repeat_last = t->mode == REPLAY_FULL ? t->options->repeat_last : 0,
        .page_bytes = t->options->conf.page_bytes,
        .limit_bytes = t->options->conf.limit_bytes,
        .headroom_bytes = t->options->conf.headroom_bytes,
        .progress = t->mode == REPLAY_FULL ? tool_progress_draw : NULL,
        .progress_user = t->progress,
        .at_end = read_figures,
        .at_end_user = s,
    };
    if (t->mode == REPLAY_TIMED)
        return cmi_replay_time(&config, &s->outcome->ns_per_call) == 0 ? EXIT_FINE
                                                                       : tool_say(EXIT_DEVICE, "%s: no host memory to time it", t->file);
    if (t->mode == REPLAY_PROBE)
        config.device.mappings = NULL; /* the first refusal settles it: no oracle */
    cmi_replay_result result;
    int code = cmi_replay_run(&config, &result);
    keep_result(s, &result);
    cmi_replay_result_free(&result);
    if (code == 0)
        return EXIT_FINE;
    tool_progress_end(t->progress);
    return tool_say(EXIT_DEVICE, "%s:%u: %s (driver code %d)", t->file, (unsigned)result.trouble_line, result.trouble, result.trouble_code);
}

/* ---- down ----------------------------------------------------------------------------------------------------------------- */

static int take_down(session *s)
{
    const task *t = s->task;
    for (size_t i = 0; i < t->trace->stream_count; i++)
        cmpool_stream_retire(t->options->words.ordinal, s->streams[i]);
    cmpool_status status = cmpool_destroy(s->pool);
    if (status != CMPOOL_OK)
        return tool_say(EXIT_DEVICE, "%s: destroying the pool: %s", t->file, cmpool_status_text(status));
    if (t->options->words.simulated) {
        simcuda_census census;
        device_get_panel(s->device)->count_objects(0, &census);
        if (census.handles != 0 || census.mappings != 0)
            return tool_say(EXIT_DEVICE, "%s: the destroyed pool left %llu pages and %llu mappings behind", t->file,
                            (unsigned long long)census.handles, (unsigned long long)census.mappings);
    }
    for (size_t i = 0; i < t->trace->stream_count; i++)
        device_stream_destroy(s->device, s->streams[i]);
    if (t->options->words.simulated)
        read_findings(s);
    device_close(s->device);
    return EXIT_FINE;
}

static int run_task(void *argument, void *result)
{
    session s = {.task = argument, .outcome = result};
    int code = device_open(&s.task->options->words, s.task->capacity_bytes, &s.device);
    if (code == EXIT_FINE)
        code = make_streams(&s);
    if (code == EXIT_FINE) {
        device_counts_start(s.device);
        code = pool_open(&s.task->options->conf, &s.task->options->words, s.task->file, &s.pool);
    }
    if (code == EXIT_FINE)
        code = replay(&s);
    if (code == EXIT_FINE)
        code = take_down(&s);
    free(s.streams);
    s.outcome->finished = code == EXIT_FINE;
    return code;
}

int replay_run(const char *file, const cmi_trace *trace, const replay_options *options, replay_mode mode, uint64_t capacity_bytes,
               tool_progress *progress, replay_outcome *outcome, size_t steps)
{
    task t = {file, trace, options, mode, capacity_bytes, progress, steps};
    int code = tool_run_apart(file, run_task, &t, outcome, replay_outcome_bytes(steps));
    if (code == EXIT_FINE && !outcome->finished)
        code = tool_say(EXIT_DEVICE, "%s: the run ended early", file);
    return code;
}
