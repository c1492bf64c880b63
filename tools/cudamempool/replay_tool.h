/* Between cmd_replay.c and its parts: what was asked for, what one file came to. */
#ifndef TOOL_REPLAY_H
#define TOOL_REPLAY_H

#include "device.h"
#include "pool.h"
#include "tool.h"
#include <stdio.h>

typedef struct replay_options {
    const char *device; /* as written */
    device_words words;
    pool_conf conf;
    bool find_capacity, json, sync_steps;
    unsigned repeat_last;
    FILE *closing; /* sentences that are printed in the end */
} replay_options;

enum { REPLAY_MOST_FINDINGS = 4 };

/* One run of a trace; lives in memory shared with the process of the run, so it holds no pointers. */
typedef struct replay_outcome {
    bool finished;
    uint64_t refusals, false_refusals;
    uint32_t first_refusal_line, first_false_line;
    uint64_t refused_bytes, short_bytes, idle_bytes, largest_free_bytes, device_free_bytes, limit_bytes; /* of the first refusal */
    uint64_t peak_live_bytes, peak_reserved_bytes, page_moves, host_waits;
    double steady_per_step; /* negative: none */
    uint64_t races, other_findings;
    char finding[REPLAY_MOST_FINDINGS][240];
    device_counts counts;
    double ns_per_call;
    size_t step_count;
    uint64_t step_calls[];
} replay_outcome;

/* What a file came to: the full run, the timing run, the search. */
typedef struct replay_report {
    const char *file;
    const cmi_trace *trace;
    const replay_options *options;
    const replay_outcome *run;
    double ns_per_call;      /* negative: not measured */
    uint64_t capacity_bytes; /* 0: none found or not searched */
} replay_report;

typedef enum replay_mode {
    REPLAY_FULL,  /* whole blocks touched, everything counted */
    REPLAY_TIMED, /* no touches, one loop, real time */
    REPLAY_PROBE, /* first bytes touched, ends at the first refusal */
} replay_mode;

/* Run a trace once, in a process of its own. outcome has room for step_calls of `steps` steps. Exit status; trouble has been printed. */
int replay_run(const char *file, const cmi_trace *trace, const replay_options *options, replay_mode mode, uint64_t capacity_bytes,
               tool_progress *progress, replay_outcome *outcome, size_t steps);
size_t replay_outcome_bytes(size_t steps);

/*
 * The smallest simulated device that serves the whole trace. Fit need not be monotone in size, so the answer is the smallest size that was
 * tried and fits: peak live rounded up to the page first, then growing by 1, 2, 4... pages until one fits, then halving between that
 * and the last that did not. Exit status; *capacity_bytes 0 when even four times the peak does not fit.
 */
int replay_find_capacity(const char *file, const cmi_trace *trace, const replay_options *options, tool_progress *progress,
                         uint64_t *capacity_bytes);

/*
 * Output. The closing sentence sets what the recorded run reserved beside what the pool needs, for files that say the first; it goes to
 * closing, to be printed behind all the rest.
 */
void replay_closing(const replay_report *report, FILE *closing);
int replay_print_json(const replay_report *report);
void replay_table_begin(const replay_options *options);
void replay_table_row(const replay_report *report);
void replay_table_end(const replay_options *options);
/* What is wrong, in prose, on stderr: refusals and findings. */
void replay_explain(const replay_report *report);

#endif
