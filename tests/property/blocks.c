/*
 * Owns what a random program does with blocks: it asks for them, by one thread or two, uses them, frees them, and frees what is none. One
 * thread, but for the request that aside.c makes. Called by run.c through the list of operations, and by others.c.
 */
#include "world.h"

#include <unistd.h>

static bool touch(world *w, const world_block *block, unsigned stream, bool write)
{
    int code = w->device.touch(w->streams[stream].handle, block->address, block->bytes, write);
    return code == 0 || world_fault(w, "touch: a kernel on a live block gave %d", code);
}

bool world_is_captured(const world *w, const world_block *block) { return w->capturing && block->pool == w->capture_set; }

bool world_free_block(world *w, world_block *block, unsigned stream)
{
    stream = world_is_captured(w, block) ? w->capture_stream : stream;
    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        if (block->touches[i] == TOUCHED && !world_order(w, i, stream)) {
            return false;
        }
    }
    past_free(w, block, stream);
    cmpool_status status = cmpool_free(w->pools[block->pool].handle, (void *)(uintptr_t)block->address, w->streams[stream].handle);
    block->bytes = 0;
    return world_expect(w, "cmpool_free", status, CMPOOL_OK);
}

unsigned world_own_stream(const world *w, const world_block *block)
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

bool world_is_exportable(const world *w, const operation *step)
{
    return w->settings->fixed == 3 && step->kind == DO_alloc && step->flags % 8 == 0 && !w->capturing;
}

static cmpool_status request_block(const world *w, const operation *step, cmpool_t pool, unsigned stream, void **address)
{
    const cmpool_request request = {.struct_size = sizeof request,
                                    .bytes = step->bytes,
                                    .alignment = step->align,
                                    .stream = w->streams[stream].handle,
                                    .flags = world_is_exportable(w, step) ? CMPOOL_EXPORTABLE : 0};
    return step->align || request.flags ? cmpool_malloc_ex(pool, address, &request)
                                        : cmpool_malloc(pool, address, step->bytes, request.stream);
}

/* A request has been answered, and not been refused. */
static bool take_in(world *w, const operation *step, unsigned number, unsigned stream, cmpool_status status, void *address)
{
    world_block *block = &w->blocks[step->block];
    if (w->capturing && status == CMPOOL_ERR_CAPTURE) {
        return true;
    }
    if (!world_expect(w, "cmpool_malloc", status, CMPOOL_OK)) {
        return false;
    }
    if (!step->bytes) {
        return !address || world_fault(w, "block: zero bytes gave a pointer");
    }
    w->result->served++;
    w->have_called |= UINT32_C(1) << stream;
    *block = (world_block){.address = (uint64_t)(uintptr_t)address,
                           .pool = number,
                           .stream = stream,
                           .writer = stream,
                           .exportable = world_is_exportable(w, step)};
    block->touches[stream] = world_is_captured(w, block) ? NOT_TOUCHED : TOUCHED; /* a capture touches nothing, its graph does */
    return check_new_block(w, block, step, w->pools[number].handle) && touch(w, block, stream, true);
}

bool do_alloc(world *w, const operation *step)
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
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT) {
        uint64_t page = program_page_bytes(w->settings), whole = (step->bytes + page - 1) / page * page;
        w->result->refusals++;
        return (!address || world_fault(w, "block: refused, but a pointer was given")) &&
               judge_refusal(w, number, world_is_exportable(w, step) ? whole : step->bytes, step->align, stream);
    }
    return take_in(w, step, number, stream, status, address);
}

/* The other thread's request has ended. Whether a refusal was right cannot be said of something that others changed: it is asked again. */
bool world_finish_aside(world *w)
{
    const operation *step = &w->aside_step;
    world_end_aside(w);
    bool refused = w->aside.status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || w->aside.status == CMPOOL_ERR_LIMIT;
    return refused ? do_alloc(w, step) : take_in(w, step, (unsigned)step->pool, (unsigned)step->stream, w->aside.status, w->aside.address);
}

/* By another thread; what it leads to is looked at when the next operation is done. */
bool do_aside(world *w, const operation *step)
{
    const world_pool *pool = &w->pools[step->pool];
    unsigned stream = (unsigned)step->stream;
    if (w->blocks[step->block].bytes || !pool->handle || pool->is_set || !world_has_stream(w, stream) || w->streams[stream].special ||
        w->failing || w->calls_back) {
        return true;
    }
    w->aside_step = *step;
    w->aside_step.align = 0;
    return world_ask_aside(w, pool->handle, step->bytes, w->streams[stream].handle, (unsigned)step->flags) &&
           (w->aside.lives || world_finish_aside(w));
}

bool do_free(world *w, const operation *step)
{
    world_block *block = &w->blocks[step->block];
    unsigned stream = step->flags % 4 ? world_own_stream(w, block) : (unsigned)step->stream;
    return !block->bytes || !world_has_stream(w, stream) || world_free_block(w, block, stream);
}

bool do_export(world *w, const operation *step)
{
    const world_block *block = &w->blocks[step->block];
    int fd = 0;
    if (!block->bytes) {
        return true;
    }
    cmpool_status status = cmpool_export_fd(w->pools[block->pool].handle, (void *)(uintptr_t)block->address, &fd);
    if (world_take_failure(w) && status != CMPOOL_OK) {
        status = cmpool_export_fd(w->pools[block->pool].handle, (void *)(uintptr_t)block->address, &fd);
    }
    if (!block->exportable) {
        return world_expect(w, "cmpool_export_fd of another block", status, CMPOOL_ERR_UNSUPPORTED);
    }
    return world_expect(w, "cmpool_export_fd", status, CMPOOL_OK) && (close(fd) == 0 || world_fault(w, "export: no descriptor"));
}

bool do_free_some(world *w, const operation *step)
{
    bool all = step->flags & 1, good = true;
    for (unsigned i = 0, met = 0; i < BLOCK_SLOTS && good; i++) {
        world_block *block = &w->blocks[i];
        if (block->bytes && block->pool == step->pool && (all || met++ % 2 == 0)) {
            bool here = (step->flags & 2) && world_has_stream(w, step->stream);
            good = world_free_block(w, block, here ? (unsigned)step->stream : world_own_stream(w, block));
        }
    }
    return good;
}

/* The program orders its own uses: a read after the last write, a write after every use so far. */
bool do_use(world *w, const operation *step)
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
bool do_stray(world *w, const operation *step)
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

/* No longer than this either: what it was used for on two streams goes on behind the whole device. */
bool do_unordered(world *w, const operation *step)
{
    const world_pool *pool = &w->pools[step->pool];
    unsigned stream = (unsigned)step->stream, other = (unsigned)step->other % (unsigned)w->settings->streams;
    if (!pool->handle || pool->is_set || !world_has_stream(w, stream) || !world_has_stream(w, other)) {
        return true;
    }
    void *address = w;
    cmpool_status status = cmpool_malloc_unordered(pool->handle, &address, step->bytes);
    if (world_take_failure(w) && status != CMPOOL_OK) {
        status = cmpool_malloc_unordered(pool->handle, &address, step->bytes);
    }
    bool refused = status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT;
    if (refused || (w->capturing && status == CMPOOL_ERR_CAPTURE)) {
        w->result->refusals++;
        return !address ? w->capturing || judge_refusal(w, (unsigned)step->pool, step->bytes, 0, stream)
                        : world_fault(w, "block: refused, but a pointer was given");
    }
    if (!world_expect(w, "cmpool_malloc_unordered", status, CMPOOL_OK) || !step->bytes) {
        return !w->result->failed;
    }
    past_forget(w);
    bool used = w->device.touch(w->streams[stream].handle, (uint64_t)(uintptr_t)address, step->bytes, 1) == CUDA_SUCCESS &&
                world_order(w, stream, other) &&
                w->device.touch(w->streams[other].handle, (uint64_t)(uintptr_t)address, step->bytes, 0) == CUDA_SUCCESS;
    status = step->flags & 1 ? cmpool_free(pool->handle, address, w->streams[other].handle) : cmpool_free_unordered(pool->handle, address);
    return (used || world_fault(w, "touch: what was handed out cannot be used")) &&
           world_expect(w, "cmpool_free_unordered, cmpool_free", status, CMPOOL_OK);
}

/* Pinned memory lives no longer than this, but what was done with it goes on. */
bool do_pinned(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    CUstream stream = w->streams[step->stream].handle;
    if (!pool || !world_has_stream(w, step->stream)) {
        return true;
    }
    void *address = w;
    const cmpool_pinned_request request = {.struct_size = sizeof request, .bytes = step->bytes, .alignment = 4096, .stream = stream};
    bool general = step->bytes && step->flags & 4;
    cmpool_status taken =
        general ? cmpool_pinned_malloc_ex(pool, &address, &request) : cmpool_pinned_malloc(pool, &address, step->bytes, stream);
    if (!world_expect(w, "cmpool_pinned_malloc", taken, CMPOOL_OK)) {
        return false;
    }
    cmpool_block_info info = {.struct_size = sizeof info};
    if (step->bytes && (cmpool_pinned_lookup((char *)address + step->bytes - 1, &info) != CMPOOL_OK || info.base != address)) {
        return world_fault(w, "pinned: lookup knows another block than was handed out");
    }
    if (step->bytes && w->device.touch(stream, (uint64_t)(uintptr_t)address, step->bytes, 1) != CUDA_SUCCESS) {
        return world_fault(w, "pinned: what was handed out cannot be used");
    }
    if (step->bytes && step->flags & 8 &&
        !world_expect(w, "cmpool_pinned_record_use", cmpool_pinned_record_use(pool, address, stream), CMPOOL_OK)) {
        return false;
    }
    cmpool_status status = step->flags & 1 ? cmpool_pinned_free_unordered(pool, address) : cmpool_pinned_free(pool, address, stream);
    if (status == CMPOOL_OK && step->flags & 2 && !w->capturing) {
        status = step->flags & 16 ? cmpool_pinned_set_limit(pool, 0) : cmpool_pinned_trim(pool, step->bytes / 2, NULL);
    }
    return world_expect(w, "cmpool_pinned_free, cmpool_pinned_trim", status, CMPOOL_OK);
}
