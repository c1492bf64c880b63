/*
 * Programs with kernels of their own: what the compiler's code calls before main is accepted, since nothing happens until a launch; a
 * launch reaches the driver where that accepts kernels (kernels=accept), and is refused by name where it does not. All kernels of a
 * program are one to the driver, since none is executed. Owns that kernel, found once, and each thread's launch configuration.
 */
#include "runtime/rt.h"

#include <pthread.h>
#include <string.h>

static CUkernel the_kernel;

static void find_kernel(void)
{
    static const char image[] = "not read";
    CUlibrary library;
    if (rt.LibraryLoadData != NULL && rt.LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS) {
        rt.LibraryGetKernel(&the_kernel, library, "not executed");
    }
}

/* A way in for calls on kernels: what is said where they are not accepted is the call's own name. */
static cudaError_t enter(const char *name, int *said)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cudaError_t code = rt_load();
    if (code == cudaSuccess && !rt_accepts_kernels()) {
        rt_say_unsupported(name, said);
        return cudaErrorNotSupported;
    }
    if (code == cudaSuccess) {
        code = rt_enter();
    }
    if (code == cudaSuccess) {
        pthread_once(&once, find_kernel);
    }
    return code;
}

#define ENTER(name)         \
    ({                      \
        static int said;    \
        enter(name, &said); \
    })
#define FUNCTION ((CUfunction)(uintptr_t)the_kernel)

/* ---- registration -------------------------------------------------------------------------------------------------------------- */

RT_API void **__cudaRegisterFatBinary(void *image);
RT_API void __cudaRegisterFatBinaryEnd(void **handle);
RT_API void __cudaUnregisterFatBinary(void **handle);
RT_API void __cudaRegisterFunction(void);
RT_API void __cudaRegisterVar(void);
RT_API void __cudaRegisterManagedVar(void);
RT_API void __cudaRegisterHostVar(void);
RT_API void __cudaRegisterUnifiedTable(void);
RT_API char __cudaInitModule(void **handle);

void **__cudaRegisterFatBinary(void *image)
{
    static void *handle;
    (void)image;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

/* Their arguments, of which there are many, are left where the caller put them. */
void __cudaRegisterFunction(void) {}

void __cudaRegisterVar(void) {}

void __cudaRegisterManagedVar(void) {}

void __cudaRegisterHostVar(void) {}

void __cudaRegisterUnifiedTable(void) {}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

/* ---- launches ------------------------------------------------------------------------------------------------------------------ */

/* What <<<...>>> says before the call of the kernel's host function, which asks for it. */
typedef struct configuration {
    struct dim3 grid, block;
    size_t shared;
    CUstream stream;
} configuration;
static __thread configuration pushed[4];
static __thread unsigned pushed_count;

RT_API unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, CUstream stream);
unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, CUstream stream)
{
    if (pushed_count == sizeof pushed / sizeof *pushed) {
        return 1;
    }
    pushed[pushed_count++] = (configuration){grid, block, shared, stream};
    return 0;
}

RT_API cudaError_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, CUstream *stream);
cudaError_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, CUstream *stream)
{
    if (pushed_count == 0) {
        return rt_leave(cudaErrorInvalidValue);
    }
    const configuration *top = &pushed[--pushed_count];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *stream = top->stream;
    return cudaSuccess;
}

static cudaError_t launch(cudaError_t code, struct dim3 grid, struct dim3 block, size_t shared, CUstream stream)
{
    if (code == cudaSuccess) {
        code = RT_CALL(LaunchKernel, (FUNCTION, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, NULL, NULL));
    }
    return rt_leave(code);
}

/* All forms of a launch: the kernel by its host function or by a handle. */
#define LAUNCH(name)                                                                                                                    \
    RT_API cudaError_t name(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, CUstream stream); \
    cudaError_t name(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, CUstream stream)         \
    {                                                                                                                                   \
        (void)kernel, (void)arguments;                                                                                                  \
        return launch(ENTER(#name), grid, block, shared, stream);                                                                       \
    }                                                                                                                                   \
    RT_API cudaError_t name##_ptsz(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared,            \
                                   CUstream stream);                                                                                    \
    cudaError_t name##_ptsz(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, CUstream stream)  \
    {                                                                                                                                   \
        (void)kernel, (void)arguments;                                                                                                  \
        return launch(ENTER(#name "_ptsz"), grid, block, shared, rt_per_thread(stream));                                                \
    }
LAUNCH(cudaLaunchKernel)
LAUNCH(cudaLaunchCooperativeKernel)
LAUNCH(__cudaLaunchKernel)

RT_API cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_st *how, const void *kernel, void **arguments);
cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_st *how, const void *kernel, void **arguments)
{
    (void)kernel, (void)arguments;
    cudaError_t code = ENTER("cudaLaunchKernelExC");
    if (code == cudaSuccess && how == NULL) {
        code = cudaErrorInvalidValue;
    }
    return code == cudaSuccess ? launch(code, how->gridDim, how->blockDim, how->dynamicSmemBytes, how->stream) : rt_leave(code);
}

RT_API cudaError_t cudaLaunchKernelExC_ptsz(const struct cudaLaunchConfig_st *how, const void *kernel, void **arguments);
cudaError_t cudaLaunchKernelExC_ptsz(const struct cudaLaunchConfig_st *how, const void *kernel, void **arguments)
{
    (void)kernel, (void)arguments;
    cudaError_t code = ENTER("cudaLaunchKernelExC_ptsz");
    if (code == cudaSuccess && how == NULL) {
        code = cudaErrorInvalidValue;
    }
    return code == cudaSuccess ? launch(code, how->gridDim, how->blockDim, how->dynamicSmemBytes, rt_per_thread(how->stream))
                               : rt_leave(code);
}

/* ---- about kernels ------------------------------------------------------------------------------------------------------------- */

RT_API cudaError_t __cudaGetKernel(CUkernel *found, const void *function);
cudaError_t __cudaGetKernel(CUkernel *found, const void *function)
{
    (void)function;
    cudaError_t code = ENTER("__cudaGetKernel");
    if (code == cudaSuccess) {
        *found = the_kernel;
    }
    return rt_leave(code);
}

RT_API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    cudaError_t code = ENTER("cudaFuncGetAttributes");
    if (code == cudaSuccess && attributes == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code != cudaSuccess) {
        return rt_leave(code);
    }
    int value = 0;
    memset(attributes, 0, sizeof *attributes);
#define GET(field, attribute)                                              \
    if (code == cudaSuccess) {                                             \
        code = RT_CALL(FuncGetAttribute, (&value, (attribute), FUNCTION)); \
        attributes->field = (__typeof__(attributes->field))value;          \
    }
    GET(maxThreadsPerBlock, 0)
    GET(sharedSizeBytes, 1)
    GET(constSizeBytes, 2)
    GET(localSizeBytes, 3)
    GET(numRegs, 4)
    GET(ptxVersion, 5)
    GET(binaryVersion, 6)
    GET(cacheModeCA, 7)
    GET(maxDynamicSharedSizeBytes, 8)
    GET(preferredShmemCarveout, 9)
#undef GET
    return rt_leave(code);
}

RT_API cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value);
cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    (void)function;
    cudaError_t code = ENTER("cudaFuncSetAttribute");
    if (code == cudaSuccess) {
        code = RT_CALL(FuncSetAttribute, (FUNCTION, (unsigned)attribute, value));
    }
    return rt_leave(code);
}

RT_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared,
                                                                          unsigned int flags);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared,
                                                                   unsigned int flags)
{
    (void)function;
    cudaError_t code = ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    if (code == cudaSuccess) {
        code = RT_CALL(OccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (blocks, FUNCTION, threads, shared, flags));
    }
    return rt_leave(code);
}

RT_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
