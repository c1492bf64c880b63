/*
 * Owns the words of `inspect`: tables of a report, names of streams, pools and stack frames. No state; one thread. Called by
 * cmd_inspect.c.
 */
#include "explain.h"
#include "inspect.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_FRAMES = 4, SIZE_TEXT = 32 };

/* ---- names -------------------------------------------------------------------------------------------------------------------------- */

const char *inspect_frame(const cmi_picture *p, uint32_t number, char text[512])
{
    const cmi_picture_frame *frame = &p->frames[number];
    const char *function = p->strings[frame->function], *file = p->strings[frame->file];
    if (file[0] == '\0')
        snprintf(text, 512, "%s", function);
    else if (frame->line == 0)
        snprintf(text, 512, "%s (%s)", function, file);
    else
        snprintf(text, 512, "%s (%s:%" PRIu32 ")", function, file, frame->line);
    return text;
}

const char *inspect_stream_name(const cmi_picture *p, uint16_t stream, char text[64])
{
    uint64_t value = stream < p->stream_count ? p->streams[stream].value : 0;
    if (value == 0)
        snprintf(text, 64, "default stream");
    else
        snprintf(text, 64, value < 65536 ? "stream %" PRIu64 : "stream 0x%" PRIx64, value);
    return text;
}

const char *inspect_pool_name(const cmi_picture *p, uint32_t number, char text[64])
{
    const cmi_picture_pool *pool = &p->pools[number];
    const char *name = p->strings[pool->name];
    if (number == 0 && name[0] == '\0')
        snprintf(text, 64, "default pool");
    else
        snprintf(text, 64, "%s %" PRIu64 "/%" PRIu64,
                 name[0] != '\0'    ? name
                 : pool->is_private ? "private"
                                    : "pool",
                 pool->id[0], pool->id[1]);
    return text;
}

static bool is_any(const inspect_share *share) { return share->reserved > 0; }

/* ---- text --------------------------------------------------------------------------------------------------------------------------- */

static void print_figure(const char *what, uint64_t bytes, const char *more)
{
    char text[SIZE_TEXT];
    printf("  %-26s %12s  %s\n", what, bytes == CMI_UNKNOWN ? "not known" : explain_size(bytes, text), more);
}

static void print_share(const char *name, const inspect_share *share)
{
    char reserved[SIZE_TEXT], live[SIZE_TEXT], pending[SIZE_TEXT], idle[SIZE_TEXT], fixed[SIZE_TEXT];
    printf("  %-26s %12s %12s %12s %12s %12s\n", name, explain_size(share->reserved, reserved), explain_size(share->live, live),
           explain_size(share->pending, pending), explain_size(share->idle, idle), explain_size(share->fixed, fixed));
}

static void print_shares(const inspect_report *r)
{
    const cmi_picture *p = r->picture;
    char name[64];
    printf("\n  %-26s %12s %12s %12s %12s %12s\n", "", "reserved", "live", "pending", "idle", "fixed");
    for (uint32_t i = 0; i < p->stream_count; i++)
        if (is_any(&r->streams[i]))
            print_share(inspect_stream_name(p, (uint16_t)i, name), &r->streams[i]);
    for (uint32_t i = 0; i < p->pool_count; i++)
        if (is_any(&r->pools[i]))
            print_share(inspect_pool_name(p, i, name), &r->pools[i]);
}

static void print_runs(const inspect_report *r)
{
    uint64_t most = 0;
    for (int i = 0; i < INSPECT_RUN_CLASSES; i++)
        most = r->runs.bytes[i] > most ? r->runs.bytes[i] : most;
    if (most == 0)
        return;
    printf("\n  idle runs\n");
    for (int i = 0; i < INSPECT_RUN_CLASSES; i++) {
        char from[SIZE_TEXT], bytes[SIZE_TEXT];
        if (r->runs.runs[i] == 0)
            continue;
        int width = (int)(r->runs.bytes[i] * 30.0 / (double)most + 0.5);
        printf("    from %-19s %9zu %15s  %.*s\n", explain_size((uint64_t)1 << 2 * i, from), r->runs.runs[i],
               explain_size(r->runs.bytes[i], bytes), width, "##############################");
    }
}

static void print_largest(const inspect_report *r)
{
    const inspect_largest *l = &r->largest;
    printf("\n  largest request that would be served%s\n", l->driver_room == CMI_UNKNOWN ? " (what the device has free is not known)" : "");
    if (l->driver_room != CMI_UNKNOWN)
        print_figure("  the driver would give", l->driver_room, "");
    print_figure("  now", l->now, "");
    print_figure("  after waiting", l->after_waiting, "for pending memory");
    print_figure("  after moving pages", l->after_moving, "idle pages side by side, with new ones");
    print_figure("  after trim", l->after_trim, "what can go back goes back first");
    print_figure("  without moving pages", l->without_moving, "whole segments go back, pieces stay");
}

static bool is_python(const cmi_picture *p, uint32_t frame)
{
    const char *file = p->strings[p->frames[frame].file];
    size_t length = strlen(file);
    return length > 3 && strcmp(file + length - 3, ".py") == 0;
}

/* Frames of the allocator itself, PyTorch's or this library, with which stacks of C and C++ begin. */
static bool is_of_allocator(const cmi_picture *p, uint32_t frame)
{
    static const char *const parts[] = {"::unwind", "CapturedTraceback", "gather_with_cpp", "CachingAllocator", "libcudamempool"};
    const char *function = p->strings[p->frames[frame].function], *file = p->strings[p->frames[frame].file];
    bool is = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        is = is || strstr(function, parts[i]) != NULL || strstr(file, parts[i]) != NULL;
    return is;
}

/* The innermost frames that tell something: of a Python program those of its own language, else those outside the allocator. */
static void print_stack(const cmi_picture *p, cmi_stack_id id, const char *indent)
{
    const cmi_picture_stack *stack = &p->stacks[id];
    const uint32_t *frames = p->stack_frames + stack->first;
    uint32_t python = 0, first = 0, told = 0;
    char text[512];
    for (uint32_t i = 0; i < stack->count; i++)
        python += is_python(p, frames[i]);
    while (python == 0 && first < stack->count && is_of_allocator(p, frames[first]))
        first++;
    for (uint32_t i = first; i < stack->count; i++)
        if ((python == 0 || is_python(p, frames[i])) && told++ < SHOWN_FRAMES)
            printf("%s%s\n", indent, inspect_frame(p, frames[i], text));
    if (told > SHOWN_FRAMES)
        printf("%s... %u more\n", indent, (unsigned)(told - SHOWN_FRAMES));
}

static void print_holders(const inspect_report *r, const char *title, const inspect_holders *list, bool by_tag, uint64_t top)
{
    const cmi_picture *p = r->picture;
    if (list->count == 0 || (list->count == 1 && list->holders[0].key == 0))
        return; /* nothing is named */
    printf("\n  %s\n", title);
    for (size_t i = 0; i < list->count && i < top; i++) {
        const inspect_holder *holder = &list->holders[i];
        char bytes[SIZE_TEXT];
        printf("    %12s in %zu block%s", explain_size(holder->bytes, bytes), holder->blocks, holder->blocks == 1 ? "" : "s");
        if (by_tag)
            printf(": %s\n", holder->key != 0 ? p->strings[holder->key] : "no tag");
        else
            printf("%s\n", holder->key != 0 ? "" : ", stack not known");
        if (!by_tag)
            print_stack(p, holder->key, "      ");
    }
    if (list->count > top)
        printf("    ... %zu more\n", (size_t)(list->count - top));
}

static void print_age(int64_t ns)
{
    if (ns >= 0 && ns < 1000000000)
        printf(", %.1f ms before the end", (double)ns / 1e6);
    else if (ns >= 0)
        printf(", %.1f s before the end", (double)ns / 1e9);
}

static void print_stuck(const inspect_report *r, uint64_t top)
{
    const cmi_picture *p = r->picture;
    if (r->stuck_segment == CMI_NONE)
        return;
    const cmi_picture_segment *segment = &p->segments[r->stuck_segment];
    char bytes[SIZE_TEXT], idle[SIZE_TEXT];
    uint64_t shown = 0, blocks = 0;
    printf("\n  what keeps the largest idle segment from going back: 0x%" PRIx64 ", %s, idle in it %s%s\n", segment->address,
           explain_size(segment->bytes, bytes), explain_size(r->stuck_bytes, idle),
           segment->expandable ? "; its pages without a live byte go back alone" : "");
    for (uint32_t i = 0; i < segment->block_count; i++) {
        const uint32_t number = segment->first_block + i;
        const cmi_picture_block *block = &p->blocks[number];
        if (block->state == CMI_BLOCK_IDLE && !block->fixed)
            continue;
        if (blocks++ >= top)
            continue;
        shown++;
        printf("    0x%" PRIx64 " %12s  %s%s%s%s", block->address, explain_size(block->bytes, bytes), cmi_block_state_name(block->state),
               block->fixed ? ", fixed" : "", block->tag != 0 ? ", " : "", p->strings[block->tag]);
        print_age(inspect_age_ns(r, number));
        printf("\n");
        print_stack(p, block->stack, "      ");
    }
    if (blocks > shown)
        printf("    ... %" PRIu64 " more blocks\n", blocks - shown);
}

static void print_run(const inspect_report *r)
{
    const cmi_picture_run *run = &r->lives.run;
    if (!r->picture->has_history)
        return;
    print_figure("peak live", run->peak_live_bytes, "in the history");
    print_figure("peak reserved", run->peak_reserved_bytes, "");
}

void inspect_print(const char *file, const inspect_report *r, const inspect_options *options)
{
    const cmi_picture *p = r->picture;
    const cmi_picture_device *device = &p->devices[r->device];
    const cmi_picture_totals *t = &r->totals;
    char more[64];
    printf("%s: %s, GPU %" PRIu32 "%s\n", file, p->format, device->ordinal, p->has_state ? "" : "; a history without a state at its end");
    if (device->total_bytes != CMI_UNKNOWN)
        print_figure("the device", device->total_bytes, "");
    if (p->has_state) {
        snprintf(more, sizeof more, "%zu segments", t->segments);
        print_figure("reserved", t->reserved_bytes, more);
        snprintf(more, sizeof more, "%zu blocks", t->live_blocks);
        print_figure("live", t->live_bytes, more);
        print_figure("pending", t->pending_bytes, "freed, and waiting for a stream");
        print_figure("idle", t->idle_bytes, "");
        print_figure("fixed", t->fixed_bytes, "must not move");
        if (t->private_bytes > 0)
            print_figure("in private pools", t->private_bytes, "");
        uint64_t pinned = inspect_pinned(p, "held_bytes");
        char live[32];
        if (pinned > 0) {
            snprintf(more, sizeof more, "%s live; of all devices", explain_size(inspect_pinned(p, "live_bytes"), live));
            print_figure("pinned host memory", pinned, more);
        }
    }
    print_run(r);
    if (p->has_state) {
        print_shares(r);
        print_runs(r);
        print_largest(r);
        print_holders(r, "live memory by tag", &r->tags, true, options->top);
        print_holders(r, "live memory by call stack", &r->stacks, false, options->top);
        print_stuck(r, options->top);
    }
    printf("\n");
}

void inspect_print_sum(size_t files, const cmi_picture_totals *sum)
{
    printf("total of %zu files\n", files);
    print_figure("reserved", sum->reserved_bytes, "");
    print_figure("live", sum->live_bytes, "");
    print_figure("pending", sum->pending_bytes, "");
    print_figure("idle", sum->idle_bytes, "");
    print_figure("fixed", sum->fixed_bytes, "");
    printf("\n");
}
