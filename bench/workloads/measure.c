/*
 * Owns the clock, the rounds of a run, crews and the numbers drawn; and the table of workloads, expanded from workloads.def. A run is
 * its own thread's; of a crew each worker writes its own slots. Called by the workloads and by `cudamempool bench`.
 */
#include "bench.h"
#include "workloads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const bench_workload bench_workloads[] = {
#define BENCH_WORKLOAD(name, function, bytes, live, workers, count, device, meaning) \
    {name, bench_##function, bytes, live, workers, count, device, meaning},
#include "workloads.def"
#undef BENCH_WORKLOAD
};
const size_t bench_workload_count = sizeof bench_workloads / sizeof *bench_workloads;

const struct bench_figure_words bench_figure_words[BENCH_FIGURES] = {
#define BENCH_FIGURE(name, decimals, meaning) {#name, decimals},
#include "figures.def"
#undef BENCH_FIGURE
};

bool bench_is_processes(const bench_workload *workload) { return workload->function == bench_processes; }

bool bench_is_replay(const bench_workload *workload) { return workload->function == bench_replay; }

const char *bench_cannot(const bench_workload *workload, const bench_allocator *allocator)
{
    if (workload->function == bench_record_use && allocator->use == NULL)
        return "it has no call for a use on another stream";
    if (workload->function == bench_cross_free && !allocator->frees_across_streams)
        return "it frees on the stream of the allocation alone";
    return NULL;
}

/* ---- helpers -------------------------------------------------------------------------------------------------------------------- */

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

double bench_now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

double bench_thread_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

void bench_fail(const char *what, int code)
{
    fprintf(stderr, "bench: %s (%d)\n", what, code);
    exit(3);
}

void *bench_memory(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        bench_fail("no host memory", 0);
    return memory;
}

void *bench_stream(const bench_run *run)
{
    void *stream = NULL;
    int code = run->device->stream_create(run->device->self, &stream);
    if (code != 0)
        bench_fail("no stream", code);
    return stream;
}

void *bench_take(const bench_run *run, size_t bytes, void *stream)
{
    void *block = run->allocator->take(bytes, stream);
    if (block == NULL)
        bench_fail("a request was refused that the workload needs", 0);
    return block;
}

uint64_t bench_draw(uint64_t *state, uint64_t bound)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint64_t)((unsigned __int128)*state * bound >> 64);
}

const size_t *bench_draw_sizes(size_t largest, uint64_t *state)
{
    static size_t sizes[BENCH_SIZES];
    for (unsigned i = 0; i < BENCH_SIZES; i++) {
        double unit = (double)bench_draw(state, (uint64_t)1 << 53) * 0x1p-53;
        sizes[i] = (size_t)(512.0 * pow((double)largest / 512.0, unit));
    }
    return sizes;
}

/* ---- rounds --------------------------------------------------------------------------------------------------------------------- */

static uint64_t count(uint64_t (*counter)(void)) { return counter != NULL ? counter() : 0; }

static double inside(const bench_run *run) { return (double)count(run->device->inside_ns); }

void bench_round_begin(bench_run *run)
{
    if (run->round == 0)
        bench_latency_restart();
    run->memory_calls -= count(run->device->memory_calls);
    run->host_waits -= count(run->device->host_waits);
    run->inside_start_ns = inside(run);
    run->cpu_start_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    run->start_ns = bench_now_ns();
}

void bench_round_end(bench_run *run, uint64_t operations)
{
    double took = bench_now_ns() - run->start_ns, cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - run->cpu_start_ns;
    run->cpu_ns[run->round] = cpu / (double)operations;
    run->ns[run->round] = took / (double)operations;
    run->inside_ns[run->round] = (inside(run) - run->inside_start_ns) / (double)operations;
    run->memory_calls += count(run->device->memory_calls);
    run->host_waits += count(run->device->host_waits);
    run->operations += operations;
    run->round++;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void bench_rounds_figures(bench_run *run)
{
    unsigned best = 0;
    for (unsigned i = 1; i < run->round; i++)
        if (run->cpu_ns[i] < run->cpu_ns[best])
            best = i;
    run->figures[BENCH_cpu_ns] = run->cpu_ns[best];
    if (run->device->inside_ns != NULL) {
        run->figures[BENCH_driver_ns] = run->inside_ns[best];
        run->figures[BENCH_own_ns] = fmax(run->cpu_ns[best] - run->inside_ns[best], 0);
        run->figures[BENCH_memory_calls] = (double)run->memory_calls / (double)run->operations;
        run->figures[BENCH_host_waits] = (double)run->host_waits / (double)run->operations;
    }
    run->figures[BENCH_refused] = (double)run->refused;
    qsort(run->ns, run->round, sizeof *run->ns, by_value);
    run->figures[BENCH_ns] = run->ns[0];
    run->figures[BENCH_median_ns] = run->ns[run->round / 2];
}

/* ---- crews ---------------------------------------------------------------------------------------------------------------------- */

void bench_crew_begin(bench_crew *crew, unsigned workers, bool processes)
{
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, processes ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE);
    memset(crew, 0, sizeof *crew);
    crew->workers = workers;
    if (pthread_barrier_init(&crew->gate, &attributes, workers) != 0)
        bench_fail("no barrier", 0);
    pthread_barrierattr_destroy(&attributes);
}

void bench_crew_figures(const bench_crew *crew, unsigned rounds, double figures[BENCH_FIGURES])
{
    double total[BENCH_ROUNDS] = {0}, least = INFINITY;
    for (unsigned round = 0; round < rounds; round++) {
        double cpu = 0;
        for (unsigned worker = 0; worker < crew->workers; worker++) {
            total[round] += crew->rate[round][worker];
            cpu += crew->cpu_ns[round][worker] / crew->workers;
        }
        least = fmin(least, cpu);
    }
    figures[BENCH_cpu_ns] = least;
    qsort(total, rounds, sizeof *total, by_value);
    figures[BENCH_ns] = 1 / total[rounds - 1];
    figures[BENCH_median_ns] = 1 / total[rounds / 2];
}
