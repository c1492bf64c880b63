/*
 * Pinned host memory: allocated here, or the program's own and registered. Device address and host address are the same (unified
 * addressing). Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

#define PRICE_PAGE (UINT64_C(2) << 20)
#define ALLOC_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

typedef struct registered {
    uint64_t address, bytes;
    unsigned flags;
} registered;

static struct {
    registered *list; /* in order of address */
    uint32_t count, room;
} known;

/* How many registered ranges begin at or below the address. */
static uint32_t up_to(uint64_t address)
{
    uint32_t low = 0, high = known.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (known.list[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const registered *find(uint64_t address)
{
    uint32_t index = up_to(address);
    return index && address - known.list[index - 1].address < known.list[index - 1].bytes ? &known.list[index - 1] : NULL;
}

bool sim_host_is_pinned(uint64_t address, uint64_t bytes)
{
    const sim_mapping *mapping = sim_mapping_find(address);
    if (mapping)
        return mapping->kind == SIM_MEMORY_HOST && bytes <= mapping->bytes - (address - mapping->address);
    const registered *range = find(address);
    return range && bytes <= range->bytes - (address - range->address);
}

void sim_registered_reset(void)
{
    free(known.list);
    memset(&known, 0, sizeof known);
}

uint64_t sim_registered_bytes(uint64_t *count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < known.count; i++)
        bytes += known.list[i].bytes;
    *count = known.count;
    return bytes;
}

static CUresult allocate(sim_frame *frame, void **address, size_t bytes, unsigned flags)
{
    CUresult code;
    sim_context *context = sim_context_current(&code);
    if (!context)
        return code;
    if (sim_capture_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!address || bytes == 0 || flags & ~(unsigned)ALLOC_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *mapping = sim_memory_new(SIM_MEMORY_HOST, -1, bytes, &code);
    if (!mapping)
        return code;
    mapping->context = context;
    mapping->flags = flags;
    frame->pages = (bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    *address = (void *)(uintptr_t)mapping->address;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    SIM_ENTER("cuMemHostAlloc");
    SIM_RETURN(allocate(&sim_here, address, bytes, flags));
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t bytes)
{
    SIM_ENTER("cuMemAllocHost_v2");
    SIM_RETURN(allocate(&sim_here, address, bytes, 0));
}

SIM_EXPORT CUresult CUDAAPI cuMemFreeHost(void *address)
{
    SIM_ENTER("cuMemFreeHost");
    (void)SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    sim_mapping *mapping = sim_mapping_find(SIM_NUMBER(address));
    SIM_REFUSE_IF(!mapping || mapping->kind != SIM_MEMORY_HOST || mapping->address != SIM_NUMBER(address), CUDA_ERROR_INVALID_VALUE);
    sim_here.pages = (mapping->bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    sim_check_free(mapping);
    sim_memory_delete(mapping);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    SIM_ENTER("cuMemHostRegister_v2");
    (void)SIM_NEED_CONTEXT();
    uint64_t start = SIM_NUMBER(address);
    SIM_REFUSE_IF(!address || bytes == 0 || start + bytes < start || flags & ~(unsigned)REGISTER_FLAGS, CUDA_ERROR_INVALID_VALUE);
    uint32_t index = up_to(start);
    SIM_REFUSE_IF(find(start) || (index < known.count && known.list[index].address < start + bytes) || sim_mapping_find(start),
                  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    if (known.count == known.room) {
        uint32_t room = known.room ? known.room * 2 : 16;
        registered *list = realloc(known.list, room * sizeof *list);
        SIM_REFUSE_IF(!list, CUDA_ERROR_OUT_OF_MEMORY);
        known.list = list;
        known.room = room;
    }
    memmove(&known.list[index + 1], &known.list[index], (known.count - index) * sizeof *known.list);
    known.list[index] = (registered){start, bytes, flags};
    known.count++;
    sim_here.pages = (bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *address)
{
    SIM_ENTER("cuMemHostUnregister");
    (void)SIM_NEED_CONTEXT();
    const registered *range = find(SIM_NUMBER(address));
    SIM_REFUSE_IF(!address, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!range || range->address != SIM_NUMBER(address), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    sim_here.pages = (range->bytes + PRICE_PAGE - 1) / PRICE_PAGE;
    uint32_t index = (uint32_t)(range - known.list);
    known.count--;
    memmove(&known.list[index], &known.list[index + 1], (known.count - index) * sizeof *known.list);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags)
{
    SIM_ENTER("cuMemHostGetDevicePointer_v2");
    (void)SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(!device || flags || !sim_host_is_pinned(SIM_NUMBER(address), 1), CUDA_ERROR_INVALID_VALUE);
    *device = SIM_NUMBER(address);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemHostGetFlags(unsigned *flags, void *address)
{
    SIM_ENTER("cuMemHostGetFlags");
    (void)SIM_NEED_CONTEXT();
    const sim_mapping *mapping = sim_mapping_find(SIM_NUMBER(address));
    SIM_REFUSE_IF(!flags || !mapping || mapping->kind != SIM_MEMORY_HOST, CUDA_ERROR_INVALID_VALUE);
    *flags = mapping->flags | CU_MEMHOSTALLOC_DEVICEMAP; /* with unified addressing all pinned memory is mapped */
    SIM_RETURN(CUDA_SUCCESS);
}
