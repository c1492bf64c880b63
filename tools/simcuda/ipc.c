/*
 * Inter-process handles of memory and events. A simulated device lives in one process, so what another process exported is here memory of
 * the same size that nobody else writes; with content mode, where that would show, opening is refused. Guarded by sim.lock. Called by
 * programs.
 */
#include "sim_graph.h"
#include "sim_inner.h"
#include "sim_other.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is in the 64 opaque bytes. */
typedef struct ipc_handle {
    char magic[8];
    int64_t process;
    uint64_t unique, bytes;
    int64_t device;
    uint64_t event;
} ipc_handle;
_Static_assert(sizeof(ipc_handle) <= CU_IPC_HANDLE_SIZE, "an IPC handle has 64 bytes");

static const char memory_magic[8] = "simcuMEM", event_magic[8] = "simcuEVT";

/* Memory opened from another process. */
typedef struct opened {
    struct opened *next;
    ipc_handle handle;
    sim_mapping *mapping;
    uint64_t count;
} opened;
static opened *opened_list;

void sim_ipc_reset(void)
{
    while (opened_list != NULL) {
        opened *first = opened_list;
        opened_list = first->next;
        free(first); /* the mapping ends with all others */
    }
}

static void pack(char out[CU_IPC_HANDLE_SIZE], const char magic[8], const ipc_handle *from)
{
    ipc_handle packed = *from;
    memcpy(packed.magic, magic, sizeof packed.magic);
    packed.process = getpid();
    memset(out, 0, CU_IPC_HANDLE_SIZE);
    memcpy(out, &packed, sizeof packed);
}

static bool unpack(ipc_handle *to, const char magic[8], const char in[CU_IPC_HANDLE_SIZE])
{
    memcpy(to, in, sizeof *to);
    return memcmp(to->magic, magic, sizeof to->magic) == 0;
}

/* Addresses and a mapping for memory that this process's devices do not pay for. */
static sim_mapping *foreign_memory(int device, uint64_t bytes, CUresult *code)
{
    sim_physical *physical = sim_physical_new(device, bytes, 0, code);
    if (physical == NULL) {
        return NULL;
    }
    *code = CUDA_ERROR_MAP_FAILED;
    uint64_t span = (bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1);
    uint64_t address = sim_address_take(span, sim.page_bytes, 0);
    sim_mapping *mapping = address ? sim_mapping_new(address, bytes, physical, SIM_MEMORY_IPC) : NULL;
    if (mapping == NULL) {
        if (address != 0) {
            sim_address_give(address, span);
        }
        sim_physical_unref(physical);
    }
    return mapping;
}

static CUresult open_memory(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned flags)
{
    ipc_handle from;
    if (address == NULL || flags != 1) { /* cuda.h: must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!unpack(&from, memory_magic, handle->reserved) || !sim_device_valid((CUdevice)from.device)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (from.process == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (sim.content) {
        static int said;
        return sim_unsupported("cuIpcOpenMemHandle with contents", &said);
    }
    for (opened *at = opened_list; at != NULL; at = at->next) {
        if (memcmp(&at->handle, &from, sizeof from) == 0) {
            at->count++;
            *address = at->mapping->address;
            return CUDA_SUCCESS;
        }
    }
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    opened *made = calloc(1, sizeof *made);
    sim_mapping *mapping = made ? foreign_memory((int)from.device, from.bytes, &code) : NULL;
    if (mapping == NULL) {
        free(made);
        return code;
    }
    *made = (opened){opened_list, from, mapping, 1};
    opened_list = made;
    mapping->owner = made;
    *address = mapping->address;
    return CUDA_SUCCESS;
}

/* ---- entry points ------------------------------------------------------------------------------------------------------------- */

/* An address inside the allocation gives the handle of its base, as drivers do; VMM and pool memory have none. */
SIM_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    SIM_ENTER("cuIpcGetMemHandle");
    (void)SIM_NEED_CONTEXT();
    const sim_mapping *mapping = sim_mapping_find(address);
    SIM_REFUSE_IF(handle == NULL || mapping == NULL || mapping->kind != SIM_MEMORY_ALLOC, CUDA_ERROR_INVALID_VALUE);
    pack(handle->reserved, memory_magic,
         &(ipc_handle){.unique = mapping->buffer_id, .bytes = mapping->bytes, .device = mapping->physical->device});
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    SIM_ENTER("cuIpcOpenMemHandle");
    (void)SIM_NEED_CONTEXT();
    SIM_RETURN(open_memory(address, &handle, flags));
}

SIM_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    SIM_ENTER("cuIpcOpenMemHandle_v2");
    (void)SIM_NEED_CONTEXT();
    SIM_RETURN(open_memory(address, &handle, flags));
}

SIM_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
    SIM_ENTER("cuIpcCloseMemHandle");
    (void)SIM_NEED_CONTEXT();
    for (opened **link = &opened_list; *link != NULL; link = &(*link)->next) {
        opened *at = *link;
        if (at->mapping->address != address) {
            continue;
        }
        if (--at->count == 0) {
            *link = at->next;
            sim_check_free(at->mapping);
            sim_memory_delete(at->mapping);
            free(at);
        }
        SIM_RETURN(CUDA_SUCCESS);
    }
    SIM_RETURN(CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    const unsigned needed = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    SIM_ENTER("cuIpcGetEventHandle");
    CUresult code;
    const sim_event *found = sim_event_of(event, &code);
    SIM_REFUSE_IF(found == NULL, code);
    SIM_REFUSE_IF(handle == NULL || (found->flags & needed) != needed, CUDA_ERROR_INVALID_VALUE);
    pack(handle->reserved, event_magic, &(ipc_handle){.event = found->handle});
    SIM_RETURN(CUDA_SUCCESS);
}

/* Another process's event says nothing that this process's device could wait for. */
SIM_EXPORT CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    SIM_ENTER("cuIpcOpenEventHandle");
    (void)SIM_NEED_CONTEXT();
    ipc_handle from;
    SIM_REFUSE_IF(event == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!unpack(&from, event_magic, handle.reserved), CUDA_ERROR_INVALID_HANDLE);
    SIM_REFUSE_IF(from.process == getpid(), CUDA_ERROR_INVALID_CONTEXT);
    static int said;
    SIM_RETURN(sim_unsupported("cuIpcOpenEventHandle", &said));
}
