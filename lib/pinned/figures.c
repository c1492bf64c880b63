/*
 * Figures of pinned memory, and its validator. Owns nothing; reads under the device lock; called by api, by tests and, in builds with
 * CMI_VALIDATE, after each change.
 */
#include "pinned/pinned.h"

cmi_pinned_figures cmi_pinned_figures_of(const cmi_pool *pool)
{
    cmi_pinned_figures figures = {.limit_bytes = pool->options.pinned_limit};
    if (pool->pinned) {
        figures = pool->pinned->figures;
        figures.pending_bytes = cmi_pinned_pending_bytes(pool->pinned);
    }
    return figures;
}

static const char *check_extents(const cmi_pinned *pinned)
{
    uint64_t bytes = 0;
    if (pinned->extent_count != pinned->heap.space_count) {
        return "extents and ranges of the heap differ";
    }
    for (uint32_t i = 0; i < pinned->extent_count; i++) {
        const cmi_pinned_extent *extent = &pinned->extents[i];
        const cmi_space *space = &pinned->heap.spaces[i];
        bytes += extent->bytes;
        if (extent->address != space->base || extent->bytes != space->bytes) {
            return "an extent is not the heap's";
        }
        for (cmi_block_id id = space->first; id; id = cmi_heap_block(&pinned->heap, id)->next) {
            const cmi_block *block = cmi_heap_block(&pinned->heap, id);
            bool binned = block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_LIVE;
            if (binned && cmi_heap_binset(&pinned->heap, block->binset)->owner != extent->group) {
                return "a block of another group than its extent";
            }
        }
    }
    return bytes == pinned->figures.held_bytes ? NULL : "held bytes differ from the extents";
}

static const char *check_blocks(const cmi_pinned *pinned)
{
    uint64_t live = 0, requested = 0, count = 0, pending = 0;
    uint32_t all = 0, small = 0;
    for (uint32_t i = 0; i < pinned->table_room; i++) {
        const cmi_pinned_block *block = &pinned->table[i];
        if (!block->address) {
            continue;
        }
        cmi_block_id id = cmi_heap_find(&pinned->heap, block->address);
        const cmi_block *under = id ? cmi_heap_block(&pinned->heap, id) : NULL;
        if (!under || under->kind != (block->small ? CMI_BLOCK_BUSY : CMI_BLOCK_LIVE) ||
            (!block->small && (under->offset != block->address || under->bytes != block->bytes))) {
            return "a block that the heap does not have";
        }
        all++;
        small += block->small;
        pending += block->state == CMI_PINNED_PENDING ? block->bytes : 0;
        if (block->state == CMI_PINNED_LIVE) {
            live += block->bytes;
            requested += block->requested;
            count++;
        }
    }
    bool same = live == pinned->figures.live_bytes && requested == pinned->figures.requested_bytes &&
                count == pinned->figures.live_blocks && pending == pinned->small_pending_bytes && all == pinned->table_count &&
                small == pinned->small_count;
    return same ? NULL : "figures differ from the blocks";
}

const char *cmi_pinned_validate(const cmi_pool *pool)
{
    const cmi_pinned *pinned = pool->pinned;
    const char *fault = pinned ? cmi_heap_validate(&pinned->heap) : NULL;
    if (pinned && !fault && !pinned->changing) {
        fault = check_extents(pinned);
    }
    return pinned && !fault ? check_blocks(pinned) : fault;
}
