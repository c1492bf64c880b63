/*
 * Workload: the calls of a recorded program, one after the other, without kernels. Blocks that stay live at its end are given back
 * between rounds, so that the first round starts from nothing and the others with what the allocator kept. No state.
 */
#include "trace/trace.h"
#include "workloads.h"

#include <stdlib.h>
#include <string.h>

typedef struct block {
    void *address;
    uint16_t last; /* stream of its last use */
} block;

static void free_block(const bench_run *run, block *b, const cmi_trace_block *told, void *stream)
{
    run->allocator->give(b->address, told->bytes, stream);
    b->address = NULL;
}

/* Returns the calls that were made. */
static uint64_t replay(bench_run *run, block *blocks, void *const *streams)
{
    const bench_allocator *a = run->allocator;
    const cmi_trace *trace = run->trace;
    uint64_t calls = 0;
    for (const cmi_trace_event *event = trace->events, *end = event + trace->event_count; event < end; event++) {
        block *b = &blocks[event->subject];
        if (event->kind == CMI_TRACE_ALLOC) {
            calls++;
            b->last = event->stream;
            b->address = a->take(trace->blocks[event->subject].bytes, streams[event->stream]);
            run->refused += b->address == NULL;
        } else if (event->kind == CMI_TRACE_FREE && b->address != NULL) {
            calls++;
            free_block(run, b, &trace->blocks[event->subject], streams[event->stream]);
        } else if (event->kind == CMI_TRACE_USE && b->address != NULL && a->use != NULL) {
            calls++;
            if (b->last != event->stream)
                run->device->order(run->device->self, streams[b->last], streams[event->stream]);
            b->last = event->stream;
            a->use(b->address, streams[event->stream]);
        }
    }
    return calls;
}

void bench_replay(bench_run *run)
{
    const cmi_trace *trace = run->trace;
    void **streams = bench_memory(trace->stream_count, sizeof *streams);
    block *blocks = bench_memory(trace->block_count, sizeof *blocks);
    for (size_t i = 0; i < trace->stream_count; i++)
        streams[i] = bench_stream(run);
    memset(blocks, 0xff, trace->block_count * sizeof *blocks); /* have the pages before the clock starts */
    for (size_t i = 0; i < trace->block_count; i++)
        blocks[i].address = NULL;
    while (run->round < run->rounds) {
        bench_round_begin(run);
        bench_round_end(run, replay(run, blocks, streams));
        for (size_t i = 0; i < trace->block_count; i++)
            if (blocks[i].address != NULL)
                free_block(run, &blocks[i], &trace->blocks[i], streams[trace->blocks[i].stream]);
    }
    free(blocks);
    free(streams);
    if (run->device->inside_ns != NULL)
        run->figures[BENCH_first_ns] = run->cpu_ns[0] - run->inside_ns[0];
    bench_rounds_figures(run);
}
