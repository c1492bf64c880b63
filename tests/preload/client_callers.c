/*
 * A program that opens libraries one after the other, and says for each whether the memory it takes came from the driver itself (the count
 * of the driver's calls rises) or from the pool, and then whether another process can be given it. Arguments: paths of libraries made from
 * caller.c.
 */
#include "driver/driver_abi.h"

#include "simcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

CUresult CUDAAPI cuInit(unsigned flags);
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context);
CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address);
CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult CUDAAPI cuMemExportToShareableHandle(void *descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                              unsigned long long flags);
CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle);

typedef int (*take_function)(void **pointer, size_t bytes);

static int own_take(void **pointer, size_t bytes)
{
    CUdeviceptr address = 0;
    int code = (int)cuMemAlloc_v2(&address, bytes);
    *pointer = (void *)(uintptr_t)address;
    return code;
}

/* A descriptor of the memory can be had, as a program does that hands it to another process. */
static int can_be_shared(void *block)
{
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;
    if (cuMemRetainAllocationHandle(&handle, block)) {
        return 0;
    }
    int code = (int)cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)cuMemRelease(handle);
    return code == 0 && close(descriptor) == 0;
}

static void say(const char *who, take_function take)
{
    static const size_t sizes[] = {4096, 1 << 20};
    for (int i = 0; i < 2; i++) {
        void *block = NULL;
        unsigned long long before = simcuda_calls_of("cuMemAlloc_v2");
        int code = take(&block, sizes[i]);
        unsigned long long calls = simcuda_calls_of("cuMemAlloc_v2") - before;
        const char *source = calls ? "driver" : can_be_shared(block) ? "shared" : "pool";
        printf("%s, %zu bytes: %d, %s, freed %d\n", who, sizes[i], code, source, (int)cuMemFree_v2((CUdeviceptr)(uintptr_t)block));
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
        return 3;
    }
    say("program", own_take);
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        void *found = library ? dlsym(library, "caller_take") : NULL;
        take_function take;
        if (!found) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        memcpy(&take, &found, sizeof found);
        const char *slash = strrchr(argv[i], '/');
        say(slash ? slash + 1 : argv[i], take);
        for (int j = 1; j < i; j++) { /* those that are open already, again */
            found = dlsym(dlopen(argv[j], RTLD_NOW | RTLD_NOLOAD), "caller_take");
            memcpy(&take, &found, sizeof found);
            slash = strrchr(argv[j], '/');
            say(slash ? slash + 1 : argv[j], take);
        }
    }
    return 0;
}
