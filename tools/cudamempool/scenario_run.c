/*
 * Owns the run of one scenario script on a simulated device of its own: its blocks, streams, private pools and unfinished work. Every
 * block is written on its stream, every use brings the program's own event wait and a touch, and the device's findings are looked at after
 * each statement. One thread, in a process of its own (worker.c). Called by cmd_scenario.c.
 */
#include "scenario.h"
#include "tool.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_ROOM = 64, MOST_STREAMS = 1024, MOST_POOLS = 256 };

typedef struct block {
    char name[NAME_ROOM];
    void *address;
    uint64_t bytes;
    unsigned stream, last; /* allocated on; touched last on */
    cmpool_t pool;
} block;

typedef struct gate {
    int number;
    unsigned stream;
} gate;

typedef struct run {
    const char *file;
    const scenario_script *script;
    const device_words *words;
    const pool_conf *conf;
    scenario_outcome *outcome;
    device *device;
    const device_panel *panel;
    cmi_replay_device operations;
    cmpool_t pool, current; /* the parent; where allocations go: parent or private */
    struct {
        char name[NAME_ROOM];
        cmpool_t handle;
    } privates[MOST_POOLS];
    size_t private_count;
    const char *open_pool; /* name between begin and end */
    cmpool_stream streams[MOST_STREAMS];
    block *blocks;
    size_t block_count, block_room;
    gate *gates; /* work not ended by the script */
    size_t gate_count, gate_room;
    const scenario_statement *at;
    uint64_t i;
} run;

/* ---- verdicts --------------------------------------------------------------------------------------------------------------- */

static int stop(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int stop(run *r, const char *format, ...)
{
    va_list list;
    r->outcome->line = r->at != NULL ? r->at->line : 0;
    va_start(list, format);
    vsnprintf(r->outcome->reason, sizeof r->outcome->reason, format, list);
    va_end(list);
    return -1;
}

static int bad_script(run *r, const char *what, const char *name)
{
    r->outcome->bad_script = true;
    return stop(r, "%s '%s'", what, name);
}

static int no_host_memory(run *r) { return stop(r, "no host memory for the runner's own lists"); }

static int bad_status(run *r, const char *call, cmpool_status status)
{
    const cmpool_error *error = cmpool_last_error();
    if (error->driver_code != 0)
        return stop(r, "%s: %s (%s gave %d)", call, cmpool_status_text(status), error->driver_call, error->driver_code);
    return stop(r, "%s: %s", call, cmpool_status_text(status));
}

static int check_findings(run *r)
{
    uint64_t findings = 0;
    for (int kind = 0; kind < SIMCUDA_FINDING_KINDS; kind++)
        findings += r->panel->findings((simcuda_finding_kind)kind);
    if (findings == 0)
        return 0;
    const char *text = r->panel->finding_text(0);
    return stop(r, "the device reports: %s", text != NULL ? text : "a finding without text");
}

static int check_pool(run *r)
{
    const char *finding = NULL;
    cmpool_status status = cmpool_validate(r->pool, &finding);
    return status == CMPOOL_OK ? 0 : stop(r, "the pool is not whole: %s", finding != NULL ? finding : cmpool_status_text(status));
}

/* ---- what names mean -------------------------------------------------------------------------------------------------------- */

static int name_now(run *r, char name[NAME_ROOM])
{
    return scenario_substitute(r->at->name, r->i, name, NAME_ROOM) ? 0 : bad_script(r, "too long:", r->at->name);
}

static int size_now(run *r, uint64_t *bytes)
{
    int64_t value;
    const char *wrong = scenario_evaluate(r->at->size, r->i, &value);
    if (wrong != NULL || value < 0)
        return bad_script(r, wrong != NULL ? wrong : "a size below 0:", r->at->size);
    *bytes = (uint64_t)value;
    return 0;
}

static int stream_now(run *r, unsigned *stream)
{
    char word[NAME_ROOM];
    if (!scenario_substitute(r->at->stream, r->i, word, sizeof word) || strtoul(word + 1, NULL, 10) >= MOST_STREAMS)
        return bad_script(r, "not a stream that scenarios have:", r->at->stream);
    *stream = (unsigned)strtoul(word + 1, NULL, 10);
    if (r->streams[*stream] != NULL)
        return 0;
    int code = device_stream_create(r->device, &r->streams[*stream]);
    return code == 0 ? 0 : stop(r, "creating stream %s: the driver gave %d", word, code);
}

static int find_block(run *r, block **found)
{
    char name[NAME_ROOM];
    if (name_now(r, name) != 0)
        return -1;
    for (size_t i = r->block_count; i-- > 0;)
        if (strcmp(r->blocks[i].name, name) == 0) {
            *found = &r->blocks[i];
            return 0;
        }
    return bad_script(r, "there is no block", name);
}

static int touch(run *r, const block *b, unsigned stream)
{
    int code = r->operations.touch(r->device, r->streams[stream], (uint64_t)(uintptr_t)b->address, b->bytes);
    return code == 0 ? 0 : stop(r, "a kernel that writes '%s' failed: the driver gave %d", b->name, code);
}

/* ---- statements --------------------------------------------------------------------------------------------------------------- */

static int refused_by(run *r, cmpool_status status, uint64_t bytes)
{
    const cmpool_error *e = cmpool_last_error();
    if (status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && status != CMPOOL_ERR_LIMIT)
        return bad_status(r, "cmpool_malloc", status);
    return stop(r, "%llu bytes refused: %llu missing, %llu live, %llu held, %llu idle, largest free %llu, device free %lld",
                (unsigned long long)bytes, (unsigned long long)e->short_bytes, (unsigned long long)e->live_bytes,
                (unsigned long long)e->reserved_bytes, (unsigned long long)e->idle_bytes, (unsigned long long)e->largest_free_bytes,
                (long long)e->device_free_bytes);
}

static int do_alloc(run *r)
{
    block b = {.pool = r->current};
    if (name_now(r, b.name) != 0 || size_now(r, &b.bytes) != 0 || stream_now(r, &b.stream) != 0)
        return -1;
    if (b.bytes == 0)
        return bad_script(r, "a size of 0:", r->at->size);
    for (size_t i = 0; i < r->block_count; i++)
        if (strcmp(r->blocks[i].name, b.name) == 0)
            return bad_script(r, "still live:", b.name);
    if (r->block_count == r->block_room) {
        size_t room = 2 * r->block_room + 64;
        block *larger = realloc(r->blocks, room * sizeof *larger);
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

static int do_refuse(run *r)
{
    uint64_t bytes;
    unsigned stream;
    void *address = NULL;
    if (size_now(r, &bytes) != 0 || stream_now(r, &stream) != 0)
        return -1;
    cmpool_status status = cmpool_malloc(r->current, &address, bytes, r->streams[stream]);
    if (status == CMPOOL_OK)
        return stop(r, "%llu bytes were served, but had to be refused", (unsigned long long)bytes);
    if (status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && status != CMPOOL_ERR_LIMIT)
        return bad_status(r, "cmpool_malloc", status);
    return address == NULL ? check_pool(r) : stop(r, "a refused request left a pointer");
}

static int free_block(run *r, block *b)
{
    cmpool_status status = cmpool_free(b->pool, b->address, r->streams[b->stream]);
    if (status != CMPOOL_OK)
        return bad_status(r, "cmpool_free", status);
    *b = r->blocks[--r->block_count];
    return 0;
}

static int do_free(run *r)
{
    block *b;
    return find_block(r, &b) != 0 ? -1 : free_block(r, b);
}

static int do_use(run *r)
{
    block *b;
    unsigned stream;
    if (find_block(r, &b) != 0 || stream_now(r, &stream) != 0)
        return -1;
    if (b->last != stream) {
        int code = r->operations.order(r->device, r->streams[b->last], r->streams[stream]);
        if (code != 0)
            return stop(r, "ordering two streams: the driver gave %d", code);
    }
    b->last = stream;
    cmpool_status status = cmpool_record_use(b->pool, b->address, r->streams[stream]);
    return status == CMPOOL_OK ? touch(r, b, stream) : bad_status(r, "cmpool_record_use", status);
}

static int do_busy(run *r)
{
    unsigned stream;
    if (stream_now(r, &stream) != 0)
        return -1;
    if (r->gate_count == r->gate_room) {
        size_t room = 2 * r->gate_room + 16;
        gate *larger = realloc(r->gates, room * sizeof *larger);
        if (larger == NULL)
            return no_host_memory(r);
        r->gates = larger;
        r->gate_room = room;
    }
    int number = r->panel->gate_close(r->streams[stream]);
    if (number <= 0)
        return stop(r, "unfinished work could not be put on the stream");
    r->gates[r->gate_count++] = (gate){number, stream};
    return 0;
}

static int do_done(run *r)
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

static int do_ext_take(run *r)
{
    uint64_t bytes, shortfall = 0;
    if (size_now(r, &bytes) != 0)
        return -1;
    if (r->panel->sibling_take(0, bytes, &shortfall) == 0)
        return 0;
    cmpool_status status = cmpool_device_trim(0, shortfall, NULL);
    if (status != CMPOOL_OK)
        return bad_status(r, "cmpool_device_trim", status);
    if (r->panel->sibling_take(0, bytes, &shortfall) == 0)
        return 0;
    return stop(r, "something else asked the driver for %llu bytes: %llu missing although idle memory was asked back",
                (unsigned long long)bytes, (unsigned long long)shortfall);
}

static int do_ext_return(run *r)
{
    uint64_t bytes;
    if (size_now(r, &bytes) != 0)
        return -1;
    r->panel->sibling_return(0, bytes);
    return 0;
}

static int do_trim(run *r)
{
    cmpool_status status = cmpool_trim(r->pool, 0, NULL);
    return status == CMPOOL_OK ? 0 : bad_status(r, "cmpool_trim", status);
}

static int do_pool_begin(run *r)
{
    char name[NAME_ROOM];
    size_t i;
    if (name_now(r, name) != 0)
        return -1;
    if (r->open_pool != NULL)
        return bad_script(r, "a pool is open already:", r->open_pool);
    for (i = 0; i < r->private_count && strcmp(r->privates[i].name, name) != 0; i++)
        ;
    if (i == MOST_POOLS)
        return bad_script(r, "more private pools than scenarios have:", name);
    if (i == r->private_count) {
        cmpool_status status = cmpool_private_create(&r->privates[i].handle, r->pool);
        if (status != CMPOOL_OK)
            return bad_status(r, "cmpool_private_create", status);
        strcpy(r->privates[i].name, name);
        r->private_count++;
    }
    r->open_pool = r->privates[i].name;
    r->current = r->privates[i].handle;
    return 0;
}

static int do_pool_end(run *r)
{
    char name[NAME_ROOM];
    if (name_now(r, name) != 0)
        return -1;
    if (r->open_pool == NULL || strcmp(r->open_pool, name) != 0)
        return bad_script(r, "not the open pool:", name);
    r->open_pool = NULL;
    r->current = r->pool;
    return 0;
}

static int do_expect(run *r)
{
    uint64_t bound, value = 0;
    simcuda_census census;
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (size_now(r, &bound) != 0)
        return -1;
    cmpool_status status = cmpool_stats_get(r->pool, &stats);
    if (status != CMPOOL_OK)
        return bad_status(r, "cmpool_stats_get", status);
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
    return holds ? 0 : stop(r, "expected %s %llu, found %llu", relation, (unsigned long long)bound, (unsigned long long)value);
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------ */

static int run_statements(run *r, size_t from, size_t to);

static int do_rep(run *r, size_t index)
{
    const scenario_statement *rep = &r->script->statements[index];
    uint64_t outer = r->i;
    for (r->i = 0; r->i < rep->times; r->i++)
        if (run_statements(r, index + 1, rep->body_end) != 0)
            return -1;
    r->i = outer;
    return 0;
}

static int run_one(run *r)
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

static int run_statements(run *r, size_t from, size_t to)
{
    for (size_t i = from; i < to;) {
        const scenario_statement *s = &r->script->statements[i];
        if (s->verb == VERB_REP) {
            if (do_rep(r, i) != 0)
                return -1;
            i = s->body_end;
            continue;
        }
        r->at = s;
        if (run_one(r) != 0 || check_findings(r) != 0)
            return -1;
        i++;
    }
    return 0;
}

/* After the last statement the program ends as programs should; nothing may be left on the device. */
static int take_down(run *r)
{
    simcuda_census census;
    cmpool_status status = CMPOOL_OK;
    r->at = NULL;
    r->panel->refuse_memory(0, 0);
    if (check_pool(r) != 0)
        return -1;
    while (r->block_count > 0)
        if (free_block(r, &r->blocks[0]) != 0)
            return -1;
    for (size_t i = 0; i < MOST_STREAMS; i++)
        if (r->streams[i] != NULL)
            cmpool_stream_retire(0, r->streams[i]);
    for (size_t i = 0; i < r->private_count && status == CMPOOL_OK; i++)
        status = cmpool_destroy(r->privates[i].handle);
    if (status == CMPOOL_OK)
        status = cmpool_destroy(r->pool);
    if (status != CMPOOL_OK)
        return bad_status(r, "cmpool_destroy", status);
    r->panel->count_objects(0, &census);
    if (census.handles != 0 || census.mappings != 0)
        return stop(r, "the destroyed pool left %llu pages and %llu mappings behind", (unsigned long long)census.handles,
                    (unsigned long long)census.mappings);
    for (size_t i = 0; i < MOST_STREAMS; i++)
        if (r->streams[i] != NULL)
            device_stream_destroy(r->device, r->streams[i]);
    return check_findings(r);
}

static int run_task(void *argument, void *result)
{
    run *r = argument;
    r->outcome = result;
    uint64_t capacity = r->script->capacity_bytes != 0 ? r->script->capacity_bytes : r->words->capacity_bytes;
    int code = device_open(r->words, capacity, &r->device);
    if (code != EXIT_FINE)
        return code;
    r->panel = device_get_panel(r->device);
    r->operations = device_operations(r->device);
    code = pool_open(r->conf, r->words, r->file, &r->pool);
    if (code != EXIT_FINE)
        return code;
    r->current = r->pool;
    r->outcome->passed = run_statements(r, 0, r->script->count) == 0 && take_down(r) == 0;
    if (r->outcome->passed)
        device_close(r->device);
    free(r->blocks);
    free(r->gates);
    r->outcome->finished = true;
    if (r->outcome->bad_script)
        return tool_say(EXIT_BAD_INPUT, "%s:%u: %s", r->file, r->outcome->line, r->outcome->reason);
    return r->outcome->passed ? EXIT_FINE : EXIT_ANSWER_NO;
}

int scenario_run(const char *file, const scenario_script *script, const device_words *words, const pool_conf *conf,
                 scenario_outcome *outcome)
{
    run *r = calloc(1, sizeof *r);
    if (r == NULL)
        return tool_say(EXIT_DEVICE, "%s: no host memory to run it", file);
    *r = (run){.file = file, .script = script, .words = words, .conf = conf};
    int code = tool_run_apart(file, run_task, r, outcome, sizeof *outcome);
    free(r);
    if ((code == EXIT_FINE || code == EXIT_ANSWER_NO) && !outcome->finished)
        code = tool_say(EXIT_DEVICE, "%s: the run ended early", file);
    return code;
}
