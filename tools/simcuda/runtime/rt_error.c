/*
 * Errors, versions and driver entry points of the simulated runtime. No state of its own: the last error belongs to rt_load.c.
 */
#include "runtime/rt.h"

RT_API cudaError_t cudaGetLastError(void);
RT_API cudaError_t cudaPeekAtLastError(void);
RT_API const char *cudaGetErrorName(cudaError_t code);
RT_API const char *cudaGetErrorString(cudaError_t code);
RT_API cudaError_t cudaRuntimeGetVersion(int *version);
RT_API cudaError_t cudaDriverGetVersion(int *version);

cudaError_t cudaGetLastError(void)
{
    rt_load();
    return rt_last_error(true);
}

cudaError_t cudaPeekAtLastError(void)
{
    rt_load();
    return rt_last_error(false);
}

const char *cudaGetErrorName(cudaError_t code)
{
    switch ((int)code) {
#define SIM_ERROR(number, name, text) \
    case number:                      \
        return #name;
#include "sim_errors.def"
#undef SIM_ERROR
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch ((int)code) {
#define SIM_ERROR(number, name, text) \
    case number:                      \
        return text;
#include "sim_errors.def"
#undef SIM_ERROR
    default:
        return "unrecognized error code";
    }
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == NULL) {
        return rt_leave(cudaErrorInvalidValue);
    }
    *version = SIM_RUNTIME_VERSION;
    return cudaSuccess;
}

/* Without a driver the version is 0, and that is not an error. */
cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == NULL) {
        return rt_leave(cudaErrorInvalidValue);
    }
    *version = 0;
    if (rt_load() == cudaErrorInsufficientDriver) {
        return cudaSuccess;
    }
    return rt_leave(RT_CALL(DriverGetVersion, (version)));
}

static cudaError_t entry_point(const char *symbol, void **function, unsigned int version, unsigned long long flags,
                               CUdriverProcAddressQueryResult *status)
{
    cudaError_t code = rt_load();
    if (code == cudaSuccess && function == NULL) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        code = rt_code(rt.get_proc_address(symbol, function, (int)version, flags, status));
    }
    return rt_leave(code);
}

#define ENTRY_POINT(suffix, default_flags)                                                                                         \
    RT_API cudaError_t cudaGetDriverEntryPointByVersion##suffix(const char *symbol, void **function, unsigned int version,         \
                                                                unsigned long long flags, CUdriverProcAddressQueryResult *status); \
    RT_API cudaError_t cudaGetDriverEntryPoint##suffix(const char *symbol, void **function, unsigned long long flags,              \
                                                       CUdriverProcAddressQueryResult *status);                                    \
    cudaError_t cudaGetDriverEntryPointByVersion##suffix(const char *symbol, void **function, unsigned int version,                \
                                                         unsigned long long flags, CUdriverProcAddressQueryResult *status)         \
    {                                                                                                                              \
        return entry_point(symbol, function, version, flags == 0 ? (default_flags) : flags, status);                               \
    }                                                                                                                              \
    cudaError_t cudaGetDriverEntryPoint##suffix(const char *symbol, void **function, unsigned long long flags,                     \
                                                CUdriverProcAddressQueryResult *status)                                            \
    {                                                                                                                              \
        return entry_point(symbol, function, SIM_RUNTIME_VERSION, flags == 0 ? (default_flags) : flags, status);                   \
    }

ENTRY_POINT(, CU_GET_PROC_ADDRESS_LEGACY_STREAM)
ENTRY_POINT(_ptsz, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
