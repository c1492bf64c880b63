/*
 * Workload: a device kept nearly full with large blocks of random sizes. A request that is larger than any free stretch is served by an
 * allocator that can move pages, and costs others their cache or is refused: then blocks are given back, drawn at random, until it is
 * served. Refusals are counted. No state.
 */
#include "workloads.h"

#include <stdlib.h>

enum { MOST_BLOCKS = 1024 };
#define SMALLEST ((size_t)2 << 20)

typedef struct slot {
    void *block;
    size_t bytes;
} slot;

typedef struct heap {
    bench_run *run;
    void *stream;
    unsigned count;
    size_t live_bytes;
    slot slots[MOST_BLOCKS];
} heap;

static void give_one(heap *h, unsigned at)
{
    slot *s = &h->slots[at];
    h->run->allocator->give(s->block, s->bytes, h->stream);
    h->live_bytes -= s->bytes;
    *s = h->slots[--h->count];
}

static void step(heap *h, uint64_t *state, size_t capacity)
{
    size_t bytes = SMALLEST + bench_draw(state, h->run->workload->bytes - SMALLEST);
    while (h->count == MOST_BLOCKS || h->live_bytes + bytes > capacity)
        give_one(h, (unsigned)bench_draw(state, h->count));
    void *block = h->run->allocator->take(bytes, h->stream);
    while (block == NULL) {
        if (h->count == 0)
            bench_fail("refused on an empty device", 0);
        h->run->refused++;
        give_one(h, (unsigned)bench_draw(state, h->count));
        block = h->run->allocator->take(bytes, h->stream);
    }
    h->slots[h->count++] = (slot){block, bytes};
    h->live_bytes += bytes;
}

void bench_page_moves(bench_run *run)
{
    const size_t capacity = (size_t)1900 << 20; /* of the 2 GiB that the device has; sizes are no whole pages */
    uint64_t state = BENCH_SEED;
    heap *h = bench_memory(1, sizeof *h);
    h->run = run;
    h->stream = bench_stream(run);
    while (run->round < run->rounds) {
        bench_round_begin(run);
        for (uint64_t i = 0; i < run->count; i++)
            step(h, &state, capacity);
        bench_round_end(run, run->count);
    }
    while (h->count > 0)
        give_one(h, h->count - 1);
    free(h);
    bench_rounds_figures(run);
}
