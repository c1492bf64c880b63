/*
 * Pause and resume: the pages of a pool, or of its blocks with one tag, go back to the device while the blocks keep their addresses.
 * Everything here runs under the device lock, which is dropped around driver calls.
 */
#ifndef CMI_POOL_PAUSE_H
#define CMI_POOL_PAUSE_H

#include "pool/pool.h"
#include "record/tags.h"

/* Where contents lie meanwhile; pages are counted from 0 in the order of their addresses. */
typedef struct cmi_keeper cmi_keeper;
struct cmi_keeper {
    /* Room for `pages`. Drops and retakes the lock. */
    cmpool_status (*open)(cmi_keeper *keeper, cmi_pool *pool, uint32_t pages);
    /* Copy `count` pages from address on, page number `first` of the pause and those behind it. In the driver, lock not held. */
    cmpool_status (*save)(cmi_keeper *keeper, uint64_t address, uint32_t first, uint32_t count);
    cmpool_status (*restore)(cmi_keeper *keeper, uint64_t address, uint32_t first, uint32_t count);
    /* Ends the keeper. Drops and retakes the lock. */
    void (*close)(cmi_keeper *keeper, cmi_pool *pool);
};

/* An address that was given up for now: one slot. */
typedef struct cmi_paused_page {
    uint64_t address;
    uint32_t page; /* CMI_NO_PAGE: given back */
    bool mapped;   /* at its address still, or again */
    bool intact;   /* has its contents */
    bool gone;     /* no live byte was left on it: a hole since */
} cmi_paused_page;

typedef struct cmi_pause {
    bool changing; /* a thread pauses or resumes; nobody else may touch the record */
    uint32_t tag;
    const char *tag_name; /* only while the blocks are chosen */
    cmi_keeper *keeper;   /* NULL: contents are discarded */
    cmi_paused_page *pages;
    uint32_t page_count;
    uint32_t records; /* earmarked in the heap: what is taken out of the bins finds its way back */
} cmi_pause;

typedef struct cmi_pause_ask {
    uint32_t tag;         /* 0 and no name: the whole pool */
    const char *tag_name; /* blocks taken under it, or under a tag within it */
    cmi_keeper *keeper;   /* NULL: discard. The pause's from here on, whatever the outcome */
    void **fixed;         /* the first fixed_room addresses of what must keep its pages */
    size_t fixed_room, fixed_count;
} cmi_pause_ask;

/* BUSY with a count of fixed memory, or where another thread pauses or resumes the pool; PAUSED if it is paused. After any other failure
 * the pool is as before, or paused if its pages could not be put back. Drops and retakes the lock. */
cmpool_status cmi_pause_begin(cmi_pool *pool, cmi_pause_ask *ask);
/* OK also if the pool is not paused. After a failure it is still paused. Drops and retakes the lock. */
cmpool_status cmi_pause_end(cmi_pool *pool);
/* For a pool that is about to end, without live blocks: the record and what was kept go. Drops and retakes the lock. */
void cmi_pause_abandon(cmi_pool *pool);
/* Does any byte of these have no page now? */
bool cmi_pause_holds(const cmi_pool *pool, uint64_t address, uint64_t bytes);
/* Such a block was freed: its bytes serve again when the pages are back. Needs what cmi_pool_make_ready gives. */
void cmi_pause_free(cmi_pool *pool, const cmi_place *place);

#endif
