/*
 * Who holds the live bytes of a pool: sums by tag, by call stack and by size, and the largest of them. Owns its tables while it counts
 * (metadata memory); runs under the device lock; called when a request is refused. Where there is no memory for the tables, or not enough
 * room in them for every size, the rest is left out.
 */
#include "pool/pool.h"

enum { ROOM = 4096, MOST = ROOM / 4 * 3, LARGEST = CMPOOL_HOLDERS / CMPOOL_BY_COUNT };

typedef struct sums {
    cmpool_holder places[ROOM]; /* open addressing; blocks 0: empty */
    uint32_t count;
} sums;

static void add(sums *s, uint64_t by, uint64_t key, uint64_t bytes, uint64_t blocks)
{
    uint32_t i = (uint32_t)((key + by) * UINT64_C(0x9e3779b97f4a7c15) >> 52);
    while (s->places[i].blocks && s->places[i].key != key) {
        i = (i + 1) % ROOM;
    }
    if (!s->places[i].blocks && s->count == MOST) {
        return;
    }
    s->count += !s->places[i].blocks;
    s->places[i].by = by;
    s->places[i].key = key;
    s->places[i].bytes += bytes;
    s->places[i].blocks += blocks;
}

static void add_slab(const cmi_pool *pool, const cmi_block *block, sums *of)
{
    const cmi_slab *slab = pool->heap.slabs[block->slab];
    uint64_t bytes = cmi_class_bytes(slab->class_index);
    for (unsigned i = 0; i < slab->slot_count; i++) {
        if (cmi_slab_is_live(slab, i)) {
            const cmi_note *note = cmi_notes_find(&pool->notes, block->offset + i * bytes);
            add(&of[CMPOOL_BY_TAG], CMPOOL_BY_TAG, note ? note->tag : 0, bytes, 1);
            add(&of[CMPOOL_BY_STACK], CMPOOL_BY_STACK, note ? note->stack : 0, bytes, 1);
            add(&of[CMPOOL_BY_SIZE], CMPOOL_BY_SIZE, bytes, bytes, 1);
        }
    }
}

/* The largest ones in order, after those that are there already. What has no tag or no stack is no answer to the question who. */
static void put_largest(const sums *s, cmpool_refusal *refusal)
{
    cmpool_holder *first = &refusal->holders[refusal->holder_count];
    uint32_t count = 0;
    for (uint32_t i = 0; i < ROOM; i++) {
        cmpool_holder next = s->places[i];
        if (!next.blocks || (!next.key && next.by != CMPOOL_BY_SIZE)) {
            continue;
        }
        for (uint32_t j = 0; j < count; j++) {
            if (next.bytes > first[j].bytes || (next.bytes == first[j].bytes && next.key < first[j].key)) {
                cmpool_holder moved = first[j];
                first[j] = next;
                next = moved;
            }
        }
        if (count < LARGEST) {
            first[count++] = next;
        }
    }
    refusal->holder_count += count;
}

void cmi_pool_find_holders(const cmi_pool *pool, cmpool_refusal *refusal)
{
    sums *of = cmi_meta_alloc(CMPOOL_BY_COUNT * sizeof *of);
    if (!of) {
        return;
    }
    const cmi_heap *heap = &pool->heap;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            const cmi_block *block = cmi_heap_block(heap, id);
            if (block->kind == CMI_BLOCK_LIVE) {
                add(&of[CMPOOL_BY_TAG], CMPOOL_BY_TAG, block->tag, block->bytes, 1);
                add(&of[CMPOOL_BY_STACK], CMPOOL_BY_STACK, block->stack, block->bytes, 1);
                add(&of[CMPOOL_BY_SIZE], CMPOOL_BY_SIZE, block->bytes, block->bytes, 1);
            } else if (block->kind == CMI_BLOCK_SLAB) {
                add_slab(pool, block, of);
            }
        }
    }
    for (unsigned by = 0; by < CMPOOL_BY_COUNT; by++) {
        put_largest(&of[by], refusal);
    }
    cmi_meta_free(of, CMPOOL_BY_COUNT * sizeof *of);
}
