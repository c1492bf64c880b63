/*
 * Physical memory: capacity, touch records, and in content mode the bytes, which are regions of one memory file. Guarded by sim.lock;
 * called by mapping.c and vmm.c.
 */
#include "sim.h"
#include "sim_inner.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Regions of the file are reused by exact size, so it may get longer than the devices are large: this much. */
#define FILE_FACTOR 8

typedef struct spare_region {
    struct spare_region *next;
    uint64_t offset, bytes;
} spare_region;

static struct {
    int file; /* 0: not open yet */
    uint8_t *view;
    uint64_t bytes, used;
    spare_region *spare;
} content;

static bool open_file(void)
{
    if (content.file)
        return true;
    uint64_t bytes = 0;
    for (int i = 0; i < sim.device_count; i++)
        bytes += sim.devices[i].capacity * FILE_FACTOR;
    int file = memfd_create("simcuda", MFD_CLOEXEC);
    if (file < 0)
        return false;
    void *view = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0)
        view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (view == MAP_FAILED) {
        close(file);
        return false;
    }
    content.file = file;
    content.view = view;
    content.bytes = bytes;
    content.used = 0;
    return true;
}

static uint64_t rounded(uint64_t bytes) { return (bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1); }

static bool take_region(sim_physical *physical)
{
    uint64_t bytes = rounded(physical->bytes);
    if (!open_file())
        return false;
    physical->content = UINT64_MAX;
    for (spare_region **link = &content.spare; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes) {
            spare_region *region = *link;
            physical->content = region->offset;
            *link = region->next;
            free(region);
            break;
        }
    if (physical->content == UINT64_MAX) {
        if (content.used + bytes > content.bytes)
            return false;
        physical->content = content.used;
        content.used += bytes;
    }
    physical->view = content.view + physical->content;
    return true;
}

static void give_region(const sim_physical *physical)
{
    uint64_t bytes = rounded(physical->bytes);
    fallocate(content.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->content, (off_t)bytes);
    spare_region *region = malloc(sizeof *region);
    if (!region)
        return;
    *region = (spare_region){content.spare, physical->content, bytes};
    content.spare = region;
}

/* From here on the bytes are those of a file of its own, which is taken over. false: as before, and the file is closed. */
bool sim_content_own(sim_physical *physical, int file)
{
    if (physical->view) {
        void *view = mmap(NULL, rounded(physical->bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (view == MAP_FAILED) {
            close(file);
            return false;
        }
        give_region(physical);
        physical->content = 0;
        physical->view = view;
    }
    physical->file = file;
    return true;
}

static void give_own_file(const sim_physical *physical)
{
    if (physical->view)
        munmap(physical->view, rounded(physical->bytes));
    close(physical->file);
}

/* bytes of memory of which `charge` count against the device's capacity. */
sim_physical *sim_physical_new(int device, uint64_t bytes, uint64_t charge, CUresult *code)
{
    *code = CUDA_ERROR_OUT_OF_MEMORY;
    sim_device *owner = device >= 0 ? &sim.devices[device] : NULL;
    if (owner && (owner->refuse || charge > sim_device_free(device)))
        return NULL;
    sim_physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return NULL;
    physical->bytes = bytes;
    physical->device = device;
    physical->number = ++sim.next_id;
    physical->charge = charge;
    physical->page_count = (uint32_t)(rounded(bytes) >> sim.page_shift);
    physical->pages = &physical->inner;
    if (physical->page_count > 1 && !(physical->pages = calloc(physical->page_count, sizeof *physical->pages))) {
        free(physical);
        return NULL;
    }
    if (owner && sim.content && !take_region(physical)) {
        if (physical->pages != &physical->inner)
            free(physical->pages);
        free(physical);
        return NULL;
    }
    if (owner) {
        owner->used += charge;
        if (owner->used > owner->peak_used)
            owner->peak_used = owner->used;
    }
    *code = CUDA_SUCCESS;
    return physical;
}

void sim_physical_unref(sim_physical *physical)
{
    if (physical->handles || physical->mappings)
        return;
    for (uint32_t i = 0; i < physical->page_count; i++)
        sim_page_clear(&physical->pages[i]);
    if (physical->pages != &physical->inner)
        free(physical->pages);
    if (physical->device >= 0) {
        sim.devices[physical->device].used -= physical->charge;
        if (physical->file)
            give_own_file(physical);
        else if (physical->view)
            give_region(physical);
    }
    if (physical->created) {
        sim.handles--;
        sim.handle_bytes -= physical->bytes;
    }
    free(physical);
}

sim_physical *sim_physical_of(uint64_t handle)
{
    sim_physical *physical = sim_handle_get(SIM_PHYSICAL, handle);
    if (physical && physical->dormant) {
        sim_find(SIMCUDA_USE_AFTER_DESTROY, "memory handle 0x%llx was released before", (unsigned long long)handle);
        return NULL;
    }
    return physical;
}

uint64_t sim_device_free(int device)
{
    const sim_device *owner = &sim.devices[device];
    uint64_t taken = owner->used + owner->sibling;
    return taken < owner->capacity ? owner->capacity - taken : 0;
}

bool sim_content_map(uint64_t address, const sim_physical *physical, uint64_t bytes)
{
    if (!physical->view || physical->device < 0)
        return true;
    return mmap((void *)(uintptr_t)address, rounded(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                physical->file ? physical->file : content.file, (off_t)physical->content) != MAP_FAILED;
}

void sim_content_unmap(uint64_t address, uint64_t bytes)
{
    if (mmap((void *)(uintptr_t)address, rounded(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        abort(); /* an address that still shows old bytes would hide errors */
}

void sim_physical_reset(void)
{
    while (content.spare) {
        spare_region *region = content.spare;
        content.spare = region->next;
        free(region);
    }
    if (content.file) {
        munmap(content.view, content.bytes);
        close(content.file);
    }
    memset(&content, 0, sizeof content);
}
