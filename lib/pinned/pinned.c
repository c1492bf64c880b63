/*
 * The pinned memory of a pool from its first request to its end: frees, memory whose work is not finished, how much is held. Owns the
 * record of it; guarded by the device lock; called by api, and by request.c.
 */
#include "pinned/pinned.h"

/* What one request, free or promotion may need besides (arena.c: ARENA_RECORDS). */
enum { RECORDS = 10 * CMI_HEAP_STEP_RECORDS };

cmi_pinned *cmi_pinned_open(cmi_pool *pool)
{
    if (!pool->pinned) {
        cmi_pinned *pinned = cmi_meta_alloc(sizeof *pinned);
        if (!pinned) {
            return NULL;
        }
        cmi_heap_source source;
        cmi_stamp_fill_source(pool->device, &source);
        source.page_bytes = CMI_PINNED_PAGE;
        cmi_heap_init(&pinned->heap, &source);
        pinned->pool = pool;
        pinned->figures.limit_bytes = pool->options.pinned_limit;
        pool->pinned = pinned;
    }
    return pool->pinned;
}

bool cmi_pinned_make_ready(cmi_pinned *pinned)
{
    return cmi_heap_reserve_records(&pinned->heap, RECORDS) && cmi_stamp_reserve(pinned->pool->device, RECORDS) &&
           cmi_pinned_reserve_block(pinned);
}

void cmi_pinned_must_be_valid(const cmi_pinned *pinned)
{
#ifdef CMI_VALIDATE
    const char *fault = cmi_pinned_validate(pinned->pool);
    if (fault) {
        cmi_log(CMI_LOG_ERROR, "validator: pinned memory: %s", fault);
        __builtin_trap(); /* only in builds made for tests */
    }
#else
    (void)pinned;
#endif
}

void cmi_pinned_begin_change(cmi_pinned *pinned)
{
    cmi_device *device = pinned->pool->device;
    while (pinned->changing) {
        pthread_cond_wait(&device->landed, &device->lock.mutex);
    }
    pinned->changing = true;
}

void cmi_pinned_end_change(cmi_pinned *pinned)
{
    pinned->changing = false;
    pthread_cond_broadcast(&pinned->pool->device->landed);
    cmi_pinned_must_be_valid(pinned);
}

/* ---- memory whose work is done ---------------------------------------------------------------------------------------------------- */

/* false: no host memory to look at all of it. */
static bool promote_small(cmi_pinned *pinned)
{
    uint32_t kept = 0;
    bool complete = true;
    for (uint32_t i = 0; i < pinned->pending_count; i++) {
        cmi_pinned_block *block = cmi_pinned_find_block(pinned, pinned->pending[i]);
        complete = complete && cmi_heap_reserve_records(&pinned->heap, RECORDS);
        if (!complete || !cmi_stamp_is_done(pinned->pool->device, block->stamp)) {
            pinned->pending[kept++] = pinned->pending[i];
            continue;
        }
        cmi_stamp_drop(pinned->pool->device, block->stamp);
        pinned->small_pending_bytes -= block->bytes;
        cmi_pinned_arena_free(pinned, block->group, block->address);
        cmi_pinned_drop_block(pinned, block);
    }
    pinned->pending_count = kept;
    return complete;
}

static void promote(cmi_pinned *pinned)
{
    cmi_heap *heap = &pinned->heap;
    const cmi_device *device = pinned->pool->device;
    if (pinned->promoted_at == device->done_changes) {
        return;
    }
    bool complete = promote_small(pinned);
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (block->kind != CMI_BLOCK_FREE || block->stamp == CMI_HEAP_NO_STAMP || !cmi_stamp_is_done(device, block->stamp)) {
                continue;
            }
            if (!cmi_heap_reserve_records(heap, CMI_HEAP_STEP_RECORDS)) {
                complete = false;
                break;
            }
            uint32_t owner = cmi_heap_binset(heap, cmi_heap_block(heap, id)->binset)->owner;
            id = cmi_heap_rebin(heap, id, pinned->groups[owner].done, 0, CMI_HEAP_NO_STAMP);
        }
    }
    if (complete) {
        pinned->promoted_at = device->done_changes;
    }
    cmi_pinned_must_be_valid(pinned);
}

static bool is_covered(const cmi_device *device, uint64_t ticket)
{
    for (uint32_t i = 0; i < device->context_count; i++) {
        if (device->contexts[i].covered < ticket) {
            return false;
        }
    }
    return true;
}

void cmi_pinned_settle(cmi_pinned *pinned)
{
    cmi_device *device = pinned->pool->device;
    if (!cmi_pinned_pending_bytes(pinned)) {
        return;
    }
    if (!is_covered(device, pinned->uncovered)) {
        (void)cmi_fence_contexts(device, pinned->pool); /* where it cannot be, the host waits when memory is short */
    }
    (void)cmi_fence_poll(device, pinned->pool);
    promote(pinned);
}

cmpool_status cmi_pinned_wait(cmi_pinned *pinned)
{
    cmpool_status status = CMPOOL_OK;
    if (cmi_pinned_pending_bytes(pinned)) {
        status = cmi_fence_host_wait(pinned->pool->device, pinned->pool);
        pinned->figures.host_waits += status == CMPOOL_OK;
        promote(pinned);
    }
    return status;
}

/* ---- one free --------------------------------------------------------------------------------------------------------------------- */

/* The block that has the address inside; a search of all of them, for messages about bad pointers. */
static bool is_inside(const cmi_pinned *pinned, uint64_t address, cmi_pinned_block *block)
{
    for (uint32_t i = 0; i < pinned->table_room; i++) {
        const cmi_pinned_block *at = &pinned->table[i];
        if (at->state == CMI_PINNED_LIVE && address - at->address < at->bytes) {
            *block = *at;
            return true;
        }
    }
    return false;
}

cmpool_status cmi_pinned_place(const cmi_pool *pool, uint64_t address, cmi_pinned_block *block)
{
    const cmi_pinned *pinned = pool->pinned;
    if (!pinned || !cmi_pinned_extent_of(pinned, address)) {
        return CMPOOL_ERR_NOT_OURS;
    }
    const cmi_pinned_block *found = cmi_pinned_find_block(pinned, address);
    if (found && found->state == CMI_PINNED_LIVE) {
        *block = *found;
        return CMPOOL_OK;
    }
    return is_inside(pinned, address, block) ? CMPOOL_ERR_INTERIOR_POINTER : CMPOOL_ERR_ALREADY_FREED;
}

/* All that was done to the block on any stream it named, or on any stream at all, up to now. */
static uint32_t stamp_of_free(cmi_device *device, const cmi_pinned_block *block, uint32_t stream)
{
    if (block->unordered || stream == CMI_NO_STREAM) {
        return cmi_stamp_join(device, block->stamp, cmi_stamp_new_whole(device));
    }
    uint32_t number = cmi_stamp_add(device, block->stamp, stream, device->ticket);
    cmi_stamp *stamp = cmi_stamp_get(device, number);
    for (unsigned i = 0; i < stamp->count; i++) {
        stamp->entries[i].ticket = device->ticket;
        if (!stamp->whole) {
            device->streams[stamp->entries[i].stream].last_free = device->ticket;
        }
    }
    return number;
}

cmpool_status cmi_pinned_free(cmi_pool *pool, uint64_t address, uint32_t stream, CUstream handle)
{
    cmi_device *device = pool->device;
    cmi_pinned *pinned = pool->pinned;
    cmi_pinned_block block;
    cmpool_status status = cmi_pinned_place(pool, address, &block);
    if (status != CMPOOL_OK) {
        return status;
    }
    if (!cmi_pinned_make_ready(pinned)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_pinned_block *record = cmi_pinned_find_block(pinned, address);
    uint64_t ticket = device->ticket;
    record->stamp = stamp_of_free(device, record, stream);
    const cmi_stamp *stamp = cmi_stamp_get(device, record->stamp);
    bool several = stamp->whole || stamp->count > 1;
    if (record->small) {
        record->state = CMI_PINNED_PENDING;
        pinned->pending[pinned->pending_count++] = address;
        pinned->small_pending_bytes += record->bytes;
    } else {
        cmi_block_id id = cmi_heap_find(&pinned->heap, address);
        cmi_heap_make_free(&pinned->heap, id, pinned->groups[record->group].mixed, ticket, record->stamp);
        cmi_pinned_drop_block(pinned, record);
    }
    pinned->promoted_at = UINT64_MAX; /* there is something new to look through */
    pinned->figures.live_bytes -= block.bytes;
    pinned->figures.live_blocks--;
    pinned->figures.requested_bytes -= block.requested;
    pinned->figures.frees++;
    if (several) { /* an event of every context, when the memory is wanted */
        pinned->uncovered = ticket;
    }
    if (stream != CMI_NO_STREAM && cmi_fence_stream(device, pool, stream, handle) != CMPOOL_OK) {
        pinned->uncovered = cmi_max_u64(pinned->uncovered, ticket);
    }
    cmi_pinned_must_be_valid(pinned);
    return CMPOOL_OK;
}

cmpool_status cmi_pinned_record_use(cmi_pool *pool, uint64_t address, uint32_t stream)
{
    cmi_pinned_block block;
    cmpool_status status = cmi_pinned_place(pool, address, &block);
    if (status != CMPOOL_OK || block.unordered) { /* without a stream every one is waited for */
        return status;
    }
    if (!cmi_stamp_reserve(pool->device, 2)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    pool->device->streams[stream].keeps = true;
    cmi_pinned_block *record = cmi_pinned_find_block(pool->pinned, address);
    record->stamp = cmi_stamp_add(pool->device, record->stamp, stream, 0);
    return CMPOOL_OK;
}

/* ---- how much is held ------------------------------------------------------------------------------------------------------------- */

cmpool_status cmi_pinned_trim(cmi_pool *pool, uint64_t keep, uint64_t *released)
{
    cmi_pinned *pinned = pool->pinned;
    *released = 0;
    if (!pinned) {
        return CMPOOL_OK;
    }
    if (cmi_capture_is_live()) {
        return CMPOOL_ERR_CAPTURE;
    }
    cmi_pinned_begin_change(pinned);
    uint64_t before = pinned->figures.held_bytes;
    cmi_pinned_settle(pinned);
    cmpool_status status = cmi_pinned_shrink(pinned, keep);
    if (status == CMPOOL_OK && pinned->figures.held_bytes > keep && cmi_pinned_pending_bytes(pinned)) {
        status = cmi_pinned_wait(pinned);
        status = status == CMPOOL_OK ? cmi_pinned_shrink(pinned, keep) : status;
    }
    *released = before - pinned->figures.held_bytes;
    cmi_pinned_end_change(pinned);
    return status;
}

cmpool_status cmi_pinned_set_limit(cmi_pool *pool, uint64_t bytes)
{
    uint64_t released;
    if (!cmi_pinned_open(pool)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    pool->pinned->figures.limit_bytes = bytes;
    if (bytes && pool->pinned->figures.held_bytes > bytes) {
        (void)cmi_pinned_trim(pool, bytes, &released); /* live blocks may hold it above; then nothing new is taken */
    }
    return CMPOOL_OK;
}

/* What is not seen done cannot be given back; the stamps go all the same, since the device may be on its way out. */
static void abandon(cmi_pinned *pinned)
{
    cmi_device *device = pinned->pool->device;
    for (uint32_t i = 0; i < pinned->pending_count; i++) {
        cmi_stamp_drop(device, cmi_pinned_find_block(pinned, pinned->pending[i])->stamp);
    }
    for (uint32_t i = 0; i < pinned->heap.space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(&pinned->heap, i); id; id = cmi_heap_block(&pinned->heap, id)->next) {
            const cmi_block *block = cmi_heap_block(&pinned->heap, id);
            if (block->kind == CMI_BLOCK_FREE) {
                cmi_stamp_drop(device, block->stamp);
            }
        }
    }
}

cmpool_status cmi_pinned_close(cmi_pool *pool)
{
    cmi_pinned *pinned = pool->pinned;
    if (!pinned) {
        return CMPOOL_OK;
    }
    cmpool_status status = CMPOOL_OK;
    for (int tries = 0; tries < 2 && pinned->figures.held_bytes; tries++) { /* whatever failed is worth a second attempt */
        status = cmi_pinned_wait(pinned);
        cmpool_status shrunk = cmi_pinned_shrink(pinned, 0);
        status = status == CMPOOL_OK ? shrunk : status;
    }
    if (pinned->figures.held_bytes || pinned->figures.stranded_bytes) {
        status = status == CMPOOL_OK ? CMPOOL_ERR_DRIVER : status;
    }
    abandon(pinned);
    for (unsigned i = 0; i < CMI_PINNED_GROUPS; i++) {
        cmi_pinned_arena_close(pinned, i);
    }
    cmi_heap_fini(&pinned->heap);
    cmi_meta_free(pinned->extents, pinned->extent_room * sizeof *pinned->extents);
    cmi_meta_free(pinned->table, pinned->table_room * sizeof *pinned->table);
    cmi_meta_free(pinned->pending, pinned->pending_room * sizeof *pinned->pending);
    cmi_meta_free(pinned, sizeof *pinned);
    pool->pinned = NULL;
    return status;
}
