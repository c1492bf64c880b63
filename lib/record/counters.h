/* A pool's counters: the fields of counters.def as plain numbers, written and read under the device lock. */
#ifndef CMI_COUNTERS_H
#define CMI_COUNTERS_H

#include <cudamempool/cudamempool.h>
#include <stdbool.h>

typedef struct cmi_counters {
#define CMPOOL_COUNTER(name, kind, help) uint64_t name;
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
} cmi_counters;

/* Each PEAK counter with the level it follows. */
#define CMI_PEAKS(PEAK)               \
    PEAK(peak_live_bytes, live_bytes) \
    PEAK(peak_reserved_bytes, reserved_bytes)

/* After a level rose: lift the peaks that it passed. */
static inline void cmi_counters_raise_peaks(cmi_counters *counters)
{
#define CMI_RAISE(peak, level)            \
    if (counters->peak < counters->level) \
        counters->peak = counters->level;
    CMI_PEAKS(CMI_RAISE)
#undef CMI_RAISE
}

/* Set each peak to its present level. */
void cmi_counters_reset_peaks(cmi_counters *counters);

/*
 * Fill the caller's struct as far as its struct_size goes; fields a newer header has and this library lacks are set to 0.
 * false, and nothing written, when struct_size does not even cover itself and one counter.
 */
bool cmi_counters_export(const cmi_counters *counters, cmpool_stats *stats);

#endif
