/*
 * Blocks and live bytes for NVTX tools. Owns nothing; reads what it tells under the device lock and tells it without, since a tool may do
 * what it likes meanwhile. Called by blocks.c and unordered.c.
 */
#include "api/annotate.h"

static bool is_told(const cmi_entry *entry) { return cmi_nvtx_is_on() && entry->pool->options.nvtx; }

static bool describe(const cmi_entry *entry, uint64_t address, uint64_t bytes, cmi_nvtx_block *block)
{
    const cmi_range *range = address ? cmi_arena_range(&entry->pool->arena, address) : NULL;
    if (range) {
        *block = (cmi_nvtx_block){range->base, range->bytes, address, bytes};
    }
    return range != NULL;
}

void cmi_annotate_leave(const cmi_entry *entry, uint64_t address, uint64_t bytes)
{
    cmi_nvtx_block block;
    bool told = is_told(entry) && describe(entry, address, bytes, &block);
    cmi_registry_leave(entry);
    if (told) {
        cmi_nvtx_alloc(&block);
    }
}

void cmi_annotate_going(const cmi_entry *entry, uint64_t address, cmi_nvtx_block *block)
{
    cmi_place place;
    *block = (cmi_nvtx_block){0};
    if (is_told(entry) && cmi_pool_place_for(entry->pool, entry->owner, address, &place) == CMPOOL_OK &&
        describe(entry, address, place.requested, block)) {
        cmi_lock_release(&entry->device->lock);
        cmi_nvtx_free(address);
        cmi_lock_acquire(&entry->device->lock);
    }
}
