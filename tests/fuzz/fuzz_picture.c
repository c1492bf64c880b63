/*
 * libFuzzer target: any bytes given to the readers of snapshots, logs and traces end in a whole picture or in one fault line; what is read
 * can be matched, made into a trace and written in every format, and what is written is read again.
 */
#include "trace/convert.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct text {
    char *data;
    size_t used, room;
} text;

static int keep(void *user, const void *data, size_t bytes)
{
    text *t = user;
    if (t->used + bytes > t->room) {
        t->room = 2 * (t->used + bytes);
        t->data = realloc(t->data, t->room);
        if (t->data == NULL)
            abort();
    }
    memcpy(t->data + t->used, data, bytes);
    t->used += bytes;
    return 0;
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* What every picture promises its readers. */
static void check_picture(const cmi_picture *p)
{
    uint32_t block = 0;
    require(p->format != NULL && p->pool_count > 0 && p->stack_count > 0 && p->string_count > 0);
    for (size_t i = 0; i < p->segment_count; i++) {
        const cmi_picture_segment *s = &p->segments[i];
        uint64_t at = s->address;
        require(s->first_block == block && s->device < p->device_count && s->stream < p->stream_count && s->pool < p->pool_count);
        for (uint32_t j = 0; j < s->block_count; j++, block++) {
            const cmi_picture_block *b = &p->blocks[block];
            require(b->address == at && b->bytes > 0 && b->segment == i && b->stack < p->stack_count && b->tag < p->string_count);
            at += b->bytes;
        }
        require(at == s->address + s->bytes);
    }
    require(block == p->block_count);
    for (size_t i = 0; i < p->event_count; i++) {
        const cmi_picture_event *e = &p->events[i];
        require(e->kind < CMI_EVENT_KINDS && e->device < p->device_count && e->stack < p->stack_count && e->tag < p->string_count);
        require(e->stream < p->stream_count && e->pool < p->pool_count);
    }
    for (size_t i = 0; i < p->stack_frame_count; i++)
        require(p->stack_frames[i] < p->frame_count);
    for (size_t i = 0; i < p->frame_count; i++)
        require(p->frames[i].file < p->string_count && p->frames[i].function < p->string_count);
}

static void check_lives(const cmi_picture *p, uint32_t device)
{
    cmi_picture_lives lives;
    require(cmi_picture_match(p, device, &lives) == 0);
    for (size_t i = 0; i < lives.count; i++) {
        const cmi_picture_life *life = &lives.lives[i];
        require(life->block == CMI_NONE || life->block < p->block_count);
        require(life->alloc_event == CMI_NONE || lives.of_event[life->alloc_event] == i);
        require(life->free_event == CMI_NONE || life->alloc_event == CMI_NONE || life->free_event > life->alloc_event);
    }
    require(lives.run.peak_live_bytes >= lives.run.first_live_bytes);
    cmi_picture_lives_free(&lives);
}

/* What is written must be read again, as the same number of things. */
static void check_written(cmi_picture *p, bool json)
{
    cmi_picture again;
    text out = {0};
    char fault[256];
    if (!p->has_state && p->segment_count == 0)
        require(cmi_picture_make_state(p) == 0);
    require(cmi_write_pytorch(p, json, keep, &out) == 0);
    if (cmi_picture_read_memory("again", out.data, out.used, &again, fault, sizeof fault) != 0) {
        fprintf(stderr, "%s\n", fault);
        abort();
    }
    require(again.segment_count == p->segment_count && again.block_count == p->block_count);
    cmi_picture_free(&again);
    free(out.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmi_picture p;
    cmi_trace trace;
    text out = {0};
    char fault[256] = "";
    if (cmi_picture_read_memory("input", data, size, &p, fault, sizeof fault) != 0) {
        require(strncmp(fault, "input:", 6) == 0 && strchr(fault, '\n') == NULL && p.events == NULL && p.segments == NULL);
        return 0;
    }
    check_picture(&p);
    for (uint32_t device = 0; device < p.device_count; device++)
        check_lives(&p, device);
    if (cmi_trace_from_picture("input", &p, cmi_picture_busiest_device(&p), &trace, fault, sizeof fault) == 0) {
        require(cmi_write_cmtrace(&trace, keep, &out) == 0);
        cmi_trace_free(&trace);
    }
    require(cmi_write_perfetto(&p, keep, &out) == 0);
    free(out.data);
    check_written(&p, false);
    check_written(&p, true);
    cmi_picture_free(&p);
    return 0;
}
