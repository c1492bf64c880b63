/*
 * Owns the figures of `inspect`: sums by stream and pool, runs, the largest requests, holders. Reads a picture, keeps its own arrays. One
 * thread. Called by cmd_inspect.c.
 */
#include "inspect.h"
#include "inspect/verdict.h"
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES ((uint64_t)2 << 20)

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- shares ------------------------------------------------------------------------------------------------------------------------- */

static void add_to_share(inspect_share *share, const cmi_picture_block *block)
{
    share->reserved += block->bytes;
    share->fixed += block->fixed ? block->bytes : 0;
    if (block->state == CMI_BLOCK_LIVE) {
        share->live += block->bytes;
        share->live_blocks++;
    } else if (block->state == CMI_BLOCK_PENDING)
        share->pending += block->bytes;
    else
        share->idle += block->bytes;
}

static void add_run(inspect_runs *runs, uint64_t bytes)
{
    if (bytes == 0)
        return;
    int class = (63 - __builtin_clzll(bytes)) / 2;
    runs->bytes[class] += bytes;
    runs->runs[class]++;
}

/* ---- one segment -------------------------------------------------------------------------------------------------------------------- */

typedef struct segment_sums {
    uint64_t longest_idle, longest_waited; /* runs: of idle bytes, and of idle or pending ones */
    uint64_t free_pages;                   /* bytes of whole pages without a live byte */
    uint64_t held;                         /* live or fixed bytes */
    uint64_t idle;                         /* idle or pending */
} segment_sums;

/* Pages of a segment lie at multiples of the page from its own start, as physical memory is cut. */
static uint64_t whole_pages(uint64_t from, uint64_t to)
{
    uint64_t first = (from + PAGE_BYTES - 1) / PAGE_BYTES, last = to / PAGE_BYTES;
    return last > first ? (last - first) * PAGE_BYTES : 0;
}

static segment_sums look_at_segment(inspect_report *r, const cmi_picture_segment *segment)
{
    segment_sums sums = {0};
    uint64_t idle = 0, waited = 0, at = 0;
    for (uint32_t i = 0; i < segment->block_count; i++, at += r->picture->blocks[segment->first_block + i - 1].bytes) {
        const cmi_picture_block *block = &r->picture->blocks[segment->first_block + i];
        bool is_held = block->state == CMI_BLOCK_LIVE || block->fixed;
        add_to_share(&r->streams[block->stream], block);
        add_to_share(&r->pools[segment->pool], block);
        if (block->state != CMI_BLOCK_IDLE) {
            add_run(&r->runs, idle);
            idle = 0;
        } else
            idle += block->bytes;
        sums.longest_idle = larger(sums.longest_idle, idle);
        if (is_held) {
            sums.free_pages += whole_pages(at - waited, at);
            sums.held += block->bytes;
            waited = 0;
        } else
            waited += block->bytes;
        sums.longest_waited = larger(sums.longest_waited, waited);
        sums.idle += block->state == CMI_BLOCK_LIVE ? 0 : block->bytes;
    }
    add_run(&r->runs, idle);
    sums.free_pages += whole_pages(at - waited, at);
    return sums;
}

static uint64_t driver_room(const inspect_report *r)
{
    const cmi_picture_device *device = &r->picture->devices[r->device];
    cmi_shortage figures;
    cmi_shortage_init(&figures);
    figures.driver_free = device->free_bytes;
    figures.limit = device->limit_bytes;
    figures.live = r->totals.live_bytes;
    figures.idle = r->totals.idle_bytes + r->totals.pending_bytes;
    return cmi_shortage_driver_room(&figures);
}

static void look_at_segments(inspect_report *r)
{
    const cmi_picture *p = r->picture;
    inspect_largest *l = &r->largest;
    uint64_t pages = 0, whole = 0, given_back = 0;
    for (uint32_t i = 0; i < p->segment_count; i++) {
        const cmi_picture_segment *segment = &p->segments[i];
        if (segment->device != r->device)
            continue;
        segment_sums sums = look_at_segment(r, segment);
        if (sums.held > 0 && sums.idle > r->stuck_bytes) {
            r->stuck_bytes = sums.idle;
            r->stuck_segment = i;
        }
        if (cmi_picture_is_shut(p, segment->pool))
            continue;
        l->now = larger(l->now, sums.longest_idle);
        l->after_waiting = larger(l->after_waiting, sums.longest_waited);
        pages += sums.free_pages;
        whole += sums.held == 0 ? segment->bytes : 0;
        given_back += sums.held == 0 ? segment->bytes : segment->expandable ? sums.free_pages : 0;
    }
    l->driver_room = driver_room(r);
    uint64_t room = l->driver_room != CMI_UNKNOWN ? l->driver_room : 0;
    l->now = larger(l->now, room);
    l->after_waiting = larger(l->after_waiting, room);
    l->after_moving = larger(l->after_waiting, pages + room);
    l->after_trim = larger(l->after_waiting, given_back + room);
    l->without_moving = larger(l->after_waiting, whole + room);
}

/* ---- holders ------------------------------------------------------------------------------------------------------------------------ */

static int by_bytes(const void *a, const void *b)
{
    const inspect_holder *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Sums by tag (a string) or by stack. false without host memory. */
static bool find_holders(const inspect_report *r, bool by_tag, inspect_holders *holders)
{
    const cmi_picture *p = r->picture;
    size_t keys = by_tag ? p->string_count : p->stack_count;
    inspect_holder *all = calloc(keys + 1, sizeof *all);
    if (all == NULL)
        return false;
    for (uint32_t i = 0; i < keys; i++)
        all[i].key = i;
    for (size_t i = 0; i < p->block_count; i++) {
        const cmi_picture_block *block = &p->blocks[i];
        if (block->state != CMI_BLOCK_LIVE || p->segments[block->segment].device != r->device)
            continue;
        all[by_tag ? block->tag : block->stack].bytes += block->bytes;
        all[by_tag ? block->tag : block->stack].blocks++;
    }
    for (size_t i = 0; i < keys; i++)
        if (all[i].blocks > 0)
            all[holders->count++] = all[i];
    if (holders->count > 1)
        qsort(all, holders->count, sizeof *all, by_bytes);
    holders->holders = all;
    return true;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------- */

static bool find_lives(inspect_report *r)
{
    r->life_of_block = malloc((r->picture->block_count + 1) * sizeof *r->life_of_block);
    if (r->life_of_block == NULL || cmi_picture_match(r->picture, r->device, &r->lives) != 0)
        return false;
    memset(r->life_of_block, 0xff, (r->picture->block_count + 1) * sizeof *r->life_of_block);
    for (uint32_t i = 0; i < r->lives.count; i++)
        if (r->lives.lives[i].block != CMI_NONE)
            r->life_of_block[r->lives.lives[i].block] = i;
    return true;
}

int inspect_make(const cmi_picture *picture, uint32_t device, inspect_report *report)
{
    *report = (inspect_report){.picture = picture, .device = device, .stuck_segment = CMI_NONE};
    report->streams = calloc(picture->stream_count + 1, sizeof *report->streams);
    report->pools = calloc(picture->pool_count + 1, sizeof *report->pools);
    bool done = report->streams != NULL && report->pools != NULL && find_lives(report) && find_holders(report, true, &report->tags) &&
                find_holders(report, false, &report->stacks);
    if (!done) {
        inspect_free(report);
        return -1;
    }
    cmi_picture_total(picture, device, &report->totals);
    look_at_segments(report);
    return 0;
}

void inspect_free(inspect_report *report)
{
    free(report->streams);
    free(report->pools);
    free(report->tags.holders);
    free(report->stacks.holders);
    free(report->life_of_block);
    cmi_picture_lives_free(&report->lives);
    *report = (inspect_report){0};
}

int64_t inspect_age_ns(const inspect_report *report, uint32_t block)
{
    const cmi_picture *p = report->picture;
    const uint32_t life = report->life_of_block[block];
    int64_t begun = p->blocks[block].allocated_ns, last = 0;
    if (begun == 0 && life != CMI_NONE && report->lives.lives[life].alloc_event != CMI_NONE)
        begun = p->events[report->lives.lives[life].alloc_event].time_ns;
    for (size_t i = p->event_count; last == 0 && i-- > 0;)
        if (p->events[i].device == report->device)
            last = p->events[i].time_ns;
    return begun > 0 && last >= begun ? last - begun : -1;
}

uint64_t inspect_pinned(const cmi_picture *picture, const char *figure)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < picture->note_count; i++) {
        const cmi_picture_note *note = &picture->notes[i];
        if (strcmp(picture->strings[note->group], "pinned") == 0 && strcmp(picture->strings[note->key], figure) == 0)
            sum += strtoull(picture->strings[note->value], NULL, 10);
    }
    return sum;
}
