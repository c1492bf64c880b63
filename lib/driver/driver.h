/*
 * The door of lib/driver: the CUDA driver API as one table, filled at run time from the one list driver_syms.def, and the helper
 * that every driver call outside the hot path goes through.
 */
#ifndef CMI_DRIVER_H
#define CMI_DRIVER_H

#include "driver/driver_abi.h"
#include <cudamempool/cudamempool.h>
#include <stdbool.h>

/* One pointer per line of driver_syms.def; an optional symbol that the driver lacks is NULL. */
typedef struct cmi_driver {
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) result(CUDAAPI *field) params;
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
    int version; /* cuDriverGetVersion: 13000 is 13.0 */
} cmi_driver;

/*
 * The process's driver, loaded and initialised (cuInit) on first use: the path in CUDAMEMPOOL_DRIVER if set, else the libcuda.so.1
 * the program has already loaded, else the loader's. Symbols come from cuGetProcAddress_v2 with the version of the list.
 * OK or DRIVER_MISSING (with a log line at verbose:1 and the reason in the thread's error detail). Any thread.
 */
cmpool_status cmi_driver_open(const cmi_driver **driver);

/* Forget the table so that the next open loads again (tests, and after the driver was shut down). The library is not unloaded. */
void cmi_driver_forget(void);

/* What a driver code means for a caller of the pool: out of memory -> OUT_OF_DEVICE_MEMORY, deinitialized -> SHUTTING_DOWN,
 * context destroyed/invalid -> DEVICE_LOST, capture codes -> CAPTURE, not supported -> UNSUPPORTED, else DRIVER. Also stores call and
 * code in the thread's error detail. CUDA_SUCCESS -> OK. */
cmpool_status cmi_driver_status(const char *driver_call, CUresult code);

/*
 * Around all driver calls off the hot path: makes `context` current and capture mode relaxed for this thread, and puts both back.
 * No early return between enter and leave. enter returns OK, or a status as cmi_driver_status (then leave must not be called).
 */
typedef struct cmi_driver_scope {
    const cmi_driver *driver;
    bool pushed, exchanged;
    CUstreamCaptureMode mode;
} cmi_driver_scope;
cmpool_status cmi_driver_enter(cmi_driver_scope *scope, const cmi_driver *driver, CUcontext context);
void cmi_driver_leave(cmi_driver_scope *scope);

#endif
