/* Between scenario_run.c (the walk over a script, up and down) and scenario_do.c (what each statement does). */
#ifndef TOOL_SCENARIO_RUN_H
#define TOOL_SCENARIO_RUN_H

#include "scenario.h"

enum { SCENARIO_NAME_ROOM = 64, SCENARIO_MOST_STREAMS = 1024, SCENARIO_MOST_POOLS = 256 };

typedef struct scenario_block {
    char name[SCENARIO_NAME_ROOM];
    void *address;
    uint64_t bytes;
    unsigned stream, last; /* allocated on; touched last on */
    cmpool_t pool;
} scenario_block;

typedef struct scenario_gate {
    int number;
    unsigned stream;
} scenario_gate;

typedef struct scenario_state {
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
        char name[SCENARIO_NAME_ROOM];
        cmpool_t handle;
    } privates[SCENARIO_MOST_POOLS];
    size_t private_count;
    const char *open_pool; /* name between begin and end */
    cmpool_stream streams[SCENARIO_MOST_STREAMS];
    scenario_block *blocks;
    size_t block_count, block_room;
    scenario_gate *gates; /* work not ended by the script */
    size_t gate_count, gate_room;
    const scenario_statement *at;
    uint64_t i;
} scenario_state;

/* Sets the verdict at the present statement, or at none when state->at is NULL; returns -1 for the caller to pass on. */
int scenario_stop(scenario_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));
int scenario_bad_status(scenario_state *state, const char *call, cmpool_status status);
/* -1 with a verdict when the device has found something wrong, or the pool's structures disagree. */
int scenario_check_findings(scenario_state *state);
int scenario_check_pool(scenario_state *state);

/* Carry out state->at, which is not a VERB_REP. */
int scenario_do(scenario_state *state);
int scenario_free_block(scenario_state *state, scenario_block *block);

#endif
