/*
 * A picture as a PyTorch memory snapshot, in the keys of the present version. Frames and stacks are written once in a pickle and referred
 * to. No locks; everything belongs to the call. Called by tools.
 */
#include "trace/emit.h"
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    cmi_emitter *e;
    const cmi_picture *p;
    uint32_t *frame_memo, *stack_memo; /* + 1; NULL in JSON */
} writer;

static void put_natural(writer *w, const char *key, uint64_t number)
{
    cmi_emit_key(w->e, key);
    cmi_emit_natural(w->e, number);
}

static void put_string(writer *w, const char *key, cmi_string_id id)
{
    cmi_emit_key(w->e, key);
    cmi_emit_string(w->e, w->p, id);
}

static void put_text(writer *w, const char *key, const char *text)
{
    cmi_emit_key(w->e, key);
    cmi_emit_text(w->e, text);
}

static void frame(writer *w, uint32_t number)
{
    const cmi_picture_frame *f = &w->p->frames[number];
    if (w->frame_memo != NULL && w->frame_memo[number] != 0) {
        cmi_emit_again(w->e, w->frame_memo[number] - 1);
        return;
    }
    cmi_emit_open(w->e, false);
    put_string(w, "name", f->function);
    put_string(w, "filename", f->file);
    put_natural(w, "line", f->line);
    cmi_emit_close(w->e);
    if (w->frame_memo != NULL)
        w->frame_memo[number] = cmi_emit_remember(w->e) + 1;
}

static void frames(writer *w, cmi_stack_id id)
{
    const cmi_picture_stack *stack = &w->p->stacks[id];
    cmi_emit_key(w->e, "frames");
    if (w->stack_memo != NULL && w->stack_memo[id] != 0) {
        cmi_emit_again(w->e, w->stack_memo[id] - 1);
        return;
    }
    cmi_emit_open(w->e, true);
    for (uint32_t i = 0; i < stack->count; i++)
        frame(w, w->p->stack_frames[stack->first + i]);
    cmi_emit_close(w->e);
    if (w->stack_memo != NULL)
        w->stack_memo[id] = cmi_emit_remember(w->e) + 1;
}

/* ---- state -------------------------------------------------------------------------------------------------------------------------- */

static void block(writer *w, const cmi_picture_block *b)
{
    static const char *const state[] = {
        [CMI_BLOCK_IDLE] = "inactive", [CMI_BLOCK_PENDING] = "active_pending_free", [CMI_BLOCK_LIVE] = "active_allocated"};
    cmi_emit_open(w->e, false);
    put_natural(w, "address", b->address);
    put_natural(w, "size", b->bytes);
    put_natural(w, "requested_size", b->requested_bytes != 0 ? b->requested_bytes : b->bytes);
    put_text(w, "state", state[b->state]);
    frames(w, b->stack);
    cmi_emit_close(w->e);
}

static void segment(writer *w, const cmi_picture_segment *s)
{
    uint64_t allocated = 0, active = 0, requested = 0;
    const cmi_picture_block *blocks = s->block_count > 0 ? &w->p->blocks[s->first_block] : NULL;
    for (uint32_t i = 0; i < s->block_count; i++) {
        allocated += blocks[i].state == CMI_BLOCK_LIVE ? blocks[i].bytes : 0;
        active += blocks[i].state != CMI_BLOCK_IDLE ? blocks[i].bytes : 0;
        requested += blocks[i].state == CMI_BLOCK_IDLE ? 0 : blocks[i].requested_bytes != 0 ? blocks[i].requested_bytes : blocks[i].bytes;
    }
    cmi_emit_open(w->e, false);
    put_natural(w, "device", w->p->devices[s->device].ordinal);
    put_natural(w, "address", s->address);
    put_natural(w, "total_size", s->bytes);
    put_natural(w, "allocated_size", allocated);
    put_natural(w, "active_size", active);
    put_natural(w, "requested_size", requested);
    put_natural(w, "stream", w->p->streams[s->stream].value);
    put_text(w, "segment_type", s->bytes > 2097152 ? "large" : "small"); /* as PyTorch sizes its segments */
    cmi_emit_key(w->e, "segment_pool_id");
    cmi_emit_two(w->e, w->p->pools[s->pool].id[0], w->p->pools[s->pool].id[1]);
    cmi_emit_key(w->e, "is_expandable");
    cmi_emit_bool(w->e, s->expandable);
    frames(w, s->stack);
    cmi_emit_key(w->e, "blocks");
    cmi_emit_open(w->e, true);
    for (uint32_t i = 0; i < s->block_count; i++)
        block(w, &blocks[i]);
    cmi_emit_close(w->e);
    cmi_emit_close(w->e);
}

/* ---- history ------------------------------------------------------------------------------------------------------------------------ */

/* Events that PyTorch has a word for. Without a time, their number stands for it. */
static void event(writer *w, size_t number)
{
    const cmi_picture_event *v = &w->p->events[number];
    if (v->kind == CMI_EVENT_USE || v->kind > CMI_EVENT_SNAPSHOT || (v->kind != CMI_EVENT_REFUSED && v->address == CMI_UNKNOWN))
        return;
    cmi_emit_open(w->e, false);
    put_text(w, "action", cmi_event_kind_name((cmi_event_kind)v->kind));
    if (v->kind != CMI_EVENT_REFUSED)
        put_natural(w, "addr", v->address);
    else if (v->address != CMI_UNKNOWN)
        put_natural(w, "device_free", v->address);
    else
        put_natural(w, "device_free", 0);
    put_natural(w, "size", v->bytes);
    put_natural(w, "stream", w->p->streams[v->stream].value);
    cmi_emit_key(w->e, "time_us");
    cmi_emit_integer(w->e, v->time_ns != 0 ? v->time_ns / 1000 : (int64_t)number + 1);
    put_text(w, "compile_context", "N/A");
    put_string(w, "user_metadata", v->tag);
    frames(w, v->stack);
    cmi_emit_close(w->e);
}

static void annotation(writer *w, size_t number)
{
    const cmi_picture_event *v = &w->p->events[number];
    if (v->kind != CMI_EVENT_RANGE_BEGIN && v->kind != CMI_EVENT_RANGE_END)
        return;
    cmi_emit_open(w->e, false);
    put_text(w, "stage", v->kind == CMI_EVENT_RANGE_BEGIN ? "START" : "END");
    put_string(w, "name", v->tag);
    put_natural(w, "device", w->p->devices[v->device].ordinal);
    cmi_emit_key(w->e, "time_us");
    cmi_emit_integer(w->e, v->time_ns != 0 ? v->time_ns / 1000 : (int64_t)number + 1);
    cmi_emit_close(w->e);
}

/* One list for each ordinal up to the last. */
static void traces(writer *w)
{
    uint32_t ordinals = w->p->device_count > 0 ? w->p->devices[w->p->device_count - 1].ordinal + 1 : 0;
    cmi_emit_key(w->e, "device_traces");
    cmi_emit_open(w->e, true);
    for (uint32_t ordinal = 0, device = 0; ordinal < ordinals; ordinal++) {
        bool is = w->p->devices[device].ordinal == ordinal;
        cmi_emit_open(w->e, true);
        for (size_t i = 0; is && i < w->p->event_count; i++)
            if (w->p->events[i].device == device)
                event(w, i);
        cmi_emit_close(w->e);
        device += is;
    }
    cmi_emit_close(w->e);
}

static void whole(writer *w)
{
    cmi_emit_open(w->e, false);
    cmi_emit_key(w->e, "segments");
    cmi_emit_open(w->e, true);
    for (size_t i = 0; i < w->p->segment_count; i++)
        segment(w, &w->p->segments[i]);
    cmi_emit_close(w->e);
    traces(w);
    cmi_emit_key(w->e, "external_annotations");
    cmi_emit_open(w->e, true);
    for (size_t i = 0; i < w->p->event_count; i++)
        annotation(w, i);
    cmi_emit_close(w->e);
    cmi_emit_close(w->e);
}

int cmi_write_pytorch(const cmi_picture *picture, bool json, cmi_write *write, void *user)
{
    cmi_emitter *e = malloc(sizeof *e);
    writer w = {.e = e, .p = picture};
    int result = -1;
    if (!json) {
        w.frame_memo = calloc(picture->frame_count + 1, sizeof *w.frame_memo);
        w.stack_memo = calloc(picture->stack_count + 1, sizeof *w.stack_memo);
    }
    if (e != NULL && (json || (w.frame_memo != NULL && w.stack_memo != NULL))) {
        cmi_emit_begin(e, json, picture->string_count, write, user);
        if (!e->failed)
            whole(&w);
        result = cmi_emit_end(e);
    }
    free(w.frame_memo);
    free(w.stack_memo);
    free(e);
    return result;
}
