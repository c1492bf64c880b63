/*
 * Memory pools from inside: what pool.c (pools and their blocks) and pool_calls.c (the calls about pools) share. All of it is called with
 * sim.lock held.
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "sim.h"

typedef struct sim_block sim_block;

typedef struct sim_pool {
    uint64_t handle;
    int device;
    bool is_default, destroyed;
    uint64_t max_bytes;
    uint64_t readers, writers; /* devices that have been given access */
    sim_block *live, *free;    /* the last one first */
    uint64_t reserved, reserved_high, used, used_high, threshold;
    int follow_events, opportunistic, internal_dependencies; /* CU_MEMPOOL_ATTR_REUSE_... */
} sim_pool;

/* NULL when the host has no memory. max_bytes 0: no limit. */
sim_pool *sim_pool_new(int device, uint64_t max_bytes);
sim_pool *sim_pool_of(CUmemoryPool handle);
sim_pool *sim_pool_default(int device);
sim_pool *sim_pool_current(int device);
void sim_pool_set_current(int device, sim_pool *pool); /* NULL: the default one */
/* No more allocations; it ends once nothing of it is outstanding. */
void sim_pool_destroy(sim_pool *pool);
/* Give back free blocks whose end the host has seen while more than keep_bytes stay reserved. */
void sim_pool_trim(sim_pool *pool, uint64_t keep_bytes);
void sim_pool_set_access(sim_pool *pool, int device, bool reads, bool writes);
CUresult sim_pool_alloc(CUdeviceptr *address, size_t bytes, sim_pool *pool, sim_lane *lane);
CUresult sim_pool_free_on(CUdeviceptr address, sim_lane *lane);

#endif /* SIM_POOL_H */
