/*
 * Owns what each statement of a scenario does and how it fails: requests that must be served or refused, uses with the program's own event
 * wait and touch, unfinished work, other users of the device, expectations. One thread. Called by scenario_run.c.
 */
#include "scenario_run.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- verdicts --------------------------------------------------------------------------------------------------------------- */

int scenario_stop(scenario_state *r, const char *format, ...)
{
    va_list list;
    r->outcome->line = r->at != NULL ? r->at->line : 0;
    va_start(list, format);
    vsnprintf(r->outcome->reason, sizeof r->outcome->reason, format, list);
    va_end(list);
    return -1;
}

static int bad_script(scenario_state *r, const char *what, const char *name)
{
    r->outcome->bad_script = true;
    return scenario_stop(r, "%s '%s'", what, name);
}

static int no_host_memory(scenario_state *r) { return scenario_stop(r, "no host memory for the runner's own lists"); }

int scenario_bad_status(scenario_state *r, const char *call, cmpool_status status)
{
    const cmpool_error *error = cmpool_last_error();
    if (error->driver_code != 0)
        return scenario_stop(r, "%s: %s (%s gave %d)", call, cmpool_status_text(status), error->driver_call, error->driver_code);
    return scenario_stop(r, "%s: %s", call, cmpool_status_text(status));
}

int scenario_check_findings(scenario_state *r)
{
    uint64_t findings = 0;
    for (int kind = 0; kind < SIMCUDA_FINDING_KINDS; kind++)
        findings += r->panel->findings((simcuda_finding_kind)kind);
    if (findings == 0)
        return 0;
    const char *text = r->panel->finding_text(0);
    return scenario_stop(r, "the device reports: %s", text != NULL ? text : "a finding without text");
}

int scenario_check_pool(scenario_state *r)
{
    const char *finding = NULL;
    cmpool_status status = cmpool_validate(r->pool, &finding);
    return status == CMPOOL_OK ? 0 : scenario_stop(r, "the pool is not whole: %s", finding != NULL ? finding : cmpool_status_text(status));
}

/* ---- what names mean -------------------------------------------------------------------------------------------------------- */

static int name_now(scenario_state *r, char name[SCENARIO_NAME_ROOM])
{
    return scenario_substitute(r->at->name, r->i, name, SCENARIO_NAME_ROOM) ? 0 : bad_script(r, "too long:", r->at->name);
}

static int size_now(scenario_state *r, uint64_t *bytes)
{
    int64_t value;
    const char *wrong = scenario_evaluate(r->at->size, r->i, &value);
    *bytes = 0;
    if (wrong != NULL || value < 0)
        return bad_script(r, wrong != NULL ? wrong : "a size below 0:", r->at->size);
    *bytes = (uint64_t)value;
    return 0;
}

static int stream_now(scenario_state *r, unsigned *stream)
{
    char word[SCENARIO_NAME_ROOM];
    *stream = 0;
    if (!scenario_substitute(r->at->stream, r->i, word, sizeof word) || strtoul(word + 1, NULL, 10) >= SCENARIO_MOST_STREAMS)
        return bad_script(r, "not a stream that scenarios have:", r->at->stream);
    *stream = (unsigned)strtoul(word + 1, NULL, 10);
    if (r->streams[*stream] != NULL)
        return 0;
    int code = device_stream_create(r->device, &r->streams[*stream]);
    return code == 0 ? 0 : scenario_stop(r, "creating stream %s: the driver gave %d", word, code);
}

static int find_block(scenario_state *r, scenario_block **found)
{
    char name[SCENARIO_NAME_ROOM];
    if (name_now(r, name) != 0)
        return -1;
    for (size_t i = r->block_count; i-- > 0;)
        if (strcmp(r->blocks[i].name, name) == 0) {
            *found = &r->blocks[i];
            return 0;
        }
    return bad_script(r, "there is no block", name);
}

static int touch(scenario_state *r, const scenario_block *b, unsigned stream)
{
    int code = r->operations.touch(r->device, r->streams[stream], (uint64_t)(uintptr_t)b->address, b->bytes);
    return code == 0 ? 0 : scenario_stop(r, "a kernel that writes '%s' failed: the driver gave %d", b->name, code);
}

/* ---- statements --------------------------------------------------------------------------------------------------------------- */

static int refused_by(scenario_state *r, cmpool_status status, uint64_t bytes)
{
    const cmpool_error *e = cmpool_last_error();
    if (status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && status != CMPOOL_ERR_LIMIT)
        return scenario_bad_status(r, "cmpool_malloc", status);
    return scenario_stop(r, "%llu bytes refused: %llu missing, %llu live, %llu held, %llu idle, largest free %llu, device free %lld",
                         (unsigned long long)bytes, (unsigned long long)e->short_bytes, (unsigned long long)e->live_bytes,
                         (unsigned long long)e->reserved_bytes, (unsigned long long)e->idle_bytes,
                         (unsigned long long)e->largest_free_bytes, (long long)e->device_free_bytes);
}

static int do_alloc(scenario_state *r)
{
    scenario_block b = {.pool = r->current};
    if (name_now(r, b.name) != 0 || size_now(r, &b.bytes) != 0 || stream_now(r, &b.stream) != 0)
        return -1;
    if (b.bytes == 0)
        return bad_script(r, "a size of 0:", r->at->size);
    for (size_t i = 0; i < r->block_count; i++)
        if (strcmp(r->blocks[i].name, b.name) == 0)
            return bad_script(r, "still live:", b.name);
    if (r->block_count == r->block_room) {
        size_t room = 2 * r->block_room + 64;
        scenario_block *larger = realloc(r->blocks, room * sizeof *larger);
        if (larger == NULL)
            return no_host_memory(r);
        r->blocks = larger;
        r->block_room = room;
    }
    b.last = b.stream;
    cmpool_status status = cmpool_malloc(r->current, &b.address, b.bytes, r->streams[b.stream]);
    if (status != CMPOOL_OK)
        return refused_by(r, status, b.bytes);
    r->blocks[r->block_count++] = b;
    return touch(r, &b, b.stream);
}

static int do_refuse(scenario_state *r)
{
    uint64_t bytes;
    unsigned stream;
    void *address = NULL;
    if (size_now(r, &bytes) != 0 || stream_now(r, &stream) != 0)
        return -1;
    cmpool_status status = cmpool_malloc(r->current, &address, bytes, r->streams[stream]);
    if (status == CMPOOL_OK)
        return scenario_stop(r, "%llu bytes were served, but had to be refused", (unsigned long long)bytes);
    if (status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && status != CMPOOL_ERR_LIMIT)
        return scenario_bad_status(r, "cmpool_malloc", status);
    return address == NULL ? scenario_check_pool(r) : scenario_stop(r, "a refused request left a pointer");
}

int scenario_free_block(scenario_state *r, scenario_block *b)
{
    cmpool_status status = cmpool_free(b->pool, b->address, r->streams[b->stream]);
    if (status != CMPOOL_OK)
        return scenario_bad_status(r, "cmpool_free", status);
    *b = r->blocks[--r->block_count];
    return 0;
}

static int do_free(scenario_state *r)
{
    scenario_block *b;
    return find_block(r, &b) != 0 ? -1 : scenario_free_block(r, b);
}

static int do_use(scenario_state *r)
{
    scenario_block *b;
    unsigned stream;
    if (find_block(r, &b) != 0 || stream_now(r, &stream) != 0)
        return -1;
    if (b->last != stream) {
        int code = r->operations.order(r->device, r->streams[b->last], r->streams[stream]);
        if (code != 0)
            return scenario_stop(r, "ordering two streams: the driver gave %d", code);
    }
    b->last = stream;
    cmpool_status status = cmpool_record_use(b->pool, b->address, r->streams[stream]);
    return status == CMPOOL_OK ? touch(r, b, stream) : scenario_bad_status(r, "cmpool_record_use", status);
}

static int do_busy(scenario_state *r)
{
    unsigned stream;
    if (stream_now(r, &stream) != 0)
        return -1;
    if (r->gate_count == r->gate_room) {
        size_t room = 2 * r->gate_room + 16;
        scenario_gate *larger = realloc(r->gates, room * sizeof *larger);
        if (larger == NULL)
            return no_host_memory(r);
        r->gates = larger;
        r->gate_room = room;
    }
    int number = r->panel->gate_close(r->streams[stream]);
    if (number <= 0)
        return scenario_stop(r, "unfinished work could not be put on the stream");
    r->gates[r->gate_count++] = (scenario_gate){number, stream};
    return 0;
}

static int do_done(scenario_state *r)
{
    unsigned stream;
    size_t kept = 0;
    if (stream_now(r, &stream) != 0)
        return -1;
    for (size_t i = 0; i < r->gate_count; i++)
        if (r->gates[i].stream == stream)
            r->panel->gate_open(r->gates[i].number);
        else
            r->gates[kept++] = r->gates[i];
    r->gate_count = kept;
    return 0;
}

static int do_ext_take(scenario_state *r)
{
    uint64_t bytes, shortfall = 0;
    if (size_now(r, &bytes) != 0)
        return -1;
    if (r->panel->sibling_take(0, bytes, &shortfall) == 0)
        return 0;
    cmpool_status status = cmpool_device_trim(0, shortfall, NULL);
    if (status != CMPOOL_OK)
        return scenario_bad_status(r, "cmpool_device_trim", status);
    if (r->panel->sibling_take(0, bytes, &shortfall) == 0)
        return 0;
    return scenario_stop(r, "something else asked the driver for %llu bytes: %llu missing although idle memory was asked back",
                         (unsigned long long)bytes, (unsigned long long)shortfall);
}

static int do_ext_return(scenario_state *r)
{
    uint64_t bytes;
    if (size_now(r, &bytes) != 0)
        return -1;
    r->panel->sibling_return(0, bytes);
    return 0;
}

static int do_trim(scenario_state *r)
{
    cmpool_status status = cmpool_trim(r->pool, 0, NULL);
    return status == CMPOOL_OK ? 0 : scenario_bad_status(r, "cmpool_trim", status);
}

static int do_pool_begin(scenario_state *r)
{
    char name[SCENARIO_NAME_ROOM];
    size_t i;
    if (name_now(r, name) != 0)
        return -1;
    if (r->open_pool != NULL)
        return bad_script(r, "a pool is open already:", r->open_pool);
    for (i = 0; i < r->private_count && strcmp(r->privates[i].name, name) != 0; i++)
        ;
    if (i == SCENARIO_MOST_POOLS)
        return bad_script(r, "more private pools than scenarios have:", name);
    if (i == r->private_count) {
        cmpool_status status = cmpool_private_create(&r->privates[i].handle, r->pool);
        if (status != CMPOOL_OK)
            return scenario_bad_status(r, "cmpool_private_create", status);
        strcpy(r->privates[i].name, name);
        r->private_count++;
    }
    r->open_pool = r->privates[i].name;
    r->current = r->privates[i].handle;
    return 0;
}

static int do_pool_end(scenario_state *r)
{
    char name[SCENARIO_NAME_ROOM];
    if (name_now(r, name) != 0)
        return -1;
    if (r->open_pool == NULL || strcmp(r->open_pool, name) != 0)
        return bad_script(r, "not the open pool:", name);
    r->open_pool = NULL;
    r->current = r->pool;
    return 0;
}

static int do_expect(scenario_state *r)
{
    uint64_t bound, value = 0;
    simcuda_census census;
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (size_now(r, &bound) != 0)
        return -1;
    cmpool_status status = cmpool_stats_get(r->pool, &stats);
    if (status != CMPOOL_OK)
        return scenario_bad_status(r, "cmpool_stats_get", status);
    r->panel->count_objects(0, &census);
    switch (r->at->figure) {
    case FIGURE_reserved: /* what the device says counts, should the pool say less */
        value = census.handle_bytes + census.malloc_bytes;
        if (stats.reserved_bytes > value)
            value = stats.reserved_bytes;
        break;
    case FIGURE_live:
        value = stats.live_bytes;
        break;
    case FIGURE_drvfree:
        value = census.free_bytes;
        break;
    case FIGURE_drvcalls:
        value = stats.driver_turns;
        break;
    case FIGURE_COUNT:
        break;
    }
    const char *relation = r->at->relation;
    bool holds = relation[0] == '<' ? value <= bound : relation[0] == '>' ? value >= bound : value == bound;
    return holds ? 0 : scenario_stop(r, "expected %s %llu, found %llu", relation, (unsigned long long)bound, (unsigned long long)value);
}

int scenario_do(scenario_state *r)
{
    switch (r->at->verb) {
    case VERB_ALLOC:
        return do_alloc(r);
    case VERB_REFUSE:
        return do_refuse(r);
    case VERB_FREE:
        return do_free(r);
    case VERB_USE:
        return do_use(r);
    case VERB_BUSY:
        return do_busy(r);
    case VERB_DONE:
        return do_done(r);
    case VERB_EXT_TAKE:
        return do_ext_take(r);
    case VERB_EXT_RETURN:
        return do_ext_return(r);
    case VERB_DRVBAD:
        r->panel->refuse_memory(0, r->at->flag);
        return 0;
    case VERB_TRIM:
        return do_trim(r);
    case VERB_POOL_BEGIN:
        return do_pool_begin(r);
    case VERB_POOL_END:
        return do_pool_end(r);
    case VERB_EXPECT:
        return do_expect(r);
    case VERB_REP:
        break;
    }
    return 0;
}
