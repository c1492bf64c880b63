/* What the files of a pause share. All but the runs drop and retake the lock. */
#ifndef CMI_POOL_PAUSE_PAGES_H
#define CMI_POOL_PAUSE_PAGES_H

#include "pool/pause.h"

/* Pages behind one another from number i on that are alike. */
static inline uint32_t cmi_pause_run(const cmi_pool *pool, uint32_t i)
{
    const cmi_paused_page *pages = pool->pause->pages;
    uint32_t j = i + 1;
    while (j < pool->pause->page_count && pages[j].address == pages[j - 1].address + pool->heap.source.page_bytes &&
           pages[j].mapped == pages[i].mapped && pages[j].gone == pages[i].gone && pages[j].intact == pages[i].intact) {
        j++;
    }
    return j - i;
}

static inline uint64_t cmi_pause_run_end(const cmi_pool *pool, uint32_t i, uint32_t count)
{
    return pool->pause->pages[i].address + ((uint64_t)count << pool->heap.page_shift);
}

/* Wait for the device, fill the record with the pages that are to go, take the free bytes on them out of the bins, and make their slots
 * MOVING. */
cmpool_status cmi_pause_choose(cmi_pool *pool, cmi_pause_ask *ask);
/* Contents of all pages into the keeper; and back into those that have none. */
cmpool_status cmi_pause_save(cmi_pool *pool);
cmpool_status cmi_pause_restore(cmi_pool *pool);
/* Map all pages that are not; unmap all that are, as far as the driver does. */
cmpool_status cmi_pause_put_back(cmi_pool *pool);
cmpool_status cmi_pause_take_away(cmi_pool *pool);
/* Pages that are mapped nowhere go to the driver; intact: also those that have contents. */
void cmi_pause_release(cmi_pool *pool, bool intact);

#endif
