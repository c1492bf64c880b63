/*
 * Contexts: primary and user ones, and what goes with them when they end. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>

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
    if (!sim_thread_push(sim_self(), context)) {
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
