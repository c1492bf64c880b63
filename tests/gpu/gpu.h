/*
 * What the device checks share: programs that run on a real GPU, with a driver and nothing else installed, and as a rehearsal on the
 * simulated device. Each is one part of tools/gpu-check.sh: a table of cases, of which each says what came of it as JSON lines on stdout.
 * Exit status: 0 nothing failed, 1 something did, 2 wrong usage, 3 the device cannot be used, 77 there is none.
 * The device is number 0; CUDA_VISIBLE_DEVICES chooses which one that is.
 */
#ifndef GPU_H
#define GPU_H

#include "gpu_abi.h"

#include <cudamempool/cudamempool.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- the device --------------------------------------------------------------------------------------------------------------- */

typedef struct gpu_driver {
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) result(CUDAAPI *field) params;
#include "driver/driver_syms.def"
#include "gpu_syms.def"
#undef CMI_DRIVER_SYMBOL
} gpu_driver;

extern gpu_driver cu;
extern CUcontext gpu_context; /* the primary one of device 0, current in the main thread */
extern bool gpu_simulated;    /* simcuda: nothing that is said holds for a GPU */
extern int gpu_driver_version;
extern int gpu_capability; /* 90 is 9.0 */

int gpu_attribute(CUdevice_attribute attribute);
bool gpu_is_exclusive(void); /* to one process */
size_t gpu_free_bytes(void);
double gpu_now_us(void);
/* "CUDA_ERROR_NOT_FOUND" */
const char *gpu_code(CUresult code);
CUstream gpu_stream(void); /* non-blocking; kept until the process ends */
CUevent gpu_event(void);   /* without timing; likewise */

/* ---- cases and what they say ------------------------------------------------------------------------------------------------------ */

typedef struct gpu_case {
    const char *name;
    void (*run)(void);
    bool by_name_only; /* what another case starts in a process of its own */
} gpu_case;

/* Runs the cases that the arguments name, all but those without any, on the device. Returns the exit status. */
int gpu_main(const gpu_case *cases, size_t count, int argc, char **argv);
#define GPU_MAIN(cases) \
    int main(int argc, char **argv) { return gpu_main(cases, sizeof cases / sizeof *cases, argc, argv); }

/* The running case has failed; it passes if it ends without having said so. Any thread. */
void gpu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The running case cannot be tried here: it counts as skipped. */
void gpu_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A question, what was found out, and, with a unit, how much: a line of its own beside the case's. */
void gpu_answer(const char *question, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gpu_figure(const char *question, double value, const char *unit, const char *format, ...) __attribute__((format(printf, 4, 5)));
void gpu_no_answer(const char *question, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In cases: leave the case if a call of the driver, a call of the library, or a condition is not as it must be. */
#define MUST(call)                                          \
    do {                                                    \
        CUresult code_ = (call);                            \
        if (code_ != CUDA_SUCCESS) {                        \
            gpu_fail("%s gave %s", #call, gpu_code(code_)); \
            return;                                         \
        }                                                   \
    } while (0)
#define DONE(call) GIVES(CMPOOL_OK, call)
#define GIVES(status, call)                                                                                            \
    do {                                                                                                               \
        cmpool_status status_ = (call);                                                                                \
        if (status_ != (status)) {                                                                                     \
            gpu_fail("%s gave %s (driver: %s)", #call, cmpool_status_name(status_), cmpool_last_error()->driver_call); \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define EXPECT(condition, ...)     \
    do {                           \
        if (!(condition)) {        \
            gpu_fail(__VA_ARGS__); \
            return;                \
        }                          \
    } while (0)

/* ---- work on the device (gpu_work.c) ------------------------------------------------------------------------------------------------ */

/*
 * Kernels. On the simulated device, which executes none, a fill is a memset and a check a copy to the host, so that its own checker watches
 * what is touched in which order. Addresses and sizes are multiples of 4. Each call fails the case if the driver refuses.
 */
void gpu_work_start(void);
void gpu_fill(CUstream stream, const void *address, size_t bytes, uint32_t seed);
/* Compares with what a fill with this seed writes, when the stream gets there. */
void gpu_check(CUstream stream, const void *address, size_t bytes, uint32_t seed);
/* Waits for the device; how many words all checks since the last call have found wrong. */
uint64_t gpu_wrong_words(void);
void gpu_spin(CUstream stream, uint64_t nanoseconds);

/* A kernel that holds its stream until the gate is opened, or until it gives up. At most GPU_GATES in a process. */
enum { GPU_GATES = 1000 };
#define GPU_PATIENCE_NS UINT64_C(2000000000)
int gpu_gate_close(CUstream stream, uint64_t patience_ns);
void gpu_gate_open(int gate);
/* After its stream was waited for: whether it gave up, so that something waited for the device that should not have. On the simulated
 * device a wait of the host opens gates, and this is never told. */
bool gpu_gate_gave_up(int gate);

/*
 * Fills one address late and compares the other by a kernel that may start before the first has written, and that waits for it there or, to
 * show that it did start, does not (dependent.ptx). False where the device has no such launches.
 */
bool gpu_dependent_launch(CUstream stream, const void *to, const void *from, size_t bytes, uint32_t seed, bool waits);

#endif
