/*
 * The virtual memory management calls: reserve, create, map, set-access and back. Every refusal follows the text of cuda.h; what real
 * drivers were reported to do beyond it is said where it is done. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRICE_PAGE (UINT64_C(2) << 20) /* prices are per 2 MiB */

static uint64_t price_pages(uint64_t bytes) { return (bytes + PRICE_PAGE - 1) / PRICE_PAGE; }

static bool page_aligned(uint64_t value) { return (value & (sim.page_bytes - 1)) == 0; }

static CUresult check_properties(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        sim_find(SIMCUDA_UNSUPPORTED_CALL, "host memory through cuMemCreate is not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_device_valid(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                                          CUmemAllocationGranularity_flags option)
{
    SIM_ENTER("cuMemGetAllocationGranularity");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CUDA_ERROR_INVALID_VALUE);
    CUresult code = check_properties(prop);
    if (code == CUDA_SUCCESS)
        *granularity = sim.page_bytes;
    SIM_RETURN(code);
}

/* ---- address ranges --------------------------------------------------------------------------------------------------------------- */

SIM_EXPORT CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                                unsigned long long flags)
{
    SIM_ENTER("cuMemAddressReserve");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    uint64_t host_page = (uint64_t)sysconf(_SC_PAGESIZE);
    SIM_REFUSE_IF(!address || bytes == 0 || bytes % host_page || hint % host_page || flags, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(alignment & (alignment - 1), CUDA_ERROR_INVALID_VALUE);
    uint64_t span = (bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1);
    SIM_REFUSE_IF(span < bytes || span > UINT64_C(1) << 47, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t base = sim_address_take(span, alignment > sim.page_bytes ? alignment : sim.page_bytes, hint);
    SIM_REFUSE_IF(!base, CUDA_ERROR_OUT_OF_MEMORY);
    if (!sim_range_new(base, bytes)) {
        sim_address_give(base, span);
        SIM_RETURN(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *address = base;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    SIM_ENTER("cuMemAddressFree");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    sim_range *range = sim_range_find(address);
    SIM_REFUSE_IF(!range || range->base != address || range->bytes != bytes, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(range->mapped, CUDA_ERROR_INVALID_VALUE);
    sim_range_drop(range);
    sim_address_give(address, (bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1));
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- physical memory --------------------------------------------------------------------------------------------------------------- */

/* One handle more; the first is the memory's beginning as far as the program is concerned. */
static bool give_handle(sim_physical *physical)
{
    if (!physical->created) {
        physical->handle = sim_handle_new(SIM_PHYSICAL, physical);
        if (!physical->handle)
            return false;
        physical->created = true;
        sim.handles++;
        sim.handle_bytes += physical->bytes;
    }
    physical->handles++;
    physical->dormant = false;
    return true;
}

static CUresult no_host_memory(sim_physical *physical)
{
    sim_physical_unref(physical);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                                        unsigned long long flags)
{
    SIM_ENTER("cuMemCreate");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(!handle || flags || bytes == 0 || !page_aligned(bytes), CUDA_ERROR_INVALID_VALUE);
    CUresult code = check_properties(prop);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    sim_physical *physical = sim_physical_new(prop->location.id, bytes, bytes, &code);
    SIM_REFUSE_IF(!physical, code);
    physical->prop = *prop;
    if (!sim.features[SIMCUDA_FEATURE_RDMA])
        physical->prop.allocFlags.gpuDirectRDMACapable = 0; /* a request: reading the properties back tells */
    bool shareable = prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    SIM_REFUSE_IF((shareable && !sim_share_prepare(physical)) || !give_handle(physical), no_host_memory(physical));
    *handle = physical->handle;
    sim_here.pages = price_pages(bytes);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER("cuMemRelease");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    sim_physical *physical = sim_physical_of(handle);
    SIM_REFUSE_IF(!physical, CUDA_ERROR_INVALID_VALUE);
    sim_here.pages = price_pages(physical->bytes);
    if (--physical->handles == 0) {
        /* the value stays with the memory while a mapping can bring it back (cuMemRetainAllocationHandle) */
        if (physical->mappings == 0)
            sim_handle_drop(SIM_PHYSICAL, handle);
        else
            physical->dormant = true;
        sim_physical_unref(physical);
    }
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    SIM_ENTER("cuMemRetainAllocationHandle");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    sim_mapping *mapping = sim_mapping_find(SIM_NUMBER(address));
    SIM_REFUSE_IF(!handle || !mapping || mapping->kind != SIM_MEMORY_VMM, CUDA_ERROR_INVALID_VALUE);
    (void)give_handle(mapping->physical); /* it was created */
    *handle = mapping->physical->handle;
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    SIM_ENTER("cuMemGetAllocationPropertiesFromHandle");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(!prop, CUDA_ERROR_INVALID_VALUE);
    sim_physical *physical = sim_physical_of(handle);
    SIM_REFUSE_IF(!physical, CUDA_ERROR_INVALID_VALUE);
    *prop = physical->prop;
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- mappings -------------------------------------------------------------------------------------------------------------------------
 */

SIM_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                     unsigned long long flags)
{
    SIM_ENTER("cuMemMap");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(flags || offset, CUDA_ERROR_INVALID_VALUE); /* cuda.h: offset "currently must be zero" */
    SIM_REFUSE_IF(bytes == 0 || !page_aligned(address) || !page_aligned(bytes), CUDA_ERROR_INVALID_VALUE);
    sim_physical *physical = sim_physical_of(handle);
    SIM_REFUSE_IF(!physical || bytes > physical->bytes, CUDA_ERROR_INVALID_VALUE);
    sim_range *range = sim_range_find(address);
    SIM_REFUSE_IF(!range || bytes > range->bytes - (address - range->base), CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address; at < address + bytes; at += sim.page_bytes)
        SIM_REFUSE_IF(sim_mapping_find(at), CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_mapping_new(address, bytes, physical, SIM_MEMORY_VMM), CUDA_ERROR_OUT_OF_MEMORY);
    range->mapped++;
    sim_here.pages = price_pages(bytes);
    SIM_RETURN(CUDA_SUCCESS);
}

/* The range must be mapped from end to end by whole mappings. */
static bool whole_mappings(uint64_t address, uint64_t bytes)
{
    if (bytes == 0 || address + bytes < address)
        return false;
    for (uint64_t at = address; at < address + bytes;) {
        const sim_mapping *mapping = sim_mapping_find(at);
        if (!mapping || mapping->kind != SIM_MEMORY_VMM || mapping->address != at || mapping->bytes > address + bytes - at)
            return false;
        at += mapping->bytes;
    }
    return true;
}

SIM_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    SIM_ENTER("cuMemUnmap");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SIM_REFUSE_IF(!page_aligned(address) || !page_aligned(bytes) || !whole_mappings(address, bytes), CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address; at < address + bytes;) {
        sim_mapping *mapping = sim_mapping_find(at);
        sim_check_unmap(mapping);
        uint64_t part = mapping->bytes;
        sim_physical *physical = mapping->physical;
        if (physical->mappings == 1 && physical->dormant)
            sim_handle_drop(SIM_PHYSICAL, physical->handle);
        bool real = mapping->accessible && physical->view;
        sim_mapping_drop(mapping);
        if (real)
            sim_content_unmap(at, part);
        sim_range_find(at)->mapped--;
        at += part;
    }
    sim_here.pages = price_pages(bytes);
    SIM_RETURN(CUDA_SUCCESS);
}

static void grant(sim_mapping *mapping, const CUmemAccessDesc *access)
{
    uint64_t bit = UINT64_C(1) << access->location.id;
    bool reads = access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE, writes = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if ((!reads && mapping->readers & bit) || (!writes && mapping->writers & bit))
        sim_check_revoke(mapping); /* the device would fault as after an unmap */
    mapping->readers = reads ? mapping->readers | bit : mapping->readers & ~bit;
    mapping->writers = writes ? mapping->writers | bit : mapping->writers & ~bit;
}

static CUresult check_access(uint64_t address, uint64_t bytes, const CUmemAccessDesc *access, size_t count)
{
    if (!access || count == 0 || !page_aligned(address) || !page_aligned(bytes) || !whole_mappings(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_HOST || access[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(access[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        if (sim.features[SIMCUDA_FEATURE_PEER])
            continue;
        for (uint64_t at = address; at < address + bytes;) {
            const sim_mapping *mapping = sim_mapping_find(at);
            if (mapping->physical->device != access[i].location.id)
                return CUDA_ERROR_INVALID_DEVICE;
            at += mapping->bytes;
        }
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    SIM_ENTER("cuMemSetAccess");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult code = check_access(address, bytes, access, count);
    SIM_REFUSE_IF(code != CUDA_SUCCESS, code);
    uint64_t fresh = 0;
    for (uint64_t at = address; at < address + bytes;) {
        const sim_mapping *mapping = sim_mapping_find(at);
        fresh += !mapping->accessible;
        at += mapping->bytes;
    }
    /* reported of real drivers: the ceiling on mappings shows here, not in cuMemMap */
    SIM_REFUSE_IF(sim.accessible + fresh > sim.ceiling, CUDA_ERROR_OUT_OF_MEMORY);
    for (uint64_t at = address; at < address + bytes;) {
        sim_mapping *mapping = sim_mapping_find(at);
        if (!mapping->accessible) {
            SIM_REFUSE_IF(!sim_content_map(at, mapping->physical, mapping->bytes), CUDA_ERROR_OUT_OF_MEMORY);
            mapping->accessible = true;
            sim.accessible++;
        }
        for (size_t i = 0; i < count; i++)
            grant(mapping, &access[i]);
        at += mapping->bytes;
    }
    sim_here.pages = price_pages(bytes);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    SIM_ENTER("cuMemGetAccess");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(location->id), CUDA_ERROR_INVALID_DEVICE);
    const sim_mapping *mapping = sim_mapping_find(address);
    SIM_REFUSE_IF(!mapping || mapping->kind != SIM_MEMORY_VMM, CUDA_ERROR_INVALID_VALUE);
    uint64_t bit = UINT64_C(1) << location->id;
    *flags = mapping->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : mapping->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- sharing ------------------------------------------------------------------------------------------------------------------------ */

SIM_EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type, unsigned long long flags)
{
    SIM_ENTER("cuMemExportToShareableHandle");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(!shareable || flags, CUDA_ERROR_INVALID_VALUE);
    const sim_physical *physical = sim_physical_of(handle);
    /* cuda.h: of the types that were asked for when it was created, and no other */
    SIM_REFUSE_IF(!physical || type == CU_MEM_HANDLE_TYPE_NONE || !(physical->prop.requestedHandleTypes & type), CUDA_ERROR_INVALID_VALUE);
    int descriptor = sim_share_descriptor(physical);
    SIM_REFUSE_IF(descriptor < 0, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(shareable, &descriptor, sizeof descriptor);
    SIM_RETURN(CUDA_SUCCESS);
}

/* cuda.h: the descriptor stays the caller's. */
SIM_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                           CUmemAllocationHandleType type)
{
    SIM_ENTER("cuMemImportFromShareableHandle");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_VMM);
    SIM_REFUSE_IF(!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    CUresult code;
    sim_physical *physical = sim_share_open((int)(intptr_t)shareable, &code);
    SIM_REFUSE_IF(!physical, code);
    SIM_REFUSE_IF(!give_handle(physical), no_host_memory(physical));
    *handle = physical->handle;
    SIM_RETURN(CUDA_SUCCESS);
}
