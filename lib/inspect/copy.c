/*
 * Copies of a device and its pools: what a snapshot is made from. Owns the copy, one piece of metadata memory; takes the device lock once
 * to learn how much that is, and once more to fill it. The pages of the copy are touched in between, so that under the lock there is
 * nothing but memcpy. Called by snapshot.c.
 */
#include "inspect/copy.h"

#include "pool/cache.h"
#include "pool/region.h"

#include <string.h>

enum { HOST_PAGE = 4096, ALIGNMENT = 64 };

/* Memory that is given out from front to back; without a base it only counts. */
typedef struct store {
    char *base;
    size_t room, used;
    bool full;
} store;

static void *get(store *from, size_t bytes)
{
    size_t at = from->used;
    from->used += cmi_round_up(bytes, ALIGNMENT);
    from->full = from->full || from->used > from->room;
    return from->base && !from->full ? from->base + at : NULL;
}

static void *keep(store *into, const void *from, size_t bytes)
{
    void *to = get(into, bytes);
    if (to && bytes) {
        memcpy(to, from, bytes);
    }
    return to;
}

/* An array of pointers to records of one length, the records themselves one behind the other. */
static void *keep_each(store *into, void *const *from, uint32_t first, uint32_t count, size_t bytes)
{
    void **to = get(into, count * sizeof *to);
    size_t stride = cmi_round_up(bytes, ALIGNMENT);
    char *records = get(into, (count - first) * stride);
    for (uint32_t i = first; to && records && i < count; i++) {
        to[i] = from[i] ? memcpy(records + (i - first) * stride, from[i], bytes) : NULL; /* numbers that are not in use */
    }
    return to;
}

static void keep_heap(store *into, const cmi_heap *heap, cmi_heap *to)
{
    *to = *heap;
    to->blocks = keep(into, heap->blocks, heap->block_room * sizeof *heap->blocks);
    to->binsets = keep_each(into, (void *const *)heap->binsets, 1, heap->binset_count + 1, sizeof **heap->binsets); /* without their bins */
    to->slabs = keep_each(into, (void *const *)heap->slabs, 1, heap->slab_count + 1, sizeof **heap->slabs);
    to->spaces = keep(into, heap->spaces, heap->space_count * sizeof *heap->spaces);
    for (uint32_t i = 0; to->spaces && i < heap->space_count; i++) {
        cmi_space *space = &to->spaces[i]; /* the maps are the pool's, which goes on changing them */
        space->idle_map = space->stale_map = space->free_map = space->hole_map = space->seam_map = NULL;
    }
}

static void keep_pool(store *into, const cmi_pool *pool, cmi_pool_copy *to)
{
    cmi_pool_copy copy = {.pool = *pool};
    keep_heap(into, &pool->heap, &copy.pool.heap);
    copy.pool.owners = keep(into, pool->owners, pool->owner_count * sizeof *pool->owners);
    copy.pool.regions = keep(into, pool->regions, pool->region_count * sizeof *pool->regions);
    copy.pool.notes.places = keep(into, pool->notes.places, pool->notes.room * sizeof *pool->notes.places);
    copy.ranges = get(into, pool->arena.range_count * sizeof *copy.ranges);
    for (uint32_t i = 0; i < pool->arena.range_count; i++) {
        const cmi_range *range = pool->arena.ranges[i];
        cmi_slot *slots = keep(into, range->slots, range->slot_count * sizeof *slots);
        if (copy.ranges) {
            copy.ranges[i] = *range;
            copy.ranges[i].slots = slots;
        }
    }
    copy.event_count = cmi_ring_held(&pool->ring);
    copy.events_lost = cmi_ring_lost(&pool->ring);
    copy.events = get(into, copy.event_count * sizeof *copy.events);
    if (copy.events) {
        cmi_ring_copy(&pool->ring, copy.events, copy.event_count);
    }
    copy.pinned = cmi_pinned_figures_of(pool);
    if (to) {
        *to = copy;
    }
}

/* Device lock held. */
static void keep_device(store *into, const cmi_device *device, cmi_copy *copy)
{
    copy->device.streams = keep(into, device->streams, device->stream_count * sizeof *device->streams);
    copy->device.contexts = keep(into, device->contexts, device->context_count * sizeof *device->contexts);
    copy->device.stamp_chunks =
        keep_each(into, (void *const *)device->stamp_chunks, 0, device->stamp_chunk_count, sizeof(cmi_stamp) * CMI_STAMP_CHUNK);
    copy->device.ordinal = device->ordinal;
    copy->device.total_bytes = device->total_bytes;
    copy->device.page_bytes = device->page_bytes;
    copy->device.stream_count = device->stream_count;
    copy->device.context_count = device->context_count;
    copy->device.stamp_chunk_count = device->stamp_chunk_count;
    copy->device.unretired_streams = device->unretired_streams;
    copy->pool_count = 0;
    for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
        copy->pool_count += !pool->dying;
    }
    copy->pools = get(into, copy->pool_count * sizeof *copy->pools);
    uint32_t i = 0;
    for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
        if (!pool->dying) {
            keep_pool(into, pool, copy->pools ? &copy->pools[i++] : NULL);
        }
    }
    if (device->store) {
        cmi_store_counts counts;
        cmi_store_counts_get(device->store, &counts);
        copy->held_pages = cmi_store_pages(device->store);
        copy->mapped_slots = cmi_store_mappings(device->store);
        copy->stranded_pages = cmi_store_stranded(device->store) + counts.lost_ranges;
    }
    copy->time_ns = cmi_clock_ns();
}

/* The first touch of memory costs more than the copy: it is not done under the lock. */
static void touch(char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += HOST_PAGE) {
        ((volatile char *)memory)[i] = 0;
    }
}

static uint64_t longer(uint64_t than, uint64_t since)
{
    uint64_t now = cmi_clock_ns();
    return now - since > than ? now - since : than;
}

bool cmi_copy_take(cmi_device *device, bool ask, cmi_copy *copy)
{
    *copy = (cmi_copy){.driver_free_bytes = UINT64_MAX};
    cmi_lock_acquire(&device->lock);
    if (ask) {
        copy->driver_free_bytes = device->pools ? cmi_device_ask_free(device) : UINT64_MAX;
    }
    cmi_cache_shut_all(device); /* what is cached is free, and nobody writes to what is copied */
    uint64_t stopped = 0, since = cmi_clock_ns();
    for (;;) {
        store count = {.room = SIZE_MAX}, into;
        keep_device(&count, device, copy);
        if (!copy->pool_count) {
            break;
        }
        cmi_cache_open(device);
        cmi_lock_release(&device->lock);
        stopped = longer(stopped, since);
        cmi_copy_free(copy);
        copy->bytes = count.used + count.used / 8 + HOST_PAGE; /* the pools go on meanwhile */
        copy->memory = cmi_meta_alloc(copy->bytes);
        if (!copy->memory) {
            return false;
        }
        touch(copy->memory, copy->bytes);
        cmi_lock_acquire(&device->lock);
        since = cmi_clock_ns();
        cmi_cache_shut_all(device);
        into = (store){copy->memory, copy->bytes, 0, false};
        keep_device(&into, device, copy);
        if (!into.full) {
            break;
        }
    }
    cmi_cache_open(device);
    cmi_lock_release(&device->lock);
    copy->stopped_ns = longer(stopped, since);
    return copy->pool_count != 0;
}

void cmi_copy_free(cmi_copy *copy)
{
    cmi_meta_free(copy->memory, copy->bytes);
    copy->memory = NULL;
    copy->bytes = 0;
}

bool cmi_copy_idle(const cmi_copy *copy, const cmi_pool_copy *pool, uint64_t *idle, uint64_t *longest)
{
    const cmi_heap *heap = &pool->pool.heap;
    size_t room = heap->binset_count + 1;
    uint8_t *use = cmi_meta_alloc(room);
    if (use) {
        memset(use, CMI_USE_PAGES, room);
        cmi_heap_idle_runs(heap, use, 0, 0, NULL, 0, idle);
        *idle *= copy->device.page_bytes;
        *longest = cmi_heap_longest_free(heap, use);
        cmi_meta_free(use, room);
    }
    return use != NULL;
}
