/*
 * Questions to the driver about memory for others: legacy IPC of small, large and inner addresses with the bytes that arrive, and a second
 * device that reaches plain and mapped memory. Part "sharing" of tools/gpu-check.sh.
 */
#include "pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- legacy IPC
 * -------------------------------------------------------------------------------------------------------------------------- */

#define IPC_VARIABLE "CMPOOL_GPU_IPC" /* the handle in hexadecimal digits, a colon, bytes, a colon, the seed */
#define HANDLE_DIGITS (2 * sizeof(CUipcMemHandle))

/* The other process: opens the handle and looks at the bytes. */
static void opened(void)
{
    const char *text = getenv(IPC_VARIABLE);
    CUipcMemHandle handle;
    CUdeviceptr address;
    EXPECT(text && strlen(text) > HANDLE_DIGITS, "no handle: this case is started by the case ipc");
    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned byte = 0;
        EXPECT(sscanf(text + 2 * i, "%2x", &byte) == 1, "not a handle: %s", text);
        handle.reserved[i] = (char)byte;
    }
    char *rest;
    size_t bytes = strtoull(text + HANDLE_DIGITS + 1, &rest, 10);
    uint32_t seed = (uint32_t)strtoul(rest + 1, NULL, 10);
    MUST(cu.IpcOpenMemHandle(&address, handle, 1)); /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
    gpu_check(gpu_stream(), (void *)(uintptr_t)address, bytes, seed);
    uint64_t wrong = gpu_wrong_words();
    MUST(cu.IpcCloseMemHandle(address));
    EXPECT(wrong == 0, "%llu words did not arrive", (unsigned long long)wrong);
}

static void ask_ipc(const char *question, CUdeviceptr address, size_t bytes, uint32_t seed)
{
    CUipcMemHandle handle;
    char text[HANDLE_DIGITS + 60];
    int status = -1;
    CUresult code = cu.IpcGetMemHandle(&handle, address);
    if (code != CUDA_SUCCESS) {
        gpu_answer(question, "%s", gpu_code(code));
        return;
    }
    for (size_t i = 0; i < sizeof handle; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)handle.reserved[i]);
    snprintf(text + HANDLE_DIGITS, sizeof text - HANDLE_DIGITS, ":%zu:%u", bytes, seed);
    setenv(IPC_VARIABLE, text, 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(126);
        execl("/proc/self/exe", "ask_sharing", "opened", (char *)NULL);
        _exit(126);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    gpu_answer(question, "a handle; in another process the bytes %s", status == 0 ? "are right" : "are not there, or are others");
}

static void ipc(void)
{
    CUdeviceptr small, large;
    CUmemGenericAllocationHandle page;
    CUstream stream = gpu_stream();
    if (gpu_simulated) {
        gpu_skip("the simulated device shares no memory with other processes");
        return;
    }
    if (gpu_is_exclusive()) {
        gpu_skip("the device lets no second process in");
        return;
    }
    MUST(cu.MemAlloc(&small, 4096));
    MUST(cu.MemAlloc(&large, 8 * MIB));
    gpu_fill(stream, (void *)(uintptr_t)small, 4096, 3);
    gpu_fill(stream, (void *)(uintptr_t)large, 8 * MIB, 4);
    MUST(cu.StreamSynchronize(stream));
    ask_ipc("cuIpcGetMemHandle of 4 KiB", small, 4096, 3);
    ask_ipc("cuIpcGetMemHandle of 8 MiB", large, 8 * MIB, 4);
    ask_ipc("cuIpcGetMemHandle inside 8 MiB, seen from the start", large + 4 * MIB, 8 * MIB, 4);
    MUST(cu.MemFree(small));
    MUST(cu.MemFree(large));

    CUdeviceptr base;
    MUST(page_create(&page));
    MUST(cu.MemAddressReserve(&base, PAGE, 0, 0, 0));
    MUST(pages_map(base, &page, 1));
    gpu_fill(stream, (void *)(uintptr_t)base, PAGE, 5);
    MUST(cu.StreamSynchronize(stream));
    ask_ipc("cuIpcGetMemHandle of a mapped page", base, PAGE, 5);
    MUST(cu.MemUnmap(base, PAGE));
    MUST(cu.MemRelease(page));
    MUST(cu.MemAddressFree(base, PAGE));
}

/* ---- a second device
 * ----------------------------------------------------------------------------------------------------------------------- */

/* Bytes from the first device's memory to the second's and back. */
static void there_and_back(const char *question, CUcontext other, CUdeviceptr near, CUdeviceptr far, size_t bytes)
{
    CUstream stream = gpu_stream();
    const void *at = (const void *)(uintptr_t)near;
    gpu_fill(stream, at, bytes, 9);
    MUST(cu.MemcpyPeerAsync(far, other, near, gpu_context, bytes, stream));
    gpu_fill(stream, at, bytes, 10);
    MUST(cu.MemcpyPeerAsync(near, gpu_context, far, other, bytes, stream));
    gpu_check(stream, at, bytes, 9);
    uint64_t wrong = gpu_wrong_words();
    EXPECT(wrong == 0, "%llu words are wrong", (unsigned long long)wrong);
    gpu_answer(question, "right bytes by cuMemcpyPeerAsync");
}

static void ask_access(CUdeviceptr base, bool reachable)
{
    const CUmemAccessDesc both[] = {{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    double start = gpu_now_us();
    CUresult code = cu.MemSetAccess(base, PAGE, both, reachable ? 2 : 1);
    double us = gpu_now_us() - start;
    EXPECT(code == CUDA_SUCCESS, "cuMemSetAccess gave %s", gpu_code(code));
    gpu_figure("allow access to a page from both devices", us, "us", reachable ? "two descriptors" : "one: they do not reach each other");
}

static void second_device(void)
{
    static const char question[] = "a second device";
    int count = 0, can = 0;
    CUdevice device;
    CUcontext other;
    CUdeviceptr near, far, base;
    CUmemGenericAllocationHandle page;
    MUST(cu.DeviceGetCount(&count));
    if (count < 2) {
        gpu_no_answer(question, "there is one device");
        return;
    }
    MUST(cu.DeviceGet(&device, 1));
    MUST(cu.DeviceCanAccessPeer(&can, device, 0));
    MUST(cu.DevicePrimaryCtxRetain(&other, device));
    MUST(cu.CtxSetCurrent(other));
    MUST(cu.MemAlloc(&far, 8 * MIB));
    if (can)
        gpu_answer("cuCtxEnablePeerAccess", "%s", gpu_code(cu.CtxEnablePeerAccess(gpu_context, 0)));
    MUST(cu.CtxSetCurrent(gpu_context));
    MUST(cu.MemAlloc(&near, 8 * MIB));
    there_and_back("plain memory to a second device and back", other, near, far, 8 * MIB);
    MUST(page_create(&page));
    MUST(cu.MemAddressReserve(&base, PAGE, 0, 0, 0));
    MUST(cu.MemMap(base, PAGE, 0, page, 0));
    ask_access(base, can != 0);
    there_and_back("a mapped page to a second device and back", other, base, far, PAGE);
    MUST(cu.MemUnmap(base, PAGE));
    MUST(cu.MemRelease(page));
    MUST(cu.MemAddressFree(base, PAGE));
    MUST(cu.MemFree(near));
    MUST(cu.CtxSetCurrent(other));
    MUST(cu.MemFree(far));
    MUST(cu.CtxSetCurrent(gpu_context));
    MUST(cu.DevicePrimaryCtxRelease(device));
}

static const gpu_case cases[] = {
    {"ipc", ipc, false},
    {"second_device", second_device, false},
    {"opened", opened, true},
};
GPU_MAIN(cases)
