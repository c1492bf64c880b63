/*
 * Metadata memory. Small requests are cut from mmap'd chunks and kept on one free list per size class; large ones are mappings of
 * their own. Chunks are never given back: records come and go with the program's blocks and the next wave needs them again.
 * meta_lock (rank META) guards the lists, the present chunk, the counts and the planned failure.
 * Called by every room; never calls malloc. Under CMI_META_SYSTEM each request is a block of the system allocator instead, so that
 * AddressSanitizer and ThreadSanitizer see its bounds and its life; under CMI_META_JEMALLOC (not with the former) one of jemalloc's, in an
 * arena of its own.
 */
#include "base/meta.h"

#include "base/bits.h"
#include "base/jemalloc.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static cmi_lock meta_lock = CMI_LOCK_INITIALIZER(CMI_RANK_META);
static _Atomic uint64_t meta_bytes; /* written under meta_lock, read by anyone */
static uint64_t fail_nth, fail_count;
static bool fail_forever;

/* Whether the plan makes this request fail. Under meta_lock. */
static bool planned_to_fail(void)
{
    if (fail_nth == 0)
        return false;
    if (fail_nth > 1) {
        fail_nth--;
        return false;
    }
    if (!fail_forever && --fail_count == 0)
        fail_nth = 0;
    return true;
}

static void count_bytes(uint64_t more, uint64_t less)
{
    uint64_t bytes = atomic_load_explicit(&meta_bytes, memory_order_relaxed);
    atomic_store_explicit(&meta_bytes, bytes + more - less, memory_order_relaxed);
}

#ifdef CMI_META_SYSTEM

#define ALIGNMENT 64u

static void *place_alloc(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return NULL;
    size_t rounded = cmi_round_up(bytes, ALIGNMENT);
    void *p = aligned_alloc(ALIGNMENT, rounded);
    if (p != NULL)
        memset(p, 0, rounded);
    return p;
}

static void place_free(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}

/* Always moves, so that a pointer kept past a resize is found. */
static void *place_resize(void *p, size_t old_bytes, size_t new_bytes)
{
    (void)p, (void)old_bytes, (void)new_bytes;
    return NULL;
}

#elif defined CMI_META_JEMALLOC

static int arena_flags; /* 0: no arena yet */

static bool open_arena(void)
{
    unsigned arena;
    size_t size = sizeof arena;
    if (!arena_flags && cmi_je_mallctl("arenas.create", &arena, &size, NULL, 0) == 0)
        arena_flags = (int)(MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE) | MALLOCX_ALIGN(64);
    return arena_flags != 0;
}

static void *place_alloc(size_t bytes)
{
    return open_arena() && bytes <= PTRDIFF_MAX ? cmi_je_mallocx(bytes, arena_flags | MALLOCX_ZERO) : NULL;
}

static void place_free(void *p, size_t bytes) { cmi_je_sdallocx(p, bytes, arena_flags); }

/* Resize without copying where that can be done; NULL where not. */
static void *place_resize(void *p, size_t old_bytes, size_t new_bytes)
{
    bool same = new_bytes <= PTRDIFF_MAX && cmi_je_nallocx(new_bytes, arena_flags) == cmi_je_nallocx(old_bytes, arena_flags);
    if (same && new_bytes > old_bytes)
        memset((char *)p + old_bytes, 0, new_bytes - old_bytes);
    return same ? p : NULL;
}

#else

/* Classes are multiples of UNIT: 1 to 4 units, then four per doubling. */
#define UNIT ((size_t)64)
#define CLASS_COUNT 44u
#define LARGEST_CLASS ((size_t)256 << 10) /* the arrays of a move of some thousand pages: not worth a system call each */
#define CHUNK_BYTES ((size_t)1 << 20)

typedef struct free_record {
    struct free_record *next;
} free_record;

static free_record *free_lists[CLASS_COUNT];
static char *chunk_next; /* the untouched, still zero, rest of the present chunk */
static size_t chunk_left;

/* The smallest class that holds bytes (1 to LARGEST_CLASS). */
static unsigned class_of(size_t bytes)
{
    size_t last = (bytes - 1) / UNIT;
    if (last < 4)
        return (unsigned)last;
    unsigned doubling = cmi_log2_floor(last);
    return 4 * (doubling - 1) + (unsigned)(last >> (doubling - 2)) - 4;
}

static size_t class_bytes(unsigned size_class)
{
    if (size_class < 4)
        return (size_class + 1) * UNIT;
    return ((size_t)(size_class % 4 + 5) << (size_class / 4 - 1)) * UNIT;
}

_Static_assert(LARGEST_CLASS == (size_t)(43 % 4 + 5) << (43 / 4 - 1) << 6, "the last class is the largest one");

static void *map_host(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void put_free(void *p, unsigned size_class)
{
    free_record *record = p;
    record->next = free_lists[size_class];
    free_lists[size_class] = record;
}

/* A fresh chunk; what the old one has left goes to the free lists. */
static bool next_chunk(void)
{
    char *chunk = map_host(CHUNK_BYTES);
    if (chunk == NULL)
        return false;
    while (chunk_left > 0) {
        unsigned size_class = class_of(cmi_min_u64(chunk_left, LARGEST_CLASS));
        if (class_bytes(size_class) > chunk_left)
            size_class--;
        put_free(chunk_next, size_class);
        chunk_next += class_bytes(size_class);
        chunk_left -= class_bytes(size_class);
    }
    chunk_next = chunk;
    chunk_left = CHUNK_BYTES;
    return true;
}

static void *place_alloc(size_t bytes)
{
    if (bytes > LARGEST_CLASS)
        return map_host(bytes);
    unsigned size_class = class_of(bytes);
    free_record *record = free_lists[size_class];
    if (record != NULL) {
        free_lists[size_class] = record->next;
        return memset(record, 0, bytes);
    }
    if (chunk_left < class_bytes(size_class) && !next_chunk())
        return NULL;
    void *p = chunk_next;
    chunk_next += class_bytes(size_class);
    chunk_left -= class_bytes(size_class);
    return p;
}

static void place_free(void *p, size_t bytes)
{
    if (bytes > LARGEST_CLASS)
        munmap(p, bytes);
    else
        put_free(p, class_of(bytes));
}

/* Resize without copying where that can be done; NULL where not. */
static void *place_resize(void *p, size_t old_bytes, size_t new_bytes)
{
    if (old_bytes <= LARGEST_CLASS || new_bytes <= LARGEST_CLASS) {
        bool same = old_bytes <= LARGEST_CLASS && new_bytes <= LARGEST_CLASS && class_of(old_bytes) == class_of(new_bytes);
        if (same && new_bytes > old_bytes)
            memset((char *)p + old_bytes, 0, new_bytes - old_bytes);
        return same ? p : NULL;
    }
    void *moved = mremap(p, old_bytes, new_bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return NULL;
    /* The kernel zeroes new pages; the rest of the old last page may hold what an earlier, larger size left there. */
    size_t old_end = cmi_round_up(old_bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (new_bytes > old_bytes)
        memset((char *)moved + old_bytes, 0, cmi_min_u64(new_bytes, old_end) - old_bytes);
    return moved;
}
#endif

void *cmi_meta_alloc(size_t bytes)
{
    cmi_lock_acquire(&meta_lock);
    void *p = planned_to_fail() ? NULL : place_alloc(bytes);
    if (p != NULL)
        count_bytes(bytes, 0);
    cmi_lock_release(&meta_lock);
    return p;
}

void cmi_meta_free(void *p, size_t bytes)
{
    if (p == NULL)
        return;
    cmi_lock_acquire(&meta_lock);
    place_free(p, bytes);
    count_bytes(0, bytes);
    cmi_lock_release(&meta_lock);
}

void *cmi_meta_resize(void *p, size_t old_bytes, size_t new_bytes)
{
    if (p == NULL)
        return cmi_meta_alloc(new_bytes);
    cmi_lock_acquire(&meta_lock);
    void *moved = NULL;
    if (!planned_to_fail()) {
        moved = place_resize(p, old_bytes, new_bytes);
        if (moved == NULL && (moved = place_alloc(new_bytes)) != NULL) {
            memcpy(moved, p, cmi_min_u64(old_bytes, new_bytes));
            place_free(p, old_bytes);
        }
    }
    if (moved != NULL)
        count_bytes(new_bytes, old_bytes);
    cmi_lock_release(&meta_lock);
    return moved;
}

/* ---- arrays that stay where they are ------------------------------------------------------------------ */

void *cmi_meta_reserve(size_t *bytes, size_t least)
{
    for (; *bytes >= least; *bytes /= 2) {
        void *p = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED)
            return p;
    }
    return NULL;
}

bool cmi_meta_extend(void *p, size_t old_bytes, size_t new_bytes)
{
    cmi_lock_acquire(&meta_lock);
    bool done = !planned_to_fail() && mprotect((char *)p + old_bytes, new_bytes - old_bytes, PROT_READ | PROT_WRITE) == 0;
    if (done)
        count_bytes(new_bytes, old_bytes);
    cmi_lock_release(&meta_lock);
    return done;
}

void cmi_meta_unreserve(void *p, size_t bytes, size_t extended_bytes)
{
    if (p == NULL)
        return;
    cmi_lock_acquire(&meta_lock);
    munmap(p, bytes);
    count_bytes(0, extended_bytes);
    cmi_lock_release(&meta_lock);
}

void cmi_meta_before_fork(void) { cmi_lock_acquire(&meta_lock); }
void cmi_meta_after_fork(void) { cmi_lock_release(&meta_lock); }
#ifdef CMI_HAVE_JEMALLOC
void cmi_jemalloc_enter(void) { cmi_lock_acquire(&meta_lock); }
void cmi_jemalloc_leave(void) { cmi_lock_release(&meta_lock); }

extern bool cmi_je_je_tsd_booted;
extern pthread_key_t cmi_je_je_tsd_tsd;

void cmi_meta_unload(void)
{
    if (cmi_je_je_tsd_booted)
        pthread_key_delete(cmi_je_je_tsd_tsd);
}
#else
void cmi_meta_unload(void) {}
#endif

uint64_t cmi_meta_bytes(void) { return atomic_load_explicit(&meta_bytes, memory_order_relaxed); }

void cmi_meta_fail(uint64_t nth, uint64_t count)
{
    cmi_lock_acquire(&meta_lock);
    fail_nth = nth;
    fail_count = count;
    fail_forever = count == 0;
    cmi_lock_release(&meta_lock);
}
