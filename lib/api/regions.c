/*
 * Public functions on growing regions: argument checks, then one call into lib/pool under the device lock. Owns nothing.
 */
#include "api/registry.h"
#include "pool/region.h"

cmpool_status cmpool_region_create(cmpool_t pool, void **base, size_t max_bytes)
{
    cmpool_status status = base && max_bytes && max_bytes <= CMI_MAX_BYTES ? CMPOOL_OK : CMPOOL_ERR_INVALID_ARGUMENT;
    cmi_entry entry;
    if (base) {
        *base = NULL;
    }
    if (status == CMPOOL_OK) {
        status = cmi_registry_enter(pool, &entry);
    }
    if (status == CMPOOL_OK) {
        uint64_t address = 0;
        bool can = !entry.owner && !entry.pool->segmented;
        status = can ? cmi_region_create(entry.pool, max_bytes, cmi_tag_current(), &address) : CMPOOL_ERR_UNSUPPORTED;
        cmi_registry_leave(&entry);
        *base = (void *)(uintptr_t)address;
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_region_create");
}

typedef cmpool_status step_fn(cmi_pool *pool, const cmi_ask *ask, uint64_t base, uint64_t bytes);

/* Find the pool and the stream, then grow or shrink. */
static cmpool_status change(cmpool_t pool, void *base, size_t bytes, cmpool_stream stream, step_fn *step)
{
    cmi_here here = cmi_registry_here(stream);
    cmi_entry entry;
    cmpool_status status = bytes <= CMI_MAX_BYTES ? cmi_registry_enter(pool, &entry) : CMPOOL_ERR_INVALID_ARGUMENT;
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_ask ask = {.handle = stream, .context = cmi_here_on(&here, entry.device)};
    uint64_t address = (uint64_t)(uintptr_t)base;
    cmi_region *region = entry.owner ? NULL : cmi_region_at(entry.pool, address);
    if (!region || region->base != address) {
        status = region ? CMPOOL_ERR_INTERIOR_POINTER : CMPOOL_ERR_NOT_OURS;
    } else {
        bool check = entry.pool->options.stream_check == CMI_STREAM_CHECK_ALWAYS;
        status = cmi_stream_find(entry.device, stream, ask.context, check, &ask.stream);
    }
    bool captured = false;
    if (status == CMPOOL_OK && cmi_capture_is_live()) {
        status = cmi_capture_ask(entry.device, ask.stream, stream, &captured);
    }
    if (status == CMPOOL_OK) {
        status = captured ? CMPOOL_ERR_CAPTURE : step(entry.pool, &ask, address, bytes);
    }
    cmi_registry_leave(&entry);
    return status;
}

static cmpool_status destroy(cmi_pool *pool, const cmi_ask *ask, uint64_t base, uint64_t bytes)
{
    (void)bytes;
    return cmi_region_destroy(pool, ask, base);
}

cmpool_status cmpool_region_grow(cmpool_t pool, void *base, size_t bytes, cmpool_stream stream)
{
    return cmi_registry_finish(change(pool, base, bytes, stream, cmi_region_grow), "cmpool_region_grow");
}

cmpool_status cmpool_region_shrink(cmpool_t pool, void *base, size_t bytes, cmpool_stream stream)
{
    cmpool_status status = change(pool, base, bytes, stream, cmi_region_shrink);
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_region_shrink");
}

cmpool_status cmpool_region_destroy(cmpool_t pool, void *base, cmpool_stream stream)
{
    cmpool_status status = change(pool, base, 0, stream, destroy);
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_region_destroy");
}
