/*
 * Replacements for the calls about memory. Owns nothing but what it has said once. Called by programs, from any thread, with the driver's
 * own arguments; what the pool does not know or does not serve is passed on, so that the answer is the driver's own.
 */
#include "preload/preload.h"

#include <stdatomic.h>

CUresult cmi_preload_answer(cmpool_status status)
{
    switch (status) {
    case CMPOOL_ERR_CAPTURE: /* a live capture forbids what is needed: so it does to the driver, whose own code programs know */
    case CMPOOL_ERR_FORKED:
    case CMPOOL_ERR_SHUTTING_DOWN:
    case CMPOOL_ERR_INVALID_POOL:
    case CMPOOL_ERR_INVALID_ARGUMENT:
        return PRELOAD_ASK_DRIVER;
    default:
        return cmi_preload_code(status);
    }
}

CUresult cmi_preload_hand_out(cmpool_t pool, const preload_block *block, CUdeviceptr *address)
{
    if (!cmi_preload_block_add(block)) {
        (void)cmi_preload_block_release(pool, block);
        return PRELOAD_ASK_DRIVER;
    }
    *address = block->address;
    return CUDA_SUCCESS;
}

/* Memory that nothing has used before, so there is no order it could want: any stream does. */
PRELOAD_SELDOM static cmpool_status take_shared(cmpool_t pool, void **memory, size_t bytes)
{
    const cmpool_request request = {.struct_size = sizeof request, .bytes = bytes, .flags = CMPOOL_EXPORTABLE};
    return cmpool_malloc_ex(pool, memory, &request);
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, const void *caller)
{
    preload_block block = {.bytes = bytes};
    cmpool_t pool;
    void *memory;
    if (!cmi_preload_here(&block.origin.context, &block.origin.device) || cmi_preload_capture_is_drivers()) {
        return PRELOAD_ASK_DRIVER;
    }
    preload_caller who = cmi_preload_caller(caller, bytes);
    if (who == PRELOAD_CALLER_BYPASS) {
        return PRELOAD_ASK_DRIVER;
    }
    bool shared = who == PRELOAD_CALLER_SHARE;
    block.origin.how = shared ? PRELOAD_SHARED : 0;
    cmpool_status status = cmi_preload_pool(block.origin.device, &pool);
    if (status == CMPOOL_OK && !pool) {
        return PRELOAD_ASK_DRIVER;
    }
    if (status == CMPOOL_OK && shared) {
        status = take_shared(pool, &memory, bytes);
        if (status == CMPOOL_ERR_UNSUPPORTED) {
            return PRELOAD_ASK_DRIVER; /* the driver's own has IPC handles at least */
        }
    } else if (status == CMPOOL_OK) {
        status = cmi_preload_free_sync() == PRELOAD_FREE_NONE ? cmpool_malloc(pool, &memory, bytes, NULL)
                                                              : cmpool_malloc_unordered(pool, &memory, bytes);
    }
    if (status != CMPOOL_OK) {
        return cmi_preload_waited_for_resume(status) ? allocate(address, bytes, caller) : cmi_preload_answer(status);
    }
    block.address = (uint64_t)(uintptr_t)memory;
    return cmi_preload_hand_out(pool, &block, address);
}

/* Whether a thread may allocate and free depends on captures of all threads and on its own mode, which the driver alone knows: it is asked
 * for the least of memory. */
PRELOAD_SELDOM CUresult cmi_preload_barred(void)
{
    CUdeviceptr probe = 0;
    CUresult code = PRELOAD_FORWARD(cuMemAlloc_v2, &probe, 1);
    if (code == CUDA_SUCCESS) {
        code = PRELOAD_FORWARD(cuMemFree_v2, probe);
    }
    return code == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : code;
}

/* No block starts there, but a pool's memory is there: the driver must not be asked, to which it may be the start of a whole segment. */
PRELOAD_SELDOM static CUresult refuse_free(CUdeviceptr address)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    cmpool_status status = cmpool_lookup((void *)(uintptr_t)address, &info);
    return status == CMPOOL_OK || status == CMPOOL_ERR_ALREADY_FREED ? CUDA_ERROR_INVALID_VALUE : PRELOAD_ASK_DRIVER;
}

CUresult cmi_preload_give_back(CUdeviceptr address, bool ordered, CUstream stream)
{
    CUcontext context = NULL;
    preload_block block;
    const preload_driver *driver = cmi_preload_driver();
    if (driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return PRELOAD_ASK_DRIVER;
    }
    if (cmi_preload_capture_is_drivers() && !ordered && cmi_preload_block_find(address, &block)) {
        CUresult barred = cmi_preload_barred();
        if (barred != CUDA_SUCCESS) {
            return barred;
        }
    }
    if (!cmi_preload_block_take(address, &block)) {
        return refuse_free(address);
    }
    cmpool_t pool = cmi_preload_pool_of(block.origin.device);
    void *memory = (void *)(uintptr_t)address;
    preload_free_sync sync = cmi_preload_free_sync();
    if (sync == PRELOAD_FREE_HOST && !ordered && !(block.origin.how & PRELOAD_IN_ORDER) && !cmi_preload_capture_is_live()) {
        (void)driver->cuCtxSynchronize(); /* an error of work is told by the next call that asks for one */
    }
    ordered = ordered || sync == PRELOAD_FREE_NONE;
    cmpool_status status = ordered ? cmpool_free(pool, memory, stream) : cmpool_free_unordered(pool, memory);
    if (status == CMPOOL_OK) {
        return CUDA_SUCCESS;
    }
    if (status != CMPOOL_ERR_INVALID_POOL) {
        (void)cmi_preload_block_add(&block); /* it is live still; there is room, since it has just left */
    }
    return cmi_preload_answer(status);
}

/* ---- without a stream -----------------------------------------------------------------------------------------------------------------
 */

PRELOAD_SELDOM static CUresult allocate_from_driver(CUdeviceptr *address, size_t bytes)
{
    PRELOAD_WITH_ROOM(-1, bytes, cuMemAlloc_v2, address, bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    if (address && bytes && cmi_preload_enter()) {
        code = allocate(address, bytes, __builtin_return_address(0));
        cmi_preload_leave();
    }
    return code == PRELOAD_ASK_DRIVER ? allocate_from_driver(address, bytes) : code;
}

static CUresult allocate_rows(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, const void *caller)
{
    CUcontext context;
    int device, alignment = 0;
    const preload_driver *driver = cmi_preload_driver();
    if (!cmi_preload_here(&context, &device)) {
        return PRELOAD_ASK_DRIVER;
    }
    (void)driver->cuDeviceGetAttribute(&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, device);
    size_t step = alignment > 512 ? (size_t)alignment : 512, bytes; /* both are powers of two */
    size_t row = (width + step - 1) & ~(step - 1);
    if (row < width || __builtin_mul_overflow(row, height, &bytes)) {
        return PRELOAD_ASK_DRIVER;
    }
    CUresult code = allocate(address, bytes, caller);
    if (code == CUDA_SUCCESS) {
        *pitch = row;
    }
    return code;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    bool sound = address && pitch && width && height && (element == 4 || element == 8 || element == 16);
    if (sound && cmi_preload_enter()) {
        code = allocate_rows(address, pitch, width, height, __builtin_return_address(0));
        cmi_preload_leave();
    }
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemAllocPitch_v2, address, pitch, width, height, element) : code;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult code = PRELOAD_ASK_DRIVER;
    if (address && cmi_preload_enter()) {
        code = cmi_preload_give_back(address, false, NULL);
        cmi_preload_leave();
    }
    return code == PRELOAD_ASK_DRIVER ? PRELOAD_FORWARD(cuMemFree_v2, address) : code;
}

/* ---- what is known of memory
 * --------------------------------------------------------------------------------------------------------------- */

static uint64_t idle_bytes(int device)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    cmpool_t pool = cmi_preload_pool_of(device);
    return pool && cmpool_stats_get(pool, &stats) == CMPOOL_OK ? stats.idle_bytes : 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult code = PRELOAD_FORWARD(cuMemGetInfo_v2, free_bytes, total);
    if (code == CUDA_SUCCESS && cmi_preload_enter()) {
        CUcontext context;
        int device;
        if (cmi_preload_here(&context, &device)) {
            size_t more = idle_bytes(device);
            *free_bytes = *total - *free_bytes < more ? *total : *free_bytes + more;
        }
        cmi_preload_leave();
    }
    return code;
}

/* The block of device memory around an address. */
static preload_whose find(CUdeviceptr address, preload_block *block)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    if (cmi_preload_block_find(address, block)) {
        return PRELOAD_LIVE;
    }
    cmpool_status status = cmpool_lookup((void *)(uintptr_t)address, &info);
    if (status == CMPOOL_OK && cmi_preload_block_find((uint64_t)(uintptr_t)info.base, block)) {
        return address - block->address < block->bytes ? PRELOAD_LIVE : PRELOAD_FREE;
    }
    return status == CMPOOL_OK || status == CMPOOL_ERR_ALREADY_FREED ? PRELOAD_FREE : PRELOAD_DRIVERS;
}

static preload_whose find_for(CUdeviceptr address, preload_block *block)
{
    preload_whose found = PRELOAD_DRIVERS;
    if (address && cmi_preload_enter()) {
        found = find(address, block);
        cmi_preload_leave();
    }
    return found;
}

/* The same, of pinned host memory too. */
static preload_whose find_any(CUdeviceptr address, preload_block *block)
{
    preload_whose found = find_for(address, block);
    return found == PRELOAD_DRIVERS ? cmi_preload_pinned_find(address, block) : found;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    preload_block block;
    preload_whose found = find_for(address, &block);
    if (found == PRELOAD_DRIVERS) {
        return PRELOAD_FORWARD(cuMemGetAddressRange_v2, base, bytes, address);
    }
    if (found == PRELOAD_LIVE && base) {
        *base = block.address;
    }
    if (found == PRELOAD_LIVE && bytes) {
        *bytes = block.bytes;
    }
    return found == PRELOAD_LIVE ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* What the driver says of the page, said of the block. */
static void correct(void *data, CUpointer_attribute attribute, const preload_block *block)
{
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) {
        *(CUcontext *)data = block->origin.context;
    } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
        *(CUdeviceptr *)data = block->address;
    } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
        *(size_t *)data = block->bytes;
    } else if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
        *(CUmemoryPool *)data = block->origin.memory_pool;
    }
}

/* An address at which there is never anything, so that the driver gives its answer for such. */
#define NOWHERE ((CUdeviceptr)1)

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    preload_block block;
    preload_whose found = find_any(address, &block);
    CUresult code = PRELOAD_FORWARD(cuPointerGetAttribute, data, attribute, found == PRELOAD_FREE ? NOWHERE : address);
    if (code == CUDA_SUCCESS && found == PRELOAD_LIVE) {
        correct(data, attribute, &block);
    }
    return code;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address)
{
    preload_block block;
    preload_whose found = find_any(address, &block);
    CUresult code = PRELOAD_FORWARD(cuPointerGetAttributes, count, attributes, data, found == PRELOAD_FREE ? NOWHERE : address);
    for (unsigned i = 0; i < count && code == CUDA_SUCCESS && found == PRELOAD_LIVE; i++) {
        correct(data[i], attributes[i], &block);
    }
    return code;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    static _Atomic bool said;
    preload_block block;
    if (find_for(address, &block) != PRELOAD_LIVE) {
        return PRELOAD_FORWARD(cuIpcGetMemHandle, handle, address);
    }
    if (!atomic_exchange(&said, true)) {
        cmi_preload_say(
            "cudamempool: pool memory has no CUDA IPC handles; CUDAMEMPOOL_CONF=bypass:NAME leaves what a library or program of "
            "that name allocates to the driver, bypass:* all");
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* cuda.h: only for memory that the program mapped itself; and for what is to be shared, which is like it. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    preload_block block;
    return find_for((CUdeviceptr)(uintptr_t)address, &block) == PRELOAD_DRIVERS || block.origin.how & PRELOAD_SHARED
               ? PRELOAD_FORWARD(cuMemRetainAllocationHandle, handle, address)
               : CUDA_ERROR_INVALID_VALUE;
}

/* ---- others who need memory
 * --------------------------------------------------------------------------------------------------------------- */

bool cmi_preload_made_room(CUresult code, int device, size_t bytes)
{
    size_t released = 0;
    if (code == CUDA_ERROR_OUT_OF_MEMORY && cmi_preload_enter()) {
        CUcontext context;
        if (device >= 0 || cmi_preload_here(&context, &device)) {
            (void)cmpool_device_trim(device, bytes, &released);
        }
        cmi_preload_leave();
    }
    return released > 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    bool on_device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    PRELOAD_WITH_ROOM(on_device ? prop->location.id : -1, bytes, cuMemCreate, handle, bytes, prop, flags);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    PRELOAD_WITH_ROOM(-1, bytes, cuMemAllocManaged, address, bytes, flags);
}

/* How much an array needs is the driver's secret, so all that is idle goes. */
CUresult cuArrayCreate_v2(CUarray *array, const void *descriptor)
{
    PRELOAD_WITH_ROOM(-1, SIZE_MAX / 2, cuArrayCreate_v2, array, descriptor);
}

CUresult cuArray3DCreate_v2(CUarray *array, const void *descriptor)
{
    PRELOAD_WITH_ROOM(-1, SIZE_MAX / 2, cuArray3DCreate_v2, array, descriptor);
}
