/*
 * Fences: events behind freed memory. Owns the list of outstanding fences and the spare events; guarded by the device lock; called by the
 * ladder, free and trim. Events are recorded on a stream only inside a call that names it; everything else that must be covered is covered
 * by an event of its whole context, which needs no stream handle. An event is recorded before anything behind it becomes visible.
 */
#include "pool/pool.h"

enum { FENCES_PER_SCOPE = 8, QUERIES_PER_POLL = 64 };

static bool same_scope(const cmi_fence *fence, uint32_t stream, uint32_t context)
{
    return fence->stream == stream && (stream != CMI_NO_STREAM || fence->context == context);
}

/* An event for the call in progress: a spare one, or a new one (driver entered, lock not held). */
static CUevent pop_spare(cmi_device *device, uint32_t context)
{
    return context == 0 && device->spare_count ? device->spare_events[--device->spare_count] : NULL;
}

static void destroy_event(cmi_device *device, CUevent event)
{
    cmi_call call;
    if (cmi_device_call_begin(device, &call, 0) == CMPOOL_OK) {
        device->driver->EventDestroy(event);
        cmi_device_call_end(device, &call);
    }
}

/* Spare events are few and belong to the primary context; any other is destroyed. May drop and retake the lock. */
static void retire_event(cmi_device *device, CUevent event, uint32_t context)
{
    if (context == 0 && device->spare_count == device->spare_room) {
        uint32_t room = device->spare_room ? device->spare_room * 2 : 16;
        CUevent *grown = cmi_meta_resize(device->spare_events, device->spare_room * sizeof *grown, room * sizeof *grown);
        if (grown) {
            device->spare_events = grown;
            device->spare_room = room;
        }
    }
    if (context == 0 && device->spare_count < device->spare_room) {
        device->spare_events[device->spare_count++] = event;
    } else {
        destroy_event(device, event);
    }
}

/* Events end with their context: what was reset or destroyed under us has taken the spare ones with it. */
static void forget_spares(cmi_device *device)
{
    while (device->spare_count) {
        destroy_event(device, device->spare_events[--device->spare_count]);
    }
}

/* Whether a call in one of the program's contexts failed because that context is no more. Then all of its work is over. */
static bool has_gone(cmi_device *device, uint32_t context, cmpool_status status)
{
    int code = cmi_error_detail()->driver_code;
    if (context == 0 || status != CMPOOL_ERR_DEVICE_LOST ||
        (code != CUDA_ERROR_CONTEXT_IS_DESTROYED && code != CUDA_ERROR_INVALID_CONTEXT)) {
        return false;
    }
    cmi_context_remove(device, device->contexts[context].handle);
    return true;
}

/* Whether a failed call on an event of the primary context may mean that the context has gone. */
static bool is_suspect(uint32_t context, CUresult code)
{
    return context == 0 &&
           (code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_CONTEXT);
}

/* Take fences out that are marked done and that nobody is using. */
void cmi_fence_sweep(cmi_device *device)
{
    for (uint32_t i = 0; i < device->fence_count;) {
        cmi_fence *fence = &device->fences[i];
        if (!fence->done || fence->pins) {
            i++;
            continue;
        }
        CUevent event = fence->event;
        uint32_t context = fence->context;
        device->fence_count--;
        for (uint32_t j = i; j < device->fence_count; j++) {
            device->fences[j] = device->fences[j + 1];
        }
        retire_event(device, event, context);
        i = 0; /* the lock may have been dropped */
    }
}

static bool make_room(cmi_device *device)
{
    if (device->fence_count < device->fence_room) {
        return true;
    }
    uint32_t room = device->fence_room ? device->fence_room * 2 : 32;
    cmi_fence *grown = cmi_meta_resize(device->fences, device->fence_room * sizeof *grown, room * sizeof *grown);
    if (!grown) {
        return false;
    }
    device->fences = grown;
    device->fence_room = room;
    return true;
}

/* Enter a recorded event. Where a scope has many, the second youngest is given up: the youngest covers what it covers. */
static void publish(cmi_device *device, CUevent event, uint64_t ticket, uint32_t stream, uint32_t context)
{
    uint32_t count = 0, youngest = UINT32_MAX;
    for (uint32_t i = 0; i < device->fence_count; i++) {
        if (same_scope(&device->fences[i], stream, context) && !device->fences[i].done) {
            count++;
            youngest = youngest == UINT32_MAX || device->fences[i].ticket > device->fences[youngest].ticket ? i : youngest;
        }
    }
    bool surplus = count >= FENCES_PER_SCOPE;
    bool overtaken = surplus && device->fences[youngest].ticket > ticket; /* two threads recorded, and publish the other way round */
    if (surplus && !overtaken) {
        device->fences[youngest].done = true; /* in the sense of "no longer needed" */
    }
    device->fences[device->fence_count++] =
        (cmi_fence){.event = event, .ticket = ticket, .stream = stream, .context = context, .done = overtaken};
    if (stream != CMI_NO_STREAM) {
        device->streams[stream].covered = cmi_max_u64(device->streams[stream].covered, ticket);
    } else {
        device->contexts[context].covered = cmi_max_u64(device->contexts[context].covered, ticket);
    }
}

/* Record one event on a stream (handle) or, with stream CMI_NO_STREAM, on a whole context. */
static cmpool_status record(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle, uint32_t context)
{
    if (cmi_capture_is_live()) {
        return CMPOOL_ERR_CAPTURE; /* an event of a context invalidates every capture in it */
    }
    if (!make_room(device)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t ticket = CMI_MUTATION(EVENT_AFTER_PUBLICATION) ? device->ticket : device->ticket++;
    if (stream != CMI_NO_STREAM) {
        device->streams[stream].open_frees = 0;
        device->streams[stream].open_bytes = 0;
    }
    CUevent event = pop_spare(device, context);
    CUcontext owner = device->contexts[context].handle;
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(device, &call, context);
    if (status != CMPOOL_OK) {
        if (event) {
            retire_event(device, event, context);
        }
        return status;
    }
    const cmi_driver *driver = device->driver;
    CUresult code = CUDA_SUCCESS;
    if (stream != CMI_NO_STREAM) {
        CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
        code = driver->StreamIsCapturing(handle, &capture);
        if (code == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE) {
            code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* recording would become a node of the program's graph */
        }
    }
    if (code == CUDA_SUCCESS && !event) {
        code = driver->EventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (code != CUDA_SUCCESS) {
            event = NULL;
        }
    }
    if (code == CUDA_SUCCESS) {
        code = stream != CMI_NO_STREAM ? driver->EventRecord(event, handle) : driver->CtxRecordEvent(owner, event);
    }
    cmi_capture_barred_end(device, &call);
    status = cmi_driver_status(stream != CMI_NO_STREAM ? "cuEventRecord" : "cuCtxRecordEvent", code);
    if (status == CMPOOL_OK && make_room(device)) {
        pool->counters.events_recorded++;
        publish(device, event, ticket, stream, context);
        cmi_fence_sweep(device);
        return CMPOOL_OK;
    }
    if (is_suspect(context, code)) {
        (void)cmi_device_ask_lost(device);
    }
    if (event && code == CUDA_ERROR_INVALID_HANDLE) {
        destroy_event(device, event);
        forget_spares(device);
    } else if (event) {
        retire_event(device, event, context);
    }
    return status == CMPOOL_OK ? CMPOOL_ERR_OUT_OF_HOST_MEMORY : status;
}

cmpool_status cmi_fence_stream(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle)
{
    return record(device, pool, stream, handle, device->streams[stream].context);
}

cmpool_status cmi_fence_contexts(cmi_device *device, cmi_pool *pool)
{
    if (!device->driver->CtxRecordEvent || !device->driver->CtxWaitEvent) {
        return CMPOOL_ERR_UNSUPPORTED;
    }
    for (uint32_t i = 1; CMI_MUTATION(REMEMBERED_HANDLE) && i < device->stream_count; i++) {
        if (!device->streams[i].retired) {
            (void)cmi_fence_stream(device, pool, i, device->streams[i].handle);
        }
    }
    for (uint32_t i = 0; i < device->context_count; i++) {
        if (device->contexts[i].gone) {
            continue;
        }
        cmpool_status status = record(device, pool, CMI_NO_STREAM, NULL, i);
        if (status != CMPOOL_OK && !has_gone(device, i, status)) {
            return status;
        }
    }
    return CMPOOL_OK;
}

/* (stream or context) is seen done up to ticket: note it, and every fence that says no more than that is done too. */
static void note_done(cmi_device *device, uint32_t stream, uint32_t context, uint64_t ticket)
{
    uint64_t *done = stream != CMI_NO_STREAM ? &device->streams[stream].done : &device->contexts[context].done;
    if (*done < ticket) {
        *done = ticket;
        device->done_changes++;
    }
    for (uint32_t i = 0; i < device->fence_count; i++) {
        cmi_fence *fence = &device->fences[i];
        bool within = stream != CMI_NO_STREAM ? fence->stream == stream : fence->context == context;
        if (within && (fence->ticket <= ticket || CMI_MUTATION(FENCE_GIVEN_UP))) {
            fence->done = true;
        }
    }
}

typedef struct query {
    CUevent event;
    uint64_t ticket;
    uint32_t stream, context;
    bool asked, ready;
} query;

void cmi_fence_unpin(cmi_device *device, CUevent event)
{
    for (uint32_t i = 0; i < device->fence_count; i++) {
        if (device->fences[i].event == event) {
            device->fences[i].pins--;
            return;
        }
    }
}

cmpool_status cmi_fence_poll(cmi_device *device, cmi_pool *pool)
{
    if (cmi_capture_is_live()) {
        return CMPOOL_ERR_CAPTURE;
    }
    query queries[QUERIES_PER_POLL];
    uint32_t count = 0;
    for (uint32_t i = 0; i < device->fence_count && count < QUERIES_PER_POLL; i++) {
        cmi_fence *fence = &device->fences[i];
        if (!fence->done) {
            fence->pins++;
            queries[count++] = (query){fence->event, fence->ticket, fence->stream, fence->context, false, false};
        }
    }
    if (!count) {
        return CMPOOL_OK;
    }
    cmi_call call;
    bool suspect = false;
    cmpool_status status = cmi_capture_barred_begin(device, &call, 0);
    if (status == CMPOOL_OK) {
        for (uint32_t i = 0; i < count; i++) {
            bool behind = false; /* an older event of the same scope is not ready: neither is this one */
            for (uint32_t j = 0; j < i && !behind; j++) {
                behind = queries[j].asked && !queries[j].ready && queries[j].stream == queries[i].stream &&
                         queries[j].context == queries[i].context;
            }
            if (!behind) {
                queries[i].asked = true;
                CUresult code = device->driver->EventQuery(queries[i].event);
                queries[i].ready = code == CUDA_SUCCESS || CMI_MUTATION(DONE_BEFORE_READY);
                if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY) {
                    status = cmi_driver_status("cuEventQuery", code); /* not reusable, and worth telling */
                    suspect = suspect || is_suspect(queries[i].context, code);
                }
            }
        }
        cmi_capture_barred_end(device, &call);
    }
    for (uint32_t i = 0; i < count; i++) {
        cmi_fence_unpin(device, queries[i].event);
        pool->counters.events_queried += queries[i].asked;
        if (queries[i].ready) {
            note_done(device, queries[i].stream, queries[i].context, queries[i].ticket);
        }
    }
    if (suspect) {
        (void)cmi_device_ask_lost(device);
    }
    cmi_fence_sweep(device);
    return status;
}

cmpool_status cmi_fence_host_wait(cmi_device *device, cmi_pool *pool)
{
    if (cmi_capture_is_live()) {
        return CMPOOL_ERR_CAPTURE;
    }
    for (uint32_t i = 0; i < device->context_count; i++) {
        if (device->contexts[i].gone) {
            continue;
        }
        uint64_t ticket = device->ticket++;
        cmi_call call;
        cmpool_status status = cmi_capture_barred_begin(device, &call, i);
        if (status != CMPOOL_OK) {
            if (has_gone(device, i, status)) {
                continue;
            }
            return status;
        }
        cmi_step_begin(CMI_STEP_WAIT, 0);
        CUresult code = device->driver->CtxSynchronize();
        cmi_step_end();
        cmi_capture_barred_end(device, &call);
        pool->counters.host_waits++;
        cmi_ring_write(&pool->ring, CMI_EVENT_WAIT_HOST, 0, 0, 0);
        if (code != CUDA_SUCCESS) {
            return cmi_driver_status("cuCtxSynchronize", code);
        }
        device->contexts[i].covered = cmi_max_u64(device->contexts[i].covered, ticket);
        note_done(device, CMI_NO_STREAM, i, ticket);
    }
    cmi_fence_sweep(device);
    return CMPOOL_OK;
}

bool cmi_fence_covers(const cmi_device *device, uint32_t stream, uint64_t ticket)
{
    if (CMI_MUTATION(COVERED_WITHOUT_EVENT)) {
        return true;
    }
    if (stream == CMI_NO_STREAM) {
        for (uint32_t i = 0; i < device->context_count; i++) {
            if (device->contexts[i].covered < ticket) {
                return false;
            }
        }
        return true;
    }
    return ticket <= device->streams[stream].covered || ticket <= device->contexts[device->streams[stream].context].covered;
}

void cmi_fence_forget_context(cmi_device *device, uint32_t context)
{
    for (uint32_t i = 0; i < device->fence_count; i++) {
        device->fences[i].done = device->fences[i].done || device->fences[i].context == context;
    }
    cmi_fence_sweep(device);
}

void cmi_fence_forget_all(cmi_device *device)
{
    for (uint32_t i = 0; i < device->fence_count; i++) {
        device->fences[i].done = true;
    }
    cmi_fence_sweep(device);
    forget_spares(device);
    cmi_meta_free(device->fences, device->fence_room * sizeof *device->fences);
    cmi_meta_free(device->spare_events, device->spare_room * sizeof *device->spare_events);
    device->fences = NULL;
    device->spare_events = NULL;
    device->fence_count = device->fence_room = device->spare_count = device->spare_room = 0;
}
