/*
 * Memory that other processes can be given: cuMemCreate with a handle type, its descriptors, and what a descriptor stands for. Guarded by
 * sim.lock; the state is in the files. Called by vmm.c.
 *
 * Such memory has a file of its own: the bytes in content mode (else a hole), and behind them a mark by which a descriptor is known again.
 * A simulated device lives in one process, so memory of another process costs the devices of this one nothing; and memory that its own
 * process lets go of is free at once, although a real device keeps it for as long as somebody has a descriptor.
 */
#include "sim.h"
#include "sim_inner.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct mark {
    char magic[8];
    int64_t process, device;
    uint64_t generation, number, bytes; /* generation: of the devices' configuration */
    uint64_t content;                   /* 1: the file has the bytes */
} mark;
static const char magic[8] = "simcuVMM";

static off_t end_of_bytes(uint64_t bytes) { return (off_t)((bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1)); }

bool sim_share_prepare(sim_physical *physical)
{
    mark written = {.process = getpid(),
                    .device = physical->device,
                    .generation = sim.generation,
                    .number = physical->number,
                    .bytes = physical->bytes,
                    .content = sim.content};
    memcpy(written.magic, magic, sizeof magic);
    int file = memfd_create("simcuda-shared", MFD_CLOEXEC);
    if (file < 0) {
        return false;
    }
    if (pwrite(file, &written, sizeof written, end_of_bytes(physical->bytes)) != (ssize_t)sizeof written) {
        close(file);
        return false;
    }
    return sim_content_own(physical, file);
}

int sim_share_descriptor(const sim_physical *physical) { return fcntl(physical->file, F_DUPFD_CLOEXEC, 0); }

/* Memory of this process that is still there. */
static sim_physical *own_memory(const mark *read)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_PHYSICAL, i, &object); i++) {
        sim_physical *physical = object;
        if (physical && physical->number == read->number) {
            return physical;
        }
    }
    return NULL;
}

sim_physical *sim_share_open(int descriptor, CUresult *code)
{
    mark read;
    off_t at = lseek(descriptor, 0, SEEK_END) - (off_t)sizeof read;
    *code = CUDA_ERROR_INVALID_VALUE;
    if (at < 0 || pread(descriptor, &read, sizeof read, at) != (ssize_t)sizeof read || memcmp(read.magic, magic, sizeof magic) != 0 ||
        at != end_of_bytes(read.bytes) || !sim_device_valid((CUdevice)read.device) || read.content != (uint64_t)sim.content) {
        return NULL;
    }
    bool ours = read.process == getpid() && read.generation == sim.generation;
    sim_physical *physical = ours ? own_memory(&read) : NULL;
    if (physical) {
        *code = CUDA_SUCCESS;
        return physical;
    }
    physical = sim_physical_new((int)read.device, read.bytes, ours ? read.bytes : 0, code);
    if (!physical) {
        return NULL;
    }
    int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (file < 0 || !sim_content_own(physical, file)) {
        *code = CUDA_ERROR_OUT_OF_MEMORY;
        sim_physical_unref(physical);
        return NULL;
    }
    physical->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)read.device}};
    return physical;
}
