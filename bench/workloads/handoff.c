/*
 * Workload: one thread asks for blocks, another gives them back, both on one stream, through a ring of as many blocks as may be live. The
 * two counters of the ring are the only thing both write, each its own.
 */
#include "workloads.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct ring {
    _Alignas(64) _Atomic uint64_t made;
    _Alignas(64) _Atomic uint64_t taken;
    const bench_run *run;
    void *stream;
    void **block;
    uint64_t room, total;
} ring;

static void *consume(void *argument)
{
    ring *r = argument;
    for (uint64_t i = 0; i < r->total; i++) {
        while (atomic_load_explicit(&r->made, memory_order_acquire) == i)
            sched_yield();
        r->run->allocator->give(r->block[i % r->room], r->run->workload->bytes, r->stream);
        atomic_store_explicit(&r->taken, i + 1, memory_order_release);
    }
    return NULL;
}

void bench_handoff(bench_run *run)
{
    ring r = {.run = run, .stream = bench_stream(run), .room = run->live, .total = run->count * run->rounds};
    pthread_t consumer;
    r.block = bench_memory(r.room, sizeof *r.block);
    int code = pthread_create(&consumer, NULL, consume, &r);
    if (code != 0)
        bench_fail("no thread", code);
    for (uint64_t i = 0; i < r.total; i++) {
        if (i % run->count == 0)
            bench_round_begin(run);
        while (i - atomic_load_explicit(&r.taken, memory_order_acquire) == r.room)
            sched_yield();
        r.block[i % r.room] = bench_take(run, run->workload->bytes, r.stream);
        atomic_store_explicit(&r.made, i + 1, memory_order_release);
        if (i % run->count == run->count - 1)
            bench_round_end(run, run->count);
    }
    pthread_join(consumer, NULL);
    free(r.block);
    bench_rounds_figures(run);
}
