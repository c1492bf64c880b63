/*
 * Way in and out of every runtime call: loads the driver at the first one, in the way the real runtime does (dlopen, one dlsym, then
 * cuGetProcAddress only), keeps each thread's last error, device and context. The driver table is written once under pthread_once;
 * retains are counted under a lock of their own, the generation of each primary context is atomic; the rest belongs to the calling thread.
 */
#include "runtime/rt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#define RT_MAX_DEVICES 64

rt_driver rt;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static cudaError_t load_code;
static void *driver_library;
static atomic_uint context_generation[RT_MAX_DEVICES];

static __thread struct {
    cudaError_t last;
    int device;
    CUcontext context; /* the primary context that this thread was given, to tell it from one the program made current itself */
    unsigned int generation;
} thread_state;

typedef CUresult (*proc_address_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void load_driver(void)
{
    load_code = cudaErrorInsufficientDriver;
    driver_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver_library == NULL) {
        return;
    }
    proc_address_fn first = (proc_address_fn)(uintptr_t)dlsym(driver_library, "cuGetProcAddress_v2");
    if (first == NULL) {
        return;
    }
    void *found = NULL;
    first("", &found, 0, 0, NULL); /* a driver that cannot take the question at all would fail here */
    CUresult (*init)(unsigned int) = NULL;
    if (first("cuInit", (void **)&init, 2000, 0, NULL) != CUDA_SUCCESS || init == NULL) {
        return;
    }
    /* The driver is asked for its own lookup; all later questions go through the answer. */
    if (first("cuGetProcAddress", (void **)&rt.get_proc_address, 12000, 0, NULL) != CUDA_SUCCESS || rt.get_proc_address == NULL) {
        return;
    }
#define RT_DRIVER(name, version, params) rt.get_proc_address("cu" #name, (void **)&rt.name, version, 0, NULL);
#include "runtime/rt_driver.def"
#undef RT_DRIVER
    load_code = rt_code(init(0));
}

cudaError_t rt_load(void)
{
    pthread_once(&load_once, load_driver);
    return load_code;
}

static bool valid_device(int device)
{
    int count = 0;
    return device >= 0 && device < RT_MAX_DEVICES && rt.DeviceGetCount(&count) == CUDA_SUCCESS && device < count;
}

/* The process holds one retain of each primary context that it uses, taken anew if the context has gone meanwhile. */
cudaError_t rt_primary_context(int device, CUcontext *context)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool held[RT_MAX_DEVICES];
    unsigned int flags;
    int active = 0;
    CUdevice handle;
    if (!valid_device(device)) {
        return cudaErrorInvalidDevice;
    }
    CUresult code = rt.DeviceGet(&handle, device);
    if (code != CUDA_SUCCESS) {
        return rt_code(code);
    }
    pthread_mutex_lock(&lock);
    rt.DevicePrimaryCtxGetState(handle, &flags, &active);
    code = rt.DevicePrimaryCtxRetain(context, handle);
    if (code == CUDA_SUCCESS && active && held[device]) {
        rt.DevicePrimaryCtxRelease(handle);
    } else {
        held[device] = code == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rt_code(code);
}

cudaError_t rt_enter(void)
{
    cudaError_t code = rt_load();
    if (code != cudaSuccess) {
        return code;
    }
    CUcontext current = NULL;
    rt.CtxGetCurrent(&current);
    int device = thread_state.device;
    unsigned int generation = atomic_load(&context_generation[device]);
    bool ours = current != NULL && current == thread_state.context;
    if (current != NULL && (!ours || thread_state.generation == generation)) {
        return cudaSuccess;
    }
    code = rt_primary_context(device, &current);
    if (code != cudaSuccess) {
        return code;
    }
    thread_state.context = current;
    thread_state.generation = generation;
    return rt_code(rt.CtxSetCurrent(current));
}

/* Errors after which, says the runtime's header, the process is in an inconsistent state and every call returns the same error. */
static bool is_sticky(cudaError_t code)
{
    switch (code) {
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
        return true;
    default:
        return false;
    }
}

cudaError_t rt_leave(cudaError_t code)
{
    if (code != cudaSuccess && !is_sticky(thread_state.last)) {
        thread_state.last = code;
    }
    return code;
}

cudaError_t rt_last_error(bool clear)
{
    cudaError_t last = thread_state.last;
    if (clear && !is_sticky(last)) {
        thread_state.last = cudaSuccess;
    }
    return last;
}

int rt_thread_device(void) { return thread_state.device; }

void rt_set_thread_device(int device) { thread_state.device = device; }

void rt_forget_contexts(int device)
{
    atomic_fetch_add(&context_generation[device], 1);
    if (is_sticky(thread_state.last)) {
        thread_state.last = cudaSuccess;
    }
}

void rt_say_unsupported(const char *name, int *said)
{
    static void (*say)(const char *name, int *said);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (rt_load() == cudaErrorInsufficientDriver) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (say == NULL) {
        say = (void (*)(const char *, int *))(uintptr_t)dlsym(driver_library, "simcuda_say_unsupported");
    }
    pthread_mutex_unlock(&lock);
    if (say != NULL) {
        say(name, said);
    }
}

bool rt_accepts_kernels(void)
{
    int (*accepts)(void) = (int (*)(void))(uintptr_t)dlsym(driver_library, "simcuda_accepts_kernels");
    return accepts != NULL && accepts() != 0;
}
