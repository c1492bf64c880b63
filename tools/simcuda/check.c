/*
 * The race checker. It knows physical bytes, not addresses: each page of physical memory keeps its last write and the reads since, as
 * points on lanes; a touch is compared with them by the clock of its lane, an unmap or free by the host's. A page touched as a whole
 * costs one comparison; a page touched in parts keeps sorted segments. Guarded by sim.lock; called by operation.c, vmm.c, malloc.c.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_epoch_list {
    uint32_t count, room;
    sim_epoch epochs[];
};

typedef struct segment {
    uint32_t start, end; /* within the page */
    sim_epoch write;
    sim_epochs reads;
} segment;

struct sim_segments {
    uint32_t count, room;
    uint32_t prune_at; /* when this many are there, drop those that the host has observed */
    segment *list;
};

/* What a touch is compared by. */
typedef struct toucher {
    const sim_clock *clock;
    sim_epoch me;
    bool write;
    sim_epoch conflict; /* the first one found; tick 0: none */
    bool conflict_write;
} toucher;

static inline bool ordered(const sim_clock *clock, sim_epoch epoch)
{
    return epoch.tick == 0 || sim_clock_at(clock, epoch.lane) >= epoch.tick;
}

void sim_epochs_clear(sim_epochs *epochs)
{
    if (epochs->more) {
        free(epochs->more);
        epochs->more = NULL;
    }
    epochs->one = (sim_epoch){0, 0};
}

static void append(sim_epochs *epochs, sim_epoch epoch)
{
    struct sim_epoch_list *list = epochs->more;
    if (!list || list->count == list->room) {
        uint32_t room = list ? list->room * 2 : 4, count = list ? list->count : 0;
        list = realloc(list, sizeof *list + room * sizeof list->epochs[0]);
        if (!list)
            abort(); /* a touch forgotten would be a race missed */
        list->count = count;
        list->room = room;
        epochs->more = list;
    }
    list->epochs[list->count++] = epoch;
}

/* Add a point; those that it comes after need no longer be kept. */
static void epochs_add(sim_epochs *epochs, const sim_clock *clock, sim_epoch me)
{
    struct sim_epoch_list *list = epochs->more;
    if (list) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < list->count; i++)
            if (!ordered(clock, list->epochs[i]))
                list->epochs[kept++] = list->epochs[i];
        list->count = kept;
        if (kept == 0) {
            free(list);
            epochs->more = NULL;
        }
    }
    if (ordered(clock, epochs->one))
        epochs->one = me;
    else
        append(epochs, me);
}

/* The first point not ordered by the clock, or tick 0. */
static sim_epoch epochs_conflict(const sim_epochs *epochs, const sim_clock *clock)
{
    if (!ordered(clock, epochs->one))
        return epochs->one;
    const struct sim_epoch_list *list = epochs->more;
    for (uint32_t i = 0; list && i < list->count; i++)
        if (!ordered(clock, list->epochs[i]))
            return list->epochs[i];
    return (sim_epoch){0, 0};
}

static sim_epochs epochs_copy(const sim_epochs *from)
{
    sim_epochs to = {from->one, NULL};
    for (uint32_t i = 0; from->more && i < from->more->count; i++)
        append(&to, from->more->epochs[i]);
    return to;
}

static void conflicts(toucher *touch, sim_epoch with, bool write)
{
    if (with.tick && !touch->conflict.tick) {
        touch->conflict = with;
        touch->conflict_write = write;
    }
}

/* Compare with one record and write the touch into it. */
static inline void touch_record(toucher *touch, sim_epoch *write, sim_epochs *reads)
{
    if (!ordered(touch->clock, *write))
        conflicts(touch, *write, true);
    if (touch->write) {
        if (reads->one.tick) {
            conflicts(touch, epochs_conflict(reads, touch->clock), false);
            sim_epochs_clear(reads);
        }
        *write = touch->me;
    } else {
        epochs_add(reads, touch->clock, touch->me);
    }
}

/* ---- pages touched in parts ------------------------------------------------------------------------------------------------------ */

static void segments_free(struct sim_segments *parts)
{
    for (uint32_t i = 0; i < parts->count; i++)
        free(parts->list[i].reads.more);
    free(parts->list);
    free(parts);
}

void sim_page_clear(sim_page *page)
{
    if (page->parts) {
        segments_free(page->parts);
        page->parts = NULL;
    }
    sim_epochs_clear(&page->reads);
    page->write = (sim_epoch){0, 0};
}

/* Index of the first segment that ends after `at`. */
static uint32_t find_segment(const struct sim_segments *parts, uint32_t at)
{
    uint32_t low = 0, high = parts->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (parts->list[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static segment *insert_segment(struct sim_segments *parts, uint32_t index, segment value)
{
    if (parts->count == parts->room) {
        uint32_t room = parts->room ? parts->room * 2 : 8;
        segment *list = realloc(parts->list, room * sizeof *list);
        if (!list)
            abort();
        parts->list = list;
        parts->room = room;
    }
    memmove(&parts->list[index + 1], &parts->list[index], (parts->count - index) * sizeof *parts->list);
    parts->list[index] = value;
    parts->count++;
    return &parts->list[index];
}

/* Make `at` a border if it lies inside a segment. */
static void split_at(struct sim_segments *parts, uint32_t at)
{
    uint32_t index = find_segment(parts, at);
    if (index == parts->count || parts->list[index].start >= at)
        return;
    segment left = parts->list[index];
    left.end = at;
    left.reads = epochs_copy(&left.reads);
    parts->list[index].start = at;
    insert_segment(parts, index, left);
}

/* What the host has observed is ordered before everything to come: no record is needed. */
static void prune(struct sim_segments *parts)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < parts->count; i++) {
        segment *part = &parts->list[i];
        if (ordered(&sim.host, part->write) && epochs_conflict(&part->reads, &sim.host).tick == 0)
            free(part->reads.more);
        else
            parts->list[kept++] = *part;
    }
    parts->count = kept;
    parts->prune_at = kept < 32 ? 64 : kept * 2;
}

static struct sim_segments *into_parts(sim_page *page, uint32_t page_end)
{
    struct sim_segments *parts = calloc(1, sizeof *parts);
    if (!parts)
        abort();
    parts->prune_at = 64;
    if (page->write.tick || page->reads.one.tick)
        insert_segment(parts, 0, (segment){0, page_end, page->write, page->reads});
    page->write = (sim_epoch){0, 0};
    page->reads = (sim_epochs){{0, 0}, NULL};
    page->parts = parts;
    return parts;
}

static void remove_segments(struct sim_segments *parts, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        free(parts->list[i].reads.more);
    memmove(&parts->list[first], &parts->list[first + count], (parts->count - first - count) * sizeof *parts->list);
    parts->count -= count;
}

static void touch_part(toucher *touch, sim_page *page, uint32_t page_end, uint32_t start, uint32_t end)
{
    struct sim_segments *parts = page->parts ? page->parts : into_parts(page, page_end);
    if (parts->count >= parts->prune_at)
        prune(parts);
    uint32_t index = find_segment(parts, start);
    if (index < parts->count && parts->list[index].start == start && parts->list[index].end == end) {
        touch_record(touch, &parts->list[index].write, &parts->list[index].reads);
        return;
    }
    split_at(parts, start);
    split_at(parts, end);
    uint32_t at = start;
    uint32_t first = index = find_segment(parts, start);
    while (at < end) {
        if (index == parts->count || parts->list[index].start > at) {
            uint32_t stop = index < parts->count && parts->list[index].start < end ? parts->list[index].start : end;
            insert_segment(parts, index, (segment){.start = at, .end = stop});
        }
        touch_record(touch, &parts->list[index].write, &parts->list[index].reads);
        at = parts->list[index].end;
        index++;
    }
    if (touch->write && index - first > 1) { /* all alike now */
        parts->list[first].end = end;
        remove_segments(parts, first + 1, index - first - 1);
    }
}

static void touch_page(toucher *touch, sim_page *page, uint32_t page_end, uint32_t start, uint32_t end)
{
    if (start == 0 && end == page_end && !page->parts) {
        touch_record(touch, &page->write, &page->reads);
        return;
    }
    touch_part(touch, page, page_end, start, end);
    if (touch->write && start == 0 && end == page_end) { /* one record is enough again */
        segments_free(page->parts);
        page->parts = NULL;
        page->write = touch->me;
    }
}

/* ---- from addresses to bytes ------------------------------------------------------------------------------------------------------- */

static bool granted(const sim_mapping *mapping, const sim_context *context, bool write)
{
    uint64_t bit = UINT64_C(1) << context->device;
    switch (mapping->kind) {
    case SIM_MEMORY_VMM:
    case SIM_MEMORY_POOL:
        return ((write ? mapping->writers : mapping->readers) & bit) != 0;
    case SIM_MEMORY_ALLOC:
    case SIM_MEMORY_IPC:
        return mapping->physical->device == context->device || (context->peers >> mapping->physical->device & 1);
    default:
        return true;
    }
}

CUresult sim_check_reach(const sim_context *context, const sim_reach *reach)
{
    uint64_t at = reach->address, end = reach->address + reach->bytes;
    while (at < end) {
        const sim_mapping *mapping = sim_mapping_find(at);
        if (!mapping) {
            if (sim_host_is_pinned(at, end - at))
                return CUDA_SUCCESS;
            sim_find(SIMCUDA_BAD_ACCESS, "0x%llx is not mapped (in a touch of %llu bytes at 0x%llx)", (unsigned long long)at,
                     (unsigned long long)reach->bytes, (unsigned long long)reach->address);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        if (!granted(mapping, context, reach->write)) {
            sim_find(SIMCUDA_BAD_ACCESS, "device %d has no %s access to 0x%llx", context->device, reach->write ? "write" : "read",
                     (unsigned long long)at);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        at = mapping->address + mapping->bytes;
    }
    return CUDA_SUCCESS;
}

void sim_check_touch(sim_lane *lane, const sim_reach *reach)
{
    toucher touch = {&lane->clock, {lane->index, lane->enqueued}, reach->write, {0, 0}, false};
    uint64_t at = reach->address, end = reach->address + reach->bytes, page_bytes = sim.page_bytes, bad = 0;
    const sim_physical *bad_physical = NULL;
    while (at < end) {
        sim_mapping *mapping = sim_mapping_find(at);
        if (!mapping)
            return; /* registered host memory */
        uint64_t offset = at - mapping->address, stop = mapping->bytes;
        if (stop > end - mapping->address)
            stop = end - mapping->address;
        epochs_add(&mapping->touches, touch.clock, touch.me);
        sim_physical *physical = mapping->physical;
        while (offset < stop) {
            uint64_t page = offset >> sim.page_shift, base = page << sim.page_shift;
            uint32_t page_end = (uint32_t)(physical->bytes - base < page_bytes ? physical->bytes - base : page_bytes);
            uint32_t part_end = (uint32_t)(stop - base < page_end ? stop - base : page_end);
            touch_page(&touch, &physical->pages[page], page_end, (uint32_t)(offset - base), part_end);
            if (touch.conflict.tick && !bad_physical) {
                bad = mapping->address + offset;
                bad_physical = physical;
            }
            offset = base + part_end;
        }
        at = mapping->address + stop;
    }
    if (touch.conflict.tick) {
        char mine[64], other[64];
        sim_find(SIMCUDA_RACE_TOUCH, "%s on %s of %llu bytes at 0x%llx (physical #%llu, first at 0x%llx) is not ordered after a %s on %s",
                 reach->write ? "write" : "read", sim_lane_text(lane->index, mine, sizeof mine), (unsigned long long)reach->bytes,
                 (unsigned long long)reach->address, (unsigned long long)bad_physical->number, (unsigned long long)bad,
                 touch.conflict_write ? "write" : "read", sim_lane_text(touch.conflict.lane, other, sizeof other));
    }
}

static void check_observed(sim_mapping *mapping, const char *what)
{
    sim_epoch conflict = epochs_conflict(&mapping->touches, &sim.host);
    if (!conflict.tick)
        return;
    char text[64];
    sim_find(SIMCUDA_RACE_UNMAP, "%s %llu bytes at 0x%llx (physical #%llu), but the host has not seen a touch on %s end", what,
             (unsigned long long)mapping->bytes, (unsigned long long)mapping->address, (unsigned long long)mapping->physical->number,
             sim_lane_text(conflict.lane, text, sizeof text));
}

void sim_check_unmap(sim_mapping *mapping) { check_observed(mapping, "unmap of"); }

void sim_check_revoke(sim_mapping *mapping) { check_observed(mapping, "access taken from"); }

void sim_check_free(sim_mapping *mapping) { check_observed(mapping, "free of"); }

const char *sim_lane_text(uint32_t index, char *text, size_t room)
{
    const sim_lane *lane = sim_lane_at(index);
    if (!lane)
        snprintf(text, room, "a stream that is gone");
    else if (lane->stream)
        snprintf(text, room, "%s 0x%llx%s", lane->name, (unsigned long long)lane->stream, lane->open ? "" : " (destroyed)");
    else
        snprintf(text, room, "the %s", lane->name);
    return text;
}
