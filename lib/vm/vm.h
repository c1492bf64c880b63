/*
 * The door of lib/vm: physical pages (the device store), reserved address ranges cut into slots of one page (the arena), and page
 * moving. Knows no streams, no size classes, no policy: which page goes where is decided by lib/pool.
 *
 * Locks. [device] = the caller holds the device lock (rank DEVICE): these touch only tables. [vmm] = takes the store's own lock
 * (rank VMM) and calls the driver: the caller does not hold the device lock, has entered the driver (cmi_driver_enter) and has put the
 * slots concerned into state MOVING under the device lock, so that nobody else touches them.
 *
 * Two records of what is mapped. The slot table is the pool's: it says what each address is for, and only the pool changes it after a
 * range was made. Beside it vm keeps which page the driver has at each slot, under its own lock, so that mappings are counted exactly
 * whatever the driver answers. A driver call that failed may have had its effect; vm then asks the driver, undoes what it can, and what
 * it cannot undo is *stuck*: a slot that is still mapped although the pool has been told that it is empty. Stuck slots cost nothing but
 * their mapping: the pool treats them as the empty slots they are to it, and vm unmaps them before it maps anything there, before it
 * releases their page and before it gives their range back.
 */
#ifndef CMI_VM_H
#define CMI_VM_H

#include "base/base.h"
#include "driver/driver.h"

/* A slab of the largest small class fills a page of this length; every device known has granularity 2 MiB anyway. */
#define CMI_PAGE_LEAST (UINT64_C(2) << 20)
#define CMI_NO_PAGE UINT32_MAX
#define CMI_NO_STAMP UINT32_MAX
#define CMI_VM_PEERS_MAX 63

/* ---- device store: every page of a device in this process --------------------------------------- */

typedef struct cmi_store cmi_store;

typedef struct cmi_store_config {
    const cmi_driver *driver;
    int device;          /* ordinal */
    uint64_t page_bytes; /* 0: the device's recommended granularity, at least CMI_PAGE_LEAST; else a power of two >= that */
    bool rdma;           /* ask for GPUDirect RDMA where attribute 110 says it can be had */
    const int *peers;    /* ordinals that get read-write access to every mapping; copied */
    unsigned peer_count; /* at most CMI_VM_PEERS_MAX */
} cmi_store_config;

/*
 * Opens the store: reads granularity and attributes. A device without virtual memory has segments of kind MALLOC alone
 * (cmi_store_has_slots). UNSUPPORTED for a peer that cannot reach the device;
 * INVALID_ARGUMENT for a page size that is no power of two or below the granularity, or too many peers; DRIVER_MISSING for a device
 * that is not there; OUT_OF_HOST_MEMORY; as cmi_driver_status. Calls the driver, takes no lock.
 */
cmpool_status cmi_store_open(cmi_store **store, const cmi_store_config *config);
/* All pages and ranges must be gone; stranded ones are tried once more and then left to the driver. Returns pages and
 * ranges that are still left. */
unsigned cmi_store_close(cmi_store *store);
uint64_t cmi_store_page_bytes(const cmi_store *store);
/* Can the device map pages at addresses of our choice? */
bool cmi_store_has_slots(const cmi_store *store);
/* Can it give handles to other processes as file descriptors? */
bool cmi_store_has_shared(const cmi_store *store);
/* Add a peer: later mappings get access, and arenas re-grant what is mapped with cmi_arena_grant. OK also if it is one already;
 * UNSUPPORTED, INVALID_ARGUMENT as open. [vmm] */
cmpool_status cmi_store_add_peer(cmi_store *store, int device);

/*
 * Create up to `count` pages, one cuMemCreate each, unmapped. *created says how many there are in pages[]. OK when all were made;
 * OUT_OF_DEVICE_MEMORY when the driver had no more; other statuses for other driver errors, OUT_OF_HOST_MEMORY. Page numbers are small
 * and used again, so tables indexed by them stay dense. [vmm]
 */
cmpool_status cmi_store_create(cmi_store *store, uint32_t *pages, uint32_t count, uint32_t *created);
/*
 * Release unmapped pages (a mapping left is the caller's mistake: validating builds stop, others log and keep the page). What the driver
 * refuses to take is kept as stranded, counted, never handed out, and tried again by later calls. [vmm]
 */
void cmi_store_release(cmi_store *store, const uint32_t *pages, uint32_t count);
/* Pages held (created, not released, without stranded ones); readable at any time without a lock. */
uint64_t cmi_store_pages(const cmi_store *store);
uint64_t cmi_store_stranded(const cmi_store *store);
/* Slots mapped on the device in this process (all arenas); readable at any time. The driver's ceiling is near 500,000. */
uint64_t cmi_store_mappings(const cmi_store *store);
/* Wait until nobody is inside a page call, then return: for "another thread may just be getting memory". No lock held. */
void cmi_store_wait_turn(cmi_store *store);
/* Counts of what the store did, for counters: since open. Readable at any time without a lock. */
typedef struct cmi_store_counts {
    uint64_t created, released, mapped, unmapped;
    uint64_t stuck_slots; /* now: mapped although the pool was told they are empty */
    uint64_t lost_ranges; /* now: reserved addresses that the driver would not take back */
} cmi_store_counts;
void cmi_store_counts_get(const cmi_store *store, cmi_store_counts *counts);

/* ---- arena: a pool's reserved addresses, as slots ----------------------------------------------- */

typedef enum cmi_slot_state {
    CMI_SLOT_EMPTY,  /* an address without a page */
    CMI_SLOT_MAPPED, /* its page's present address */
    CMI_SLOT_STALE,  /* still mapped to a page that has moved on; unmapped once its stamp is seen done */
    CMI_SLOT_MOVING, /* a driver call on it is in flight; only the thread that set this may touch the slot */
    CMI_SLOT_HELD    /* address kept without a page (regions, pause) */
} cmi_slot_state;

typedef struct cmi_slot {
    uint32_t page;     /* MAPPED, STALE: page number in the store; else CMI_NO_PAGE */
    uint32_t stamp;    /* STALE: the pool's number of the stamp to be seen done; else CMI_NO_STAMP */
    uint32_t freed_at; /* MAPPED: second at which bytes of it were last freed, or at which it came; kept by pools with idle_release */
    uint16_t fixed;    /* count of reasons why the page must not leave this address */
    uint8_t state;     /* cmi_slot_state */
    uint8_t spare;
} cmi_slot;

/*
 * A segment is a range with one driver allocation from end to end: its slots are mapped for as long as it is there, its pages never leave
 * their place, and it goes back to the driver as a whole.
 */
typedef enum cmi_range_kind {
    CMI_RANGE_SLOTS,  /* reserved addresses; pages come and go slot by slot */
    CMI_RANGE_MALLOC, /* a segment from cuMemAlloc */
    CMI_RANGE_SHARED  /* a segment with a handle of its own that can be given to other processes */
} cmi_range_kind;

typedef struct cmi_range {
    struct cmi_range *next; /* vm's own: list of the segments that the driver would not take back */
    uint64_t base, bytes;   /* device address and length, multiples of the page */
    uint32_t slot_count;
    uint8_t kind;         /* cmi_range_kind */
    bool lost;            /* vm's own: given back by the pool, but the driver would not take it */
    uint32_t entry_count; /* of mappings: slot_count, or 1 for a segment */
    uint32_t held_pages;  /* of a segment: what it takes from the device, a margin included */
    uint64_t allocation;  /* MALLOC: address that the driver gave, at or below base */
    uint64_t buffer_id;   /* MALLOC: the driver's number of the allocation, unique for ever; 0: not known */
    cmi_slot *slots;      /* the pool's record, guarded by the device lock */
    uint32_t *mappings;   /* vm's own record of the page at each slot (SHARED: of the one handle), guarded by the store's lock */
} cmi_range;

typedef struct cmi_arena {
    cmi_store *store;
    unsigned page_shift;
    cmi_range **ranges; /* in order of address; pointers stay valid until the range is released */
    uint32_t range_count, range_room;
    uint64_t address_bytes;
} cmi_arena;

void cmi_arena_init(cmi_arena *arena, cmi_store *store);
/* Every slot must be EMPTY or HELD. Drops all ranges. [vmm] */
void cmi_arena_fini(cmi_arena *arena);

/*
 * Reserve a range of at least `bytes` (rounded up to the page). The driver call is made by prepare [vmm], which returns a range not yet
 * part of the arena; publish [device] inserts it (OUT_OF_HOST_MEMORY leaves it out); withdraw [device] takes a range out whose slots are
 * all EMPTY or HELD; drop [vmm] gives a range back that is not, or no longer, in the arena. A range that the driver refuses to free is
 * logged, counted in lost_ranges and tried again when the store closes. prepare: INVALID_ARGUMENT (0 bytes or 2^32 slots),
 * OUT_OF_ADDRESSES, OUT_OF_HOST_MEMORY, as cmi_driver_status.
 */
cmpool_status cmi_range_prepare(cmi_store *store, uint64_t bytes, cmi_range **range);
cmpool_status cmi_arena_publish(cmi_arena *arena, cmi_range *range);
void cmi_arena_withdraw(cmi_arena *arena, cmi_range *range);
void cmi_range_drop(cmi_store *store, cmi_range *range);

/* The range that holds an address, or NULL. [device] */
cmi_range *cmi_arena_range(const cmi_arena *arena, uint64_t address);
static inline uint32_t cmi_range_slot_number(const cmi_arena *arena, const cmi_range *range, uint64_t address)
{
    return (uint32_t)((address - range->base) >> arena->page_shift);
}
/* The slot that holds an address that lies in the arena. [device] */
cmi_slot *cmi_arena_slot(const cmi_arena *arena, uint64_t address);

/*
 * Map pages[0..count) at consecutive slots from address on, then grant access to the device and its peers in one call. Slots must be
 * MOVING; their table entries are not touched (the pool publishes). On failure everything this call did is undone and the slots are
 * empty again, stuck ones too as far as the pool is concerned. MAPPING_CEILING when the driver takes no further mapping, else as
 * cmi_driver_status. [vmm]
 */
typedef struct cmi_map_result {
    cmpool_status status;
    uint32_t mapped; /* count on success, 0 on failure */
    uint32_t stuck;  /* on failure: how many of the slots the driver would not unmap again */
} cmi_map_result;
cmi_map_result cmi_arena_map(cmi_arena *arena, uint64_t address, const uint32_t *pages, uint32_t count);

/*
 * Unmap `count` consecutive slots from address on: one call for each run of mapped ones, one per page where that is refused. done[i]
 * (count entries) says whether slot i has no page any more. Table entries are not touched. Returns how many have none; *status is OK if
 * that is all of them, else what the last refusal means. [vmm]
 */
uint32_t cmi_arena_unmap(cmi_arena *arena, uint64_t address, uint32_t count, bool *done, cmpool_status *status);

/*
 * Give up slots that cmi_arena_unmap could not unmap: those of the `count` slots from address on that still have a page become stuck, so
 * that the pool may call them empty, release their pages and give up their range (destroy must come to an end whatever the driver says).
 * Nothing on the device uses them any more. Returns how many there were. [vmm, but calls no driver]
 */
uint32_t cmi_arena_abandon(cmi_arena *arena, uint64_t address, uint32_t count);

/* Grant all peers access again on `count` mapped slots from address on. [vmm] */
cmpool_status cmi_arena_grant(cmi_arena *arena, uint64_t address, uint32_t count);

/* ---- segments ----------------------------------------------------------------------------------- */

/*
 * A segment that takes so many pages from the device, all slots MAPPED and fixed, not yet part of an arena; publish and withdraw as for
 * other ranges. Its range has the margin fewer: nobody promises that cuMemAlloc memory begins at a multiple of the page, and once it has
 * not, each segment takes a page more (cmi_segment_margin, read without a lock). BUSY: the margin has just grown, ask again. Peers reach
 * MALLOC segments as the program has arranged it for cuMemAlloc memory (cuCtxEnablePeerAccess), SHARED ones by the store's access. On
 * failure nothing is left. OUT_OF_DEVICE_MEMORY, UNSUPPORTED, OUT_OF_HOST_MEMORY, OUT_OF_ADDRESSES, MAPPING_CEILING, as cmi_driver_status.
 * [vmm]
 */
cmpool_status cmi_segment_create(cmi_store *store, cmi_range_kind kind, uint64_t pages, cmi_range **range);
uint64_t cmi_segment_margin(const cmi_store *store, cmi_range_kind kind);
/*
 * Give the memory of a segment back; the record stays until cmi_range_drop. false: the driver refuses and the memory is as it was. True
 * also where the driver cannot even say whether it took it: then it counts as stranded, and nobody uses it any more. [vmm]
 */
bool cmi_segment_release(cmi_store *store, cmi_range *range);
/* For destroy: what could not be released is left to the driver, counted as stranded. [vmm, but frees a handle where it can] */
void cmi_segment_abandon(cmi_store *store, cmi_range *range);
/* A file descriptor of a SHARED segment, the caller's to close. [vmm] */
cmpool_status cmi_segment_export(cmi_store *store, const cmi_range *range, int *fd);

/* NULL, or what is wrong with the tables (static text): states against pages, slots against what the driver has there, every page
 * MAPPED at most once in this arena. MOVING slots are not looked at. Takes the store's lock. [device] */
const char *cmi_arena_validate(const cmi_arena *arena);

#endif
