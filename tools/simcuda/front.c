/*
 * Who stands in front of the driver: a library that was preloaded and has the driver's names. No driver is replaced by another under a
 * program, but tests put one device in the place of another; before they do, the one in front is told as by a program that is done:
 * contexts are destroyed, primary ones reset and released, through the names that the process sees. Owns nothing; called without sim.lock
 * by configuration.
 */
#include "sim.h"
#include "sim_inner.h"

#include <dlfcn.h>
#include <string.h>

enum { MOST_CONTEXTS = 64, MOST_RETAINS = 1000 };

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context);

/* The contexts that programs made, and the devices whose primary one is there. */
static size_t collect(CUcontext *contexts, uint64_t *devices)
{
    void *object;
    size_t count = 0;
    uint64_t start = sim_panel_enter();
    for (size_t i = 0; sim.initialised && sim_handle_at(SIM_CONTEXT, i, &object); i++) {
        const sim_context *context = object;
        if (!context) /* destroyed */
            continue;
        if (context->primary)
            *devices |= UINT64_C(1) << context->device;
        else if (count < MOST_CONTEXTS)
            contexts[count++] = SIM_AS_HANDLE(CUcontext, context->handle);
    }
    sim_panel_leave(start);
    return count;
}

/* What the process finds under a name of the driver. RTLD_DEFAULT would begin with this library, which is linked with -Bsymbolic. */
#define FIND(name, to)                                       \
    do {                                                     \
        void *found_ = dlsym(dlopen(NULL, RTLD_LAZY), name); \
        memcpy(&(to), &found_, sizeof found_);               \
    } while (0)

void sim_front_leave(void)
{
    __typeof__(cuCtxDestroy_v2) *destroy;
    __typeof__(cuDevicePrimaryCtxReset_v2) *reset, *release;
    FIND("cuCtxDestroy_v2", destroy);
    FIND("cuDevicePrimaryCtxReset_v2", reset);
    FIND("cuDevicePrimaryCtxRelease_v2", release);
    if (!destroy || destroy == cuCtxDestroy_v2 || !reset || !release)
        return;
    CUcontext contexts[MOST_CONTEXTS];
    uint64_t devices = 0;
    size_t count = collect(contexts, &devices);
    for (size_t i = 0; i < count; i++)
        (void)destroy(contexts[i]);
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        if (!(devices >> i & 1))
            continue;
        (void)reset(i);
        for (int left = MOST_RETAINS; left && release(i) == CUDA_SUCCESS; left--) {}
    }
}
