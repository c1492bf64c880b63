/*
 * simcuda from inside: the device model, and how a driver entry point is written. Included by every .c file of this folder and by
 * nobody else.
 *
 * One mutex guards everything below. SIM_ENTER takes it, SIM_RETURN leaves it; a function named sim_* expects it held unless its comment
 * says otherwise. It is never held while a thread is parked or while a host callback runs.
 *
 * An entry point:
 *
 *     SIM_EXPORT CUresult CUDAAPI cuThing(CUstream stream, int x)
 *     {
 *         SIM_ENTER("cuThing");                       counts, failure plan, parking, initialised?; returns early where a plan says so
 *         sim_context *context = SIM_NEED_CONTEXT();  returns 201 or 709 where there is none
 *         ...
 *         SIM_RETURN(CUDA_SUCCESS);                   costs, failure plan "after", progress of the device in order random
 *     }
 *
 * Time and order. A *lane* is a line of device work: one per stream, per legacy stream, per thread's default stream, and one per
 * context for context events. Work on a lane is numbered by ticks. Two things are kept apart:
 *  - what the device has done: lane->completed, moved by the order (eager, lazy, random) and by host waits;
 *  - what is *ordered*: vector clocks, one tick per lane, which only stream order, record -> wait, and the host's observations change.
 * The race checker looks at clocks alone, at the time a call is made, so its findings are the same in every order.
 */
#ifndef SIM_H
#define SIM_H

#include "driver/driver_abi.h"
#include "sim_abi.h"
#include "simcuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 64
#define SIM_PRIORITY_LEAST 0 /* stream priorities, as devices have them */
#define SIM_PRIORITY_GREATEST (-5)
#define SIM_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* ---- calls (call.c) -------------------------------------------------------------------------------------------------------- */

typedef struct sim_cost sim_cost;

/* One exported function. Lives in section "sim_calls", so that every entry point is known by name before it is first called. */
typedef struct sim_call {
    const char *name;
    bool needs_init;      /* false: may be called before cuInit */
    const sim_cost *cost; /* group and prices, found by name */
    uint64_t count;       /* since the last simcuda_counts_reset */
} sim_call;

/* One call under way. */
typedef struct sim_frame {
    sim_call *call;
    uint64_t start_ns;
    uint64_t pages;      /* of 2 MiB: what the price is multiplied with; set by the entry point, 0 otherwise */
    bool host_waited;    /* the host waited for the device: the call counts as host_sync */
    CUresult code_after; /* what a plan wants reported instead of success */
} sim_frame;

#define SIM_ENTER_(name_, needs_init_)                                                                  \
    static sim_call sim_this_call = {.name = name_, .needs_init = needs_init_};                         \
    static sim_call *const sim_this_entry __attribute__((used, section("sim_calls"))) = &sim_this_call; \
    sim_frame sim_here;                                                                                 \
    do {                                                                                                \
        CUresult sim_early = sim_call_enter(&sim_here, &sim_this_call);                                 \
        if (sim_early != CUDA_SUCCESS)                                                                  \
            return sim_early;                                                                           \
    } while (0)

#define SIM_ENTER(name) SIM_ENTER_(name, true)
#define SIM_ENTER_UNINITIALISED(name) SIM_ENTER_(name, false) /* cuInit, cuDriverGetVersion, cuGetErrorName ... */
#define SIM_RETURN(code) return sim_call_leave(&sim_here, (code))
/* For arguments: SIM_REFUSE_IF(pointer == NULL, CUDA_ERROR_INVALID_VALUE). */
#define SIM_REFUSE_IF(condition, code) \
    do {                               \
        if (condition)                 \
            SIM_RETURN(code);          \
    } while (0)

/* For calls that a device may lack: SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM). */
#define SIM_NEED_FEATURE(feature) SIM_REFUSE_IF(!sim.features[feature], CUDA_ERROR_NOT_SUPPORTED)

/* When enter returns anything but success the lock is not held and the call is over. */
CUresult sim_call_enter(sim_frame *frame, sim_call *call);
CUresult sim_call_leave(sim_frame *frame, CUresult code);
/* Panel functions: take and leave the lock and count real time, nothing else. */
uint64_t sim_panel_enter(void);
void sim_panel_leave(uint64_t start_ns);

/* ---- findings (finding.c) ------------------------------------------------------------------------------------------------------ */

void sim_find(simcuda_finding_kind kind, const char *format, ...) SIM_PRINTF(2, 3);
/* Name of the driver call that the lock's holder is in, or "simcuda_touch" and the like. */
const char *sim_where(void);

/* ---- handles (handle.c) -------------------------------------------------------------------------------------------------------- */

/* Values that programs hold are numbers, never addresses of ours; a freed number is the next one given out. */
typedef enum sim_kind {
    SIM_CONTEXT = 1,
    SIM_STREAM,
    SIM_EVENT,
    SIM_PHYSICAL, /* cuMemCreate */
    SIM_POOL,
    SIM_GRAPH,
    SIM_GRAPH_NODE,
    SIM_GRAPH_EXEC,
    SIM_MODULE,
    SIM_NOTIFICATION, /* a registered callback */
    SIM_KERNEL,
    SIM_KINDS
} sim_kind;

/* 0 when the host has no memory. */
uint64_t sim_handle_new(sim_kind kind, void *object);
void sim_handle_drop(sim_kind kind, uint64_t handle);
/* The object, or NULL; a number that was valid once is reported as SIMCUDA_USE_AFTER_DESTROY. */
void *sim_handle_get(sim_kind kind, uint64_t handle);
/* Same without a report. */
void *sim_handle_peek(sim_kind kind, uint64_t handle);
uint64_t sim_handle_live(sim_kind kind); /* how many */
/* Walk live objects: index 0, 1 ... ; NULL for holes; false at the end. */
bool sim_handle_at(sim_kind kind, size_t index, void **object);
/* For objects the program sees as pointer types. */
#define SIM_AS_HANDLE(type, number) ((type)(uintptr_t)(number))
#define SIM_NUMBER(handle) ((uint64_t)(uintptr_t)(handle))

/* ---- clocks and lanes (clock.c, lane.c) ---------------------------------------------------------------------------------------- */

typedef struct sim_lane sim_lane;
typedef struct sim_context sim_context;
typedef struct sim_event sim_event;
typedef struct sim_capture sim_capture; /* capture.c */

/* Lane number -> last tick known to be ordered before. A lane beyond room is at tick 0. */
typedef struct sim_clock {
    uint32_t *ticks;
    uint32_t room;
} sim_clock;

static inline uint32_t sim_clock_at(const sim_clock *clock, uint32_t lane) { return lane < clock->room ? clock->ticks[lane] : 0; }
/* Each entry the larger of both; true if that changed anything. */
bool sim_clock_join(sim_clock *clock, const sim_clock *other);
void sim_clock_copy(sim_clock *clock, const sim_clock *other);
void sim_clock_set(sim_clock *clock, uint32_t lane, uint32_t tick);
void sim_clock_free(sim_clock *clock);

/* Work that the device does something for; plain touches in ghost memory only move lane->enqueued. */
typedef struct sim_work sim_work;

struct sim_lane {
    uint32_t index;     /* in clocks */
    uint32_t enqueued;  /* tick of the last work */
    uint32_t completed; /* ticks up to here are done */
    bool blocking;      /* takes part in the legacy stream's implicit order */
    bool open;          /* its stream exists; a closed lane still finishes */
    bool busy;          /* completed < enqueued */
    bool calling;       /* a host callback of this lane is running, without the lock */
    uint32_t busy_slot;
    uint64_t time_ns; /* device time at which the last work ends */
    sim_clock clock;
    uint64_t version;        /* changes with the clock */
    uint64_t host_version;   /* version of the host's clock that was last joined */
    uint64_t legacy_version; /* of the legacy lane that was last joined here */
    uint64_t seen_by_legacy; /* our version that the legacy lane last joined */
    uint64_t seen_by_fence;  /* our version that the context's fence last joined */
    sim_work *first, *last;  /* queue of work that matters, in order of tick */
    sim_context *context;
    sim_lane *next, *previous; /* lanes of the context */
    sim_capture *capture;      /* owned by capture.c: NULL while not capturing */
    uint64_t stream;           /* handle of its stream; 0 for default streams and inner lanes */
    uint64_t id;               /* of its stream; 0 for legacy streams and inner lanes */
    const char *name;          /* "stream", "legacy stream" ... */
};

/* NULL when the host has no memory. A lane made in a context with a pending cuCtxWaitEvent waits for it. */
sim_lane *sim_lane_new(sim_context *context, bool blocking, const char *name);
/* Its stream is gone. The lane is kept until its work is done and the host has observed that. */
void sim_lane_close(sim_lane *lane);
/* Later work on `lane` comes after everything enqueued so far on `other` (as record and wait would do). */
void sim_lane_wait_lane(sim_lane *lane, sim_lane *other);
/* Later work on `lane` comes after the event's record. Nothing when it was never recorded. */
void sim_lane_wait_event(sim_lane *lane, const sim_event *event);
/* An action on the lane that does nothing but take part in the order (legacy stream: query and synchronise). */
void sim_lane_barrier(sim_lane *lane);
/* Record: the event now stands for everything enqueued so far. */
void sim_lane_record(sim_lane *lane, sim_event *event);
/* The device finishes the lane up to tick, with all that this needs (gates open, callbacks run without the lock). */
void sim_lane_finish(sim_lane *lane, uint32_t tick);
/* The host has seen the lane done up to tick / the clock: later calls of any thread come after it. */
void sim_host_observe(const sim_clock *clock);
/* finish everything enqueued + observe it. Marks the frame as a host wait. */
void sim_lane_synchronise(sim_frame *frame, sim_lane *lane);
/* Everything of the context. */
void sim_context_synchronise(sim_frame *frame, sim_context *context);

/* ---- operations: what a stream can be asked to do (operation.c) ---------------------------------------------------------------- */

typedef enum sim_op_kind {
    SIM_OP_NOTHING, /* an empty node, a barrier */
    SIM_OP_TOUCH,   /* a kernel */
    SIM_OP_COPY,
    SIM_OP_FILL,
    SIM_OP_CALLBACK, /* host function */
    SIM_OP_GATE      /* simcuda_gate_close */
} sim_op_kind;

typedef struct sim_reach {
    uint64_t address, bytes;
    bool write;
} sim_reach;

/* Plain data: capture keeps a copy and submits it again at every launch. */
typedef struct sim_op {
    sim_op_kind kind;
    unsigned reach_count; /* device (and pinned) bytes it reads and writes */
    sim_reach reach[2];
    union {
        struct {
            uint64_t to, from; /* unified addresses; rows of `width` bytes */
            size_t width, rows, to_pitch, from_pitch;
            void *staged; /* pageable source taken at the call: malloc'd, freed by whoever owns the op (sim_op_free) */
        } copy;
        struct {
            uint64_t to;
            size_t width, rows, pitch; /* width in elements */
            unsigned value, element;   /* element: 1, 2 or 4 bytes */
        } fill;
        struct {
            CUhostFn function; /* one of the two is set */
            CUstreamCallback callback;
            CUstream stream; /* for callback */
            void *data;
        } call;
        int gate;
    } u;
} sim_op;

/*
 * The one way in for work on a stream: diverts to capture.c if the lane captures, refuses legacy work while a blocking stream of the
 * context captures, else sim_op_run. Takes over op->u.copy.staged.
 */
CUresult sim_submit(sim_lane *lane, sim_op *op);
/* Order, check, enqueue; also used to launch graph nodes on their lanes. The op is copied; staged bytes pass to the queue. */
CUresult sim_op_run(sim_lane *lane, sim_op *op);
/* A deep copy (staged bytes too) and its end. */
CUresult sim_op_copy(sim_op *to, const sim_op *from);
void sim_op_free(sim_op *op);

/* ---- contexts, threads, streams, events (context.c, stream.c, event.c) --------------------------------------------------------- */

struct sim_context {
    uint64_t handle, id;
    uint64_t clear_count; /* resets of a primary context: what was made before is gone */
    int device;
    unsigned flags;
    bool primary;
    uint64_t peers;    /* devices whose cuMemAlloc memory work of this context may touch: bit per ordinal */
    sim_lane *legacy;  /* made when first used */
    sim_lane *fence;   /* inner lane for cuCtxRecordEvent and cuCtxWaitEvent; NULL until used */
    bool fence_holds;  /* new lanes wait for the fence */
    sim_lane *lanes;   /* all of them, through lane->next */
    unsigned captures; /* streams of the context that are capturing; kept by capture.c */
};

typedef struct sim_per_thread {
    sim_context *context;
    uint64_t context_id, clear_count;
    sim_lane *lane;
} sim_per_thread;

typedef struct sim_thread {
    uint64_t generation; /* of sim.generation; SIM_ENTER brings the record up to date */
    uint32_t number;
    struct sim_stacked {
        uint64_t handle, id; /* handles come back, ids do not */
    } * stack;               /* contexts; [depth - 1] is current */
    unsigned depth, room;
    bool in_callback;         /* running a host function: driver calls are refused with NOT_PERMITTED */
    sim_per_thread *defaults; /* per-thread default streams, one per context */
    unsigned default_count;
    CUstreamCaptureMode capture_mode; /* cuThreadExchangeStreamCaptureMode; GLOBAL at first; capture.c */
    unsigned captures;                /* live captures that this thread began and that are not relaxed; capture.c */
} sim_thread;

sim_thread *sim_self(void); /* also without the lock */
/* The calling thread's current context, or NULL with *code 201 (none) or 709 (destroyed, reported). */
sim_context *sim_context_current(CUresult *code);
#define SIM_NEED_CONTEXT()                                      \
    ({                                                          \
        CUresult sim_why = CUDA_SUCCESS;                        \
        sim_context *sim_found = sim_context_current(&sim_why); \
        if (!sim_found)                                         \
            SIM_RETURN(sim_why);                                \
        sim_found;                                              \
    })
/* The context of a handle; NULL handle: NULL with 201. */
sim_context *sim_context_of(CUcontext handle, CUresult *code);

typedef struct sim_stream {
    uint64_t handle, id;
    unsigned flags;
    int priority;
    sim_lane *lane;
    sim_context *context;
} sim_stream;

/* What a CUstream argument stands for. NULL and CU_STREAM_LEGACY / _PER_THREAD need a current context; per_thread says that the function
 * is the _ptsz/_ptds form, where NULL is the calling thread's default stream. NULL result: *code. */
sim_lane *sim_stream_lane(CUstream stream, bool per_thread, CUresult *code);
#define SIM_NEED_LANE(stream, per_thread)                                        \
    ({                                                                           \
        CUresult sim_why = CUDA_SUCCESS;                                         \
        sim_lane *sim_found = sim_stream_lane((stream), (per_thread), &sim_why); \
        if (!sim_found)                                                          \
            SIM_RETURN(sim_why);                                                 \
        sim_found;                                                               \
    })

struct sim_event {
    uint64_t handle;
    unsigned flags;
    sim_context *context;
    uint64_t context_id; /* the context may be gone */
    bool recorded;
    uint32_t lane, tick; /* complete when that lane is; lanes are never given a smaller tick again */
    sim_clock clock;
    uint64_t time_ns;
    sim_capture *capture; /* recorded inside this capture, else NULL; capture.c */
    void *capture_nodes;  /* what it stands for there; capture.c owns it */
};
sim_event *sim_event_of(CUevent handle, CUresult *code); /* 400 */
bool sim_event_done(const sim_event *event);

/* ---- memory (physical.c, mapping.c, address.c) --------------------------------------------------------------------------------- */

/* A point on a lane; tick 0: none. */
typedef struct sim_epoch {
    uint32_t lane, tick;
} sim_epoch;

/* Touches of one mapping, or readers of some bytes: none ordered before another. */
typedef struct sim_epochs {
    sim_epoch one;
    struct sim_epoch_list *more; /* NULL as long as one is enough */
} sim_epochs;

struct sim_segments; /* touch records of a page that was touched in parts: check.c */
typedef struct sim_page {
    sim_epoch write;
    sim_epochs reads;
    struct sim_segments *parts; /* instead of the two above when not NULL */
} sim_page;

typedef struct sim_physical {
    uint64_t handle;        /* cuMemCreate's value, 0 for others and once released */
    uint64_t number;        /* unique for ever; what simcuda_mapping.handle shows */
    uint64_t bytes, charge; /* charge: what counts against the device's capacity */
    int device;             /* -1: host memory */
    bool created;           /* by cuMemCreate */
    bool dormant;           /* no handle left, but a mapping from which cuMemRetainAllocationHandle can bring it back */
    uint32_t handles;       /* cuMemCreate and cuMemRetainAllocationHandle */
    uint32_t mappings;
    uint32_t page_count;
    uint64_t content; /* offset in the file of its bytes; content mode */
    int file;         /* its own, with a mark behind the bytes, where handles for other processes were asked for; else 0 */
    uint8_t *view;    /* host view of the bytes: content mode and pinned host memory, else NULL */
    CUmemAllocationProp prop;
    sim_page *pages; /* touch records per page of sim.page_bytes; &inner for one page */
    sim_page inner;
} sim_physical;

typedef enum sim_memory_kind {
    SIM_MEMORY_VMM,        /* cuMemMap */
    SIM_MEMORY_ALLOC,      /* cuMemAlloc, cuMemAllocPitch */
    SIM_MEMORY_POOL,       /* cuMemAllocAsync; pool.c */
    SIM_MEMORY_HOST,       /* cuMemHostAlloc, cuMemAllocHost: device address == host address */
    SIM_MEMORY_REGISTERED, /* cuMemHostRegister: not in the page table, not checked */
    SIM_MEMORY_IPC         /* opened from another process; ipc.c */
} sim_memory_kind;

typedef struct sim_mapping {
    uint64_t address, bytes; /* bytes as asked for, not rounded to pages */
    sim_physical *physical;
    sim_memory_kind kind;
    uint64_t readers, writers; /* grants: bit per device; VMM and pools only, others follow the context's peers */
    sim_epochs touches;        /* through this mapping, not yet ordered before one another */
    sim_context *context;      /* owner of ALLOC and HOST memory; NULL for VMM and pools */
    uint64_t buffer_id;        /* unique for ever */
    unsigned flags;            /* of cuMemHostAlloc, cuMemHostRegister */
    void *owner;               /* POOL: pool.c's record; IPC: ipc.c's */
    bool accessible;           /* VMM: cuMemSetAccess was called since the map (counts against the ceiling) */
    uint32_t slot;             /* its place in sim.mappings */
} sim_mapping;

/* The mapping that holds an address, or NULL. Constant time. */
sim_mapping *sim_mapping_find(uint64_t address);
/* Memory of kind ALLOC, POOL or HOST: physical bytes, addresses and a mapping in one. NULL: *code (2 out of memory). For POOL the grants
 * are the device's own; HOST ignores device. */
sim_mapping *sim_memory_new(sim_memory_kind kind, int device, uint64_t bytes, CUresult *code);
/* Its end; does not look for races: sim_check_free does. */
void sim_memory_delete(sim_mapping *mapping);
/* Physical bytes the device still gives. */
uint64_t sim_device_free(int device);

/* A reserved address range of cuMemAddressReserve that holds the address, or NULL. */
typedef struct sim_range {
    uint64_t base, bytes;
    uint64_t mapped; /* mappings in it */
} sim_range;
sim_range *sim_range_find(uint64_t address);

/* ---- the race checker (check.c) -------------------------------------------------------------------------------------------------- */

/* Is [address, bytes) mapped and granted to the context's device? 0, or 700 with a finding (BAD_ACCESS). */
CUresult sim_check_reach(const sim_context *context, const sim_reach *reach);
/* The lane's newest tick touches the bytes: compared with every earlier touch. Pool allocs and frees are touches that write. */
void sim_check_touch(sim_lane *lane, const sim_reach *reach);
/* The host takes the bytes or the address away (cuMemFree, cuMemUnmap ...): every touch must have been observed. */
void sim_check_unmap(sim_mapping *mapping);
void sim_check_revoke(sim_mapping *mapping);
void sim_check_free(sim_mapping *mapping);

/* ---- the whole -------------------------------------------------------------------------------------------------------------------- */

typedef enum sim_order { SIM_EAGER, SIM_LAZY, SIM_RANDOM } sim_order;

typedef struct sim_device {
    uint64_t capacity, used, peak_used, sibling;
    bool refuse;
    sim_context *primary; /* NULL while inactive */
    unsigned primary_retains, primary_flags;
} sim_device;

typedef struct sim_state {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* parked threads, callbacks that end */
    uint64_t generation;    /* of configure and reset */
    bool configured, initialised;
    bool forked; /* this is a child of the process that used the driver: cuInit is refused, as real ones do */
    int device_count;
    uint64_t page_bytes;
    unsigned page_shift;
    sim_order order;
    uint64_t seed, random;
    bool content;
    bool kernels; /* accepted, not executed: kernels.c */
    bool features[SIMCUDA_FEATURE_COUNT];
    sim_device devices[SIM_MAX_DEVICES];
    sim_clock host; /* what the host has observed */
    uint64_t host_version;
    uint64_t host_ns;               /* modelled */
    uint64_t call_number;           /* driver calls and touches so far */
    uint64_t next_id;               /* contexts, streams, physical memory, buffers: unique for ever */
    uint64_t ceiling;               /* live mappings with access per process */
    uint64_t handles, handle_bytes; /* cuMemCreate allocations that count */
    uint64_t accessible;            /* live mappings with access */
} sim_state;
extern sim_state sim;

/* A device ordinal as the driver takes it. */
static inline bool sim_device_valid(CUdevice device) { return device >= 0 && device < sim.device_count; }

/*
 * The other half: capture.c, graph.c, pool.c, ipc.c. Called with the lock held.
 */
/* sim_submit on a capturing lane. */
CUresult sim_capture_submit(sim_lane *lane, sim_op *op);
/* cuEventRecord on a capturing lane; cuStreamWaitEvent where lane or event is in a capture. */
CUresult sim_capture_record(sim_lane *lane, sim_event *event, unsigned flags);
CUresult sim_capture_wait(sim_lane *lane, sim_event *event, unsigned flags);
/* A potentially unsafe call (cuMemAlloc, cuMemFree, cuMemMap ... as cuThreadExchangeStreamCaptureMode describes): 0, or 900. */
CUresult sim_capture_unsafe(void);
/* A call that conflicts with captures on any (blocking_only: blocking) stream of the context: legacy stream work (906), synchronising
 * the context, context events (900). Invalidates them and returns the code; 0 when there is none. */
CUresult sim_capture_conflict(sim_context *context, bool blocking_only, CUresult code);
/* Query or synchronise of a capturing stream (900, invalidates) or of an event recorded in a capture (907). 0 when there is nothing. */
CUresult sim_capture_query_lane(sim_lane *lane);
CUresult sim_capture_query_event(sim_event *event);
/* An event is recorded outside, or destroyed: drops event->capture_nodes. */
void sim_capture_forget_event(sim_event *event);
/* A stream is destroyed while it captures. */
void sim_capture_forget_lane(sim_lane *lane);
/* The context dies: its graphs' and pools' business. After it all lanes of the context are closed. */
void sim_other_context_gone(sim_context *context);
/* cuMemFree of memory of kind POOL: to the pool, now. */
CUresult sim_pool_free(sim_mapping *mapping);
/* configure and reset: forget everything. Objects in handle tables that the other half owns are freed here. */
void sim_other_reset(void);
/* Live graphs (census). */
uint64_t sim_other_graphs(void);

#endif /* SIM_H */
