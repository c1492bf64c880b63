/*
 * Owns the run of one scenario script on a simulated device of its own, from bringing it up to looking whether anything was left on it.
 * The device's findings are looked at after each statement. One thread, in a process of its own (worker.c). Called by cmd_scenario.c.
 */
#include "scenario_run.h"
#include "tool.h"
#include <stdlib.h>

/* ---- the run ------------------------------------------------------------------------------------------------------------------ */

static int run_statements(scenario_state *r, size_t from, size_t to);

static int do_rep(scenario_state *r, size_t index)
{
    const scenario_statement *rep = &r->script->statements[index];
    uint64_t outer = r->i;
    for (r->i = 0; r->i < rep->times; r->i++)
        if (run_statements(r, index + 1, rep->body_end) != 0)
            return -1;
    r->i = outer;
    return 0;
}

static int run_statements(scenario_state *r, size_t from, size_t to)
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
        if (scenario_do(r) != 0 || scenario_check_findings(r) != 0)
            return -1;
        r->panel->run_device(); /* a script says itself which streams have unfinished work */
        i++;
    }
    return 0;
}

/* After the last statement the program ends as programs should; nothing may be left on the device. */
static int take_down(scenario_state *r)
{
    simcuda_census census;
    cmpool_status status = CMPOOL_OK;
    r->at = NULL;
    r->panel->refuse_memory(0, 0);
    if (scenario_check_pool(r) != 0)
        return -1;
    while (r->block_count > 0)
        if (scenario_free_block(r, &r->blocks[0]) != 0)
            return -1;
    for (size_t i = 0; i < SCENARIO_MOST_STREAMS; i++)
        if (r->streams[i] != NULL)
            cmpool_stream_retire(0, r->streams[i]);
    for (size_t i = 0; i < r->private_count && status == CMPOOL_OK; i++)
        status = cmpool_destroy(r->privates[i].handle);
    if (status == CMPOOL_OK)
        status = cmpool_destroy(r->pool);
    if (status != CMPOOL_OK)
        return scenario_bad_status(r, "cmpool_destroy", status);
    r->panel->count_objects(0, &census);
    if (census.handles != 0 || census.mappings != 0)
        return scenario_stop(r, "the destroyed pool left %llu pages and %llu mappings behind", (unsigned long long)census.handles,
                             (unsigned long long)census.mappings);
    for (size_t i = 0; i < SCENARIO_MOST_STREAMS; i++)
        if (r->streams[i] != NULL)
            device_stream_destroy(r->device, r->streams[i]);
    return scenario_check_findings(r);
}

static int run_task(void *argument, void *result)
{
    scenario_state *r = argument;
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
    scenario_state *r = calloc(1, sizeof *r);
    if (r == NULL)
        return tool_say(EXIT_DEVICE, "%s: no host memory to run it", file);
    *r = (scenario_state){.file = file, .script = script, .words = words, .conf = conf};
    int code = tool_run_apart(file, run_task, r, outcome, sizeof *outcome);
    free(r);
    if ((code == EXIT_FINE || code == EXIT_ANSWER_NO) && !outcome->finished)
        code = tool_say(EXIT_DEVICE, "%s: the run ended early", file);
    return code;
}
