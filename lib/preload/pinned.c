/*
 * Replacements for the calls about pinned host memory: with the option pinned the pool of the current device serves it, else the driver.
 * Owns nothing; the blocks are in the table of all blocks, marked as host memory. What a program asked for is what it is told of a block:
 * its flags and its length, while the driver knows only the extent around it.
 */
#include "preload/preload.h"

#define KNOWN_FLAGS (CMPOOL_PINNED_PORTABLE | CMPOOL_PINNED_MAPPED | CMPOOL_PINNED_WRITE_COMBINED)
#define PAGE ((size_t)4096) /* what the driver gives begins on a page, and programs hand such memory to unbuffered files */

static CUresult allocate(void **address, size_t bytes, unsigned flags, const void *caller)
{
    preload_block block = {.bytes = bytes, .origin = {.how = PRELOAD_HOST | flags}};
    cmpool_t pool;
    void *memory;
    if (!cmi_preload_here(&block.origin.context, &block.origin.device) || cmi_preload_caller(caller, bytes) == PRELOAD_CALLER_BYPASS ||
        cmi_preload_capture_is_drivers()) {
        return PRELOAD_ASK_DRIVER;
    }
    cmpool_status status = cmi_preload_pool(block.origin.device, &pool);
    if (status == CMPOOL_OK && !pool) {
        return PRELOAD_ASK_DRIVER;
    }
    const cmpool_pinned_request request = {
        .struct_size = sizeof request, .bytes = bytes, .alignment = PAGE, .flags = flags | CMPOOL_PINNED_UNORDERED};
    if (status == CMPOOL_OK) {
        status = cmpool_pinned_malloc_ex(pool, &memory, &request);
    }
    if (status != CMPOOL_OK) {
        return cmi_preload_answer(status);
    }
    CUdeviceptr handed_out = 0;
    block.address = (uint64_t)(uintptr_t)memory;
    CUresult code = cmi_preload_hand_out(pool, &block, &handed_out);
    if (code == CUDA_SUCCESS) {
        *address = memory;
    }
    return code;
}

static CUresult serve(void **address, size_t bytes, unsigned flags, const void *caller)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    if (address && bytes && !(flags & ~(unsigned)KNOWN_FLAGS) && cmi_preload_pinned_from_pool() && cmi_preload_enter()) {
        code = allocate(address, bytes, flags, caller);
        cmi_preload_leave();
    }
    return code;
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    CUresult code = serve(address, bytes, flags, __builtin_return_address(0));
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemHostAlloc, address, bytes, flags) : code;
}

CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    CUresult code = serve(address, bytes, 0, __builtin_return_address(0));
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemAllocHost_v2, address, bytes) : code;
}

static preload_whose find(uint64_t address, preload_block *block)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    cmpool_status status = cmpool_pinned_lookup((void *)(uintptr_t)address, &info);
    if (status == CMPOOL_OK && cmi_preload_block_find_host((uint64_t)(uintptr_t)info.base, block)) {
        return address - block->address < block->bytes ? PRELOAD_LIVE : PRELOAD_FREE;
    }
    return status == CMPOOL_OK || status == CMPOOL_ERR_ALREADY_FREED ? PRELOAD_FREE : PRELOAD_DRIVERS;
}

preload_whose cmi_preload_pinned_find(uint64_t address, preload_block *block)
{
    preload_whose found = PRELOAD_DRIVERS;
    if (address && cmi_preload_pinned_from_pool() && cmi_preload_enter()) {
        found = find(address, block);
        cmi_preload_leave();
    }
    return found;
}

/* What is not a block's start is the driver's to refuse, but never where it could be an extent's: that would be freed under all blocks. */
static CUresult give_back(void *address)
{
    CUcontext context = NULL;
    preload_block block;
    uint64_t at = (uint64_t)(uintptr_t)address;
    if (cmi_preload_driver()->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return PRELOAD_ASK_DRIVER;
    }
    if (cmi_preload_capture_is_drivers() && cmi_preload_block_find_host(at, &block)) {
        CUresult barred = cmi_preload_barred();
        if (barred != CUDA_SUCCESS) {
            return barred;
        }
    }
    if (!cmi_preload_block_take_host(at, &block)) {
        return find(at, &block) == PRELOAD_DRIVERS ? PRELOAD_ASK_DRIVER : CUDA_ERROR_INVALID_VALUE;
    }
    cmpool_status status = cmi_preload_block_release(cmi_preload_pool_of(block.origin.device), &block);
    if (status != CMPOOL_OK && status != CMPOOL_ERR_INVALID_POOL) {
        (void)cmi_preload_block_add(&block); /* it is live still; there is room, since it has just left */
    }
    return status == CMPOOL_OK ? CUDA_SUCCESS : cmi_preload_code(status);
}

CUresult cuMemFreeHost(void *address)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    if (address && cmi_preload_pinned_from_pool() && cmi_preload_enter()) {
        code = give_back(address);
        cmi_preload_leave();
    }
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemFreeHost, address) : code;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *address)
{
    preload_block block;
    preload_whose found = cmi_preload_pinned_find((uint64_t)(uintptr_t)address, &block);
    CUresult code = PRELOAD_FORWARD(cuMemHostGetFlags, flags, address);
    if (code == CUDA_SUCCESS && found == PRELOAD_LIVE) {
        *flags = (block.origin.how & KNOWN_FLAGS) | CMPOOL_PINNED_MAPPED; /* with unified addressing all pinned memory is mapped */
    }
    return code == CUDA_SUCCESS && found == PRELOAD_FREE ? CUDA_ERROR_INVALID_VALUE : code;
}
