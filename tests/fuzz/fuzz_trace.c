/* libFuzzer target: any bytes given to the trace reader end in a whole trace or in one fault line, with nothing leaked. */
#include "trace/trace.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What every accepted trace promises its readers. */
static void check(const cmi_trace *trace)
{
    if (trace->format == NULL || trace->block_count == 0 || trace->call_count > trace->event_count ||
        trace->end_live_bytes > trace->peak_live_bytes)
        abort();
    for (size_t i = 0; i < trace->event_count; i++) {
        const cmi_trace_event *event = &trace->events[i];
        if (event->kind == CMI_TRACE_PHASE
                ? event->subject >= trace->phase_count
                : event->kind != CMI_TRACE_STEP && (event->subject >= trace->block_count || event->stream >= trace->stream_count))
            abort();
    }
    for (size_t i = 0; i < trace->block_count; i++)
        if (trace->blocks[i].bytes == 0 || trace->blocks[i].bytes > CMI_TRACE_LARGEST_BLOCK)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmi_trace trace;
    char fault[256] = "";
    if (cmi_trace_read_memory("input", data, size, &trace, fault, sizeof fault) == 0) {
        check(&trace);
        cmi_trace_free(&trace);
    } else if (strncmp(fault, "input:", 6) != 0 || strchr(fault, '\n') != NULL || trace.events != NULL) {
        abort();
    }
    return 0;
}
