/*
 * Live blocks that programs got from a pool, by address: what they asked for and in which context, which the pool does not keep. Owns a
 * tree over addresses with one word for every 512 bytes, nonzero where a block begins, and the list of origins that such words refer to.
 * Words are read and written without a lock; tree_lock and origins_lock are for what only grows. Nothing is called under either. Called by
 * every replacement that is given a device address.
 *
 * A free takes the block out first, so that of two frees at once one gets it and the other is the driver's to refuse.
 */
#include "preload/preload.h"

#include <pthread.h>
#include <stdatomic.h>

typedef _Atomic uintptr_t place; /* a word of a node: the next node, and in the last ones a block: bytes << ORIGIN_BITS | origin */

/* A place of the root stands for 8 GiB of addresses, of the nodes below it for 2 MiB, 32 KiB and 512 bytes. */
enum { ROOT_SHIFT = 33, MIDDLE_SHIFT = 21, LOWER_SHIFT = 15, LEAF_SHIFT = 9, ADDRESS_BITS = 48 };
enum {
    ROOT_PLACES = 1 << (ADDRESS_BITS - ROOT_SHIFT),
    MIDDLE_PLACES = 1 << (ROOT_SHIFT - MIDDLE_SHIFT),
    LOWER_PLACES = 1 << (MIDDLE_SHIFT - LOWER_SHIFT),
    LEAF_PLACES = 1 << (LOWER_SHIFT - LEAF_SHIFT),
};
enum {
    ORIGIN_BITS = 16,
    MOST_ORIGINS = (1 << ORIGIN_BITS) - 1, /* number 0 is none */
    CHUNK_PLACES = 32 << 10,               /* nodes are cut from chunks of so many */
};
#define MOST_BYTES (UINT64_C(1) << (64 - ORIGIN_BITS))

static pthread_mutex_t tree_lock = PTHREAD_MUTEX_INITIALIZER, origins_lock = PTHREAD_MUTEX_INITIALIZER;
static place root[ROOT_PLACES];
static place *chunk; /* what is left of the present one */
static size_t chunk_left;

static preload_origin origins[MOST_ORIGINS + 1]; /* by number; what is referred to never changes */
static uint32_t origin_count;
static __thread uint32_t last_origin __attribute__((tls_model("initial-exec"))); /* of the thread's last block */

/* ---- origins --------------------------------------------------------------------------------------------------------------------------
 */

static bool same(const preload_origin *a, const preload_origin *b)
{
    return a->context == b->context && a->memory_pool == b->memory_pool && a->device == b->device && a->how == b->how;
}

/* 0: there are too many. A program has a handful: one for each context, and more where memory is asked for in several ways. */
PRELOAD_SELDOM static uint32_t look_up_origin(const preload_origin *origin)
{
    pthread_mutex_lock(&origins_lock);
    uint32_t number = origin_count;
    while (number && !same(&origins[number], origin)) {
        number--;
    }
    if (!number && origin_count < MOST_ORIGINS) {
        number = ++origin_count;
        origins[number] = *origin;
    }
    pthread_mutex_unlock(&origins_lock);
    last_origin = number;
    return number;
}

static inline uint32_t origin_number(const preload_origin *origin)
{
    return last_origin && same(&origins[last_origin], origin) ? last_origin : look_up_origin(origin);
}

/* ---- the tree -------------------------------------------------------------------------------------------------------------------------
 */

/* The node that is to hang at a place; NULL: no host memory. Nodes stay until the process ends. */
PRELOAD_SELDOM static place *make_node(place *at, size_t places)
{
    pthread_mutex_lock(&tree_lock);
    place *node = (place *)atomic_load_explicit(at, memory_order_acquire);
    if (!node && chunk_left < places) {
        chunk = cmi_preload_map(CHUNK_PLACES * sizeof *chunk);
        chunk_left = chunk ? CHUNK_PLACES : 0;
    }
    if (!node && chunk_left) {
        node = chunk;
        chunk += places;
        chunk_left -= places;
        atomic_store_explicit(at, (uintptr_t)node, memory_order_release);
    }
    pthread_mutex_unlock(&tree_lock);
    return node;
}

static inline place *node_at(place *at, size_t places, bool grow)
{
    place *node = (place *)atomic_load_explicit(at, memory_order_acquire);
    return node || !grow ? node : make_node(at, places);
}

/* The word of an address, or NULL: no block can begin there, and with `grow` there is no host memory for one. */
static inline place *find_place(uint64_t address, bool grow)
{
    if (address >> ADDRESS_BITS || address % (1 << LEAF_SHIFT)) {
        return NULL;
    }
    place *middle = node_at(&root[address >> ROOT_SHIFT], MIDDLE_PLACES, grow);
    place *lower = middle ? node_at(&middle[(address >> MIDDLE_SHIFT) % MIDDLE_PLACES], LOWER_PLACES, grow) : NULL;
    place *leaf = lower ? node_at(&lower[(address >> LOWER_SHIFT) % LOWER_PLACES], LEAF_PLACES, grow) : NULL;
    return leaf ? &leaf[(address >> LEAF_SHIFT) % LEAF_PLACES] : NULL;
}

static preload_block block_of(uint64_t address, uint64_t word)
{
    return (preload_block){.address = address, .bytes = word >> ORIGIN_BITS, .origin = origins[word & MOST_ORIGINS]};
}

bool cmi_preload_block_add(const preload_block *block)
{
    uint32_t origin = block->bytes < MOST_BYTES ? origin_number(&block->origin) : 0;
    place *at = origin ? find_place(block->address, true) : NULL;
    if (at) {
        atomic_store_explicit(at, block->bytes << ORIGIN_BITS | origin, memory_order_release);
    }
    return at != NULL;
}

static inline bool look(uint64_t address, unsigned host, preload_block *block, bool take)
{
    place *at = find_place(address, false);
    uint64_t word = at ? atomic_load_explicit(at, memory_order_acquire) : 0;
    if (!word || (origins[word & MOST_ORIGINS].how & PRELOAD_HOST) != host) {
        return false;
    }
    if (take) {
        word = atomic_exchange_explicit(at, 0, memory_order_acq_rel);
    }
    if (word) {
        *block = block_of(address, word);
    }
    return word != 0;
}

bool cmi_preload_block_find(uint64_t address, preload_block *block) { return look(address, 0, block, false); }

bool cmi_preload_block_take(uint64_t address, preload_block *block) { return look(address, 0, block, true); }

bool cmi_preload_block_find_host(uint64_t address, preload_block *block) { return look(address, PRELOAD_HOST, block, false); }

bool cmi_preload_block_take_host(uint64_t address, preload_block *block) { return look(address, PRELOAD_HOST, block, true); }

/* ---- walks ----------------------------------------------------------------------------------------------------------------------------
 */

/* The first block from an address on, which rises behind it; false: there is none. */
static bool next_block(uint64_t *from, preload_block *block)
{
    while (*from >> ADDRESS_BITS == 0) {
        unsigned shift = ROOT_SHIFT;
        uintptr_t word = atomic_load_explicit(&root[*from >> ROOT_SHIFT], memory_order_acquire);
        for (; word && shift > LEAF_SHIFT;) {
            unsigned below = shift == ROOT_SHIFT ? MIDDLE_SHIFT : shift == MIDDLE_SHIFT ? LOWER_SHIFT : LEAF_SHIFT;
            place *node = (place *)word;
            word = atomic_load_explicit(&node[(*from >> below) % (UINT64_C(1) << (shift - below))], memory_order_acquire);
            shift = below;
        }
        uint64_t address = *from;
        *from = ((address >> shift) + 1) << shift; /* nothing begins within the rest of what the place stands for */
        if (word) {
            *block = block_of(address, word);
            return true;
        }
    }
    return false;
}

cmpool_status cmi_preload_block_release(cmpool_t pool, const preload_block *block)
{
    void *memory = (void *)(uintptr_t)block->address;
    return block->origin.how & PRELOAD_HOST ? cmpool_pinned_free_unordered(pool, memory) : cmpool_free_unordered(pool, memory);
}

void cmi_preload_blocks_release(int device, CUcontext context, cmpool_t pool)
{
    preload_block block;
    for (uint64_t from = 0; next_block(&from, &block);) {
        bool meant = block.origin.device == device && (!context || block.origin.context == context);
        if (meant && look(block.address, block.origin.how & PRELOAD_HOST, &block, true)) {
            (void)cmi_preload_block_release(pool, &block);
        }
    }
}

bool cmi_preload_block_others(int device, CUcontext context)
{
    preload_block block;
    bool found = false;
    for (uint64_t from = 0; !found && next_block(&from, &block);) {
        found = block.origin.device == device && block.origin.context != context;
    }
    return found;
}
