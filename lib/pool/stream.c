/*
 * Stream records: who a stream handle is. Owns the device's table of streams and contexts; guarded by the device lock; called by api at the
 * start of every call that names a stream. A handle is trusted only inside such a call: it may be destroyed and handed out again at any
 * other time, so records are told apart by the driver's stream id where there is one.
 */
#include "pool/cache.h"

static cmi_stream_kind kind_of(CUstream handle)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        return CMI_STREAM_LEGACY;
    }
    return handle == CU_STREAM_PER_THREAD ? CMI_STREAM_PER_THREAD : CMI_STREAM_OTHER;
}

/* NULL and 0x1 are the same stream. */
static CUstream canonical(CUstream handle) { return handle == CU_STREAM_LEGACY ? NULL : handle; }

static uint32_t hash(CUstream handle)
{
    uint64_t x = (uint64_t)(uintptr_t)handle * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> 40);
}

/* A default stream is one for each context, and the per-thread one also for each thread; any other handle says all. */
static bool is_meant(const cmi_device *device, const cmi_stream *stream, CUcontext context)
{
    if (stream->kind == CMI_STREAM_OTHER) {
        return true;
    }
    bool same_context = device->contexts[stream->context].handle == (context ? context : device->primary);
    return same_context && (stream->kind == CMI_STREAM_LEGACY || stream->thread == cmi_thread_number());
}

uint32_t cmi_stream_known(cmi_device *device, CUstream handle, CUcontext context)
{
    handle = canonical(handle);
    if (!device->stream_table_room) {
        return CMI_NO_STREAM;
    }
    const cmi_stream *again = &device->streams[device->stream_known];
    if (device->stream_known && again->handle == handle && !again->retired && is_meant(device, again, context)) {
        return device->stream_known;
    }
    uint32_t mask = device->stream_table_room - 1;
    for (uint32_t at = hash(handle) & mask; device->stream_table[at]; at = (at + 1) & mask) {
        const cmi_stream *stream = &device->streams[device->stream_table[at]];
        if (stream->handle == handle && !stream->retired && is_meant(device, stream, context)) {
            device->stream_known = device->stream_table[at];
            return device->stream_known;
        }
    }
    return CMI_NO_STREAM;
}

static void table_put(cmi_device *device, uint32_t number)
{
    uint32_t mask = device->stream_table_room - 1;
    uint32_t at = hash(device->streams[number].handle) & mask;
    while (device->stream_table[at]) {
        at = (at + 1) & mask;
    }
    device->stream_table[at] = number;
    device->stream_table_used++;
}

/* Is nothing left that names the record of a dead stream? Its frees are done, and no block of any pool was asked for on it. */
static bool is_forgotten(cmi_device *device, uint32_t number)
{
    const cmi_stream *stream = &device->streams[number];
    bool done = cmi_stream_is_done(device, number, stream->last_free) || CMI_MUTATION(RECORD_REUSED_EARLY);
    if (!stream->retired || stream->unused || stream->keeps || !done) {
        return false;
    }
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        if (!cmi_owner_forget_stream(pool, number)) {
            return false;
        }
    }
    return true;
}

/* Programs that make and destroy streams all the time do not make the table grow: records are used again. */
static void recycle(cmi_device *device)
{
    for (uint32_t i = 1; i < device->stream_count; i++) {
        if (is_forgotten(device, i)) {
            device->streams[i].unused = true;
            device->unused_streams++;
        }
    }
}

/* A record for one more stream; make_room has been called. What was stamped with a record that is used again is done, and stays so. */
static uint32_t new_record(cmi_device *device)
{
    if (!device->unused_streams) {
        device->streams[device->stream_count] = (cmi_stream){0};
        return device->stream_count++;
    }
    uint32_t number = 1;
    while (!device->streams[number].unused) {
        number++;
    }
    device->unused_streams--;
    uint64_t past = device->streams[number].last_free;
    device->streams[number] = (cmi_stream){.last_free = past, .covered = past, .done = past};
    return number;
}

/* Room for one more record in every array, and a table that is at most half full of streams that still live. */
static bool make_room(cmi_device *device)
{
    if (!device->stream_count) {
        device->stream_count = 1; /* number 0 is none */
    }
    if (device->stream_count + 1 >= device->stream_room && !device->unused_streams) {
        recycle(device);
    }
    if (device->stream_count + 1 >= device->stream_room && !device->unused_streams) {
        uint32_t room = device->stream_room ? device->stream_room * 2 : 16;
        cmi_stream *grown = cmi_meta_resize(device->streams, device->stream_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return false;
        }
        device->streams = grown;
        device->stream_room = room;
    }
    if ((device->stream_table_used + 1) * 2 <= device->stream_table_room) {
        return true;
    }
    uint32_t living = 0; /* the table is made anew for those; entries of dead streams go */
    for (uint32_t i = 1; i < device->stream_count; i++) {
        living += !device->streams[i].retired;
    }
    uint32_t room = 64;
    while (room < 4 * (living + 1)) {
        room *= 2;
    }
    uint32_t *table = cmi_meta_alloc(room * sizeof *table);
    if (!table) {
        return false;
    }
    cmi_meta_free(device->stream_table, device->stream_table_room * sizeof *table);
    device->stream_table = table;
    device->stream_table_room = room;
    device->stream_table_used = 0;
    for (uint32_t i = 1; i < device->stream_count; i++) {
        if (!device->streams[i].retired) {
            table_put(device, i);
        }
    }
    return true;
}

bool cmi_stream_open(cmi_device *device) { return make_room(device); }

static bool context_number(cmi_device *device, CUcontext handle, uint32_t *number)
{
    for (uint32_t i = 0; i < device->context_count; i++) {
        cmi_context *known = &device->contexts[i];
        if (known->handle == handle) {
            if (known->gone) { /* another context with the handle of a dead one: what was freed in that one stays done */
                *known = (cmi_context){.handle = handle, .covered = device->ticket - 1, .done = device->ticket - 1};
            }
            *number = i;
            return true;
        }
    }
    if (device->context_count == device->context_room) {
        uint32_t room = device->context_room ? device->context_room * 2 : 4;
        cmi_context *grown = cmi_meta_resize(device->contexts, device->context_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return false;
        }
        device->contexts = grown;
        device->context_room = room;
    }
    *number = device->context_count++;
    device->contexts[*number] = (cmi_context){.handle = handle};
    return true;
}

bool cmi_context_add(cmi_device *device, CUcontext handle)
{
    uint32_t number;
    if (!context_number(device, handle, &number)) {
        return false;
    }
    device->streams[CMI_NO_STREAM].ordered = 0; /* what it does is ordered behind nothing yet */
    return true;
}

void cmi_context_remove(cmi_device *device, CUcontext handle)
{
    for (uint32_t i = 1; i < device->context_count; i++) { /* the primary one is ours as long as a pool exists */
        cmi_context *context = &device->contexts[i];
        if (context->handle != handle || context->gone) {
            continue;
        }
        context->gone = true; /* destroying a context ends its work */
        context->covered = context->done = UINT64_MAX;
        device->done_changes++;
        for (uint32_t s = 1; s < device->stream_count; s++) {
            device->streams[s].retired = device->streams[s].retired || device->streams[s].context == i;
        }
        cmi_cache_end_retired(device);
        cmi_fence_forget_context(device, i);
        return;
    }
}

/* What the driver says of a handle: its id (0 where it tells none) and, unless it is a default stream's, its context. */
static cmpool_status ask_driver(cmi_device *device, CUstream handle, uint32_t where, uint64_t *id, CUcontext *context)
{
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(device, &call, where);
    if (status != CMPOOL_OK) {
        return status;
    }
    unsigned long long number = 0;
    CUresult code = CUDA_SUCCESS;
    if (device->driver->StreamGetId) {
        code = device->driver->StreamGetId(handle, &number);
    }
    status = cmi_driver_status("cuStreamGetId", code);
    if (status == CMPOOL_OK && context) {
        status = cmi_driver_status("cuStreamGetCtx", device->driver->StreamGetCtx(handle, context));
    }
    cmi_device_call_end(device, &call);
    *id = number;
    return status;
}

cmpool_status cmi_stream_find(cmi_device *device, CUstream handle, CUcontext context, bool check, uint32_t *stream)
{
    uint32_t number = cmi_stream_known(device, handle, context);
    bool named = kind_of(handle) != CMI_STREAM_OTHER; /* a default stream cannot be destroyed */
    if (number && (!check || named || !device->driver->StreamGetId || CMI_MUTATION(STREAM_ID_IGNORED))) {
        *stream = number;
        return CMPOOL_OK;
    }
    uint64_t id = 0;
    uint32_t where = 0;
    CUcontext home = context ? context : device->primary;
    if (named && !context_number(device, home, &where)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmpool_status status = ask_driver(device, handle, where, &id, named || number ? NULL : &home);
    if (status != CMPOOL_OK) {
        return status;
    }
    number = cmi_stream_known(device, handle, context); /* another thread may have met it meanwhile */
    if (number && device->streams[number].id != id) {
        /* The handle was destroyed and given to another stream. What was freed on the old one is covered by context events only. */
        device->streams[number].retired = true;
        device->unretired_streams++;
        cmi_cache_end_retired(device);
        cmi_log(CMI_LOG_WARNING, "stream %p was destroyed without cmpool_stream_retire and its handle used again", (void *)handle);
        return cmi_stream_find(device, handle, context, false, stream);
    }
    if (!number) {
        uint32_t context_no = 0;
        if (!make_room(device) || !context_number(device, home, &context_no)) {
            return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        number = new_record(device);
        cmi_stream_kind kind = kind_of(handle);
        cmi_stream *record = &device->streams[number];
        record->handle = canonical(handle);
        record->id = id;
        record->context = context_no;
        record->kind = (uint8_t)kind;
        record->thread = kind == CMI_STREAM_PER_THREAD ? cmi_thread_number() : 0;
        table_put(device, number);
    }
    *stream = number;
    return CMPOOL_OK;
}

cmpool_status cmi_stream_retire(cmi_device *device, cmi_pool *pool, uint32_t number, CUstream handle)
{
    cmpool_status status = CMPOOL_OK;
    for (cmi_pool *each = device->pools; each; each = each->next) {
        cmi_cache_drain(each);
    }
    if (device->streams[number].last_free > device->streams[number].covered) {
        status = cmi_fence_stream(device, pool, number, handle);
    }
    if (status == CMPOOL_ERR_CAPTURE) { /* an event of the context covers them when the captures are over */
        status = CMPOOL_OK;
    }
    device->streams[number].retired = true;
    cmi_cache_end_retired(device);
    return status;
}

void cmi_stream_note_frees(cmi_device *device, uint32_t number, uint64_t ticket, uint32_t count, uint64_t bytes)
{
    cmi_stream *stream = &device->streams[number];
    stream->last_free = ticket;
    stream->open_frees += count;
    stream->open_bytes += bytes;
}

bool cmi_stream_is_done(const cmi_device *device, uint32_t number, uint64_t ticket)
{
    const cmi_stream *stream = &device->streams[number];
    return ticket <= stream->done || ticket <= device->contexts[stream->context].done;
}

bool cmi_stream_is_ordered(const cmi_device *device, uint32_t number, uint32_t other, uint64_t ticket)
{
    if (number == other || cmi_stream_is_done(device, other, ticket)) {
        return true;
    }
    const cmi_stream *stream = &device->streams[number];
    return ticket <= stream->ordered && stream->ordered_context == device->streams[other].context;
}
