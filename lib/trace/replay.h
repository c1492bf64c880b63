/*
 * The replayer: drives a pool through the public API with the calls of a trace, as a program would that made them. What the device
 * does (streams, kernels, counts, what is mapped) comes through a table of operations, so that this room knows no device.
 *
 * Each block is written whole on its stream when it is allocated. At `u ID S` the program's own order is made (an event on the stream of
 * the block's last touch, S waits for it) and the block is touched on S. The last touch before a free is on the stream of the last touch so
 * far. The device is never synchronised, except at each step where that is asked for. A refused allocation is counted, and the frees and
 * uses of that block are skipped.
 */
#ifndef CMI_TRACE_REPLAY_H
#define CMI_TRACE_REPLAY_H

#include "trace/trace.h"
#include <cudamempool/cudamempool.h>

/* One address range that is mapped to (part of) a physical allocation. */
typedef struct cmi_replay_mapping {
    uint64_t address, bytes, handle;
} cmi_replay_mapping;

/* Physical memory as the device itself accounts for it. */
typedef struct cmi_replay_memory {
    uint64_t handle_bytes; /* allocations whose handle or a mapping is left */
    uint64_t free_bytes;   /* what the device still gives */
} cmi_replay_memory;

/* Operations return 0, or the device's error code. Those marked optional may be NULL. */
typedef struct cmi_replay_device {
    void *self;
    int (*order)(void *self, cmpool_stream before, cmpool_stream after); /* what is on before comes first for what follows on after */
    int (*touch)(void *self, cmpool_stream stream, uint64_t address, size_t bytes);
    int (*synchronise)(void *self);
    /* Optional: calls that the library made and that change memory or wait on the host, so far. */
    uint64_t (*costly_calls)(void *self);
    /* Optional, together: for the oracle. All mappings in order of address, at most room; returns how many there are. */
    size_t (*mappings)(void *self, cmi_replay_mapping *mapping, size_t room);
    void (*memory)(void *self, cmi_replay_memory *memory);
    /* Optional: real nanoseconds spent inside the device's model, to be left out of timing. */
    uint64_t (*inside_ns)(void *self);
} cmi_replay_device;

typedef enum cmi_replay_touch {
    CMI_TOUCH_WHOLE, /* every byte of every block */
    CMI_TOUCH_FIRST, /* the first byte: work on the same streams in the same order, at little cost */
} cmi_replay_touch;

typedef struct cmi_replay_config {
    const cmi_trace *trace;
    cmpool_t pool;
    const cmpool_stream *streams; /* one for each of the trace's */
    cmi_replay_device device;
    cmi_replay_touch touch;
    bool stop_at_refusal;
    bool sync_steps;
    unsigned repeat_last; /* how often the last step runs again */
    uint64_t page_bytes;  /* for the oracle: of the pool */
    uint64_t limit_bytes; /* for the oracle: as the pool was told; 0 is none */
    uint64_t headroom_bytes;
    void (*progress)(void *user, size_t done, size_t total); /* optional; called a few hundred times */
    void *progress_user;
    /* Optional: called after the last event, before the blocks that stay live are given back: the moment to read figures. */
    void (*at_end)(void *user);
    void *at_end_user;
} cmi_replay_config;

typedef struct cmi_replay_result {
    uint64_t refusals, false_refusals; /* false: refused though the oracle finds enough pages */
    uint32_t first_refusal_line, first_false_line;
    cmpool_error first_refusal;
    uint64_t peak_live_bytes; /* of the blocks that were served */
    uint64_t *step_calls;     /* costly calls of each whole step, repetitions included; NULL where they are not counted */
    size_t step_count;
    size_t repeated_from; /* index of the first repetition; step_count when there is none */
    /* Trouble that ended the replay: the call, its code, the line; trouble NULL is none. */
    const char *trouble;
    int trouble_code;
    uint32_t trouble_line;
} cmi_replay_result;

/* Runs the trace and gives the blocks that stay live back at the end. Returns 0, or -1 with result->trouble set. */
int cmi_replay_run(const cmi_replay_config *config, cmi_replay_result *result);
void cmi_replay_result_free(cmi_replay_result *result);

/*
 * Average calls a step in the steady state: from the third step on, or, when the last step was repeated, from the third repetition on.
 * Negative when no step is left to judge.
 */
double cmi_replay_steady_per_step(const cmi_replay_result *result);

/*
 * The cost of the pool's calls alone: the trace once without touches, in one tight loop; streams are still ordered by the program.
 * Real time less the time inside the device's model, divided by the calls. Returns 0, or -1 when there is nothing to divide by.
 */
int cmi_replay_time(const cmi_replay_config *config, double *ns_per_call);

/* ---- oracle (oracle.c) -------------------------------------------------------------------------------------------------------- */

typedef struct cmi_live_block {
    uint64_t address, bytes;
} cmi_live_block;

typedef struct cmi_oracle {
    const cmi_replay_device *device;
    uint64_t page_bytes, limit_bytes, headroom_bytes;
} cmi_oracle;

/*
 * Would a request of that many bytes fit by the promise "pages that carry no live byte plus pages that can still be had"? Judged from the
 * device's own tables and the caller's list of live blocks (reordered here), never from the pool. false when the oracle has no memory to
 * judge with.
 */
bool cmi_oracle_fits(const cmi_oracle *oracle, uint64_t bytes, cmi_live_block *live, size_t live_count);

#endif
