/*
 * Device addresses: real ones, mapped PROT_NONE so that nobody else gets them and a CPU touch faults. Ranges given back are handed out
 * again last in, first out. Guarded by sim.lock; called by mapping.c, vmm.c, host.c.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW_BYTES (UINT64_C(16) << 30) /* asked of the kernel at a time */
#define BUCKETS 1024

typedef struct spare_range {
    struct spare_range *next;
    uint64_t base, bytes;
} spare_range;

typedef struct window {
    struct window *next;
    void *start;
    uint64_t bytes;
} window;

static struct {
    spare_range *buckets[BUCKETS];
    window *windows;
    uint64_t next, end; /* unused part of the newest window */
} space;

static unsigned bucket_of(uint64_t bytes) { return (unsigned)((bytes >> 12) * UINT64_C(0x9E3779B97F4A7C15) >> 54); }

static bool open_window(uint64_t bytes)
{
    window *fresh = malloc(sizeof *fresh);
    if (!fresh)
        return false;
    void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        free(fresh);
        return false;
    }
    *fresh = (window){space.windows, start, bytes};
    space.windows = fresh;
    space.next = (uint64_t)(uintptr_t)start;
    space.end = space.next + bytes;
    return true;
}

uint64_t sim_address_take(uint64_t bytes, uint64_t alignment, uint64_t hint)
{
    for (spare_range **link = &space.buckets[bucket_of(bytes)]; *link; link = &(*link)->next) {
        spare_range *spare = *link;
        if (spare->bytes != bytes || spare->base % alignment || (hint && spare->base != hint))
            continue;
        uint64_t base = spare->base;
        *link = spare->next;
        free(spare);
        return base;
    }
    if (hint)
        return sim_address_take(bytes, alignment, 0); /* cuda.h: only a hint */
    uint64_t base = (space.next + alignment - 1) / alignment * alignment;
    if (base + bytes > space.end || base < space.next) {
        uint64_t need = bytes + alignment;
        if (need < bytes || !open_window(need > WINDOW_BYTES ? need : WINDOW_BYTES))
            return 0;
        base = (space.next + alignment - 1) / alignment * alignment;
    }
    space.next = base + bytes;
    return base;
}

void sim_address_give(uint64_t base, uint64_t bytes)
{
    spare_range *spare = malloc(sizeof *spare);
    if (!spare)
        return; /* lost until the next configure */
    spare_range **bucket = &space.buckets[bucket_of(bytes)];
    *spare = (spare_range){*bucket, base, bytes};
    *bucket = spare;
}

void sim_address_reset(void)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        while (space.buckets[i]) {
            spare_range *spare = space.buckets[i];
            space.buckets[i] = spare->next;
            free(spare);
        }
    while (space.windows) {
        window *old = space.windows;
        space.windows = old->next;
        munmap(old->start, old->bytes);
        free(old);
    }
    memset(&space, 0, sizeof space);
}
