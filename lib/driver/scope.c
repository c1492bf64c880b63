/*
 * Enter and leave: the context and the capture mode under which the library calls the driver, and the caller's own put back after.
 * Owns nothing; a scope belongs to its thread, so there is no lock. Called around every driver call off the hot path.
 *
 * A driver call that fails may or may not have had its effect, so after a failure the thread's state is asked for, not assumed.
 */
#include "driver/driver.h"

#include "base/base.h"

static bool is_current(const cmi_driver *driver, CUcontext context)
{
    CUcontext current = NULL;
    return driver->CtxGetCurrent(&current) == CUDA_SUCCESS && current == context;
}

/* `context` was pushed over another one: take it off again. */
static void pop_context(const cmi_driver *driver, CUcontext context)
{
    CUcontext popped;
    CUresult code = driver->CtxPopCurrent(&popped);
    if (code != CUDA_SUCCESS && is_current(driver, context))
        code = driver->CtxPopCurrent(&popped);
    if (code != CUDA_SUCCESS && is_current(driver, context))
        cmi_log(CMI_LOG_ERROR, "the caller's CUDA context could not be put back: cuCtxPopCurrent says %s", cmi_driver_code_name(code));
}

/* The exchange gives the old mode back in *mode: where it differs from what was passed in, the exchange took place. */
static void restore_mode(const cmi_driver *driver, CUstreamCaptureMode own)
{
    CUstreamCaptureMode mode = own;
    CUresult code = driver->ThreadExchangeStreamCaptureMode(&mode);
    if (code != CUDA_SUCCESS && mode == own)
        code = driver->ThreadExchangeStreamCaptureMode(&mode);
    if (code != CUDA_SUCCESS && mode == own && code != CUDA_ERROR_DEINITIALIZED)
        cmi_log(CMI_LOG_ERROR, "the thread's capture mode could not be put back: cuThreadExchangeStreamCaptureMode says %s",
                cmi_driver_code_name(code));
}

cmpool_status cmi_driver_enter(cmi_driver_scope *scope, const cmi_driver *driver, CUcontext context)
{
    *scope = (cmi_driver_scope){.driver = driver, .context = context, .mode = CU_STREAM_CAPTURE_MODE_RELAXED};

    CUcontext current = NULL;
    CUresult code = driver->CtxGetCurrent(&current);
    if (code != CUDA_SUCCESS)
        return cmi_driver_status("cuCtxGetCurrent", code);
    if (current != context) {
        code = driver->CtxPushCurrent(context);
        if (code != CUDA_SUCCESS) {
            if (is_current(driver, context))
                pop_context(driver, context);
            return cmi_driver_status("cuCtxPushCurrent", code);
        }
        scope->pushed = true;
    }

    code = driver->ThreadExchangeStreamCaptureMode(&scope->mode);
    scope->exchanged = scope->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    if (code != CUDA_SUCCESS) {
        cmi_driver_leave(scope);
        return cmi_driver_status("cuThreadExchangeStreamCaptureMode", code);
    }
    return CMPOOL_OK;
}

void cmi_driver_leave(cmi_driver_scope *scope)
{
    if (scope->exchanged)
        restore_mode(scope->driver, scope->mode);
    if (scope->pushed)
        pop_context(scope->driver, scope->context);
}
