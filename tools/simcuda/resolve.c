/*
 * How programs find the driver's functions: cuGetProcAddress in both of its forms, over the one list sim_symbols.def; names and texts of
 * error codes. The tables are constant; sim.lock is held for counts and for the features that are switched off.
 * Called by every program before anything else.
 */
#include "sim.h"
#include "sim_other.h"

#include <stdio.h>
#include <string.h>

typedef enum default_stream { ANY, LEGACY, PER_THREAD } default_stream;

#define ALWAYS (-1)
#define VMM SIMCUDA_FEATURE_VMM
#define STREAM_ID SIMCUDA_FEATURE_STREAM_ID
#define CONTEXT_EVENTS SIMCUDA_FEATURE_CONTEXT_EVENTS
#define ASYNC_POOLS SIMCUDA_FEATURE_ASYNC_POOLS
#define NOTIFICATIONS SIMCUDA_FEATURE_NOTIFICATIONS

typedef struct symbol_entry {
    const char *name;
    size_t length;
    void (*address)(void);
    int since;
    default_stream stream;
    int feature;
} symbol_entry;

/* Addresses only: the functions have prototypes of their own where they are defined. */
#define SIM_CALL(name, symbol, since, stream, feature) extern void address_of_##symbol(void) __asm__(#symbol);
#define SIM_STUB(name, symbol, since, stream) extern void address_of_##symbol(void) __asm__(#symbol);
#include "sim_symbols.def"

static const symbol_entry symbols[] = {
#define SIM_CALL(name, symbol, since, stream, feature) {#name, sizeof #name - 1, address_of_##symbol, since, stream, feature},
#define SIM_STUB(name, symbol, since, stream) {#name, sizeof #name - 1, address_of_##symbol, since, stream, ALWAYS},
#include "sim_symbols.def"
};

static bool present(const symbol_entry *entry) { return entry->feature == ALWAYS || !sim.configured || sim.features[entry->feature]; }

/*
 * cuda.h, cuGetProcAddress: the newest form that is not newer than the version asked for; with PER_THREAD_DEFAULT_STREAM the per-thread
 * form where there is one. *known says whether any form of the name exists.
 */
static const symbol_entry *choose(const char *name, int version, bool per_thread, bool *known)
{
    const symbol_entry *best = NULL;
    size_t length = strlen(name);
    *known = false;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        const symbol_entry *entry = &symbols[i];
        if (entry->length != length || memcmp(entry->name, name, length) != 0 || !present(entry)) {
            continue;
        }
        if (entry->stream == PER_THREAD && !per_thread) {
            continue;
        }
        *known = true;
        if (entry->since > version) {
            continue;
        }
        bool closer = best == NULL || (entry->stream == PER_THREAD) > (best->stream == PER_THREAD) ||
                      (entry->stream == best->stream && entry->since > best->since);
        if (closer) {
            best = entry;
        }
    }
    return best;
}

static CUresult look_up(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (name == NULL || function == NULL || (flags & ~known_flags) != 0 || version > CUDA_VERSION) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool known;
    const symbol_entry *found = choose(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &known);
    *function = found ? (void *)(uintptr_t)found->address : NULL;
    if (status != NULL) {
        *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

/* The form of CUDA 11.3, which has no status. */
SIM_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    SIM_ENTER_UNINITIALISED("cuGetProcAddress");
    SIM_RETURN(look_up(name, function, version, flags, NULL));
}

SIM_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *status)
{
    SIM_ENTER_UNINITIALISED("cuGetProcAddress_v2");
    SIM_RETURN(look_up(name, function, version, flags, status));
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *type, *name;
    int number;
} driver_constants[] = {
#define CMI_DRIVER_ENUM(type)
#define CMI_DRIVER_VALUE(type, name, number) {#type, #name, number},
#define CMI_DRIVER_ENUM_END(type)
#include "driver/driver_enums.def"
#undef CMI_DRIVER_ENUM
#undef CMI_DRIVER_VALUE
#undef CMI_DRIVER_ENUM_END
};

static const char *error_name(CUresult code)
{
    for (size_t i = 0; i < sizeof driver_constants / sizeof driver_constants[0]; i++) {
        if (driver_constants[i].number == (int)code && strcmp(driver_constants[i].type, "CUresult") == 0) {
            return driver_constants[i].name;
        }
    }
    return NULL;
}

/* A code that has no text says its name. */
static const char *error_text(CUresult code)
{
    switch ((int)code) {
#define SIM_ERROR(number, name, text) \
    case number:                      \
        return text;
#include "sim_errors.def"
#undef SIM_ERROR
    default:
        return error_name(code);
    }
}

SIM_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult code, const char **name)
{
    SIM_ENTER_UNINITIALISED("cuGetErrorName");
    SIM_REFUSE_IF(name == NULL, CUDA_ERROR_INVALID_VALUE);
    *name = error_name(code);
    SIM_RETURN(*name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult code, const char **text)
{
    SIM_ENTER_UNINITIALISED("cuGetErrorString");
    SIM_REFUSE_IF(text == NULL, CUDA_ERROR_INVALID_VALUE);
    *text = error_name(code) ? error_text(code) : NULL;
    SIM_RETURN(*text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ---- what is not simulated ---------------------------------------------------------------------------------------------------- */

CUresult sim_unsupported(const char *what, int *said)
{
    if (!*said) {
        fprintf(stderr, "simcuda: %s is not simulated\n", what);
        *said = 1;
    }
    sim_find(SIMCUDA_UNSUPPORTED_CALL, "%s is not simulated", what);
    return CUDA_ERROR_NOT_SUPPORTED;
}

void simcuda_say_unsupported(const char *name, int *said)
{
    uint64_t start = sim_panel_enter();
    sim_unsupported(name, said);
    sim_panel_leave(start);
}

/* The private tables behind it are documented nowhere; a program that needs them cannot run here. */
SIM_EXPORT CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
    static int said;
    SIM_ENTER_UNINITIALISED("cuGetExportTable");
    (void)id;
    if (table != NULL) {
        *table = NULL;
    }
    SIM_RETURN(sim_unsupported("cuGetExportTable", &said));
}
