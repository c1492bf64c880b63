/*
 * Memory events of PyTorch's profiler (Kineto's Chrome trace, "[memory]" events) as events of a picture. The file tells for each the
 * allocator's total of reserved bytes, but of no segment; its steps become map and unmap events without an address. No locks; everything
 * belongs to the call. Called by records.c.
 */
#include "trace/values.h"
#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
    const cmi_profiler_memory *x = *(cmi_profiler_memory *const *)a, *y = *(cmi_profiler_memory *const *)b;
    if (x->time_ns != y->time_ns)
        return x->time_ns < y->time_ns ? -1 : 1;
    return x < y ? -1 : x > y; /* as in the file */
}

static int step_reserved(cmi_values *v, const cmi_profiler_memory *m, uint64_t *before)
{
    if (m->reserved_bytes == CMI_UNKNOWN)
        return 0;
    bool more = m->reserved_bytes > *before;
    cmi_picture_event step = {.address = CMI_UNKNOWN,
                              .bytes = more ? m->reserved_bytes - *before : *before - m->reserved_bytes,
                              .time_ns = m->time_ns,
                              .device = m->ordinal,
                              .kind = more ? CMI_EVENT_SEGMENT_MAP : CMI_EVENT_SEGMENT_UNMAP};
    *before = m->reserved_bytes;
    return step.bytes != 0 ? cmi_build_event(v->builder, &step) : 0;
}

static int add_events(cmi_values *v, cmi_profiler_memory **order, size_t count, uint64_t *totals)
{
    for (size_t i = 0; i < count; i++) {
        const cmi_profiler_memory *m = order[i];
        cmi_picture_event event = {.address = m->address, .time_ns = m->time_ns, .device = m->ordinal};
        event.kind = m->bytes < 0 ? CMI_EVENT_FREE_REQUESTED : CMI_EVENT_ALLOC;
        event.bytes = m->bytes < 0 ? 0 - (uint64_t)m->bytes : (uint64_t)m->bytes;
        if (m->bytes == 0)
            continue;
        if (step_reserved(v, m, &totals[m->ordinal]) != 0 || cmi_build_event(v->builder, &event) != 0)
            return -1;
        event.kind = CMI_EVENT_FREE_COMPLETED;
        if (m->bytes < 0 && cmi_build_event(v->builder, &event) != 0)
            return -1;
    }
    return 0;
}

int cmi_profiler_finish(cmi_values *v)
{
    cmi_picture *p = v->builder->picture;
    size_t count = 0, ordinals = 0;
    int result = -1;
    p->format = "kineto";
    p->segment_count = p->block_count = p->event_count = 0;
    for (size_t i = 0; i < v->memory_count; i++)
        if (v->memory[i].on_device && v->memory[i].timed)
            count++;
    if (count == 0)
        return cmi_reader_fault(v->builder->reader, "a profiler trace without memory events of a device; profile_memory=True records them");
    cmi_profiler_memory **order = malloc(count * sizeof(cmi_profiler_memory *));
    count = 0;
    for (size_t i = 0; order != NULL && i < v->memory_count; i++)
        if (v->memory[i].on_device && v->memory[i].timed) {
            order[count++] = &v->memory[i];
            ordinals = v->memory[i].ordinal >= ordinals ? v->memory[i].ordinal + 1 : ordinals;
        }
    uint64_t *totals = calloc(ordinals + 1, sizeof *totals);
    if (order == NULL || totals == NULL)
        cmi_reader_fault(v->builder->reader, "no host memory for what it holds");
    else {
        qsort(order, count, sizeof(cmi_profiler_memory *), by_time);
        result = add_events(v, order, count, totals);
    }
    free(order);
    free(totals);
    p->has_history = true;
    return result;
}
