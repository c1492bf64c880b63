/*
 * simcuda: control panel of the simulated CUDA device.
 *
 * The device itself is libcuda.so.1 (and libcudart.so.12/13) under simcuda/: real symbol names, real rules. This panel, exported
 * by the same libcuda.so.1 and found with dlsym, is for tests and tools: it configures devices, stands in for kernels, decides
 * how far the device has got, makes calls fail, and reads counts and findings. Every function may be called from any thread.
 * Pointers are passed as uint64_t device addresses and streams as void * handles (CUstream).
 */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SIMCUDA_API __attribute__((visibility("default")))
#else
#define SIMCUDA_API
#endif

/* ---- configuration -------------------------------------------------------------------------------------------------------- */

/*
 * Set up the devices: "sim:SIZE[,order=eager|lazy|random:SEED][,content][,page=SIZE][,devices=N][,kernels=accept]" with SIZE as 24GiB,
 * 512MiB or 4096. order: how far the device gets by itself: at once, not before the host waits, or by chance (eager unless said otherwise).
 * content: memory has bytes, which the CPU may read and write at the device address (about 65,000 mappings at most, since each is one
 * of the process); without, it has none, capacity costs nothing and a CPU touch faults. page: the granularity, 2MiB. kernels=accept:
 * images load and kernels are launched but NOT EXECUTED, and touch nothing; without it each such call is refused by name.
 * Forgets everything: contexts, memory, streams, counts, findings, plans. Without a call, the first cuInit reads SIMCUDA_DEVICE (the
 * same words) or SIMCUDA_CAPACITY (a SIZE), else takes sim:16GiB.
 * Returns 0, or -1 with a one-line reason in error (may be NULL). Nothing changes on failure.
 */
SIMCUDA_API int simcuda_configure(const char *words, char *error, size_t error_bytes);

/* Whether kernels are accepted. */
SIMCUDA_API int simcuda_accepts_kernels(void);

/* Back to the state after the last simcuda_configure: as a fresh process would see it. */
SIMCUDA_API void simcuda_reset(void);

/* Capabilities that a device or driver may lack; all are on after configure. */
typedef enum simcuda_feature {
    SIMCUDA_FEATURE_VMM,            /* attribute 102 and the calls of the VMM API */
    SIMCUDA_FEATURE_STREAM_ID,      /* cuStreamGetId */
    SIMCUDA_FEATURE_CONTEXT_EVENTS, /* cuCtxRecordEvent, cuCtxWaitEvent (CUDA 12.5) */
    SIMCUDA_FEATURE_ASYNC_POOLS,    /* cuMemAllocAsync and memory pools */
    SIMCUDA_FEATURE_RDMA,           /* attribute 110 */
    SIMCUDA_FEATURE_PEER,           /* peer access between devices */
    SIMCUDA_FEATURE_NOTIFICATIONS,  /* cuDeviceRegisterAsyncNotification (CUDA 12.4) */
    SIMCUDA_FEATURE_COUNT
} simcuda_feature;
/* on = 0: cuGetProcAddress and dlsym users see the call as absent or refused with NOT_SUPPORTED, attributes read 0. */
SIMCUDA_API void simcuda_set_feature(simcuda_feature feature, int on);

/* ---- standing in for kernels and for time ----------------------------------------------------------------------------------- */

/*
 * A kernel on stream that reads (write 0) or writes (write 1) bytes [ptr, ptr + bytes). The stream may be capturing: then it
 * becomes a graph node. Returns a CUresult: 0, or what launching a kernel would (201 no context, 400 bad stream, 700 not
 * mapped or no access ...).
 */
SIMCUDA_API int simcuda_touch(void *stream, uint64_t ptr, size_t bytes, int write);

/* Enqueue work on stream that ends at simcuda_gate_open, or when something waits for it on the host. Returns a gate number > 0. */
SIMCUDA_API int simcuda_gate_close(void *stream);
SIMCUDA_API void simcuda_gate_open(int gate);
/* Let the device finish all it can, without the host having observed anything (races stay races). */
SIMCUDA_API void simcuda_run_device(void);
/* Modelled time so far, in nanoseconds: host clock (driver calls only). */
SIMCUDA_API uint64_t simcuda_clock_ns(void);

/* ---- a sibling: another user of the device's memory -------------------------------------------------------------------------- */

/* Take bytes as another process would. Returns 0, or 2 (out of memory) with *shortfall (may be NULL) set to what was missing. */
SIMCUDA_API int simcuda_sibling_take(int device, uint64_t bytes, uint64_t *shortfall);
/* Give bytes back (at most what was taken). */
SIMCUDA_API void simcuda_sibling_return(int device, uint64_t bytes);
/* While on, every allocation of device memory on the device returns out of memory. */
SIMCUDA_API void simcuda_refuse_memory(int device, int on);

/* The driver tells the process that it is so many bytes over its budget: the callbacks registered for the device are called, by this
 * thread, one after the other. Returns how many. */
SIMCUDA_API int simcuda_notify_over_budget(int device, uint64_t bytes);

/* Live mappings with access that the driver allows in the process before cuMemSetAccess fails (500,000 at first). */
SIMCUDA_API void simcuda_set_mapping_ceiling(uint64_t mappings);

/* ---- failures ------------------------------------------------------------------------------------------------------------- */

typedef enum simcuda_when {
    SIMCUDA_BEFORE, /* the call fails without having any effect */
    SIMCUDA_AFTER   /* the call has its whole effect, then reports the code */
} simcuda_when;
/* One rule of the plan: call number nth (1 is the next one) of the named driver function ("cuMemMap"; "*" is any call that
 * the program makes through the driver) returns code. count: how many calls in a row fail (0: all from there on).
 * Returns a rule number, or -1 for an unknown name. */
SIMCUDA_API int simcuda_fail(const char *function, uint64_t nth, uint64_t count, int code, simcuda_when when);
SIMCUDA_API void simcuda_fail_clear(void);
/* How often rules have struck since configure. */
SIMCUDA_API uint64_t simcuda_failures_injected(void);
/* Park: the nth call of function waits inside the driver, with no simcuda lock held, until simcuda_release_parked. */
SIMCUDA_API int simcuda_park(const char *function, uint64_t nth);
/* Wait until a thread is parked (1) or timeout_ms has passed (0). */
SIMCUDA_API int simcuda_wait_parked(int timeout_ms);
SIMCUDA_API void simcuda_release_parked(void);

/* ---- counts, costs ----------------------------------------------------------------------------------------------------------- */

typedef enum simcuda_group { SIMCUDA_MEMORY, SIMCUDA_ORDER, SIMCUDA_HOST_SYNC, SIMCUDA_OTHER, SIMCUDA_GROUPS } simcuda_group;
/* Calls of a group since configure or the last simcuda_counts_reset. memory: create, release, map, unmap, set-access, reserve,
 * address-free, cuMemAlloc, cuMemFree. order: event record, event query, stream or context wait. host_sync: any call on which the
 * host waits for the device. The panel's own calls are not counted. */
SIMCUDA_API uint64_t simcuda_calls(simcuda_group group);
/* Calls of one function; 0 for an unknown name. */
SIMCUDA_API uint64_t simcuda_calls_of(const char *function);
/* Walk all functions with a count above 0, most called first: index 0, 1, ... until it returns NULL. */
SIMCUDA_API const char *simcuda_call_at(size_t index, uint64_t *count);
SIMCUDA_API void simcuda_counts_reset(void);
/* Modelled microseconds spent in driver calls under a built-in cost table: "per_page" or "per_range"; -1 for another name. */
SIMCUDA_API double simcuda_cost_us(const char *table);
/* Real nanoseconds the calling process has spent inside simcuda, panel included (for replay's ns_per_call). */
SIMCUDA_API uint64_t simcuda_inside_ns(void);

/* ---- what exists ------------------------------------------------------------------------------------------------------------ */

typedef struct simcuda_census {
    uint64_t capacity_bytes, free_bytes, sibling_bytes; /* of the device asked for */
    uint64_t handles;                                   /* VMM allocations whose handle or a mapping is left */
    uint64_t handle_bytes;                              /* their bytes */
    uint64_t mappings;                                  /* live address-to-handle mappings */
    uint64_t peak_mappings;
    uint64_t reservations, reserved_address_bytes, peak_address_bytes;
    uint64_t mallocs, malloc_bytes; /* cuMemAlloc and pools */
    uint64_t pinned, pinned_bytes;
    uint64_t streams, events, contexts, graphs;
    uint64_t peak_used_bytes;
    uint64_t notifications; /* callbacks registered, on all devices */
} simcuda_census;
SIMCUDA_API void simcuda_count_objects(int device, simcuda_census *census);

/* One mapping or handle at a time, for oracles that must not trust the library: index 0, 1, ... until it returns 0. */
typedef struct simcuda_mapping {
    uint64_t address, bytes, handle; /* handle: number of the physical allocation */
} simcuda_mapping;
SIMCUDA_API int simcuda_mapping_at(size_t index, simcuda_mapping *mapping);
/* All mappings at once in address order: fills at most room entries, returns how many there are. */
SIMCUDA_API size_t simcuda_mappings(simcuda_mapping *mapping, size_t room);

/* ---- findings ------------------------------------------------------------------------------------------------------------------ */

typedef enum simcuda_finding_kind {
    SIMCUDA_RACE_TOUCH,        /* a touch no chain orders after an earlier conflicting touch of the same physical bytes */
    SIMCUDA_RACE_UNMAP,        /* unmap, remap, release or free not ordered after every earlier touch */
    SIMCUDA_USE_AFTER_DESTROY, /* a destroyed stream, event, context, graph or handle was used */
    SIMCUDA_BAD_ACCESS,        /* a touch of unmapped bytes, or without a grant for the device */
    SIMCUDA_UNSUPPORTED_CALL,  /* a function that is not simulated was called */
    SIMCUDA_FINDING_KINDS
} simcuda_finding_kind;
/* Findings since configure. races = TOUCH + UNMAP. */
SIMCUDA_API uint64_t simcuda_findings(simcuda_finding_kind kind);
SIMCUDA_API uint64_t simcuda_races(void);
/* The text of finding i (0 is the oldest; at most 64 are kept), or NULL. Valid until configure. */
SIMCUDA_API const char *simcuda_finding_text(size_t index);
SIMCUDA_API void simcuda_findings_reset(void);
/* For stubs of functions that are not simulated, the runtime's too: a finding UNSUPPORTED_CALL, and one line on stderr unless *said. */
SIMCUDA_API void simcuda_say_unsupported(const char *name, int *said);

#ifdef __cplusplus
}
#endif

#endif /* SIMCUDA_H */
