/*
 * Random programs over the public API on the simulated device: their text, how they are drawn, how they run and how a failing one is made
 * short. A program is a list of operations that stand for themselves: each names slots of a small world (blocks, pools, streams), never
 * an outcome of an earlier one.
 */
#ifndef PROPERTY_PROGRAM_H
#define PROPERTY_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { STREAM_SLOTS = 8, POOL_SLOTS = 5, BLOCK_SLOTS = 96, OPERATIONS_MOST = 20000, FAULT_BYTES = 1000 };

enum field {
#define FIELD(name) FIELD_##name,
#include "operations.def"
#undef FIELD
    FIELD_COUNT
};
enum {
#define FIELD(name) HAS_##name = 1 << FIELD_##name,
#include "operations.def"
#undef FIELD
};

enum operation_kind {
#define OPERATION(name, weight, operands) DO_##name,
#include "operations.def"
#undef OPERATION
    OPERATION_KINDS
};

typedef struct program_settings {
#define SETTING(name, least, choices) uint64_t name;
#include "operations.def"
#undef SETTING
} program_settings;

typedef struct operation {
    uint64_t kind;
#define FIELD(name) uint64_t name;
#include "operations.def"
#undef FIELD
} operation;

typedef struct program {
    program_settings world;
    size_t count;
    operation operations[OPERATIONS_MOST];
} program;

static inline uint64_t program_page_bytes(const program_settings *world) { return UINT64_C(2097152) << world->page_doublings; }
static inline uint64_t program_device_bytes(const program_settings *world) { return world->pages * program_page_bytes(world); }

/* ---- draw.c: from a source of numbers ------------------------------------------------------------------------------------------- */

typedef uint32_t draw_function(void *source, uint32_t below);
void program_draw_settings(program *p, draw_function *draw, void *source);
/* One more operation, if there is room. */
void program_draw(program *p, draw_function *draw, void *source);

/* ---- script.c: as text ------------------------------------------------------------------------------------------------------------ */

void program_print(const program *p, FILE *out);
/* false: error says which line is no operation. */
bool program_read(program *p, FILE *in, char *error, size_t error_bytes);

/* ---- run.c: on the simulated device -------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    size_t at;                 /* operation in progress; count: taking down */
    uint64_t refusals;         /* each of them judged */
    uint64_t capture_refusals; /* of those, while a capture was live */
    uint64_t served;
    uint64_t meetings; /* operations during another thread's request */
    bool failed;
    char fault[FAULT_BYTES]; /* "kind: what" */
} outcome;

/* Runs on a device that it configures afresh. What `result` says is right at any moment, so that it survives a crash in shared memory. */
void program_run(const program *p, outcome *result);

/* ---- shrink.c: shorter programs that fail in the same way ---------------------------------------------------------------------------- */

/* In a process of its own, so that crashes are outcomes too. The library must not have been used by the calling process. */
void program_run_apart(const program *p, outcome *result);
/* Leaves out what is not needed, and makes numbers simple. seconds: at most so long. */
void program_shrink(program *p, outcome *result, unsigned seconds);

#endif
