/*
 * Small pinned blocks from jemalloc: one arena a group, whose extents are cut from the heap of the pinned memory. Owns the arenas; guarded
 * by the device lock, and each call into jemalloc by the lock that is held across a fork too (base/jemalloc.h). Called by pinned.c and
 * extent.c.
 *
 * The hooks run inside jemalloc, under its locks: they move blocks of our heap and nothing else. No driver call, no host memory: records
 * are reserved before. jemalloc keeps its own records elsewhere and what it has no use for it gives back at once (no decay), so the memory
 * is never touched and extents become whole again.
 */
#include "pinned/pinned.h"

#ifdef CMI_HAVE_JEMALLOC

#include "base/jemalloc.h"

#include <stdio.h>

/* What one call into jemalloc may need for the extents it cuts and gives back. */
enum { ARENA_RECORDS = 8 * CMI_HEAP_STEP_RECORDS };

typedef struct cmi_pinned_arena {
    extent_hooks_t hooks; /* first: jemalloc passes its address */
    cmi_pinned *pinned;
    unsigned group, index;
} arena;

static bool has_records(const cmi_heap *heap) { return heap->unused_count - heap->earmarked >= CMI_HEAP_STEP_RECORDS; }

static void *hook_alloc(extent_hooks_t *hooks, void *at, size_t bytes, size_t align, bool *zero, bool *commit, unsigned index)
{
    const arena *from = (const arena *)hooks;
    cmi_heap *heap = &from->pinned->heap;
    uint32_t done = from->pinned->groups[from->group].done;
    (void)index;
    align = align > CMI_PINNED_STEP ? align : CMI_PINNED_STEP;
    cmi_block_id id = at || *zero || !has_records(heap) ? CMI_NO_BLOCK : cmi_heap_best_fit(heap, done, bytes, align);
    if (!id) {
        return NULL;
    }
    uint64_t offset = cmi_round_up(cmi_heap_block(heap, id)->offset, align);
    cmi_heap_take(heap, id, offset, bytes);
    *commit = true;
    return (void *)(uintptr_t)offset;
}

/* The range may be a part of what was taken, or several pieces that lie together. true: it stays jemalloc's. */
static bool hook_dalloc(extent_hooks_t *hooks, void *memory, size_t bytes, bool committed, unsigned index)
{
    const arena *from = (const arena *)hooks;
    cmi_heap *heap = &from->pinned->heap;
    uint64_t at = (uint64_t)(uintptr_t)memory, end = at + bytes;
    (void)committed, (void)index;
    if (!has_records(heap)) {
        return true;
    }
    while (at < end) {
        cmi_block_id id = cmi_heap_find(heap, at);
        const cmi_block *block = cmi_heap_block(heap, id);
        uint64_t piece = cmi_min_u64(end, block->offset + block->bytes) - at;
        id = cmi_heap_cut(heap, id, at, piece);
        cmi_heap_make_free(heap, id, from->pinned->groups[from->group].done, 0, CMI_HEAP_NO_STAMP);
        at += piece;
    }
    return false;
}

static void hook_destroy(extent_hooks_t *hooks, void *memory, size_t bytes, bool committed, unsigned index)
{
    (void)hook_dalloc(hooks, memory, bytes, committed, index);
}

static bool hook_split(extent_hooks_t *hooks, void *memory, size_t bytes, size_t low, size_t high, bool committed, unsigned index)
{
    (void)hooks, (void)memory, (void)bytes, (void)low, (void)high, (void)committed, (void)index;
    return false; /* the heap cuts when it is given a part */
}

static bool hook_merge(extent_hooks_t *hooks, void *a, size_t a_bytes, void *b, size_t b_bytes, bool committed, unsigned index)
{
    const cmi_pinned *pinned = ((const arena *)hooks)->pinned;
    (void)a_bytes, (void)b_bytes, (void)committed, (void)index;
    return cmi_pinned_extent_of(pinned, (uint64_t)(uintptr_t)a) != cmi_pinned_extent_of(pinned, (uint64_t)(uintptr_t)b);
}

/* mallctl of one arena: "arena.<index>.<what>". */
static int control(unsigned index, const char *what, void *value, size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "arena.%u.%s", index, what);
    return cmi_je_mallctl(name, NULL, NULL, value, bytes);
}

static bool open_arena(arena *new)
{
    struct { /* jemalloc's arena_config_t, which its header does not show */
        extent_hooks_t *hooks;
        bool metadata_use_hooks;
    } config = {&new->hooks, false};
    size_t size = sizeof new->index;
    ssize_t at_once = 0;
    cmi_jemalloc_enter();
    bool made = cmi_je_mallctl("experimental.arenas_create_ext", &new->index, &size, &config, sizeof config) == 0;
    if (made && (control(new->index, "dirty_decay_ms", &at_once, sizeof at_once) != 0 ||
                 control(new->index, "muzzy_decay_ms", &at_once, sizeof at_once) != 0)) {
        (void)control(new->index, "destroy", NULL, 0);
        made = false;
    }
    cmi_jemalloc_leave();
    return made;
}

bool cmi_pinned_has_arena(cmi_pinned *pinned, unsigned group)
{
    if (pinned->groups[group].arena) {
        return true;
    }
    arena *new = cmi_meta_alloc(sizeof *new);
    if (!new) {
        return false;
    }
    *new = (arena){.hooks = {.alloc = hook_alloc, .dalloc = hook_dalloc, .destroy = hook_destroy, .split = hook_split, .merge = hook_merge},
                   .pinned = pinned,
                   .group = group};
    if (!open_arena(new)) {
        cmi_meta_free(new, sizeof *new);
        return false;
    }
    pinned->groups[group].arena = new;
    return true;
}

static int flags_of(const arena *of, uint64_t align)
{
    return (int)(MALLOCX_ARENA(of->index) | MALLOCX_TCACHE_NONE) | (align > 1 ? MALLOCX_ALIGN(align) : 0);
}

uint64_t cmi_pinned_arena_alloc(cmi_pinned *pinned, unsigned group, uint64_t requested, uint64_t align, uint64_t *bytes)
{
    const arena *of = pinned->groups[group].arena;
    int flags = flags_of(of, align);
    cmi_jemalloc_enter();
    *bytes = cmi_je_nallocx(requested, flags);
    void *memory = cmi_je_mallocx(requested, flags);
    cmi_jemalloc_leave();
    return (uint64_t)(uintptr_t)memory;
}

void cmi_pinned_arena_free(cmi_pinned *pinned, unsigned group, uint64_t address)
{
    cmi_jemalloc_enter();
    cmi_je_dallocx((void *)(uintptr_t)address, flags_of(pinned->groups[group].arena, 1));
    cmi_jemalloc_leave();
}

void cmi_pinned_arena_purge(cmi_pinned *pinned, unsigned group)
{
    if (pinned->groups[group].arena && cmi_heap_reserve_records(&pinned->heap, ARENA_RECORDS)) {
        cmi_jemalloc_enter();
        (void)control(pinned->groups[group].arena->index, "purge", NULL, 0);
        cmi_jemalloc_leave();
    }
}

void cmi_pinned_arena_close(cmi_pinned *pinned, unsigned group)
{
    arena *old = pinned->groups[group].arena;
    if (old) {
        (void)cmi_heap_reserve_records(&pinned->heap, ARENA_RECORDS);
        cmi_jemalloc_enter();
        (void)control(old->index, "destroy", NULL, 0);
        cmi_jemalloc_leave();
        pinned->groups[group].arena = NULL;
        cmi_meta_free(old, sizeof *old);
    }
}

#else

bool cmi_pinned_has_arena(cmi_pinned *pinned, unsigned group)
{
    (void)pinned, (void)group;
    return false;
}

uint64_t cmi_pinned_arena_alloc(cmi_pinned *pinned, unsigned group, uint64_t requested, uint64_t align, uint64_t *bytes)
{
    (void)pinned, (void)group, (void)align;
    *bytes = requested;
    return 0;
}

void cmi_pinned_arena_free(cmi_pinned *pinned, unsigned group, uint64_t address) { (void)pinned, (void)group, (void)address; }
void cmi_pinned_arena_purge(cmi_pinned *pinned, unsigned group) { (void)pinned, (void)group; }
void cmi_pinned_arena_close(cmi_pinned *pinned, unsigned group) { (void)pinned, (void)group; }

#endif
