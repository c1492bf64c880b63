/*
 * Thread caches, see cache.h. Owns the calling thread's record (8 bytes of initial-exec TLS, the rest metadata memory), its caches and
 * their lanes. A cache is in its thread's list and in its pool's; the pool's lists, and what a cache holds, are guarded by the device lock,
 * the latter also by the cache's latch. Only its thread frees a cache or a lane; others mark them as ended. Called by api (the two fast
 * paths), malloc and free, and by all who drain.
 */
#include "pool/cache.h"

#include <string.h>

enum { FIRST_ROOM = 16 };
static const uint64_t CLASS_BYTES = UINT64_C(256) << 10; /* of one class in one lane, where that is at least two slots */

typedef struct thread_record {
    cmi_lane *last;   /* served last */
    cmi_lane **table; /* all lanes, by key, open-addressed; ended ones stay until it is made anew */
    uint32_t room, used;
    cmi_cache *caches;
} thread_record;

/* What threads without a cache have: a lane that nothing is ever in. */
static cmi_cache no_cache = {.latch = {.shut = 1}};
static cmi_lane no_lane = {.cache = &no_cache, .device = -1};
static thread_record nobody = {.last = &no_lane};

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor hands a thread's caches back */
static bool has_key;

static __thread thread_record *mine __attribute__((tls_model("initial-exec"))) = &nobody;

/* ---- the fast paths, without the lock ----------------------------------------------------------- */

static inline bool is_of(const cmi_lane *lane, uint64_t handle, CUstream stream, CUcontext context, int device)
{
    return atomic_load_explicit(&lane->handle, memory_order_relaxed) == handle &&
           (lane->stream == stream || CMI_MUTATION(CACHE_OF_ANY_STREAM)) && lane->context == (device == lane->device ? context : NULL);
}

static uint32_t hash(uint64_t handle, CUstream stream)
{
    uint64_t x = (handle ^ (uint64_t)(uintptr_t)stream) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> 40);
}

static __attribute__((noinline)) cmi_lane *find_again(uint64_t handle, CUstream stream, CUcontext context, int device)
{
    thread_record *me = mine;
    for (uint32_t at = hash(handle, stream); me->room; at++) {
        cmi_lane *lane = me->table[at & (me->room - 1)];
        if (!lane) {
            break;
        }
        if (is_of(lane, handle, stream, context, device)) {
            me->last = lane;
            return lane;
        }
    }
    return NULL;
}

static inline cmi_lane *find(uint64_t handle, CUstream stream, CUcontext context, int device)
{
    cmi_lane *lane = mine->last;
    return __builtin_expect(is_of(lane, handle, stream, context, device), 1) ? lane : find_again(handle, stream, context, device);
}

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

static inline uint64_t bytes_in(const cmi_cache *cache) { return atomic_load_explicit(&cache->bytes, memory_order_relaxed); }

static inline void set_bytes(cmi_cache *cache, uint64_t bytes) { atomic_store_explicit(&cache->bytes, bytes, memory_order_relaxed); }

static inline void set_least(cmi_cache *cache, uint64_t bytes) { atomic_store_explicit(&cache->least_bytes, bytes, memory_order_relaxed); }

static inline uint64_t least_in(const cmi_cache *cache) { return atomic_load_explicit(&cache->least_bytes, memory_order_relaxed); }

static inline void set_use(cmi_slab *slab, uint64_t address, cmi_slot_use use)
{
    atomic_store_explicit(&slab->use[cmi_slab_slot(slab, address)], (uint8_t)use, memory_order_relaxed);
}

uint64_t cmi_cache_malloc(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t bytes)
{
    if (bytes - 1 >= CMI_SMALL_LIMIT) {
        return 0;
    }
    cmi_lane *lane = find(handle, stream, context, device);
    if (!lane || !enter(lane->cache)) {
        return 0;
    }
    cmi_cache *cache = lane->cache;
    cmi_cache_bin *bin = &lane->bins[cmi_class_of(bytes)];
    uint64_t address = 0;
    if (bin->count) {
        const cmi_cached_slot *slot = &bin->slots[--bin->count];
        address = slot->address;
        set_use(slot->slab, address, CMI_SLOT_LIVE);
        uint64_t left = bytes_in(cache) - bin->bytes;
        set_bytes(cache, left);
        if (left < least_in(cache)) {
            set_least(cache, left);
        }
        cache->allocations++;
    }
    cmi_latch_leave(&cache->latch);
    return address;
}

bool cmi_cache_free(uint64_t handle, CUstream stream, CUcontext context, int device, uint64_t address)
{
    cmi_lane *lane = find(handle, stream, context, device);
    if (!lane || !enter(lane->cache)) {
        return false;
    }
    cmi_cache *cache = lane->cache;
    cmi_slab *slab = cmi_slab_at(&cache->slabs, address);
    bool cached = false;
    if (slab && slab->binset == lane->binset) {
        unsigned number = cmi_slab_slot(slab, address);
        cmi_cache_bin *bin = &lane->bins[slab->class_index];
        uint64_t more = bytes_in(cache) + bin->bytes;
        bool live = number < slab->slot_count && slab->base + (uint64_t)number * slab->slot_bytes == address &&
                    (cmi_slab_use(slab, number) == CMI_SLOT_LIVE || CMI_MUTATION(DOUBLE_FREE_UNSEEN));
        bool used_elsewhere = slab->uses && slab->uses[number] != CMI_NO_STAMP;
        if (live && !used_elsewhere && bin->count < bin->room && more <= cache->limit) {
            atomic_store_explicit(&slab->use[number], CMI_SLOT_CACHED, memory_order_relaxed);
            bin->slots[bin->count++] = (cmi_cached_slot){address, slab};
            set_bytes(cache, more);
            cache->frees++;
            cached = true;
        }
    }
    cmi_latch_leave(&cache->latch);
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
            of_pool += least_in(cache);
            of_owner += cache->owner == number ? least_in(cache) : 0;
        }
        counters->peak_live_bytes = cmi_max_u64(counters->peak_live_bytes, counters->live_bytes - of_pool);
        owner->peak_live_bytes = cmi_max_u64(owner->peak_live_bytes, owner->live_bytes - of_owner);
    }
    for (cmi_cache *cache = mine->caches; cache; cache = cache->next_of_thread) {
        if (atomic_load_explicit(&cache->pool, memory_order_relaxed) == pool) {
            set_least(cache, bytes_in(cache));
        }
    }
}

/* Slots taken from slabs and not handed out, or the other way round: no live byte more or less. */
static void note_taken(cmi_pool *pool, cmi_cache *cache, int64_t slots, int64_t bytes)
{
    cmi_owner *owner = &pool->owners[cache->owner];
    pool->counters.live_bytes += (uint64_t)bytes;
    pool->counters.live_blocks += (uint64_t)slots;
    pool->counters.requested_bytes += (uint64_t)bytes;
    owner->live_bytes += (uint64_t)bytes;
    owner->live_blocks += (uint64_t)slots;
    owner->requested_bytes += (uint64_t)bytes;
    set_bytes(cache, bytes_in(cache) + (uint64_t)bytes);
    set_least(cache, bytes_in(cache));
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
    note_taken(pool, lane->cache, -(int64_t)count, -(int64_t)bytes);
    cmi_stream_note_frees(device, lane->number, device->ticket, count, bytes);
}

/* The latch is shut, or the thread is the owner. */
static void drain(cmi_pool *pool, cmi_cache *cache)
{
    cmi_cache_note_peaks(pool, cache->owner);
    for (cmi_lane *lane = cache->lanes; lane && bytes_in(cache); lane = lane->next) {
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
    set_least(cache, 0);
}

void cmi_cache_shut(cmi_pool *pool)
{
    bool others = false;
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        cmi_latch_shut(&cache->latch);
        others = others || cache->thread != mine;
    }
    if (others) {
        cmi_latch_barrier();
    }
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        cmi_latch_wait(&cache->latch); /* this thread is in none */
    }
    for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
        drain(pool, cache);
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

/* ---- ends --------------------------------------------------------------------------------------- */

static void end_lane(cmi_lane *lane)
{
    atomic_store_explicit(&lane->handle, 0, memory_order_relaxed);
    lane->binset = CMI_NO_BINSET;
}

static void free_lane(cmi_lane *lane)
{
    for (unsigned i = 0; i < CMI_CLASS_COUNT; i++) {
        cmi_meta_free(lane->bins[i].slots, lane->bins[i].room * sizeof *lane->bins[i].slots);
    }
    cmi_meta_free(lane, sizeof *lane);
}

static void free_cache(cmi_cache *cache)
{
    while (cache->lanes) {
        cmi_lane *lane = cache->lanes;
        cache->lanes = lane->next;
        free_lane(lane);
    }
    cmi_meta_free(cache, sizeof *cache);
}

/* Out of the pool's list; drained before. Its thread frees it. */
static void end_cache(cmi_pool *pool, cmi_cache *cache)
{
    cmi_cache **link = &pool->caches;
    while (*link != cache) {
        link = &(*link)->next;
    }
    *link = cache->next;
    for (cmi_lane *lane = cache->lanes; lane; lane = lane->next) {
        end_lane(lane);
    }
    cmi_latch_open(&cache->latch); /* it is empty */
    atomic_store_explicit(&cache->pool, NULL, memory_order_release);
}

static void enter_table(thread_record *me, cmi_lane *lane)
{
    uint32_t at = hash(atomic_load_explicit(&lane->handle, memory_order_relaxed), lane->stream) & (me->room - 1);
    while (me->table[at]) {
        at = (at + 1) & (me->room - 1);
    }
    me->table[at] = lane;
    me->used++;
}

/* No cache is left: the thread is as it was before its first. */
static void leave_thread(thread_record *me)
{
    pthread_setspecific(key, NULL);
    mine = &nobody;
    cmi_meta_free(me->table, me->room * sizeof *me->table);
    cmi_meta_free(me, sizeof *me);
}

/* Free what has ended of the calling thread, and make its table anew. The lock of `device` is held: lanes of other devices stay. */
static void tidy(const cmi_device *device)
{
    thread_record *me = mine;
    if (me == &nobody) {
        return;
    }
    me->last = &no_lane;
    me->used = 0;
    memset(me->table, 0, me->room * sizeof *me->table);
    for (cmi_cache **link = &me->caches; *link;) {
        cmi_cache *cache = *link;
        if (!atomic_load_explicit(&cache->pool, memory_order_acquire)) {
            *link = cache->next_of_thread;
            free_cache(cache);
            continue;
        }
        for (cmi_lane **at = &cache->lanes; *at;) {
            cmi_lane *lane = *at;
            if (cache->device == device && !atomic_load_explicit(&lane->handle, memory_order_relaxed)) {
                *at = lane->next;
                free_lane(lane);
            } else {
                enter_table(me, lane);
                at = &lane->next;
            }
        }
        link = &cache->next_of_thread;
    }
    if (!me->caches) {
        leave_thread(me);
    }
}
/* Drain the caches of an owner, or of all (ANY_OWNER), and end them. */
enum { ANY_OWNER = UINT32_MAX };

static void end_caches(cmi_pool *pool, uint32_t owner)
{
    cmi_cache_shut(pool);
    for (cmi_cache *cache = pool->caches, *next; cache; cache = next) {
        next = cache->next;
        if (owner == ANY_OWNER || cache->owner == owner) {
            end_cache(pool, cache);
        }
    }
    cmi_cache_open(pool->device);
    tidy(pool->device);
}

void cmi_cache_end(cmi_pool *pool, uint32_t owner) { end_caches(pool, owner); }

void cmi_cache_end_all(cmi_pool *pool) { end_caches(pool, ANY_OWNER); }

void cmi_cache_end_retired(cmi_device *device)
{
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        cmi_cache_shut(pool);
        for (cmi_cache *cache = pool->caches; cache; cache = cache->next) {
            for (cmi_lane *lane = cache->lanes; lane; lane = lane->next) {
                if (device->streams[lane->number].retired) {
                    end_lane(lane);
                }
            }
        }
        cmi_cache_open(device);
    }
    tidy(device);
}

/* ---- the calling thread's record ---------------------------------------------------------------- */

/* A thread ends: what it had cached goes back to the slabs. No call of the driver, whose own threads' ends may have been before. */
static void thread_end(void *record)
{
    thread_record *me = record;
    mine = me; /* a destructor that ran before may have ended it */
    while (me->caches) {
        cmi_cache *cache = me->caches;
        cmi_lock_acquire(&cache->device->lock);
        cmi_pool *pool = atomic_load_explicit(&cache->pool, memory_order_relaxed);
        if (pool) {
            drain(pool, cache);
            end_cache(pool, cache);
        }
        cmi_lock_release(&cache->device->lock);
        me->caches = cache->next_of_thread;
        free_cache(cache);
    }
    leave_thread(me);
}

static void make_key(void)
{
    cmi_latch_prepare();
    has_key = pthread_key_create(&key, thread_end) == 0;
}

static bool make_thread(void)
{
    if (mine != &nobody) {
        return true;
    }
    pthread_once(&key_once, make_key);
    thread_record *me = has_key ? cmi_meta_alloc(sizeof *me) : NULL;
    cmi_lane **table = me ? cmi_meta_alloc(FIRST_ROOM * sizeof *table) : NULL;
    if (!table || pthread_setspecific(key, me) != 0) {
        cmi_meta_free(table, FIRST_ROOM * sizeof *table);
        cmi_meta_free(me, sizeof *me);
        return false;
    }
    *me = (thread_record){.last = &no_lane, .table = table, .room = FIRST_ROOM};
    mine = me;
    return true;
}

void cmi_cache_unload(void)
{
    if (has_key) {
        pthread_key_delete(key);
    }
}

void cmi_cache_forget(void)
{
    if (mine != &nobody) { /* its memory stays as it is: whatever it names may be half-changed */
        pthread_setspecific(key, NULL);
        mine = &nobody;
    }
}

/* ---- new lanes ---------------------------------------------------------------------------------- */

static bool table_has_room(thread_record *me)
{
    if ((me->used + 1) * 2 <= me->room) {
        return true;
    }
    cmi_lane **grown = cmi_meta_alloc(2 * me->room * sizeof *grown);
    if (!grown) {
        return false;
    }
    cmi_lane **old = me->table;
    uint32_t room = me->room;
    *me = (thread_record){.last = &no_lane, .table = grown, .room = 2 * room, .caches = me->caches};
    for (uint32_t i = 0; i < room; i++) {
        if (old[i]) {
            enter_table(me, old[i]);
        }
    }
    cmi_meta_free(old, room * sizeof *old);
    return true;
}

static bool may_cache(const cmi_pool *pool, uint32_t owner, uint32_t stream)
{
    const cmi_options *options = &pool->options;
    return stream != CMI_NO_STREAM && !pool->device->caches_shut && !pool->device->lost && options->thread_cache &&
           !options->idle_release && !pool->ring.capacity && !pool->traced && !pool->dying && !pool->pause &&
           options->stream_check != CMI_STREAM_CHECK_ALWAYS && pool->owners[owner].kind != CMI_OWNER_CAPTURE &&
           pool->owners[owner].generation;
}

static cmi_cache *cache_of(cmi_pool *pool, uint32_t owner)
{
    for (cmi_cache *cache = mine->caches; cache; cache = cache->next_of_thread) {
        if (atomic_load_explicit(&cache->pool, memory_order_relaxed) == pool && cache->owner == owner) {
            return cache;
        }
    }
    cmi_cache *cache = cmi_meta_alloc(sizeof *cache);
    if (cache) {
        *cache = (cmi_cache){.limit = pool->options.thread_cache,
                             .device = pool->device,
                             .pool = pool,
                             .owner = owner,
                             .thread = mine,
                             .next = pool->caches,
                             .next_of_thread = mine->caches};
        pool->caches = mine->caches = cache;
    }
    return cache;
}

/* The lane of the caller, made at its first use; NULL: it may have none, or host memory is short. */
static cmi_lane *lane_for(cmi_pool *pool, const cmi_ask *ask, uint32_t binset)
{
    if (!may_cache(pool, ask->owner, ask->stream)) {
        return NULL;
    }
    uint64_t handle = pool->owners[ask->owner].generation;
    int device = pool->device->ordinal;
    cmi_lane *lane = find(handle, ask->handle, ask->context, device);
    if (lane) {
        return lane;
    }
    tidy(pool->device);
    cmi_cache *cache = make_thread() && table_has_room(mine) ? cache_of(pool, ask->owner) : NULL;
    lane = cache ? cmi_meta_alloc(sizeof *lane) : NULL;
    if (lane) {
        *lane = (cmi_lane){.handle = handle,
                           .stream = ask->handle,
                           .context = ask->context,
                           .device = device,
                           .binset = binset,
                           .number = ask->stream,
                           .cache = cache,
                           .next = cache->lanes};
        for (unsigned i = 0; i < CMI_CLASS_COUNT; i++) {
            lane->bins[i].bytes = (uint32_t)cmi_class_bytes(i);
        }
        cache->lanes = lane;
        enter_table(mine, lane);
    }
    return lane;
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
    cmi_lane *lane = lane_for(pool, ask, binset);
    cmi_cache_bin *bin = lane ? &lane->bins[class_index] : NULL;
    if (!bin || lane->binset != binset || !bin_is_ready(bin)) {
        return;
    }
    cmi_cache *cache = lane->cache;
    int64_t count = 0;
    while (bin->count < bin->room / 2 && bytes_in(cache) + (uint64_t)(count + 1) * bin->bytes <= cache->limit) {
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
        note_taken(pool, cache, count, count * (int64_t)bin->bytes);
    }
}

void cmi_cache_after_free(cmi_pool *pool, const cmi_ask *ask, const cmi_slab *slab)
{
    cmi_lane *lane = lane_for(pool, ask, slab->binset);
    cmi_cache_bin *bin = lane ? &lane->bins[slab->class_index] : NULL;
    if (!bin || lane->binset != slab->binset || !bin_is_ready(bin)) {
        return;
    }
    cmi_cache *cache = lane->cache;
    cache->slabs = *cmi_heap_slab_map(&pool->heap, slab->base);
    if (bin->count == bin->room) {
        give_back(pool, lane, bin, bin->room / 2);
    } else if (bytes_in(cache) + bin->bytes > cache->limit) {
        drain(pool, cache);
    }
}
