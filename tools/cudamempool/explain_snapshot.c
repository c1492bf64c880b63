/*
 * Owns the way from a snapshot's refusals to the figures of a message: what was held at the moment of the refusal, not when the snapshot
 * was taken, which is often after the exception has freed most of it. One thread. Called by `explain`.
 */
#include "explain.h"
#include <stdlib.h>
#include <string.h>

static uint64_t known_sum(uint64_t a, uint64_t b) { return a == CMI_UNKNOWN || b == CMI_UNKNOWN ? CMI_FIGURE_UNKNOWN : a + b; }

static cmi_oom_format format_of(const cmi_picture *picture)
{
    if (strcmp(picture->format, "pytorch") == 0 || strcmp(picture->format, "memory_viz-json") == 0)
        return CMI_OOM_PYTORCH;
    if (strcmp(picture->format, "cudamempool") == 0)
        return CMI_OOM_CUDAMEMPOOL;
    return strcmp(picture->format, "rmm-csv") == 0 ? CMI_OOM_RMM : CMI_OOM_BARE;
}

static void figures_of(const cmi_picture *picture, const cmi_picture_refusal *refusal, cmi_oom_message *message)
{
    cmi_shortage *figures = &message->figures;
    const cmi_picture_device *device = refusal->device < picture->device_count ? &picture->devices[refusal->device] : NULL;
    *message = (cmi_oom_message){.format = format_of(picture),
                                 .from_snapshot = true,
                                 .device = device != NULL ? (int)device->ordinal : -1,
                                 .reserved = refusal->reserved_bytes,
                                 .short_by = CMI_FIGURE_UNKNOWN,
                                 .this_process = CMI_FIGURE_UNKNOWN};
    cmi_shortage_init(figures);
    figures->request = refusal->request_bytes;
    figures->live = refusal->live_bytes;
    figures->idle = known_sum(refusal->idle_bytes, refusal->pending_bytes); /* the judge counts pending bytes as idle ones */
    figures->pending = refusal->pending_bytes;
    figures->private_idle = refusal->private_idle_bytes;
    figures->largest_idle = refusal->largest_idle_bytes;
    figures->driver_free = refusal->device_free_bytes;
    figures->limit = refusal->limit_bytes;
    if (device != NULL)
        figures->total = device->total_bytes;
}

size_t explain_picture(const cmi_picture *picture, cmi_oom_message **messages)
{
    *messages = NULL;
    if (picture->refusal_count == 0)
        return 0;
    *messages = calloc(picture->refusal_count, sizeof **messages);
    if (*messages == NULL)
        return SIZE_MAX;
    for (size_t i = 0; i < picture->refusal_count; i++)
        figures_of(picture, &picture->refusals[i], &(*messages)[i]);
    return picture->refusal_count;
}

static bool is_near(uint64_t one, uint64_t other)
{
    return one != CMI_UNKNOWN && other != CMI_UNKNOWN && (one > other ? one - other : other - one) <= one / 100;
}

static void fill(uint64_t *figure, uint64_t value)
{
    if (*figure == CMI_FIGURE_UNKNOWN)
        *figure = value;
}

/* A snapshot without the refusal tells of the same moment only if it shows what the message says. */
static void fill_from_state(const cmi_picture *picture, cmi_shortage *figures)
{
    cmi_picture_totals totals;
    cmi_picture_total(picture, CMI_NONE, &totals);
    if (!picture->has_state || !is_near(totals.live_bytes, figures->live))
        return;
    fill(&figures->idle, totals.idle_bytes + totals.pending_bytes);
    fill(&figures->pending, totals.pending_bytes);
    fill(&figures->private_live, totals.private_live_bytes);
    fill(&figures->private_idle, totals.private_idle_bytes);
    fill(&figures->largest_idle, totals.largest_idle_bytes);
}

void explain_with_picture(const cmi_picture *picture, cmi_oom_message *message)
{
    for (size_t i = picture->refusal_count; i-- > 0;) {
        cmi_oom_message told;
        if (!is_near(picture->refusals[i].request_bytes, message->figures.request))
            continue;
        figures_of(picture, &picture->refusals[i], &told);
        fill(&message->figures.live, told.figures.live);
        fill(&message->figures.idle, told.figures.idle);
        fill(&message->figures.pending, told.figures.pending);
        fill(&message->figures.private_idle, told.figures.private_idle);
        fill(&message->figures.largest_idle, told.figures.largest_idle);
        fill(&message->figures.driver_free, told.figures.driver_free);
        fill(&message->figures.total, told.figures.total);
        return;
    }
    fill_from_state(picture, &message->figures);
}
