/*
 * Owns what a random program does with everything but blocks: levels, trims, pools, streams, the device's memory, captures and failures.
 * One thread. Called by run.c through the list of operations.
 */
#include "world.h"

#include <string.h>

/* ---- levels and trims ------------------------------------------------------------------------------------------------------------- */

bool do_limit(world *w, const operation *step)
{
    world_pool *pool = &w->pools[step->pool];
    if (!pool->handle) {
        return true;
    }
    bool is_private = pool->parent != step->pool;
    if (!is_private) {
        pool->limit = step->bytes;
    }
    cmpool_status status = cmpool_set_limit(pool->handle, step->bytes);
    if (world_take_failure(w)) {
        status = cmpool_set_limit(pool->handle, step->bytes);
    }
    return world_expect(w, "cmpool_set_limit", status, is_private ? CMPOOL_ERR_UNSUPPORTED : CMPOOL_OK) &&
           (is_private || !step->bytes || judge_trim(w, (unsigned)step->pool, step->bytes));
}

bool do_floor(world *w, const operation *step)
{
    world_pool *pool = &w->pools[w->pools[step->pool].parent];
    if (!w->pools[step->pool].handle) {
        return true;
    }
    pool->floor = step->bytes;
    return world_expect(w, "cmpool_set_floor", cmpool_set_floor(pool->handle, step->bytes), CMPOOL_OK);
}

bool do_headroom(world *w, const operation *step)
{
    world_pool *pool = &w->pools[w->pools[step->pool].parent];
    if (!w->pools[step->pool].handle) {
        return true;
    }
    pool->headroom = step->bytes;
    return world_expect(w, "cmpool_set_headroom", cmpool_set_headroom(pool->handle, step->bytes), CMPOOL_OK);
}

bool do_trim(world *w, const operation *step)
{
    size_t released = 0;
    cmpool_t pool = w->pools[step->pool].handle;
    if (!pool) {
        return true;
    }
    cmpool_status status = cmpool_trim(pool, step->bytes, &released);
    if (world_take_failure(w)) {
        status = cmpool_trim(pool, step->bytes, &released);
    }
    return world_expect(w, "cmpool_trim", status, CMPOOL_OK) && judge_trim(w, w->pools[step->pool].parent, step->bytes);
}

/* Everything goes and comes back; the host has waited for all that came before. */
bool do_pause(world *w, const operation *step)
{
    const world_pool *pool = &w->pools[step->pool];
    if (!pool->handle) {
        return true;
    }
    bool fixed = false;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        const world_block *block = &w->blocks[i];
        fixed = fixed || (block->bytes && block->exportable && w->pools[block->pool].parent == step->pool);
    }
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        fixed = fixed || (w->pools[i].handle && w->pools[i].is_set && w->pools[i].parent == step->pool);
    }
    cmpool_status status;
    if ((step->flags >> 4 & 3) == 3) {
        if (!world_pause_some(w, pool->handle, (unsigned)step->flags, &status)) {
            return false;
        }
    } else {
        status = cmpool_pause(pool->handle, step->flags & 1 ? CMPOOL_KEEP : CMPOOL_DISCARD);
    }
    if (pool->parent != step->pool || pool->segments) {
        return world_expect(w, "cmpool_pause", status, CMPOOL_ERR_UNSUPPORTED);
    }
    bool may_fail = w->failing || (fixed && status == CMPOOL_ERR_BUSY);
    cmpool_status resumed = cmpool_resume(pool->handle);
    if (world_take_failure(w)) {
        resumed = cmpool_resume(pool->handle);
    }
    if (resumed == CMPOOL_ERR_LIMIT && pool->limit) { /* what is live is more than the limit, and for a part of it that counts */
        if (!world_expect(w, "cmpool_set_limit", cmpool_set_limit(pool->handle, 0), CMPOOL_OK)) {
            return false;
        }
        resumed = cmpool_resume(pool->handle);
        (void)cmpool_set_limit(pool->handle, pool->limit);
    }
    return (may_fail || world_expect(w, "cmpool_pause", status, CMPOOL_OK)) && world_expect(w, "cmpool_resume", resumed, CMPOOL_OK);
}

/* A region lives no longer than this, but what was done with it goes on, and its pages go anywhere. */
bool do_region(world *w, const operation *step)
{
    const world_pool *pool = &w->pools[step->pool];
    if (!pool->handle || !world_has_stream(w, step->stream) || !world_has_stream(w, step->other)) {
        return true;
    }
    CUstream stream = w->streams[step->stream].handle, other = w->streams[step->other].handle;
    void *base = NULL;
    uint64_t bytes = step->bytes + 1;
    cmpool_status status = cmpool_region_create(pool->handle, &base, bytes);
    if (pool->parent != step->pool || pool->segments) {
        return world_expect(w, "cmpool_region_create", status, CMPOOL_ERR_UNSUPPORTED);
    }
    if (!base) {
        return w->failing || world_expect(w, "cmpool_region_create", status, CMPOOL_OK);
    }
    cmpool_status grown = cmpool_region_grow(pool->handle, base, bytes, stream);
    if (grown == CMPOOL_OK && w->device.touch(stream, (uint64_t)(uintptr_t)base, bytes, 1) != CUDA_SUCCESS) {
        return world_fault(w, "region: what was grown cannot be used");
    }
    bool refused = grown == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || grown == CMPOOL_ERR_LIMIT;
    bool good = w->failing || refused || world_expect(w, "cmpool_region_grow", grown, CMPOOL_OK);
    (void)world_take_failure(w);
    return good && world_expect(w, "cmpool_region_shrink", cmpool_region_shrink(pool->handle, base, bytes / 2, other), CMPOOL_OK) &&
           world_expect(w, "cmpool_region_destroy", cmpool_region_destroy(pool->handle, base, stream), CMPOOL_OK);
}

bool do_device_trim(world *w, const operation *step)
{
    size_t released = 0;
    cmpool_status status = cmpool_device_trim(0, step->bytes, &released);
    if (world_take_failure(w)) {
        status = cmpool_device_trim(0, step->bytes, &released);
    }
    return world_expect(w, "cmpool_device_trim", status, CMPOOL_OK) && judge_device_trim(w, step->bytes, released);
}

bool do_reserve(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    if (!pool) {
        return true;
    }
    cmpool_status status = cmpool_reserve(pool, step->bytes);
    if (world_take_failure(w) && status != CMPOOL_OK) {
        status = cmpool_reserve(pool, step->bytes);
    }
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        w->result->refusals++;
        return judge_reserve(w, (unsigned)step->pool, step->bytes);
    }
    return world_expect(w, "cmpool_reserve", status, CMPOOL_OK);
}

/* Called by the library when it is short: the program gives up one of the pool's blocks. */
static int give_up_a_block(void *user, cmpool_t pool, size_t bytes)
{
    world *w = user;
    (void)bytes;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        world_block *block = &w->blocks[i];
        if (block->bytes && w->pools[block->pool].handle == pool && !world_is_captured(w, block)) {
            return world_free_block(w, block, world_own_stream(w, block));
        }
    }
    return 0;
}

bool do_callback(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    cmpool_low_memory_fn function = step->flags & 1 ? give_up_a_block : NULL;
    w->calls_back = w->calls_back || (pool && function);
    return !pool || world_expect(w, "cmpool_set_low_memory_callback", cmpool_set_low_memory_callback(pool, function, w), CMPOOL_OK);
}

/* ---- pools ------------------------------------------------------------------------------------------------------------------------ */

bool do_pool_make(world *w, const operation *step)
{
    static const char *const stale_budgets[] = {"", ",stale_budget:0", ",stale_budget:1%", ""};
    static const char *const slacks[] = {"", ",slack:0.01%", ",slack:10%", ",slack:1000%"};
    world_pool *pool = &w->pools[step->pool];
    if (pool->handle) {
        return true;
    }
    char options[200];
    uint64_t page = program_page_bytes(w->settings), flags = step->flags;
    bool unmaps_first = strcmp(stale_budgets[flags >> 3 & 3], ",stale_budget:0") == 0;
    bool segments = w->settings->fixed == 5 || (w->settings->fixed == 4 && step->pool % 2);
    snprintf(options, sizeof options, "strict:true,page_size:%llu,stream_check:%s,pending:%s,cross_stream_wait:%s%s%s%s%s",
             (unsigned long long)page, w->settings->stream_check ? "always" : "slow", flags & 1 ? "wait" : "grow",
             (flags >> 1 & 3) == 3 ? "off" : "on", stale_budgets[flags >> 3 & 3], slacks[flags >> 5 & 3], segments ? ",backend:malloc" : "",
             flags % 5 == 4 ? ",idle_release:2" : "");
    const cmpool_config config = {.struct_size = sizeof config, .options = options};
    *pool = (world_pool){.parent = (unsigned)step->pool,
                         .waits = (flags >> 1 & 3) != 3,
                         .segments = segments,
                         .strict = w->settings->fixed >= 3 || unmaps_first,
                         .unmaps_first = unmaps_first};
    return world_expect(w, "cmpool_create", cmpool_create(&pool->handle, &config), CMPOOL_OK);
}

bool do_private_make(world *w, const operation *step)
{
    world_pool *pool = &w->pools[step->pool], *parent = &w->pools[step->other % POOL_SLOTS];
    if (pool->handle || step->other >= POOL_SLOTS || !parent->handle) {
        return true;
    }
    bool nested = parent->parent != step->other;
    *pool = (world_pool){.parent = (unsigned)step->other};
    cmpool_status status = cmpool_private_create(&pool->handle, parent->handle);
    return world_expect(w, "cmpool_private_create", status, nested ? CMPOOL_ERR_UNSUPPORTED : CMPOOL_OK);
}

bool do_set_make(world *w, const operation *step)
{
    world_pool *set = &w->pools[step->pool];
    if (step->other >= POOL_SLOTS || set->handle || !w->pools[step->other].handle || w->pools[step->other].parent != step->other) {
        return true;
    }
    *set = (world_pool){.parent = (unsigned)step->other, .is_set = true, .last = STREAM_SLOTS};
    return world_expect(w, "cmpool_capture_create", cmpool_capture_create(&set->handle, w->pools[step->other].handle), CMPOOL_OK);
}

/* The set is forgotten; its live blocks are the parent's, whose only use is to be freed. */
static bool release_set(world *w, unsigned number)
{
    world_pool *set = &w->pools[number];
    if (!world_drop_graphs(w, number) || !world_expect(w, "cmpool_capture_release", cmpool_capture_release(set->handle), CMPOOL_OK)) {
        return false;
    }
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        world_block *block = &w->blocks[i];
        if (block->pool == number) {
            block->pool = set->parent;
            block->sealed = true;
        }
    }
    *set = (world_pool){0};
    return true;
}

bool do_pool_end(world *w, const operation *step)
{
    world_pool *pool = &w->pools[step->pool];
    if (!pool->handle) {
        return true;
    }
    if (pool->is_set) {
        return world_expect(w, "cmpool_destroy of a set", cmpool_destroy(pool->handle), CMPOOL_ERR_UNSUPPORTED) &&
               release_set(w, (unsigned)step->pool);
    }
    bool busy = false;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        world_block *block = &w->blocks[i];
        if (block->bytes && block->pool == step->pool && (step->flags & 1) && !world_free_block(w, block, world_own_stream(w, block))) {
            return false;
        }
        busy = busy || (block->bytes && block->pool == step->pool);
    }
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        busy = busy || (w->pools[i].handle && i != step->pool && w->pools[i].parent == step->pool);
    }
    cmpool_t handle = pool->handle;
    if (!world_expect(w, "cmpool_destroy", cmpool_destroy(handle), busy ? CMPOOL_ERR_BUSY : CMPOOL_OK)) {
        return false;
    }
    if (busy) {
        return true;
    }
    pool->handle = 0;
    return world_expect(w, "cmpool_trim of a pool that is gone", cmpool_trim(handle, 0, NULL), CMPOOL_ERR_INVALID_POOL);
}

/* ---- streams, device ----------------------------------------------------------------------------------------------------------------- */

bool do_order(world *w, const operation *step)
{
    unsigned before = (unsigned)step->stream, after = (unsigned)step->other;
    bool live = after < STREAM_SLOTS && world_has_stream(w, before) && world_has_stream(w, after);
    return !live || world_order(w, before, after);
}

bool do_wait(world *w, const operation *step)
{
    if (!world_has_stream(w, step->stream)) {
        return true;
    }
    CUresult code = w->device.cuStreamSynchronize(w->streams[step->stream].handle);
    return code == CUDA_SUCCESS || world_fault(w, "driver: cuStreamSynchronize gave %d", (int)code);
}

bool do_run(world *w, const operation *step)
{
    (void)step;
    w->device.run_device();
    return true;
}

bool do_gate_close(world *w, const operation *step)
{
    return !world_has_stream(w, step->stream) || world_close_gate(w, (unsigned)step->stream);
}

bool do_gate_open(world *w, const operation *step)
{
    world_open_gate(w, (unsigned)step->flags);
    return true;
}

bool do_stream_make(world *w, const operation *step)
{
    return world_has_stream(w, step->stream) || world_make_stream(w, (unsigned)step->stream);
}

bool do_stream_end(world *w, const operation *step)
{
    bool retire = (step->flags & 1) || !w->settings->stream_check;
    return world_end_stream(w, (unsigned)step->stream, retire);
}

bool do_sibling_take(world *w, const operation *step)
{
    if (w->device.sibling_take(0, step->bytes, NULL) == 0) {
        w->sibling_bytes += step->bytes;
    }
    return true;
}

bool do_sibling_return(world *w, const operation *step)
{
    uint64_t bytes = step->bytes && step->bytes < w->sibling_bytes ? step->bytes : w->sibling_bytes;
    w->device.sibling_return(0, bytes);
    w->sibling_bytes -= bytes;
    return true;
}

bool do_time(world *w, const operation *step)
{
    (void)w;
    world_pass_time(1 + (unsigned)step->flags % 4);
    return true;
}

bool do_notify(world *w, const operation *step)
{
    w->device.notify_over_budget(0, step->bytes);
    return true;
}

/* ---- captures, failures ---------------------------------------------------------------------------------------------------------- */

bool do_capture_begin(world *w, const operation *step)
{
    const world_pool *set = &w->pools[step->pool];
    unsigned stream = (unsigned)step->stream;
    bool can = !w->capturing && set->is_set && set->graph_count < GRAPHS_MOST && world_heir(w, stream) < STREAM_SLOTS &&
               w->streams[stream].lives && !w->streams[stream].special;
    if (can && step->flags & 4) { /* as programs do before they capture */
        world_let_finish(w);
    }
    return !can || world_begin_capture(w, (unsigned)step->pool, stream, (unsigned)step->flags);
}

bool do_capture_end(world *w, const operation *step)
{
    (void)step;
    return !w->capturing || world_end_capture(w);
}

bool do_launch(world *w, const operation *step)
{
    const world_pool *set = &w->pools[step->pool];
    bool can = set->is_set && set->graph_count && world_has_stream(w, step->stream) && !(w->capturing && w->capture_set == step->pool);
    return !can || world_launch(w, (unsigned)step->pool, (unsigned)step->flags, (unsigned)step->stream);
}

bool do_fail(world *w, const operation *step)
{
    /* None that the program makes itself; a page that cannot be released is another story. */
    static const char *const functions[] = {"cuMemCreate",   "cuMemMap",         "cuMemSetAccess",
                                            "cuMemUnmap",    "cuCtxRecordEvent", "cuEventQuery",
                                            "cuMemAlloc_v2", "cuMemFree_v2",     "cuMemExportToShareableHandle"};
    const char *function = functions[step->flags % (sizeof functions / sizeof functions[0])];
    w->device.fail_clear();
    w->failures_before = w->device.failures_injected();
    w->failing = true;
    int rule = w->device.fail(function, 1 + step->bytes, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    return rule >= 0 || world_fault(w, "driver: no failure of %s can be planned", function);
}
