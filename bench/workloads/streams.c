/* Workloads: blocks on many streams, and blocks that a second stream uses, with or without being given back there. No state. */
#include "workloads.h"

enum { STREAMS = 64 };

void bench_streams(bench_run *run)
{
    const bench_allocator *a = run->allocator;
    const size_t bytes = run->workload->bytes;
    void *stream[STREAMS], *block[STREAMS];
    for (unsigned i = 0; i < STREAMS; i++) {
        stream[i] = bench_stream(run);
        block[i] = bench_take(run, bytes, stream[i]);
    }
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++) {
            unsigned at = i % STREAMS;
            a->give(block[at], bytes, stream[at]);
            block[at] = bench_take(run, bytes, stream[at]);
        }
        bench_round_end(run, run->count);
    }
    for (unsigned i = 0; i < STREAMS; i++)
        a->give(block[i], bytes, stream[i]);
    bench_rounds_figures(run);
}

void bench_record_use(bench_run *run)
{
    const bench_allocator *a = run->allocator;
    const size_t bytes = run->workload->bytes;
    void *stream = bench_stream(run), *second = bench_stream(run);
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++) {
            void *block = bench_take(run, bytes, stream);
            a->use(block, second);
            a->give(block, bytes, stream);
        }
        bench_round_end(run, run->count);
    }
    bench_rounds_figures(run);
}

void bench_cross_free(bench_run *run)
{
    const bench_allocator *a = run->allocator;
    const size_t bytes = run->workload->bytes;
    void *stream = bench_stream(run), *second = bench_stream(run);
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++)
            a->give(bench_take(run, bytes, stream), bytes, second);
        bench_round_end(run, run->count);
    }
    bench_rounds_figures(run);
}
