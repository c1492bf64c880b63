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

/* clang-format off */
#define WORLD_PANEL(F)                                                                                     \
    F(configure) F(touch) F(gate_close) F(gate_open) F(run_device) F(sibling_take) F(sibling_return)       \
    F(count_objects) F(mappings) F(races) F(findings) F(finding_text)
#define WORLD_DRIVER(F)                                                                                    \
    F(cuInit, (unsigned flags)) F(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))        \
    F(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) F(cuCtxSetCurrent, (CUcontext context))             \
    F(cuStreamCreate, (CUstream * stream, unsigned flags)) F(cuStreamDestroy_v2, (CUstream stream))        \
    F(cuStreamSynchronize, (CUstream stream)) F(cuEventCreate, (CUevent * event, unsigned flags))          \
    F(cuEventDestroy_v2, (CUevent event)) F(cuEventRecord, (CUevent event, CUstream stream))               \
    F(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))
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
    bool sealed;             /* a stream that used it has ended, and nothing orders the program after that use: only to be freed */
    touched touches[STREAM_SLOTS];
} world_block;

typedef struct world_pool {
    cmpool_t handle; /* 0: none */
    unsigned parent; /* its own slot, if it is no private pool */
    uint64_t limit, floor, headroom;
    uint64_t reserved; /* as last seen */
    bool waits;        /* a stream may be made to wait on the device */
} world_pool;

typedef struct world_stream {
    CUstream handle;
    bool lives, special;
} world_stream;

enum { GATES_MOST = 32 };

typedef struct world {
    const program_settings *settings;
    outcome *result;
    world_device device;
    CUevent event; /* for the program's own order */
    world_stream streams[STREAM_SLOTS];
    world_pool pools[POOL_SLOTS];
    world_block blocks[BLOCK_SLOTS];
    int gates[GATES_MOST];
    unsigned gate_count;
    uint64_t sibling_bytes;
    unsigned shrinking; /* slot of the pool that the present operation tells to give memory up */
} world;

/* Note what went wrong; the first fault stays. Always false. */
bool world_fault(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A status that is not among the expected ones is a fault. */
bool world_expect(world *w, const char *call, cmpool_status status, cmpool_status expected);

/* ---- world.c ------------------------------------------------------------------------------------------------------------------ */

bool world_start(world *w, const program_settings *settings, outcome *result);
/* Streams and context go; what is left on the device by then is a fault. */
bool world_end(world *w);
bool world_make_stream(world *w, unsigned slot);
bool world_end_stream(world *w, unsigned slot, bool retire);
/* What is on `before` comes first for what follows on `after`. */
bool world_order(world *w, unsigned before, unsigned after);
bool world_close_gate(world *w, unsigned stream);
void world_open_gate(world *w, unsigned which);

/* ---- judge.c: told by the device and the program's own list alone ------------------------------------------------------------------ */

/* After every operation: structures, races, limits, figures, and that no two blocks share a byte. */
bool judge_state(world *w);
/* Should a request have been served by the pool's promise? Then its refusal is a fault. */
bool judge_refusal(world *w, unsigned pool, uint64_t bytes, uint64_t align);
/* cmpool_reserve of so many bytes was refused. */
bool judge_reserve(world *w, unsigned pool, uint64_t bytes);
/* A pool was told to hold at most `keep` bytes. */
bool judge_trim(world *w, unsigned pool, uint64_t keep);
/* All pools were asked to give `bytes` back and gave `released`. */
bool judge_device_trim(world *w, uint64_t bytes, uint64_t released);

#endif
