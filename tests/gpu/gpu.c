/*
 * Owns the driver of a device check, its device and what its cases say. One thread, but for gpu_fail and lines, which take say_lock.
 * Called by the check programs.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DEVICE = 3, EXIT_NO_DEVICE = 77 };

gpu_driver cu;
CUcontext gpu_context;
bool gpu_simulated;
int gpu_driver_version, gpu_capability;

static struct {
    const char *name;
    bool failed, skipped;
} current;
static unsigned failures;
static pthread_mutex_t say_lock = PTHREAD_MUTEX_INITIALIZER;

/* Looked up only on the simulated device. */
static uint64_t (*simulated_findings)(int kind);
static const char *(*simulated_finding)(size_t index);
static void (*simulated_findings_reset)(void);

/* ---- lines -------------------------------------------------------------------------------------------------------------------------- */

/* Verdict and text of one case or question; value may be empty. */
static void say(const char *name, const char *verdict, const char *value, const char *format, va_list arguments)
{
    char text[600], safe[1200], *to = safe;
    vsnprintf(text, sizeof text, format, arguments);
    for (const char *from = text; *from; from++) {
        if (*from == '"' || *from == '\\')
            *to++ = '\\';
        *to++ = *from;
        if ((unsigned char)*from < ' ')
            to[-1] = ' ';
    }
    *to = '\0';
    pthread_mutex_lock(&say_lock);
    printf("{\"name\":\"%s\",\"verdict\":\"%s\"%s,\"text\":\"%s\"}\n", name, verdict, value, safe);
    fflush(stdout);
    pthread_mutex_unlock(&say_lock);
}

#define SAY(name, verdict, value)                      \
    do {                                               \
        va_list arguments_;                            \
        va_start(arguments_, format);                  \
        say(name, verdict, value, format, arguments_); \
        va_end(arguments_);                            \
    } while (0)

void gpu_fail(const char *format, ...)
{
    __atomic_store_n(&current.failed, true, __ATOMIC_RELAXED);
    SAY(current.name, "failed", "");
}

void gpu_skip(const char *format, ...)
{
    current.skipped = true;
    SAY(current.name, "skipped", "");
}

void gpu_answer(const char *question, const char *format, ...) { SAY(question, "answered", ""); }

void gpu_no_answer(const char *question, const char *format, ...) { SAY(question, "not answerable here", ""); }

void gpu_figure(const char *question, double value, const char *unit, const char *format, ...)
{
    char figure[100];
    snprintf(figure, sizeof figure, ",\"value\":%.6g,\"unit\":\"%s\"", value, unit);
    SAY(question, "measured", figure);
}

static void pass(const char *format, ...) { SAY(current.name, "passed", ""); }

/* ---- the driver --------------------------------------------------------------------------------------------------------------------- */

static int no_device(const char *why)
{
    fprintf(stderr, "\n*** NO GPU: %s. NOTHING WAS TESTED. ***\n\n", why);
    return EXIT_NO_DEVICE;
}

static int unusable(const char *what, const char *why)
{
    fprintf(stderr, "\n*** THE DEVICE CANNOT BE USED: %s: %s ***\n\n", what, why);
    return EXIT_DEVICE;
}

static void find(void *library, const char *name, void *pointer)
{
    void *found = dlsym(library, name);
    memcpy(pointer, &found, sizeof found);
}

static const char *find_all(void *library)
{
    enum { REQUIRED, VMM, OPTIONAL };
    const char *missing = NULL;
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) \
    find(library, #exported, &cu.field);                                  \
    if (!cu.field && (need) == REQUIRED)                                  \
        missing = #exported;
#include "driver/driver_syms.def"
#include "gpu_syms.def"
#undef CMI_DRIVER_SYMBOL
    find(library, "simcuda_findings", &simulated_findings);
    find(library, "simcuda_finding_text", &simulated_finding);
    find(library, "simcuda_findings_reset", &simulated_findings_reset);
    gpu_simulated = simulated_findings != NULL;
    return missing;
}

static int start(void)
{
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    int count = 0, major, minor;
    CUdevice device;
    /* Kernels that wait for each other must not wait in one queue, nor for a module that is loaded when they are launched. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return no_device(dlerror());
    const char *missing = find_all(library);
    if (missing)
        return unusable("the driver is too old, it lacks", missing);
    const char *real = getenv("CMPOOL_GPU_REAL");
    if (gpu_simulated && real && *real)
        return no_device("a GPU was asked for, and libcuda.so.1 is the simulated device's");
    CUresult code = cu.Init(0);
    if (code == CUDA_ERROR_NO_DEVICE || code == CUDA_ERROR_STUB_LIBRARY)
        return no_device(gpu_code(code));
    if (code == CUDA_SUCCESS)
        code = cu.DeviceGetCount(&count);
    if (code == CUDA_SUCCESS && count == 0)
        return no_device("the driver has no device");
    if (code == CUDA_SUCCESS)
        code = cu.DeviceGet(&device, 0);
    if (code == CUDA_SUCCESS)
        code = cu.DevicePrimaryCtxRetain(&gpu_context, device);
    if (code == CUDA_SUCCESS)
        code = cu.CtxSetCurrent(gpu_context);
    if (code == CUDA_SUCCESS)
        code = cu.DriverGetVersion(&gpu_driver_version);
    if (code != CUDA_SUCCESS)
        return unusable("starting the driver", gpu_code(code));
    major = gpu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    minor = gpu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    gpu_capability = major * 10 + minor;
    if (gpu_capability < 70)
        return unusable("compute capability", "below 7.0, which the checks' kernels need");
    if (gpu_simulated)
        fprintf(stderr, "*** SIMULATED DEVICE: kernels are not executed, and no figure holds for a GPU. ***\n");
    return 0;
}

int gpu_attribute(CUdevice_attribute attribute)
{
    int value = 0;
    return cu.DeviceGetAttribute(&value, attribute, 0) == CUDA_SUCCESS ? value : 0;
}

bool gpu_is_exclusive(void)
{
    enum { EXCLUSIVE_PROCESS = 3 }; /* CU_COMPUTEMODE_EXCLUSIVE_PROCESS */
    return gpu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == EXCLUSIVE_PROCESS;
}

size_t gpu_free_bytes(void)
{
    size_t left = 0, total = 0;
    return cu.MemGetInfo(&left, &total) == CUDA_SUCCESS ? left : 0;
}

double gpu_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

const char *gpu_code(CUresult code)
{
    const char *name = NULL;
    return cu.GetErrorName && cu.GetErrorName(code, &name) == CUDA_SUCCESS && name ? name : "an unknown code";
}

CUstream gpu_stream(void)
{
    CUstream stream = NULL;
    CUresult code = cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (code != CUDA_SUCCESS)
        gpu_fail("cuStreamCreate gave %s", gpu_code(code));
    return stream;
}

CUevent gpu_event(void)
{
    CUevent event = NULL;
    CUresult code = cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (code != CUDA_SUCCESS)
        gpu_fail("cuEventCreate gave %s", gpu_code(code));
    return event;
}

/* ---- cases -------------------------------------------------------------------------------------------------------------------------- */

static void look_at_findings(void)
{
    enum { RACES_TO_BAD_ACCESS = 4 }; /* the kinds behind them are calls that are not simulated, which simcuda says itself */
    uint64_t count = 0;
    for (int kind = 0; gpu_simulated && kind < RACES_TO_BAD_ACCESS; kind++)
        count += simulated_findings(kind);
    if (count == 0)
        return;
    for (size_t i = 0; simulated_finding(i); i++)
        gpu_fail("the simulated device reports: %s", simulated_finding(i));
    simulated_findings_reset();
}

/* False: the device is broken, and so would be what comes after. */
static bool run(const gpu_case *each)
{
    double start_us = gpu_now_us();
    current.name = each->name;
    current.failed = current.skipped = false;
    each->run();
    CUresult code = cu.CtxSetCurrent(gpu_context);
    if (code == CUDA_SUCCESS)
        code = cu.CtxSynchronize();
    if (code != CUDA_SUCCESS)
        gpu_fail("afterwards the device gives %s", gpu_code(code));
    look_at_findings();
    if (!current.failed && !current.skipped)
        pass("%.2f s", (gpu_now_us() - start_us) * 1e-6);
    failures += current.failed;
    return code == CUDA_SUCCESS;
}

static bool is_wanted(const gpu_case *each, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], each->name) == 0)
            return true;
    return argc == 1 && !each->by_name_only;
}

int gpu_main(const gpu_case *cases, size_t count, int argc, char **argv)
{
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++)
        wanted += is_wanted(&cases[i], argc, argv);
    if (wanted < (size_t)(argc - 1) || wanted == 0) {
        fprintf(stderr, "usage: %s [CASE...]; the cases are", argv[0]);
        for (size_t i = 0; i < count; i++)
            fprintf(stderr, " %s", cases[i].name);
        fprintf(stderr, "\n");
        return EXIT_USAGE;
    }
    int code = start();
    if (code != 0)
        return code;
    current.name = "kernels";
    gpu_work_start();
    failures += current.failed;
    for (size_t i = 0; i < count && !current.failed; i++)
        if (is_wanted(&cases[i], argc, argv) && !run(&cases[i]))
            break;
        else
            current.failed = false; /* the next one may pass */
    return failures ? EXIT_FAILED : 0;
}
