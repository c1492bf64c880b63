/* Scenario scripts: as parsed, and what running one came to. The language is described in tests/scenarios/README.md. */
#ifndef TOOL_SCENARIO_H
#define TOOL_SCENARIO_H

#include "device.h"
#include "pool.h"

typedef enum scenario_verb {
    VERB_ALLOC,  /* a: must be served */
    VERB_REFUSE, /* x: must be refused */
    VERB_FREE,
    VERB_USE,
    VERB_BUSY,
    VERB_DONE,
    VERB_EXT_TAKE,   /* ext +SIZE */
    VERB_EXT_RETURN, /* ext -SIZE */
    VERB_DRVBAD,     /* flag: 1 refuses, 0 works */
    VERB_TRIM,
    VERB_POOL_BEGIN,
    VERB_POOL_END,
    VERB_EXPECT,
    VERB_REP /* statements up to body_end are repeated */
} scenario_verb;

/* Figures that expect compares: SCENARIO_FIGURE(word). */
#define SCENARIO_FIGURES(SCENARIO_FIGURE) \
    SCENARIO_FIGURE(reserved)             \
    SCENARIO_FIGURE(live)                 \
    SCENARIO_FIGURE(drvfree)              \
    SCENARIO_FIGURE(drvcalls)

typedef enum scenario_figure {
#define SCENARIO_FIGURE(word) FIGURE_##word,
    SCENARIO_FIGURES(SCENARIO_FIGURE)
#undef SCENARIO_FIGURE
        FIGURE_COUNT
} scenario_figure;

typedef struct scenario_statement {
    scenario_verb verb;
    unsigned line;
    char *name;   /* block id or pool; may hold $i; NULL where the verb has none */
    char *stream; /* "s0"; may hold $i; NULL where the verb has none */
    char *size;   /* expression; may hold $i; NULL where the verb has none */
    int flag;
    scenario_figure figure;
    char relation[3]; /* "<=", ">=", "==" */
    uint64_t times;   /* REP */
    size_t body_end;  /* REP: index after the last statement of the body */
} scenario_statement;

typedef struct scenario_script {
    scenario_statement *statements;
    size_t count;
    uint64_t capacity_bytes; /* @cap; 0: not given */
} scenario_script;

/* Returns 0, or -1 with "FILE:LINE: fault" in fault and an empty script. */
int scenario_read(const char *path, scenario_script *script, char *fault, size_t fault_bytes);
int scenario_parse(const char *name, const char *text, size_t bytes, scenario_script *script, char *fault, size_t fault_bytes);
void scenario_free(scenario_script *script);

/* Value of an expression for one $i: NULL, or what is wrong with it. Sizes may be 1.5G; K, M, G and T are powers of 1024. */
const char *scenario_evaluate(const char *expression, uint64_t i, int64_t *value);
/* text with every "$i" replaced; false when it does not fit. */
bool scenario_substitute(const char *text, uint64_t i, char *out, size_t room);

/* What running a script came to; lives in memory shared with the process of the run. */
typedef struct scenario_outcome {
    bool finished;
    bool passed;
    bool bad_script; /* a fault that only running could show; reason holds it */
    unsigned line;   /* 0: of no line */
    char reason[480];
} scenario_outcome;

/* Exit status; with EXIT_FINE or EXIT_ANSWER_NO the outcome is filled in, otherwise a message has been printed. */
int scenario_run(const char *file, const scenario_script *script, const device_words *words, const pool_conf *conf,
                 scenario_outcome *outcome);

#endif
