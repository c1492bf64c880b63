/*
 * Whose a pointer is: device memory and pinned host memory are looked up alike, in every pool of the process, under one device lock at a
 * time. Owns nothing. Called by programs.
 */
#include "api/registry.h"

/* Whether the pool has a live block that holds the address, and what it knows of it: OK, ALREADY_FREED or NOT_OURS. */
typedef cmpool_status look_fn(cmi_pool *pool, uint64_t address, cmpool_block_info *info);

static cmpool_status anywhere_in_it(cmpool_status status) { return status == CMPOOL_ERR_INTERIOR_POINTER ? CMPOOL_OK : status; }

static cmpool_status look_in_pages(cmi_pool *pool, uint64_t address, cmpool_block_info *info)
{
    cmi_place place;
    cmpool_status status = anywhere_in_it(cmi_pool_place(pool, address, &place));
    if (status == CMPOOL_OK) {
        *info = (cmpool_block_info){.pool = pool->owners[place.owner].generation,
                                    .tag = cmi_history_of(pool, &place).tag,
                                    .base = (void *)(uintptr_t)place.base,
                                    .usable_bytes = place.bytes,
                                    .requested_bytes = place.requested};
    }
    return status;
}

static cmpool_status look_in_pinned(cmi_pool *pool, uint64_t address, cmpool_block_info *info)
{
    cmi_pinned_block block;
    cmpool_status status = anywhere_in_it(cmi_pinned_place(pool, address, &block));
    if (status == CMPOOL_OK) {
        *info = (cmpool_block_info){.pool = pool->owners[0].generation,
                                    .tag = block.tag,
                                    .base = (void *)(uintptr_t)block.address,
                                    .usable_bytes = block.bytes,
                                    .requested_bytes = block.requested};
    }
    return status;
}

static cmpool_status look_in_device(cmi_device *device, look_fn *look, uint64_t address, cmpool_block_info *info)
{
    cmpool_status status = CMPOOL_ERR_NOT_OURS;
    cmi_lock_acquire(&device->lock);
    for (cmi_pool *pool = device->pools; pool && status == CMPOOL_ERR_NOT_OURS; pool = pool->next) {
        status = look(pool, address, info);
    }
    cmi_lock_release(&device->lock);
    if (status == CMPOOL_OK) {
        info->struct_size = sizeof *info;
        info->device = device->ordinal;
    }
    return status;
}

static cmpool_status look_everywhere(look_fn *look, const void *ptr, cmpool_block_info *info)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = info && info->struct_size == sizeof *info ? CMPOOL_ERR_NOT_OURS : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < CMI_MAX_DEVICES && status == CMPOOL_ERR_NOT_OURS; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device) {
            status = look_in_device(device, look, (uint64_t)(uintptr_t)ptr, info);
        }
    }
    return status;
}

cmpool_status cmpool_lookup(const void *ptr, cmpool_block_info *info)
{
    return cmi_registry_finish(look_everywhere(look_in_pages, ptr, info), "cmpool_lookup");
}

cmpool_status cmpool_pinned_lookup(const void *ptr, cmpool_block_info *info)
{
    return cmi_registry_finish(look_everywhere(look_in_pinned, ptr, info), "cmpool_pinned_lookup");
}
