/*
 * A latch: its owner, one thread, enters and leaves with plain stores to its own line; any other thread may shut it, waits until the owner
 * is out, and has what the latch guards to itself until it opens it again. An owner that finds it shut stays out (and takes a lock
 * instead).
 *
 * Both sides write their own flag and then read the other's, so that one of them sees the other. The owner's store and load may only be
 * swapped by the processor; who shuts makes every thread of the process pass a barrier (membarrier), so the owner need not. Where the
 * system has none, and under ThreadSanitizer, which does not know of it, both sides use sequentially consistent accesses instead.
 */
#ifndef CMI_LATCH_H
#define CMI_LATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define CMI_LATCH_SEES_ALL 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CMI_LATCH_SEES_ALL 1
#endif
#endif

typedef struct cmi_latch {
    _Atomic uint32_t inside; /* written by the owner */
    _Atomic uint32_t shut;   /* written by others, who take turns by a lock of theirs */
} cmi_latch;

/* Find out what the system has; before the first latch is used. May be called again. */
void cmi_latch_prepare(void);
/* Whether owners must not rely on membarrier. */
extern bool cmi_latch_is_dear;

/* Owner: true, and leave must follow; or false, shut. */
static inline bool cmi_latch_enter(cmi_latch *latch)
{
    bool shut;
#ifndef CMI_LATCH_SEES_ALL
    if (!cmi_latch_is_dear) {
        atomic_store_explicit(&latch->inside, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        shut = atomic_load_explicit(&latch->shut, memory_order_acquire) != 0;
    } else
#endif
    {
        atomic_store(&latch->inside, 1);
        shut = atomic_load(&latch->shut) != 0;
    }
    if (__builtin_expect(shut, 0)) {
        atomic_store_explicit(&latch->inside, 0, memory_order_release);
    }
    return !shut;
}

static inline void cmi_latch_leave(cmi_latch *latch) { atomic_store_explicit(&latch->inside, 0, memory_order_release); }

/* Others, for any number of latches: shut each, then one barrier, then wait for each; open each at the end. */
static inline void cmi_latch_shut(cmi_latch *latch) { atomic_store(&latch->shut, 1); }
void cmi_latch_barrier(void);
void cmi_latch_wait(cmi_latch *latch);
static inline void cmi_latch_open(cmi_latch *latch) { atomic_store_explicit(&latch->shut, 0, memory_order_release); }

#endif
