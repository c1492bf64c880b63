/*
 * Public functions for programs that name no stream (cudaMalloc and cudaFree as they are), and the contexts they may use memory in.
 * Argument checks, then one call into lib/pool under the device lock. Owns nothing.
 */
#include "api/annotate.h"

cmpool_status cmpool_malloc_unordered(cmpool_t pool, void **ptr, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = ptr && bytes <= CMI_MAX_BYTES ? CMPOOL_OK : CMPOOL_ERR_INVALID_ARGUMENT;
    if (ptr) {
        *ptr = NULL;
    }
    uint32_t stack = cmi_stack_here();
    if (status == CMPOOL_OK) {
        status = cmi_registry_enter(pool, &entry);
    }
    if (status == CMPOOL_OK) {
        uint64_t address = 0;
        cmi_ask ask = {.requested = bytes,
                       .bytes = cmi_round_up(bytes, CMI_UNIT),
                       .owner = entry.owner,
                       .align = CMI_UNIT,
                       .stream = CMI_NO_STREAM,
                       .tag = cmi_tag_current(),
                       .stack = stack};
        if (bytes) {
            status = cmi_pool_malloc(entry.pool, &ask, &address);
        }
        cmi_annotate_leave(&entry, address, bytes);
        *ptr = (void *)(uintptr_t)address;
    }
    return cmi_registry_finish(status, "cmpool_malloc_unordered");
}

cmpool_status cmpool_free_unordered(cmpool_t pool, void *ptr)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        cmi_nvtx_block going = {0};
        if (ptr) {
            const cmi_ask ask = {.owner = entry.owner, .stream = CMI_NO_STREAM};
            cmi_annotate_going(&entry, (uint64_t)(uintptr_t)ptr, &going);
            status = cmi_pool_free(entry.pool, &ask, (uint64_t)(uintptr_t)ptr);
        }
        cmi_registry_leave(&entry);
        if (status != CMPOOL_OK) {
            cmi_annotate_back(&going);
        }
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_free_unordered");
}

static cmpool_status with_context(int ordinal, void *context, bool add)
{
    cmpool_status status = cmi_registry_usable();
    cmi_device *device = cmi_registry_device(ordinal);
    if (status != CMPOOL_OK) {
        return status;
    }
    if (ordinal < 0 || ordinal >= CMI_MAX_DEVICES || !context) {
        return CMPOOL_ERR_INVALID_ARGUMENT;
    }
    if (!device) {
        return CMPOOL_ERR_INVALID_POOL;
    }
    cmi_lock_acquire(&device->lock);
    if (!device->pools) {
        status = CMPOOL_ERR_INVALID_POOL;
    } else if (!add) {
        cmi_context_remove(device, context);
    } else if (!cmi_context_add(device, context)) {
        status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_lock_release(&device->lock);
    return status;
}

cmpool_status cmpool_context_add(int device, void *context)
{
    return cmi_registry_finish(with_context(device, context, true), "cmpool_context_add");
}

cmpool_status cmpool_context_remove(int device, void *context)
{
    return cmi_registry_finish(with_context(device, context, false), "cmpool_context_remove");
}
