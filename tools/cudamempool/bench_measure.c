/*
 * Owns one benchmark: device, allocator and workload in a process of their own, or in one process for each worker, once for times and once
 * more with a clock around each call. Called by cmd_bench.c; no state.
 */
#include "bench_tool.h"
#include "tool.h"
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct task {
    const bench_workload *workload;
    const cmi_trace *trace;
    const char *label;
    const bench_options *options;
    device_words words;
    bool single_calls; /* each one timed */
} task;

/* ---- allocator and device ----------------------------------------------------------------------------------------------------- */

static const bench_allocator *find_allocator(const char *name)
{
    const bench_allocator *found = bench_allocator_named(name);
    if (found != NULL || strchr(name, '/') == NULL)
        return found;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    bench_peer_function *peer = NULL;
    if (library != NULL)
        *(void **)&peer = dlsym(library, "bench_peer");
    if (peer == NULL)
        tool_say(0, "%s", dlerror());
    return peer != NULL ? peer() : NULL;
}

static int open_allocator(const task *t, const bench_allocator **allocator)
{
    *allocator = find_allocator(t->options->allocator);
    if (*allocator == NULL)
        return tool_say(EXIT_BAD_INPUT, "there is no allocator '%s'", t->options->allocator);
    return (*allocator)->open();
}

static int stream_create(void *self, void **stream) { return device_stream_create(self, (cmpool_stream *)stream); }

static const device_panel *panel;
static uint64_t memory_calls(void) { return panel->calls(SIMCUDA_MEMORY); }
static uint64_t host_waits(void) { return panel->calls(SIMCUDA_HOST_SYNC); }

static int (*device_order)(void *self, cmpool_stream before, cmpool_stream after);
static int order(void *self, void *before, void *after) { return device_order(self, before, after); }

static bench_run begin_run(const task *t, const bench_allocator *allocator, const bench_device *seen)
{
    const bench_options *options = t->options;
    bench_run run = {.workload = t->workload, .allocator = allocator, .device = seen, .trace = t->trace};
    run.count = options->count != 0 ? options->count : t->workload->count;
    run.live = options->live != 0 && options->live < t->workload->live ? options->live : t->workload->live;
    run.rounds = options->rounds != 0 ? (unsigned)options->rounds : BENCH_ROUNDS;
    for (size_t i = 0; i < BENCH_FIGURES; i++)
        run.figures[i] = NAN;
    return run;
}

/* Exit status; the reason for leaving the workload out, if any, is in the outcome. */
static int run_on(const task *t, device *d, bench_crew *crew, unsigned worker, bench_outcome *outcome)
{
    const bench_allocator *allocator;
    int code = open_allocator(t, &allocator);
    if (code != EXIT_FINE)
        return code;
    device_order = device_operations(d).order;
    bench_device seen = {.self = d, .stream_create = stream_create, .order = order};
    panel = device_get_panel(d);
    if (t->words.simulated) {
        seen.inside_ns = panel->inside_ns;
        seen.memory_calls = memory_calls;
        seen.host_waits = host_waits;
    }
    bench_run run = begin_run(t, allocator, &seen);
    run.crew = crew;
    run.worker = worker;
    snprintf(outcome->allocator, sizeof outcome->allocator, "%s", allocator->name);
    snprintf(outcome->about, sizeof outcome->about, "%s", allocator->about);
    const char *reason = bench_cannot(t->workload, allocator);
    if (reason != NULL) {
        snprintf(outcome->skipped, sizeof outcome->skipped, "%s", reason);
        return EXIT_FINE;
    }
    if (t->single_calls)
        run.allocator = bench_latency_begin(allocator, &seen);
    t->workload->function(&run);
    if (t->single_calls)
        bench_latency_end(run.figures);
    memcpy(outcome->figures, run.figures, sizeof run.figures);
    return EXIT_FINE;
}

static int run_here(const task *t, bench_crew *crew, unsigned worker, bench_outcome *outcome)
{
    device *d;
    int code = device_open(&t->words, t->words.capacity_bytes, &d);
    if (code != EXIT_FINE)
        return code;
    code = run_on(t, d, crew, worker, outcome);
    device_close(d);
    return code;
}

/* ---- processes ------------------------------------------------------------------------------------------------------------------ */

/* What the workers of one workload share. */
typedef struct shared {
    bench_crew crew;
    bench_outcome outcome[BENCH_MOST_WORKERS];
} shared;

static int run_processes(const task *t, bench_outcome *outcome)
{
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned workers = t->workload->workers, rounds = t->options->rounds != 0 ? (unsigned)t->options->rounds : BENCH_ROUNDS;
    pid_t children[BENCH_MOST_WORKERS];
    int worst = EXIT_FINE;
    if (s == MAP_FAILED)
        return tool_say(EXIT_DEVICE, "%s: no host memory for its processes", t->label);
    bench_crew_begin(&s->crew, workers, true);
    for (unsigned i = 0; i < workers; i++) {
        children[i] = fork();
        if (children[i] == 0)
            exit(run_here(t, &s->crew, i, &s->outcome[i]));
        if (children[i] < 0)
            worst = EXIT_DEVICE; /* the others wait at the gate */
    }
    for (unsigned i = 0; i < workers; i++) {
        int status;
        if (worst == EXIT_DEVICE && children[i] > 0)
            kill(children[i], SIGKILL);
        if (children[i] > 0 && (waitpid(children[i], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0))
            worst = EXIT_DEVICE;
    }
    if (worst != EXIT_FINE)
        return tool_say(worst, "%s: a process of it failed", t->label);
    *outcome = s->outcome[0];
    if (!t->single_calls)
        bench_crew_figures(&s->crew, rounds, outcome->figures);
    munmap(s, sizeof *s);
    return EXIT_FINE;
}

static int run_task(void *argument, void *result)
{
    const task *t = argument;
    return bench_is_processes(t->workload) ? run_processes(t, result) : run_here(t, NULL, 0, result);
}

int bench_measure(const bench_workload *workload, const cmi_trace *trace, const char *label, const bench_options *options,
                  bench_outcome *outcome)
{
    task t = {.workload = workload, .trace = trace, .label = label, .options = options};
    bench_outcome single;
    char simulated[192];
    if (options->capacity != NULL)
        snprintf(simulated, sizeof simulated, "sim:%s,order=%s", options->capacity, options->order);
    else if (trace != NULL) /* three times the peak, so that the device is no reason for an allocator to wait */
        snprintf(simulated, sizeof simulated, "sim:%lluMiB,order=%s", (unsigned long long)(3 * trace->peak_live_bytes >> 20) + 1,
                 options->order);
    else
        snprintf(simulated, sizeof simulated, "sim:%s,order=%s", workload->device, options->order);
    int code = device_parse(options->device != NULL ? options->device : simulated, &t.words);
    if (code == EXIT_FINE && options->profile)
        return run_task(&t, outcome);
    if (code == EXIT_FINE)
        code = tool_run_apart(label, run_task, &t, outcome, sizeof *outcome);
    if (code != EXIT_FINE || outcome->skipped[0] != '\0')
        return code;
    t.single_calls = true;
    code = tool_run_apart(label, run_task, &t, &single, sizeof single);
    for (int i = BENCH_calls; code == EXIT_FINE && i <= BENCH_driver_worst_ns; i++)
        outcome->figures[i] = single.figures[i];
    return code;
}
