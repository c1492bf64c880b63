/*
 * Public functions on pinned host memory: argument checks, then one call into lib/pinned under the device lock. Owns nothing.
 */
#include "api/registry.h"

#include <string.h>

enum {
    PINNED_FLAGS = CMPOOL_PINNED_PORTABLE | CMPOOL_PINNED_MAPPED | CMPOOL_PINNED_WRITE_COMBINED | CMPOOL_PINNED_UNORDERED,
    LEAST_ALIGNMENT = 512
};

static cmpool_status find_stream(const cmi_entry *entry, const cmi_here *here, cmpool_stream handle, uint32_t *stream)
{
    bool check = entry->pool->options.stream_check == CMI_STREAM_CHECK_ALWAYS;
    return cmi_stream_find(entry->device, handle, cmi_here_on(here, entry->device), check, stream);
}

static cmpool_status allocate(cmpool_t pool, void **ptr, const cmpool_pinned_request *request)
{
    bool ordered = !(request->flags & CMPOOL_PINNED_UNORDERED);
    cmi_here here = {NULL, -1};
    if (ordered) {
        here = cmi_registry_here(request->stream);
    }
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status != CMPOOL_OK) {
        return status;
    }
    uint64_t address = 0;
    if (request->bytes) {
        cmi_pinned_ask ask = {.requested = request->bytes,
                              .align = cmi_max_u64(request->alignment, LEAST_ALIGNMENT),
                              .flags = request->flags,
                              .tag = request->tag,
                              .stream = CMI_NO_STREAM};
        status = ordered ? find_stream(&entry, &here, request->stream, &ask.stream) : CMPOOL_OK;
        if (status == CMPOOL_OK) {
            status = cmi_pinned_malloc(entry.pool, &ask, &address);
        }
    }
    cmi_registry_leave(&entry);
    *ptr = (void *)(uintptr_t)address;
    return status;
}

cmpool_status cmpool_pinned_malloc_ex(cmpool_t pool, void **ptr, const cmpool_pinned_request *request)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    if (ptr) {
        *ptr = NULL;
    }
    if (ptr && request && request->struct_size == sizeof *request && request->bytes <= CMI_MAX_BYTES &&
        !(request->flags & ~(uint32_t)PINNED_FLAGS) &&
        (!request->alignment || (cmi_is_power2(request->alignment) && request->alignment <= CMI_PINNED_STEP))) {
        status = allocate(pool, ptr, request);
    }
    return cmi_registry_finish(status, "cmpool_pinned_malloc_ex");
}

cmpool_status cmpool_pinned_malloc(cmpool_t pool, void **ptr, size_t bytes, cmpool_stream stream)
{
    cmpool_status status = CMPOOL_ERR_INVALID_ARGUMENT;
    if (ptr) {
        *ptr = NULL;
    }
    if (ptr && bytes <= CMI_MAX_BYTES) {
        const cmpool_pinned_request request = {.struct_size = sizeof request, .bytes = bytes, .stream = stream};
        status = allocate(pool, ptr, &request);
    }
    return cmi_registry_finish(status, "cmpool_pinned_malloc");
}

cmpool_status cmpool_pinned_free(cmpool_t pool, void *ptr, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        uint64_t address = (uint64_t)(uintptr_t)ptr;
        if (ptr) { /* the driver is not asked about a stream on behalf of a pointer that is not ours */
            cmi_pinned_block block;
            uint32_t number = CMI_NO_STREAM;
            status = cmi_pinned_place(entry.pool, address, &block);
            if (status == CMPOOL_OK) {
                status = find_stream(&entry, &here, stream, &number);
            }
            if (status == CMPOOL_OK) {
                status = cmi_pinned_free(entry.pool, address, number, stream);
            }
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pinned_free");
}

cmpool_status cmpool_pinned_free_unordered(cmpool_t pool, void *ptr)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        if (ptr) {
            status = cmi_pinned_free(entry.pool, (uint64_t)(uintptr_t)ptr, CMI_NO_STREAM, NULL);
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pinned_free_unordered");
}

cmpool_status cmpool_pinned_record_use(cmpool_t pool, void *ptr, cmpool_stream stream)
{
    cmi_here here = cmi_registry_here(stream);
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        uint32_t number;
        cmi_pinned_block block;
        status = cmi_pinned_place(entry.pool, (uint64_t)(uintptr_t)ptr, &block);
        if (status == CMPOOL_OK) {
            status = find_stream(&entry, &here, stream, &number);
        }
        if (status == CMPOOL_OK) {
            status = cmi_pinned_record_use(entry.pool, (uint64_t)(uintptr_t)ptr, number);
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pinned_record_use");
}

cmpool_status cmpool_pinned_set_limit(cmpool_t pool, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        status = cmi_pinned_set_limit(entry.pool, bytes);
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_pinned_set_limit");
}

cmpool_status cmpool_pinned_trim(cmpool_t pool, size_t keep_bytes, size_t *released)
{
    cmi_entry entry;
    uint64_t bytes = 0;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        status = cmi_pinned_trim(entry.pool, keep_bytes, &bytes);
        cmi_registry_leave(&entry);
    }
    if (released) {
        *released = bytes;
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pinned_trim");
}

cmpool_status cmpool_pinned_stats_get(cmpool_t pool, cmpool_pinned_stats *stats)
{
    cmi_entry entry;
    bool sound = stats && stats->struct_size >= sizeof(size_t) + sizeof(uint64_t) && stats->struct_size <= 65536;
    cmpool_status status = sound ? cmi_registry_enter(pool, &entry) : CMPOOL_ERR_INVALID_ARGUMENT;
    if (status == CMPOOL_OK) {
        const cmi_pinned_figures figures = cmi_pinned_figures_of(entry.pool);
        size_t room = stats->struct_size - sizeof(size_t);
        cmi_registry_leave(&entry);
        memset((char *)stats + sizeof(size_t), 0, room);
        memcpy((char *)stats + sizeof(size_t), &figures, room < sizeof figures ? room : sizeof figures);
    }
    return cmi_registry_finish(status, "cmpool_pinned_stats_get");
}
