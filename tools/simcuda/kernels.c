/*
 * Modules, libraries, kernels and launches, for programs whose results do not matter. With the word kernels=accept images load, kernels
 * are found in them under any name, and a launch is work on its stream that touches no memory: NOTHING IS EXECUTED, which is said once on
 * stderr. Without the word each call is refused by its name. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"
#include "sim_other.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTER(name)                                   \
    SIM_ENTER_UNINITIALISED(name);                    \
    do {                                              \
        static int said;                              \
        if (!sim.kernels)                             \
            SIM_RETURN(sim_unsupported(name, &said)); \
        if (!sim.initialised)                         \
            SIM_RETURN(CUDA_ERROR_NOT_INITIALIZED);   \
    } while (0)

enum { MOST_THREADS = 1024, THREADS_PER_MULTIPROCESSOR = 2048, MOST_SHARED = 227 << 10 };
/* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, _PREFERRED_SHARED_MEMORY_CARVEOUT, and the last one of CUDA 13.0 */
enum { DYNAMIC_SHARED_BYTES = 8, SHARED_CARVEOUT = 9, LAST_ATTRIBUTE = 15 };

/* A CUmodule or a CUlibrary: cuLibraryGetModule hands out the same number. */
typedef struct image {
    uint64_t handle;
    struct kernel *kernels; /* those that were asked for */
} image;

/* A CUfunction or a CUkernel: the driver's launches take either. */
typedef struct kernel {
    struct kernel *next;
    image *of;
    uint64_t handle;
    int shared_bytes, carveout; /* what a program may set */
    char name[];
} kernel;

static image *image_of(const void *handle) { return sim_handle_get(SIM_MODULE, SIM_NUMBER(handle)); }
static kernel *kernel_of(const void *handle) { return sim_handle_get(SIM_KERNEL, SIM_NUMBER(handle)); }

/* Handles are pointer types of their own; all have the size of a pointer. */
static void give(void *to, uint64_t handle)
{
    void *value = (void *)(uintptr_t)handle;
    memcpy(to, &value, sizeof value);
}

static void free_image(image *gone)
{
    while (gone->kernels) {
        kernel *next = gone->kernels->next;
        free(gone->kernels);
        gone->kernels = next;
    }
    free(gone);
}

void sim_kernels_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_MODULE, i, &object); i++)
        if (object)
            free_image(object);
}

int simcuda_accepts_kernels(void)
{
    uint64_t start = sim_panel_enter();
    if (!sim.configured)
        sim_config_default();
    int accepts = sim.kernels;
    sim_panel_leave(start);
    return accepts;
}

/* ---- images ------------------------------------------------------------------------------------------------------------------------ */

static CUresult load(void *to, const void *code)
{
    if (!to || !code)
        return CUDA_ERROR_INVALID_VALUE;
    image *made = calloc(1, sizeof *made);
    uint64_t handle = made ? sim_handle_new(SIM_MODULE, made) : 0;
    if (!handle) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->handle = handle;
    give(to, handle);
    return CUDA_SUCCESS;
}

static CUresult unload(const void *handle)
{
    image *gone = image_of(handle);
    if (!gone)
        return CUDA_ERROR_INVALID_HANDLE;
    for (kernel *each = gone->kernels; each; each = each->next)
        sim_handle_drop(SIM_KERNEL, each->handle);
    sim_handle_drop(SIM_MODULE, gone->handle);
    free_image(gone);
    return CUDA_SUCCESS;
}

/* Nobody has read the image, so every name is in it. */
static CUresult find(void *to, const void *in, const char *name)
{
    image *from = image_of(in);
    if (!from)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!to || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    kernel *found = from->kernels;
    while (found && strcmp(found->name, name) != 0)
        found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found + strlen(name) + 1);
        uint64_t number = found ? sim_handle_new(SIM_KERNEL, found) : 0;
        if (!number) {
            free(found);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *found = (kernel){.next = from->kernels, .of = from, .handle = number, .carveout = -1};
        strcpy(found->name, name);
        from->kernels = found;
    }
    give(to, found->handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *code)
{
    ENTER("cuModuleLoadData");
    (void)SIM_NEED_CONTEXT();
    SIM_RETURN(load(module, code));
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *code, unsigned int count, CUjit_option *options, void **values)
{
    ENTER("cuModuleLoadDataEx");
    (void)SIM_NEED_CONTEXT();
    (void)count, (void)options, (void)values; /* what a compiler would do with it */
    SIM_RETURN(load(module, code));
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *code)
{
    ENTER("cuModuleLoadFatBinary");
    (void)SIM_NEED_CONTEXT();
    SIM_RETURN(load(module, code));
}

SIM_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    ENTER("cuModuleUnload");
    SIM_RETURN(unload(module));
}

SIM_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER("cuModuleGetFunction");
    SIM_RETURN(find(function, module, name));
}

SIM_EXPORT CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    ENTER("cuModuleGetLoadingMode");
    SIM_REFUSE_IF(mode == NULL, CUDA_ERROR_INVALID_VALUE);
    *mode = (CUmoduleLoadingMode)2; /* CU_MODULE_LAZY_LOADING */
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                                              unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    ENTER("cuLibraryLoadData");
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    SIM_RETURN(load(library, code));
}

SIM_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    ENTER("cuLibraryUnload");
    SIM_RETURN(unload(library));
}

SIM_EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel *found, CUlibrary library, const char *name)
{
    ENTER("cuLibraryGetKernel");
    SIM_RETURN(find(found, library, name));
}

SIM_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER("cuLibraryGetModule");
    (void)SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(module == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!image_of(library), CUDA_ERROR_INVALID_HANDLE);
    give(module, SIM_NUMBER(library));
    SIM_RETURN(CUDA_SUCCESS);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------- */

SIM_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel of)
{
    ENTER("cuKernelGetFunction");
    (void)SIM_NEED_CONTEXT();
    SIM_REFUSE_IF(function == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!kernel_of(of), CUDA_ERROR_INVALID_HANDLE);
    give(function, SIM_NUMBER(of));
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction function)
{
    ENTER("cuFuncGetModule");
    const kernel *known = kernel_of(function);
    SIM_REFUSE_IF(module == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!known, CUDA_ERROR_INVALID_HANDLE);
    give(module, known->of->handle);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    ENTER("cuFuncLoad");
    SIM_RETURN(kernel_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

/* What a small kernel on this device would have. */
static CUresult get_attribute(int *value, unsigned attribute, const kernel *of)
{
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    const int values[LAST_ATTRIBUTE + 1] = {[0] = MOST_THREADS, [4] = 32, [5] = 90, [6] = 90, [8] = of->shared_bytes, [9] = of->carveout};
    *value = values[attribute];
    return CUDA_SUCCESS;
}

static CUresult set_attribute(kernel *of, unsigned attribute, int value)
{
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == DYNAMIC_SHARED_BYTES && value >= 0 && value <= MOST_SHARED)
        of->shared_bytes = value;
    else if (attribute == SHARED_CARVEOUT && value >= -1 && value <= 100)
        of->carveout = value;
    else if (attribute <= SHARED_CARVEOUT || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER("cuFuncGetAttribute");
    SIM_RETURN(get_attribute(value, attribute, kernel_of(function)));
}

SIM_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER("cuFuncSetAttribute");
    SIM_RETURN(set_attribute(kernel_of(function), attribute, value));
}

SIM_EXPORT CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel of, CUdevice device)
{
    ENTER("cuKernelGetAttribute");
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_RETURN(get_attribute(value, attribute, kernel_of(of)));
}

SIM_EXPORT CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel of, CUdevice device)
{
    ENTER("cuKernelSetAttribute");
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    SIM_RETURN(set_attribute(kernel_of(of), attribute, value));
}

static CUresult occupancy(int *blocks, const kernel *of, int threads, size_t shared)
{
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads <= 0 || threads > MOST_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    int by_threads = THREADS_PER_MULTIPROCESSOR / threads, by_shared = shared ? (int)(MOST_SHARED / shared) : by_threads;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    SIM_RETURN(occupancy(blocks, kernel_of(function), threads, shared));
}

SIM_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                                                 size_t shared, unsigned int flags)
{
    ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    (void)flags;
    SIM_RETURN(occupancy(blocks, kernel_of(function), threads, shared));
}

/* ---- launches ---------------------------------------------------------------------------------------------------------------------- */

static CUresult launch(const CUlaunchConfig *how, const kernel *what, bool per_thread)
{
    static bool said;
    CUresult code = CUDA_SUCCESS;
    if (!what)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = (uint64_t)how->blockDimX * how->blockDimY * how->blockDimZ;
    if (threads == 0 || threads > MOST_THREADS || !how->gridDimX || !how->gridDimY || !how->gridDimZ || how->sharedMemBytes > MOST_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lane *lane = sim_stream_lane(how->hStream, per_thread, &code);
    if (!lane)
        return code;
    if (!said) {
        fprintf(stderr, "simcuda: kernels are accepted and not executed\n");
        said = true;
    }
    sim_op op = {.kind = SIM_OP_TOUCH}; /* nobody knows what it would touch */
    return sim_submit(lane, &op);
}

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                              unsigned block_z, unsigned shared, CUstream stream, bool per_thread)
{
    ENTER("cuLaunchKernel");
    const CUlaunchConfig how = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    SIM_RETURN(launch(&how, kernel_of(function), per_thread));
}

static CUresult launch_cooperative(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, bool per_thread)
{
    ENTER("cuLaunchCooperativeKernel");
    const CUlaunchConfig how = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    SIM_RETURN(launch(&how, kernel_of(function), per_thread));
}

static CUresult launch_configured(const CUlaunchConfig *how, CUfunction function, bool per_thread)
{
    ENTER("cuLaunchKernelEx");
    SIM_REFUSE_IF(how == NULL, CUDA_ERROR_INVALID_VALUE);
    SIM_RETURN(launch(how, kernel_of(function), per_thread));
}

#define GRID unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z
SIM_BOTH_STREAMS(cuLaunchKernel, (CUfunction function, GRID, unsigned int shared, CUstream stream, void **arguments, void **extra),
                 ((void)arguments, (void)extra, launch_kernel), function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream)
SIM_BOTH_STREAMS(cuLaunchCooperativeKernel, (CUfunction function, GRID, unsigned int shared, CUstream stream, void **arguments),
                 ((void)arguments, launch_cooperative), function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream)
SIM_BOTH_STREAMS(cuLaunchKernelEx, (const CUlaunchConfig *how, CUfunction function, void **arguments, void **extra),
                 ((void)arguments, (void)extra, launch_configured), how, function)
