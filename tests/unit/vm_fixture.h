/*
 * For tests of lib/vm: two simulated devices, the driver entered on the first, one store and one arena with a range. teardown checks that
 * nothing is left on the device and in host memory.
 */
#ifndef VM_FIXTURE_H
#define VM_FIXTURE_H

#include "vm/vm.h"
#include "with_simcuda.h"

#define DEVICE_PAGES 32u
#define RANGE_SLOTS 64u
#define PAGE ((uint64_t)2 << 20)

static const cmi_driver *driver;
static CUcontext context;
static cmi_driver_scope scope;
static uint64_t meta_at_start;

static cmi_store *store;
static cmi_arena arena;
static cmi_range *range;

static inline void open_store(bool rdma, const int *peers, unsigned peer_count)
{
    const cmi_store_config config = {.driver = driver, .rdma = rdma, .peers = peers, .peer_count = peer_count};
    assert_int_equal(cmi_store_open(&store, &config), CMPOOL_OK);
}

static inline void open_arena(void)
{
    cmi_arena_init(&arena, store);
    assert_int_equal(cmi_range_prepare(store, RANGE_SLOTS * PAGE, &range), CMPOOL_OK);
    assert_int_equal(cmi_arena_publish(&arena, range), CMPOOL_OK);
}

static inline int start_device(void **state)
{
    (void)state;
    cmi_error_detail(); /* the thread's record is not the store's */
    meta_at_start = cmi_meta_bytes();
    sim_start("sim:64MiB,devices=2");
    if (cmi_driver_open(&driver) != CMPOOL_OK || driver->DevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return 1;
    return cmi_driver_enter(&scope, driver, context) != CMPOOL_OK;
}

static inline int start_arena(void **state)
{
    if (start_device(state) != 0)
        return 1;
    open_store(false, NULL, 0);
    open_arena();
    return 0;
}

static inline int stop_device(void **state)
{
    (void)state;
    cmi_driver_leave(&scope);
    simcuda_census census = sim_census(0);
    assert_int_equal(census.handles, 0);
    assert_int_equal(census.mappings, 0);
    assert_int_equal(census.reservations, 0);
    assert_int_equal(cmi_meta_bytes(), meta_at_start);
    return 0;
}

static inline int stop_arena(void **state)
{
    sim.fail_clear();
    cmi_arena_fini(&arena);
    assert_int_equal(cmi_store_close(store), 0);
    return stop_device(state);
}

static inline void make_pages(uint32_t *pages, uint32_t count)
{
    uint32_t created;
    assert_int_equal(cmi_store_create(store, pages, count, &created), CMPOOL_OK);
    assert_int_equal(created, count);
}

static inline uint64_t slot_address(uint32_t slot) { return range->base + slot * PAGE; }

/* Map at slots [first, first + count) and publish, as the pool does. */
static inline void map_pages(uint32_t first, const uint32_t *pages, uint32_t count)
{
    cmi_map_result result = cmi_arena_map(&arena, slot_address(first), pages, count);
    assert_int_equal(result.status, CMPOOL_OK);
    assert_int_equal(result.mapped, count);
    assert_int_equal(result.stuck, 0);
    for (uint32_t i = 0; i < count; i++) {
        range->slots[first + i].state = CMI_SLOT_MAPPED;
        range->slots[first + i].page = pages[i];
    }
}

/* Unmap slots [first, first + count), all of which must go, and publish. */
static inline void unmap_pages(uint32_t first, uint32_t count)
{
    bool done[RANGE_SLOTS];
    cmpool_status status;
    assert_int_equal(cmi_arena_unmap(&arena, slot_address(first), count, done, &status), count);
    assert_int_equal(status, CMPOOL_OK);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(done[i]);
        range->slots[first + i].state = CMI_SLOT_EMPTY;
        range->slots[first + i].page = CMI_NO_PAGE;
    }
}

static inline cmi_store_counts counts(void)
{
    cmi_store_counts now;
    cmi_store_counts_get(store, &now);
    return now;
}

#endif
