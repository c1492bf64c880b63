/*
 * The door of lib/driver: the CUDA driver API as one table, filled at run time from the one list driver_syms.def, and the helper
 * that every driver call outside the hot path goes through.
 */
#ifndef CMI_DRIVER_H
#define CMI_DRIVER_H

#include "driver/driver_abi.h"
#include <cudamempool/cudamempool.h>
#include <stdbool.h>

/*
 * One pointer per line of driver_syms.def. The field has the function's name without "cu" and without "_v2": driver->MemCreate.
 * REQUIRED ones are never NULL; VMM ones are not where cmi_driver_has_vmm; a caller of an OPTIONAL one looks first.
 */
typedef struct cmi_driver {
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) result(CUDAAPI *field) params;
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
    int version; /* cuDriverGetVersion: 13000 is 13.0 */
} cmi_driver;

/*
 * The process's driver, loaded and initialised (cuInit) on first use: the path in CUDAMEMPOOL_DRIVER if set, else the libcuda.so.1
 * the program has already loaded, else the loader's. Symbols come from cuGetProcAddress_v2 with the version of the list.
 * OK; DRIVER_MISSING (a line at verbose:1 says why; the error detail names the missing function, or the call that failed and its
 * code); SHUTTING_DOWN when the driver is gone for good. A failure is not remembered: the next open tries again. Any thread; takes a
 * lock of rank VMM on first use.
 */
cmpool_status cmi_driver_open(const cmi_driver **driver);

/* Forget the table so that the next open loads again (tests, and after the driver was shut down). The library is not unloaded, but
 * the table's memory is used again: no other thread may be using it. */
void cmi_driver_forget(void);

/* Whether every symbol of virtual memory management was found; the device must be asked too (attribute 102). */
bool cmi_driver_has_vmm(const cmi_driver *driver);

/*
 * What a driver code means for a caller of the pool: out of memory -> OUT_OF_DEVICE_MEMORY, deinitialized -> SHUTTING_DOWN,
 * no such device -> DRIVER_MISSING, context destroyed or invalid and every error after which only a new process helps -> DEVICE_LOST,
 * capture codes -> CAPTURE, not supported -> UNSUPPORTED, else DRIVER. Also stores call (static text) and code in the thread's error
 * detail. CUDA_SUCCESS -> OK, detail untouched.
 */
cmpool_status cmi_driver_status(const char *driver_call, CUresult code);
/* The driver's name of a code ("CUDA_ERROR_NOT_FOUND"), from the project's own list; never NULL. */
const char *cmi_driver_code_name(CUresult code);

/*
 * Around all driver calls off the hot path: makes `context` current and capture mode relaxed for this thread, and puts both back.
 * No early return between enter and leave. enter returns OK, or a status as cmi_driver_status (then nothing has changed for the
 * thread and leave must not be called). Scopes may be nested.
 */
typedef struct cmi_driver_scope {
    const cmi_driver *driver;
    CUcontext context;
    bool pushed, exchanged;
    CUstreamCaptureMode mode; /* the thread's own */
} cmi_driver_scope;
cmpool_status cmi_driver_enter(cmi_driver_scope *scope, const cmi_driver *driver, CUcontext context);
void cmi_driver_leave(cmi_driver_scope *scope);

#endif
