/*
 * What the files of the thread caches (cache.c, lease.c, lanes.c) share: the calling thread's record and the way from a call to its lane.
 * cache.h says what a cache is and who may touch it when.
 */
#ifndef CMI_POOL_LANE_H
#define CMI_POOL_LANE_H

#include "pool/cache.h"

typedef struct cmi_thread_record {
    cmi_lane *last;   /* served last */
    cmi_lane **table; /* all lanes, by key, open-addressed; ended ones stay until it is made anew */
    uint32_t room, used;
    uint32_t held; /* blocks in leases of its lanes */
    cmi_cache *caches;
} cmi_thread_record;

extern __thread cmi_thread_record *cmi_thread_mine __attribute__((tls_model("initial-exec")));

/* ---- lanes.c ------------------------------------------------------------------------------------ */

static inline bool cmi_lane_is_of(const cmi_lane *lane, uint64_t handle, CUstream stream, CUcontext context, int device)
{
    return atomic_load_explicit(&lane->handle, memory_order_relaxed) == handle && lane->stream == stream &&
           lane->context == (device == lane->device ? context : NULL);
}

cmi_lane *cmi_lane_find_again(uint64_t handle, CUstream stream, CUcontext context, int device);

/* The calling thread's lane, or NULL. */
static inline cmi_lane *cmi_lane_find(uint64_t handle, CUstream stream, CUcontext context, int device)
{
    cmi_lane *lane = cmi_thread_mine->last;
    bool same = cmi_lane_is_of(lane, handle, stream, context, device);
    return __builtin_expect(same, 1) ? lane : cmi_lane_find_again(handle, stream, context, device);
}

/* The same under the device lock, made at its first use; NULL: it may have none, or host memory is short. */
cmi_lane *cmi_lane_for(cmi_pool *pool, const cmi_ask *ask);

/* ---- cache.c: what a cache holds ---------------------------------------------------------------- */

static inline uint64_t cmi_cache_bytes_in(const cmi_cache *cache) { return atomic_load_explicit(&cache->bytes, memory_order_relaxed); }

static inline void cmi_cache_set_bytes(cmi_cache *cache, uint64_t bytes)
{
    atomic_store_explicit(&cache->bytes, bytes, memory_order_relaxed);
}

static inline uint64_t cmi_cache_least_in(const cmi_cache *cache)
{
    return atomic_load_explicit(&cache->least_bytes, memory_order_relaxed);
}

static inline void cmi_cache_set_least(cmi_cache *cache, uint64_t bytes)
{
    atomic_store_explicit(&cache->least_bytes, bytes, memory_order_relaxed);
}

/* The owner has handed out so many of the bytes. */
static inline void cmi_cache_note_out(cmi_cache *cache, uint64_t bytes)
{
    uint64_t left = cmi_cache_bytes_in(cache) - bytes;
    cmi_cache_set_bytes(cache, left);
    if (left < cmi_cache_least_in(cache)) {
        cmi_cache_set_least(cache, left);
    }
    cache->allocations++;
}

/* Memory taken from the heap and not handed out, or (negative) the other way round: no live byte more or less. */
void cmi_cache_note_taken(cmi_pool *pool, cmi_cache *cache, int64_t blocks, int64_t bytes, int64_t requested);
/* Everything that is in it goes back. Its latch is shut, or the thread is the owner. */
void cmi_cache_drain_one(cmi_pool *pool, cmi_cache *cache);

/* ---- lease.c: blocks of their own size ---------------------------------------------------------- */

enum { CMI_LEASES = 64 }; /* large blocks that a lane keeps in mind */

/* A large block that was handed out through a lane. */
typedef struct cmi_lease {
    uint64_t address, requested;
    cmi_block *block; /* its record, which stays where it is as long as the heap */
    cmi_block_id id;
    uint32_t number; /* what the record says as long as the lease holds; even, and of no other block */
    uint8_t next;    /* place of the next held one with the same hash of its bytes, plus 1 */
} cmi_lease;

typedef struct cmi_leases {
    uint64_t held; /* bit by place: freed, and here for the next request */
    uint8_t held_count;
    uint8_t luck, passed_over; /* how often what was held served of late; at 0 few blocks are leased: how many were not since the last */
    uint8_t held_by_bytes[CMI_LEASES]; /* by hash: place of the one held last, plus 1 */
    cmi_lease places[CMI_LEASES];      /* by hash of the address */
} cmi_leases;

/* Inside the latch. The address of a held block that was asked for with just so many bytes, or 0; whether the block is held now. */
uint64_t cmi_lease_take(cmi_lane *lane, uint64_t requested);
bool cmi_lease_hold(cmi_lane *lane, uint64_t address);
/* All that a lane holds goes back to the heap. */
void cmi_lease_put_back(cmi_pool *pool, cmi_lane *lane);

#endif
