/*
 * Streams: what a CUstream argument stands for, and the calls on streams that are not copies, captures or graphs. Guarded by sim.lock.
 * Functions that differ only in what stream 0 means (_ptsz) are one body and two names.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

static sim_lane *thread_default(sim_context *context)
{
    sim_thread *self = sim_self();
    for (unsigned i = 0; i < self->default_count; i++)
        if (self->defaults[i].context == context && self->defaults[i].clear_count == context->clear_count &&
            self->defaults[i].context_id == context->id)
            return self->defaults[i].lane;
    sim_per_thread *defaults = realloc(self->defaults, (self->default_count + 1) * sizeof *defaults);
    if (!defaults)
        return NULL;
    self->defaults = defaults;
    sim_lane *lane = sim_lane_new(context, true, "per-thread default stream");
    if (!lane)
        return NULL;
    lane->id = ++sim.next_id;
    defaults[self->default_count++] = (sim_per_thread){context, context->id, context->clear_count, lane};
    return lane;
}

static sim_lane *default_lane(bool per_thread, CUresult *code)
{
    sim_context *context = sim_context_current(code);
    if (!context)
        return NULL;
    sim_lane *lane = per_thread ? thread_default(context) : sim_context_legacy(context);
    if (!lane)
        *code = CUDA_ERROR_OUT_OF_MEMORY;
    return lane;
}

sim_lane *sim_stream_lane(CUstream stream, bool per_thread, CUresult *code)
{
    if (!stream)
        return default_lane(per_thread, code);
    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return default_lane(stream == CU_STREAM_PER_THREAD, code);
    sim_stream *found = sim_handle_get(SIM_STREAM, SIM_NUMBER(stream));
    *code = found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    return found ? found->lane : NULL;
}

/* The record of a created stream, or NULL for the default ones. */
static const sim_stream *created(const sim_lane *lane)
{
    return lane->stream && lane->open ? sim_handle_peek(SIM_STREAM, lane->stream) : NULL;
}

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
    CUresult code;
    sim_context *context = sim_context_current(&code);
    if (!context)
        return code;
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    sim_stream *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->lane = sim_lane_new(context, !(flags & CU_STREAM_NON_BLOCKING), "stream");
    made->handle = made->lane ? sim_handle_new(SIM_STREAM, made) : 0;
    if (!made->handle) {
        if (made->lane)
            sim_lane_close(made->lane);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->id = made->lane->id = ++sim.next_id;
    made->flags = flags;
    made->priority = priority > SIM_PRIORITY_LEAST      ? SIM_PRIORITY_LEAST
                     : priority < SIM_PRIORITY_GREATEST ? SIM_PRIORITY_GREATEST
                                                        : priority; /* cuda.h: clamped */
    made->context = context;
    made->lane->stream = made->handle;
    *stream = SIM_AS_HANDLE(CUstream, made->handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags)
{
    SIM_ENTER("cuStreamCreate");
    SIM_RETURN(create(stream, flags, 0));
}

SIM_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    SIM_ENTER("cuStreamCreateWithPriority");
    SIM_RETURN(create(stream, flags, priority));
}

static void stream_delete(sim_stream *stream)
{
    if (stream->lane->capture)
        sim_capture_forget_lane(stream->lane);
    sim_lane_close(stream->lane);
    sim_handle_drop(SIM_STREAM, stream->handle);
    free(stream);
}

static CUresult destroy(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_stream *found = sim_handle_get(SIM_STREAM, SIM_NUMBER(stream));
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_delete(found);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    SIM_ENTER("cuStreamDestroy");
    SIM_RETURN(destroy(stream));
}

SIM_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    SIM_ENTER("cuStreamDestroy_v2");
    SIM_RETURN(destroy(stream));
}

void sim_stream_forget_context(sim_context *context)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_STREAM, i, &object); i++)
        if (object && ((sim_stream *)object)->context == context)
            stream_delete(object);
}

void sim_stream_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_STREAM, i, &object); i++)
        free(object);
}

/* ---- two names, one body ------------------------------------------------------------------------------------------------------------ */

#define BOTH(name, params, body_arguments, body)                       \
    SIM_EXPORT CUresult CUDAAPI name params                            \
    {                                                                  \
        SIM_ENTER(#name);                                              \
        SIM_RETURN(body(&sim_here, false, SIM_UNPACK body_arguments)); \
    }                                                                  \
    SIM_EXPORT CUresult CUDAAPI name##_ptsz params                     \
    {                                                                  \
        SIM_ENTER(#name "_ptsz");                                      \
        SIM_RETURN(body(&sim_here, true, SIM_UNPACK body_arguments));  \
    }
#define SIM_UNPACK(...) __VA_ARGS__

static CUresult get_id(sim_frame *frame, bool per_thread, CUstream stream, unsigned long long *id)
{
    (void)frame;
    if (!sim.features[SIMCUDA_FEATURE_STREAM_ID])
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code;
    const sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    *id = lane->id ? lane->id : lane->context->id; /* legacy: one per context, and ids are unique over both */
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetId, (CUstream stream, unsigned long long *id), (stream, id), get_id)

static CUresult get_priority(sim_frame *frame, bool per_thread, CUstream stream, int *priority)
{
    (void)frame;
    CUresult code;
    const sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    const sim_stream *record = created(lane);
    *priority = record ? record->priority : 0;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetPriority, (CUstream stream, int *priority), (stream, priority), get_priority)

static CUresult get_flags(sim_frame *frame, bool per_thread, CUstream stream, unsigned *flags)
{
    (void)frame;
    CUresult code;
    const sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    const sim_stream *record = created(lane);
    *flags = record ? record->flags : 0;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetFlags, (CUstream stream, unsigned *flags), (stream, flags), get_flags)

static CUresult get_context(sim_frame *frame, bool per_thread, CUstream stream, CUcontext *context)
{
    (void)frame;
    CUresult code;
    const sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = SIM_AS_HANDLE(CUcontext, lane->context->handle);
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetCtx, (CUstream stream, CUcontext *context), (stream, context), get_context)

static CUresult get_contexts(sim_frame *frame, bool per_thread, CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL; /* there are no green contexts */
    return get_context(frame, per_thread, stream, context);
}
BOTH(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, CUgreenCtx *green), (stream, context, green), get_contexts)

static CUresult get_device(sim_frame *frame, bool per_thread, CUstream stream, CUdevice *device)
{
    (void)frame;
    CUresult code;
    const sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = lane->context->device;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetDevice, (CUstream stream, CUdevice *device), (stream, device), get_device)

static CUresult query(sim_frame *frame, bool per_thread, CUstream stream)
{
    (void)frame;
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    code = sim_capture_query_lane(lane);
    if (code != CUDA_SUCCESS)
        return code;
    if (lane == lane->context->legacy)
        sim_lane_barrier(lane);
    if (lane->completed < lane->enqueued)
        return sim_lane_poll(lane->index, lane->enqueued) ? query(frame, per_thread, stream) : CUDA_ERROR_NOT_READY;
    sim_host_observe(&lane->clock);
    return CUDA_SUCCESS;
}
BOTH(cuStreamQuery, (CUstream stream), (stream), query)

static CUresult synchronise(sim_frame *frame, bool per_thread, CUstream stream)
{
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    code = sim_capture_query_lane(lane);
    if (code != CUDA_SUCCESS)
        return code;
    if (lane == lane->context->legacy)
        sim_lane_barrier(lane);
    sim_lane_synchronise(frame, lane);
    return CUDA_SUCCESS;
}
BOTH(cuStreamSynchronize, (CUstream stream), (stream), synchronise)

static CUresult wait_event(sim_frame *frame, bool per_thread, CUstream stream, CUevent event_handle, unsigned flags)
{
    (void)frame;
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    sim_event *event = sim_event_of(event_handle, &code);
    if (!event)
        return code;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (lane->capture || event->capture)
        return sim_capture_wait(lane, event, flags);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE; /* cuda.h: EXTERNAL "is invalid outside of stream capture" */
    sim_lane_wait_event(lane, event);
    return CUDA_SUCCESS;
}
BOTH(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags), wait_event)

static CUresult launch_host(sim_frame *frame, bool per_thread, CUstream stream, CUhostFn function, void *data)
{
    (void)frame;
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    sim_op op = {.kind = SIM_OP_CALLBACK, .u.call = {.function = function, .data = data}};
    return sim_submit(lane, &op);
}
BOTH(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), (stream, function, data), launch_host)

static CUresult add_callback(sim_frame *frame, bool per_thread, CUstream stream, CUstreamCallback callback, void *data, unsigned flags)
{
    (void)frame;
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (lane->capture)
        return sim_capture_query_lane(lane); /* not supported in captures */
    sim_op op = {.kind = SIM_OP_CALLBACK, .u.call = {.callback = callback, .stream = stream, .data = data}};
    return sim_submit(lane, &op);
}
BOTH(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned flags), (stream, callback, data, flags),
     add_callback)
