/*
 * Workload: host memory of the bookkeeping while live blocks of one size grow in number. What the allocator itself knows is taken, else
 * what the C library has handed out, which holds the simulated device's own records too (a few words for each segment). No state.
 */
#include "workloads.h"

#include <malloc.h>
#include <stdlib.h>

enum { FEW = 1000 };

static double host_bytes(const bench_run *run)
{
    if (run->allocator->host_bytes != NULL)
        return (double)run->allocator->host_bytes();
    struct mallinfo2 told = mallinfo2();
    return (double)told.uordblks + (double)told.hblkhd;
}

void bench_host_memory(bench_run *run)
{
    const uint64_t few = run->live < FEW ? run->live / 2 : FEW;
    const size_t bytes = run->workload->bytes;
    void *stream = bench_stream(run);
    void **block = bench_memory(run->live, sizeof *block);
    double at_few = 0, before = run->allocator->host_bytes != NULL ? 0 : host_bytes(run);
    bench_round_begin(run);
    for (uint64_t i = 0; i < run->live; i++) {
        block[i] = bench_take(run, bytes, stream);
        if (i == 0)
            run->figures[BENCH_host_fixed_bytes] = host_bytes(run) - before;
        if (i + 1 == few)
            at_few = host_bytes(run);
    }
    bench_round_end(run, run->live);
    double at_all = host_bytes(run);
    run->figures[BENCH_host_few_bytes] = at_few - before;
    run->figures[BENCH_host_many_bytes] = at_all - before;
    run->figures[BENCH_host_bytes_per_block] = (at_all - at_few) / (double)(run->live - few);
    for (uint64_t i = 0; i < run->live; i++)
        run->allocator->give(block[i], bytes, stream);
    free(block);
    bench_rounds_figures(run);
}
