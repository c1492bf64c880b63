/*
 * What pools and the resolver offer to the rest of simcuda besides the functions that sim.h lists. All of it is called with sim.lock held.
 */
#ifndef SIM_OTHER_H
#define SIM_OTHER_H

#include "sim.h"

/* The host has observed more of what is done: pools give back what is over their release threshold. */
void sim_pool_synchronised(void);

/* Count a finding that `what` is not simulated, and say so on stderr the first time; returns CUDA_ERROR_NOT_SUPPORTED. */
CUresult sim_unsupported(const char *what, int *said);
/* The same for stubs and for the simulated runtime, which finds it by name; takes and leaves the lock itself. */
SIM_EXPORT void simcuda_say_unsupported(const char *name, int *said);

/* Exported in two forms: stream 0 is the legacy stream, or, with _ptsz, the thread's default stream; inner takes that last. */
#define SIM_BOTH_STREAMS(function, params, inner, ...)                                \
    SIM_EXPORT CUresult CUDAAPI function params { return inner(__VA_ARGS__, false); } \
    SIM_EXPORT CUresult CUDAAPI function##_ptsz params { return inner(__VA_ARGS__, true); }

#endif /* SIM_OTHER_H */
