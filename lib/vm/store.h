/*
 * What the files of lib/vm share: the device store from inside. Not for other rooms.
 * Everything but the atomics and what open() sets for good is guarded by cmi_store.lock.
 */
#ifndef CMI_VM_STORE_H
#define CMI_VM_STORE_H

#include "vm/vm.h"

#include <stdatomic.h>

typedef enum page_state {
    PAGE_FREE,    /* a number without a page */
    PAGE_HELD,    /* a page of some pool */
    PAGE_PINNED,  /* stranded: given up by its pool, but a stuck slot still maps it; its handle was not released yet */
    PAGE_REFUSED, /* stranded: the driver refused to release its handle */
} page_state;

typedef struct page {
    CUmemGenericAllocationHandle handle;
    uint32_t link;     /* FREE, PINNED, REFUSED: next of its list; HELD: the last validation that saw it mapped */
    uint16_t mappings; /* slots that have this page, stuck ones included */
    uint16_t stuck : 14;
    uint16_t state : 2; /* page_state */
} page;

#define PAGE_MAPPINGS_MAX 0x3FFFu

/* Entries of cmi_range.mappings: CMI_NO_PAGE, or a page number, with this bit where the slot is stuck. */
#define SLOT_STUCK 0x80000000u
#define PAGE_NUMBER_MAX 0x7FFFFFFEu

#define PAGES_PER_CHUNK 1024u

struct cmi_store {
    cmi_lock lock;
    const cmi_driver *driver;
    CUdevice device;
    uint64_t page_bytes;
    unsigned page_shift;
    CUmemAllocationProp prop;
    bool has_slots, has_shared;

    CUmemAccessDesc access[1 + CMI_VM_PEERS_MAX]; /* the device, then its peers */
    unsigned access_count;

    page **chunks; /* records never move; the directory does */
    uint32_t chunk_count, chunk_room;
    uint32_t page_count;                 /* numbers given out so far, free ones included */
    uint32_t free_pages, stranded_pages; /* heads of lists, CMI_NO_PAGE ends */

    cmi_range **ranges; /* every reserved range, in no order: there are few */
    uint32_t range_count, range_room;

    uint32_t validation; /* number of the last validation */
    cmi_range *stranded_segments;
    _Atomic uint64_t margin; /* pages that a MALLOC segment takes beyond its range */

    _Atomic uint64_t pages, stranded, mappings, stuck_slots, lost_ranges;
    _Atomic uint64_t created, released, mapped, unmapped;
};

static inline page *cmi_store_page(const cmi_store *store, uint32_t number)
{
    return &store->chunks[number / PAGES_PER_CHUNK][number % PAGES_PER_CHUNK];
}
static inline bool cmi_store_has_page(const cmi_store *store, uint32_t number)
{
    return number < store->page_count && cmi_store_page(store, number)->state == PAGE_HELD;
}

static inline void cmi_count(_Atomic uint64_t *counter, uint64_t n) { atomic_fetch_add_explicit(counter, n, memory_order_relaxed); }
static inline void cmi_uncount(_Atomic uint64_t *counter, uint64_t n) { atomic_fetch_sub_explicit(counter, n, memory_order_relaxed); }
static inline uint64_t cmi_counted(const _Atomic uint64_t *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }

/* Take the store's lock for driver calls: not under the device lock. */
void cmi_store_lock(cmi_store *store);
/* A caller broke a rule of vm.h: validating builds stop here, others log and refuse. */
void cmi_vm_fault(const char *what, uint64_t value);

/* A table of *room pointers, count of them in use, with room for one more: the same, or a larger copy, or NULL (no host memory). */
void *cmi_vm_grow(void *table, uint32_t *room, uint32_t count);

/* How much of a range one entry of its mappings stands for. */
static inline uint64_t cmi_range_entry_bytes(const cmi_store *store, const cmi_range *range)
{
    return range->kind == CMI_RANGE_SLOTS ? store->page_bytes : range->bytes;
}

/* store.c, under the lock: a page number with a handle of so many bytes; and its end (what the driver refuses is stranded). */
cmpool_status cmi_store_create_page(cmi_store *store, uint64_t bytes, CUmemAllocationHandleType handle_types, uint32_t *number);
void cmi_store_release_page(cmi_store *store, uint32_t number);
/* map.c, under the lock: map and grant `count` entries from first on, or nothing; unmap them; give up those that still have a page. */
void cmi_vm_map(cmi_store *store, cmi_range *range, uint32_t first, const uint32_t *pages, uint32_t count, cmi_map_result *result);
cmpool_status cmi_vm_unmap(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count);
uint32_t cmi_vm_give_up(cmi_store *store, cmi_range *range, uint32_t first, uint32_t count);

/* segment.c, under the lock: try the segments once more that the driver would not take back; `last`: and forget them all. */
void cmi_segment_retry_stranded(cmi_store *store, bool last);

/* map.c, under the lock: unmap the stuck slots of one page (range NULL), or of one range (page CMI_NO_PAGE). */
void cmi_vm_unstick(cmi_store *store, cmi_range *range, uint32_t page_number);

/* arena.c, under the lock: the range that holds `count` slots from address on, and the first one's number in *slot; NULL if none does. */
cmi_range *cmi_range_find(const cmi_store *store, uint64_t address, uint32_t count, uint32_t *slot);
/* arena.c, under the lock: try the lost ranges once more. */
void cmi_range_retry_lost(cmi_store *store);
/* arena.c, under the lock: addresses for a range from new_record, which is on the store's list from then on. */
cmpool_status cmi_range_reserve(cmi_store *store, cmi_range *range);
/* arena.c: host memory of a range, all slots EMPTY. NULL: there is none, or no such length. */
cmi_range *cmi_range_new_record(const cmi_store *store, cmi_range_kind kind, uint64_t bytes);
void cmi_range_free_record(cmi_range *range);

#endif
