/*
 * Figures: what a pool tells of itself, and the numbers behind a refusal; and the validator that checks blocks against slots against
 * counters. Reads only; runs under the device lock; called by api, the ladder and, in builds with CMI_VALIDATE, after each mutation.
 */
#include "pool/cache.h"

#include <string.h>

/* Idle pages are those without any byte that is not free, whoever's and whenever finished. */
static uint64_t idle_pages(cmi_pool *pool, uint64_t *longest)
{
    const cmi_heap *heap = &pool->heap;
    uint64_t pages = 0;
    *longest = 0;
    if (!cmi_pool_use_room(pool)) {
        return 0;
    }
    memset(pool->use, CMI_USE_PAGES, pool->use_room);
    cmi_heap_idle_runs(heap, pool->use, 0, 0, NULL, 0, &pages);
    *longest = cmi_heap_longest_free(heap, pool->use);
    return pages;
}

static void refresh(cmi_pool *pool)
{
    cmi_device *device = pool->device;
    uint64_t longest;
    cmi_counters *counters = &pool->counters;
    counters->reserved_bytes = pool->reserved_pages << pool->heap.page_shift;
    counters->idle_bytes = idle_pages(pool, &longest) << pool->heap.page_shift;
    counters->address_bytes = pool->arena.address_bytes;
    counters->fixed_bytes = cmi_pool_fixed_pages(pool, &counters->segments) << pool->heap.page_shift;
    counters->mapped_slots = cmi_store_mappings(device->store);
    cmi_store_counts store;
    cmi_store_counts_get(device->store, &store);
    counters->stranded_pages = cmi_store_stranded(device->store) + store.lost_ranges;
    counters->metadata_bytes = cmi_meta_bytes();
    counters->unretired_streams = device->unretired_streams;
}

void cmi_pool_stats(cmi_pool *pool, uint32_t number, cmpool_stats *stats)
{
    cmi_cache_drain(pool);
    refresh(pool);
    cmi_counters counters = pool->counters;
    if (number) {
        const cmi_owner *owner = &pool->owners[number];
        counters.live_bytes = owner->live_bytes;
        counters.live_blocks = owner->live_blocks;
        counters.requested_bytes = owner->requested_bytes;
        counters.allocations = owner->allocations;
        counters.frees = owner->frees;
        counters.peak_live_bytes = owner->peak_live_bytes;
    }
    cmi_counters_export(&counters, stats);
}

static uint64_t longest_finished(cmi_pool *pool, uint32_t stream)
{
    if (!cmi_pool_use_room(pool)) {
        return 0;
    }
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        bool finished = set && (set->kind == CMI_BINSET_DONE || (set->kind == CMI_BINSET_STREAM && set->key == stream));
        pool->use[i] = finished ? CMI_USE_BYTES : CMI_USE_NOT;
    }
    return cmi_heap_longest_free(&pool->heap, pool->use);
}

/* What free bytes there are, and which of them others have to finish with, or a capture set keeps for itself. */
static void add_free_bytes(const cmi_pool *pool, const cmi_ask *ask, cmpool_refusal *refusal)
{
    for (uint32_t i = 1; i <= pool->heap.binset_count; i++) {
        const cmi_binset *set = pool->heap.binsets[i];
        if (set) {
            bool kept = pool->owners[set->owner].kind == CMI_OWNER_CAPTURE && set->owner != ask->owner;
            bool pending = set->kind == CMI_BINSET_MIXED || (set->kind == CMI_BINSET_STREAM && set->key != ask->stream);
            refusal->free_bytes += set->free_bytes;
            refusal->graph_bytes += kept ? set->free_bytes : 0;
            refusal->pending_bytes += pending && !kept ? set->free_bytes : 0;
        }
    }
}

void cmi_pool_explain(cmi_pool *pool, const cmi_ask *ask, cmpool_status status, uint64_t driver_free, uint64_t missing_pages,
                      const size_t rung_bytes[CMPOOL_RUNG_COUNT])
{
    cmi_device *device = pool->device;
    cmi_cache_drain(pool);
    uint64_t longest, page = device->page_bytes;
    cmpool_refusal refusal = {.struct_size = sizeof refusal,
                              .pool = pool->owners[ask->owner].generation,
                              .device = device->ordinal,
                              .status = status,
                              .tag = ask->tag,
                              .stack = ask->stack,
                              .stream = ask->stream,
                              .owner = ask->owner,
                              .number = pool->refusal.number + 1,
                              .time_ns = cmi_clock_ns(),
                              .request_bytes = ask->small ? cmi_round_up(ask->requested, CMI_UNIT) : ask->bytes,
                              .live_bytes = pool->counters.live_bytes,
                              .reserved_bytes = pool->reserved_pages * page,
                              .idle_bytes = idle_pages(pool, &longest) * page,
                              .largest_free_bytes = longest,
                              .driver_free_bytes = driver_free,
                              .process_bytes = cmi_store_pages(device->store) * page,
                              .device_bytes = device->total_bytes,
                              .limit_bytes = pool->options.limit,
                              .headroom_bytes = pool->options.headroom,
                              .short_bytes = missing_pages * page};
    add_free_bytes(pool, ask, &refusal);
    for (cmi_pool *other = device->pools; other; other = other->next) {
        uint64_t unused;
        refusal.sibling_idle_bytes += other != pool && !other->dying ? idle_pages(other, &unused) * page : 0;
    }
    for (unsigned i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        refusal.rung_bytes[i] = rung_bytes[i];
    }
    refusal.rung_bytes[CMPOOL_RUNG_BINS] = longest_finished(pool, ask->stream);
    cmi_pool_find_holders(pool, &refusal);
    pool->refusal = refusal;

    uint64_t segments, fixed = cmi_pool_fixed_pages(pool, &segments) * page;
    cmpool_error *error = cmi_error_detail();
    *error = (cmpool_error){.status = error->status,
                            .call = "", /* an explanation that the public call has yet to sign */
                            .driver_call = error->driver_call,
                            .driver_code = error->driver_code,
                            .bytes = refusal.request_bytes,
                            .live_bytes = refusal.live_bytes,
                            .reserved_bytes = refusal.reserved_bytes,
                            .idle_bytes = refusal.idle_bytes,
                            .largest_free_bytes = refusal.largest_free_bytes,
                            .device_free_bytes = driver_free == UINT64_MAX ? SIZE_MAX : driver_free,
                            .limit_bytes = refusal.limit_bytes,
                            .short_bytes = refusal.short_bytes,
                            .pool = refusal.pool,
                            .fixed_bytes = fixed};
    for (unsigned i = 0; i < CMPOOL_RUNG_COUNT; i++) {
        error->rung_bytes[i] = refusal.rung_bytes[i];
    }
}

/* ---- validator ---------------------------------------------------------------------------------- */

/* The state that the slots under a block must have. */
static const char *check_slots(const cmi_pool *pool, const cmi_block *block, uint64_t *mapped, uint64_t *last)
{
    uint64_t page = pool->heap.source.page_bytes;
    for (uint64_t at = cmi_round_down(block->offset, page); at < block->offset + block->bytes; at += page) {
        const cmi_slot *slot = cmi_arena_slot(&pool->arena, at);
        bool whole = block->kind == CMI_BLOCK_HOLE || block->kind == CMI_BLOCK_STALE;
        if (block->kind == CMI_BLOCK_HOLE && slot->state != CMI_SLOT_EMPTY) {
            return "hole over a slot that is not empty";
        }
        if (block->kind == CMI_BLOCK_STALE && slot->state != CMI_SLOT_STALE) {
            return "stale block over a slot that is not stale";
        }
        if ((block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_LIVE || block->kind == CMI_BLOCK_SLAB) &&
            slot->state != CMI_SLOT_MAPPED && (!pool->pause || block->kind == CMI_BLOCK_FREE)) {
            return "bytes in use over a slot without a page";
        }
        if (!whole && at != *last && slot->state == CMI_SLOT_MAPPED) {
            (*mapped)++;
        }
        *last = at;
    }
    return NULL;
}

const char *cmi_pool_validate(cmi_pool *pool)
{
    const char *fault = cmi_heap_validate(&pool->heap);
    if (!fault) {
        fault = cmi_arena_validate(&pool->arena);
    }
    uint64_t live = 0, blocks = 0, mapped = 0, last = UINT64_MAX;
    for (uint32_t i = 0; i < pool->heap.space_count && !fault; i++) {
        for (cmi_block_id id = cmi_heap_first_block(&pool->heap, i); id && !fault; id = cmi_heap_block(&pool->heap, id)->next) {
            const cmi_block *block = cmi_heap_block(&pool->heap, id);
            fault = check_slots(pool, block, &mapped, &last);
            if (block->kind == CMI_BLOCK_LIVE) {
                live += block->bytes;
                blocks++;
            } else if (block->kind == CMI_BLOCK_SLAB) {
                const cmi_slab *slab = pool->heap.slabs[block->slab];
                unsigned used = (unsigned)slab->slot_count - slab->free_count - slab->parked_count;
                live += used * cmi_class_bytes(slab->class_index);
                blocks += used;
            }
        }
    }
    bool still = pool->device->in_flight == 0; /* figures settle only when nothing is on its way */
    if (!fault && still && (live != pool->counters.live_bytes || blocks != pool->counters.live_blocks)) {
        fault = "live figures differ from the blocks";
    }
    if (!fault && still && pool->calls_inside <= 1 && mapped > pool->reserved_pages) {
        fault = "more pages mapped than held";
    }
    return fault;
}

#ifdef CMI_VALIDATE
void cmi_pool_must_be_valid(cmi_pool *pool)
{
    const char *fault = cmi_pool_validate(pool);
    if (fault) {
        cmi_log(CMI_LOG_ERROR, "validator: %s", fault);
        __builtin_trap(); /* only in builds made for tests */
    }
}
#endif
