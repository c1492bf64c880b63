/*
 * What the driver's codes mean to a caller of the library, and what they are called. No state, no lock.
 * Called after every driver call that did not succeed.
 */
#include "driver/driver.h"

#include "base/base.h"

static cmpool_status status_of(CUresult code)
{
    switch (code) {
    case CUDA_SUCCESS:
        return CMPOOL_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
    case CUDA_ERROR_DEINITIALIZED:
        return CMPOOL_ERR_SHUTTING_DOWN;
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return CMPOOL_ERR_DRIVER_MISSING;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
        return CMPOOL_ERR_UNSUPPORTED;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        return CMPOOL_ERR_CAPTURE;
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    /* After these the context answers nothing else; CUDA asks for a new process. */
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
        return CMPOOL_ERR_DEVICE_LOST;
    default:
        return CMPOOL_ERR_DRIVER;
    }
}

cmpool_status cmi_driver_status(const char *driver_call, CUresult code)
{
    if (code != CUDA_SUCCESS) {
        cmpool_error *detail = cmi_error_detail();
        detail->driver_call = driver_call;
        detail->driver_code = (int)code;
    }
    return status_of(code);
}

const char *cmi_driver_code_name(CUresult code)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {
#define CMI_DRIVER_VALUE(type, name, number) {number, #name},
#include "driver/driver_codes.def"
#undef CMI_DRIVER_VALUE
    };
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(names); i++)
        if (names[i].code == (int)code)
            return names[i].name;
    return "an unknown code";
}
