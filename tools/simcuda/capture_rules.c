/*
 * What a live capture forbids, to its own thread and to others, and what forbidden calls do to it. Guarded by sim.lock. Called by every
 * entry point that may disturb a capture.
 *
 * cuda.h, cuThreadExchangeStreamCaptureMode, says who is barred from potentially unsafe calls. A call that is refused because of a
 * capture invalidates it: its graph could not be trusted to hold everything the program meant.
 */
#include "sim_capture.h"

void sim_capture_invalidate(sim_capture *capture) { capture->invalid = true; }

/* Does the capture bar the calling thread? */
static bool bars(const sim_capture *capture, const sim_thread *self)
{
    if (self->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    if (capture->thread == self->number) {
        return true;
    }
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_unsafe(void)
{
    if (sim_captures == NULL) {
        return CUDA_SUCCESS;
    }
    CUresult code = CUDA_SUCCESS;
    const sim_thread *self = sim_self();
    for (sim_capture *capture = sim_captures; capture != NULL; capture = capture->next) {
        if (bars(capture, self)) {
            sim_capture_invalidate(capture);
            code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return code;
}

CUresult sim_capture_conflict(sim_context *context, bool blocking_only, CUresult code)
{
    CUresult result = CUDA_SUCCESS;
    if (context->captures == 0) {
        return result;
    }
    for (sim_lane *lane = context->lanes; lane != NULL; lane = lane->next) {
        if (lane->capture != NULL && (lane->blocking || !blocking_only)) {
            sim_capture_invalidate(lane->capture);
            result = code;
        }
    }
    return result;
}

CUresult sim_capture_query_lane(sim_lane *lane)
{
    if (lane->capture != NULL) {
        bool already = lane->capture->invalid;
        sim_capture_invalidate(lane->capture);
        return already ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (lane->context->captures != 0 && lane == lane->context->legacy) {
        return sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    return CUDA_SUCCESS;
}

CUresult sim_capture_query_event(sim_event *event)
{
    if (event->capture == NULL) {
        return CUDA_SUCCESS;
    }
    if (event->capture->live) {
        sim_capture_invalidate(event->capture);
    }
    return CUDA_ERROR_CAPTURED_EVENT;
}
