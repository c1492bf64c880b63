/*
 * What the examples share: the handful of CUDA driver calls a small program needs, found at run time so that no toolkit is needed to build,
 * and a check for statuses. Runs on a real driver and on simcuda alike: CUDAMEMPOOL_DRIVER names another libcuda.so.1, as for the library.
 * A program of your own would include <cuda.h> or <cuda_runtime.h> instead of this file.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <cudamempool/cudamempool.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB(n) ((size_t)(n) << 20)

/* Driver calls return 0 when all is well; context and stream are handles, device memory is a 64-bit address. */
#define DRIVER_CALLS(CALL)                                                       \
    CALL(cuInit, (unsigned flags))                                               \
    CALL(cuDeviceGet, (int *device, int ordinal))                                \
    CALL(cuDevicePrimaryCtxRetain, (void **context, int device))                 \
    CALL(cuDevicePrimaryCtxRelease_v2, (int device))                             \
    CALL(cuCtxSetCurrent, (void *context))                                       \
    CALL(cuStreamCreate, (cmpool_stream * stream, unsigned flags))               \
    CALL(cuStreamDestroy_v2, (cmpool_stream stream))                             \
    CALL(cuStreamSynchronize, (cmpool_stream stream))                            \
    CALL(cuStreamWaitEvent, (cmpool_stream stream, void *event, unsigned flags)) \
    CALL(cuEventCreate, (void **event, unsigned flags))                          \
    CALL(cuEventRecord, (void *event, cmpool_stream stream))                     \
    CALL(cuEventDestroy_v2, (void *event))                                       \
    CALL(cuMemsetD8Async, (unsigned long long address, unsigned char byte, size_t bytes, cmpool_stream stream))

#define DECLARE(name, params) static int(*name) params;
DRIVER_CALLS(DECLARE)
#undef DECLARE

static void *driver_library;

/* Stop with a clear message unless what the program says about itself is true. */
static inline void expect(int holds, const char *claim)
{
    if (!holds) {
        fprintf(stderr, "not true: %s\n", claim);
        exit(1);
    }
}

/* Every call returns a status, and cmpool_last_error() has what is behind it. */
static inline void check(cmpool_status status)
{
    if (status != CMPOOL_OK) {
        const cmpool_error *error = cmpool_last_error();
        fprintf(stderr, "%s: %s (%s)%s%s\n", error->call, cmpool_status_name(status), cmpool_status_text(status),
                error->driver_call[0] ? ", driver call " : "", error->driver_call);
        exit(1);
    }
}

static inline void check_driver(int code, const char *call)
{
    if (code != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", call, code);
        exit(1);
    }
}

/* Load the driver and make device 0's primary context current: the one that the CUDA runtime uses too. */
static inline void start_cuda(void)
{
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    driver_library = dlopen(path && path[0] ? path : "libcuda.so.1", RTLD_NOW);
    if (!driver_library) {
        fprintf(stderr, "no CUDA driver: %s\nwithout a GPU, set CUDAMEMPOOL_DRIVER to the simcuda/libcuda.so.1 of the build folder\n",
                dlerror());
        exit(3);
    }
    void *address;
#define FIND(name, params)                            \
    address = dlsym(driver_library, #name);           \
    expect(address != NULL, "the driver has " #name); \
    memcpy(&name, &address, sizeof address);
    DRIVER_CALLS(FIND)
#undef FIND
    int device;
    void *context;
    check_driver(cuInit(0), "cuInit");
    check_driver(cuDeviceGet(&device, 0), "cuDeviceGet");
    check_driver(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check_driver(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* A stream that does not wait for the legacy default stream. */
static inline cmpool_stream new_stream(void)
{
    enum { NON_BLOCKING = 1 };
    cmpool_stream stream;
    check_driver(cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    return stream;
}

/* The handle dies: the pool is told first, so that what was freed on the stream is covered while it lives. */
static inline void end_stream(cmpool_stream stream)
{
    check(cmpool_stream_retire(0, stream));
    check_driver(cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

/* The examples have no kernels; a fill on the stream uses the memory just as one would. */
static inline void use(void *block, size_t bytes, cmpool_stream stream)
{
    check_driver(cuMemsetD8Async((unsigned long long)(size_t)block, 0x5A, bytes, stream), "cuMemsetD8Async");
}

/* What `later` is given from now on comes after what `earlier` was given until now. */
static inline void order(cmpool_stream earlier, cmpool_stream later)
{
    enum { WITHOUT_TIMING = 2 };
    void *event;
    check_driver(cuEventCreate(&event, WITHOUT_TIMING), "cuEventCreate");
    check_driver(cuEventRecord(event, earlier), "cuEventRecord");
    check_driver(cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
    check_driver(cuEventDestroy_v2(event), "cuEventDestroy");
}

static inline cmpool_stats stats_of(cmpool_t pool)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    check(cmpool_stats_get(pool, &stats));
    return stats;
}

/* The simulated device compares every use of a byte with the earlier ones; a real device cannot tell. Ends the example. */
static inline int finish(void)
{
    check_driver(cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
    unsigned long long (*races)(void);
    void *address = dlsym(driver_library, "simcuda_races");
    memcpy(&races, &address, sizeof races);
    if (!address) {
        printf("A real device: nobody looks for races.\n");
        return 0;
    }
    unsigned long long found = races();
    printf("Simulated device: %llu races.\n", found);
    return found ? 1 : 0;
}

#endif
