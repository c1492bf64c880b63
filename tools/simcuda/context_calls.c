/*
 * Calls about a context as a whole: what it is, synchronisation, context-wide events, peer access. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

/* ---- what a context is ------------------------------------------------------------------------------------------------------------- */

/* The context an argument names, NULL standing for the current one. */
static sim_context *given_or_current(CUcontext handle, CUresult *code)
{
    return handle ? sim_context_of(handle, code) : sim_context_current(code);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    SIM_ENTER("cuCtxGetDevice");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(!device, CUDA_ERROR_INVALID_VALUE);
    *device = context->device;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
    SIM_ENTER("cuCtxGetDevice_v2");
    CUresult code;
    sim_context *context = given_or_current(handle, &code);
    SIM_REFUSE_IF(!context, code);
    SIM_REFUSE_IF(!device, CUDA_ERROR_INVALID_VALUE);
    *device = context->device;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    SIM_ENTER("cuCtxGetId");
    CUresult code;
    sim_context *context = given_or_current(handle, &code);
    SIM_REFUSE_IF(!context, code);
    SIM_REFUSE_IF(!id, CUDA_ERROR_INVALID_VALUE);
    *id = context->id;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetFlags(unsigned *flags)
{
    SIM_ENTER("cuCtxGetFlags");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(!flags, CUDA_ERROR_INVALID_VALUE);
    *flags = context->flags;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
    SIM_ENTER("cuCtxGetApiVersion");
    CUresult code;
    SIM_REFUSE_IF(!given_or_current(handle, &code), code);
    SIM_REFUSE_IF(!version, CUDA_ERROR_INVALID_VALUE);
    *version = 3020; /* what drivers have answered since */
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_ENTER("cuCtxGetStreamPriorityRange");
    (void)SIM_NEED_CONTEXT();
    if (least)
        *least = SIM_PRIORITY_LEAST;
    if (greatest)
        *greatest = SIM_PRIORITY_GREATEST;
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- synchronisation ----------------------------------------------------------------------------------------------------------------- */

void sim_context_synchronise(sim_frame *frame, sim_context *context)
{
    if (frame)
        frame->host_waited = true;
    uint64_t generation = sim.generation;
    for (sim_lane *lane = context->lanes; lane; lane = lane->next) {
        if (lane->busy)
            sim_lane_finish(lane, lane->enqueued);
        if (generation != sim.generation)
            return;
        sim_host_observe(&lane->clock);
    }
}

static CUresult synchronise(sim_frame *frame, sim_context *context)
{
    CUresult code = sim_capture_conflict(context, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (code == CUDA_SUCCESS)
        sim_context_synchronise(frame, context);
    return code;
}

SIM_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
    SIM_ENTER("cuCtxSynchronize");
    sim_context *context = SIM_NEED_CONTEXT();
    SIM_RETURN(synchronise(&sim_here, context));
}

SIM_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle)
{
    SIM_ENTER("cuCtxSynchronize_v2");
    CUresult code;
    sim_context *context = given_or_current(handle, &code);
    SIM_REFUSE_IF(!context, code);
    SIM_RETURN(synchronise(&sim_here, context));
}

/* The fence stands for all activities of the context so far. */
static sim_lane *gather(sim_context *context)
{
    if (!context->fence && !(context->fence = sim_lane_new(context, false, "context")))
        return NULL;
    for (sim_lane *lane = context->lanes; lane; lane = lane->next)
        if (lane != context->fence && lane->seen_by_fence != lane->version) {
            lane->seen_by_fence = lane->version;
            sim_lane_wait_lane(context->fence, lane);
        }
    return context->fence;
}

SIM_EXPORT CUresult CUDAAPI cuCtxRecordEvent(CUcontext handle, CUevent event_handle)
{
    SIM_ENTER("cuCtxRecordEvent");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_CONTEXT_EVENTS);
    CUresult code;
    sim_context *context = given_or_current(handle, &code);
    SIM_REFUSE_IF(!context, code);
    sim_event *event = sim_event_of(event_handle, &code);
    SIM_REFUSE_IF(!event, code);
    SIM_REFUSE_IF(event->context != context, CUDA_ERROR_INVALID_HANDLE);
    code = sim_capture_conflict(context, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    sim_lane *fence = gather(context);
    SIM_REFUSE_IF(!fence, CUDA_ERROR_OUT_OF_MEMORY);
    sim_capture_forget_event(event);
    sim_lane_record(fence, event);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxWaitEvent(CUcontext handle, CUevent event_handle)
{
    SIM_ENTER("cuCtxWaitEvent");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_CONTEXT_EVENTS);
    CUresult code;
    sim_context *context = given_or_current(handle, &code);
    SIM_REFUSE_IF(!context, code);
    sim_event *event = sim_event_of(event_handle, &code);
    SIM_REFUSE_IF(!event, code);
    code = sim_capture_conflict(context, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    SIM_REFUSE_IF(event->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (!context->fence && !(context->fence = sim_lane_new(context, false, "context")))
        SIM_RETURN(CUDA_ERROR_OUT_OF_MEMORY);
    for (sim_lane *lane = context->lanes; lane; lane = lane->next)
        if (lane->open)
            sim_lane_wait_event(lane, event);
    context->fence_holds = true; /* streams created later wait for the fence */
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- peers ------------------------------------------------------------------------------------------------------------------------------
 */

SIM_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    SIM_ENTER("cuDeviceCanAccessPeer");
    SIM_REFUSE_IF(!sim_device_valid(device) || !sim_device_valid(peer), CUDA_ERROR_INVALID_DEVICE);
    SIM_REFUSE_IF(!can, CUDA_ERROR_INVALID_VALUE);
    *can = device != peer && sim.features[SIMCUDA_FEATURE_PEER];
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext handle, unsigned flags)
{
    SIM_ENTER("cuCtxEnablePeerAccess");
    sim_context *context = SIM_NEED_CONTEXT();
    CUresult code;
    sim_context *peer = sim_context_of(handle, &code);
    SIM_REFUSE_IF(!peer, code);
    SIM_REFUSE_IF(flags, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(peer == context, CUDA_ERROR_INVALID_CONTEXT);
    SIM_REFUSE_IF(!sim.features[SIMCUDA_FEATURE_PEER] || peer->device == context->device, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    uint64_t bit = UINT64_C(1) << peer->device;
    SIM_REFUSE_IF(context->peers & bit, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= bit;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext handle)
{
    SIM_ENTER("cuCtxDisablePeerAccess");
    sim_context *context = SIM_NEED_CONTEXT();
    CUresult code;
    sim_context *peer = sim_context_of(handle, &code);
    SIM_REFUSE_IF(!peer, code);
    uint64_t bit = UINT64_C(1) << peer->device;
    SIM_REFUSE_IF(!(context->peers & bit), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~bit;
    SIM_RETURN(CUDA_SUCCESS);
}
