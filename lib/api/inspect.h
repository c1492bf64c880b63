/* Snapshots of the whole process and what follows a refusal, for the files of lib/api. No lock held. */
#ifndef CMI_API_INSPECT_H
#define CMI_API_INSPECT_H

#include "inspect/inspect.h"
#include "inspect/page.h"

#include <stdatomic.h>

/* A pool with these options has been made: what they ask for concerns the process. */
void cmi_watch_process(const cmi_options *options);
/* The thread's request was refused by this pool, and its error detail says so: report it as asked. */
void cmi_watch_refusal(cmpool_t pool);
/* The process ends, or the library is closed; the driver is not asked. */
void cmi_watch_end(void);

extern _Atomic bool cmi_snapshot_is_due __attribute__((visibility("hidden"))); /* set by the signal */
void cmi_watch_serve_wish(void);
/* At the end of every call: has a signal or a reader of the live page asked for something? */
static inline void cmi_watch_wishes(void)
{
    const _Atomic uint64_t *wanted = atomic_load_explicit(&cmi_page_wanted, memory_order_acquire);
    if (__builtin_expect(atomic_load_explicit(&cmi_snapshot_is_due, memory_order_relaxed) ||
                             atomic_load_explicit(wanted, memory_order_relaxed) != 0,
                         false)) {
        cmi_watch_serve_wish();
    }
}

/* A snapshot of every device into an open file; or into the file that a pattern with "%p", and with number "%n", names. OK,
 * INVALID_ARGUMENT, FILE, OUT_OF_HOST_MEMORY. */
cmpool_status cmi_inspect_snapshot(int file, cmi_snapshot_reason reason);
cmpool_status cmi_inspect_snapshot_to(const char *pattern, const unsigned *number, cmi_snapshot_reason reason);

#endif
