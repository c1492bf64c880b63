/*
 * The functions of the runtime that are not simulated: each says its name once and returns cudaErrorNotSupported, also as the thread's
 * last error. Their arguments are left where the caller put them.
 */
#include "runtime/rt.h"

#define RT_STUB(name)                           \
    RT_API cudaError_t name(void);              \
    cudaError_t name(void)                      \
    {                                           \
        static int said;                        \
        rt_say_unsupported(#name, &said);       \
        return rt_leave(cudaErrorNotSupported); \
    }
#include "runtime/rt_stubs.def"
#undef RT_STUB
