/*
 * Threads and their lanes: how they are made, found again and ended. Owns the calling thread's record (8 bytes of initial-exec TLS, the
 * rest metadata memory), its caches and their lanes. Guarded by the device lock; only its thread frees a cache or a lane, others mark them
 * as ended. Called by cache.c and lease.c, and by whatever ends owners, streams, pools and threads.
 */
#include "pool/lane.h"

#include <string.h>

enum { FIRST_ROOM = 16 };

/* What threads without a cache have: a lane that nothing is ever in. */
static cmi_cache no_cache = {.latch = {.shut = 1}};
static cmi_lane no_lane = {.cache = &no_cache, .device = -1};
static cmi_thread_record nobody = {.last = &no_lane};

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor hands a thread's caches back */
static bool has_key;

__thread cmi_thread_record *cmi_thread_mine __attribute__((tls_model("initial-exec"))) = &nobody;

/* ---- looking ------------------------------------------------------------------------------------ */

static uint32_t hash(uint64_t handle, CUstream stream)
{
    uint64_t x = (handle ^ (uint64_t)(uintptr_t)stream) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> 40);
}

cmi_lane *cmi_lane_find_again(uint64_t handle, CUstream stream, CUcontext context, int device)
{
    cmi_thread_record *me = cmi_thread_mine;
    for (uint32_t at = hash(handle, stream); me->room; at++) {
        cmi_lane *lane = me->table[at & (me->room - 1)];
        if (!lane) {
            break;
        }
        if (cmi_lane_is_of(lane, handle, stream, context, device)) {
            me->last = lane;
            return lane;
        }
    }
    return NULL;
}

/* ---- ends --------------------------------------------------------------------------------------- */

static void end_lane(cmi_lane *lane)
{
    atomic_store_explicit(&lane->handle, 0, memory_order_relaxed);
    lane->binset = lane->large_binset = CMI_NO_BINSET;
}

static void free_lane(cmi_lane *lane)
{
    for (unsigned i = 0; i < CMI_CLASS_COUNT; i++) {
        cmi_meta_free(lane->bins[i].slots, lane->bins[i].room * sizeof *lane->bins[i].slots);
    }
    cmi_meta_free(lane->leases, sizeof *lane->leases);
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

static void enter_table(cmi_thread_record *me, cmi_lane *lane)
{
    uint32_t at = hash(atomic_load_explicit(&lane->handle, memory_order_relaxed), lane->stream) & (me->room - 1);
    while (me->table[at]) {
        at = (at + 1) & (me->room - 1);
    }
    me->table[at] = lane;
    me->used++;
}

/* No cache is left: the thread is as it was before its first. */
static void leave_thread(cmi_thread_record *me)
{
    pthread_setspecific(key, NULL);
    cmi_thread_mine = &nobody;
    cmi_meta_free(me->table, me->room * sizeof *me->table);
    cmi_meta_free(me, sizeof *me);
}

/* Free what has ended of the calling thread, and make its table anew. The lock of `device` is held: lanes of other devices stay. */
static void tidy(const cmi_device *device)
{
    cmi_thread_record *me = cmi_thread_mine;
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
    cmi_thread_record *me = record;
    cmi_thread_mine = me; /* a destructor that ran before may have ended it */
    while (me->caches) {
        cmi_cache *cache = me->caches;
        cmi_lock_acquire(&cache->device->lock);
        cmi_pool *pool = atomic_load_explicit(&cache->pool, memory_order_relaxed);
        if (pool) {
            cmi_cache_drain_one(pool, cache);
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
    if (cmi_thread_mine != &nobody) {
        return true;
    }
    pthread_once(&key_once, make_key);
    cmi_thread_record *me = has_key ? cmi_meta_alloc(sizeof *me) : NULL;
    cmi_lane **table = me ? cmi_meta_alloc(FIRST_ROOM * sizeof *table) : NULL;
    if (!table || pthread_setspecific(key, me) != 0) {
        cmi_meta_free(table, FIRST_ROOM * sizeof *table);
        cmi_meta_free(me, sizeof *me);
        return false;
    }
    *me = (cmi_thread_record){.last = &no_lane, .table = table, .room = FIRST_ROOM};
    cmi_thread_mine = me;
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
    if (cmi_thread_mine != &nobody) { /* its memory stays as it is: whatever it names may be half-changed */
        pthread_setspecific(key, NULL);
        cmi_thread_mine = &nobody;
    }
}

/* ---- new lanes ---------------------------------------------------------------------------------- */

static bool table_has_room(cmi_thread_record *me)
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
    *me = (cmi_thread_record){.last = &no_lane, .table = grown, .room = 2 * room, .held = me->held, .caches = me->caches};
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
    for (cmi_cache *cache = cmi_thread_mine->caches; cache; cache = cache->next_of_thread) {
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
                             .thread = cmi_thread_mine,
                             .next = pool->caches,
                             .next_of_thread = cmi_thread_mine->caches};
        pool->caches = cmi_thread_mine->caches = cache;
    }
    return cache;
}

cmi_lane *cmi_lane_for(cmi_pool *pool, const cmi_ask *ask)
{
    if (!may_cache(pool, ask->owner, ask->stream)) {
        return NULL;
    }
    uint64_t handle = pool->owners[ask->owner].generation;
    int device = pool->device->ordinal;
    cmi_lane *lane = cmi_lane_find(handle, ask->handle, ask->context, device);
    if (lane) {
        return lane;
    }
    uint32_t small = cmi_owner_binset(pool, ask->owner, ask->stream, 1);
    if (!small) {
        return NULL;
    }
    tidy(pool->device);
    cmi_cache *cache = make_thread() && table_has_room(cmi_thread_mine) ? cache_of(pool, ask->owner) : NULL;
    lane = cache ? cmi_meta_alloc(sizeof *lane) : NULL;
    if (lane) {
        *lane = (cmi_lane){.handle = handle,
                           .stream = ask->handle,
                           .context = ask->context,
                           .device = device,
                           .binset = small,
                           .large_binset = cmi_heap_binset(&pool->heap, small)->partner,
                           .number = ask->stream,
                           .cache = cache,
                           .next = cache->lanes};
        for (unsigned i = 0; i < CMI_CLASS_COUNT; i++) {
            lane->bins[i].bytes = (uint32_t)cmi_class_bytes(i);
        }
        cache->lanes = lane;
        enter_table(cmi_thread_mine, lane);
    }
    return lane;
}
