/*
 * Contexts: which device a context is of, which is the primary one, and what has to happen before one goes. Owns the list of known
 * contexts, guarded by context_lock, which is never held over a call of the driver or the pool. Called by the replacements.
 *
 * The pool of a device lives in its primary context and serves all of its contexts. Memory of a context that is destroyed goes back to it;
 * if the primary one goes, the pool goes.
 */
#include "preload/preload.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST_CONTEXTS = 512 };

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static preload_context contexts[MOST_CONTEXTS]; /* no gaps */
static uint32_t context_count;
static _Atomic uint32_t generation = 1; /* rises when a handle may come to mean another context */
_Atomic uint32_t cmi_preload_live_captures;
static _Atomic int primary_retains[PRELOAD_DEVICES]; /* by the program */

/* What the thread last learned. */
static __thread struct {
    CUcontext context;
    int device;
    uint32_t generation;
} last __attribute__((tls_model("initial-exec")));

/* Under the lock: the entry, or NULL. */
static preload_context *entry_of(CUcontext handle)
{
    for (uint32_t i = 0; i < context_count; i++) {
        if (contexts[i].handle == handle) {
            return &contexts[i];
        }
    }
    return NULL;
}

bool cmi_preload_context_find(CUcontext handle, preload_context *context)
{
    pthread_mutex_lock(&context_lock);
    const preload_context *entry = entry_of(handle);
    if (entry) {
        *context = *entry;
    }
    pthread_mutex_unlock(&context_lock);
    return entry != NULL;
}

/* Entry i, for walks that must not hold the lock. */
static bool context_at(uint32_t i, preload_context *context)
{
    pthread_mutex_lock(&context_lock);
    bool there = i < context_count;
    if (there) {
        *context = contexts[i];
    }
    pthread_mutex_unlock(&context_lock);
    return there;
}

static void tell(int device, const preload_context *context)
{
    bool uses = context->device == device ? !context->primary : cmi_preload_pool_has_peer(device, context->device);
    if (uses && cmi_preload_pool_of(device)) {
        (void)cmpool_context_add(device, context->handle);
    }
}

void cmi_preload_contexts_tell(int device)
{
    preload_context context;
    for (uint32_t i = 0; context_at(i, &context); i++) {
        tell(device, &context);
    }
}

bool cmi_preload_context_born(CUcontext handle, int device, bool primary)
{
    if (device < 0 || device >= PRELOAD_DEVICES) {
        return false;
    }
    preload_context context = {.handle = handle, .device = device, .primary = primary};
    pthread_mutex_lock(&context_lock);
    bool known = entry_of(handle) != NULL;
    bool room = context_count < MOST_CONTEXTS;
    if (!known && room) {
        contexts[context_count++] = context;
    }
    pthread_mutex_unlock(&context_lock);
    for (int i = 0; i < PRELOAD_DEVICES && !known && room; i++) {
        tell(i, &context);
    }
    return known || room;
}

/* A primary context may have been made behind our back, by a runtime's private way into the driver. */
static bool is_primary(const preload_driver *driver, CUcontext handle, int device)
{
    unsigned flags;
    int active = 0;
    CUcontext primary = NULL;
    if (driver->cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        driver->cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) {
        return false;
    }
    driver->cuDevicePrimaryCtxRelease_v2 ? driver->cuDevicePrimaryCtxRelease_v2(device) : driver->cuDevicePrimaryCtxRelease(device);
    return primary == handle;
}

/* Make the current context the thread's last one. */
PRELOAD_SELDOM static bool learn(CUcontext context)
{
    const preload_driver *driver = cmi_preload_driver();
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    preload_context known;
    if (!cmi_preload_context_find(context, &known)) {
        if (driver->cuCtxGetDevice(&known.device) != CUDA_SUCCESS ||
            !cmi_preload_context_born(context, known.device, is_primary(driver, context, known.device))) {
            return false;
        }
    }
    last.context = context;
    last.device = known.device;
    last.generation = now;
    return true;
}

bool cmi_preload_here(CUcontext *context, int *device)
{
    if (cmi_preload_driver()->cuCtxGetCurrent(context) != CUDA_SUCCESS || !*context) {
        return false;
    }
    bool same = last.context == *context && last.generation == atomic_load_explicit(&generation, memory_order_acquire);
    if (!same && !learn(*context)) {
        return false;
    }
    *device = last.device;
    return true;
}

bool cmi_preload_context_captures(CUcontext handle, int change)
{
    pthread_mutex_lock(&context_lock);
    preload_context *entry = entry_of(handle);
    bool possible = entry && (change > 0 || entry->captures > 0);
    if (possible) {
        entry->captures += (uint32_t)change;
        atomic_fetch_add(&cmi_preload_live_captures, (uint32_t)change);
    }
    pthread_mutex_unlock(&context_lock);
    return possible;
}

/* Take the context out of the list and end its captures, which end with it. */
static void forget(CUcontext handle)
{
    pthread_mutex_lock(&context_lock);
    preload_context *entry = entry_of(handle);
    uint32_t captures = entry ? entry->captures : 0;
    if (entry) {
        *entry = contexts[--context_count];
    }
    pthread_mutex_unlock(&context_lock);
    atomic_fetch_add(&generation, 1);
    atomic_fetch_sub(&cmi_preload_live_captures, captures);
    for (; captures; captures--) {
        (void)cmpool_capture_end(0);
    }
}

/* The context's work must have ended before its memory serves others: that destroying a context waits is not written anywhere. */
static void finish_work(CUcontext handle)
{
    const preload_driver *driver = cmi_preload_driver();
    CUcontext popped;
    if (driver->cuCtxPushCurrent_v2(handle) == CUDA_SUCCESS) {
        (void)driver->cuCtxSynchronize(); /* a context that is broken has no work left */
        (void)driver->cuCtxPopCurrent_v2(&popped);
    }
}

void cmi_preload_context_dies(CUcontext handle)
{
    preload_context context;
    if (!cmi_preload_context_find(handle, &context) || context.primary) {
        return; /* the driver does not destroy a primary context this way */
    }
    forget(handle);
    finish_work(handle);
    cmi_preload_blocks_release(context.device, handle, cmi_preload_pool_of(context.device));
    for (int i = 0; i < PRELOAD_DEVICES; i++) {
        if (cmi_preload_pool_of(i) && (i == context.device || cmi_preload_pool_has_peer(i, context.device))) {
            (void)cmpool_context_remove(i, handle);
        }
    }
}

bool cmi_preload_primary_dies(int device)
{
    CUcontext primary = NULL;
    preload_context context;
    for (uint32_t i = 0; context_at(i, &context); i++) {
        if (context.primary && context.device == device) {
            primary = context.handle;
        }
    }
    if (primary) {
        forget(primary);
    }
    if (!cmi_preload_pool_of(device)) {
        return true;
    }
    if (!primary || cmi_preload_block_others(device, primary)) {
        if (primary) {
            cmi_preload_blocks_release(device, primary, cmi_preload_pool_of(device));
        }
        return !cmi_preload_block_others(device, primary);
    }
    cmi_preload_pool_void(device);
    return true;
}

/* ---- replacements ---------------------------------------------------------------------------------------------------------------------
 */

static CUresult created(CUresult code, const CUcontext *context, CUdevice device)
{
    if (code == CUDA_SUCCESS && cmi_preload_enter()) {
        (void)cmi_preload_context_born(*context, device, false);
        cmi_preload_leave();
    }
    return code;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return created(PRELOAD_FORWARD(cuCtxCreate_v2, context, flags, device), context, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
    return created(PRELOAD_FORWARD(cuCtxCreate_v3, context, affinity, count, flags, device), context, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    return created(PRELOAD_FORWARD(cuCtxCreate_v4, context, parameters, flags, device), context, device);
}

static void before_destroy(CUcontext context)
{
    if (cmi_preload_enter()) {
        cmi_preload_context_dies(context);
        cmi_preload_leave();
    }
}

CUresult cuCtxDestroy(CUcontext context)
{
    before_destroy(context);
    return PRELOAD_FORWARD(cuCtxDestroy, context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    before_destroy(context);
    return PRELOAD_FORWARD(cuCtxDestroy_v2, context);
}

static bool is_ordinal(CUdevice device) { return device >= 0 && device < PRELOAD_DEVICES; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult code = PRELOAD_FORWARD(cuDevicePrimaryCtxRetain, context, device);
    if (code == CUDA_SUCCESS && is_ordinal(device) && cmi_preload_enter()) {
        atomic_fetch_add(&primary_retains[device], 1);
        (void)cmi_preload_context_born(*context, device, true);
        cmi_preload_leave();
    }
    return code;
}

/* The pool holds the primary context too, so the program's last release would leave it and all its memory behind. */
static void before_release(CUdevice device)
{
    if (is_ordinal(device) && atomic_load(&primary_retains[device]) > 0 && cmi_preload_enter()) {
        if (atomic_fetch_sub(&primary_retains[device], 1) == 1) {
            (void)cmi_preload_primary_dies(device);
        }
        cmi_preload_leave();
    }
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    before_release(device);
    return PRELOAD_FORWARD(cuDevicePrimaryCtxRelease, device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    before_release(device);
    return PRELOAD_FORWARD(cuDevicePrimaryCtxRelease_v2, device);
}

/* true: the driver may reset. Memory of other contexts of the device, which a reset leaves alone, is in pages that the pool could not
 * answer for afterwards; then the reset is left out and only the primary context's memory goes. */
static bool before_reset(CUdevice device)
{
    bool may = true;
    if (is_ordinal(device) && cmi_preload_enter()) {
        may = cmi_preload_primary_dies(device);
        if (!may) {
            cmi_preload_say("cudamempool: device %d is not reset: other contexts have memory on it", device);
        }
        cmi_preload_leave();
    }
    return may;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return before_reset(device) ? PRELOAD_FORWARD(cuDevicePrimaryCtxReset, device) : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return before_reset(device) ? PRELOAD_FORWARD(cuDevicePrimaryCtxReset_v2, device) : CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUresult code = PRELOAD_FORWARD(cuCtxEnablePeerAccess, peer, flags);
    if (code == CUDA_SUCCESS && cmi_preload_enter()) {
        CUcontext context;
        int device;
        preload_context other;
        if (cmi_preload_here(&context, &device) && cmi_preload_context_find(peer, &other)) {
            cmi_preload_pool_add_peer(other.device, device);
            cmi_preload_contexts_tell(other.device);
        }
        cmi_preload_leave();
    }
    return code;
}
