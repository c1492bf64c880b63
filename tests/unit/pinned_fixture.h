/*
 * For tests of pinned host memory: the fixture of pools, blocks in one line each, and the end of a test at which no pinned byte is left.
 */
#ifndef PINNED_FIXTURE_H
#define PINNED_FIXTURE_H

#include "pinned/pinned.h"
#include "pool_fixture.h"

static inline void *pin(cmpool_t pool, size_t bytes, CUstream stream)
{
    void *block;
    DONE(cmpool_pinned_malloc(pool, &block, bytes, stream));
    assert_non_null(block);
    return block;
}

static inline void unpin(cmpool_t pool, void *block, CUstream stream) { DONE(cmpool_pinned_free(pool, block, stream)); }

static inline cmpool_pinned_stats pinned_figures(cmpool_t pool)
{
    cmpool_pinned_stats stats = {.struct_size = sizeof stats};
    DONE(cmpool_pinned_stats_get(pool, &stats));
    return stats;
}

/* Everything that is free goes back, and the driver has nothing of it any more. */
static inline void pinned_must_end(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_pinned_trim(pool, 0, NULL));
    cmpool_pinned_stats stats = pinned_figures(pool);
    assert_int_equal(stats.live_blocks, 0);
    assert_int_equal(stats.pending_bytes, 0);
    assert_int_equal(stats.held_bytes, 0);
    assert_int_equal(stats.extents, 0);
    assert_int_equal(stats.extents_made, stats.extents_released);
    assert_int_equal(census_of(0).pinned, 0);
    DONE(cmpool_destroy(pool));
}

#endif
