/*
 * Pointer attributes of all kinds of memory. Guarded by sim.lock; the only state is which allocations had SYNC_MEMOPS set. Called by
 * programs.
 */
#include "sim_graph.h"
#include "sim_inner.h"
#include "sim_other.h"

#include <stdlib.h>
#include <string.h>

/* Buffers for which synchronous copies always synchronise. The model's copies do anyway; programs only read the setting back. */
static struct {
    uint64_t *buffers;
    uint32_t count, room;
} synced;

void sim_attr_reset(void)
{
    free(synced.buffers);
    memset(&synced, 0, sizeof synced);
}

static bool is_synced(uint64_t buffer)
{
    for (uint32_t i = 0; i < synced.count; i++) {
        if (synced.buffers[i] == buffer) {
            return true;
        }
    }
    return false;
}

static CUresult set_synced(uint64_t buffer, bool on)
{
    if (is_synced(buffer) == on) {
        return CUDA_SUCCESS;
    }
    if (!on) {
        for (uint32_t i = 0; i < synced.count; i++) {
            if (synced.buffers[i] == buffer) {
                synced.buffers[i] = synced.buffers[--synced.count];
            }
        }
        return CUDA_SUCCESS;
    }
    if (synced.count == synced.room) {
        uint32_t room = synced.room ? synced.room * 2 : 16;
        uint64_t *more = realloc(synced.buffers, room * sizeof *more);
        if (more == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        synced.buffers = more;
        synced.room = room;
    }
    synced.buffers[synced.count++] = buffer;
    return CUDA_SUCCESS;
}

/* What an address is: mapped memory, or an address reserved and not mapped, or registered host memory. */
typedef struct target {
    const sim_mapping *mapping; /* NULL for the other two */
    const sim_range *range;     /* of cuMemAddressReserve */
    bool registered;
} target;

static bool find_target(CUdeviceptr address, target *found)
{
    found->mapping = sim_mapping_find(address);
    found->range = sim_range_find(address);
    found->registered = found->mapping == NULL && found->range == NULL && sim_host_is_pinned(address, 1);
    return found->mapping != NULL || found->range != NULL || found->registered;
}

static bool is_host(const target *found)
{
    return found->registered || (found->mapping != NULL && found->mapping->kind == SIM_MEMORY_HOST);
}

/* CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: bit 0 reads, both bits write too. */
static unsigned access_from(const target *found, const sim_context *context)
{
    if (is_host(found)) {
        return 3;
    }
    const sim_mapping *mapping = found->mapping;
    if (mapping == NULL) {
        return 0;
    }
    uint64_t here = UINT64_C(1) << context->device;
    if (mapping->kind == SIM_MEMORY_VMM || mapping->kind == SIM_MEMORY_POOL) {
        return mapping->writers & here ? 3 : mapping->readers & here ? 1 : 0;
    }
    bool peer = (context->peers >> mapping->physical->device) & 1;
    return mapping->physical->device == context->device || peer ? 3 : 0;
}

static CUresult about_range(const target *found, CUpointer_attribute attribute, void *data)
{
    const sim_mapping *mapping = found->mapping;
    if (mapping == NULL && found->range == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = found->range ? found->range->base : mapping->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = found->range ? found->range->bytes : mapping->bytes;
        return CUDA_SUCCESS;
    default:
        *(unsigned char *)data = mapping != NULL;
        return CUDA_SUCCESS;
    }
}

static CUresult about_mapping(const sim_mapping *mapping, CUpointer_attribute attribute, void *data)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* memory of VMM and pools belongs to no context */
        *(CUcontext *)data = mapping->context ? SIM_AS_HANDLE(CUcontext, mapping->context->handle) : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned char *)data = is_synced(mapping->buffer_id);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = mapping->buffer_id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = mapping->physical->device >= 0 ? mapping->physical->device : mapping->context ? mapping->context->device : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = mapping->kind == SIM_MEMORY_ALLOC;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(cuuint64_t *)data = mapping->kind == SIM_MEMORY_VMM ? (cuuint64_t)mapping->physical->prop.requestedHandleTypes : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned char *)data = sim.features[SIMCUDA_FEATURE_RDMA] &&
                                 (mapping->kind == SIM_MEMORY_ALLOC ||
                                  (mapping->kind == SIM_MEMORY_VMM && mapping->physical->prop.allocFlags.gpuDirectRDMACapable));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = sim_pool_handle(mapping);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = mapping->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = mapping->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = mapping->physical->number;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult code = CUDA_SUCCESS;
    target found;
    if (!find_target(address, &found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool backed = found.mapping != NULL || found.registered;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return about_range(&found, attribute, data);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (!backed) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(unsigned *)data = is_host(&found) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(&found)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(void **)data = (void *)(uintptr_t)address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
        const sim_context *context = sim_context_current(&code);
        if (context == NULL) {
            return code;
        }
        unsigned access = access_from(&found, context);
        if (attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) {
            *(unsigned *)data = access;
            return CUDA_SUCCESS;
        }
        if (access == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        if (!backed) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(unsigned char *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: {
        static int said;
        return sim_unsupported("CU_POINTER_ATTRIBUTE_P2P_TOKENS", &said);
    }
    default:
        return found.mapping != NULL ? about_mapping(found.mapping, attribute, data) : CUDA_ERROR_INVALID_VALUE;
    }
}

/* What cuPointerGetAttributes leaves where an attribute has no answer. */
static void set_default(void *data, CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = CU_DEVICE_INVALID;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(unsigned char *)data = 0;
        break;
    default: /* handles, addresses, sizes, ids */
        *(uint64_t *)data = 0;
        break;
    }
}

SIM_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    SIM_ENTER("cuPointerGetAttribute");
    SIM_REFUSE_IF(data == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(get_attribute(data, attribute, address));
}

SIM_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address)
{
    SIM_ENTER("cuPointerGetAttributes");
    SIM_REFUSE_IF(count == 0 || attributes == NULL || data == NULL, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        bool known = attributes[i] >= CU_POINTER_ATTRIBUTE_CONTEXT && attributes[i] <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
        SIM_REFUSE_IF(data[i] == NULL || !known, CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned i = 0; i < count; i++) {
        if (get_attribute(data[i], attributes[i], address) != CUDA_SUCCESS) {
            set_default(data[i], attributes[i]);
        }
    }
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    SIM_ENTER("cuPointerSetAttribute");
    SIM_REFUSE_IF(value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUDA_ERROR_INVALID_VALUE);
    const sim_mapping *mapping = sim_mapping_find(address);
    SIM_REFUSE_IF(mapping == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(mapping->kind != SIM_MEMORY_ALLOC, CUDA_ERROR_NOT_SUPPORTED); /* as drivers answer for VMM and pool memory */
    SIM_RETURN(set_synced(mapping->buffer_id, *(const unsigned *)value != 0));
}
