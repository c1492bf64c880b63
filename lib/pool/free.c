/*
 * Giving back: which streams a freed block has to wait for, and where its bytes go. Owns no data; runs under the device lock, dropped only
 * to record an event once a batch of frees has gathered, or to ask whether a graph set's stream is captured; called by api.
 */
#include "pool/cache.h"
#include "pool/pause.h"
#include "pool/region.h"

enum { FREES_PER_FENCE = 64, FREES_PER_EPOCH = 256 };
static const uint64_t BYTES_PER_FENCE = UINT64_C(64) << 20;

static uint32_t uses_of(const cmi_pool *pool, const cmi_place *place)
{
    if (place->slab) {
        return place->slab->uses ? place->slab->uses[place->slot] : CMI_NO_STAMP;
    }
    return cmi_heap_block(&pool->heap, place->block)->stamp;
}

static void set_uses(cmi_pool *pool, const cmi_place *place, uint32_t stamp)
{
    if (place->slab) {
        place->slab->uses[place->slot] = stamp;
    } else {
        cmi_heap_block(&pool->heap, place->block)->stamp = stamp;
        if (!CMI_MUTATION(LEASE_OUTLIVES_USE)) {
            cmi_heap_end_lease(cmi_heap_block(&pool->heap, place->block));
        }
    }
}

/* Everything that was done to the block is ordered before `ticket` on each stream that touched it. alone: no stamp is needed where that is
 * one stream. */
static uint32_t stamp_of_free(cmi_device *device, uint32_t uses, uint32_t first, uint32_t last, uint64_t ticket, bool alone)
{
    if (first == CMI_NO_STREAM || last == CMI_NO_STREAM) { /* any stream may have used it */
        return cmi_stamp_join(device, uses, cmi_stamp_new_whole(device));
    }
    if (uses == CMI_NO_STAMP && first == last && alone) {
        return CMI_NO_STAMP;
    }
    uint32_t stamp = cmi_stamp_add(device, uses, first, ticket);
    stamp = cmi_stamp_add(device, stamp, last, ticket);
    cmi_stamp *all = cmi_stamp_get(device, stamp);
    for (unsigned i = 0; i < all->count; i++) {
        all->entries[i].ticket = ticket;
        if (!all->whole) {
            device->streams[all->entries[i].stream].last_free = ticket;
        }
    }
    return stamp;
}

uint32_t cmi_pool_stamp_of_free(cmi_device *device, uint32_t uses, uint32_t first, uint32_t last, uint64_t ticket)
{
    return stamp_of_free(device, uses, first, last, ticket, true);
}

/* Of a set's memory only what a capture of the set frees has no work of the program behind it. May drop and retake the lock. */
static cmpool_status may_do_without_stamp(cmi_pool *pool, uint32_t owner, uint32_t stream, CUstream handle, bool *may)
{
    *may = pool->owners[owner].kind != CMI_OWNER_CAPTURE || CMI_MUTATION(CAPTURE_AFTER_EAGER_FREE);
    return *may || !pool->owners[owner].captures || stream == CMI_NO_STREAM ? CMPOOL_OK
                                                                            : cmi_capture_ask(pool->device, stream, handle, may);
}

cmpool_status cmi_pool_free(cmi_pool *pool, const cmi_ask *ask, uint64_t address)
{
    uint32_t owner = ask->owner, stream = ask->stream;
    CUstream handle = ask->handle;
    cmi_device *device = pool->device;
    cmi_heap *heap = &pool->heap;
    cmi_place place;
    bool alone = true;
    cmpool_status status = cmi_pool_place_for(pool, owner, address, &place);
    if (status == CMPOOL_OK && pool->owners[place.owner].kind == CMI_OWNER_CAPTURE) {
        status = may_do_without_stamp(pool, place.owner, stream, handle, &alone);
        if (status == CMPOOL_OK) { /* the lock may have been dropped meanwhile */
            status = cmi_pool_place_for(pool, owner, address, &place);
        }
    }
    if (status != CMPOOL_OK) {
        return status;
    }
    if (pool->region_count && cmi_region_at(pool, address)) {
        return CMPOOL_ERR_UNSUPPORTED; /* it ends by cmpool_region_destroy */
    }
    uint32_t first_set = cmi_heap_block(heap, place.block)->binset;
    uint32_t first = cmi_heap_binset(heap, first_set)->key;
    unsigned small = cmi_heap_binset(heap, first_set)->small;
    if (!cmi_pool_make_ready(pool)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (cmi_pool_is_watched(pool)) {
        cmi_history_free(pool, &place, stream);
    }
    uint64_t ticket = device->ticket;
    uint32_t uses = uses_of(pool, &place);
    if (uses != CMI_NO_STAMP) {
        set_uses(pool, &place, CMI_NO_STAMP);
    }
    if (pool->pause && cmi_pause_holds(pool, place.base, place.bytes)) { /* nothing on the device uses what has no page */
        cmi_stamp_drop(device, uses);
        cmi_pause_free(pool, &place);
        cmi_pool_live_changed(pool, place.owner, -(int64_t)place.bytes, -(int64_t)place.requested);
        cmi_pool_must_be_valid(pool);
        return CMPOOL_OK;
    }
    uint32_t stamp = stamp_of_free(device, uses, first, stream, ticket, alone);
    cmi_stream_note_frees(device, stream, ticket, 1, place.bytes);
    if (pool->options.idle_release) {
        cmi_returns_note_free(pool, place.base, place.bytes);
    }
    if (place.slab && stamp == CMI_NO_STAMP) {
        cmi_cache_after_free(pool, ask, place.slab);
    }
    bool leaves = !place.slab && cmi_pool_is_exportable(pool, cmi_heap_block(heap, place.block));
    if (place.slab) {
        cmi_heap_slot_free(heap, place.block, place.slot, ticket, stamp);
    } else if (leaves) {
        cmi_pool_leave(pool, place.block, stamp != CMI_NO_STAMP ? stamp : cmi_stamp_new(device, stream, ticket));
    } else if (stamp == CMI_NO_STAMP) {
        cmi_heap_make_free(heap, place.block, first_set, ticket, CMI_HEAP_NO_STAMP);
    } else {
        cmi_heap_make_free(heap, place.block, pool->owners[place.owner].mixed[small], ticket, stamp);
    }
    cmi_pool_live_changed(pool, place.owner, -(int64_t)place.bytes, -(int64_t)place.requested);
    cmi_pool_must_be_valid(pool);
    if (leaves) {
        cmi_pool_release_soon(pool, stream, handle);
        return CMPOOL_OK;
    }
    cmi_stream *record = &device->streams[stream];
    if (stream == CMI_NO_STREAM) {
        /* An epoch of frees that name no stream is closed when its memory is wanted, or when it is long. */
        if (record->open_frees >= FREES_PER_EPOCH || record->open_bytes >= BYTES_PER_FENCE) {
            record->open_frees = 0;
            record->open_bytes = 0;
            (void)cmi_fence_contexts(device, pool);
        }
    } else if (cmi_streams_are_many(device) && (record->open_frees >= FREES_PER_FENCE || record->open_bytes >= BYTES_PER_FENCE)) {
        (void)cmi_fence_stream(device, pool, stream, handle); /* a failure leaves the frees uncovered: a context event covers them later */
    }
    return CMPOOL_OK;
}

cmpool_status cmi_pool_record_use(cmi_pool *pool, uint64_t address, uint32_t stream)
{
    cmi_place place;
    cmpool_status status = cmi_pool_place(pool, address, &place);
    if (status != CMPOOL_OK) {
        return status;
    }
    uint32_t first = cmi_heap_binset(&pool->heap, cmi_heap_block(&pool->heap, place.block)->binset)->key;
    if (first == stream || first == CMI_NO_STREAM || CMI_MUTATION(USE_FORGOTTEN)) {
        pool->counters.uses_recorded++; /* it is waited for anyway */
        return CMPOOL_OK;
    }
    if (place.slab && !place.slab->uses) {
        size_t bytes = place.slab->slot_count * sizeof *place.slab->uses;
        place.slab->uses = cmi_meta_alloc(bytes);
        if (!place.slab->uses) {
            return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
        }
        for (unsigned i = 0; i < place.slab->slot_count; i++) {
            place.slab->uses[i] = CMI_NO_STAMP;
        }
    }
    if (!cmi_stamp_reserve(pool->device, 2)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    pool->device->streams[stream].keeps = true;
    set_uses(pool, &place, cmi_stamp_add(pool->device, uses_of(pool, &place), stream, 0));
    pool->counters.uses_recorded++;
    if (cmi_pool_is_watched(pool)) {
        cmi_history_use(pool, &place, stream);
    }
    return CMPOOL_OK;
}
