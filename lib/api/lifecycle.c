/*
 * The library's part in the life of the process: fork, exit, dlclose. Owns the mark of a child and the mark of an ending process, atomics
 * that need no lock. Called by registry.c, the loader and libc.
 *
 * A child has the parent's memory and one of its threads, but nothing of CUDA: whatever the driver made for the parent is of no use there,
 * and locks may be held by threads that do not exist. So every call in a child answers FORKED and touches neither. Metadata memory is the
 * exception: a thread gives its error record back when it ends, also in a child, so that lock is never held across a fork.
 *
 * Nothing is done when the process exits: memory of the device goes with the process, blocks may be in use until the last destructor, and
 * the driver may be gone before. At dlclose the code goes, so everything that could lead back into it goes first: pools, notifications of
 * the driver, what threads do when they end; libc takes the handlers of fork and exit back.
 */
#include "api/registry.h"
#include "pool/cache.h"

#include "api/inspect.h"

#include <stdatomic.h>

static _Atomic int forked;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static _Atomic enum { UNWATCHED, LIVES, EXITS } process; /* UNWATCHED: no pool was ever made, or libc had no room for a handler */

static void in_child(void)
{
    atomic_store(&forked, 1);
    cmi_cache_forget();
    cmi_page_forget();
    cmi_nvtx_close();
    cmi_meta_after_fork();
}

/* What atexit is made of; called itself since ThreadSanitizer's atexit forgets whose the handler is, and dlclose leaves it there. */
int __cxa_atexit(void (*handler)(void *), void *argument, void *library);
extern void *__dso_handle;

static void note_exit(void *unused)
{
    (void)unused;
    process = EXITS;
}

/* Handlers run before the destructors of a process that exits, but after those of a library that is closed. */
static void watch(void)
{
    pthread_atfork(cmi_meta_before_fork, cmi_meta_after_fork, in_child);
    process = __cxa_atexit(note_exit, NULL, &__dso_handle) == 0 ? LIVES : UNWATCHED;
}

void cmi_registry_watch_process(void) { pthread_once(&watch_once, watch); }

cmpool_status cmi_registry_usable(void) { return atomic_load_explicit(&forked, memory_order_relaxed) ? CMPOOL_ERR_FORKED : CMPOOL_OK; }

/* ---- dlclose ------------------------------------------------------------------------------------ */

/* Live blocks and graphs may be in use for as long as the process lives: their pages stay, and nothing else. */
static void give_back_idle(cmpool_t handle)
{
    cmi_entry entry;
    if (cmi_registry_enter(handle, &entry) == CMPOOL_OK) {
        uint64_t released = 0;
        (void)cmi_pinned_trim(entry.pool, 0, &released);
        (void)cmi_trim_pool(entry.pool, 0, true, &released);
        cmi_log(CMI_LOG_WARNING, "unloaded with %llu live blocks: %llu pages stay until the process ends",
                (unsigned long long)entry.pool->counters.live_blocks, (unsigned long long)entry.pool->reserved_pages);
        cmi_registry_leave(&entry);
    }
}

static void shut_down(void)
{
    for (unsigned pass = 0; pass < 2; pass++) { /* private pools go before the pools they are in */
        uint32_t next = 0;
        for (cmpool_t handle; (handle = cmi_registry_next_idle(&next)) != 0;) {
            if (cmi_registry_destroy(handle) != CMPOOL_OK && pass == 1) {
                give_back_idle(handle);
            }
        }
    }
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device && device->store) {
            cmi_returns_unregister(device);
        }
    }
}

__attribute__((destructor)) static void unloaded(void)
{
    if (process != UNWATCHED && cmi_registry_usable() == CMPOOL_OK) {
        cmi_watch_end();
    }
    if (process == EXITS) {
        return;
    }
    if (process == LIVES && cmi_registry_usable() == CMPOOL_OK) {
        shut_down();
    }
    cmi_page_unload();
    cmi_nvtx_close();
    cmi_cache_unload();
    cmi_error_unload();
    cmi_meta_unload();
}
