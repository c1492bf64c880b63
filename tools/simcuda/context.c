/*
 * Contexts: primary and user ones, each thread's stack of current contexts, peer access, context-wide events and synchronisation.
 * Guarded by sim.lock, but for the calling thread's own record.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local sim_thread *self_record;
static pthread_key_t self_key;
static pthread_once_t self_once = PTHREAD_ONCE_INIT;
static _Atomic uint32_t threads_seen;

static void forget_thread(void *record)
{
    sim_thread *self = record;
    free(self->stack);
    free(self->defaults);
    free(self);
}

static void make_key(void) { pthread_key_create(&self_key, forget_thread); }

sim_thread *sim_self(void)
{
    sim_thread *self = self_record;
    if (!self) {
        pthread_once(&self_once, make_key);
        self = calloc(1, sizeof *self);
        if (!self)
            abort();
        self->number = ++threads_seen;
        self_record = self;
        pthread_setspecific(self_key, self);
    }
    return self;
}

void sim_thread_refresh(void)
{
    sim_thread *self = sim_self();
    if (self->generation != sim.generation) {
        self->generation = sim.generation;
        self->depth = 0;
        self->default_count = 0;
        self->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        self->captures = 0;
    }
}

static bool push(sim_thread *self, const sim_context *context)
{
    if (self->depth == self->room) {
        unsigned room = self->room ? self->room * 2 : 8;
        struct sim_stacked *stack = realloc(self->stack, room * sizeof *stack);
        if (!stack)
            return false;
        self->stack = stack;
        self->room = room;
    }
    self->stack[self->depth++] = (struct sim_stacked){context->handle, context->id};
    return true;
}

sim_context *sim_context_of(CUcontext handle, CUresult *code)
{
    *code = CUDA_ERROR_INVALID_CONTEXT;
    return handle ? sim_handle_get(SIM_CONTEXT, SIM_NUMBER(handle)) : NULL;
}

sim_context *sim_context_current(CUresult *code)
{
    sim_thread *self = sim_self();
    *code = CUDA_ERROR_INVALID_CONTEXT;
    if (self->depth == 0)
        return NULL;
    const struct sim_stacked *top = &self->stack[self->depth - 1];
    sim_context *context = sim_handle_get(SIM_CONTEXT, top->handle);
    if (context && (context->id == top->id || context->primary)) /* a primary context comes back as the same one */
        return context;
    if (context)
        sim_find(SIMCUDA_USE_AFTER_DESTROY, "the thread's current context 0x%llx was destroyed before", (unsigned long long)top->handle);
    *code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return NULL;
}

sim_context *sim_context_primary(int device) { return sim.devices[device].primary; }

sim_lane *sim_context_legacy(sim_context *context)
{
    if (!context->legacy)
        context->legacy = sim_lane_new(context, true, "legacy stream");
    return context->legacy;
}

static sim_context *context_new(int device, unsigned flags, bool primary)
{
    sim_context *context = calloc(1, sizeof *context);
    if (!context)
        return NULL;
    context->handle = sim_handle_new(SIM_CONTEXT, context);
    if (!context->handle) {
        free(context);
        return NULL;
    }
    context->id = ++sim.next_id;
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    return context;
}

/* Everything the context owns goes; memory of cuMemCreate and of pools stays (cuda.h, cuCtxDestroy). */
void sim_context_clear(sim_context *context)
{
    sim_other_context_gone(context);
    sim_stream_forget_context(context);
    sim_event_forget_context(context);
    sim_lane_forget_context(context);
    sim_mapping_forget_context(context);
    context->legacy = context->fence = NULL;
    context->fence_holds = false;
    context->peers = 0;
    context->clear_count++;
}

static void context_delete(sim_context *context)
{
    sim_context_clear(context);
    sim_handle_drop(SIM_CONTEXT, context->handle);
    free(context);
}

void sim_context_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_CONTEXT, i, &object); i++)
        free(object);
}

/* ---- primary contexts ---------------------------------------------------------------------------------------------------------- */

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    SIM_ENTER("cuDevicePrimaryCtxRetain");
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_REFUSE_IF(!handle, CUDA_ERROR_INVALID_VALUE);
    sim_device *owner = &sim.devices[device];
    if (!owner->primary)
        owner->primary = context_new(device, owner->primary_flags, true);
    SIM_REFUSE_IF(!owner->primary, CUDA_ERROR_OUT_OF_MEMORY);
    owner->primary_retains++;
    *handle = SIM_AS_HANDLE(CUcontext, owner->primary->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

static CUresult primary_release(CUdevice device)
{
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_device *owner = &sim.devices[device];
    if (!owner->primary || owner->primary_retains == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--owner->primary_retains == 0) {
        context_delete(owner->primary);
        owner->primary = NULL;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    SIM_ENTER("cuDevicePrimaryCtxRelease");
    SIM_RETURN(primary_release(device));
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    SIM_ENTER("cuDevicePrimaryCtxRelease_v2");
    SIM_RETURN(primary_release(device));
}

static CUresult primary_reset(CUdevice device)
{
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (sim.devices[device].primary)
        sim_context_clear(sim.devices[device].primary); /* cuda.h: "Resetting the primary context does not release it" */
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    SIM_ENTER("cuDevicePrimaryCtxReset");
    SIM_RETURN(primary_reset(device));
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    SIM_ENTER("cuDevicePrimaryCtxReset_v2");
    SIM_RETURN(primary_reset(device));
}

static CUresult primary_set_flags(CUdevice device, unsigned flags)
{
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    sim.devices[device].primary_flags = flags;
    if (sim.devices[device].primary)
        sim.devices[device].primary->flags = flags;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    SIM_ENTER("cuDevicePrimaryCtxSetFlags");
    SIM_RETURN(primary_set_flags(device, flags));
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    SIM_ENTER("cuDevicePrimaryCtxSetFlags_v2");
    SIM_RETURN(primary_set_flags(device, flags));
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    SIM_ENTER("cuDevicePrimaryCtxGetState");
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_REFUSE_IF(!flags || !active, CUDA_ERROR_INVALID_VALUE);
    *flags = sim.devices[device].primary_flags;
    *active = sim.devices[device].primary != NULL;
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- user contexts ----------------------------------------------------------------------------------------------------------------- */

static CUresult create(CUcontext *handle, unsigned flags, CUdevice device)
{
    if (!handle || flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_context *context = context_new(device, flags, false);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!push(sim_self(), context)) {
        context_delete(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = SIM_AS_HANDLE(CUcontext, context->handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned flags, CUdevice device)
{
    SIM_ENTER("cuCtxCreate_v2");
    SIM_RETURN(create(handle, flags, device));
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    SIM_ENTER("cuCtxCreate_v3");
    SIM_REFUSE_IF(affinity || count, CUDA_ERROR_NOT_SUPPORTED);
    SIM_RETURN(create(handle, flags, device));
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    SIM_ENTER("cuCtxCreate_v4");
    SIM_REFUSE_IF(params && (params->execAffinityParams || params->numExecAffinityParams || params->cigParams), CUDA_ERROR_NOT_SUPPORTED);
    SIM_RETURN(create(handle, flags, device));
}

static CUresult destroy(CUcontext handle)
{
    CUresult code;
    sim_context *context = sim_context_of(handle, &code);
    if (!context)
        return code;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_thread *self = sim_self();
    if (self->depth && self->stack[self->depth - 1].id == context->id)
        self->depth--;
    context_delete(context);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext handle)
{
    SIM_ENTER("cuCtxDestroy");
    SIM_RETURN(destroy(handle));
}

SIM_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle)
{
    SIM_ENTER("cuCtxDestroy_v2");
    SIM_RETURN(destroy(handle));
}

/* ---- the thread's stack --------------------------------------------------------------------------------------------------------- */

static CUresult push_current(CUcontext handle)
{
    CUresult code;
    sim_context *context = sim_context_of(handle, &code);
    if (!context)
        return code;
    return push(sim_self(), context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle)
{
    SIM_ENTER("cuCtxPushCurrent");
    SIM_RETURN(push_current(handle));
}

SIM_EXPORT CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle)
{
    SIM_ENTER("cuCtxPushCurrent_v2");
    SIM_RETURN(push_current(handle));
}

static CUresult pop_current(CUcontext *handle)
{
    sim_thread *self = sim_self();
    if (self->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    self->depth--;
    if (handle)
        *handle = SIM_AS_HANDLE(CUcontext, self->stack[self->depth].handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext *handle)
{
    SIM_ENTER("cuCtxPopCurrent");
    SIM_RETURN(pop_current(handle));
}

SIM_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *handle)
{
    SIM_ENTER("cuCtxPopCurrent_v2");
    SIM_RETURN(pop_current(handle));
}

SIM_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle)
{
    SIM_ENTER("cuCtxSetCurrent");
    sim_thread *self = sim_self();
    if (!handle) {
        if (self->depth)
            self->depth--;
        SIM_RETURN(CUDA_SUCCESS);
    }
    CUresult code;
    sim_context *context = sim_context_of(handle, &code);
    SIM_REFUSE_IF(!context, code);
    if (self->depth)
        self->depth--;
    SIM_RETURN(push(self, context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle)
{
    SIM_ENTER("cuCtxGetCurrent");
    SIM_REFUSE_IF(!handle, CUDA_ERROR_INVALID_VALUE);
    sim_thread *self = sim_self();
    *handle = self->depth ? SIM_AS_HANDLE(CUcontext, self->stack[self->depth - 1].handle) : NULL;
    SIM_RETURN(CUDA_SUCCESS);
}

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
