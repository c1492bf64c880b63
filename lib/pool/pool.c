/*
 * A pool's making and ending, and where an address points. Owns the pool record; guarded by the device lock; called by api.
 */
#include "pool/cache.h"
#include "pool/region.h"

cmpool_status cmi_pool_create(cmi_pool **out, cmi_device *device, const cmi_options *options)
{
    cmi_pool *pool = cmi_meta_alloc(sizeof *pool);
    if (!pool) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (!cmi_ring_open(&pool->ring, options->history)) {
        cmi_meta_free(pool, sizeof *pool);
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    pool->device = device;
    pool->options = *options;
    cmi_heap_source source;
    cmi_stamp_fill_source(device, &source);
    cmi_heap_init(&pool->heap, &source);
    cmi_arena_init(&pool->arena, device->store);
    pool->segmented = options->backend == CMI_BACKEND_MALLOC || !cmi_store_has_slots(device->store);
    uint32_t first;
    cmpool_status status = cmi_owner_add(pool, CMI_OWNER_POOL, &first);
    if (status == CMPOOL_OK && !pool->segmented) {
        status = cmi_source_reserve_range(pool, 2 * device->total_bytes);
    }
    if (status != CMPOOL_OK) {
        cmi_call call;
        cmi_device_call_begin_anyway(device, &call);
        cmi_arena_fini(&pool->arena);
        cmi_device_call_end(device, &call);
        cmi_heap_fini(&pool->heap);
        cmi_ring_close(&pool->ring);
        cmi_meta_free(pool->owners, pool->owner_room * sizeof *pool->owners);
        cmi_meta_free(pool, sizeof *pool);
        return status;
    }
    if (pool->segmented && options->backend != CMI_BACKEND_MALLOC) {
        cmi_log(CMI_LOG_WARNING, "device %d has no virtual memory management: memory comes in segments, as with backend:malloc",
                device->ordinal);
    }
    pool->next = device->pools;
    device->pools = pool;
    cmi_returns_pool_made(pool);
    *out = pool;
    return CMPOOL_OK;
}

void cmi_pool_unpin(cmi_pool *pool)
{
    if (--pool->pins == 0) {
        pthread_cond_broadcast(&pool->device->landed);
    }
}

static void unlink_pool(cmi_device *device, const cmi_pool *pool)
{
    cmi_pool **link = &device->pools;
    while (*link != pool) {
        link = &(*link)->next;
    }
    *link = pool->next;
}

cmpool_status cmi_pool_destroy(cmi_pool *pool)
{
    cmi_device *device = pool->device;
    pool->dying = true;
    cmi_cache_end_all(pool);
    uint64_t released = 0;
    cmpool_status status = cmi_trim_pool(pool, 0, true, &released);
    if (status != CMPOOL_OK) { /* memory whose use was not seen done must not be unmapped: waiting is worth a second attempt */
        status = cmi_trim_pool(pool, 0, true, &released);
    }
    if (pool->reserved_pages || pool->counters.stale_slots) {
        status = status == CMPOOL_OK ? CMPOOL_ERR_DRIVER : status;
        cmi_trim_abandon(pool);
    }
    unlink_pool(device, pool); /* before its ranges go: other threads walk the list meanwhile */
    cmi_call call;
    cmi_device_call_begin_anyway(device, &call);
    cmi_arena_fini(&pool->arena); /* frees the records; what the driver refuses is counted */
    cmi_device_call_end(device, &call);
    cmi_returns_pool_gone(device);
    for (uint32_t i = 0; i < pool->owner_count; i++) {
        for (unsigned small = 0; small < 2; small++) {
            cmi_meta_free(pool->owners[i].of_stream[small], pool->owners[i].of_stream_room * sizeof(uint32_t));
        }
    }
    cmi_meta_free(pool->regions, pool->region_room * sizeof *pool->regions);
    cmi_heap_fini(&pool->heap);
    cmi_ring_close(&pool->ring);
    cmi_notes_fini(&pool->notes);
    cmi_meta_free(pool->owners, pool->owner_room * sizeof *pool->owners);
    cmi_meta_free(pool->use, pool->use_room);
    cmi_meta_free(pool, sizeof *pool);
    return status;
}

cmpool_status cmi_pool_hold(cmi_pool *pool, uint64_t pages)
{
    return pages > pool->reserved_pages ? cmi_ladder_hold(pool, pages - pool->reserved_pages) : CMPOOL_OK;
}

bool cmi_pool_use_room(cmi_pool *pool)
{
    uint32_t room = pool->heap.binset_count + 1;
    if (room <= pool->use_room) {
        return true;
    }
    uint8_t *grown = cmi_meta_resize(pool->use, pool->use_room, 2 * room);
    if (grown) {
        pool->use = grown;
        pool->use_room = 2 * room;
    }
    return grown != NULL;
}

bool cmi_pool_make_ready(cmi_pool *pool)
{
    return cmi_heap_reserve_records(&pool->heap, 2 * CMI_HEAP_STEP_RECORDS) && cmi_stamp_reserve(pool->device, 2 * CMI_HEAP_STEP_RECORDS);
}

/* For the last step of a climb, and for those of its caller. */
enum { CLIMB_RECORDS = 4 * CMI_HEAP_STEP_RECORDS };

bool cmi_pool_earmark(cmi_pool *pool)
{
    if (!cmi_stamp_reserve(pool->device, CLIMB_RECORDS) || !cmi_heap_earmark(&pool->heap, CLIMB_RECORDS)) {
        return false;
    }
    pool->device->earmarked_stamps += CLIMB_RECORDS;
    return true;
}

void cmi_pool_end_earmark(cmi_pool *pool)
{
    pool->device->earmarked_stamps -= CLIMB_RECORDS;
    cmi_heap_end_earmark(&pool->heap, CLIMB_RECORDS);
}

cmpool_status cmi_pool_place(const cmi_pool *pool, uint64_t address, cmi_place *place)
{
    const cmi_heap *heap = &pool->heap;
    const cmi_slab_map *slabs = cmi_heap_slab_map(heap, address);
    const cmi_slab *slab = slabs ? cmi_slab_at(slabs, address) : NULL;
    cmi_block_id id = slab ? slab->block : cmi_heap_find(heap, address);
    if (!id) {
        return CMPOOL_ERR_NOT_OURS;
    }
    const cmi_block *block = cmi_heap_block(heap, id);
    *place = (cmi_place){.block = id, .base = block->offset, .bytes = block->bytes, .requested = block->bytes - block->slack};
    if (block->kind == CMI_BLOCK_LIVE) {
        place->owner = cmi_heap_binset(heap, block->binset)->owner;
        if (cmi_heap_is_held(block)) {
            return CMPOOL_ERR_ALREADY_FREED;
        }
        return address == block->offset ? CMPOOL_OK : CMPOOL_ERR_INTERIOR_POINTER;
    }
    if (block->kind != CMI_BLOCK_SLAB) {
        return CMPOOL_ERR_ALREADY_FREED;
    }
    bool exact;
    place->slab = cmi_heap_slot_of(heap, id, address, &place->slot, &exact);
    if (place->slot >= place->slab->slot_count || !cmi_slab_is_live(place->slab, place->slot)) {
        return CMPOOL_ERR_ALREADY_FREED;
    }
    place->bytes = place->requested = place->slab->slot_bytes;
    place->base = block->offset + place->slot * place->bytes;
    place->owner = cmi_heap_binset(heap, block->binset)->owner;
    return exact ? CMPOOL_OK : CMPOOL_ERR_INTERIOR_POINTER;
}

void cmi_pool_live_changed(cmi_pool *pool, uint32_t number, int64_t bytes, int64_t requested)
{
    cmi_counters *counters = &pool->counters;
    cmi_owner *owner = &pool->owners[number];
    int64_t blocks = bytes > 0 ? 1 : -1;
    cmi_cache_note_peaks(pool, number);
    counters->live_bytes += (uint64_t)bytes;
    counters->live_blocks += (uint64_t)blocks;
    counters->requested_bytes += (uint64_t)requested;
    owner->live_bytes += (uint64_t)bytes;
    owner->live_blocks += (uint64_t)blocks;
    owner->requested_bytes += (uint64_t)requested;
    if (bytes > 0) {
        counters->allocations++;
        owner->allocations++;
        if (counters->live_bytes > counters->peak_live_bytes || owner->live_bytes > owner->peak_live_bytes) {
            cmi_cache_note_peaks(pool, number);
        }
    } else {
        counters->frees++;
        owner->frees++;
    }
}
