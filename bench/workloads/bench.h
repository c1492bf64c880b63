/*
 * Benchmarks from inside: what a workload is, what it needs of an allocator and of a device, what it measures. A workload knows no
 * allocator; each allocator, ours and the others, is a table of functions, so all run the same code under the same clock. Nothing here is
 * locked: a run belongs to the thread that began it, and workers have slots of their own in a crew.
 */
#ifndef BENCH_H
#define BENCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cmi_trace;

/* ---- what is measured, and on what ------------------------------------------------------------------------------------------- */

/* Streams are CUstream handles; sizes are bytes as a program asks for them. Any thread may call, several at once. */
typedef struct bench_allocator {
    const char *name;
    const char *about;                         /* version and settings */
    bool frees_across_streams;                 /* give() may name another stream than take() did */
    int (*open)(void);                         /* the device is up and its context current; 0, or 3 with words on stderr */
    void *(*take)(size_t bytes, void *stream); /* NULL: refused */
    void (*give)(void *block, size_t bytes, void *stream);
    void (*use)(void *block, void *stream); /* the block is used on that stream too; NULL: the allocator has no such call */
    uint64_t (*host_bytes)(void);           /* host memory of the bookkeeping; NULL: the C library's count is taken */
} bench_allocator;

/* The allocators that need nothing but the driver; a shared library with another one exports bench_peer. */
const bench_allocator *bench_allocator_named(const char *name);
typedef const bench_allocator *bench_peer_function(void);

/* The device as far as a workload needs it. Functions return 0 or the driver's code. */
typedef struct bench_device {
    void *self;
    int (*stream_create)(void *self, void **stream);
    int (*order)(void *self, void *before, void *after); /* what follows on after comes behind what is on before */
    /* Of a simulated driver, else NULL: real time spent inside it, calls about memory, calls on which the host waited. */
    uint64_t (*inside_ns)(void), (*memory_calls)(void), (*host_waits)(void);
} bench_device;

/* ---- figures ------------------------------------------------------------------------------------------------------------------ */

typedef enum bench_figure {
#define BENCH_FIGURE(name, decimals, meaning) BENCH_##name,
#include "figures.def"
#undef BENCH_FIGURE
    BENCH_FIGURES
} bench_figure;
extern const struct bench_figure_words {
    const char *name;
    int decimals;
} bench_figure_words[BENCH_FIGURES];

/* ---- workloads ----------------------------------------------------------------------------------------------------------------- */

enum { BENCH_ROUNDS = 5, BENCH_MOST_WORKERS = 8 };

typedef struct bench_run bench_run;
typedef struct bench_workload {
    const char *name;
    void (*function)(bench_run *run);
    size_t bytes;        /* of a block, or the largest of a mix */
    uint64_t live;       /* blocks */
    unsigned workers;    /* threads or processes */
    uint64_t count;      /* operations a round, of each worker */
    const char *device;  /* size of a simulated one */
    const char *meaning; /* what one operation is */
} bench_workload;
extern const bench_workload bench_workloads[];
extern const size_t bench_workload_count;
/* That one's workers are processes, each with its own device. */
bool bench_is_processes(const bench_workload *workload);
bool bench_is_replay(const bench_workload *workload);
/* Why an allocator cannot run a workload, or NULL. */
const char *bench_cannot(const bench_workload *workload, const bench_allocator *allocator);

/* Rates of workers that run side by side, and the processor time that each one's operation took; processes share it. A rate is operations a
 * nanosecond. */
typedef struct bench_crew {
    pthread_barrier_t gate;
    unsigned workers;
    double rate[BENCH_ROUNDS][BENCH_MOST_WORKERS], cpu_ns[BENCH_ROUNDS][BENCH_MOST_WORKERS];
} bench_crew;
void bench_crew_begin(bench_crew *crew, unsigned workers, bool processes);
/* The round in which all together were quickest. */
void bench_crew_figures(const bench_crew *crew, unsigned rounds, double figures[BENCH_FIGURES]);

struct bench_run {
    const bench_workload *workload;
    const bench_allocator *allocator; /* when single calls are measured, one that times them and hands them on */
    const bench_device *device;
    const struct cmi_trace *trace; /* of replay */
    bench_crew *crew;              /* of processes: shared; else NULL */
    unsigned worker;               /* of processes: which one this is */
    uint64_t count, live;
    unsigned rounds, round;
    double start_ns, cpu_start_ns, inside_start_ns;
    double ns[BENCH_ROUNDS], cpu_ns[BENCH_ROUNDS], inside_ns[BENCH_ROUNDS]; /* an operation, of the rounds so far */
    uint64_t operations, memory_calls, host_waits;                          /* of all rounds */
    uint64_t refused;
    double figures[BENCH_FIGURES]; /* NAN: not measured */
};

/* Around each round; operations is what the time is divided by. */
void bench_round_begin(bench_run *run);
void bench_round_end(bench_run *run, uint64_t operations);
/* After the last: best and median of the rounds become figures. */
void bench_rounds_figures(bench_run *run);

/* ---- helpers (measure.c) -------------------------------------------------------------------------------------------------------- */

double bench_now_ns(void);
double bench_thread_ns(void); /* processor time of the calling thread */
void bench_fail(const char *what, int code) __attribute__((noreturn));
void *bench_memory(size_t count, size_t size);
void *bench_stream(const bench_run *run);
/* A block; a refusal ends the run. */
void *bench_take(const bench_run *run, size_t bytes, void *stream);
/* A sequence of numbers that is the same in each run: from 0 up to bound, exclusive. */
uint64_t bench_draw(uint64_t *state, uint64_t bound);
enum { BENCH_SEED = 88172645, BENCH_SIZES = 1 << 16 };
/* Log-uniform from 512 to largest; drawn ahead, so that their making is not measured. */
const size_t *bench_draw_sizes(size_t largest, uint64_t *state);

/* ---- single calls (latency.c) ---------------------------------------------------------------------------------------------------- */

/* An allocator that hands everything on and keeps how long each call took. One at a time. */
const bench_allocator *bench_latency_begin(const bench_allocator *inner, const bench_device *device);
/* Forget what was kept so far: what follows is to be measured. Called by bench_round_begin in the first round. */
void bench_latency_restart(void);
void bench_latency_end(double figures[BENCH_FIGURES]);

#ifdef __cplusplus
}
#endif

#endif
