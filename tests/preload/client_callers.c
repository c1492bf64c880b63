/*
 * A program that opens libraries one after the other, and says for each whether the memory it takes came from the driver itself: the count
 * of the driver's calls rises. Arguments: paths of libraries made from caller.c.
 */
#include "driver/driver_abi.h"

#include "simcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

CUresult CUDAAPI cuInit(unsigned flags);
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context);
CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address);

typedef int (*take_function)(void **pointer, size_t bytes);

static int own_take(void **pointer, size_t bytes)
{
    CUdeviceptr address = 0;
    int code = (int)cuMemAlloc_v2(&address, bytes);
    *pointer = (void *)(uintptr_t)address;
    return code;
}

static void say(const char *who, take_function take)
{
    static const size_t sizes[] = {4096, 1 << 20};
    for (int i = 0; i < 2; i++) {
        void *block = NULL;
        unsigned long long before = simcuda_calls_of("cuMemAlloc_v2");
        int code = take(&block, sizes[i]);
        unsigned long long calls = simcuda_calls_of("cuMemAlloc_v2") - before;
        printf("%s, %zu bytes: %d, %s, freed %d\n", who, sizes[i], code, calls ? "driver" : "pool",
               (int)cuMemFree_v2((CUdeviceptr)(uintptr_t)block));
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
