/*
 * Which NUMA node a thread runs on. Owns nothing but what tests pretend; no lock. Called for each request, so that blocks come from memory
 * near the thread that fills them.
 */
#include "pinned/pinned.h"

#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int pretended = -1;

void cmi_pinned_pretend_node(int node) { atomic_store(&pretended, node); }

unsigned cmi_pinned_node(void)
{
    unsigned cpu, node = 0;
    int pretend = atomic_load_explicit(&pretended, memory_order_relaxed);
    if (pretend >= 0) {
        node = (unsigned)pretend;
    } else if (syscall(SYS_getcpu, &cpu, &node, NULL) != 0) {
        node = 0;
    }
    return node % CMI_PINNED_NODES;
}
