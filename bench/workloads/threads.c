/*
 * Workloads: pairs by several threads, each on a stream of its own or all on one, and by processes. Workers of all kinds run the same
 * loop, round by round behind one gate; their rates are added up by round. No state but the crew, of which each writes its own slots.
 */
#include "workloads.h"

typedef struct worker {
    bench_run *run;
    bench_crew *crew;
    pthread_t thread;
    unsigned number;
    void *stream;
} worker;

static void *work(void *argument)
{
    const worker *me = argument;
    const bench_run *run = me->run;
    const bench_allocator *a = run->allocator;
    const size_t bytes = run->workload->bytes;
    for (unsigned i = 0; i < 100; i++)
        a->give(bench_take(run, bytes, me->stream), bytes, me->stream);
    for (unsigned round = 0; round < run->rounds; round++) {
        pthread_barrier_wait(&me->crew->gate);
        double start = bench_now_ns(), cpu = bench_thread_ns();
        for (uint64_t i = 0; i < run->count; i++)
            a->give(a->take(bytes, me->stream), bytes, me->stream);
        me->crew->rate[round][me->number] = (double)run->count / (bench_now_ns() - start);
        me->crew->cpu_ns[round][me->number] = (bench_thread_ns() - cpu) / (double)run->count;
    }
    return NULL;
}

static void run_threads(bench_run *run, bool one_stream)
{
    bench_crew crew;
    worker workers[BENCH_MOST_WORKERS];
    unsigned count = run->workload->workers;
    void *shared = bench_stream(run);
    bench_crew_begin(&crew, count, false);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (worker){.run = run, .crew = &crew, .number = i, .stream = one_stream ? shared : bench_stream(run)};
        int code = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (code != 0)
            bench_fail("no thread", code);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&crew.gate);
    bench_crew_figures(&crew, run->rounds, run->figures);
}

void bench_threads(bench_run *run) { run_threads(run, false); }

void bench_one_stream(bench_run *run) { run_threads(run, true); }

/* In each process; who started them adds up. */
void bench_processes(bench_run *run)
{
    worker me = {.run = run, .crew = run->crew, .number = run->worker, .stream = bench_stream(run)};
    work(&me);
}
