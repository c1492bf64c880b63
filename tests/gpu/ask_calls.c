/*
 * Questions to the driver about memory as programs without the library have it: codes of right and wrong calls, alignment, what a free
 * waits for, contexts and resets. What is told here of the plain driver is what the preload library has to be like. Part "calls" of
 * tools/gpu-check.sh.
 */
#include "gpu.h"

#include <pthread.h>
#include <stdio.h>

/* ---- codes -----------------------------------------------------------------------------------------------------------------------------
 */

static void *free_elsewhere(void *block)
{
    static CUresult code;
    code = cu.MemFree(*(CUdeviceptr *)block); /* this thread has no context */
    return &code;
}

static void codes(void)
{
    CUdeviceptr block, large, kept = 42;
    CUresult code[6];
    void *answer;
    int host = 0;
    pthread_t thread;
    code[0] = cu.MemAlloc(&kept, 0);
    code[1] = cu.MemAlloc(&kept, (size_t)1 << 60);
    gpu_answer("cuMemAlloc of 0 bytes", "%s, the result is %s", gpu_code(code[0]), kept == 42 ? "untouched" : "written");
    gpu_answer("cuMemAlloc of 2^60 bytes", "%s", gpu_code(code[1]));
    gpu_answer("cuMemFree of 0", "%s", gpu_code(cu.MemFree(0)));
    MUST(cu.MemAlloc(&block, 5000));
    MUST(cu.MemAlloc(&large, 8 * MIB));
    code[0] = cu.MemFree(block + 512);
    code[1] = cu.MemFree(large + 2 * MIB);
    code[2] = cu.MemFree(block);
    code[3] = cu.MemFree(block);
    code[4] = cu.MemFree(large);
    code[5] = cu.MemFree(large);
    gpu_answer("cuMemFree inside a block", "small %s, large %s", gpu_code(code[0]), gpu_code(code[1]));
    gpu_answer("cuMemFree twice", "small %s and %s, large %s and %s", gpu_code(code[2]), gpu_code(code[3]), gpu_code(code[4]),
               gpu_code(code[5]));
    gpu_answer("cuMemFree of a host address", "%s", gpu_code(cu.MemFree((CUdeviceptr)(uintptr_t)&host)));
    MUST(cu.MemAlloc(&block, 4096));
    EXPECT(pthread_create(&thread, NULL, free_elsewhere, &block) == 0, "no thread");
    pthread_join(thread, &answer);
    gpu_answer("cuMemFree in a thread without a context", "%s", gpu_code(*(CUresult *)answer));
    if (*(CUresult *)answer != CUDA_SUCCESS)
        MUST(cu.MemFree(block));
    code[0] = cu.MemAllocManaged(&block, 4096, 1);
    if (code[0] == CUDA_SUCCESS)
        gpu_answer("cuMemFree of managed memory", "%s", gpu_code(cu.MemFree(block)));
    else
        gpu_no_answer("cuMemFree of managed memory", "cuMemAllocManaged gives %s", gpu_code(code[0]));
}

/* Memory of the two kinds of calls, given to the free of the other kind. */
static void frees_of_the_other_kind(void)
{
    CUdeviceptr block;
    CUstream stream = gpu_stream();
    if (!cu.MemAllocAsync || !gpu_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)) {
        gpu_no_answer("cuMemFreeAsync of cuMemAlloc memory", "the device has no memory pools");
        return;
    }
    MUST(cu.MemAlloc(&block, MIB));
    CUresult code = cu.MemFreeAsync(block, stream);
    gpu_answer("cuMemFreeAsync of cuMemAlloc memory", "%s", gpu_code(code));
    if (code != CUDA_SUCCESS)
        MUST(cu.MemFree(block));
    MUST(cu.MemAllocAsync(&block, MIB, stream));
    MUST(cu.StreamSynchronize(stream));
    code = cu.MemFree(block);
    gpu_answer("cuMemFree of cuMemAllocAsync memory", "%s", gpu_code(code));
    if (code != CUDA_SUCCESS)
        MUST(cu.MemFreeAsync(block, stream));
    MUST(cu.StreamSynchronize(stream));
}

static void alignment(void)
{
    enum { EACH = 8 };
    CUdeviceptr block[EACH], all, smallest = 0;
    size_t of = 0, pitch = 0;
    for (size_t bytes = 1; bytes <= 4 * MIB; bytes *= 2) {
        all = 0;
        for (unsigned i = 0; i < EACH; i++) {
            MUST(cu.MemAlloc(&block[i], bytes));
            all |= block[i];
        }
        for (unsigned i = 0; i < EACH; i++)
            MUST(cu.MemFree(block[i]));
        all &= -all;
        if (smallest == 0 || all < smallest) {
            smallest = all;
            of = bytes;
        }
    }
    gpu_answer("alignment of cuMemAlloc", "%llu bytes at least (for %zu bytes); textures want %d, surfaces %d", smallest, of,
               gpu_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT), gpu_attribute(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT));
    MUST(cu.MemAllocPitch(&block[0], &pitch, 1000, 100, 4));
    MUST(cu.MemFree(block[0]));
    gpu_answer("pitch of cuMemAllocPitch", "%zu for 1000 bytes", pitch);
}

static void attributes(void)
{
    static const size_t sizes[] = {700, 5 * MIB + 3};
    for (unsigned i = 0; i < 2; i++) {
        CUdeviceptr block, base = 0, range = 0;
        size_t bytes = 0, range_bytes = 0;
        CUcontext context = NULL;
        char name[60];
        MUST(cu.MemAlloc(&block, sizes[i]));
        MUST(cu.MemGetAddressRange(&base, &bytes, block + 100));
        MUST(cu.PointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block));
        MUST(cu.PointerGetAttribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block));
        MUST(cu.PointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block));
        snprintf(name, sizeof name, "attributes of a cuMemAlloc of %zu bytes", sizes[i]);
        gpu_answer(name, "base %+lld, %zu bytes; range %+lld, %zu bytes; context %s", (long long)(base - block), bytes,
                   (long long)(range - block), range_bytes,
                   context == gpu_context ? "the primary one"
                   : context              ? "another"
                                          : "none");
        MUST(cu.MemFree(block));
    }
}

/* Apart, since memory of the library has no legacy IPC. */
static void ipc_attribute(void)
{
    CUdeviceptr block;
    int capable = 0;
    MUST(cu.MemAlloc(&block, 8 * MIB));
    CUresult code = cu.PointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block);
    gpu_answer("IPC attribute of cuMemAlloc memory", "%s: %s", gpu_code(code), capable & 1 ? "capable" : "not capable");
    MUST(cu.MemFree(block));
}

/* Others on the device may disturb it. */
static void free_memory(void)
{
    CUdeviceptr block;
    size_t before = gpu_free_bytes();
    MUST(cu.MemAlloc(&block, 64 * MIB));
    size_t during = gpu_free_bytes();
    MUST(cu.MemFree(block));
    gpu_answer("free memory while 64 MiB are taken", "%lld MiB less, %lld MiB less afterwards", (long long)(before - during) >> 20,
               (long long)(before - gpu_free_bytes()) >> 20);
}

/* ---- what a free waits for --------------------------------------------------------------------------------------------------------------
 */

static void waits_of_frees(void)
{
    static const size_t sizes[] = {4096, 64 << 10, MIB, 16 * MIB, 256 * MIB, GIB};
    CUstream busy = gpu_stream();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[80];
        CUdeviceptr block;
        if (sizes[i] > gpu_free_bytes() / 4)
            break;
        MUST(cu.MemAlloc(&block, sizes[i]));
        int gate = gpu_gate_close(busy, UINT64_C(100000000));
        double start = gpu_now_us();
        CUresult code = cu.MemFree(block);
        double us = gpu_now_us() - start;
        gpu_gate_open(gate);
        MUST(cu.StreamSynchronize(busy));
        EXPECT(code == CUDA_SUCCESS, "cuMemFree gave %s", gpu_code(code));
        snprintf(name, sizeof name, "cuMemFree of %zu KiB beside another stream's kernel", sizes[i] >> 10);
        gpu_figure(name, us, "us", gpu_gate_gave_up(gate) ? "waits for it" : "does not wait");
    }
}

/* ---- contexts ---------------------------------------------------------------------------------------------------------------------------
 */

static void destroyed_context(void)
{
    CUcontext context;
    CUdeviceptr block;
    CUresult code = cu.CtxCreate ? cu.CtxCreate(&context, NULL, 0, 0) : CUDA_ERROR_NOT_SUPPORTED;
    if (code != CUDA_SUCCESS) {
        gpu_no_answer("memory of a destroyed context", "cuCtxCreate gives %s", gpu_code(code));
        return;
    }
    MUST(cu.MemAlloc(&block, 8 * MIB));
    MUST(cu.CtxDestroy(context));
    MUST(cu.CtxSetCurrent(gpu_context));
    gpu_answer("memory of a destroyed context", "its free gives %s", gpu_code(cu.MemFree(block)));
}

/* The last case of all: what the process had on the device is gone. */
static void reset_device(void)
{
    CUdeviceptr block, again;
    MUST(cu.MemAlloc(&block, 8 * MIB));
    size_t before = gpu_free_bytes();
    MUST(cu.DevicePrimaryCtxReset(0));
    MUST(cu.DevicePrimaryCtxRetain(&gpu_context, 0));
    MUST(cu.CtxSetCurrent(gpu_context));
    CUresult code = cu.MemFree(block);
    MUST(cu.MemAlloc(&again, 8 * MIB));
    gpu_answer("memory after a reset", "its free gives %s", gpu_code(code));
    gpu_figure("what a reset gives back", (double)(gpu_free_bytes() + 8 * MIB - before) / (double)MIB, "MiB", "the next block is %s",
               again == block ? "at the same address" : "elsewhere");
    MUST(cu.MemFree(again));
}

static const gpu_case cases[] = {
    {"codes", codes, false},
    {"frees_of_the_other_kind", frees_of_the_other_kind, false},
    {"alignment", alignment, false},
    {"attributes", attributes, false},
    {"ipc_attribute", ipc_attribute, false},
    {"free_memory", free_memory, false},
    {"waits_of_frees", waits_of_frees, false},
    {"destroyed_context", destroyed_context, false},
    {"reset_device", reset_device, false},
};
GPU_MAIN(cases)
