/*
 * Thread caches, see cache.h: the two paths without the lock, what follows a call that took it, and how what is cached comes back. Owns no
 * data: a cache is in its thread's list and in its pool's; the pool's lists, and what a cache holds, are guarded by the device lock, the
 * latter also by the cache's latch. Called by api (the fast paths), malloc and free, and by all who drain.
 */
#include "pool/lane.h"

#include <string.h>

static const uint64_t CLASS_BYTES = UINT64_C(1) << 20; /* of one class in one lane, where that is at least two slots */

/* ---- the fast paths, without the lock ----------------------------------------------------------- */

/* Calls have to look after what is due to the driver: those go the other way. */
static inline bool enter(cmi_cache *cache)
{
    bool inside = cmi_latch_enter(&cache->latch);
    if (inside && __builtin_expect(cmi_returns_may_be_due(cache->device), 0)) {
        cmi_latch_leave(&cache->latch);
        inside = false;
    }
    return inside;
}

static inline void set_use(cmi_slab *slab, uint64_t address, cmi_slot_use use)
{
    atomic_store_explicit(&slab->use[cmi_slab_slot(slab, address)], (uint8_t)use, memory_order_relaxed);
}

uint64_t cmi_cache_malloc(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t bytes)
{
    CUstream of = CMI_MUTATION(CACHE_OF_ANY_STREAM) ? cmi_thread_mine->last->stream : stream;
    cmi_lane *lane = cmi_lane_find(handle, of, context, device);
    if (!lane || !bytes || !enter(lane->cache)) {
        return 0;
    }
    uint64_t address = 0;
    if (bytes > CMI_SMALL_LIMIT) {
        address = cmi_lease_take(lane, bytes);
    } else {
        cmi_cache_bin *bin = &lane->bins[cmi_class_of(bytes)];
        if (bin->count) {
            const cmi_cached_slot *slot = &bin->slots[--bin->count];
            address = slot->address;
            set_use(slot->slab, address, CMI_SLOT_LIVE);
            cmi_cache_note_out(lane->cache, bin->bytes);
        }
    }
    cmi_latch_leave(&lane->cache->latch);
    return address;
}

static bool keep_slot(cmi_lane *lane, cmi_slab *slab, uint64_t address)
{
    cmi_cache *cache = lane->cache;
    unsigned number = cmi_slab_slot(slab, address);
    cmi_cache_bin *bin = &lane->bins[slab->class_index];
    uint64_t more = cmi_cache_bytes_in(cache) + bin->bytes;
    bool live = number < slab->slot_count && slab->base + (uint64_t)number * slab->slot_bytes == address &&
                (cmi_slab_use(slab, number) == CMI_SLOT_LIVE || CMI_MUTATION(DOUBLE_FREE_UNSEEN));
    bool used_elsewhere = slab->uses && slab->uses[number] != CMI_NO_STAMP;
    if (slab->binset != lane->binset || !live || used_elsewhere || bin->count >= bin->room || more > cache->limit) {
        return false;
    }
    atomic_store_explicit(&slab->use[number], CMI_SLOT_CACHED, memory_order_relaxed);
    bin->slots[bin->count++] = (cmi_cached_slot){address, slab};
    cmi_cache_set_bytes(cache, more);
    cache->frees++;
    return true;
}

bool cmi_cache_free(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t address)
{
    cmi_lane *lane = cmi_lane_find(handle, stream, context, device);
    if (!lane || !enter(lane->cache)) {
        return false;
    }
    cmi_slab *slab = cmi_slab_at(&lane->cache->slabs, address);
    bool cached = slab ? keep_slot(lane, slab, address) : cmi_lease_hold(lane, address);
    cmi_latch_leave(&lane->cache->latch);
    return cached;
}

/* ---- slots back to their slabs ------------------------------------------------------------------ */

void cmi_cache_note_peaks(cmi_pool *pool, uint32_t number)
{
    cmi_counters *counters = &pool->counters;
    cmi_owner *owner = &pool->owners[number];
    if (counters->live_bytes > counters->peak_live_bytes || owner->live_bytes > owner->peak_live_bytes) {
        uint64_t of_pool = 0, of_owner = 0;
        for (const cmi_cache *cache = pool->caches; cache; cache = cache->next) {
            of_pool += cmi_cache_least_in(cache);
            of_owner += cache->owner == number ? cmi_cache_least_in(cache) : 0;
        }
        counters->peak_live_bytes = cmi_max_u64(counters->peak_live_bytes, counters->live_bytes - of_pool);
        owner->peak_live_bytes = cmi_max_u64(owner->peak_live_bytes, owner->live_bytes - of_owner);
    }
    for (cmi_cache *cache = cmi_thread_mine->caches; cache; cache = cache->next_of_thread) {
        if (atomic_load_explicit(&cache->pool, memory_order_relaxed) == pool) {
            cmi_cache_set_least(cache, cmi_cache_bytes_in(cache));
        }
    }
}

void cmi_cache_note_taken(cmi_pool *pool, cmi_cache *cache, int64_t blocks, int64_t bytes, int64_t requested)
{
    cmi_owner *owner = &pool->owners[cache->owner];
    pool->counters.live_bytes += (uint64_t)bytes;
    pool->counters.live_blocks += (uint64_t)blocks;
    pool->counters.requested_bytes += (uint64_t)requested;
    owner->live_bytes += (uint64_t)bytes;
    owner->live_blocks += (uint64_t)blocks;
    owner->requested_bytes += (uint64_t)requested;
    cmi_cache_set_bytes(cache, cmi_cache_bytes_in(cache) + (uint64_t)bytes);
    cmi_cache_set_least(cache, cmi_cache_bytes_in(cache));
}

/* The oldest slots of a bin, all but `keep`. */
static void give_back(cmi_pool *pool, const cmi_lane *lane, cmi_cache_bin *bin, unsigned keep)
{
    if (bin->count <= keep) {
        return;
    }
    cmi_device *device = pool->device;
    unsigned count = bin->count - keep;
    for (unsigned i = 0; i < count; i++) {
        cmi_slab *slab = bin->slots[i].slab;
        cmi_heap_slot_uncache(&pool->heap, slab, bin->slots[i].address, device->ticket);
        if (cmi_heap_slab_is_unused(slab) && cmi_pool_make_ready(pool)) {
            cmi_heap_settle_slab(&pool->heap, slab);
        }
    }
    memmove(bin->slots, bin->slots + count, keep * sizeof *bin->slots);
    bin->count = (uint16_t)keep;
    uint64_t bytes = (uint64_t)count * bin->bytes;
    cmi_cache_note_taken(pool, lane->cache, -(int64_t)count, -(int64_t)bytes, -(int64_t)bytes);
    cmi_stream_note_frees(device, lane->number, device->ticket, count, bytes);
}

void cmi_cache_drain_one(cmi_pool *pool, cmi_cache *cache)
{
    cmi_cache_note_peaks(pool, cache->owner);
    for (cmi_lane *lane = cache->lanes; lane && cmi_cache_bytes_in(cache); lane = lane->next) {
        cmi_lease_put_back(pool, lane);
        for (unsigned i = 0; i < CMI_CLASS_COUNT; i++) {
            give_back(pool, lane, &lane->bins[i], 0);
        }
    }
    cmi_owner *owner = &pool->owners[cache->owner];
    pool->counters.allocations += cache->allocations;
    pool->counters.frees += cache->frees;
    owner->allocations += cache->allocations;
    owner->frees += cache->frees;
    cache->allocations = cache->frees = 0;
    cmi_cache_set_least(cache, 0);
}

void cmi_cache_shut(cmi_pool *pool)
{
    bool others = false;
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        cmi_latch_shut(&cache->latch);
        others = others || cache->thread != cmi_thread_mine;
    }
    if (others) {
        cmi_latch_barrier();
    }
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        cmi_latch_wait(&cache->latch); /* this thread is in none */
    }
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        cmi_cache_drain_one(pool, cache);
    }
    pool->device->caches_shut++;
}

void cmi_cache_open(cmi_device *device)
{
    if (--device->caches_shut) {
        return;
    }
    for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
        for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
            cmi_latch_open(&cache->latch);
        }
    }
}

void cmi_cache_drain(cmi_pool *pool)
{
    cmi_cache_shut(pool);
    cmi_cache_open(pool->device);
}

void cmi_cache_forget_range(cmi_pool *pool, uint64_t base)
{
    cmi_cache_shut(pool);
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        if (cache->slabs.base == base) {
            cache->slabs = (cmi_slab_map){0};
        }
    }
    cmi_cache_open(pool->device);
}

void cmi_cache_shut_all(cmi_device *device)
{
    device->caches_shut++;
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        cmi_cache_shut(pool);
        device->caches_shut--;
    }
}

static bool bin_is_ready(cmi_cache_bin *bin)
{
    if (!bin->slots) {
        uint64_t room = cmi_min_u64(cmi_max_u64(CLASS_BYTES / bin->bytes, 2), CMI_CACHE_SLOTS);
        bin->slots = cmi_meta_alloc(room * sizeof *bin->slots);
        bin->room = bin->slots ? (uint16_t)room : 0;
    }
    return bin->slots != NULL;
}

void cmi_cache_after_malloc(cmi_pool *pool, const cmi_ask *ask, uint32_t binset, unsigned class_index)
{
    cmi_lane *lane = cmi_lane_for(pool, ask);
    cmi_cache_bin *bin = lane ? &lane->bins[class_index] : NULL;
    if (!bin || lane->binset != binset || !bin_is_ready(bin)) {
        return;
    }
    cmi_cache *cache = lane->cache;
    int64_t count = 0;
    while (!pool->device->tight && bin->count < bin->room / 2 &&
           cmi_cache_bytes_in(cache) + (uint64_t)(count + 1) * bin->bytes <= cache->limit) {
        cmi_cached_slot slot;
        if (!cmi_heap_slot_cache(&pool->heap, binset, class_index, &slot.address, &slot.slab)) {
            break;
        }
        bin->slots[bin->count++] = slot;
        count++;
    }
    if (count) {
        /* The next to be handed out is the lowest, as it would be without a cache. */
        for (unsigned i = bin->count - (unsigned)count, j = bin->count - 1u; i < j; i++, j--) {
            cmi_cached_slot low = bin->slots[i];
            bin->slots[i] = bin->slots[j];
            bin->slots[j] = low;
        }
        cache->slabs = *cmi_heap_slab_map(&pool->heap, bin->slots[0].address);
        cmi_cache_note_taken(pool, cache, count, count * (int64_t)bin->bytes, count * (int64_t)bin->bytes);
    }
}

void cmi_cache_after_free(cmi_pool *pool, const cmi_ask *ask, const cmi_slab *slab)
{
    cmi_lane *lane = cmi_lane_for(pool, ask);
    cmi_cache_bin *bin = lane ? &lane->bins[slab->class_index] : NULL;
    if (!bin || lane->binset != slab->binset || !bin_is_ready(bin)) {
        return;
    }
    cmi_cache *cache = lane->cache;
    cache->slabs = *cmi_heap_slab_map(&pool->heap, slab->base);
    if (bin->count == bin->room) {
        give_back(pool, lane, bin, bin->room / 2);
    } else if (cmi_cache_bytes_in(cache) + bin->bytes > cache->limit) {
        cmi_cache_drain_one(pool, cache);
    }
}
