/*
 * Monotonic time in nanoseconds. Owns the replacement that tests may set; read without a lock.
 * Called by every room that stamps a record or measures a wait.
 */
#include "base/clock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static uint64_t (*_Atomic replacement)(void);

static uint64_t read_clock(clockid_t clock)
{
    uint64_t (*now)(void) = atomic_load_explicit(&replacement, memory_order_acquire);
    if (now != NULL)
        return now();
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t cmi_clock_ns(void) { return read_clock(CLOCK_MONOTONIC); }

uint64_t cmi_clock_coarse_ns(void) { return read_clock(CLOCK_MONOTONIC_COARSE); }

void cmi_clock_replace(uint64_t (*now)(void)) { atomic_store_explicit(&replacement, now, memory_order_release); }
