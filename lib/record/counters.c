/*
 * What a pool counts: reset of peaks and the copy for the caller. Owns nothing; the counters live in the pool and are guarded by its
 * device lock. Called by lib/pool and lib/api.
 */
#include "record/counters.h"

#include <string.h>

_Static_assert(offsetof(cmpool_stats, live_bytes) == sizeof(size_t) && sizeof(cmpool_stats) == sizeof(size_t) + sizeof(cmi_counters),
               "cmpool_stats is its size and then the counters, in one order");

void cmi_counters_reset_peaks(cmi_counters *counters)
{
#define RESET(peak, level) counters->peak = counters->level;
    CMI_PEAKS(RESET)
#undef RESET
}

bool cmi_counters_export(const cmi_counters *counters, cmpool_stats *stats)
{
    const size_t header = offsetof(cmpool_stats, live_bytes);
    if (stats->struct_size < header + sizeof(uint64_t))
        return false;
    size_t room = stats->struct_size - header;
    size_t known = room < sizeof(*counters) ? room : sizeof(*counters);
    char *fields = (char *)stats + header;
    memcpy(fields, counters, known);
    memset(fields + known, 0, room - known);
    return true;
}
