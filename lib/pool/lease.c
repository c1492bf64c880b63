/*
 * Leases: large blocks that their thread may free and ask for again without the lock, in constant time. A lane keeps in mind the large
 * blocks that were handed out through it last; when its thread frees one, the block stays LIVE in the heap and is *held* for the next
 * request of the same size. The first request that is served otherwise puts all held blocks back before it looks, so placement is what it
 * would be without leases, except where the very size comes again. Where sizes hardly ever come again, few blocks are leased: it would cost
 * more than it gives.
 *
 * Owns the leases in the lanes, guarded as the cache is. The word `lease` of the block's record says whose it is and whether it is held:
 * whoever frees the block otherwise, or notes a use of it, ends the lease by that word. Called by cache.c, malloc and free.
 */
#include "pool/lane.h"

enum { HELD = 1, HELD_MOST = 16, MOST_LUCK = 32, ONE_IN = 16 };

/* By what does not depend on where the driver has put the range, so that a program that is run again finds the same. */
static inline unsigned place_of_address(const cmi_lane *lane, uint64_t address)
{
    uint64_t offset = address - lane->cache->slabs.base;
    return (unsigned)((offset / CMI_UNIT * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % CMI_LEASES;
}

static inline unsigned place_of_bytes(uint64_t requested)
{
    return (unsigned)((requested * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % CMI_LEASES;
}

static inline uint64_t bit(unsigned place) { return UINT64_C(1) << place; }

static inline uint64_t bytes_of(const cmi_lease *lease) { return cmi_round_up(lease->requested, CMI_UNIT); }

uint64_t cmi_lease_take(cmi_lane *lane, uint64_t requested)
{
    cmi_leases *all = lane->leases;
    if (!all || !all->held) {
        return 0;
    }
    uint8_t *link = &all->held_by_bytes[place_of_bytes(requested)];
    while (*link && all->places[*link - 1].requested != requested) {
        link = &all->places[*link - 1].next;
    }
    if (!*link) {
        return 0;
    }
    unsigned place = *link - 1u;
    cmi_lease *lease = &all->places[place];
    *link = lease->next;
    all->held &= ~bit(place);
    all->held_count--;
    lane->cache->thread->held--;
    all->luck += all->luck < MOST_LUCK ? 2 : 0;
    atomic_store_explicit(&lease->block->lease, lease->number, memory_order_relaxed);
    lane->cache->limit -= bytes_of(lease);
    cmi_cache_note_out(lane->cache, bytes_of(lease));
    return lease->address;
}

bool cmi_lease_hold(cmi_lane *lane, uint64_t address)
{
    cmi_leases *all = lane->leases;
    if (!all || !address || all->held_count == HELD_MOST) {
        return false;
    }
    unsigned place = place_of_address(lane, address);
    cmi_lease *lease = &all->places[place];
    if (lease->address != address || (all->held & bit(place)) ||
        atomic_load_explicit(&lease->block->lease, memory_order_relaxed) != lease->number) {
        return false;
    }
    atomic_store_explicit(&lease->block->lease, lease->number | HELD, memory_order_relaxed);
    uint8_t *first = &all->held_by_bytes[place_of_bytes(lease->requested)];
    lease->next = *first;
    *first = (uint8_t)(place + 1);
    all->held |= bit(place);
    all->held_count++;
    cmi_cache *cache = lane->cache;
    cache->thread->held++;
    cache->limit += bytes_of(lease); /* which is for slots */
    cmi_cache_set_bytes(cache, cmi_cache_bytes_in(cache) + bytes_of(lease));
    cache->frees++;
    return true;
}

/* ---- under the device lock ---------------------------------------------------------------------- */

/* Where the pool has nearly all of the device, or the driver has refused pages, or pages had to move of late, each block is to lie where it
 * fits best: a program whose steps repeat comes to rest sooner so. */
static bool goes_by_fit(cmi_pool *pool)
{
    const cmi_device *device = pool->device;
    if (pool->unsettled) {
        pool->unsettled--;
        return true;
    }
    return device->tight || pool->reserved_pages * device->page_bytes > device->total_bytes / 8 * 7;
}

void cmi_lease_grant(cmi_pool *pool, const cmi_ask *ask, cmi_block_id id)
{
    cmi_block *block = cmi_heap_block(&pool->heap, id);
    /* Whoever watches is shown what is free at once, not when the program calls again. */
    if (ask->tag | ask->stack || pool->shown || goes_by_fit(pool) || block->bytes != cmi_round_up(ask->requested, CMI_UNIT)) {
        return;
    }
    cmi_lane *lane = cmi_lane_for(pool, ask);
    if (!lane || block->binset != lane->large_binset) {
        return;
    }
    if (!lane->leases && (lane->leases = cmi_meta_alloc(sizeof *lane->leases)) != NULL) {
        lane->leases->luck = MOST_LUCK;
    }
    cmi_leases *all = lane->leases;
    if (!lane->cache->slabs.bytes) {
        lane->cache->slabs = *cmi_heap_slab_map(&pool->heap, block->offset);
    }
    unsigned place = place_of_address(lane, block->offset);
    if (!all || (all->held & bit(place)) || (!all->luck && ++all->passed_over % ONE_IN)) {
        return;
    }
    uint32_t number = pool->device->leases ? pool->device->leases : 2;
    pool->device->leases = number + 2;
    all->places[place] = (cmi_lease){block->offset, ask->requested, block, id, number, 0};
    atomic_store_explicit(&block->lease, number, memory_order_relaxed);
}

void cmi_lease_put_back(cmi_pool *pool, cmi_lane *lane)
{
    cmi_leases *all = lane->leases;
    while (all && all->held) {
        unsigned place = cmi_lowest_bit(all->held);
        cmi_lease *lease = &all->places[place];
        uint64_t bytes = bytes_of(lease), requested = lease->requested;
        all->held_by_bytes[place_of_bytes(requested)] = 0; /* its whole chain goes */
        all->held &= ~bit(place);
        all->held_count--;
        lane->cache->thread->held--;
        all->luck -= all->luck > 0;
        lane->cache->limit -= bytes;
        cmi_heap_make_free(&pool->heap, lease->id, lane->large_binset, pool->device->ticket, CMI_HEAP_NO_STAMP);
        *lease = (cmi_lease){0};
        cmi_cache_note_taken(pool, lane->cache, -1, -(int64_t)bytes, -(int64_t)requested);
        cmi_stream_note_frees(pool->device, lane->number, pool->device->ticket, 1, bytes);
    }
}

void cmi_lease_put_back_mine(cmi_pool *pool)
{
    for (cmi_cache *cache = cmi_thread_mine->held ? cmi_thread_mine->caches : NULL; cache; cache = cache->next_of_thread) {
        for (cmi_lane *lane = cache->lanes; lane && atomic_load_explicit(&cache->pool, memory_order_relaxed) == pool; lane = lane->next) {
            if (lane->leases && lane->leases->held) {
                cmi_cache_note_peaks(pool, cache->owner);
                cmi_lease_put_back(pool, lane);
            }
        }
    }
}
