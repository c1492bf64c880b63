/*
 * The driver's own functions, by name and by address. Owns the one table of them: filled by whichever thread comes first, from a copy that
 * each builds on its own, because look-ups take the loader's lock and a lock of ours around them could close a circle. Called by the
 * exported dlsym, by both forms of cuGetProcAddress and by every replacement.
 *
 * A function is known by the address the driver gives for it, never by a name and a version: those say which form a caller wants, and only
 * the driver knows all forms.
 */
#include "preload/preload.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define DRIVER_NAME "libcuda.so"

enum {
#define PRELOAD_HOOK(name, params) HOOK_##name,
#include "preload/hooks.def"
    HOOK_COUNT
};

static const char *const names[HOOK_COUNT] = {
#define PRELOAD_HOOK(name, params) #name,
#include "preload/hooks.def"
};

/* A function's address as a data pointer, which POSIX lets it be. */
typedef union function_pointer {
    void (*function)(void);
    void *address;
} function_pointer;

static const function_pointer replacements[HOOK_COUNT] = {
#define PRELOAD_HOOK(name, params) {.function = (void (*)(void))name},
#include "preload/hooks.def"
};

typedef struct pair {
    void *own, *replacement;
} pair;

typedef struct driver_table {
    preload_driver functions;
    const void *base; /* of the library */
    uint32_t pair_count;
    pair pairs[HOOK_COUNT]; /* by the driver's address */
} driver_table;

static driver_table table;
static _Atomic int table_state; /* 0 empty, 1 being copied, 2 there */
_Atomic(const preload_driver *) cmi_preload_known_driver;

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool cmi_preload_is_inside(const void *address)
{
    Dl_info info;
    const char *at = address;
    if (at >= __ehdr_start && at < _end) {
        return true;
    }
    if (!dladdr(address, &info) || !info.dli_fname) {
        return false;
    }
    const char *name = file_name(info.dli_fname);
    return strncmp(name, DRIVER_NAME, sizeof DRIVER_NAME - 1) == 0 || strncmp(name, "libnvidia-", 10) == 0;
}

bool cmi_preload_is_hooked(const char *name)
{
    for (int i = 0; i < HOOK_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* The address of a name in the library at base, or NULL. */
static void *own_function(void *library, const void *base, const char *name)
{
    Dl_info info;
    void *address = cmi_preload_next_dlsym(library, name);
    return address && dladdr(address, &info) && info.dli_fbase == base ? address : NULL;
}

static void add_pair(driver_table *to, void *own, void *replacement)
{
    uint32_t at = to->pair_count;
    while (at > 0 && to->pairs[at - 1].own > own) {
        at--;
    }
    if (at > 0 && to->pairs[at - 1].own == own) {
        return; /* two names of one function */
    }
    memmove(&to->pairs[at + 1], &to->pairs[at], (to->pair_count - at) * sizeof *to->pairs);
    to->pairs[at] = (pair){own, replacement};
    to->pair_count++;
}

static void fill(driver_table *to, void *library, const void *base)
{
    void *own;
    memset(to, 0, sizeof *to);
    to->base = base;
#define PRELOAD_HOOK(name, params)                            \
    own = own_function(library, base, #name);                 \
    memcpy(&to->functions.name, &own, sizeof own);            \
    if (own) {                                                \
        add_pair(to, own, replacements[HOOK_##name].address); \
    }
#define PRELOAD_REAL(name, params)            \
    own = own_function(library, base, #name); \
    memcpy(&to->functions.name, &own, sizeof own);
#include "preload/hooks.def"
}

static void publish(const driver_table *from)
{
    int empty = 0;
    if (atomic_compare_exchange_strong(&table_state, &empty, 1)) {
        table = *from;
        atomic_store_explicit(&table_state, 2, memory_order_release);
        atomic_store_explicit(&cmi_preload_known_driver, &table.functions, memory_order_release);
    }
    while (atomic_load_explicit(&table_state, memory_order_acquire) != 2) {
        sched_yield(); /* the other thread is in the middle of a copy */
    }
}

bool cmi_preload_adopt(void *function)
{
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname) {
        return false;
    }
    if (atomic_load_explicit(&table_state, memory_order_acquire) != 2) {
        if (strncmp(file_name(info.dli_fname), DRIVER_NAME, sizeof DRIVER_NAME - 1) != 0) {
            return false;
        }
        void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD); /* kept, so that the addresses stay good */
        if (!library) {
            return false;
        }
        driver_table found;
        fill(&found, library, info.dli_fbase);
        publish(&found);
    }
    return info.dli_fbase == table.base;
}

const preload_driver *cmi_preload_find_driver(void)
{
    if (atomic_load_explicit(&table_state, memory_order_acquire) != 2) {
        /* A program that is linked against the driver calls without a look-up. */
        void *library = dlopen(DRIVER_NAME ".1", RTLD_LAZY | RTLD_NOLOAD);
        void *function = library ? cmi_preload_next_dlsym(library, "cuInit") : NULL;
        if (!function || !cmi_preload_adopt(function)) {
            return NULL;
        }
    }
    return &table.functions;
}

void *cmi_preload_replacement(void *function)
{
    uint32_t low = 0, high = table.pair_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (table.pairs[middle].own < function) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < table.pair_count && table.pairs[low].own == function ? table.pairs[low].replacement : function;
}

/* ---- the driver's own look-up ---------------------------------------------------------------------------------------------------------
 */

static void substitute(CUresult code, void **function)
{
    if (code == CUDA_SUCCESS && function && *function) {
        *function = cmi_preload_replacement(*function);
    }
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    CUresult code = PRELOAD_FORWARD(cuGetProcAddress, name, function, version, flags);
    substitute(code, function);
    return code;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status)
{
    CUresult code = PRELOAD_FORWARD(cuGetProcAddress_v2, name, function, version, flags, status);
    substitute(code, function);
    return code;
}
