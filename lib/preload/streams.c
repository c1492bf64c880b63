/*
 * Replacements for the calls about streams: their end, and captures. Owns nothing; the captures of a context are counted in contexts.c.
 * Called by programs.
 *
 * While a capture is live the pool makes no call that would invalidate it, so it hears of a capture before it begins and after it ended.
 * A capture ends where the program says so, where its stream is destroyed, and with its context.
 */
#include "preload/preload.h"

/* A stream's two questions, in the form that the caller's stream 0 asks for. */
typedef struct stream_form {
    CUresult (*context)(CUstream stream, CUcontext *context);
    CUresult (*capturing)(CUstream stream, CUstreamCaptureStatus *status);
} stream_form;

static stream_form form_of(bool per_thread)
{
    const preload_driver *driver = cmi_preload_driver();
    return per_thread ? (stream_form){driver->cuStreamGetCtx_ptsz, driver->cuStreamIsCapturing_ptsz}
                      : (stream_form){driver->cuStreamGetCtx, driver->cuStreamIsCapturing};
}

static bool is_capturing(const stream_form *form, CUstream stream)
{
    CUstreamCaptureStatus status = 0;
    return form->capturing && form->capturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

static CUcontext context_of(const stream_form *form, CUstream stream)
{
    CUcontext context = NULL;
    return form->context && form->context(stream, &context) == CUDA_SUCCESS ? context : NULL;
}

bool cmi_preload_stream_device(CUstream stream, bool per_thread, int *device)
{
    stream_form form = form_of(per_thread);
    CUcontext here;
    preload_context known;
    if (!cmi_preload_here(&here, device) || (cmi_preload_capture_is_live() && is_capturing(&form, stream))) {
        return false;
    }
    CUcontext context = context_of(&form, stream);
    if (context != here && !cmi_preload_context_find(context, &known)) {
        return false;
    }
    *device = context == here ? *device : known.device;
    return true;
}

/* ---- captures ---------------------------------------------------------------------------------------------------------------------------
 */

/* The context whose count of captures is to rise, or NULL: not followed. */
static CUcontext before_begin(CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if (cmi_preload_enter()) {
        stream_form form = form_of(per_thread);
        CUcontext here;
        int device;
        (void)cmi_preload_here(&here, &device); /* so that it is known */
        context = context_of(&form, stream);
        if (context && cmpool_capture_begin(0) != CMPOOL_OK) {
            context = NULL;
        }
        cmi_preload_leave();
    }
    return context;
}

static CUresult after_begin(CUresult code, CUcontext context)
{
    if (context && cmi_preload_enter()) {
        if (code != CUDA_SUCCESS || !cmi_preload_context_captures(context, 1)) {
            (void)cmpool_capture_end(0);
        }
        cmi_preload_leave();
    }
    return code;
}

#define BEGIN(name, per_thread, stream, ...)                              \
    do {                                                                  \
        CUcontext context_ = before_begin(stream, per_thread);            \
        return after_begin(PRELOAD_FORWARD(name, __VA_ARGS__), context_); \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream) { BEGIN(cuStreamBeginCapture, false, stream, stream); }

CUresult cuStreamBeginCapture_ptsz(CUstream stream) { BEGIN(cuStreamBeginCapture_ptsz, true, stream, stream); }

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { BEGIN(cuStreamBeginCapture_v2, false, stream, stream, mode); }

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2_ptsz, true, stream, stream, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
                                     CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, false, stream, stream, graph, after, edges, count, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
                                          size_t count, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph_ptsz, true, stream, stream, graph, after, edges, count, mode);
}

/* The context of a stream that is capturing, or NULL. */
static CUcontext before_end(CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if (cmi_preload_enter()) {
        stream_form form = form_of(per_thread);
        context = is_capturing(&form, stream) ? context_of(&form, stream) : NULL;
        cmi_preload_leave();
    }
    return context;
}

static void capture_ended(CUcontext context)
{
    if (cmi_preload_context_captures(context, -1)) {
        (void)cmpool_capture_end(0);
    }
}

/* The code does not say it: a capture that was invalidated ends with an error, one that waits for a join does not end with another. */
static CUresult after_end(CUresult code, CUcontext context, CUstream stream, bool per_thread)
{
    if (context && cmi_preload_enter()) {
        stream_form form = form_of(per_thread);
        if (!is_capturing(&form, stream)) {
            capture_ended(context);
        }
        cmi_preload_leave();
    }
    return code;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUcontext context = before_end(stream, false);
    return after_end(PRELOAD_FORWARD(cuStreamEndCapture, stream, graph), context, stream, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    CUcontext context = before_end(stream, true);
    return after_end(PRELOAD_FORWARD(cuStreamEndCapture_ptsz, stream, graph), context, stream, true);
}

/* ---- the end of a stream
 * -------------------------------------------------------------------------------------------------------------------- */

/* Frees that were made on the stream are covered while its handle lives. Returns as before_end. */
static CUcontext before_destroy(CUstream stream)
{
    CUcontext capturing = NULL;
    if (cmi_preload_enter()) {
        stream_form form = form_of(false);
        CUcontext context = context_of(&form, stream);
        preload_context known;
        capturing = is_capturing(&form, stream) ? context : NULL;
        if (context && cmi_preload_context_find(context, &known) && cmi_preload_pool_of(known.device)) {
            (void)cmpool_stream_retire(known.device, stream);
        }
        cmi_preload_leave();
    }
    return capturing;
}

static CUresult after_destroy(CUresult code, CUcontext capturing)
{
    if (code == CUDA_SUCCESS && capturing && cmi_preload_enter()) {
        capture_ended(capturing);
        cmi_preload_leave();
    }
    return code;
}

CUresult cuStreamDestroy(CUstream stream)
{
    CUcontext capturing = before_destroy(stream);
    return after_destroy(PRELOAD_FORWARD(cuStreamDestroy, stream), capturing);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUcontext capturing = before_destroy(stream);
    return after_destroy(PRELOAD_FORWARD(cuStreamDestroy_v2, stream), capturing);
}
