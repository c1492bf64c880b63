/*
 * Finds the CUDA driver at run time and fills the table of its functions: the one place that opens libraries and looks up symbols.
 * Owns the process's table. load_lock guards filling and forgetting; readers take the published pointer without it.
 * Called by whoever sets up a device.
 */
#include "driver/driver.h"

#include "base/base.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_NAME "libcuda.so.1"
#define DRIVER_PATH_VARIABLE "CUDAMEMPOOL_DRIVER"

typedef CUresult(CUDAAPI *get_proc_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult(CUDAAPI *get_proc_v1)(const char *, void **, int, cuuint64_t);

typedef enum symbol_need { NEED_REQUIRED, NEED_VMM, NEED_OPTIONAL } symbol_need;

typedef struct symbol {
    const char *name, *exported;
    int version;
    symbol_need need;
    size_t offset; /* of its pointer in cmi_driver */
} symbol;

static const symbol symbols[] = {
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) \
    {"cu" #field, #exported, version, NEED_##need, offsetof(cmi_driver, field)},
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
};

static cmi_lock load_lock = CMI_LOCK_INITIALIZER(CMI_RANK_VMM);
static cmi_driver table;
static _Atomic(const cmi_driver *) published;

static cmpool_status missing(const char *driver_call, CUresult code)
{
    cmpool_error *detail = cmi_error_detail();
    detail->driver_call = driver_call;
    detail->driver_code = (int)code;
    return CMPOOL_ERR_DRIVER_MISSING;
}

static void *open_library(void)
{
    const char *path = getenv(DRIVER_PATH_VARIABLE);
    void *library;
    if (path != NULL && path[0] != '\0') {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    } else {
        path = DRIVER_NAME;
        library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (library == NULL)
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) {
        const char *reason = dlerror();
        cmi_log(CMI_LOG_WARNING, "no CUDA driver: %s", reason != NULL ? reason : path);
    }
    return library;
}

/* The address of one function as the driver itself gives it out, or NULL. Legacy means: stream 0 is the legacy default stream. */
static void *find_symbol(void *library, get_proc_v2 by_v2, get_proc_v1 by_v1, const symbol *wanted)
{
    void *address = NULL;
    if (by_v2 != NULL) {
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        CUresult code = by_v2(wanted->name, &address, wanted->version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
        return code == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS ? address : NULL;
    }
    if (by_v1 != NULL)
        return by_v1(wanted->name, &address, wanted->version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) == CUDA_SUCCESS ? address : NULL;
    return dlsym(library, wanted->exported);
}

static cmpool_status fill_table(void *library)
{
    /* POSIX lets a data pointer hold a function's address; C wants it copied, not cast. */
    void *entry = dlsym(library, "cuGetProcAddress_v2");
    get_proc_v2 by_v2;
    memcpy(&by_v2, &entry, sizeof(by_v2));
    entry = dlsym(library, "cuGetProcAddress");
    get_proc_v1 by_v1;
    memcpy(&by_v1, &entry, sizeof(by_v1));

    memset(&table, 0, sizeof(table));
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(symbols); i++) {
        void *address = find_symbol(library, by_v2, by_v1, &symbols[i]);
        if (address == NULL && symbols[i].need == NEED_REQUIRED) {
            cmi_log(CMI_LOG_WARNING, "the CUDA driver has no %s", symbols[i].name);
            return missing(symbols[i].name, CUDA_ERROR_NOT_FOUND);
        }
        memcpy((char *)&table + symbols[i].offset, &address, sizeof(address));
    }
    return CMPOOL_OK;
}

static cmpool_status start_driver(void)
{
    const char *call = "cuInit";
    CUresult code = table.Init(0);
    if (code == CUDA_SUCCESS) {
        call = "cuDriverGetVersion";
        code = table.DriverGetVersion(&table.version);
    }
    if (code == CUDA_SUCCESS)
        return CMPOOL_OK;
    if (code == CUDA_ERROR_DEINITIALIZED)
        return cmi_driver_status(call, code);
    cmi_log(CMI_LOG_WARNING, "the CUDA driver does not start: %s says %s", call, cmi_driver_code_name(code));
    return missing(call, code);
}

cmpool_status cmi_driver_open(const cmi_driver **driver)
{
    *driver = atomic_load_explicit(&published, memory_order_acquire);
    if (*driver != NULL)
        return CMPOOL_OK;

    cmpool_status status = CMPOOL_OK;
    cmi_lock_acquire(&load_lock);
    if (atomic_load_explicit(&published, memory_order_relaxed) == NULL) {
        void *library = open_library(); /* never closed: a driver has threads and exit handlers of its own */
        status = library != NULL ? fill_table(library) : missing("dlopen", CUDA_SUCCESS);
        if (status == CMPOOL_OK)
            status = start_driver();
        if (status == CMPOOL_OK)
            atomic_store_explicit(&published, &table, memory_order_release);
    }
    *driver = atomic_load_explicit(&published, memory_order_relaxed);
    cmi_lock_release(&load_lock);
    return status;
}

void cmi_driver_forget(void)
{
    cmi_lock_acquire(&load_lock);
    atomic_store_explicit(&published, NULL, memory_order_relaxed);
    cmi_lock_release(&load_lock);
}

bool cmi_driver_has_vmm(const cmi_driver *driver)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(symbols); i++) {
        void *address;
        memcpy(&address, (const char *)driver + symbols[i].offset, sizeof(address));
        if (address == NULL && symbols[i].need == NEED_VMM)
            return false;
    }
    return true;
}
