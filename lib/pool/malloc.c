/*
 * One request, from the fastest way to the slowest: a slot of the stream's own slabs, the bins, then the ladder. Owns no data; runs under
 * the device lock, which only the ladder drops; called by api.
 */
#include "pool/cache.h"

/* The better fit of two bin sets: own memory and what is free for everybody. */
static cmi_block_id best_of_two(const cmi_heap *heap, uint32_t own, uint32_t done, uint64_t bytes, uint64_t align)
{
    cmi_block_id a = cmi_heap_best_fit(heap, own, bytes, align), b = cmi_heap_best_fit(heap, done, bytes, align);
    if (!a || !b) {
        return a ? a : b;
    }
    const cmi_block *one = cmi_heap_block(heap, a), *other = cmi_heap_block(heap, b);
    bool first = one->bytes != other->bytes ? one->bytes < other->bytes : one->offset < other->offset;
    return first ? a : b;
}

static cmi_block_id take_aligned(cmi_heap *heap, cmi_block_id id, uint64_t bytes, uint64_t align)
{
    return cmi_heap_take(heap, id, cmi_round_up(cmi_heap_block(heap, id)->offset, align), bytes);
}

cmi_block_id cmi_pool_take_fit(cmi_pool *pool, const cmi_ask *ask, uint32_t own)
{
    cmi_block_id id = best_of_two(&pool->heap, own, pool->owners[ask->owner].done[0], ask->bytes, ask->align);
    return id ? take_aligned(&pool->heap, id, ask->bytes, ask->align) : 0;
}

void cmi_pool_give_back(cmi_pool *pool, cmi_block_id block, uint32_t binset)
{
    cmi_heap_make_free(&pool->heap, block, binset, cmi_heap_block(&pool->heap, block)->ticket, CMI_HEAP_NO_STAMP);
}

void cmi_pool_hand_out(cmi_pool *pool, const cmi_ask *ask, cmi_block_id id, uint32_t binset, uint64_t *address)
{
    cmi_block *block = cmi_heap_block(&pool->heap, id);
    cmi_stamp_drop(pool->device, block->stamp); /* its taker has been made to wait */
    cmi_heap_make_live(&pool->heap, id, binset, ask->requested, ask->tag, pool->ring.capacity ? cmi_clock_ns() : 0);
    block->stack = ask->stack;
    *address = block->offset;
    cmi_pool_live_changed(pool, ask->owner, (int64_t)block->bytes, (int64_t)(block->bytes - block->slack));
}

static cmpool_status malloc_large(cmi_pool *pool, cmi_ask *ask, uint64_t *address)
{
    uint32_t own = cmi_owner_binset(pool, ask->owner, ask->stream, 0);
    if (!own) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmi_lease_put_back_mine(pool);
    cmi_block_id id = cmi_pool_take_fit(pool, ask, own);
    if (!id) {
        cmpool_status status = cmi_ladder_climb(pool, ask, &id);
        if (status != CMPOOL_OK) {
            return status;
        }
        own = cmi_owner_binset(pool, ask->owner, ask->stream, 0); /* the handle may have turned out to be another stream */
    }
    cmi_pool_hand_out(pool, ask, id, own, address);
    cmi_lease_grant(pool, ask, id);
    return CMPOOL_OK;
}

/* A slab's bytes out of a free block, within one page: else its free slots would hold a page that carries no live byte. 0: they do not fit.
 */
static cmi_block_id take_slab(cmi_heap *heap, cmi_block_id id, uint64_t bytes)
{
    const cmi_block *block = cmi_heap_block(heap, id);
    uint64_t offset = cmi_round_up(block->offset, CMI_SLAB_UNIT);
    if (offset >> heap->page_shift != (offset + bytes - 1) >> heap->page_shift) {
        offset = cmi_round_up(offset, heap->source.page_bytes);
    }
    return offset + bytes <= block->offset + block->bytes ? cmi_heap_take(heap, id, offset, bytes) : 0;
}

/* Cut a slab from the front of a BUSY block and give the rest back to the free space of small pages. */
static cmpool_status slab_from(cmi_pool *pool, const cmi_ask *ask, cmi_block_id id, uint32_t own_small, unsigned class_index)
{
    cmi_heap *heap = &pool->heap;
    cmi_block *block = cmi_heap_block(heap, id);
    const cmi_binset *set = cmi_heap_binset(heap, block->binset);
    uint32_t rest_set = set->kind == CMI_BINSET_DONE ? pool->owners[ask->owner].done[1] : own_small;
    uint64_t bytes = cmi_class_slab_bytes(class_index);
    if (block->bytes > bytes) {
        uint64_t offset = block->offset;
        id = cmi_heap_cut(heap, id, offset, bytes);
        cmi_pool_give_back(pool, cmi_heap_block(heap, id)->next, rest_set);
    }
    if (cmi_heap_make_slab(heap, id, own_small, class_index)) {
        return CMPOOL_OK;
    }
    cmi_pool_give_back(pool, id, rest_set);
    return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
}

/* A page that all contexts wait for, but that nobody has seen done, for a request that names no stream: a slab would forget that. */
static void hand_out_alone(cmi_pool *pool, const cmi_ask *ask, cmi_block_id id, uint64_t *address)
{
    cmi_heap *heap = &pool->heap;
    const cmi_owner *owner = &pool->owners[ask->owner];
    uint64_t offset = cmi_heap_block(heap, id)->offset;
    uint32_t stamp = cmi_stamp_copy(pool->device, cmi_heap_block(heap, id)->stamp);
    id = cmi_heap_cut(heap, id, offset, ask->bytes);
    cmi_heap_make_free(heap, cmi_heap_block(heap, id)->next, owner->mixed[1], pool->device->ticket, stamp);
    cmi_pool_hand_out(pool, ask, id, owner->done[1], address);
}

/* A whole page from the smallest free run that has one; 0 if there is none. */
static cmi_block_id whole_page(cmi_pool *pool, uint32_t own, uint32_t done)
{
    uint64_t page = pool->heap.source.page_bytes;
    cmi_block_id id = best_of_two(&pool->heap, own, done, page, page);
    return id ? take_aligned(&pool->heap, id, page, page) : 0;
}

/* A hole too small to hold a page: better for one small block than a page of its own. */
static cmi_block_id sub_page_hole(cmi_pool *pool, const cmi_ask *ask, uint32_t own, uint32_t done)
{
    cmi_heap *heap = &pool->heap;
    uint64_t page = heap->source.page_bytes;
    cmi_block_id id = best_of_two(heap, own, done, ask->bytes, ask->align);
    if (!id) {
        return 0;
    }
    const cmi_block *block = cmi_heap_block(heap, id);
    bool has_page = cmi_round_up(block->offset, page) + page <= block->offset + block->bytes;
    return has_page ? 0 : take_aligned(heap, id, ask->bytes, ask->align);
}

static cmpool_status malloc_small(cmi_pool *pool, cmi_ask *ask, uint64_t *address)
{
    cmi_heap *heap = &pool->heap;
    unsigned class_index = cmi_class_of(ask->bytes);
    uint32_t own_small = cmi_owner_binset(pool, ask->owner, ask->stream, 1);
    uint32_t own = own_small ? cmi_owner_binset(pool, ask->owner, ask->stream, 0) : 0;
    if (!own) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t bytes = cmi_class_bytes(class_index);
    if (!cmi_heap_slot_alloc(heap, own_small, class_index, address)) {
        const cmi_owner *owner = &pool->owners[ask->owner];
        cmi_lease_put_back_mine(pool);
        cmi_block_id id = best_of_two(heap, own_small, owner->done[1], cmi_class_slab_bytes(class_index), CMI_SLAB_UNIT);
        id = id ? take_slab(heap, id, cmi_class_slab_bytes(class_index)) : 0;
        if (!id && (id = sub_page_hole(pool, ask, own, owner->done[0])) != 0) {
            cmi_pool_hand_out(pool, ask, id, own, address);
            return CMPOOL_OK;
        }
        if (!id && (id = whole_page(pool, own, owner->done[0])) == 0) {
            cmi_ask page = *ask;
            page.bytes = page.align = heap->source.page_bytes;
            page.small = 1;
            cmpool_status status = cmi_ladder_climb(pool, &page, &id);
            if (status != CMPOOL_OK) {
                return status;
            }
            ask->stream = page.stream; /* the handle may have turned out to be another stream */
            own = cmi_owner_binset(pool, ask->owner, ask->stream, 0);
            own_small = cmi_owner_binset(pool, ask->owner, ask->stream, 1);
            if (cmi_heap_block(heap, id)->bytes < page.bytes) { /* no page was to be had, but a hole was */
                cmi_pool_hand_out(pool, ask, id, own, address);
                return CMPOOL_OK;
            }
        }
        if (cmi_heap_block(heap, id)->stamp != CMI_NO_STAMP) {
            hand_out_alone(pool, ask, id, address);
            return CMPOOL_OK;
        }
        cmpool_status status = slab_from(pool, ask, id, own_small, class_index);
        if (status != CMPOOL_OK) {
            return status;
        }
        cmi_heap_slot_alloc(heap, own_small, class_index, address);
    }
    cmi_pool_live_changed(pool, ask->owner, (int64_t)bytes, (int64_t)bytes);
    cmi_cache_after_malloc(pool, ask, own_small, class_index);
    return CMPOOL_OK;
}

cmpool_status cmi_pool_malloc(cmi_pool *pool, cmi_ask *ask, uint64_t *address)
{
    if (pool->device->lost && cmi_device_ask_lost(pool->device) != CMPOOL_OK) {
        return CMPOOL_ERR_DEVICE_LOST;
    }
    if (pool->asleep) {
        return CMPOOL_ERR_PAUSED;
    }
    if (!cmi_pool_make_ready(pool)) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    if (ask->exportable) {
        return cmi_pool_malloc_exportable(pool, ask, address);
    }
    bool small = ask->bytes <= CMI_SMALL_LIMIT && ask->align <= CMI_UNIT;
    cmpool_status status = small ? malloc_small(pool, ask, address) : malloc_large(pool, ask, address);
    if (status == CMPOOL_OK && (cmi_pool_is_watched(pool) || (ask->tag | ask->stack))) {
        cmi_history_alloc(pool, ask, *address);
    }
    cmi_pool_must_be_valid(pool);
    return status;
}
