/*
 * Thread numbers: 8 bytes of initial-exec TLS a thread, and one atomic counter. Called by the stream table, which tells the per-thread
 * default streams of two threads apart by them.
 */
#include "base/thread.h"

#include <stdatomic.h>

static _Atomic uint64_t threads_seen;
static __thread uint64_t number __attribute__((tls_model("initial-exec")));

uint64_t cmi_thread_number(void)
{
    if (number == 0)
        number = atomic_fetch_add_explicit(&threads_seen, 1, memory_order_relaxed) + 1;
    return number;
}
