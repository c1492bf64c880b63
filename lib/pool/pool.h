/*
 * The door of lib/pool: the only room where addresses, streams and events meet. Pools on one device share one lock, one table of streams
 * and one store of pages, so that memory freed in one pool can serve another without a driver call.
 *
 * Locks. cmi_device.lock (rank DEVICE) guards everything in this header except where a field says otherwise. No driver call is made
 * under it: a thread marks what it works on (slots MOVING, blocks BUSY), drops the lock, calls, retakes it and publishes;
 * cmi_device.in_flight counts such threads; requests that carry pages are counted apart (carriers), and the last word on a request is said
 * while nobody else carries any.
 */
#ifndef CMI_POOL_H
#define CMI_POOL_H

#include "driver/driver.h"
#include "heap/heap.h"
#include "record/record.h"
#include "vm/vm.h"

#include <stdatomic.h>

enum { CMI_MAX_DEVICES = 64, CMI_MAPPING_CEILING = 400000 };

/* ---- stamps: what must be done before bytes may be used ----------------------------------------- */

/*
 * Tickets count frees on a device: every free takes the present number, every fence (a recorded event) closes it and opens the next. A
 * fence with ticket t covers all frees up to t: of its stream, or of its whole context.
 */
enum { CMI_STAMP_STREAMS = 6, CMI_STAMP_CHUNK_SHIFT = 8, CMI_STAMP_CHUNK = 1 << CMI_STAMP_CHUNK_SHIFT };

typedef struct cmi_stamp_entry {
    uint64_t ticket;
    uint32_t stream; /* record number */
} cmi_stamp_entry;

typedef struct cmi_stamp {
    uint32_t holders; /* 0: in the list of unused ones */
    uint8_t count;
    bool whole; /* overflow: everything on the device up to entries[0].ticket */
    cmi_stamp_entry entries[CMI_STAMP_STREAMS];
} cmi_stamp;

/* ---- streams and fences ------------------------------------------------------------------------- */

enum { CMI_NO_STREAM = 0 };

typedef enum cmi_stream_kind { CMI_STREAM_OTHER, CMI_STREAM_LEGACY, CMI_STREAM_PER_THREAD } cmi_stream_kind;

typedef struct cmi_stream {
    CUstream handle;    /* trusted only inside a call that was given it */
    uint64_t id;        /* cuStreamGetId, 0 when the driver has none */
    uint64_t thread;    /* PER_THREAD: whose */
    uint32_t context;   /* number in cmi_device.contexts */
    uint8_t kind;       /* cmi_stream_kind */
    bool unused;        /* the record waits for another stream */
    bool keeps;         /* uses on it were recorded, which name the record for as long as their blocks live: never used again */
    bool retired;       /* its handle is dead or dying; nothing is recorded on it any more */
    uint64_t last_free; /* youngest ticket given to a free on it */
    uint64_t covered;   /* frees up to this ticket have an event behind them */
    uint64_t done;      /* frees up to this ticket were seen done by the host */
    uint64_t ordered;   /* what this stream does next comes after everything up to this ticket, on every stream of `ordered_context` */
    uint32_t ordered_context;
    uint32_t open_frees; /* frees since the last event */
    uint64_t open_bytes;
} cmi_stream;

typedef struct cmi_context {
    CUcontext handle;
    bool gone;              /* destroyed: nothing is asked of it any more */
    uint64_t covered, done; /* by events that cover the whole context */
} cmi_context;

typedef struct cmi_fence {
    CUevent event;
    uint64_t ticket;
    uint32_t stream; /* record number, or CMI_NO_STREAM: all of `context` */
    uint32_t context;
    uint32_t pins; /* threads that use the event without the lock */
    bool done;
} cmi_fence;

/* ---- device, pool, owner ------------------------------------------------------------------------ */

typedef struct cmi_pool cmi_pool;

typedef struct cmi_device {
    cmi_lock lock;
    pthread_cond_t landed; /* in_flight, carriers, alone or a pool's pins fell */
    const cmi_driver *driver;
    int ordinal;
    CUcontext primary; /* retained while a pool exists */
    uint64_t total_bytes;
    cmi_store *store; /* NULL while the device has no pool */
    uint64_t page_bytes;

    cmi_stream *streams; /* number 0 is none */
    uint32_t stream_count, stream_room, unused_streams;
    uint32_t *stream_table; /* open-addressed by handle: record numbers of streams that are not retired */
    uint32_t stream_table_room, stream_table_used;
    uint32_t stream_known; /* the record that was found last */
    cmi_context *contexts; /* number 0 is the primary one */
    uint32_t context_count, context_room;

    uint64_t ticket;           /* of frees made now */
    uint32_t searching_stream; /* for whom a plan is made */
    uint64_t whole_ticket;     /* youngest ticket of a stamp that waits for the whole device */
    uint64_t done_changes;     /* counts every advance of a `done` */
    cmi_fence *fences;         /* outstanding, oldest first */
    uint32_t fence_count, fence_room;
    CUevent *spare_events;
    uint32_t spare_count, spare_room;

    cmi_stamp **stamp_chunks;
    uint32_t stamp_chunk_count, stamp_chunk_room, unused_stamp, unused_stamp_count;
    uint32_t earmarked_stamps; /* kept for threads that have dropped the lock */

    cmi_pool *pools; /* list through next */
    uint32_t in_flight;
    uint32_t unmapping; /* threads that are unmapping old addresses */
    uint32_t carriers;  /* climbs, reserves and trims in progress: their pages may be on their way */
    uint64_t carried;   /* counts them since ever */
    bool alone;         /* one climbs by itself; others wait before they begin */
    uint32_t creating;  /* threads that are getting new pages */
    uint64_t creations; /* counts the times one began to */
    uint64_t landings;  /* counts the ends of driver calls: did another thread do anything meanwhile? */
    bool full;          /* the driver refused a page; asked again now and then, and before any refusal */
    uint32_t slow_since_full;
    uint32_t tight;   /* requests that still go by the best fit only, see cmi_device_is_full */
    CUstream witness; /* never used: it dies with the primary context, and no stream gets its id again. NULL: drivers without ids */
    uint64_t witness_id;
    bool lost; /* the primary context is gone; asked again at each request */
    uint64_t unretired_streams;
    uint32_t leases;      /* the next number for one, see lease.c */
    uint32_t caches_shut; /* threads that keep everybody out of the thread caches */

    cmi_tracer *tracer; /* NULL: no trace is recorded; once there it stays */

    uint32_t next_look; /* second at which the first of the idle_pools looks for what is idle for long */
    /* Read by every call, without the lock, and written rarely. */
    _Alignas(64) _Atomic(uint64_t) over_budget; /* bytes that the driver wants back; written by its threads, without the lock */
    _Atomic(uint32_t) idle_pools;               /* pools that give back what is idle for long */
    CUasyncCallbackHandle notifications;
} cmi_device;

typedef enum cmi_owner_kind {
    CMI_OWNER_POOL,    /* number 0: the pool itself */
    CMI_OWNER_PRIVATE, /* reuses its own blocks first; its idle whole pages serve everybody */
    CMI_OWNER_REGION,  /* free memory within growing regions: its pages serve everybody, but nobody in place */
    CMI_OWNER_CAPTURE  /* memory of CUDA graphs: what it ever took is its own until it is released, free or not */
} cmi_owner_kind;

/* An owner is a pool, or a private pool or capture set in it: whose bytes join, and which are searched first. */
typedef struct cmi_owner {
    bool used;
    uint8_t kind;               /* cmi_owner_kind */
    uint32_t captures;          /* CAPTURE: captures that allocate from it now */
    uint32_t calls_inside;      /* public calls that may have dropped the lock */
    uint32_t done[2], mixed[2]; /* bin sets; index 1: free space of small pages */
    uint32_t *of_stream[2];     /* bin set by stream record number, 0: none yet */
    uint32_t of_stream_room;
    uint64_t live_blocks, live_bytes, requested_bytes, allocations, frees, peak_live_bytes;
    uint64_t generation; /* of the public handle */
} cmi_owner;

struct cmi_pool {
    cmi_device *device;
    cmi_pool *next;
    cmi_options options;
    cmi_heap heap;
    cmi_arena arena;
    cmi_owner *owners; /* number 0 is the pool itself */
    uint32_t owner_count, owner_room;
    uint8_t *use; /* scratch of the ladder: one entry a bin set */
    uint32_t use_room;
    cmi_counters counters; /* what is in thread caches counts as live, until it is drained */
    cmi_ring ring;
    cmpool_refusal refusal; /* the last one; number 0: there was none */
    cmpool_refusal_fn refused;
    void *refused_user;
    cmi_notes notes;          /* on live slots of slabs, where tags or history are in use */
    struct cmi_cache *caches; /* of all threads, see cache.h */
    bool segmented;           /* its memory comes from cuMemAlloc, in segments whose pages do not move */
    uint32_t shared;          /* segments with a handle of their own: exportable blocks */
    uint32_t leaving;         /* of those, the ones whose block was freed */
    uint64_t reserved_pages;  /* MAPPED here, and on their way here */
    uint64_t promoted_at;     /* device done_changes when free blocks were last looked through */
    uint32_t next_look;       /* with idle_release: second of the next search for pages that are idle for long */
    uint32_t calls_inside;    /* public calls on this pool; destroy refuses */
    uint32_t pins;            /* other calls that go on with this pool after they dropped the lock; destroy waits */
    bool dying;
    bool traced; /* its calls go into the device's trace */
    cmpool_low_memory_fn low_memory;
    void *low_memory_user;
    uint32_t unsettled;         /* large requests until threads may hold blocks again; CMI_UNSETTLED when a page has moved */
    struct cmi_shown *shown;    /* its place in the live page, lib/inspect's; NULL: none */
    struct cmi_region *regions; /* by address, see region.h */
    uint32_t region_count, region_room, region_owner;
    struct cmi_pause *pause;   /* NULL: nothing of it is paused */
    bool asleep;               /* paused as a whole: nothing is handed out */
    struct cmi_pinned *pinned; /* lib/pinned's; NULL: it has no pinned host memory yet */
};

/* ---- device.c ----------------------------------------------------------------------------------- */

/* Retain the primary context and open the store of a device record that has no pool yet. Registry lock held, device lock not. */
cmpool_status cmi_device_open(cmi_device *device, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count);
/* Release both; the record stays and can be opened again. Registry lock held, device lock not, no pool left. */
cmpool_status cmi_device_close(cmi_device *device);
/* Has the primary context gone, and all that was made in it? Asks the driver, so only where there is a reason to; drops and retakes the
 * lock. DEVICE_LOST (noted: nothing is handed out until the answer is another one) or OK. */
cmpool_status cmi_device_ask_lost(cmi_device *device);
/*
 * The driver has refused a page. Where memory is so short, each block is to lie where it fits best: for the next CMI_TIGHT requests that
 * climb the ladder large blocks are not held by threads, and thread caches take no slots ahead. After a page has moved the former is so for
 * CMI_UNSETTLED large requests.
 */
enum { CMI_TIGHT = 65536, CMI_UNSETTLED = 8192 };
static inline void cmi_device_is_full(cmi_device *device)
{
    device->full = true;
    device->slow_since_full = 0;
    device->tight = CMI_TIGHT;
}
/* Let another device reach the memory of all pools, what is mapped included. Registry lock held, device lock not. */
cmpool_status cmi_device_add_peer(cmi_device *device, int peer);
/* Around driver calls: drops the lock and enters the driver with the given context (0: the primary one); and back. begin returns a
 * status; on failure the lock is held again and end must not be called. */
typedef struct cmi_call {
    cmi_driver_scope scope;
    bool entered;
} cmi_call;
cmpool_status cmi_device_call_begin(cmi_device *device, cmi_call *call, uint32_t context);
/* For what must come to an end whatever the driver says: drops the lock also where the driver cannot be entered; end must be called. */
void cmi_device_call_begin_anyway(cmi_device *device, cmi_call *call);
void cmi_device_call_end(cmi_device *device, cmi_call *call);
/* What the driver says is free; UINT64_MAX: it could not be asked. Drops and retakes the lock. */
uint64_t cmi_device_ask_free(cmi_device *device);

/*
 * Around everything that has pages on their way (neither idle nor the driver's) while the lock is dropped; not nested. begin waits while
 * another thread climbs alone. alone: end, wait until nobody carries anything, and begin again with all others kept out until the end; they
 * hold nothing meanwhile, so what a search finds then is all there is.
 */
void cmi_device_carry_begin(cmi_device *device);
void cmi_device_carry_alone(cmi_device *device);
void cmi_device_carry_end(cmi_device *device, bool alone);

/* ---- stamp.c ------------------------------------------------------------------------------------ */

/* Make sure `count` stamps can be made without host memory. */
bool cmi_stamp_reserve(cmi_device *device, uint32_t count);
cmi_stamp *cmi_stamp_get(const cmi_device *device, uint32_t number);
uint32_t cmi_stamp_new(cmi_device *device, uint32_t stream, uint64_t ticket);
/* Everything on the device up to now. */
uint32_t cmi_stamp_new_whole(cmi_device *device);
/* Add to a stamp that has one holder (others: a copy is made); returns the number to keep. */
uint32_t cmi_stamp_add(cmi_device *device, uint32_t number, uint32_t stream, uint64_t ticket);
uint32_t cmi_stamp_join(cmi_device *device, uint32_t a, uint32_t b);
uint32_t cmi_stamp_copy(cmi_device *device, uint32_t number);
void cmi_stamp_drop(cmi_device *device, uint32_t number);
/* Is all of it seen done by the host? CMI_NO_STAMP is done. */
bool cmi_stamp_is_done(const cmi_device *device, uint32_t number);
/* The heap's view of the above. */
void cmi_stamp_fill_source(cmi_device *device, cmi_heap_source *source);

/* ---- stream.c, fence.c -------------------------------------------------------------------------- */

/* The record of a handle passed to this call; made on first sight (drops and retakes the lock). context: of a default stream, NULL is the
 * primary one. check: ask the driver whether the handle
 * still is the stream we knew. */
cmpool_status cmi_stream_find(cmi_device *device, CUstream handle, CUcontext context, bool check, uint32_t *stream);
/* The tables of a device that has just been opened: record 0 stands for calls that name no stream. */
bool cmi_stream_open(cmi_device *device);
/* A context uses the device, or is about to go. */
bool cmi_context_add(cmi_device *device, CUcontext handle);
void cmi_context_remove(cmi_device *device, CUcontext handle);
/* Known already, or CMI_NO_STREAM. */
uint32_t cmi_stream_known(cmi_device *device, CUstream handle, CUcontext context);
/* Frees on the stream at a ticket, from now on to be covered. */
void cmi_stream_note_frees(cmi_device *device, uint32_t stream, uint64_t ticket, uint32_t count, uint64_t bytes);
bool cmi_stream_is_done(const cmi_device *device, uint32_t stream, uint64_t ticket);
/* May `stream` use memory freed on `other` at `ticket` without waiting? */
bool cmi_stream_is_ordered(const cmi_device *device, uint32_t stream, uint32_t other, uint64_t ticket);
/* More than one stream has been seen, so that frees must be covered by events. */
static inline bool cmi_streams_are_many(const cmi_device *device) { return device->stream_count > 2; }

/* The handle is about to die: cover its frees while it lives, and forget it. Drops and retakes the lock. */
cmpool_status cmi_stream_retire(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle);

/* Record an event on the stream named by this call, covering its frees up to now. Drops and retakes the lock. */
cmpool_status cmi_fence_stream(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle);
/* Record events that cover every free of every stream. UNSUPPORTED where the driver has no context events. Drops and retakes the lock. */
cmpool_status cmi_fence_contexts(cmi_device *device, cmi_pool *pool);
/* Ask the outstanding events and note what is done. Drops and retakes the lock. */
cmpool_status cmi_fence_poll(cmi_device *device, cmi_pool *pool);
/* Wait on the host for everything freed until now. Drops and retakes the lock. */
cmpool_status cmi_fence_host_wait(cmi_device *device, cmi_pool *pool);
/* Is there a fence behind (stream, ticket)? */
bool cmi_fence_covers(const cmi_device *device, uint32_t stream, uint64_t ticket);
/* What a request has to wait for on the device: youngest ticket per stream; overflows to the whole device. */
typedef struct cmi_waits {
    uint32_t count;
    bool whole;
    cmi_stamp_entry entries[CMI_STAMP_STREAMS];
} cmi_waits;
void cmi_waits_add(cmi_waits *waits, uint32_t stream, uint64_t ticket);
/* Make the stream named by this call wait on the device. Drops and retakes the lock. On failure the memory must not be used. */
cmpool_status cmi_fence_device_wait(cmi_device *device, cmi_pool *pool, uint32_t stream, CUstream handle, const cmi_waits *waits);
/* Take fences out that are done and that nobody uses; and give up the use of one (see cmi_fence.pins). */
void cmi_fence_sweep(cmi_device *device);
void cmi_fence_unpin(cmi_device *device, CUevent event);
void cmi_fence_forget_all(cmi_device *device);
/* The events of a context that is about to go. Drops and retakes the lock. */
void cmi_fence_forget_context(cmi_device *device, uint32_t context);

/* ---- capture.c: stream captures and the memory of graphs ---------------------------------------- */

/* Is any stream capture of the process known to be live? Then nothing is queried, recorded on a context, waited for or unmapped. */
bool cmi_capture_is_live(void);
/* A capture is about to begin: the last chance to learn what is idle on the device, and to record events that can be waited for meanwhile.
 * No pool is made or ended meanwhile. Drops and retakes the lock. */
void cmi_capture_prepare(cmi_device *device);
/* One that allocated from a set has ended. Lock held. */
cmpool_status cmi_capture_end(cmi_pool *pool, uint32_t owner);
/* From here on it counts as live; waits for calls that would invalidate it. No device lock held. */
void cmi_capture_start(void);
/* The same for a capture that allocates from no pool of ours. */
void cmi_capture_start_foreign(void);
cmpool_status cmi_capture_end_foreign(void);
/* Is the stream named by this call captured, announced or not? Drops and retakes the lock. */
cmpool_status cmi_capture_ask(cmi_device *device, uint32_t stream, CUstream handle, bool *captured);
/* Around the service of a request whose stream is captured: it counts as live also if nobody has announced it. */
void cmi_capture_found(void);
void cmi_capture_left(void);
/* Around driver calls that would invalidate a capture, as cmi_device_call_begin and _end. CAPTURE: one is live; else none begins. */
cmpool_status cmi_capture_barred_begin(cmi_device *device, cmi_call *call, uint32_t context);
void cmi_capture_barred_end(cmi_device *device, cmi_call *call);
/* No graph that uses the set's memory will run again: its free memory rejoins the pool behind everything on the device, its live blocks
 * when they are freed. CAPTURE while one of its captures is live; OUT_OF_HOST_MEMORY half-way: call again. */
cmpool_status cmi_capture_release(cmi_pool *pool, uint32_t owner);

/* ---- owner.c ------------------------------------------------------------------------------------ */

cmpool_status cmi_owner_add(cmi_pool *pool, cmi_owner_kind kind, uint32_t *owner);
/* Forget an owner whose bin sets are all empty. */
void cmi_owner_drop(cmi_pool *pool, uint32_t owner);
void cmi_owner_remove(cmi_pool *pool, uint32_t owner); /* its free bytes go to owner 0 */
/* The bin set of (owner, stream, small), made on first use; 0: no host memory. */
uint32_t cmi_owner_make_binset(cmi_pool *pool, uint32_t owner, uint32_t stream, unsigned small);
static inline uint32_t cmi_owner_binset(cmi_pool *pool, uint32_t number, uint32_t stream, unsigned small)
{
    const cmi_owner *owner = &pool->owners[number];
    uint32_t made = stream < owner->of_stream_room ? owner->of_stream[small][stream] : 0; /* none has number 0, CMI_NO_STREAM */
    return made ? made : cmi_owner_make_binset(pool, number, stream, small);
}
/* Drop the bin sets of a stream in every owner if all of them are empty; false: they are not. */
bool cmi_owner_forget_stream(cmi_pool *pool, uint32_t stream);
/* Go through the free blocks and move what was seen done to the bin sets for everybody. */
void cmi_owner_promote(cmi_pool *pool);

/* ---- pool.c, malloc.c, free.c ------------------------------------------------------------------- */

cmpool_status cmi_pool_create(cmi_pool **pool, cmi_device *device, const cmi_options *options);
cmpool_status cmi_pool_destroy(cmi_pool *pool); /* lock held, nothing live, no pins; frees the record */
/* Keep a pool that is not dying while the lock is dropped, for calls that came by another handle or by the device. */
static inline void cmi_pool_pin(cmi_pool *pool) { pool->pins++; }
void cmi_pool_unpin(cmi_pool *pool);

typedef struct cmi_ask {
    uint64_t bytes;     /* rounded to CMI_UNIT */
    uint64_t requested; /* as asked */
    uint64_t align;     /* power of two, at least CMI_UNIT */
    uint32_t owner, stream, tag, stack;
    CUstream handle;
    CUcontext context; /* of a default stream: whose; NULL is the primary one */
    unsigned small;    /* 1: a page for small blocks is wanted */
    bool captured;     /* the stream is being captured: it cannot be made to wait */
    uint64_t at;       /* not 0: the window begins there, in a growing region */
    bool exportable;   /* a segment of its own is wanted, with a handle for other processes */
} cmi_ask;

cmpool_status cmi_pool_malloc(cmi_pool *pool, cmi_ask *ask, uint64_t *address);
/* ask: owner, stream, handle and context; the rest is not looked at. */
cmpool_status cmi_pool_free(cmi_pool *pool, const cmi_ask *ask, uint64_t address);
/* Everything that was done to a block is ordered before `ticket` on each stream that touched it: those in `uses` (taken over), the first
 * and the last. CMI_NO_STAMP where that is one stream. Needs what cmi_pool_make_ready gives. */
uint32_t cmi_pool_stamp_of_free(cmi_device *device, uint32_t uses, uint32_t first, uint32_t last, uint64_t ticket);
cmpool_status cmi_pool_record_use(cmi_pool *pool, uint64_t address, uint32_t stream);
/* Where an address points: OK (start of a live block), INTERIOR_POINTER, ALREADY_FREED or NOT_OURS. slot is set for slab blocks. */
typedef struct cmi_place {
    cmi_block_id block;
    cmi_slab *slab; /* NULL for blocks without slots */
    unsigned slot;
    uint64_t base, bytes, requested;
    uint32_t owner;
} cmi_place;
cmpool_status cmi_pool_place(const cmi_pool *pool, uint64_t address, cmi_place *place);
/* The same on behalf of an owner: a private pool or capture set knows its own blocks only, the pool itself (0) knows all. */
static inline cmpool_status cmi_pool_place_for(const cmi_pool *pool, uint32_t owner, uint64_t address, cmi_place *place)
{
    cmpool_status status = cmi_pool_place(pool, address, place);
    return status == CMPOOL_OK && owner && place->owner != owner ? CMPOOL_ERR_NOT_OURS : status;
}
/* Room in pool->use for an entry of each bin set. */
bool cmi_pool_use_room(cmi_pool *pool);
/* Everything a mutation needs that could fail for lack of host memory. */
bool cmi_pool_make_ready(cmi_pool *pool);
/* The same, kept while the lock is dropped: until end. */
bool cmi_pool_earmark(cmi_pool *pool);
void cmi_pool_end_earmark(cmi_pool *pool);
void cmi_pool_live_changed(cmi_pool *pool, uint32_t owner, int64_t bytes, int64_t requested);
/* Hold at least this many pages ahead of need. */
cmpool_status cmi_pool_hold(cmi_pool *pool, uint64_t pages);
/* A BUSY block of the request becomes live, as one that was asked for with this bin set. */
void cmi_pool_hand_out(cmi_pool *pool, const cmi_ask *ask, cmi_block_id block, uint32_t binset, uint64_t *address);
/* The smallest free block that holds the request, of this bin set and of what is free for everybody, cut to size: BUSY; 0: none. */
cmi_block_id cmi_pool_take_fit(cmi_pool *pool, const cmi_ask *ask, uint32_t own);
/* A BUSY piece of memory this stream may use becomes free space of the owner (the edge of a page, a rest). */
void cmi_pool_give_back(cmi_pool *pool, cmi_block_id block, uint32_t binset);

/* ---- history.c: what a pool notes of its calls -------------------------------------------------- */

/* A request was served, a block is about to be freed, a live block is used on a stream too. Only where cmi_pool_is_watched. */
void cmi_history_alloc(cmi_pool *pool, const cmi_ask *ask, uint64_t address);
void cmi_history_free(cmi_pool *pool, const cmi_place *place, uint32_t stream);
void cmi_history_use(cmi_pool *pool, const cmi_place *place, uint32_t stream);
void cmi_history_refuse(cmi_pool *pool, const cmi_ask *ask);
/* What is known about a live block: time, tag and stack. */
cmi_note cmi_history_of(const cmi_pool *pool, const cmi_place *place);
/* Does the pool note anything about its blocks now? */
static inline bool cmi_pool_is_watched(const cmi_pool *pool) { return (pool->ring.capacity | pool->notes.count | pool->traced) != 0; }

/* ---- ladder.c: what happens when the bins have nothing ------------------------------------------ */

/* A BUSY block of ask->bytes for the request, or why not. Drops and retakes the lock. */
cmpool_status cmi_ladder_climb(cmi_pool *pool, cmi_ask *ask, cmi_block_id *block);

/* Ask the program for memory, without the lock. False: it has no callback, or nothing more. *freed in bytes. */
bool cmi_ladder_ask_program(cmi_pool *pool, const cmi_ask *ask, uint64_t *freed);

/* Create and map this many pages ahead of need; they are free for everybody. All or none. Drops and retakes the lock. */
cmpool_status cmi_ladder_hold(cmi_pool *pool, uint64_t pages);

/* ---- source.c, move.c: windows filled with pages ------------------------------------------------ */

/* Pages in hand for a request: created, not mapped yet. */
typedef struct cmi_hand {
    uint32_t *pages;
    uint32_t count, room;
} cmi_hand;
bool cmi_hand_reserve(cmi_hand *hand, uint32_t room);
/* Create up to `count` more pages into the hand; got says how many. Drops and retakes the lock. */
cmpool_status cmi_source_create(cmi_pool *pool, cmi_hand *hand, uint32_t count, uint32_t *got);
/* Give the pages in hand back to the driver and free the hand. Drops and retakes the lock. */
void cmi_source_put_down(cmi_pool *pool, cmi_hand *hand);

/* An idle run that gives pages; pool may be a sibling. */
typedef struct cmi_donor {
    cmi_pool *pool;
    cmi_idle_run run;
} cmi_donor;
/*
 * Take the window [window->offset, + ask->bytes): its free bytes as they lie, its holes filled from the hand first, then from donors (in
 * order). Waits on the device for what is pending elsewhere. OK: *block is BUSY and belongs to the request. Otherwise everything is as
 * before, except that pages that did arrive are free at their new place. Drops and retakes the lock.
 */
cmpool_status cmi_source_fill(cmi_pool *pool, const cmi_ask *ask, const cmi_window *window, cmi_hand *hand, const cmi_donor *donors,
                              uint32_t donor_count, cmi_block_id *block);
/* Give `count` slots from an address on a state; EMPTY ones forget page and stamp. */
void cmi_source_set_slots(cmi_pool *pool, uint64_t address, uint32_t count, cmi_slot_state state);
/* A block of slots that have lost their pages is a hole, or kept where it is a region's; and its slots with it. */
void cmi_source_vacate(cmi_pool *pool, cmi_block_id block);
/* Unmap stale slots whose stamp is seen done, in runs; at most `most` slots. Drops and retakes the lock. Returns slots unmapped. */
uint64_t cmi_source_unmap_stale(cmi_pool *pool, uint64_t most);
/* The same for all pools of a device. */
uint64_t cmi_source_unmap_all_stale(cmi_device *device);
/* Reserve another range of addresses for the arena. Drops and retakes the lock. */
cmpool_status cmi_source_reserve_range(cmi_pool *pool, uint64_t bytes);

/* ---- segment.c: memory that stays where it is --------------------------------------------------- */

/* A segment of so many pages as one BUSY block. Drops and retakes the lock. */
cmpool_status cmi_pool_add_segment(cmi_pool *pool, cmi_range_kind kind, uint64_t pages, cmi_block_id *block);
/* Give a segment back whose memory is all one BUSY block and seen done. false: the driver refuses, or a capture is live; the block is BUSY
 * as before. Drops and retakes the lock. */
bool cmi_pool_remove_segment(cmi_pool *pool, cmi_range *range);
/* One request for a block that other processes can be given. Drops and retakes the lock. */
cmpool_status cmi_pool_malloc_exportable(cmi_pool *pool, cmi_ask *ask, uint64_t *address);
/* Is the block alone in a segment with a handle of its own? */
bool cmi_pool_is_exportable(const cmi_pool *pool, const cmi_block *block);
/* Such a block was freed: its segment goes back once the stamp (taken over) is seen done. */
void cmi_pool_leave(cmi_pool *pool, cmi_block_id block, uint32_t stamp);
/* The same at once, where the device is done with it already: records an event on the stream named by this call and asks for it. Drops and
 * retakes the lock. */
void cmi_pool_release_soon(cmi_pool *pool, uint32_t stream, CUstream handle);
/* Give back the segments whose stamps are done. Drops and retakes the lock. Returns pages. */
uint64_t cmi_pool_release_left(cmi_pool *pool);
/* A file descriptor for the block's memory. Drops and retakes the lock. */
cmpool_status cmi_pool_export(cmi_pool *pool, cmi_block_id block, int *fd);
/* Pages of segments. */
uint64_t cmi_pool_fixed_pages(const cmi_pool *pool, uint64_t *segments);

/* ---- trim.c ------------------------------------------------------------------------------------- */

/* Give idle pages back until the pool holds at most keep pages; wait: the host waits for what is pending. *released in pages. */
cmpool_status cmi_trim_pool(cmi_pool *pool, uint64_t keep_pages, bool wait, uint64_t *released);
/* Give back what was seen done until the pool holds at most keep pages; for callers that carry pages themselves. No wait, and nothing is
 * asked of the driver. Drops and retakes the lock. Returns pages. */
uint64_t cmi_trim_done(cmi_pool *pool, uint64_t keep_pages);
/* A bit per page number: still mapped at an old address, in any pool of the device, or just being unmapped there. */
typedef struct cmi_page_bits {
    uint64_t *words;
    uint32_t count; /* words */
} cmi_page_bits;
bool cmi_trim_stale_pages(const cmi_device *device, cmi_page_bits *bits); /* false: no host memory */
static inline bool cmi_page_bits_has(const cmi_page_bits *bits, uint32_t page)
{
    return page / 64 < bits->count && bits->words[page / 64] >> page % 64 & 1;
}
static inline void cmi_page_bits_free(cmi_page_bits *bits) { cmi_meta_free(bits->words, bits->count * sizeof *bits->words); }
/* For destroy: what the driver would not unmap is left to vm, and its pages too. Nobody else may know the pool any more. */
void cmi_trim_abandon(cmi_pool *pool);
/* The same over all pools of a device, each down to its floor. */
cmpool_status cmi_trim_device(cmi_device *device, uint64_t pages, bool wait, uint64_t *released);
/* Give back a batch of the pages that have been idle for longer than idle_release, down to the floor, without any wait; *more: there may be
 * others. No driver call where there is none. Returns pages. */
uint64_t cmi_trim_idle(cmi_pool *pool, uint32_t now, bool *more);

/* ---- returns.c: memory for other users of the device -------------------------------------------- */

uint32_t cmi_returns_now(void);
/* Bytes of a pool with idle_release were freed: the pages they lie on are not idle for long yet. */
void cmi_returns_note_free(cmi_pool *pool, uint64_t address, uint64_t bytes);
void cmi_returns_pool_made(cmi_pool *pool);
void cmi_returns_pool_gone(cmi_device *device);
/* The driver's memory notifications, where it has them: from here on; and no more. Registry lock held, device lock not. */
void cmi_returns_register(cmi_device *device);
void cmi_returns_unregister(cmi_device *device);
/* On the way out of a call: what is due goes back to the driver, nothing while a capture is live. Drops and retakes the lock. */
void cmi_returns_make(cmi_device *device);
static inline bool cmi_returns_may_be_due(cmi_device *device)
{
    return (atomic_load_explicit(&device->idle_pools, memory_order_relaxed) |
            atomic_load_explicit(&device->over_budget, memory_order_relaxed)) != 0;
}

/* ---- figures.c ---------------------------------------------------------------------------------- */

void cmi_pool_stats(cmi_pool *pool, uint32_t owner, cmpool_stats *stats);
/* A request is refused with `status`: fill the pool's refusal and the thread's error detail with its present figures. driver_free: what the
 * driver has left, UINT64_MAX where that is not known. */
void cmi_pool_explain(cmi_pool *pool, const cmi_ask *ask, cmpool_status status, uint64_t driver_free, uint64_t missing_pages,
                      const size_t rung_bytes[CMPOOL_RUNG_COUNT]);
/* holders.c: fill the largest holders of live bytes. */
void cmi_pool_find_holders(const cmi_pool *pool, cmpool_refusal *refusal);
const char *cmi_pool_validate(cmi_pool *pool);
#ifdef CMI_VALIDATE
void cmi_pool_must_be_valid(cmi_pool *pool);
#else
#define cmi_pool_must_be_valid(pool) ((void)(pool))
#endif

#endif
