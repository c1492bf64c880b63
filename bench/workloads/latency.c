/*
 * Owns how long single calls take: an allocator that reads the clock around each call of another one, and histograms of what it saw, one
 * for each thread so that threads do not meet here. Calls during which the simulated driver was at work are counted apart. The list of
 * histograms only grows while a run lasts; a lock guards it. Called through bench_run.allocator.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* To the nanosecond below LINEAR, then 64 steps for each power of two: off by less than 2 %. The longest is kept as it was. */
enum { LINEAR = 4096, LINEAR_BITS = 12, STEPS = 64, STEP_BITS = 6, BINS = LINEAR + STEPS * (48 - LINEAR_BITS) };

typedef struct histogram {
    struct histogram *next;
    uint64_t calls;
    double worst;
    uint64_t bin[BINS];
} histogram;

enum { WITHOUT_DRIVER, WITH_DRIVER, KINDS };

typedef struct recorder {
    struct recorder *next;
    histogram kind[KINDS];
} recorder;

static const bench_allocator *inner;
static uint64_t (*inside_ns)(void);
static bench_allocator timing;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static recorder *recorders;
static _Thread_local recorder *mine;

static unsigned bin_of(uint64_t ns)
{
    if (ns < LINEAR)
        return (unsigned)ns;
    unsigned power = 63u - (unsigned)__builtin_clzll(ns);
    unsigned bin = LINEAR + (power - LINEAR_BITS) * STEPS + (unsigned)((ns >> (power - STEP_BITS)) & (STEPS - 1));
    return bin < BINS ? bin : BINS - 1;
}

static double bin_ns(unsigned bin)
{
    if (bin < LINEAR)
        return bin;
    unsigned power = LINEAR_BITS + (bin - LINEAR) / STEPS;
    return ldexp(1 + (double)((bin - LINEAR) % STEPS + 1) / STEPS, (int)power);
}

static recorder *recorder_of_thread(void)
{
    if (mine == NULL) {
        mine = bench_memory(1, sizeof *mine);
        memset(mine->kind, 0, sizeof mine->kind); /* its pages are there before a call is timed */
        pthread_mutex_lock(&list_lock);
        mine->next = recorders;
        recorders = mine;
        pthread_mutex_unlock(&list_lock);
    }
    return mine;
}

static void keep(double ns, bool driver)
{
    histogram *to = &recorder_of_thread()->kind[driver ? WITH_DRIVER : WITHOUT_DRIVER];
    to->calls++;
    to->worst = ns > to->worst ? ns : to->worst;
    to->bin[bin_of((uint64_t)ns)]++;
}

static uint64_t inside(void) { return inside_ns != NULL ? inside_ns() : 0; }

static void *take(size_t bytes, void *stream)
{
    uint64_t before = inside();
    double start = bench_now_ns();
    void *block = inner->take(bytes, stream);
    double end = bench_now_ns();
    keep(end - start, inside() != before);
    return block;
}

static void give(void *block, size_t bytes, void *stream)
{
    uint64_t before = inside();
    double start = bench_now_ns();
    inner->give(block, bytes, stream);
    double end = bench_now_ns();
    keep(end - start, inside() != before);
}

static void use(void *block, void *stream)
{
    uint64_t before = inside();
    double start = bench_now_ns();
    inner->use(block, stream);
    double end = bench_now_ns();
    keep(end - start, inside() != before);
}

const bench_allocator *bench_latency_begin(const bench_allocator *allocator, const bench_device *device)
{
    inner = allocator;
    inside_ns = device->inside_ns;
    timing = *allocator;
    timing.take = take;
    timing.give = give;
    timing.use = allocator->use != NULL ? use : NULL;
    return &timing;
}

void bench_latency_restart(void)
{
    for (recorder *r = recorders; r != NULL; r = r->next)
        memset(r->kind, 0, sizeof r->kind);
}

static double timer_ns(void)
{
    double least = INFINITY;
    for (unsigned i = 0; i < 10000; i++) {
        double start = bench_now_ns(), apart = bench_now_ns() - start;
        least = apart < least ? apart : least;
    }
    return least;
}

static double percentile(const histogram *all, double share)
{
    uint64_t wanted = (uint64_t)ceil(share * (double)all->calls), seen = 0;
    unsigned bin = 0;
    while (bin < BINS - 1 && seen + all->bin[bin] < wanted)
        seen += all->bin[bin++];
    return bin_ns(bin) < all->worst ? bin_ns(bin) : all->worst;
}

void bench_latency_end(double figures[BENCH_FIGURES])
{
    histogram *sum = bench_memory(KINDS, sizeof *sum);
    while (recorders != NULL) {
        recorder *r = recorders;
        recorders = r->next;
        for (unsigned k = 0; k < KINDS; k++) {
            sum[k].calls += r->kind[k].calls;
            sum[k].worst = r->kind[k].worst > sum[k].worst ? r->kind[k].worst : sum[k].worst;
            for (unsigned bin = 0; bin < BINS; bin++)
                sum[k].bin[bin] += r->kind[k].bin[bin];
        }
        free(r);
    }
    mine = NULL;
    const histogram *without = &sum[WITHOUT_DRIVER], *with = &sum[WITH_DRIVER];
    figures[BENCH_timer_ns] = timer_ns();
    figures[BENCH_calls] = (double)without->calls;
    figures[BENCH_driver_calls] = (double)with->calls;
    if (without->calls > 0) {
        figures[BENCH_p50_ns] = percentile(without, 0.5);
        figures[BENCH_p99_ns] = percentile(without, 0.99);
        figures[BENCH_p999_ns] = percentile(without, 0.999);
        figures[BENCH_worst_ns] = without->worst;
    }
    if (with->calls > 0) {
        figures[BENCH_driver_p50_ns] = percentile(with, 0.5);
        figures[BENCH_driver_worst_ns] = with->worst;
    }
    free(sum);
}
