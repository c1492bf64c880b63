/*
 * Puts a picture in order after reading: devices by their ordinals, segments by address, blocks that tile them without a gap; and the
 * names of its enums. No locks; everything belongs to the call. Called by the formats.
 */
#include "trace/build.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 4096 };

static int no_memory(cmi_builder *b) { return cmi_reader_fault(b->reader, "no host memory for what it holds"); }

const char *cmi_event_kind_name(cmi_event_kind kind)
{
    static const char *const names[CMI_EVENT_KINDS] = {
        [CMI_EVENT_ALLOC] = "alloc",
        [CMI_EVENT_FREE_REQUESTED] = "free_requested",
        [CMI_EVENT_FREE_COMPLETED] = "free_completed",
        [CMI_EVENT_USE] = "use",
        [CMI_EVENT_SEGMENT_ALLOC] = "segment_alloc",
        [CMI_EVENT_SEGMENT_FREE] = "segment_free",
        [CMI_EVENT_SEGMENT_MAP] = "segment_map",
        [CMI_EVENT_SEGMENT_UNMAP] = "segment_unmap",
        [CMI_EVENT_REFUSED] = "oom",
        [CMI_EVENT_SNAPSHOT] = "snapshot",
        [CMI_EVENT_STEP] = "step",
        [CMI_EVENT_PHASE] = "phase",
        [CMI_EVENT_RANGE_BEGIN] = "range_begin",
        [CMI_EVENT_RANGE_END] = "range_end",
        [CMI_EVENT_MOVE] = "move",
        [CMI_EVENT_WAIT_DEVICE] = "wait_device",
        [CMI_EVENT_WAIT_HOST] = "wait_host",
    };
    return (unsigned)kind < CMI_EVENT_KINDS ? names[kind] : "unknown";
}

const char *cmi_block_state_name(cmi_block_state state)
{
    return state == CMI_BLOCK_LIVE ? "live" : state == CMI_BLOCK_PENDING ? "pending" : "idle";
}

/* ---- devices ------------------------------------------------------------------------------------------------------------------------ */

/* Ordinals become indices of devices, which are in order. */
static int number_devices(cmi_builder *b)
{
    cmi_picture *p = b->picture;
    uint32_t index[MOST_DEVICES];
    memset(index, 0xff, sizeof index);
    for (size_t i = 0; i < p->segment_count; i++)
        index[p->segments[i].device % MOST_DEVICES] = 0;
    for (size_t i = 0; i < p->event_count; i++)
        index[p->events[i].device % MOST_DEVICES] = 0;
    for (size_t i = 0; i < p->device_count; i++)
        index[p->devices[i].ordinal % MOST_DEVICES] = 0;
    for (uint32_t ordinal = 0; ordinal < MOST_DEVICES; ordinal++) {
        if (index[ordinal] == CMI_NONE)
            continue;
        size_t at = 0;
        while (at < p->device_count && p->devices[at].ordinal < ordinal)
            at++;
        index[ordinal] = (uint32_t)at;
        if (at < p->device_count && p->devices[at].ordinal == ordinal)
            continue;
        if (!cmi_grow(&p->devices, p->device_count, sizeof *p->devices))
            return no_memory(b);
        memmove(p->devices + at + 1, p->devices + at, (p->device_count - at) * sizeof *p->devices);
        p->devices[at] =
            (cmi_picture_device){.ordinal = ordinal, .total_bytes = CMI_UNKNOWN, .free_bytes = CMI_UNKNOWN, .limit_bytes = CMI_UNKNOWN};
        p->device_count++;
    }
    for (size_t i = 0; i < p->segment_count; i++)
        p->segments[i].device = index[p->segments[i].device % MOST_DEVICES];
    for (size_t i = 0; i < p->event_count; i++)
        p->events[i].device = index[p->events[i].device % MOST_DEVICES];
    for (size_t i = 0; i < p->refusal_count; i++) /* of devices that are there */
        p->refusals[i].device = index[p->refusals[i].device % MOST_DEVICES];
    return 0;
}

/* ---- segments and blocks ---------------------------------------------------------------------------------------------------------------
 */

static int by_device_and_address(const void *a, const void *b)
{
    const cmi_picture_segment *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return (x->address > y->address) - (x->address < y->address);
}

static bool add_block(cmi_picture *tiled, const cmi_picture_block *block)
{
    if (!cmi_grow(&tiled->blocks, tiled->block_count, sizeof *tiled->blocks))
        return false;
    tiled->blocks[tiled->block_count++] = *block;
    return true;
}

/* The blocks of one segment in a row: those without an address follow the one before, and what nobody names is idle. */
static int tile(cmi_builder *b, const cmi_picture_block *blocks, uint32_t number, cmi_picture *tiled)
{
    cmi_picture_segment *segment = &b->picture->segments[number];
    const uint64_t end = segment->address + segment->bytes;
    uint64_t at = segment->address;
    uint32_t first = (uint32_t)tiled->block_count;
    for (uint32_t i = 0; i <= segment->block_count; i++) {
        cmi_picture_block gap = {.address = at, .segment = number, .stream = segment->stream}, block = {.address = end};
        if (i < segment->block_count)
            block = blocks[segment->first_block + i];
        if (block.address == CMI_UNKNOWN)
            block.address = at;
        gap.bytes = block.address - at;
        if (block.address < at || block.address > end || block.bytes > end - block.address)
            return cmi_reader_fault(b->reader, "the blocks of the segment at 0x%" PRIx64 " do not lie in it one after the other",
                                    segment->address);
        if (gap.bytes > 0 && !add_block(tiled, &gap))
            return no_memory(b);
        if (block.bytes == 0)
            continue;
        block.segment = number;
        if (block.stream == CMI_STREAM_OF_SEGMENT)
            block.stream = segment->stream;
        if (block.state == CMI_BLOCK_IDLE)
            block.requested_bytes = 0;
        if (!add_block(tiled, &block))
            return no_memory(b);
        at = block.address + block.bytes;
    }
    segment->first_block = first;
    segment->block_count = (uint32_t)tiled->block_count - first;
    return 0;
}

int cmi_build_segments(cmi_builder *b)
{
    cmi_picture *p = b->picture, tiled = {0};
    for (size_t i = 0; i < p->segment_count; i++) {
        const cmi_picture_segment *s = &p->segments[i];
        if (s->address == CMI_UNKNOWN || s->bytes > UINT64_MAX - s->address)
            return cmi_reader_fault(b->reader, "a segment without a place");
    }
    if (p->segment_count > 1)
        qsort(p->segments, p->segment_count, sizeof *p->segments, by_device_and_address);
    for (size_t i = 0; i < p->segment_count; i++) {
        const cmi_picture_segment *s = &p->segments[i], *before = i > 0 ? s - 1 : NULL;
        if (before != NULL && before->device == s->device && before->address + before->bytes > s->address) {
            free(tiled.blocks);
            return cmi_reader_fault(b->reader, "the segments at 0x%" PRIx64 " and 0x%" PRIx64 " overlap", before->address, s->address);
        }
        if (tile(b, p->blocks, (uint32_t)i, &tiled) != 0) {
            free(tiled.blocks);
            return -1;
        }
    }
    free(p->blocks);
    p->blocks = tiled.blocks;
    p->block_count = tiled.block_count;
    return 0;
}

int cmi_build_finish(cmi_builder *b) { return number_devices(b) != 0 || cmi_build_segments(b) != 0 ? -1 : cmi_build_refusals(b); }
