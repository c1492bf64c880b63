/* Monotonic time in nanoseconds, replaceable by tests. */
#ifndef CMI_CLOCK_H
#define CMI_CLOCK_H
#include <stdint.h>
uint64_t cmi_clock_ns(void);
/* The same clock, some milliseconds behind, for a quarter of the price. */
uint64_t cmi_clock_coarse_ns(void);
/* Tests: a function that gives the time, or NULL for the real clock. */
void cmi_clock_replace(uint64_t (*now)(void));
#endif
