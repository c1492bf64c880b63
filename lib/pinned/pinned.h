/*
 * The door of lib/pinned: pinned host memory beside a pool, in extents that the driver made. A block that is freed serves again when the
 * host has seen all work done that used it: the CPU writes to it first, so the order of a stream is not enough. The events are those of the
 * pool's device (lib/pool).
 *
 * Blocks up to CMI_PINNED_SMALL bytes come from a jemalloc arena whose extents are cut from ours (without jemalloc, and all larger ones,
 * from a heap). Nothing here reads or writes the memory: all records are elsewhere.
 *
 * Locks: the device lock guards everything. It is dropped for driver calls; `changing` keeps a second thread from taking extents, or giving
 * some back, meanwhile.
 */
#ifndef CMI_PINNED_H
#define CMI_PINNED_H

#include "pool/pool.h"

enum {
    CMI_PINNED_NODES = 8,                     /* NUMA nodes that are told apart; further ones share */
    CMI_PINNED_GROUPS = 2 * CMI_PINNED_NODES, /* two kinds of memory on each: plain and write-combined */
    CMI_PINNED_STEP = 4096,                   /* blocks of the heap are multiples of it, and it is the largest alignment */
    CMI_PINNED_PAGE = 65536                   /* extents are multiples of it */
};
#define CMI_PINNED_SMALL (UINT64_C(1) << 20)

typedef struct cmi_pinned_figures {
#define CMPOOL_PINNED_COUNTER(name, kind, help) uint64_t name;
#include <cudamempool/pinned.def>
#undef CMPOOL_PINNED_COUNTER
} cmi_pinned_figures;

typedef enum cmi_pinned_state { CMI_PINNED_NONE, CMI_PINNED_LIVE, CMI_PINNED_PENDING } cmi_pinned_state;

/* What is known of a block by its address. */
typedef struct cmi_pinned_block {
    uint64_t address;
    uint64_t bytes, requested;
    uint32_t stamp; /* LIVE: the streams that were named; PENDING: what is still to be seen done */
    uint32_t tag;
    uint8_t state; /* cmi_pinned_state; PENDING are blocks of an arena only: the heap keeps its own */
    uint8_t group;
    bool small;     /* of the group's arena */
    bool unordered; /* no stream was named: the free waits for the whole device */
    uint32_t flags; /* as asked for */
} cmi_pinned_block;

typedef struct cmi_pinned_extent {
    uint64_t address, bytes;
    uint8_t group;
} cmi_pinned_extent;

/* Blocks of one NUMA node and one kind of memory. */
typedef struct cmi_pinned_group {
    uint32_t done, mixed; /* bin sets; 0: not used yet */
    struct cmi_pinned_arena *arena;
} cmi_pinned_group;

typedef struct cmi_pinned {
    cmi_pool *pool;
    cmi_heap heap; /* its offsets are addresses */
    cmi_pinned_group groups[CMI_PINNED_GROUPS];
    cmi_pinned_extent *extents; /* by address */
    uint32_t extent_count, extent_room;
    cmi_pinned_block *table; /* open addressing, at most half full */
    uint32_t table_room, table_count;
    uint64_t *pending; /* addresses of PENDING blocks; room for every small block there is */
    uint32_t pending_count, pending_room, small_count;
    uint64_t small_pending_bytes;
    uint64_t uncovered;   /* youngest ticket of a free that no event of its own covers */
    uint64_t promoted_at; /* device done_changes when pending memory was last looked through */
    bool changing;        /* a thread takes extents or gives some back */
    cmi_pinned_figures figures;
} cmi_pinned;

/* ---- request.c: one request (device lock held; those that may drop and retake it say so) -------- */

typedef struct cmi_pinned_ask {
    uint64_t requested, align;
    uint32_t flags, tag, stream; /* stream CMI_NO_STREAM: none is named */
} cmi_pinned_ask;

/* Flags are CMPOOL_PINNED_*. Drops and retakes the lock. */
cmpool_status cmi_pinned_malloc(cmi_pool *pool, const cmi_pinned_ask *ask, uint64_t *address);

/* ---- pinned.c: frees, and how much is held ------------------------------------------------------ */

/* Records an event on the stream named by this call. Drops and retakes the lock. */
cmpool_status cmi_pinned_free(cmi_pool *pool, uint64_t address, uint32_t stream, CUstream handle);
cmpool_status cmi_pinned_record_use(cmi_pool *pool, uint64_t address, uint32_t stream);
/* OK (start of a live block), INTERIOR_POINTER, ALREADY_FREED or NOT_OURS. */
cmpool_status cmi_pinned_place(const cmi_pool *pool, uint64_t address, cmi_pinned_block *block);
/* Set the limit; a smaller one trims. Drops and retakes the lock. */
cmpool_status cmi_pinned_set_limit(cmi_pool *pool, uint64_t bytes);
/* Give whole free extents back until at most `keep` bytes are held; the host waits for what is pending. Drops and retakes the lock. */
cmpool_status cmi_pinned_trim(cmi_pool *pool, uint64_t keep, uint64_t *released);
/* For the pool's end, with nothing live: everything back. DRIVER: the driver refused to take something. Drops and retakes the lock. */
cmpool_status cmi_pinned_close(cmi_pool *pool);
cmi_pinned_figures cmi_pinned_figures_of(const cmi_pool *pool);
/* NULL, or what is wrong. */
const char *cmi_pinned_validate(const cmi_pool *pool);
/* The pool's record, made on first use; NULL: no host memory. */
cmi_pinned *cmi_pinned_open(cmi_pool *pool);
/* Host memory for what one request, free or promotion may need. */
bool cmi_pinned_make_ready(cmi_pinned *pinned);
void cmi_pinned_must_be_valid(const cmi_pinned *pinned); /* in builds for tests */
/* `changing`: others wait until the end. Drops and retakes the lock. */
void cmi_pinned_begin_change(cmi_pinned *pinned);
void cmi_pinned_end_change(cmi_pinned *pinned);
/* Note what is done, and whose memory serves again. Drops and retakes the lock. */
void cmi_pinned_settle(cmi_pinned *pinned);
/* The same, after the host has waited. Drops and retakes the lock. */
cmpool_status cmi_pinned_wait(cmi_pinned *pinned);
static inline uint64_t cmi_pinned_pending_bytes(const cmi_pinned *pinned)
{
    uint64_t bytes = pinned->small_pending_bytes;
    for (unsigned i = 0; i < CMI_PINNED_GROUPS; i++) {
        bytes += pinned->groups[i].mixed ? cmi_heap_binset(&pinned->heap, pinned->groups[i].mixed)->free_bytes : 0;
    }
    return bytes;
}

/* ---- extent.c: memory from the driver and back ------------------------------------------------------------------------------------ */

/* Bin sets of a group, made on first use. false: no host memory. */
bool cmi_pinned_open_group(cmi_pinned *pinned, unsigned group);
/* One more extent with room for `bytes`. LIMIT, OUT_OF_HOST_MEMORY or the driver's word. `changing` is the caller's. Drops the lock. */
cmpool_status cmi_pinned_grow(cmi_pinned *pinned, unsigned group, uint64_t bytes);
/* Give whole free extents back until at most `keep` bytes are held. `changing` is the caller's. Drops the lock. */
cmpool_status cmi_pinned_shrink(cmi_pinned *pinned, uint64_t keep);
const cmi_pinned_extent *cmi_pinned_extent_of(const cmi_pinned *pinned, uint64_t address);

/* ---- arena.c: small blocks by jemalloc -------------------------------------------------------------------------------------------- */

/* Whether this build has jemalloc, and the group an arena of it (made on first use). */
bool cmi_pinned_has_arena(cmi_pinned *pinned, unsigned group);
/* 0: the arena has no room, and needs an extent of *bytes (what the block will really have). */
uint64_t cmi_pinned_arena_alloc(cmi_pinned *pinned, unsigned group, uint64_t requested, uint64_t align, uint64_t *bytes);
void cmi_pinned_arena_free(cmi_pinned *pinned, unsigned group, uint64_t address);
/* What the arena keeps without need goes back to the heap. */
void cmi_pinned_arena_purge(cmi_pinned *pinned, unsigned group);
void cmi_pinned_arena_close(cmi_pinned *pinned, unsigned group);

/* ---- blocks.c: the table of blocks by address ------------------------------------------------------------------------------------- */

/* Room for one more block, small or not. */
bool cmi_pinned_reserve_block(cmi_pinned *pinned);
void cmi_pinned_add_block(cmi_pinned *pinned, const cmi_pinned_block *block);
/* The block that starts there, or NULL; good until the next add or drop. */
cmi_pinned_block *cmi_pinned_find_block(const cmi_pinned *pinned, uint64_t address);
void cmi_pinned_drop_block(cmi_pinned *pinned, cmi_pinned_block *block);

/* ---- node.c ----------------------------------------------------------------------------------------------------------------------- */

/* The NUMA node that the calling thread runs on, 0 to CMI_PINNED_NODES - 1: memory that it has the driver pin is of that node. */
unsigned cmi_pinned_node(void);
/* Tests: this node from now on; -1: the thread's own again. */
void cmi_pinned_pretend_node(int node);

#endif
