/*
 * Public functions on blocks: argument checks, then one call into lib/pool under the device lock. Owns nothing. Arguments are checked here
 * and nowhere further down.
 */
#include "api/annotate.h"
#include "api/inspect.h"
#include "api/registry.h"
#include "pool/cache.h"

#define NOINLINE __attribute__((noinline)) /* the fast paths save no registers for the slow ones */

/* The stream record of a handle, checked against the driver as the option asks. */
static cmpool_status find_stream(const cmi_entry *entry, cmpool_stream handle, CUcontext context, uint32_t *stream)
{
    bool check = entry->pool->options.stream_check == CMI_STREAM_CHECK_ALWAYS;
    return cmi_stream_find(entry->device, handle, context, check, stream);
}

static cmpool_status allocate(cmpool_t pool, void **ptr, const cmpool_request *request, cmi_here here)
{
    uint32_t stack = cmi_stack_here();
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_ask ask = {.requested = request->bytes,
                   .bytes = cmi_round_up(request->bytes, CMI_UNIT),
                   .owner = entry.owner,
                   .align = request->alignment > CMI_UNIT ? request->alignment : CMI_UNIT,
                   .tag = request->tag ? request->tag : cmi_tag_current(),
                   .stack = stack,
                   .exportable = (request->flags & CMPOOL_EXPORTABLE) != 0,
                   .handle = request->stream,
                   .context = cmi_here_on(&here, entry.device)};
    uint64_t address = 0;
    if (ask.align > entry.device->page_bytes) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    } else if (request->bytes) {
        status = find_stream(&entry, request->stream, ask.context, &ask.stream);
        if (status == CMPOOL_OK) {
            status = cmi_pool_malloc(entry.pool, &ask, &address);
        }
    }
    cmi_annotate_leave(&entry, address, request->bytes);
    if (status == CMPOOL_OK) {
        *ptr = (void *)(uintptr_t)address;
    }
    return status;
}

cmpool_status cmpool_malloc_ex(cmpool_t pool, void **ptr, const cmpool_request *request)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    if (ptr) {
        *ptr = NULL;
    }
    if (ptr && request && request->struct_size == sizeof *request && request->bytes <= CMI_MAX_BYTES &&
        !(request->flags & ~(uint32_t)CMPOOL_EXPORTABLE) && (!request->alignment || cmi_is_power2(request->alignment))) {
        status = allocate(pool, ptr, request, cmi_registry_here(request->stream));
    }
    return cmi_registry_finish(status, "cmpool_malloc_ex");
}

static NOINLINE cmpool_status malloc_under_lock(cmpool_t pool, void **ptr, size_t bytes, cmpool_stream stream, cmi_here here)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    if (ptr) {
        *ptr = NULL;
    }
    if (ptr && bytes <= CMI_MAX_BYTES) {
        const cmpool_request request = {.struct_size = sizeof request, .bytes = bytes, .stream = stream};
        status = allocate(pool, ptr, &request, here);
    }
    return cmi_registry_finish(status, "cmpool_malloc");
}

cmpool_status cmpool_malloc(cmpool_t pool, void **ptr, size_t bytes, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    bool plain =
        ptr && !(cmi_tag_current() | atomic_load_explicit(&cmi_stack_every, memory_order_relaxed)); /* else notes are taken of it */
    uint64_t cached = plain ? cmi_cache_malloc(pool, stream, here.context, here.device, bytes) : 0;
    if (cached) {
        *ptr = (void *)(uintptr_t)cached;
        cmi_watch_wishes();
        return CMPOOL_OK;
    }
    return malloc_under_lock(pool, ptr, bytes, stream, here);
}

static NOINLINE cmpool_status free_under_lock(cmpool_t pool, void *ptr, cmpool_stream stream, cmi_here here)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        CUcontext context = cmi_here_on(&here, entry.device);
        uint32_t number = cmi_stream_known(entry.device, stream, context);
        cmi_place place;
        cmi_nvtx_block going = {0};
        if (ptr && (!number || entry.pool->options.stream_check == CMI_STREAM_CHECK_ALWAYS)) {
            /* The driver is not asked about a stream on behalf of a pointer that is not ours. */
            status = cmi_registry_find_block(&entry, ptr, &place);
            if (status == CMPOOL_OK) {
                status = find_stream(&entry, stream, context, &number);
            }
        }
        if (ptr && status == CMPOOL_OK) {
            const cmi_ask ask = {.owner = entry.owner, .stream = number, .handle = stream, .context = context};
            cmi_annotate_going(&entry, (uint64_t)(uintptr_t)ptr, &going);
            status = cmi_pool_free(entry.pool, &ask, (uint64_t)(uintptr_t)ptr);
        }
        cmi_registry_leave(&entry);
        if (status != CMPOOL_OK) {
            cmi_annotate_back(&going);
        }
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_free");
}

cmpool_status cmpool_free(cmpool_t pool, void *ptr, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    if (cmi_cache_free(pool, stream, here.context, here.device, (uint64_t)(uintptr_t)ptr)) {
        cmi_watch_wishes();
        return CMPOOL_OK;
    }
    return free_under_lock(pool, ptr, stream, here);
}

cmpool_status cmpool_record_use(cmpool_t pool, void *ptr, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        uint32_t number;
        cmi_place place;
        status = cmi_registry_find_block(&entry, ptr, &place);
        if (status == CMPOOL_OK) {
            status = find_stream(&entry, stream, cmi_here_on(&here, entry.device), &number);
        }
        if (status == CMPOOL_OK) {
            status = cmi_pool_record_use(entry.pool, (uint64_t)(uintptr_t)ptr, number);
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_record_use");
}

cmpool_status cmpool_stream_retire(int device, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK && (device < 0 || device >= CMI_MAX_DEVICES)) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    }
    cmi_device *record = status == CMPOOL_OK ? cmi_registry_device(device) : NULL;
    if (record) {
        cmi_lock_acquire(&record->lock);
        cmi_pool *pool = record->pools;
        while (pool && pool->dying) { /* any other will do: it is for its counters */
            pool = pool->next;
        }
        uint32_t number = pool ? cmi_stream_known(record, stream, cmi_here_on(&here, record)) : CMI_NO_STREAM;
        if (number) {
            cmi_pool_pin(pool);
            status = cmi_stream_retire(record, pool, number, stream);
            cmi_pool_unpin(pool);
        }
        cmi_lock_release(&record->lock);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_stream_retire");
}

cmpool_status cmpool_usable_size(cmpool_t pool, const void *ptr, size_t *bytes)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    cmi_entry entry;
    if (bytes) {
        *bytes = 0;
        status = cmi_registry_enter(pool, &entry);
    }
    if (status == CMPOOL_OK) {
        cmi_place place;
        status = cmi_registry_find_block(&entry, ptr, &place);
        if (status == CMPOOL_OK) {
            *bytes = place.bytes;
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_usable_size");
}

cmpool_status cmpool_export_fd(cmpool_t pool, const void *ptr, int *fd)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    cmi_entry entry;
    if (fd) {
        *fd = -1;
        status = cmi_registry_enter(pool, &entry);
    }
    if (status == CMPOOL_OK) {
        cmi_place place;
        status = cmi_registry_find_block(&entry, ptr, &place);
        if (status == CMPOOL_OK) {
            status = place.slab ? CMPOOL_ERR_UNSUPPORTED : cmi_pool_export(entry.pool, place.block, fd);
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_export_fd");
}
