/*
 * The small world of a random program: the simulated device's panel and driver, streams, pools and blocks in slots. What the program
 * itself knows of it: which blocks live where, who touched them last, what limits it has set.
 */
#ifndef PROPERTY_WORLD_H
#define PROPERTY_WORLD_H

#include "driver/driver_abi.h"
#include "program.h"
#include "simcuda.h"

#include <cudamempool/cudamempool.h>

#include <pthread.h>
#include <stdatomic.h>

/* clang-format off */
#define WORLD_PANEL(F)                                                                                     \
    F(configure) F(touch) F(gate_close) F(gate_open) F(run_device) F(sibling_take) F(sibling_return)       \
    F(count_objects) F(mappings) F(races) F(findings) F(finding_text) F(fail) F(fail_clear)                \
    F(failures_injected) F(park) F(wait_parked) F(release_parked) F(notify_over_budget)
#define WORLD_DRIVER(F)                                                                                    \
    F(cuInit, (unsigned flags)) F(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))        \
    F(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) F(cuCtxSetCurrent, (CUcontext context))             \
    F(cuStreamCreate, (CUstream * stream, unsigned flags)) F(cuStreamDestroy_v2, (CUstream stream))        \
    F(cuStreamSynchronize, (CUstream stream)) F(cuEventCreate, (CUevent * event, unsigned flags))          \
    F(cuEventDestroy_v2, (CUevent event)) F(cuEventRecord, (CUevent event, CUstream stream))               \
    F(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                 \
    F(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                                \
    F(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                              \
    F(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))          \
    F(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) F(cuGraphExecDestroy, (CUgraphExec exec))        \
    F(cuGraphDestroy, (CUgraph graph))
/* clang-format on */

typedef struct world_device {
#define F(name) __typeof__(simcuda_##name) *name;
    WORLD_PANEL(F)
#undef F
#define F(name, parameters) CUresult(*name) parameters;
    WORLD_DRIVER(F)
#undef F
} world_device;

/* How a live block has been touched on a stream. */
typedef enum touched { NOT_TOUCHED, TOUCHED, TOUCH_TOLD /* by cmpool_record_use */ } touched;

typedef struct world_block {
    uint64_t address, bytes; /* 0: none; usable bytes */
    unsigned pool, stream;   /* slots it was allocated in */
    unsigned writer;         /* slot of the stream of the last write */
    bool exportable;
    bool sealed; /* a stream that used it has ended, and nothing orders the program after that use: only to be freed */
    touched touches[STREAM_SLOTS];
} world_block;

enum { GRAPHS_MOST = 4 };

typedef struct world_pool {
    cmpool_t handle; /* 0: none */
    unsigned parent; /* its own slot, if it is no private pool */
    uint64_t limit, floor, headroom;
    uint64_t reserved;   /* as last seen */
    uint64_t fixed;      /* as last seen: exportable blocks and segments */
    bool waits;          /* a stream may be made to wait on the device */
    bool segments;       /* its memory stays where it is: no promise about room */
    bool strict;         /* pages have to leave an address first, which may take a wait on the host */
    bool unmaps_first;   /* of those: because of an option, which a capture bars from moving any */
    uint64_t host_waits; /* as last seen */
    bool is_set;         /* a capture set; then: */
    CUgraphExec graphs[GRAPHS_MOST];
    unsigned graph_count;
    unsigned last; /* stream of the last launch; STREAM_SLOTS: none that lives */
} world_pool;

typedef struct world_stream {
    CUstream handle;
    bool lives, special;
    bool captures; /* only its capture set's work goes there now */
} world_stream;

enum { GATES_MOST = 32, PAGES_MOST = 256, BY_ANYBODY = 1u << STREAM_SLOTS };

/* What is remembered of a physical page, see past.c. */
typedef struct world_page {
    uint64_t handle;
    unsigned root;  /* slot of the pool whose blocks were on it last */
    unsigned set;   /* slot of the capture set of which a block has ever lain on it: it is the set's until its release; or POOL_SLOTS */
    uint32_t users; /* bits of stream slots: who had used what was freed on it since the live capture began */
} world_page;

/* A request by a second thread, see aside.c. */
typedef struct world_aside {
    pthread_t thread, release;
    bool lives; /* it stands still in a driver call */
    cmpool_t pool;
    uint64_t bytes;
    CUstream stream;
    void *address;
    cmpool_status status;
} world_aside;

typedef struct world {
    const program_settings *settings;
    outcome *result;
    world_device device;
    CUcontext context;
    CUevent event; /* for the program's own order */
    world_stream streams[STREAM_SLOTS];
    world_pool pools[POOL_SLOTS];
    world_block blocks[BLOCK_SLOTS];
    int gates[GATES_MOST];
    unsigned gate_count;
    uint64_t sibling_bytes;
    world_page pages[PAGES_MOST]; /* kept by the judge */
    unsigned page_count;
    bool capturing; /* a capture is live: */
    unsigned capture_set, capture_stream;
    bool all_was_done;    /* when it began, and the pools could see that */
    uint32_t have_called; /* bits of stream slots: who has asked for memory since, or whose has been freed */
    bool failing;         /* a driver call of the present or the next operation is to fail */
    uint64_t failures_before;
    bool host_may_wait; /* in the present operation */
    world_aside aside;
    operation aside_step;
    unsigned tags;           /* pushed */
    atomic_bool bad_refusal; /* a callback was told what does not fit together */
    bool calls_back;         /* a pool has had a callback, which changes the world from within a request */
    unsigned shrinking;      /* slot of the pool that the present operation tells to give memory up */
} world;

/* Note what went wrong; the first fault stays. Always false. */
bool world_fault(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A status that is not among the expected ones is a fault. */
bool world_expect(world *w, const char *call, cmpool_status status, cmpool_status expected);

/* ---- world.c ------------------------------------------------------------------------------------------------------------------ */

bool world_start(world *w, const program_settings *settings, outcome *result);
/* Streams and context go; what is left on the device by then is a fault. */
bool world_end(world *w);
/* May the program do something on the stream? Not while it is captured. */
bool world_has_stream(const world *w, uint64_t slot);
/* Another stream that the program has, or STREAM_SLOTS. */
unsigned world_heir(const world *w, unsigned slot);
/* Uses that the pool was not told of are the program's to order: the heir takes them over, so that the stream can go or be captured. */
bool world_hand_over(world *w, unsigned slot);
bool world_make_stream(world *w, unsigned slot);
bool world_end_stream(world *w, unsigned slot, bool retire);
/* The seconds that the library's clock has shown until now, and more of them. */
void world_pass_time(unsigned seconds);
/* What is on `before` comes first for what follows on `after`. */
bool world_order(world *w, unsigned before, unsigned after);
bool world_close_gate(world *w, unsigned stream);
void world_open_gate(world *w, unsigned which);
/* Has a driver call been made to fail since the last look? From here on none is. */
bool world_take_failure(world *w);
/* Work on a stream is captured from here on; and to the end, which makes a graph of the set. */
bool world_begin_capture(world *w, unsigned set, unsigned stream, unsigned mode);
/* All gates are opened and the device gets as far as it can; the host has observed nothing of it. */
void world_let_finish(world *w);
bool world_end_capture(world *w);
/* A graph of the set runs, after the last one that did. */
bool world_launch(world *w, unsigned set, unsigned graph, unsigned stream);
/* No graph of the set runs any more. */
bool world_drop_graphs(world *w, unsigned set);

/* ---- blocks.c, others.c: the operations ---------------------------------------------------------------------------------------- */

#define OPERATION(name, weight, operands) bool do_##name(world *w, const operation *step);
#include "operations.def"
#undef OPERATION
bool world_free_block(world *w, world_block *block, unsigned stream);
/* A stream to free the block on: the one it was made for, or another that lives. */
unsigned world_own_stream(const world *w, const world_block *block);
/* Is the block a live capture's, so that whatever happens to it happens in the capture? */
bool world_is_captured(const world *w, const world_block *block);
/* The second thread's request has ended, or ends now: what it got is in the world. */
bool world_finish_aside(world *w);
/* Does the operation ask for an exportable block? */
bool world_is_exportable(const world *w, const operation *step);

/* No tag is pushed any more; and the names of all are known to the library. */
bool world_drop_tags(world *w);
void world_warm_tags(void);
/* A pause of what has a tag. */
bool world_pause_some(world *w, cmpool_t pool, unsigned flags, cmpool_status *status);

/* ---- aside.c ------------------------------------------------------------------------------------------------------------------ */

/* A second thread asks; with `aside.lives` it has not ended yet. To be ended in any case. */
bool world_ask_aside(world *w, cmpool_t pool, uint64_t bytes, CUstream stream, unsigned place);
void world_end_aside(world *w);

/* ---- past.c: what pages have been through; what a capture leaves of them ------------------------------------------------------------- */

/* The live block is about to be freed on the stream. */
void past_free(world *w, const world_block *block, unsigned stream);
/* A capture is about to begin. */
void past_begin_capture(world *w);
/* A driver call has failed: where the pages of a request in progress are is not known. */
void past_forget(world *w);

/* ---- judge.c: told by the device and the program's own list alone ------------------------------------------------------------------ */

/* After every operation: structures, races, limits, figures, and that no two blocks share a byte. */
bool judge_state(world *w);
/* Should a request have been served by the pool's promise? Then its refusal is a fault. */
bool judge_refusal(world *w, unsigned pool, uint64_t bytes, uint64_t align, unsigned stream);
/* cmpool_reserve of so many bytes was refused. */
bool judge_reserve(world *w, unsigned pool, uint64_t bytes);
/* A pool was told to hold at most `keep` bytes. */
bool judge_trim(world *w, unsigned pool, uint64_t keep);
/* All pools were asked to give `bytes` back and gave `released`. */
bool judge_device_trim(world *w, uint64_t bytes, uint64_t released);

#endif
