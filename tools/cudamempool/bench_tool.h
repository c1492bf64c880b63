/* Between cmd_bench.c and its parts: what was asked for, what one workload came to. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H

#include "bench.h"
#include "device.h"

typedef struct bench_options {
    const char *device;           /* cuda:N, or NULL: a simulated one */
    const char *order;            /* of a simulated device */
    const char *capacity;         /* of a simulated device, or NULL: what the workload names */
    const char *allocator;        /* a name, or the path of a shared library */
    uint64_t count, live, rounds; /* 0: as the workload says */
    bool json, profile;
    char command[512]; /* for the record */
} bench_options;

/* Lives in memory shared with the process of the run, so it holds no pointers. */
typedef struct bench_outcome {
    char allocator[64], about[192], skipped[128]; /* skipped: why, or empty */
    double figures[BENCH_FIGURES];
} bench_outcome;

/* Run one workload, the trace with it for replay, in processes of its own. Exit status; trouble has been printed. */
int bench_measure(const bench_workload *workload, const cmi_trace *trace, const char *label, const bench_options *options,
                  bench_outcome *outcome);

/* Output: the header once, then each result. */
int bench_print_header(const bench_options *options);
int bench_print(const bench_workload *workload, const char *label, const bench_options *options, const bench_outcome *outcome);
void bench_print_list(void);

#endif
