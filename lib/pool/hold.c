/*
 * Reserve: pages created and mapped ahead of need. Owns nothing; runs under the device lock, dropped around driver calls; called by the
 * pool.
 */
#include "pool/climb.h"

#include <string.h>

/* One segment, so that what follows finds as long a block as it can. */
static cmpool_status hold_segment(climb *c, uint64_t pages, cmi_block_id *block)
{
    cmi_device *device = c->pool->device;
    cmpool_status status;
    do {
        uint64_t wanted = pages + cmi_segment_margin(device->store, CMI_RANGE_MALLOC);
        if (cmi_plan_growth_pages(c) < wanted) {
            return c->limited ? CMPOOL_ERR_LIMIT : CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
        }
        status = cmi_pool_add_segment(c->pool, CMI_RANGE_MALLOC, wanted, block);
    } while (status == CMPOOL_ERR_BUSY); /* the margin has grown, once */
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) {
        cmi_device_is_full(device);
    }
    return status;
}

cmpool_status cmi_ladder_hold(cmi_pool *pool, uint64_t pages)
{
    if (pool->device->lost && cmi_device_ask_lost(pool->device) != CMPOOL_OK) {
        return CMPOOL_ERR_DEVICE_LOST;
    }
    if (pool->asleep) {
        return CMPOOL_ERR_PAUSED;
    }
    cmi_heap *heap = &pool->heap;
    cmi_ask ask = {.bytes = pages << heap->page_shift, .align = heap->source.page_bytes};
    climb c = {.pool = pool, .ask = &ask, .may_grow = true};
    cmpool_status status = CMPOOL_OK;
    cmi_block_id block = 0;
    cmi_device_carry_begin(pool->device);
    pool->device->full = false;
    if (ask.bytes > pool->device->total_bytes) {
        status = CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    }
    if (status == CMPOOL_OK && pool->segmented) {
        status = hold_segment(&c, pages, &block);
    }
    while (status == CMPOOL_OK && !block) {
        cmi_window window;
        if (!cmi_plan_mark_usable(pool, pool, NULL, REACH_FINISHED)) {
            status = CMPOOL_ERR_OUT_OF_HOST_MEMORY;
            break;
        }
        memset(pool->use, CMI_USE_NOT, pool->use_room); /* holes only: what is held stays as it is */
        if (!cmi_heap_find_window(heap, pool->use, ask.bytes, ask.align, &window)) {
            (void)cmi_plan_want_addresses(&c, &status);
        } else if (c.hand.count < pages && cmi_plan_growth_pages(&c) < pages - c.hand.count) {
            status = pool->device->full ? CMPOOL_ERR_OUT_OF_DEVICE_MEMORY : CMPOOL_ERR_LIMIT;
        } else if (c.hand.count < pages) {
            (void)cmi_plan_create(&c, pages - c.hand.count, 0, &status);
        } else {
            status = cmi_source_fill(pool, &ask, &window, &c.hand, NULL, 0, &block);
        }
    }
    if (block) {
        cmi_heap_make_free(heap, block, pool->owners[0].done[0], 0, CMI_HEAP_NO_STAMP);
    }
    uint64_t missing = pages - c.hand.count;
    cmi_source_put_down(pool, &c.hand);
    cmi_device_carry_end(pool->device, false);
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        uint64_t driver_free = cmi_device_ask_free(pool->device);
        cmi_pool_explain(pool, &ask, status, driver_free, missing, c.rung_bytes);
    }
    cmi_pool_must_be_valid(pool);
    return status;
}
