/*
 * What the device and its driver are, and who else is on it: the head of what tools/gpu-check.sh writes. Its part "device".
 */
#include "gpu.h"

#include <string.h>

static void facts(void)
{
    char name[100] = "";
    size_t left = 0, total = 0;
    int count = 0;
    MUST(cu.DeviceGetName(name, sizeof name, 0));
    MUST(cu.MemGetInfo(&left, &total));
    MUST(cu.DeviceGetCount(&count));
    gpu_answer("GPU", "%s%s", name, gpu_simulated ? " (SIMULATED)" : "");
    gpu_answer("driver", "for CUDA %d.%d", gpu_driver_version / 1000, gpu_driver_version % 1000 / 10);
    gpu_answer("compute capability", "%d.%d, %d multiprocessors", gpu_capability / 10, gpu_capability % 10,
               gpu_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    gpu_figure("memory", (double)total / (double)GIB, "GiB", "in all; %.2f GiB are free: the rest is this process's context and others",
               (double)left / (double)GIB);
    gpu_answer("devices seen", "%d", count);
    gpu_answer("a part of a GPU", "%s", strstr(name, "MIG") ? "yes (MIG)" : "the name does not say so");
}

static void abilities(void)
{
    gpu_answer("virtual memory management", "%s", gpu_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ? "yes" : "no");
    gpu_answer("memory for other processes", "descriptors %s, fabric handles %s",
               gpu_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ? "yes" : "no",
               gpu_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) ? "yes" : "no");
    gpu_answer("memory pools of the driver", "%s", gpu_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) ? "yes" : "no");
    gpu_answer("events of contexts", "%s", cu.CtxRecordEvent && cu.CtxWaitEvent ? "yes" : "no (CUDA 12.5)");
    gpu_answer("numbers of streams", "%s", cu.StreamGetId ? "yes" : "no (CUDA 12.0)");
    gpu_answer("memory notifications", "%s", cu.DeviceRegisterAsyncNotification ? "yes" : "no (CUDA 12.4)");
}

static const gpu_case cases[] = {
    {"facts", facts, false},
    {"abilities", abilities, false},
};
GPU_MAIN(cases)
