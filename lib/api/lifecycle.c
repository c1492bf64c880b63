/*
 * What the library does when the process forks. Owns the mark of a child, an atomic that needs no lock. Called by registry.c.
 *
 * A child has the parent's memory and one of its threads, but nothing of CUDA: whatever the driver made for the parent is of no use there,
 * and locks may be held by threads that do not exist. So every call in a child answers FORKED and touches neither. Metadata memory is the
 * exception: a thread gives its error record back when it ends, also in a child, so that lock is never held across a fork.
 *
 * Nothing is done when the process exits or the library is closed: memory of the device goes with the process, blocks may be in use until
 * the last destructor, and the driver may be gone before. Its code stays mapped (-z nodelete), so threads may end after dlclose.
 */
#include "api/registry.h"

#include <stdatomic.h>

static _Atomic int forked;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_store(&forked, 1);
    cmi_meta_after_fork();
}

static void watch(void) { pthread_atfork(cmi_meta_before_fork, cmi_meta_after_fork, in_child); }

void cmi_registry_watch_fork(void) { pthread_once(&watch_once, watch); }

cmpool_status cmi_registry_usable(void) { return atomic_load_explicit(&forked, memory_order_relaxed) ? CMPOOL_ERR_FORKED : CMPOOL_OK; }
