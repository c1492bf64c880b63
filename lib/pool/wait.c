/*
 * Device-side waits: a stream, or every context, is made to come after memory that others have to finish with; the host does not wait. Owns
 * nothing; guarded by the device lock, dropped around driver calls; called by move.c before memory changes hands.
 */
#include "pool/pool.h"

enum { MOST_CONTEXTS = 32 };

void cmi_waits_add(cmi_waits *waits, uint32_t stream, uint64_t ticket)
{
    uint64_t youngest = ticket;
    for (uint32_t i = 0; i < waits->count; i++) {
        if (!waits->whole && waits->entries[i].stream == stream) {
            waits->entries[i].ticket = cmi_max_u64(waits->entries[i].ticket, ticket);
            return;
        }
        youngest = cmi_max_u64(youngest, waits->entries[i].ticket);
    }
    if (waits->whole || stream == CMI_NO_STREAM || waits->count == CMI_STAMP_STREAMS) {
        waits->whole = true;
        waits->count = 1;
        waits->entries[0] = (cmi_stamp_entry){youngest, CMI_NO_STREAM};
        return;
    }
    waits->entries[waits->count++] = (cmi_stamp_entry){ticket, stream};
}

/* The outstanding fence that covers (stream, ticket) and promises least beyond it: of the stream itself, else of its context. */
static cmi_fence *find(cmi_device *device, uint32_t stream, uint32_t context, uint64_t ticket)
{
    cmi_fence *best = NULL;
    for (uint32_t i = 0; i < device->fence_count; i++) {
        cmi_fence *fence = &device->fences[i];
        bool fits = fence->ticket >= ticket && !fence->done &&
                    (fence->stream == CMI_NO_STREAM ? fence->context == context : fence->stream == stream);
        if (fits && (!best || (best->stream == CMI_NO_STREAM && fence->stream != CMI_NO_STREAM) ||
                     (best->stream == fence->stream && fence->ticket < best->ticket))) {
            best = fence;
        }
    }
    return best;
}

/* All that any context does from now on comes after the event: for requests that name no stream. */
static CUresult wait_everywhere(cmi_device *device, CUevent event, const CUcontext *contexts, uint32_t count)
{
    CUresult code = CUDA_SUCCESS;
    for (uint32_t i = 0; i < count && code == CUDA_SUCCESS; i++) {
        code = device->driver->CtxWaitEvent(contexts[i], event);
    }
    return code;
}

static cmpool_status wait_for(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle, cmi_fence *fence)
{
    CUevent event = fence->event;
    uint64_t ticket = fence->ticket;
    uint32_t scope = fence->stream, context = fence->context;
    CUcontext contexts[MOST_CONTEXTS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < device->context_count && stream == CMI_NO_STREAM; i++) {
        if (count == MOST_CONTEXTS) {
            return CMPOOL_ERR_UNSUPPORTED; /* the host waits instead */
        }
        contexts[count] = device->contexts[i].handle;
        count += !device->contexts[i].gone;
    }
    fence->pins++;
    cmi_call call;
    cmpool_status status = stream == CMI_NO_STREAM ? cmi_capture_barred_begin(device, &call, 0)
                                                   : cmi_device_call_begin(device, &call, device->streams[stream].context);
    if (status == CMPOOL_OK && stream == CMI_NO_STREAM) {
        cmi_step_begin(CMI_STEP_WAIT, 0);
        CUresult code = wait_everywhere(device, event, contexts, count);
        cmi_step_end();
        cmi_capture_barred_end(device, &call);
        status = cmi_driver_status("cuCtxWaitEvent", code);
        pool->counters.device_waits++;
    } else if (status == CMPOOL_OK) {
        cmi_step_begin(CMI_STEP_WAIT, 0);
        CUresult code = device->driver->StreamWaitEvent(handle, event, 0);
        cmi_step_end();
        cmi_device_call_end(device, &call);
        status = cmi_driver_status("cuStreamWaitEvent", code);
        pool->counters.device_waits++;
    }
    if (status == CMPOOL_OK) {
        cmi_ring_write(&pool->ring, CMI_EVENT_WAIT_DEVICE, 0, 0, stream);
    }
    cmi_fence_unpin(device, event);
    if (status == CMPOOL_OK && (scope == CMI_NO_STREAM || CMI_MUTATION(WAIT_COUNTS_FOR_ALL))) {
        cmi_stream *waiter = &device->streams[stream];
        if (waiter->ordered_context != context) {
            waiter->ordered = 0;
            waiter->ordered_context = context;
        }
        waiter->ordered = cmi_max_u64(waiter->ordered, ticket);
    }
    return status;
}

cmpool_status cmi_fence_device_wait(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle, const cmi_waits *waits)
{
    bool covered = true;
    for (uint32_t i = 0; i < waits->count; i++) {
        covered = covered && cmi_fence_covers(device, waits->entries[i].stream, waits->entries[i].ticket);
    }
    if (!covered) {
        cmpool_status status = cmi_fence_contexts(device, pool);
        if (status != CMPOOL_OK) {
            return status;
        }
    }
    uint32_t count = CMI_MUTATION(WAIT_FOR_ONE_STREAM) && waits->count ? 1 : waits->count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = waits->entries[i].stream;
        uint64_t ticket = waits->entries[i].ticket;
        uint32_t first = waits->whole ? 0 : device->streams[other].context;
        uint32_t last = waits->whole ? device->context_count - 1 : first;
        for (uint32_t context = first; context <= last; context++) {
            bool done = waits->whole ? device->contexts[context].done >= ticket : cmi_stream_is_ordered(device, stream, other, ticket);
            if (done) {
                continue;
            }
            cmi_fence *fence = find(device, other, context, ticket);
            if (!fence) {
                return CMPOOL_ERR_UNSUPPORTED; /* given up by another thread a moment ago: the request goes on without device-side waits */
            }
            cmpool_status status = wait_for(device, pool, stream, handle, fence);
            if (status != CMPOOL_OK) {
                return status;
            }
        }
    }
    cmi_fence_sweep(device);
    return CMPOOL_OK;
}
