/*
 * What the files of lib/preload share: the few driver types that hooked functions mention, the table of the driver's own functions,
 * the list of live blocks, contexts and pools. A client of the public interface, so nothing of the other rooms is included.
 */
#ifndef CMI_PRELOAD_H
#define CMI_PRELOAD_H

#include <cudamempool/cudamempool.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is seldom needed stays out of the functions that a request or a free goes through: these save no registers for it. */
#define PRELOAD_SELDOM __attribute__((noinline, cold))

/* ---- the driver's types, as far as they pass through ------------------------------------------------------------------------------ */

typedef int CUresult;
typedef int CUdevice;
typedef int CUpointer_attribute;
typedef int CUstreamCaptureMode;
typedef int CUstreamCaptureStatus;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void *CUcontext;
typedef cmpool_stream CUstream;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUipcMemHandle_st CUipcMemHandle;
typedef struct CUmemLocation {
    int type, id;
} CUmemLocation;
typedef struct CUmemAllocationProp { /* its beginning */
    int type, handle_types;
    CUmemLocation location;
} CUmemAllocationProp;
typedef struct CUmemPoolProps { /* its beginning */
    int type, handle_types;
    CUmemLocation location;
} CUmemPoolProps;
typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,

    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

/* ---- the driver's own functions (driver.c) ------------------------------------------------------------------------------------------- */

/* The replacements, which are exported under the driver's names. */
#pragma GCC visibility push(default)
#define PRELOAD_HOOK(name, params) CUresult name params;
#include "preload/hooks.def"
/* For a program that has the library itself at work, with more knowledge than there is here (the Python package): what is asked of the
 * driver from now on is the driver's; blocks handed out before are still taken back. */
void cudamempool_preload_stand_aside(void);
#pragma GCC visibility pop

/* One pointer per line of hooks.def; NULL where the driver has no such function. */
typedef struct preload_driver {
#define PRELOAD_HOOK(name, params) CUresult(*name) params;
#define PRELOAD_REAL(name, params) CUresult(*name) params;
#include "preload/hooks.def"
} preload_driver;

/* NULL until the driver is known. Read through cmi_preload_driver alone. */
extern _Atomic(const preload_driver *) cmi_preload_known_driver;
PRELOAD_SELDOM const preload_driver *cmi_preload_find_driver(void);

/* The driver that the program has loaded, or NULL: none yet. Any thread, no lock. */
static inline const preload_driver *cmi_preload_driver(void)
{
    const preload_driver *known = atomic_load_explicit(&cmi_preload_known_driver, memory_order_acquire);
    return known ? known : cmi_preload_find_driver();
}
/* What the program gets in place of a function of the driver: the replacement, or the function itself. */
void *cmi_preload_replacement(void *function);
/* For dlsym: whether the name is in hooks.def as a hook. */
bool cmi_preload_is_hooked(const char *name);
/* Learn the driver from one of its functions. false: the address lies in no library of the driver's name, or in a second one. */
bool cmi_preload_adopt(void *function);
/* Whether an address is this library's own, or lies in a library of the driver: their look-ups are left alone. */
bool cmi_preload_is_inside(const void *address);

/* Call the driver, whatever became of it. */
#define PRELOAD_FORWARD(name, ...) \
    (cmi_preload_driver() && cmi_preload_driver()->name ? cmi_preload_driver()->name(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED)

/* ---- look-ups (dlsym.c) ----------------------------------------------------------------------------------------------------------------
 */

/* The dlsym that the program would have without this library: the next one in search order, which may be another interposer's. */
void *cmi_preload_next_dlsym(void *handle, const char *name);

/* ---- the state of a call (state.c)
 * -------------------------------------------------------------------------------------------------------- */

/* How deep the thread is inside, and whether there is a driver and this is no fork's child: for the two functions below. */
extern __thread unsigned cmi_preload_depth __attribute__((tls_model("initial-exec")));
extern _Atomic bool cmi_preload_ready;
PRELOAD_SELDOM bool cmi_preload_prepare(void);

/* The state of the control file, 0 where nothing was asked for; and what to do then (control.c). */
extern _Atomic(const _Atomic uint32_t *) cmi_preload_request;
PRELOAD_SELDOM void cmi_preload_obey(void);

/* false: the call goes to the driver as it is, because there is none yet, the process is a fork's child, or the thread is inside the
 * library already. Otherwise cmi_preload_leave must follow. */
static inline bool cmi_preload_enter(void)
{
    if (cmi_preload_depth || (!atomic_load_explicit(&cmi_preload_ready, memory_order_acquire) && !cmi_preload_prepare())) {
        return false;
    }
    if (atomic_load_explicit(atomic_load_explicit(&cmi_preload_request, memory_order_relaxed), memory_order_relaxed)) {
        cmi_preload_obey();
    }
    cmi_preload_depth++;
    return true;
}

static inline void cmi_preload_leave(void) { cmi_preload_depth--; }

/* One line on stderr, whole, without the program's heap or streams. */
void cmi_preload_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The option free_sync, from CUDAMEMPOOL_CONF. */
typedef enum preload_free_sync { PRELOAD_FREE_EVENT, PRELOAD_FREE_HOST, PRELOAD_FREE_NONE } preload_free_sync;
#define PRELOAD_FREE_UNREAD (-1)
extern _Atomic int cmi_preload_known_free_sync; /* PRELOAD_FREE_UNREAD until the option was read */
PRELOAD_SELDOM preload_free_sync cmi_preload_read_free_sync(void);

static inline preload_free_sync cmi_preload_free_sync(void)
{
    int known = atomic_load_explicit(&cmi_preload_known_free_sync, memory_order_relaxed);
    return known == PRELOAD_FREE_UNREAD ? cmi_preload_read_free_sync() : (preload_free_sync)known;
}
/* The option async: whether requests in the order of a stream are the pool's to serve. */
bool cmi_preload_async_from_pool(void);
/* The option capture: whether the driver answers while a capture is live. */
bool cmi_preload_capture_by_driver(void);
/* The option pinned: whether pinned host memory is the pool's to serve. */
bool cmi_preload_pinned_from_pool(void);
/* The option control: whether there is to be a control file. */
bool cmi_preload_control_is_asked_for(void);
/* The value of the last setting with the key in CUDAMEMPOOL_CONF, not terminated; NULL: there is none. */
const char *cmi_preload_setting(const char *key, size_t *length);
/* The pool's answer in the driver's words. A refusal is kept for the report. */
CUresult cmi_preload_code(cmpool_status status);
/* Memory for this library's own tables, zeroed; NULL where there is none. */
void *cmi_preload_map(size_t bytes);
void cmi_preload_unmap(void *memory, size_t bytes);

/* ---- who asks (callers.c) --------------------------------------------------------------------------------------------------------- */

/* Whether the options bypass and share name the library that a call returns to. */
typedef enum preload_caller { PRELOAD_CALLER_ANY, PRELOAD_CALLER_BYPASS, PRELOAD_CALLER_SHARE } preload_caller;
preload_caller cmi_preload_caller(const void *caller, size_t bytes);

/* ---- the report (report.c) --------------------------------------------------------------------------------------------------------- */

/* A request was refused for want of memory; error is the thread's last one. */
void cmi_preload_report_refusal(const cmpool_error *error);
/* The pool of a device is about to be destroyed: its figures are kept. */
void cmi_preload_report_ended(int device, cmpool_t pool);

/* ---- requests from outside (control.c) ---------------------------------------------------------------------------------------------- */

/* Make the file if the option control asks for it, once; take it away at the end of the process. */
void cmi_preload_control_open(void);
void cmi_preload_control_close(void);
/* true: a request met a pause that came while it was on its way, the pool has been resumed by now, and it is to be made again. */
bool cmi_preload_waited_for_resume(cmpool_status status);

/* ---- live blocks (blocks.c)
 * ---------------------------------------------------------------------------------------------------------------- */

/* How a block was asked for. */
typedef struct preload_origin {
    CUcontext context;        /* NULL: it is of none, since it was asked for in the order of a stream */
    CUmemoryPool memory_pool; /* what the driver would have taken such memory from */
    int device;
    unsigned how; /* of the following, and what flags pinned host memory was asked for with */
} preload_origin;
#define PRELOAD_IN_ORDER (1u << 29) /* in the order of a stream */
#define PRELOAD_SHARED (1u << 30)   /* a driver allocation of its own, which other processes can be given */
#define PRELOAD_HOST (1u << 31)     /* pinned host memory */

typedef struct preload_block {
    uint64_t address; /* a multiple of 512 */
    uint64_t bytes;   /* as asked for */
    preload_origin origin;
} preload_block;

/* false: no host memory, or more contexts and memory pools than can be told apart. */
bool cmi_preload_block_add(const preload_block *block);
/* The block of device memory, or of pinned host memory, that starts at the address; take also removes it, so that only one of two frees
 * gets it. */
bool cmi_preload_block_find(uint64_t address, preload_block *block);
bool cmi_preload_block_take(uint64_t address, preload_block *block);
bool cmi_preload_block_find_host(uint64_t address, preload_block *block);
bool cmi_preload_block_take_host(uint64_t address, preload_block *block);
/* Give a block that was taken to the pool it came from. */
cmpool_status cmi_preload_block_release(cmpool_t pool, const preload_block *block);
/* Give every block of a device to its pool, or (not NULL) those of a context. */
void cmi_preload_blocks_release(int device, CUcontext context, cmpool_t pool);
/* Whether a device has blocks of another context. */
bool cmi_preload_block_others(int device, CUcontext context);

/* ---- memory (memory.c) ----------------------------------------------------------------------------------------------------------------
 */

/* Whose the memory at an address is. What lies free in a pool is mapped and yet nobody's. */
typedef enum preload_whose { PRELOAD_DRIVERS, PRELOAD_LIVE, PRELOAD_FREE } preload_whose;
/* pinned.c: the block of pinned host memory around an address. */
preload_whose cmi_preload_pinned_find(uint64_t address, preload_block *block);

/* Not a code: the pool could not be asked, or must not answer. */
enum { PRELOAD_ASK_DRIVER = -1 };

/* The driver's code for the pool's answer, or PRELOAD_ASK_DRIVER. */
CUresult cmi_preload_answer(cmpool_status status);
/* Make a block that the pool gave known, and hand it to the program; one that cannot be goes back, and the driver may serve. */
CUresult cmi_preload_hand_out(cmpool_t pool, const preload_block *block, CUdeviceptr *address);
/* While a capture is live and the driver answers: its code for what this thread may not do now, or CUDA_SUCCESS. */
CUresult cmi_preload_barred(void);
/* Take a block back, on a stream if `ordered`. */
CUresult cmi_preload_give_back(CUdeviceptr address, bool ordered, CUstream stream);
/* Hand idle pages of a device (-1: the current one) back if the driver's refusal could be turned that way. true: it is worth asking again.
 */
bool cmi_preload_made_room(CUresult code, int device, size_t bytes);

/* Return what the driver says, when asked once more if room for `bytes` on `device` could be made. */
#define PRELOAD_WITH_ROOM(device, bytes, name, ...)                                                      \
    do {                                                                                                 \
        CUresult code_ = PRELOAD_FORWARD(name, __VA_ARGS__);                                             \
        return cmi_preload_made_room(code_, device, bytes) ? PRELOAD_FORWARD(name, __VA_ARGS__) : code_; \
    } while (0)

/* ---- streams (streams.c) --------------------------------------------------------------------------------------------------------------
 */

/* The device of a stream. per_thread: its 0 is the thread's own. false: not known, or the stream is captured. */
bool cmi_preload_stream_device(CUstream stream, bool per_thread, int *device);

/* ---- contexts (contexts.c) --------------------------------------------------------------------------------------------------------- */

#define PRELOAD_DEVICES 64

typedef struct preload_context {
    CUcontext handle;
    int device;
    bool primary;
    uint32_t captures; /* begun on its streams and not ended */
} preload_context;

/* The current context and its device. false: there is none, or nothing can be learned of it. */
bool cmi_preload_here(CUcontext *context, int *device);
bool cmi_preload_context_find(CUcontext handle, preload_context *context);
bool cmi_preload_context_born(CUcontext handle, int device, bool primary);
/* Its captures end, its blocks go back, its frees are covered: before the driver destroys it. */
void cmi_preload_context_dies(CUcontext handle);
/* The primary context of a device and its pool go; blocks of its other contexts are in the way: then false, and only the primary
 * context's own blocks went. */
bool cmi_preload_primary_dies(int device);
/* change is +1 after a capture has begun, -1 after it ended; false: the context has none. */
bool cmi_preload_context_captures(CUcontext handle, int change);
extern _Atomic uint32_t cmi_preload_live_captures;
/* Whether any context has a capture. */
static inline bool cmi_preload_capture_is_live(void) { return atomic_load_explicit(&cmi_preload_live_captures, memory_order_relaxed) != 0; }
/* Whether one is, and the driver answers then: it may have to refuse, and to break the capture. */
static inline bool cmi_preload_capture_is_drivers(void) { return cmi_preload_capture_is_live() && cmi_preload_capture_by_driver(); }
/* Tell the pool of a device, just made, of every context that may use its memory. */
void cmi_preload_contexts_tell(int device);

/* ---- pools (pools.c) ------------------------------------------------------------------------------------------------------------------
 */

extern _Atomic cmpool_t cmi_preload_pools[PRELOAD_DEVICES];
extern _Atomic bool cmi_preload_aside;
PRELOAD_SELDOM cmpool_status cmi_preload_make_pool(int device, cmpool_t *pool);

/* What is asked of the driver is the driver's from now on. */
static inline bool cmi_preload_stands_aside(void) { return atomic_load_explicit(&cmi_preload_aside, memory_order_relaxed); }

/* The pool if there is one, else 0. */
static inline cmpool_t cmi_preload_pool_of(int device) { return atomic_load_explicit(&cmi_preload_pools[device], memory_order_acquire); }

/* The pool of a device, made on first use. *pool is 0: the driver serves this device, or this request. */
static inline cmpool_status cmi_preload_pool(int device, cmpool_t *pool)
{
    bool stands_aside = cmi_preload_stands_aside();
    *pool = stands_aside ? 0 : cmi_preload_pool_of(device);
    return *pool || stands_aside ? CMPOOL_OK : cmi_preload_make_pool(device, pool);
}

/* Memory of `device` may be used by `peer` from now on. */
void cmi_preload_pool_add_peer(int device, int peer);
bool cmi_preload_pool_has_peer(int device, int peer);
/* Give every block and the pool itself back. */
void cmi_preload_pool_void(int device);

#endif
