/*
 * Stream-ordered memory: pools and the blocks they have handed out, freed and kept for reuse. A block's alloc and free are touches that
 * write, so a use which is not ordered between them is a race; a use asked for after the free is refused. Guarded by sim.lock. Called by
 * pool_calls.c, and by cuMemFree for memory that came from here.
 */
#include "sim_capture.h"
#include "sim_other.h"
#include "sim_pool.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES UINT64_C(512)

/* One block, live or free. It keeps its memory until the pool releases it, and its size. */
struct sim_block {
    sim_block *next, *previous; /* in one of the pool's lists */
    sim_pool *pool;
    sim_mapping *mapping;
    uint64_t used;   /* bytes the program asked for, rounded; 0 while free */
    sim_event freed; /* recorded behind the free */
};

static struct {
    sim_pool *by_default, *current;
} device_pools[SIM_MAX_DEVICES];

/* ---- pools -------------------------------------------------------------------------------------------------------------------- */

sim_pool *sim_pool_new(int device, uint64_t max_bytes)
{
    sim_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL && (pool->handle = sim_handle_new(SIM_POOL, pool)) == 0) {
        free(pool);
        pool = NULL;
    }
    if (pool != NULL) {
        pool->device = device;
        pool->max_bytes = max_bytes ? max_bytes : UINT64_MAX;
        pool->readers = pool->writers = UINT64_C(1) << device;
        pool->follow_events = pool->opportunistic = pool->internal_dependencies = 1;
    }
    return pool;
}

sim_pool *sim_pool_default(int device)
{
    if (device_pools[device].by_default == NULL) {
        sim_pool *pool = sim_pool_new(device, 0);
        if (pool != NULL) {
            pool->is_default = true;
            device_pools[device].by_default = pool;
        }
    }
    return device_pools[device].by_default;
}

sim_pool *sim_pool_current(int device) { return device_pools[device].current ? device_pools[device].current : sim_pool_default(device); }

sim_pool *sim_pool_of(CUmemoryPool handle) { return sim_handle_get(SIM_POOL, SIM_NUMBER(handle)); }

void sim_pool_set_current(int device, sim_pool *pool) { device_pools[device].current = pool; }

CUmemoryPool sim_pool_handle(const sim_mapping *mapping)
{
    const sim_block *at = mapping->kind == SIM_MEMORY_POOL ? mapping->owner : NULL;
    return at != NULL ? SIM_AS_HANDLE(CUmemoryPool, at->pool->handle) : NULL;
}

static void list_add(sim_block **list, sim_block *at)
{
    at->previous = NULL;
    at->next = *list;
    if (at->next != NULL) {
        at->next->previous = at;
    }
    *list = at;
}

static void list_remove(sim_block **list, sim_block *at)
{
    if (at->previous != NULL) {
        at->previous->next = at->next;
    } else {
        *list = at->next;
    }
    if (at->next != NULL) {
        at->next->previous = at->previous;
    }
}

static bool host_has_seen(const sim_block *at) { return sim_clock_at(&sim.host, at->freed.lane) >= at->freed.tick; }

/* The end of a free block, its memory included. */
static void block_delete(sim_block *at)
{
    at->pool->reserved -= at->mapping->physical->charge;
    list_remove(&at->pool->free, at);
    sim_memory_delete(at->mapping);
    sim_clock_free(&at->freed.clock);
    free(at);
}

/* cuda.h, cuMemPoolTrimTo: what the host has not seen freed counts as outstanding. */
void sim_pool_trim(sim_pool *pool, uint64_t keep_bytes)
{
    for (sim_block *at = pool->free, *next; at != NULL && pool->reserved > keep_bytes; at = next) {
        next = at->next;
        if (host_has_seen(at) && pool->reserved - at->mapping->physical->charge >= keep_bytes) {
            block_delete(at);
        }
    }
}

static void pool_delete(sim_pool *pool)
{
    while (pool->free != NULL) {
        block_delete(pool->free);
    }
    sim_handle_drop(SIM_POOL, pool->handle);
    free(pool);
}

static void end_if_destroyed(sim_pool *pool)
{
    if (pool->destroyed && pool->live == NULL) {
        sim_pool_trim(pool, 0);
        if (pool->free == NULL) {
            pool_delete(pool);
        }
    }
}

void sim_pool_destroy(sim_pool *pool)
{
    if (device_pools[pool->device].current == pool) {
        device_pools[pool->device].current = NULL;
    }
    pool->destroyed = true;
    end_if_destroyed(pool);
}

void sim_pool_set_access(sim_pool *pool, int device, bool reads, bool writes)
{
    uint64_t bit = UINT64_C(1) << device;
    pool->readers = reads ? pool->readers | bit : pool->readers & ~bit;
    pool->writers = writes ? pool->writers | bit : pool->writers & ~bit;
    for (sim_block *at = pool->live; at != NULL; at = at->next) {
        at->mapping->readers = pool->readers;
        at->mapping->writers = pool->writers;
    }
}

void sim_pool_synchronised(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_POOL, i, &object); i++) {
        sim_pool *pool = object;
        if (pool != NULL && pool->free != NULL) {
            sim_pool_trim(pool, pool->destroyed ? 0 : pool->threshold);
            end_if_destroyed(pool);
        }
    }
}

/* The memory of live blocks ends with all other mappings. */
void sim_pool_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_POOL, i, &object); i++) {
        sim_pool *pool = object;
        while (pool != NULL && pool->live != NULL) {
            sim_block *at = pool->live;
            list_remove(&pool->live, at);
            sim_clock_free(&at->freed.clock);
            free(at);
        }
        if (pool != NULL) {
            pool_delete(pool);
        }
    }
    memset(device_pools, 0, sizeof device_pools);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------------------- */

/* How a free block may be had by the lane; less is better. */
typedef enum reuse { REUSE_ORDERED, REUSE_DONE, REUSE_WAITING, REUSE_FORBIDDEN } reuse;

static reuse reuse_of(const sim_pool *pool, const sim_block *at, const sim_lane *lane)
{
    if (at->freed.lane == lane->index || host_has_seen(at)) {
        return REUSE_ORDERED;
    }
    if (pool->follow_events && sim_clock_at(&lane->clock, at->freed.lane) >= at->freed.tick) {
        return REUSE_ORDERED;
    }
    if (pool->opportunistic && sim_event_done(&at->freed)) {
        return REUSE_DONE;
    }
    return pool->internal_dependencies ? REUSE_WAITING : REUSE_FORBIDDEN;
}

/* The smallest free block that fits without wasting more than an eighth, taken out of the list. */
static sim_block *take_free(sim_pool *pool, uint64_t bytes, const sim_lane *lane, reuse at_worst)
{
    sim_block *best = NULL;
    for (sim_block *at = pool->free; at != NULL; at = at->next) {
        uint64_t has = at->mapping->bytes;
        bool fits = has >= bytes && has - bytes <= bytes / 8;
        if (fits && (best == NULL || has < best->mapping->bytes) && reuse_of(pool, at, lane) <= at_worst) {
            best = at;
        }
    }
    if (best != NULL) {
        list_remove(&pool->free, best);
    }
    return best;
}

static sim_block *grow(sim_pool *pool, uint64_t bytes, CUresult *code)
{
    *code = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > pool->max_bytes || pool->reserved > pool->max_bytes - bytes) {
        return NULL;
    }
    sim_block *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    made->mapping = sim_memory_new(SIM_MEMORY_POOL, pool->device, bytes, code);
    if (made->mapping == NULL) {
        free(made);
        return NULL;
    }
    made->pool = pool;
    made->mapping->owner = made;
    pool->reserved += made->mapping->physical->charge;
    if (pool->reserved > pool->reserved_high) {
        pool->reserved_high = pool->reserved;
    }
    return made;
}

/*
 * Memory whose free is ordered before, memory whose free is done, more memory, memory that the stream has to wait for; when all of that
 * fails, more memory again after giving back what the pool holds in other sizes.
 */
static sim_block *obtain(sim_pool *pool, uint64_t bytes, const sim_lane *lane, CUresult *code)
{
    sim_block *found = take_free(pool, bytes, lane, REUSE_ORDERED);
    if (found == NULL) {
        found = take_free(pool, bytes, lane, REUSE_DONE);
    }
    if (found == NULL) {
        found = grow(pool, bytes, code);
    }
    if (found == NULL) {
        found = take_free(pool, bytes, lane, REUSE_WAITING);
    }
    if (found == NULL && pool->free != NULL) {
        sim_pool_trim(pool, 0);
        found = grow(pool, bytes, code);
    }
    return found;
}

static CUresult touch_whole(sim_lane *lane, const sim_mapping *mapping)
{
    sim_op op = {.kind = SIM_OP_TOUCH, .reach_count = 1, .reach = {{mapping->address, mapping->bytes, true}}};
    return sim_op_run(lane, &op);
}

CUresult sim_pool_alloc(CUdeviceptr *address, size_t bytes, sim_pool *pool, sim_lane *lane)
{
    if (address == NULL || pool == NULL || pool->destroyed || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (lane->capture != NULL) {
        static int said;
        sim_capture_invalidate(lane->capture);
        return sim_unsupported("cuMemAllocAsync in a capture", &said);
    }
    if (bytes > UINT64_MAX - BLOCK_BYTES) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (lane == lane->context->legacy) {
        CUresult conflict = sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        if (conflict != CUDA_SUCCESS) {
            return conflict;
        }
    }
    CUresult code;
    uint64_t rounded = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    sim_block *found = obtain(pool, rounded, lane, &code);
    if (found == NULL) {
        return code;
    }
    if (found->freed.recorded && found->freed.lane != lane->index) {
        sim_lane_wait_event(lane, &found->freed);
    }
    found->used = rounded;
    found->mapping->readers = pool->readers | UINT64_C(1) << lane->context->device;
    found->mapping->writers = pool->writers | UINT64_C(1) << lane->context->device;
    found->mapping->buffer_id = ++sim.next_id;
    list_add(&pool->live, found);
    pool->used += rounded;
    if (pool->used > pool->used_high) {
        pool->used_high = pool->used;
    }
    code = touch_whole(lane, found->mapping);
    found->mapping->readers = pool->readers;
    found->mapping->writers = pool->writers;
    *address = found->mapping->address;
    return code;
}

/* Back in the pool's list; further touches are refused. */
static void retire(sim_block *at)
{
    sim_pool *pool = at->pool;
    pool->used -= at->used;
    list_remove(&pool->live, at);
    at->used = 0;
    at->mapping->readers = at->mapping->writers = 0;
    list_add(&pool->free, at);
}

static sim_block *live_block(CUdeviceptr address)
{
    sim_mapping *mapping = sim_mapping_find(address);
    if (mapping == NULL || mapping->kind != SIM_MEMORY_POOL || mapping->address != address) {
        return NULL;
    }
    sim_block *at = mapping->owner;
    return at->used != 0 ? at : NULL;
}

CUresult sim_pool_free_on(CUdeviceptr address, sim_lane *lane)
{
    sim_block *at = live_block(address);
    if (lane->capture != NULL) { /* takes only what the capture allocated, which is nothing */
        sim_capture_invalidate(lane->capture);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (at == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (lane == lane->context->legacy) {
        CUresult conflict = sim_capture_conflict(lane->context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        if (conflict != CUDA_SUCCESS) {
            return conflict;
        }
    }
    at->mapping->readers |= UINT64_C(1) << lane->context->device;
    at->mapping->writers |= UINT64_C(1) << lane->context->device;
    CUresult code = touch_whole(lane, at->mapping);
    sim_lane_record(lane, &at->freed);
    retire(at);
    return code;
}

CUresult sim_pool_free(sim_mapping *mapping)
{
    sim_block *at = mapping->owner;
    sim_pool *pool = at->pool;
    if (at->used == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_check_free(mapping);
    at->freed.recorded = false;
    at->freed.lane = at->freed.tick = 0;
    retire(at);
    sim_pool_trim(pool, pool->threshold);
    end_if_destroyed(pool);
    return CUDA_SUCCESS;
}
