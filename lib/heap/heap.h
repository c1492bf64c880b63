/*
 * The door of lib/heap: who has which bytes. Pure bookkeeping over 64-bit offsets: no device, no driver, no streams. Space is added in
 * ranges whose pages come and go; every byte of a range belongs to exactly one block. The caller (lib/pool, lib/pinned) decides what an
 * offset means, which bin sets a request may use, and what the stamps and tickets on free blocks stand for.
 *
 * Locks: none of its own; the caller serialises all calls on one heap.
 */
#ifndef CMI_HEAP_H
#define CMI_HEAP_H

#include "base/base.h"

#include <stdatomic.h>

#define CMI_UNIT 512u /* every block starts and ends at a multiple of this */
#define CMI_MAX_BYTES (UINT64_C(1) << 47)
#define CMI_NO_BLOCK 0u /* block, bin set and slab numbers start at 1 */
#define CMI_NO_BINSET 0u
#define CMI_HEAP_NO_STAMP UINT32_MAX

/* ---- blocks ------------------------------------------------------------------------------------- */

typedef uint32_t cmi_block_id;

typedef enum cmi_block_kind {
    CMI_BLOCK_UNUSED, /* a record in no list */
    CMI_BLOCK_HOLE,   /* addresses without pages: whole pages long */
    CMI_BLOCK_STALE,  /* addresses whose page has moved on and that are not to be used yet: whole pages long */
    CMI_BLOCK_BUSY,   /* taken out for a request or a page call in flight */
    CMI_BLOCK_FREE,   /* bytes ready to be handed out; in a bin */
    CMI_BLOCK_LIVE,   /* handed out */
    CMI_BLOCK_SLAB    /* cut into slots of one size class */
} cmi_block_kind;

/* 64 bytes, in one array that grows where it is: records are named by number, and stay where they are as long as the heap. */
typedef struct cmi_block {
    uint64_t offset, bytes;
    cmi_block_id prev, next; /* neighbours by address within the range */
    union {
        struct {
            cmi_block_id left, right; /* FREE: tree of its bin; SLAB: tree of the slabs with room */
        };
        struct {
            uint32_t tag, stack; /* LIVE: as the caller says */
        };
    };
    uint32_t binset; /* FREE: its bin set; LIVE, SLAB: the bin set its first owner asked with */
    uint32_t slab;   /* SLAB: number of the slab; else 0 */
    uint64_t ticket; /* FREE: youngest ticket in it; LIVE: time of allocation, ns */
    uint32_t stamp;  /* FREE in a mixed bin set: its stamp; LIVE: recorded uses; else CMI_HEAP_NO_STAMP */
    uint16_t slack;  /* LIVE: bytes beyond what was asked for, below CMI_UNIT */
    uint8_t kind;    /* cmi_block_kind */
    uint8_t spare;
    _Atomic uint32_t lease; /* LIVE: may be freed without the lock by who knows the number, plus 1: that has happened; else 0 */
} cmi_block;

_Static_assert(sizeof(cmi_block) == 64, "a block record is one cache line");

/* ---- bin sets: the free blocks that one kind of request may use --------------------------------- */

enum { CMI_BIN_ROWS = 39, CMI_BIN_COLUMNS = 16, CMI_CLASS_COUNT = 32 };

typedef enum cmi_binset_kind {
    CMI_BINSET_DONE,   /* free for everybody: no ticket */
    CMI_BINSET_STREAM, /* free for one stream, for others from its ticket on */
    CMI_BINSET_MIXED   /* each block has a stamp of several streams */
} cmi_binset_kind;

typedef struct cmi_binset {
    uint32_t owner;   /* whose bytes: blocks merge only within one owner */
    uint32_t key;     /* the caller's: stream record number for STREAM, else 0 */
    uint8_t kind;     /* cmi_binset_kind */
    uint8_t small;    /* free space of small pages; whole pages go to `partner` by themselves */
    uint16_t rows;    /* as many as the longest block needs: of small free space none is longer than two pages */
    uint32_t partner; /* small: the bin set of the same owner, key and kind for large blocks */
    uint32_t mixed;   /* the MIXED bin set of the same owner and smallness (itself, if this is it) */
    uint64_t free_bytes;
    uint32_t free_blocks;
    uint32_t slab_blocks; /* slabs that belong to it */
    uint32_t live_blocks; /* LIVE blocks whose first owner asked with it */
    uint64_t row_map;
    uint16_t column_map[CMI_BIN_ROWS];
    cmi_block_id slab_root[CMI_CLASS_COUNT]; /* slabs with a free slot, by address */
    cmi_block_id root[][CMI_BIN_COLUMNS];
} cmi_binset;

/* What the heap asks of its caller. */
typedef struct cmi_heap_source {
    uint64_t page_bytes; /* power of two, at least 64 KiB */
    void *user;
    /* One stamp for both; takes over both numbers. */
    uint32_t (*join_stamps)(void *user, uint32_t a, uint32_t b);
    /* Another holder of the same stamp (a block was cut in two); returns its number. */
    uint32_t (*copy_stamp)(void *user, uint32_t stamp);
    /* A holder less. */
    void (*drop_stamp)(void *user, uint32_t stamp);
    /* The stamp of memory freed in a STREAM bin set: for joins of a slab's own frees with stamped ones. */
    uint32_t (*stamp_of)(void *user, uint32_t key, uint64_t ticket);
    /* Of a free block whose bin set is CMI_USE_ASK: may the request that is searched for have it? */
    bool (*may_use)(void *user, uint32_t key, const cmi_block *block);
    /* Has what is free for everybody to stay so now, and not to become a stream's when its neighbour is freed? NULL: never. */
    bool (*done_stays)(void *user);
} cmi_heap_source;

/* ---- slabs -------------------------------------------------------------------------------------- */

enum { CMI_SLAB_UNIT = 65536, CMI_SLAB_SLOTS = 128, CMI_SMALL_LIMIT = 262144 };

typedef enum cmi_slot_use {
    CMI_SLOT_FREE,   /* ready for the slab's stream */
    CMI_SLOT_CACHED, /* in a thread's cache */
    CMI_SLOT_LIVE,   /* handed out */
    CMI_SLOT_PARKED, /* freed, but other streams are still to be waited for */
    CMI_SLOT_NOTED   /* handed out, and not to be freed without the lock: the caller keeps something about it */
} cmi_slot_use;

typedef struct cmi_slab {
    uint64_t base;       /* offset of the first slot */
    uint32_t binset;     /* that of its block */
    uint32_t slot_bytes; /* of its class */
    uint64_t per_unit;   /* 2^32 over the units of a slot, rounded up */
    cmi_block_id block;
    uint8_t class_index, slot_count, free_count, parked_count;
    uint8_t listed_empty, listed_parked; /* noted in the heap's lists of slabs to look at */
    uint16_t spare;
    uint32_t stamp;  /* of the parked slots, joined */
    uint64_t ticket; /* youngest free by its own stream */
    uint64_t free_bits[CMI_SLAB_SLOTS / 64];
    uint32_t *uses;                      /* one stamp number a slot (slot_count of them), made at the first recorded use; else NULL */
    _Atomic uint8_t use[CMI_SLAB_SLOTS]; /* cmi_slot_use; CACHED and LIVE change without the lock, by who has the slot */
} cmi_slab;

/*
 * From an offset to its slab in two loads, with or without the lock: slabs start at multiples of CMI_SLAB_UNIT, and a page that has had one
 * has an entry for each unit. Slab records stay where they are as long as the heap, maps as long as their range; who holds no lock may
 * trust what it finds about a slot that it has (LIVE or CACHED), since that keeps the slab as it is.
 */
typedef _Atomic(cmi_slab *) cmi_slab_entry;
typedef struct cmi_slab_map {
    uint64_t base, bytes;
    _Atomic(cmi_slab_entry *) *pages;
    unsigned page_shift;
} cmi_slab_map;

static inline cmi_slab *cmi_slab_at(const cmi_slab_map *map, uint64_t offset)
{
    uint64_t at = offset - map->base;
    if (at >= map->bytes) {
        return NULL;
    }
    cmi_slab_entry *units = atomic_load_explicit(&map->pages[at >> map->page_shift], memory_order_acquire);
    uint64_t unit = (at & ((UINT64_C(1) << map->page_shift) - 1)) / CMI_SLAB_UNIT;
    return units ? atomic_load_explicit(&units[unit], memory_order_acquire) : NULL;
}

/* The slot that contains an offset of the slab; slot_count or more: the unused tail. */
static inline unsigned cmi_slab_slot(const cmi_slab *slab, uint64_t offset)
{
    return (unsigned)((offset - slab->base) / CMI_UNIT * slab->per_unit >> 32);
}

static inline cmi_slot_use cmi_slab_use(const cmi_slab *slab, unsigned slot)
{
    return (cmi_slot_use)atomic_load_explicit(&slab->use[slot], memory_order_relaxed);
}

static inline bool cmi_slab_is_live(const cmi_slab *slab, unsigned slot)
{
    return cmi_slab_use(slab, slot) == CMI_SLOT_LIVE || cmi_slab_use(slab, slot) == CMI_SLOT_NOTED;
}

/* ---- the heap ----------------------------------------------------------------------------------- */

typedef struct cmi_space {
    uint64_t base, bytes;
    cmi_block_id first;
    uint32_t page_count;
    cmi_block_id *start; /* per page: the first block that starts in it, or 0 */
    uint64_t *start_map; /* bit per page: start is not 0 */
    uint64_t *idle_map;  /* bit per page: a FREE block or HOLE starts in it, or did when somebody last looked; NULL in copies */
    uint64_t *stale_map; /* bit per page: a STALE block begins with it, or did when somebody last looked; NULL in copies */
    uint64_t *free_map;  /* bit per page: it is free as a whole, or was when somebody last looked; none at or behind free_end */
    uint64_t *hole_map;  /* bit per page: it is of a HOLE, or was */
    uint64_t *seam_map;  /* bit per page: a FREE block behind another FREE one begins in it, or did; all three are NULL in copies */
    uint32_t free_end;
    cmi_slab_map slabs;
} cmi_space;

typedef struct cmi_id_list {
    uint32_t *ids;
    uint32_t count, room;
} cmi_id_list;

typedef struct cmi_heap {
    cmi_heap_source source;
    unsigned page_shift;
    cmi_block *blocks;                            /* by number */
    uint32_t block_room, block_most, block_count; /* records there are, addresses for them, and those in a list by address */
    cmi_block_id unused_block;                    /* list of unused records through next */
    uint32_t unused_count;
    uint64_t changes;     /* grows with everything that happens to a block, so that a plan can tell whether it still holds */
    uint32_t earmarked;   /* of those, kept for callers that come back later, see cmi_heap_earmark */
    cmi_binset **binsets; /* by number */
    uint32_t binset_count, binset_room;
    cmi_slab **slabs; /* by number */
    uint32_t slab_count, slab_room;
    cmi_id_list unused_slabs, empty_slabs, parked_slabs, unused_binsets;
    cmi_space *spaces; /* by address */
    uint32_t space_count, space_room;
} cmi_heap;

static inline cmi_block *cmi_heap_block(const cmi_heap *heap, cmi_block_id id) { return &heap->blocks[id]; }

void cmi_heap_init(cmi_heap *heap, const cmi_heap_source *source);
void cmi_heap_fini(cmi_heap *heap);

/*
 * Make sure that the next call that mutates the heap finds the records it needs. Every entry below that cuts blocks needs this many at
 * most; the caller reserves first, so that nothing fails half-way. false: no host memory.
 */
enum { CMI_HEAP_STEP_RECORDS = 8 };
bool cmi_heap_reserve_records(cmi_heap *heap, uint32_t count);
/* The same for a caller that lets others use the heap before it needs the records: they are kept for it until it gives the mark up. */
bool cmi_heap_earmark(cmi_heap *heap, uint32_t count);
static inline void cmi_heap_end_earmark(cmi_heap *heap, uint32_t count) { heap->earmarked -= count; }

/* Add a range of addresses without pages, at most CMI_MAX_BYTES; one HOLE. false: no host memory. Only such a one is taken out again. */
bool cmi_heap_add_space(cmi_heap *heap, uint64_t base, uint64_t bytes);
bool cmi_heap_space_is_hole(const cmi_heap *heap, uint64_t base);
void cmi_heap_remove_space(cmi_heap *heap, uint64_t base);

/* Bin sets come and go with owners and streams. The number, or 0: no host memory. Only an empty one may be removed. */
uint32_t cmi_heap_add_binset(cmi_heap *heap, uint32_t owner, uint32_t key, cmi_binset_kind kind, bool small, uint32_t partner,
                             uint32_t mixed);
void cmi_heap_remove_binset(cmi_heap *heap, uint32_t binset);
static inline cmi_binset *cmi_heap_binset(const cmi_heap *heap, uint32_t binset) { return heap->binsets[binset]; }
bool cmi_binset_is_empty(const cmi_binset *set);

/*
 * Smallest free block of a bin set that holds `bytes` (a multiple of CMI_UNIT, not 0) at `align`, lower address on ties, or 0 when there
 * is none. Constant time to a bin that must fit. With an alignment above CMI_UNIT the smallest is looked for among a few only.
 */
cmi_block_id cmi_heap_best_fit(const cmi_heap *heap, uint32_t binset, uint64_t bytes, uint64_t align);

/*
 * Cut [offset, offset + bytes) out of one FREE block; what is left before and behind stays free as it was. Returns the piece as BUSY;
 * its stamp, if any, is the caller's now (still in the record).
 */
cmi_block_id cmi_heap_take(cmi_heap *heap, cmi_block_id block, uint64_t offset, uint64_t bytes);
/* Cut [offset, offset + bytes) out of a HOLE, STALE or BUSY block; the piece keeps its kind. Page multiples for HOLE and STALE. */
cmi_block_id cmi_heap_cut(cmi_heap *heap, cmi_block_id block, uint64_t offset, uint64_t bytes);
/* A BUSY, LIVE or STALE block becomes a HOLE (joined with neighbouring holes) or STALE; no stamp may be left in it. */
cmi_block_id cmi_heap_make_hole(cmi_heap *heap, cmi_block_id block);
cmi_block_id cmi_heap_make_stale(cmi_heap *heap, cmi_block_id block);
/* Two neighbouring BUSY blocks become one with the lower one's attributes; returns it. Stamps are the caller's (see take). */
cmi_block_id cmi_heap_join_busy(cmi_heap *heap, cmi_block_id low, cmi_block_id high);
/* A BUSY or HOLE block becomes LIVE. */
void cmi_heap_make_live(cmi_heap *heap, cmi_block_id block, uint32_t binset, uint64_t requested, uint32_t tag, uint64_t time_ns);
/* A LIVE block takes over the BUSY one behind it; and gives up what is behind its first `bytes`, which is BUSY then. */
void cmi_heap_grow_live(cmi_heap *heap, cmi_block_id block, cmi_block_id behind);
cmi_block_id cmi_heap_shrink_live(cmi_heap *heap, cmi_block_id block, uint64_t bytes);
/* A LIVE block counts as asked for with another bin set from now on. */
/* A LIVE block is not to be freed without the lock any more. */
static inline void cmi_heap_end_lease(cmi_block *block)
{
    if (atomic_load_explicit(&block->lease, memory_order_relaxed)) {
        atomic_store_explicit(&block->lease, 0, memory_order_relaxed);
    }
}
/* Freed without the lock, and LIVE only until it is handed out again or put back. */
static inline bool cmi_heap_is_held(const cmi_block *block) { return (atomic_load_explicit(&block->lease, memory_order_relaxed) & 1) != 0; }
void cmi_heap_change_set(cmi_heap *heap, cmi_block_id block, uint32_t binset);
/*
 * A BUSY or LIVE block becomes FREE in a bin set and is joined with neighbours where their stamps join: same bin set, or one of
 * them DONE and the other of a stream, same owner. stamp is for MIXED (else CMI_HEAP_NO_STAMP) and is taken over. Whole pages of
 * a small bin set go to its partner. Needs CMI_HEAP_STEP_RECORDS. Returns the (last) resulting block.
 */
cmi_block_id cmi_heap_make_free(cmi_heap *heap, cmi_block_id block, uint32_t binset, uint64_t ticket, uint32_t stamp);
/*
 * Move a FREE block to another bin set, joined with neighbours of that set only, so that what is seen done does not become a stream's
 * again. Its stamp is dropped unless `stamp` is that very number. Needs CMI_HEAP_STEP_RECORDS.
 */
cmi_block_id cmi_heap_rebin(cmi_heap *heap, cmi_block_id block, uint32_t binset, uint64_t ticket, uint32_t stamp);

/* The block (of any kind) that contains offset, or 0 when it lies in no range. */
cmi_block_id cmi_heap_find(const cmi_heap *heap, uint64_t offset);

/* Walk: first block of space i, then ->next. */
static inline cmi_block_id cmi_heap_first_block(const cmi_heap *heap, uint32_t space) { return heap->spaces[space].first; }
/*
 * Walk over the FREE blocks and HOLEs of space i only: the first one at or behind a block (0: none), then on from its ->next. Pages in
 * which none starts are stepped over, so the walk does not grow with the blocks that are handed out.
 */
cmi_block_id cmi_heap_next_idle_page(const cmi_heap *heap, uint32_t space, cmi_block_id from);
static inline cmi_block_id cmi_heap_next_idle(const cmi_heap *heap, uint32_t space, cmi_block_id id)
{
    for (unsigned i = 0; i < 8; i++) { /* most often it is near */
        const cmi_block *block = id ? cmi_heap_block(heap, id) : NULL;
        if (!block || block->kind == CMI_BLOCK_FREE || block->kind == CMI_BLOCK_HOLE) {
            return id;
        }
        id = block->next;
    }
    return cmi_heap_next_idle_page(heap, space, id);
}

/* Walk over the free blocks of a bin set, by size and then address: the next behind one of them (0: the first). The one that it was asked
 * with must still be as it was. */
cmi_block_id cmi_heap_next_free(const cmi_heap *heap, uint32_t binset, cmi_block_id after);
/* Walk over the STALE blocks of space i: the first one at or behind a block, then on from its ->next. Not on copies. */
cmi_block_id cmi_heap_next_stale(const cmi_heap *heap, uint32_t space, cmi_block_id from);

/* ---- slab entries ------------------------------------------------------------------------------- */

/* Size class of a small request, and the bytes of a class's slots and slabs. bytes 1 to CMI_SMALL_LIMIT. */
static inline unsigned cmi_class_of(uint64_t bytes)
{
    /* Four classes per doubling: 1, 2, 3, 4 units, then 5, 6, 7, 8, then 10, 12, 14, 16, up to 512 units. */
    uint64_t last = (bytes - 1) / CMI_UNIT;
    if (last < 4) {
        return (unsigned)last;
    }
    unsigned row = cmi_log2_floor(last);
    return (row - 1) * 4 + (unsigned)(last >> (row - 2) & 3u);
}
uint64_t cmi_class_bytes(unsigned class_index);
uint64_t cmi_class_slab_bytes(unsigned class_index);

/* The slab map of the range that has an offset; NULL: none has. */
const cmi_slab_map *cmi_heap_slab_map(const cmi_heap *heap, uint64_t offset);
/* A slot from the lowest slab with room in the bin set, LIVE: its offset in *offset; false when there is none. */
bool cmi_heap_slot_alloc(cmi_heap *heap, uint32_t binset, unsigned class_index, uint64_t *offset);
/* The same for a thread's cache, CACHED, with the slab in *slab. */
bool cmi_heap_slot_cache(cmi_heap *heap, uint32_t binset, unsigned class_index, uint64_t *offset, cmi_slab **slab);
/* A CACHED slot is free for its own stream again. The slab stays, if need be as an empty one, so nothing is needed for it. */
void cmi_heap_slot_uncache(cmi_heap *heap, cmi_slab *slab, uint64_t offset, uint64_t ticket);
/* Then, where no slot is left but free and parked ones: it goes back to free space as in slot_free. Needs CMI_HEAP_STEP_RECORDS. */
bool cmi_heap_slab_is_unused(const cmi_slab *slab);
void cmi_heap_settle_slab(cmi_heap *heap, const cmi_slab *slab);
/* A LIVE slot is NOTED from now on, until it is freed. */
void cmi_heap_slot_note(cmi_slab *slab, unsigned slot);
/*
 * Turn a BUSY block of cmi_class_slab_bytes, at a multiple of CMI_SLAB_UNIT, into a slab with all slots free. false: no host memory (block
 * stays BUSY). The slab's ticket starts as the block's where both are one stream's, else as 0: memory that had to be waited for is the
 * caller's to date.
 */
bool cmi_heap_make_slab(cmi_heap *heap, cmi_block_id block, uint32_t binset, unsigned class_index);
/* Slab and slot of an offset inside a SLAB block; exact is set when it is the start of the slot. */
cmi_slab *cmi_heap_slot_of(const cmi_heap *heap, cmi_block_id block, uint64_t offset, unsigned *slot, bool *exact);
/*
 * Free a live slot: with stamp CMI_HEAP_NO_STAMP it is the slab's own stream's at once, else it is parked behind the stamp (taken
 * over). A slab without live slots goes back to free space, at the latest at cmi_heap_flush_slabs. Needs CMI_HEAP_STEP_RECORDS.
 */
void cmi_heap_slot_free(cmi_heap *heap, cmi_block_id block, unsigned slot, uint64_t ticket, uint32_t stamp);
/* All parked slots of a slab are seen done. Nothing where none is parked, so stale entries of parked_slabs do no harm. */
void cmi_heap_unpark(cmi_heap *heap, cmi_block_id block);
/* Give empty slabs that were kept for speed back to free space, as far as host memory for records goes; the others stay kept. */
void cmi_heap_flush_slabs(cmi_heap *heap);
/*
 * Last resort: take a slab apart. Live slots become LIVE blocks, free and parked ones FREE blocks of its bin set (of the
 * mixed one for parked ones). Slots in a thread's cache become LIVE too, so caches are drained first. Needs records for every slot:
 * false when there is no host memory for them (nothing changed).
 */
bool cmi_heap_dissolve_slab(cmi_heap *heap, cmi_block_id block);

/* ---- windows: room made of free bytes and holes ------------------------------------------------- */

/* How a request may use the free blocks of a bin set; an array of these, by bin set number, goes with each search. */
enum {
    CMI_USE_NOT,
    CMI_USE_PAGES, /* only whole pages of it */
    CMI_USE_BYTES,
    CMI_USE_ASK = 4 /* with one of those: only the blocks that the source's may_use lets through */
};

typedef struct cmi_window {
    uint64_t offset;
    uint32_t pages; /* empty slots to be filled with pages */
} cmi_window;

/*
 * The window of `bytes` at `align` over usable free bytes and holes that needs the fewest pages. Among those, the lowest of the ones
 * that begin or end where a block does, as near as the alignment lets them. bytes > 0, a multiple of CMI_UNIT.
 */
bool cmi_heap_find_window(const cmi_heap *heap, const uint8_t *use, uint64_t bytes, uint64_t align, cmi_window *window);

/* Whole idle pages: runs of neighbouring pages without any byte that is not free and usable. */
typedef struct cmi_idle_run {
    uint64_t offset;
    uint32_t pages;
    uint8_t hole_before, hole_behind; /* neighbours a hole */
} cmi_idle_run;
/* Fills at most room runs, skipping [skip, skip + skip_bytes); returns how many there are; *pages is their sum (may be NULL). */
uint32_t cmi_heap_idle_runs(const cmi_heap *heap, const uint8_t *use, uint64_t skip, uint64_t skip_bytes, cmi_idle_run *runs, uint32_t room,
                            uint64_t *pages);
/* Longest run of neighbouring free bytes in usable bin sets. */
uint64_t cmi_heap_longest_free(const cmi_heap *heap, const uint8_t *use);

/* NULL, or what is wrong (static text). Checks everything against everything; O(blocks). */
const char *cmi_heap_validate(const cmi_heap *heap);

#endif
