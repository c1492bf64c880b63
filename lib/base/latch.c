/*
 * The slow side of latches. Owns what is known of the system's membarrier call, found out once. Called by the thread caches of lib/pool,
 * under the device lock.
 */
#include "base/latch.h"

#include "base/mutate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 200 };

bool cmi_latch_is_dear;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void prepare(void)
{
#ifdef CMI_LATCH_SEES_ALL
    cmi_latch_is_dear = true;
#else
    cmi_latch_is_dear = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0;
#endif
}

void cmi_latch_prepare(void) { pthread_once(&prepared, prepare); }

void cmi_latch_barrier(void)
{
    if (!cmi_latch_is_dear) {
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); /* cannot fail once registered */
    }
}

void cmi_latch_wait(cmi_latch *latch)
{
    for (unsigned spins = 0; atomic_load(&latch->inside) && !CMI_MUTATION(LATCH_NOT_AWAITED); spins++) {
        if (spins > SPINS) { /* an owner is inside for a few instructions, unless it lost its processor there */
            sched_yield();
        }
    }
}
