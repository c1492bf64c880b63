/*
 * Thread caches: free slab slots kept by the thread that frees or asks for them, so that most small requests take no lock and write no line
 * that another thread writes. A cache belongs to one thread and one owner; it has a lane for each stream, and a lane a stack of slots for
 * each class. Only slots of the lane's own stream are in it, so handing one out needs no order.
 *
 * Large blocks that come and go with one size are held beside them (lease.c): cached memory too, for all that is said here.
 *
 * A cache is its owner's while that is inside its latch, and may be used under the device lock by its owner, or by anybody once the latch
 * is shut. What is cached counts as taken in the pool's figures until it is drained, and is free to everybody who asks: whoever is short,
 * trims, retires a stream, reads figures or ends a pool drains first.
 */
#ifndef CMI_POOL_CACHE_H
#define CMI_POOL_CACHE_H

#include "pool/pool.h"

enum { CMI_CACHE_SLOTS = 64 }; /* of one class in one lane, at most */

typedef struct cmi_cached_slot {
    uint64_t address;
    cmi_slab *slab;
} cmi_cached_slot;

typedef struct cmi_cache_bin {
    cmi_cached_slot *slots; /* the youngest last; NULL: nothing of this class was cached yet */
    uint16_t count, room;
    uint32_t bytes; /* of a slot */
} cmi_cache_bin;

typedef struct cmi_lane {
    /* The key, as calls have it. Only `handle` ever changes: to 0, when the lane has ended. */
    _Atomic uint64_t handle;
    CUstream stream;
    CUcontext context;
    int device;
    uint32_t binset, large_binset; /* of (owner, stream); 0: ended */
    uint32_t number;               /* of the stream */
    struct cmi_cache *cache;
    struct cmi_lane *next; /* of the cache */
    cmi_cache_bin bins[CMI_CLASS_COUNT];
    struct cmi_leases *leases; /* of large blocks; NULL until one was handed out, or host memory is short */
} cmi_lane;

typedef struct cmi_cache {
    cmi_latch latch;
    _Atomic uint64_t bytes, least_bytes; /* in slots and held blocks, and the least since the peaks were noted; written by the owner */
    uint64_t limit;                      /* of those: what is held, and as much as the option allows in slots */
    uint64_t allocations, frees;         /* without the lock, since the last drain */
    cmi_device *device;
    _Atomic(cmi_pool *) pool; /* NULL: the owner, or all of the pool, has ended */
    uint32_t owner;
    struct cmi_thread_record *thread;
    cmi_slab_map slabs; /* of the range that was looked at last */
    cmi_lane *lanes;
    struct cmi_cache *next;           /* of the pool */
    struct cmi_cache *next_of_thread; /* of the thread */
} cmi_cache;

/* ---- without the lock: called by api ------------------------------------------------------------ */

/*
 * handle and stream as the call has them; context and device: of a default stream, else NULL and -1. malloc: the address of cached memory,
 * or 0; free: whether the block is in the cache now. Otherwise the request is one for the lock.
 */
uint64_t cmi_cache_malloc(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t bytes);
bool cmi_cache_free(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t address);

/* ---- under the device lock ---------------------------------------------------------------------- */

/*
 * A slot was handed out or freed under the lock: the caller's cache takes some more of the class, or gives some back, so that the next
 * calls need no lock. Does nothing where the owner or the stream has no caches, or host memory is short. ask: owner, stream, handle,
 * context.
 */
void cmi_cache_after_malloc(cmi_pool *pool, const cmi_ask *ask, uint32_t binset, unsigned class_index);
void cmi_cache_after_free(cmi_pool *pool, const cmi_ask *ask, const cmi_slab *slab);

/*
 * A large block was handed out: its thread may free it without the lock from now on, where it has a lane. And: a large request is not to be
 * served by what its thread holds, so that goes back to the bins first.
 */
void cmi_lease_grant(cmi_pool *pool, const cmi_ask *ask, cmi_block_id block);
void cmi_lease_put_back_mine(cmi_pool *pool);

/* Everything cached goes back to its slabs, and the figures say what is so. Empty slabs are kept until they are flushed. */
void cmi_cache_drain(cmi_pool *pool);
/* A range goes, with the way from its addresses to slabs: no cache may look there again. Its memory is nobody's already. */
void cmi_cache_forget_range(cmi_pool *pool, uint64_t base);
/* As drain, of one pool or of all pools of the device, and nothing is cached until open, also while the lock is dropped. They nest. */
void cmi_cache_shut(cmi_pool *pool);
void cmi_cache_shut_all(cmi_device *device);
void cmi_cache_open(cmi_device *device);
/* Drained for good: those of an owner; those of all owners; those of streams that have been retired, in all pools of the device. */
void cmi_cache_end(cmi_pool *pool, uint32_t owner);
void cmi_cache_end_all(cmi_pool *pool);
void cmi_cache_end_retired(cmi_device *device);
/* Before the bytes taken by an owner change, and after: lifts the peaks of live bytes, which are those taken and not cached. */
void cmi_cache_note_peaks(cmi_pool *pool, uint32_t owner);

/* The library's code goes: threads that end later leave their records behind. */
void cmi_cache_unload(void);
/* In a fork's child, whose only thread calls: nothing is cached there. */
void cmi_cache_forget(void);

#endif
