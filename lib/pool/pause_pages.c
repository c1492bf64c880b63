/*
 * The pages of a pause on their way: contents to the host and back, pages unmapped and released, or mapped again. Owns nothing but the
 * record's marks on each page, which are the calling thread's while `changing`; the device lock is dropped around driver calls; called by
 * pause.c.
 */
#include "pool/pause_pages.h"

enum { RUN = 256 };

static cmpool_status unmap_pages(cmi_pool *pool)
{
    cmi_paused_page *pages = pool->pause->pages;
    cmpool_status worst = CMPOOL_OK;
    for (uint32_t i = 0, count; i < pool->pause->page_count; i += count) {
        count = (uint32_t)cmi_min_u64(cmi_pause_run(pool, i), RUN);
        if (pages[i].mapped) {
            bool unmapped[RUN] = {false};
            cmpool_status status;
            cmi_arena_unmap(&pool->arena, pages[i].address, count, unmapped, &status);
            worst = worst == CMPOOL_OK ? status : worst;
            for (uint32_t k = 0; k < count; k++) {
                pages[i + k].mapped = !unmapped[k];
            }
        }
    }
    return worst;
}

static cmpool_status map_pages(cmi_pool *pool)
{
    cmi_paused_page *pages = pool->pause->pages;
    for (uint32_t i = 0, count; i < pool->pause->page_count; i += count) {
        uint32_t numbers[RUN];
        count = (uint32_t)cmi_min_u64(cmi_pause_run(pool, i), RUN);
        if (pages[i].mapped || pages[i].gone) {
            continue;
        }
        for (uint32_t k = 0; k < count; k++) {
            numbers[k] = pages[i + k].page;
        }
        cmi_map_result result = cmi_arena_map(&pool->arena, pages[i].address, numbers, count);
        if (result.status != CMPOOL_OK) {
            return result.status;
        }
        for (uint32_t k = 0; k < count; k++) {
            pages[i + k].mapped = true;
        }
    }
    return CMPOOL_OK;
}

/* Both keep the order of pages; a keeper copies what has no contents otherwise. */
static cmpool_status copy_pages(cmi_pool *pool, bool back)
{
    cmi_pause *pause = pool->pause;
    cmpool_status status = CMPOOL_OK;
    for (uint32_t i = 0, count; i < pause->page_count && status == CMPOOL_OK; i += count) {
        count = cmi_pause_run(pool, i);
        if (!back) {
            status = pause->keeper->save(pause->keeper, pause->pages[i].address, i, count);
        } else if (pause->pages[i].mapped && !pause->pages[i].intact) {
            status = pause->keeper->restore(pause->keeper, pause->pages[i].address, i, count);
        }
    }
    return status;
}

/* Around one of the above, as a call that a capture does not survive. Lock held before and after. */
cmpool_status cmi_pause_save(cmi_pool *pool)
{
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(pool->device, &call, 0);
    if (status == CMPOOL_OK) {
        status = copy_pages(pool, false);
        cmi_capture_barred_end(pool->device, &call);
    }
    return status;
}

cmpool_status cmi_pause_restore(cmi_pool *pool)
{
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(pool->device, &call, 0);
    if (status == CMPOOL_OK) {
        status = copy_pages(pool, true);
        cmi_capture_barred_end(pool->device, &call);
    }
    return status;
}

cmpool_status cmi_pause_put_back(cmi_pool *pool)
{
    cmi_call call;
    cmpool_status status = cmi_device_call_begin(pool->device, &call, 0);
    if (status == CMPOOL_OK) {
        status = map_pages(pool);
        cmi_device_call_end(pool->device, &call);
    }
    return status;
}

cmpool_status cmi_pause_take_away(cmi_pool *pool)
{
    cmi_call call;
    cmpool_status status = cmi_capture_barred_begin(pool->device, &call, 0);
    if (status == CMPOOL_OK) {
        status = unmap_pages(pool);
        cmi_capture_barred_end(pool->device, &call);
    }
    return status;
}

void cmi_pause_release(cmi_pool *pool, bool intact)
{
    cmi_pause *pause = pool->pause;
    uint32_t count = 0;
    cmi_call call;
    cmi_device_call_begin_anyway(pool->device, &call);
    for (uint32_t i = 0; i < pause->page_count; i++) {
        cmi_paused_page *at = &pause->pages[i];
        if (!at->mapped && at->page != CMI_NO_PAGE && (intact || !at->intact)) {
            cmi_store_release(pool->device->store, &at->page, 1);
            at->page = CMI_NO_PAGE;
            at->intact = false;
            count++;
        }
    }
    cmi_device_call_end(pool->device, &call);
    pool->reserved_pages -= count;
    pool->counters.pages_released += count;
    if (count) {
        pool->device->full = false;
    }
}
