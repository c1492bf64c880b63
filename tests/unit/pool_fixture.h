/*
 * For tests of whole pools over the simulated device: its driver functions and its panel (see sim_test.h; the library loads the same file
 * as its driver), pools and streams in one line each, and a teardown that checks that nothing is left on the device and in host memory.
 */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include "../simcuda/sim_test.h"
#include "base/base.h"
#include "driver/driver.h"
#include <cudamempool/cudamempool.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define DONE(call) assert_int_equal((call), CMPOOL_OK)
#define GIVES(status, call) assert_int_equal((call), (status))

/* CMPOOL_TEST_ORDER (eager, lazy, random) keeps to one order of the device: other tests are left out. */
static inline bool order_is_asked_for(const char *words)
{
    const char *order = getenv("CMPOOL_TEST_ORDER");
    return !order || strstr(words, order);
}

static const char *const devices_of_each_order[] = {"sim:64MiB,order=eager", "sim:64MiB,order=lazy", "sim:64MiB,order=random:11"};
#define EACH_SMALL_DEVICE(words)                                                  \
    for (const char *const *order_ = devices_of_each_order, *words = *order_;     \
         order_ < devices_of_each_order + 3 && (words = *order_, true); order_++) \
        if (order_is_asked_for(words))

static uint64_t meta_at_start;
static simcuda_census census_at_start;

static inline simcuda_census census_of(int device)
{
    simcuda_census census;
    panel.count_objects(device, &census);
    return census;
}

/* Fresh devices with device 0's primary context current, the library's table of the driver forgotten, figures noted. */
static inline void device_start(const char *words)
{
    if (!order_is_asked_for(words))
        skip();
    cmi_driver_forget();
    sim_test_start(words);
    for (int device = 0; device < 8; device++) { /* what the library keeps for the life of the process is there from now on */
        const cmpool_config config = {.struct_size = sizeof config, .device = device};
        cmpool_t pool;
        if (cmpool_create(&pool, &config) == CMPOOL_OK)
            DONE(cmpool_destroy(pool));
    }
    panel.counts_reset();
    meta_at_start = cmi_meta_bytes();
    census_at_start = census_of(0);
}

static inline void device_must_be_as_at_start(int device)
{
    simcuda_census now = census_of(device);
    assert_int_equal(now.handles, census_at_start.handles);
    assert_int_equal(now.mappings, census_at_start.mappings);
    assert_int_equal(now.reservations, census_at_start.reservations);
    assert_int_equal(now.events, census_at_start.events);
    assert_int_equal(now.free_bytes, census_at_start.free_bytes);
}

/* All pools are destroyed: is everything given back, and was everything in order? */
static inline void device_end(void)
{
    device_must_be_as_at_start(0);
    assert_int_equal(cmi_meta_bytes(), meta_at_start);
    for (int kind = 0; kind < SIMCUDA_FINDING_KINDS; kind++)
        if (panel.findings((simcuda_finding_kind)kind) != 0)
            fail_msg("%s", panel.finding_text(0));
}

static inline cmpool_t pool_on(int device, const char *options)
{
    cmpool_t pool;
    const cmpool_config config = {.struct_size = sizeof config, .device = device, .options = options};
    DONE(cmpool_create(&pool, &config));
    return pool;
}
static inline cmpool_t pool_with(const char *options) { return pool_on(0, options); }

static inline void *take(cmpool_t pool, size_t bytes, CUstream stream)
{
    void *block;
    DONE(cmpool_malloc(pool, &block, bytes, stream));
    assert_non_null(block);
    return block;
}

static inline void give(cmpool_t pool, void *block, CUstream stream) { DONE(cmpool_free(pool, block, stream)); }

/* A kernel that writes the whole block. */
static inline void use(CUstream stream, void *block, size_t bytes)
{
    assert_int_equal(panel.touch(stream, (uint64_t)(uintptr_t)block, bytes, 1), CUDA_SUCCESS);
}

static inline cmpool_stats figures(cmpool_t pool)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    DONE(cmpool_stats_get(pool, &stats));
    return stats;
}

static inline void must_be_sound(cmpool_t pool)
{
    const char *finding;
    if (cmpool_validate(pool, &finding) != CMPOOL_OK)
        fail_msg("%s", finding ? finding : "the validator could not be asked");
}

/* Nothing that anybody can see of the pool has changed since `before` was read. */
static inline void must_be_unchanged(cmpool_t pool, const cmpool_stats *before)
{
    must_be_sound(pool);
    cmpool_stats after = figures(pool);
#define CMPOOL_COUNTER(name, kind, help) \
    if (before->name != after.name)      \
        fail_msg(#name " went from %llu to %llu", (unsigned long long)before->name, (unsigned long long)after.name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
}

/* What the program does when it passes a block from one stream to another. */
static inline void order(CUstream before, CUstream after)
{
    CUevent event = sim_test_event();
    OK(cuEventRecord(event, before));
    OK(cuStreamWaitEvent(after, event, 0));
    OK(cuEventDestroy_v2(event));
}

static inline void end_of(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

static inline void *take_and_use(cmpool_t pool, size_t bytes, CUstream stream)
{
    void *block = take(pool, bytes, stream);
    use(stream, block, bytes);
    return block;
}

/* Driver calls of any kind since the last look. */
static inline uint64_t driver_calls(void)
{
    uint64_t calls = 0;
    for (int group = 0; group < SIMCUDA_GROUPS; group++)
        calls += panel.calls((simcuda_group)group);
    panel.counts_reset();
    return calls;
}

#endif
