/* Workload: one block asked for and given back over and over, by one thread on one stream. No state. */
#include "workloads.h"

void bench_pair(bench_run *run)
{
    const bench_allocator *a = run->allocator;
    const size_t bytes = run->workload->bytes;
    void *stream = bench_stream(run);
    for (unsigned i = 0; i < 100; i++)
        a->give(bench_take(run, bytes, stream), bytes, stream);
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++)
            a->give(a->take(bytes, stream), bytes, stream);
        bench_round_end(run, run->count);
    }
    bench_rounds_figures(run);
}
