/*
 * One stub for every driver function that is not simulated: it says its name, counts a finding and refuses, whatever its arguments are.
 * Generated from sim_symbols.def; no header with the functions' real prototypes may be included here.
 */
extern void simcuda_say_unsupported(const char *name, int *said);

#define NOT_SUPPORTED 801 /* CUDA_ERROR_NOT_SUPPORTED */

#define SIM_STUB(name, symbol, since, stream)               \
    __attribute__((visibility("default"))) int symbol(void) \
    {                                                       \
        static int said;                                    \
        simcuda_say_unsupported(#symbol, &said);            \
        return NOT_SUPPORTED;                               \
    }
#include "sim_symbols.def"
