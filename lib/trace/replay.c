/*
 * Owns the run of a trace against a pool: where each block is, who touched it last, what was refused, calls per step. One thread.
 * No locks. Called by the command-line tool, benchmarks and tests; calls the library through its public functions only.
 */
#include "trace/replay.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROGRESS_CALLS = 400 };

typedef struct placed {
    void *address; /* NULL: not live, or refused */
    uint16_t last; /* index of the stream of its last touch */
} placed;

typedef struct run {
    const cmi_replay_config *config;
    cmi_replay_result *result;
    placed *blocks;
    uint64_t live_bytes;
    uint64_t step_began; /* costly calls when the present step began */
    bool in_step;
    size_t done, total; /* events, for progress */
} run;

static uint64_t live_size(const cmi_trace_block *block)
{
    return (block->bytes + CMI_TRACE_BLOCK_UNIT - 1) / CMI_TRACE_BLOCK_UNIT * CMI_TRACE_BLOCK_UNIT;
}

static int trouble(run *r, const char *call, int code, uint32_t line)
{
    r->result->trouble = call;
    r->result->trouble_code = code;
    r->result->trouble_line = line;
    return -1;
}

static int touch(run *r, const cmi_trace_event *event, uint16_t stream)
{
    const cmi_replay_config *c = r->config;
    const placed *block = &r->blocks[event->subject];
    size_t bytes = c->touch == CMI_TOUCH_WHOLE ? c->trace->blocks[event->subject].bytes : 1;
    int code = c->device.touch(c->device.self, c->streams[stream], (uint64_t)(uintptr_t)block->address, bytes);
    return code == 0 ? 0 : trouble(r, "a kernel that touches the block", code, event->line);
}

static int order(run *r, const cmi_trace_event *event, uint16_t before, uint16_t after)
{
    const cmi_replay_config *c = r->config;
    if (before == after)
        return 0;
    int code = c->device.order(c->device.self, c->streams[before], c->streams[after]);
    return code == 0 ? 0 : trouble(r, "event record and wait", code, event->line);
}

/* ---- refusals --------------------------------------------------------------------------------------------------------------- */

static bool oracle_objects(run *r, uint64_t bytes)
{
    const cmi_replay_config *c = r->config;
    if (c->device.memory == NULL || c->device.mappings == NULL)
        return false;
    size_t count = 0;
    cmi_live_block *live = malloc((c->trace->block_count + 1) * sizeof *live);
    if (live == NULL)
        return false;
    for (size_t i = 0; i < c->trace->block_count; i++) {
        size_t usable;
        if (r->blocks[i].address == NULL || cmpool_usable_size(c->pool, r->blocks[i].address, &usable) != CMPOOL_OK)
            continue;
        live[count++] = (cmi_live_block){(uint64_t)(uintptr_t)r->blocks[i].address, usable};
    }
    cmi_oracle oracle = {&c->device, c->page_bytes, c->limit_bytes, c->headroom_bytes};
    bool fits = cmi_oracle_fits(&oracle, bytes, live, count);
    free(live);
    return fits;
}

/* Statuses by which a pool says "no room"; anything else is trouble. */
static bool is_refusal(cmpool_status status)
{
    return status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT || status == CMPOOL_ERR_OUT_OF_ADDRESSES ||
           status == CMPOOL_ERR_MAPPING_CEILING;
}

static int refused(run *r, const cmi_trace_event *event, cmpool_status status)
{
    cmi_replay_result *result = r->result;
    if (!is_refusal(status))
        return trouble(r, cmpool_status_name(status), cmpool_last_error()->driver_code, event->line);
    if (result->refusals++ == 0) {
        result->first_refusal = *cmpool_last_error();
        result->first_refusal_line = event->line;
    }
    bool promised = status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT;
    if (promised && oracle_objects(r, r->config->trace->blocks[event->subject].bytes) && result->false_refusals++ == 0)
        result->first_false_line = event->line;
    return 0;
}

/* ---- events ----------------------------------------------------------------------------------------------------------------- */

static int alloc_event(run *r, const cmi_trace_event *event)
{
    const cmi_replay_config *c = r->config;
    const cmi_trace_block *block = &c->trace->blocks[event->subject];
    placed *where = &r->blocks[event->subject];
    cmpool_status status = cmpool_malloc(c->pool, &where->address, block->bytes, c->streams[event->stream]);
    if (status != CMPOOL_OK) {
        where->address = NULL;
        return refused(r, event, status);
    }
    where->last = event->stream;
    r->live_bytes += live_size(block);
    if (r->live_bytes > r->result->peak_live_bytes)
        r->result->peak_live_bytes = r->live_bytes;
    return touch(r, event, event->stream);
}

static int free_event(run *r, const cmi_trace_event *event)
{
    const cmi_replay_config *c = r->config;
    const cmi_trace_block *block = &c->trace->blocks[event->subject];
    placed *where = &r->blocks[event->subject];
    if (where->address == NULL)
        return 0;
    if (touch(r, event, where->last) != 0)
        return -1;
    /* Freed on another stream than it was made for: that the work so far comes first is for the program to see to. */
    if (event->stream != block->stream && order(r, event, where->last, event->stream) != 0)
        return -1;
    cmpool_status status = cmpool_free(c->pool, where->address, c->streams[event->stream]);
    if (status != CMPOOL_OK)
        return trouble(r, cmpool_status_name(status), cmpool_last_error()->driver_code, event->line);
    where->address = NULL;
    r->live_bytes -= live_size(block);
    return 0;
}

static int use_event(run *r, const cmi_trace_event *event)
{
    const cmi_replay_config *c = r->config;
    placed *where = &r->blocks[event->subject];
    if (where->address == NULL)
        return 0;
    if (order(r, event, where->last, event->stream) != 0 || touch(r, event, event->stream) != 0)
        return -1;
    where->last = event->stream;
    cmpool_status status = cmpool_record_use(c->pool, where->address, c->streams[event->stream]);
    return status == CMPOOL_OK ? 0 : trouble(r, cmpool_status_name(status), cmpool_last_error()->driver_code, event->line);
}

static void end_step(run *r)
{
    const cmi_replay_device *device = &r->config->device;
    if (device->costly_calls == NULL)
        return;
    uint64_t calls = device->costly_calls(device->self);
    if (r->in_step)
        r->result->step_calls[r->result->step_count++] = calls - r->step_began;
    r->step_began = calls;
}

static int step_event(run *r, const cmi_trace_event *event)
{
    const cmi_replay_device *device = &r->config->device;
    end_step(r);
    r->in_step = true;
    if (!r->config->sync_steps)
        return 0;
    int code = device->synchronise(device->self);
    return code == 0 ? 0 : trouble(r, "waiting for the device", code, event->line);
}

static int run_events(run *r, size_t from, size_t to)
{
    const cmi_replay_config *c = r->config;
    size_t stride = r->total / PROGRESS_CALLS + 1;
    for (size_t i = from; i < to; i++) {
        const cmi_trace_event *event = &c->trace->events[i];
        int code = 0;
        switch ((cmi_trace_kind)event->kind) {
        case CMI_TRACE_ALLOC:
            code = alloc_event(r, event);
            break;
        case CMI_TRACE_FREE:
            code = free_event(r, event);
            break;
        case CMI_TRACE_USE:
            code = use_event(r, event);
            break;
        case CMI_TRACE_STEP:
            code = step_event(r, event);
            break;
        case CMI_TRACE_PHASE:
            break;
        }
        if (code != 0)
            return code;
        if (r->result->refusals > 0 && c->stop_at_refusal)
            return 0;
        if (c->progress != NULL && ++r->done % stride == 0)
            c->progress(c->progress_user, r->done, r->total);
    }
    return 0;
}

/* ---- the last step again ---------------------------------------------------------------------------------------------------- */

/* Blocks that the step made and left live go back, so that a repetition begins where the step did. */
static int drop_left_over(run *r, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        cmi_trace_event event = r->config->trace->events[i];
        if (event.kind != CMI_TRACE_ALLOC)
            continue;
        event.kind = CMI_TRACE_FREE;
        if (free_event(r, &event) != 0)
            return -1;
    }
    return 0;
}

static size_t last_step(const cmi_trace *trace)
{
    size_t i = trace->event_count;
    while (i > 0 && trace->events[i - 1].kind != CMI_TRACE_STEP)
        i--;
    return i == 0 ? trace->event_count : i - 1;
}

static int run_all(run *r)
{
    const cmi_replay_config *c = r->config;
    size_t count = c->trace->event_count, last = last_step(c->trace);
    unsigned repeats = last < count ? c->repeat_last : 0;
    r->total = count + repeats * (count - last);
    if (run_events(r, 0, count) != 0)
        return -1;
    r->result->repeated_from = c->trace->step_count;
    if (c->stop_at_refusal && r->result->refusals > 0)
        return 0;
    for (unsigned i = 0; i < repeats; i++)
        if (drop_left_over(r, last, count) != 0 || run_events(r, last, count) != 0)
            return -1;
    end_step(r);
    return 0;
}

static int give_back_all(run *r)
{
    const cmi_replay_config *c = r->config;
    for (size_t i = 0; i < c->trace->block_count; i++) {
        if (r->blocks[i].address == NULL)
            continue;
        cmpool_status status = cmpool_free(c->pool, r->blocks[i].address, c->streams[c->trace->blocks[i].stream]);
        if (status != CMPOOL_OK)
            return trouble(r, cmpool_status_name(status), cmpool_last_error()->driver_code, 0);
    }
    return 0;
}

int cmi_replay_run(const cmi_replay_config *config, cmi_replay_result *result)
{
    run r = {.config = config, .result = result};
    memset(result, 0, sizeof *result);
    r.blocks = calloc(config->trace->block_count, sizeof *r.blocks);
    if (config->device.costly_calls != NULL)
        result->step_calls = calloc(config->trace->step_count + config->repeat_last + 1, sizeof *result->step_calls);
    if (r.blocks == NULL || (config->device.costly_calls != NULL && result->step_calls == NULL)) {
        free(r.blocks);
        return trouble(&r, "no host memory for the replay", 0, 0);
    }
    int code = run_all(&r);
    if (config->at_end != NULL && code == 0)
        config->at_end(config->at_end_user);
    if (code == 0)
        code = give_back_all(&r);
    free(r.blocks);
    return code;
}

void cmi_replay_result_free(cmi_replay_result *result)
{
    free(result->step_calls);
    result->step_calls = NULL;
}

double cmi_replay_steady_per_step(const cmi_replay_result *result)
{
    size_t first = (result->repeated_from < result->step_count ? result->repeated_from : 0) + 2;
    uint64_t sum = 0;
    if (result->step_calls == NULL || first >= result->step_count)
        return -1;
    for (size_t i = first; i < result->step_count; i++)
        sum += result->step_calls[i];
    return (double)sum / (double)(result->step_count - first);
}

/* ---- timing ----------------------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int cmi_replay_time(const cmi_replay_config *config, double *ns_per_call)
{
    const cmi_trace *trace = config->trace;
    const cmi_replay_device *device = &config->device;
    const cmpool_stream *streams = config->streams;
    void **address = calloc(trace->block_count, sizeof *address);
    uint16_t *last = calloc(trace->block_count, sizeof *last);
    uint64_t calls = 0;
    if (address == NULL || last == NULL) {
        free(address);
        free(last);
        return -1;
    }
    memset(address, 0xff, trace->block_count * sizeof *address); /* have the pages before the clock starts */
    memset(last, 0xff, trace->block_count * sizeof *last);
    uint64_t inside = device->inside_ns(device->self), began = now_ns();
    for (const cmi_trace_event *event = trace->events, *end = event + trace->event_count; event < end; event++) {
        uint32_t i = event->subject;
        if (event->kind == CMI_TRACE_ALLOC) {
            last[i] = event->stream;
            calls++;
            if (cmpool_malloc(config->pool, &address[i], trace->blocks[i].bytes, streams[event->stream]) != CMPOOL_OK)
                address[i] = NULL;
        } else if (event->kind == CMI_TRACE_FREE && address[i] != NULL) {
            calls++;
            cmpool_free(config->pool, address[i], streams[event->stream]);
            address[i] = NULL;
        } else if (event->kind == CMI_TRACE_USE && address[i] != NULL) {
            calls++;
            if (last[i] != event->stream)
                device->order(device->self, streams[last[i]], streams[event->stream]);
            last[i] = event->stream;
            cmpool_record_use(config->pool, address[i], streams[event->stream]);
        }
    }
    uint64_t took = now_ns() - began, left_out = device->inside_ns(device->self) - inside;
    *ns_per_call = (double)(took > left_out ? took - left_out : 0) / (double)calls;
    for (size_t i = 0; i < trace->block_count; i++)
        if (address[i] != NULL)
            cmpool_free(config->pool, address[i], streams[trace->blocks[i].stream]);
    free(address);
    free(last);
    return 0;
}
