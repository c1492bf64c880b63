/*
 * Events: marks on lanes. A record copies the lane's clock; a successful query or synchronise is how the host comes to know that the
 * work before the mark is over. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>

#define KNOWN_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

sim_event *sim_event_of(CUevent handle, CUresult *code)
{
    *code = CUDA_ERROR_INVALID_HANDLE;
    return handle ? sim_handle_get(SIM_EVENT, SIM_NUMBER(handle)) : NULL;
}

bool sim_event_done(const sim_event *event) { return !event->recorded || sim_lane_done(event->lane, event->tick); }

SIM_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *handle, unsigned flags)
{
    SIM_ENTER("cuEventCreate");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(!handle || flags & ~(unsigned)KNOWN_FLAGS, CUDA_ERROR_INVALID_VALUE);
    /* cuda.h: INTERPROCESS "must be specified along with" DISABLE_TIMING */
    SIM_REFUSE_IF((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_VALUE);
    sim_event *event = calloc(1, sizeof *event);
    SIM_REFUSE_IF(!event, CUDA_ERROR_OUT_OF_MEMORY);
    event->handle = sim_handle_new(SIM_EVENT, event);
    if (!event->handle) {
        free(event);
        SIM_RETURN(CUDA_ERROR_OUT_OF_MEMORY);
    }
    event->flags = flags;
    event->context = context;
    event->context_id = context->id;
    *handle = SIM_AS_HANDLE(CUevent, event->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

static void event_delete(sim_event *event)
{
    sim_capture_forget_event(event);
    sim_handle_drop(SIM_EVENT, event->handle);
    sim_clock_free(&event->clock);
    free(event);
}

static CUresult destroy(CUevent handle)
{
    CUresult code;
    sim_event *event = sim_event_of(handle, &code);
    if (!event)
        return code;
    event_delete(event);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventDestroy(CUevent handle)
{
    SIM_ENTER("cuEventDestroy");
    SIM_RETURN(destroy(handle));
}

SIM_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent handle)
{
    SIM_ENTER("cuEventDestroy_v2");
    SIM_RETURN(destroy(handle));
}

void sim_event_forget_context(sim_context *context)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_EVENT, i, &object); i++)
        if (object && ((sim_event *)object)->context == context)
            event_delete(object);
}

void sim_event_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_EVENT, i, &object); i++)
        if (object) {
            sim_clock_free(&((sim_event *)object)->clock);
            free(object);
        }
}

static CUresult record(CUevent handle, CUstream stream, bool per_thread, unsigned flags)
{
    CUresult code;
    sim_event *event = sim_event_of(handle, &code);
    if (!event)
        return code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    if (!lane)
        return code;
    if (event->context != lane->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (lane->capture)
        return sim_capture_record(lane, event, flags);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE; /* cuda.h: EXTERNAL "is invalid outside of stream capture" */
    if (lane == lane->context->legacy && lane->context->captures) {
        code = sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        if (code != CUDA_SUCCESS)
            return code;
    }
    sim_capture_forget_event(event);
    sim_lane_record(lane, event);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream)
{
    SIM_ENTER("cuEventRecord");
    SIM_RETURN(record(event, stream, false, 0));
}

SIM_EXPORT CUresult CUDAAPI cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    SIM_ENTER("cuEventRecord_ptsz");
    SIM_RETURN(record(event, stream, true, 0));
}

SIM_EXPORT CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    SIM_ENTER("cuEventRecordWithFlags");
    SIM_RETURN(record(event, stream, false, flags));
}

SIM_EXPORT CUresult CUDAAPI cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    SIM_ENTER("cuEventRecordWithFlags_ptsz");
    SIM_RETURN(record(event, stream, true, flags));
}

SIM_EXPORT CUresult CUDAAPI cuEventQuery(CUevent handle)
{
    SIM_ENTER("cuEventQuery");
    CUresult code;
    sim_event *event = sim_event_of(handle, &code);
    SIM_REFUSE_IF(!event, code);
    code = sim_capture_query_event(event);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    if (!sim_event_done(event) && !sim_lane_poll(event->lane, event->tick))
        SIM_RETURN(CUDA_ERROR_NOT_READY);
    if (event->recorded)
        sim_host_observe(&event->clock);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent handle)
{
    SIM_ENTER("cuEventSynchronize");
    CUresult code;
    sim_event *event = sim_event_of(handle, &code);
    SIM_REFUSE_IF(!event, code);
    code = sim_capture_query_event(event);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    if (event->recorded) {
        uint32_t lane = event->lane, tick = event->tick;
        sim_clock clock = {NULL, 0}; /* the event may be recorded anew while callbacks run */
        sim_clock_copy(&clock, &event->clock);
        if (sim_lane_at(lane))
            sim_lane_finish(sim_lane_at(lane), tick);
        sim_host_observe(&clock);
        sim_clock_free(&clock);
    }
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    CUresult code;
    sim_event *start = sim_event_of(start_handle, &code);
    sim_event *end = start ? sim_event_of(end_handle, &code) : NULL;
    if (!end)
        return code;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    /* cuda.h: never recorded, or created with DISABLE_TIMING: INVALID_HANDLE; not complete: NOT_READY */
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_event_done(start) || !sim_event_done(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(((double)end->time_ns - (double)start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    SIM_ENTER("cuEventElapsedTime");
    SIM_RETURN(elapsed(milliseconds, start, end));
}

SIM_EXPORT CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    SIM_ENTER("cuEventElapsedTime_v2");
    SIM_RETURN(elapsed(milliseconds, start, end));
}
