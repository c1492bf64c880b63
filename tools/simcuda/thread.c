/*
 * What the driver knows of each thread: its stack of current contexts. The record is the thread's own; sim.lock guards what it points to.
 * Called by every entry point that needs a context.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>

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

bool sim_thread_push(sim_thread *self, const sim_context *context)
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

/* ---- the thread's stack --------------------------------------------------------------------------------------------------------- */

static CUresult push_current(CUcontext handle)
{
    CUresult code;
    sim_context *context = sim_context_of(handle, &code);
    if (!context)
        return code;
    return sim_thread_push(sim_self(), context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
    SIM_RETURN(sim_thread_push(self, context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle)
{
    SIM_ENTER("cuCtxGetCurrent");
    SIM_REFUSE_IF(!handle, CUDA_ERROR_INVALID_VALUE);
    sim_thread *self = sim_self();
    *handle = self->depth ? SIM_AS_HANDLE(CUcontext, self->stack[self->depth - 1].handle) : NULL;
    SIM_RETURN(CUDA_SUCCESS);
}
