/*
 * Owns the run of a random program: what each operation does through the public API, and how the world is taken down afterwards. One
 * thread. Called by the property test and the fuzz target.
 */
#include "world.h"
#include "base/meta.h"

#include <stdlib.h>
#include <string.h>

/* ---- blocks ----------------------------------------------------------------------------------------------------------------------- */

static bool touch(world *w, const world_block *block, unsigned stream, bool write)
{
    int code = w->device.touch(w->streams[stream].handle, block->address, block->bytes, write);
    return code == 0 || world_fault(w, "touch: a kernel on a live block gave %d", code);
}

/* Is the block a live capture's, so that whatever happens to it happens in the capture? */
static bool is_captured(const world *w, const world_block *block) { return w->capturing && block->pool == w->capture_set; }

static bool free_block(world *w, world_block *block, unsigned stream)
{
    stream = is_captured(w, block) ? w->capture_stream : stream;
    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        if (block->touches[i] == TOUCHED && !world_order(w, i, stream)) {
            return false;
        }
    }
    cmpool_status status = cmpool_free(w->pools[block->pool].handle, (void *)(uintptr_t)block->address, w->streams[stream].handle);
    block->bytes = 0;
    return world_expect(w, "cmpool_free", status, CMPOOL_OK);
}

/* A stream to free the block on: the one it was made for, or another that lives. */
static unsigned own_stream(const world *w, const world_block *block)
{
    unsigned stream = block->stream < STREAM_SLOTS ? block->stream : 0;
    while (!world_has_stream(w, stream)) {
        stream = (stream + 1) % STREAM_SLOTS;
    }
    return stream;
}

static bool check_new_block(world *w, world_block *block, const operation *step, cmpool_t pool)
{
    void *address = (void *)(uintptr_t)block->address;
    size_t usable = 0;
    cmpool_block_info info = {.struct_size = sizeof info};
    if (!world_expect(w, "cmpool_usable_size", cmpool_usable_size(pool, address, &usable), CMPOOL_OK)) {
        return false;
    }
    block->bytes = usable;
    if (usable < step->bytes || block->address % 512 || (step->align && block->address % step->align)) {
        return world_fault(w, "block: %zu usable bytes at %p do not fit the request", usable, address);
    }
    if (!world_expect(w, "cmpool_lookup", cmpool_lookup((char *)address + usable - 1, &info), CMPOOL_OK)) {
        return false;
    }
    return (info.base == address && info.usable_bytes == usable && info.pool == pool) ||
           world_fault(w, "block: lookup knows another block than was handed out");
}

static cmpool_status request_block(const world *w, const operation *step, cmpool_t pool, unsigned stream, void **address)
{
    const cmpool_request request = {
        .struct_size = sizeof request, .bytes = step->bytes, .alignment = step->align, .stream = w->streams[stream].handle};
    return step->align ? cmpool_malloc_ex(pool, address, &request) : cmpool_malloc(pool, address, step->bytes, request.stream);
}

static bool do_alloc(world *w, const operation *step)
{
    world_block *block = &w->blocks[step->block];
    bool captured = w->capturing && step->block % 3 == 0; /* some of all blocks are for the capture that is live */
    unsigned number = captured ? w->capture_set : (unsigned)step->pool, stream = captured ? w->capture_stream : (unsigned)step->stream;
    const world_pool *pool = &w->pools[number];
    if (block->bytes || !pool->handle || pool->is_set != captured || (!captured && !world_has_stream(w, stream))) {
        return true;
    }
    void *address = block;
    cmpool_status status = request_block(w, step, pool->handle, stream, &address);
    if (world_take_failure(w) && status != CMPOOL_OK) {
        address = block;
        status = request_block(w, step, pool->handle, stream, &address);
    }
    if (w->capturing && status == CMPOOL_ERR_CAPTURE) {
        return true;
    }
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        w->result->refusals++;
        return (!address || world_fault(w, "block: refused, but a pointer was given")) &&
               judge_refusal(w, number, step->bytes, step->align);
    }
    if (!world_expect(w, "cmpool_malloc", status, CMPOOL_OK)) {
        return false;
    }
    if (!step->bytes) {
        return !address || world_fault(w, "block: zero bytes gave a pointer");
    }
    w->result->served++;
    *block = (world_block){.address = (uint64_t)(uintptr_t)address, .pool = number, .stream = stream, .writer = stream};
    block->touches[stream] = captured ? NOT_TOUCHED : TOUCHED; /* a capture touches nothing, its graph does */
    return check_new_block(w, block, step, pool->handle) && touch(w, block, stream, true);
}

static bool do_free(world *w, const operation *step)
{
    world_block *block = &w->blocks[step->block];
    unsigned stream = step->flags % 4 ? own_stream(w, block) : (unsigned)step->stream;
    return !block->bytes || !world_has_stream(w, stream) || free_block(w, block, stream);
}

static bool do_free_some(world *w, const operation *step)
{
    bool all = step->flags & 1, good = true;
    for (unsigned i = 0, met = 0; i < BLOCK_SLOTS && good; i++) {
        world_block *block = &w->blocks[i];
        if (block->bytes && block->pool == step->pool && (all || met++ % 2 == 0)) {
            bool here = (step->flags & 2) && world_has_stream(w, step->stream);
            good = free_block(w, block, here ? (unsigned)step->stream : own_stream(w, block));
        }
    }
    return good;
}

/* The program orders its own uses: a read after the last write, a write after every use so far. */
static bool do_use(world *w, const operation *step)
{
    world_block *block = &w->blocks[step->block];
    unsigned stream = (unsigned)step->stream;
    bool write = !(step->flags & 3), tell = step->flags & 12;
    if (!block->bytes || block->sealed || w->pools[block->pool].is_set || !world_has_stream(w, stream)) {
        return true;
    }
    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        if (block->touches[i] != NOT_TOUCHED && (write || i == block->writer) && !world_order(w, i, stream)) {
            return false;
        }
    }
    if (tell) {
        cmpool_status status =
            cmpool_record_use(w->pools[block->pool].handle, (void *)(uintptr_t)block->address, w->streams[stream].handle);
        if (!world_expect(w, "cmpool_record_use", status, CMPOOL_OK)) {
            return false;
        }
    }
    /* A stream that was named once is waited for with all it does until the free. */
    block->touches[stream] = tell || block->touches[stream] == TOUCH_TOLD ? TOUCH_TOLD : TOUCHED;
    block->writer = write ? stream : block->writer;
    return touch(w, block, stream, write);
}

/* Pointers that are no block's start: inside a live block, or where one was. */
static bool do_stray(world *w, const operation *step)
{
    const world_block *named = &w->blocks[step->block];
    cmpool_t pool = w->pools[step->pool].handle;
    if (!pool || !world_has_stream(w, step->stream) || !named->address) {
        return true;
    }
    uint64_t address = named->address + (named->bytes ? step->bytes % named->bytes : 0);
    bool inside = false;
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        const world_block *block = &w->blocks[i];
        if (block->bytes && address >= block->address && address - block->address < block->bytes) {
            if (address == block->address) {
                return true;
            }
            inside = inside || w->pools[block->pool].parent == w->pools[step->pool].parent;
        }
    }
    cmpool_status status = cmpool_free(pool, (void *)(uintptr_t)address, w->streams[step->stream].handle);
    if (inside) {
        return world_expect(w, "cmpool_free inside a block", status, CMPOOL_ERR_INTERIOR_POINTER);
    }
    return status == CMPOOL_ERR_ALREADY_FREED || status == CMPOOL_ERR_NOT_OURS ||
           world_fault(w, "status: a free of no block gave %s", cmpool_status_name(status));
}

/* ---- levels and trims ------------------------------------------------------------------------------------------------------------- */

static unsigned root_of(const world *w, uint64_t pool) { return w->pools[pool].parent; }

static bool do_limit(world *w, const operation *step)
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

static bool do_floor(world *w, const operation *step)
{
    world_pool *pool = &w->pools[root_of(w, step->pool)];
    if (!w->pools[step->pool].handle) {
        return true;
    }
    pool->floor = step->bytes;
    return world_expect(w, "cmpool_set_floor", cmpool_set_floor(pool->handle, step->bytes), CMPOOL_OK);
}

static bool do_headroom(world *w, const operation *step)
{
    world_pool *pool = &w->pools[root_of(w, step->pool)];
    if (!w->pools[step->pool].handle) {
        return true;
    }
    pool->headroom = step->bytes;
    return world_expect(w, "cmpool_set_headroom", cmpool_set_headroom(pool->handle, step->bytes), CMPOOL_OK);
}

static bool do_trim(world *w, const operation *step)
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
    return world_expect(w, "cmpool_trim", status, CMPOOL_OK) && judge_trim(w, root_of(w, step->pool), step->bytes);
}

static bool do_device_trim(world *w, const operation *step)
{
    size_t released = 0;
    cmpool_status status = cmpool_device_trim(0, step->bytes, &released);
    if (world_take_failure(w)) {
        status = cmpool_device_trim(0, step->bytes, &released);
    }
    return world_expect(w, "cmpool_device_trim", status, CMPOOL_OK) && judge_device_trim(w, step->bytes, released);
}

static bool do_reserve(world *w, const operation *step)
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
        if (block->bytes && w->pools[block->pool].handle == pool && !is_captured(w, block)) {
            return free_block(w, block, own_stream(w, block));
        }
    }
    return 0;
}

static bool do_callback(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    cmpool_low_memory_fn function = step->flags & 1 ? give_up_a_block : NULL;
    return !pool || world_expect(w, "cmpool_set_low_memory_callback", cmpool_set_low_memory_callback(pool, function, w), CMPOOL_OK);
}

/* ---- pools ------------------------------------------------------------------------------------------------------------------------ */

static bool do_pool_make(world *w, const operation *step)
{
    static const char *const stale_budgets[] = {"", ",stale_budget:0", ",stale_budget:1%", ""};
    static const char *const slacks[] = {"", ",slack:0.01%", ",slack:10%", ",slack:1000%"};
    world_pool *pool = &w->pools[step->pool];
    if (pool->handle) {
        return true;
    }
    char options[200];
    uint64_t page = program_page_bytes(w->settings), flags = step->flags;
    snprintf(options, sizeof options, "strict:true,page_size:%llu,stream_check:%s,pending:%s,cross_stream_wait:%s%s%s",
             (unsigned long long)page, w->settings->stream_check ? "always" : "slow", flags & 1 ? "wait" : "grow",
             (flags >> 1 & 3) == 3 ? "off" : "on", stale_budgets[flags >> 3 & 3], slacks[flags >> 5 & 3]);
    const cmpool_config config = {.struct_size = sizeof config, .options = options};
    *pool = (world_pool){.parent = (unsigned)step->pool,
                         .waits = (flags >> 1 & 3) != 3,
                         .strict = strcmp(stale_budgets[flags >> 3 & 3], ",stale_budget:0") == 0};
    return world_expect(w, "cmpool_create", cmpool_create(&pool->handle, &config), CMPOOL_OK);
}

static bool do_private_make(world *w, const operation *step)
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

static bool do_set_make(world *w, const operation *step)
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

static bool do_pool_end(world *w, const operation *step)
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
        if (block->bytes && block->pool == step->pool && (step->flags & 1) && !free_block(w, block, own_stream(w, block))) {
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

static bool do_order(world *w, const operation *step)
{
    unsigned before = (unsigned)step->stream, after = (unsigned)step->other;
    bool live = after < STREAM_SLOTS && world_has_stream(w, before) && world_has_stream(w, after);
    return !live || world_order(w, before, after);
}

static bool do_wait(world *w, const operation *step)
{
    if (!world_has_stream(w, step->stream)) {
        return true;
    }
    CUresult code = w->device.cuStreamSynchronize(w->streams[step->stream].handle);
    return code == CUDA_SUCCESS || world_fault(w, "driver: cuStreamSynchronize gave %d", (int)code);
}

static bool do_run(world *w, const operation *step)
{
    (void)step;
    w->device.run_device();
    return true;
}

static bool do_gate_close(world *w, const operation *step)
{
    return !world_has_stream(w, step->stream) || world_close_gate(w, (unsigned)step->stream);
}

static bool do_gate_open(world *w, const operation *step)
{
    world_open_gate(w, (unsigned)step->flags);
    return true;
}

static bool do_stream_make(world *w, const operation *step)
{
    return world_has_stream(w, step->stream) || world_make_stream(w, (unsigned)step->stream);
}

static bool do_stream_end(world *w, const operation *step)
{
    bool retire = (step->flags & 1) || !w->settings->stream_check;
    return world_end_stream(w, (unsigned)step->stream, retire);
}

static bool do_sibling_take(world *w, const operation *step)
{
    if (w->device.sibling_take(0, step->bytes, NULL) == 0) {
        w->sibling_bytes += step->bytes;
    }
    return true;
}

static bool do_sibling_return(world *w, const operation *step)
{
    uint64_t bytes = step->bytes && step->bytes < w->sibling_bytes ? step->bytes : w->sibling_bytes;
    w->device.sibling_return(0, bytes);
    w->sibling_bytes -= bytes;
    return true;
}

/* ---- captures, failures ---------------------------------------------------------------------------------------------------------- */

static bool do_capture_begin(world *w, const operation *step)
{
    const world_pool *set = &w->pools[step->pool];
    unsigned stream = (unsigned)step->stream;
    bool can = !w->capturing && set->is_set && set->graph_count < GRAPHS_MOST && world_heir(w, stream) < STREAM_SLOTS &&
               w->streams[stream].lives && !w->streams[stream].special;
    return !can || world_begin_capture(w, (unsigned)step->pool, stream, (unsigned)step->flags);
}

static bool do_capture_end(world *w, const operation *step)
{
    (void)step;
    return !w->capturing || world_end_capture(w);
}

static bool do_launch(world *w, const operation *step)
{
    const world_pool *set = &w->pools[step->pool];
    bool can = set->is_set && set->graph_count && world_has_stream(w, step->stream) && !(w->capturing && w->capture_set == step->pool);
    return !can || world_launch(w, (unsigned)step->pool, (unsigned)step->flags, (unsigned)step->stream);
}

static bool do_fail(world *w, const operation *step)
{
    /* None that the program makes itself; a page that cannot be released is another story. */
    static const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuCtxRecordEvent", "cuEventQuery"};
    w->device.fail_clear();
    w->failures_before = w->device.failures_injected();
    w->failing = true;
    int rule = w->device.fail(functions[step->flags % 6], 1 + step->bytes, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    return rule >= 0 || world_fault(w, "driver: no failure of %s can be planned", functions[step->flags % 6]);
}

/* ---- the program ------------------------------------------------------------------------------------------------------------------------
 */

/* The pool that an operation tells to give memory up, by its root's slot. */
static unsigned shrinking(const world *w, const operation *step)
{
    bool shrinks = step->kind == DO_limit || step->kind == DO_trim || step->kind == DO_pool_end;
    return shrinks && w->pools[step->pool].handle ? root_of(w, step->pool) : POOL_SLOTS;
}

/* The program leaves alone, while it captures, what a capture forbids or what would have to wait for its end. */
static bool waits_for_capture(const operation *step)
{
    switch (step->kind) {
    case DO_wait:
    case DO_stream_make:
    case DO_stream_end:
    case DO_limit:
    case DO_trim:
    case DO_device_trim:
    case DO_reserve:
    case DO_pool_make:
    case DO_pool_end:
        return true;
    default:
        return false;
    }
}

/* Operations that are done again when a driver call failed in them. */
static bool is_done_again(const operation *step)
{
    return step->kind == DO_alloc || step->kind == DO_limit || step->kind == DO_trim || step->kind == DO_device_trim ||
           step->kind == DO_reserve;
}

static bool (*const actions[])(world *w, const operation *step) = {
#define OPERATION(name, weight, operands) do_##name,
#include "operations.def"
#undef OPERATION
};

static bool begin_pools(world *w)
{
    bool good = true;
    for (unsigned i = 0; i < w->settings->pools && good; i++) {
        /* Other options for each pool and each order seed; see do_pool_make for what the bits mean. */
        const operation step = {.pool = i, .flags = w->settings->order_seed * 37 + i * 11};
        good = do_pool_make(w, &step);
    }
    return good;
}

static bool take_down(world *w)
{
    while (w->gate_count) {
        world_open_gate(w, 0);
    }
    world_take_failure(w);
    bool good = !w->capturing || world_end_capture(w);
    for (unsigned pass = 0; pass < 2; pass++) { /* private pools first */
        for (unsigned i = 0; i < POOL_SLOTS && good; i++) {
            const operation step = {.pool = i, .flags = 1};
            bool is_private = w->pools[i].parent != i;
            good = is_private != (pass == 0) || (do_pool_end(w, &step) && judge_state(w));
        }
    }
    return good && world_end(w);
}

/* The library's tables that stay for the life of the process: made once. */
static void warm_up(void)
{
    cmpool_t pool;
    if (cmpool_create(&pool, NULL) == CMPOOL_OK) {
        cmpool_destroy(pool);
        cmpool_destroy(pool); /* refused: the thread's error detail is made too */
    }
}

void program_run(const program *p, outcome *result)
{
    static world w;
    *result = (outcome){0};
    bool good = world_start(&w, &p->world, result);
    if (good) {
        warm_up();
    }
    uint64_t before = cmi_meta_bytes();
    good = good && begin_pools(&w) && judge_state(&w);
    for (; good && result->at < p->count; result->at++) {
        const operation *step = &p->operations[result->at];
        w.shrinking = shrinking(&w, step);
        if (step->kind != DO_fail && !is_done_again(step)) {
            world_take_failure(&w);
        }
        w.host_may_wait = step->kind != DO_alloc || w.capturing || w.failing;
        bool passed_over = step->stream >= w.settings->streams || (w.capturing && waits_for_capture(step));
        good = passed_over || (actions[step->kind](&w, step) && judge_state(&w));
        if (step->kind != DO_fail) {
            world_take_failure(&w);
        }
        if (!good) {
            break;
        }
    }
    good = good && take_down(&w);
    if (good && cmi_meta_bytes() != before) {
        world_fault(&w, "leak: %llu bytes of metadata before, %llu after", (unsigned long long)before,
                    (unsigned long long)cmi_meta_bytes());
    }
}
