/* Workload: many live blocks of log-uniform sizes; a step gives one drawn at random back and asks for one of another size. No state. */
#include "workloads.h"

#include <stdlib.h>

typedef struct slot {
    void *block;
    size_t bytes;
} slot;

static void step(const bench_run *run, slot *s, size_t bytes, void *stream)
{
    run->allocator->give(s->block, s->bytes, stream);
    s->bytes = bytes;
    s->block = bench_take(run, bytes, stream);
}

void bench_mix(bench_run *run)
{
    uint64_t state = BENCH_SEED;
    const size_t *sizes = bench_draw_sizes(run->workload->bytes, &state);
    slot *slots = bench_memory(run->live, sizeof *slots);
    void *stream = bench_stream(run);
    for (uint64_t i = 0; i < run->live; i++) {
        slots[i].bytes = sizes[i % BENCH_SIZES];
        slots[i].block = bench_take(run, slots[i].bytes, stream);
    }
    for (uint64_t i = 0; i < run->live && i < 4 * run->count; i++) /* away from the order of the filling */
        step(run, &slots[bench_draw(&state, run->live)], sizes[bench_draw(&state, BENCH_SIZES)], stream);
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++)
            step(run, &slots[bench_draw(&state, run->live)], sizes[bench_draw(&state, BENCH_SIZES)], stream);
        bench_round_end(run, run->count);
    }
    for (uint64_t i = 0; i < run->live; i++)
        run->allocator->give(slots[i].block, slots[i].bytes, stream);
    free(slots);
    bench_rounds_figures(run);
}
