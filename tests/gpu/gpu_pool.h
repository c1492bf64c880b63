/* For device checks of pools: made, looked at and ended in one line each. All for use inside cases, which they fail. */
#ifndef GPU_POOL_H
#define GPU_POOL_H

#include "gpu.h"

static inline cmpool_status pool_make(cmpool_t *pool, const char *options)
{
    const cmpool_config config = {.struct_size = sizeof config, .options = options};
    return cmpool_create(pool, &config);
}

/* Sound, without live blocks, and gone. */
static inline void pool_end(cmpool_t pool)
{
    const char *finding = NULL;
    if (cmpool_validate(pool, &finding) != CMPOOL_OK)
        gpu_fail("the validator: %s", finding ? finding : "could not be asked");
    cmpool_status status = cmpool_destroy(pool);
    if (status != CMPOOL_OK)
        gpu_fail("cmpool_destroy gave %s (driver: %s)", cmpool_status_name(status), cmpool_last_error()->driver_call);
}

static inline cmpool_stats pool_figures(cmpool_t pool)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    if (cmpool_stats_get(pool, &stats) != CMPOOL_OK)
        gpu_fail("no figures");
    return stats;
}

/* Waits for the device: everything that was checked since the last time was as it had been written. */
#define contents_must_be_right() MUST_BE_RIGHT(gpu_wrong_words())
#define MUST_BE_RIGHT(count)                                                                    \
    do {                                                                                        \
        uint64_t wrong_ = (count);                                                              \
        EXPECT(wrong_ == 0, "%llu words are not what was written", (unsigned long long)wrong_); \
    } while (0)

#endif
