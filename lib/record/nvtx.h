/*
 * What profilers and checkers are told of the pools, by NVTX: ranges and marks of a domain, a counter of live bytes for each pool, and
 * which addresses are blocks. A tool is there or not for the whole process; without one nothing is called. Every function is called without
 * any lock that a tool could need, the device's above all.
 */
#ifndef CMI_NVTX_H
#define CMI_NVTX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum cmi_step {
#define CMI_STEP(name, text, help) CMI_STEP_##name,
#include "record/steps.def"
#undef CMI_STEP
    CMI_STEPS
} cmi_step;

extern _Atomic bool cmi_nvtx_on __attribute__((visibility("hidden")));
static inline bool cmi_nvtx_is_on(void) { return __builtin_expect(atomic_load_explicit(&cmi_nvtx_on, memory_order_acquire), false); }

/* Start the tool that NVTX_INJECTION64_PATH names, if it does; once in a process. No lock held. */
void cmi_nvtx_open(void);
/* The library's code goes, or this is a fork's child: nothing is called any more. */
void cmi_nvtx_close(void);

void cmi_nvtx_step_begin(cmi_step step, uint64_t number);
void cmi_nvtx_step_end(void);
void cmi_nvtx_mark(cmi_step step, uint64_t number);
/* Around a driver call, after the lock was dropped and before it is taken again. */
static inline void cmi_step_begin(cmi_step step, uint64_t number)
{
    if (cmi_nvtx_is_on()) {
        cmi_nvtx_step_begin(step, number);
    }
}
static inline void cmi_step_end(void)
{
    if (cmi_nvtx_is_on()) {
        cmi_nvtx_step_end();
    }
}

/* A pool's live bytes; pool: its number in the process, device: its ordinal. */
void cmi_nvtx_sample(uint64_t pool, int device, uint64_t live_bytes);

/* A block was handed out, in this range of addresses; and before it can be anybody else's, it is given back. */
typedef struct cmi_nvtx_block {
    uint64_t range, range_bytes, address, bytes;
} cmi_nvtx_block;
void cmi_nvtx_alloc(const cmi_nvtx_block *block);
void cmi_nvtx_free(uint64_t address);

#endif
