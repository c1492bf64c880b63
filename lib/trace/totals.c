/* Sums over the state of a picture. No state. Called by tools. */
#include "trace/picture.h"
#include <string.h>

static void add_segment(const cmi_picture *p, const cmi_picture_segment *segment, cmi_picture_totals *t)
{
    uint64_t live = 0, held = 0, run = 0;
    for (uint32_t i = 0; i < segment->block_count; i++) {
        const cmi_picture_block *block = &p->blocks[segment->first_block + i];
        t->fixed_bytes += block->fixed ? block->bytes : 0;
        if (block->state == CMI_BLOCK_IDLE) {
            t->idle_blocks++;
            run += block->bytes;
            t->largest_idle_bytes = run > t->largest_idle_bytes ? run : t->largest_idle_bytes;
            continue;
        }
        run = 0;
        held += block->bytes;
        if (block->state == CMI_BLOCK_PENDING) {
            t->pending_bytes += block->bytes;
            t->pending_blocks++;
        } else {
            live += block->bytes;
            t->live_blocks++;
            t->requested_bytes += block->requested_bytes;
        }
    }
    t->segments++;
    t->reserved_bytes += segment->bytes;
    t->live_bytes += live;
    t->idle_bytes += segment->bytes - held;
    t->whole_idle_bytes += held == 0 ? segment->bytes : 0;
    if (p->pools[segment->pool].is_private) {
        t->private_bytes += segment->bytes;
        t->private_live_bytes += live;
        t->private_idle_bytes += segment->bytes - held;
    }
}

bool cmi_picture_is_shut(const cmi_picture *picture, uint32_t pool)
{
    const cmi_picture_pool *it = pool < picture->pool_count ? &picture->pools[pool] : NULL;
    if (it == NULL || !it->is_private)
        return false;
    return strcmp(picture->format, "cudamempool") != 0 || strcmp(picture->strings[it->name], "private") != 0;
}

void cmi_picture_total(const cmi_picture *picture, uint32_t device, cmi_picture_totals *totals)
{
    *totals = (cmi_picture_totals){0};
    for (size_t i = 0; i < picture->segment_count; i++)
        if (device == CMI_NONE || picture->segments[i].device == device)
            add_segment(picture, &picture->segments[i], totals);
}
