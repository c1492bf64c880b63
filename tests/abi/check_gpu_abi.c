/*
 * The driver functions and types that the device checks declare for themselves (tests/gpu) against the toolkit's cuda.h: compiling this
 * file is the test. See check_driver_abi.c.
 */
#include <cuda.h>

#if CUDA_VERSION >= 13000

#include <cudaTypedefs.h>

#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)

#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params)                                         \
    _Static_assert(SAME_TYPE(__typeof__(&exported), result(CUDAAPI *) params), #exported " differs from cuda.h"); \
    _Static_assert(SAME_TYPE(PFN_cu##field##_v##version, result(CUDAAPI *) params), "cu" #field " is not of " #version);
#include "../gpu/gpu_syms.def"
#undef CMI_DRIVER_SYMBOL

enum { their_attribute = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION };

#define CUlaunchAttribute_st our_CUlaunchAttribute_st
#define CUlaunchAttribute our_CUlaunchAttribute
#define CUlaunchConfig_st our_CUlaunchConfig_st
#define CUlaunchConfig our_CUlaunchConfig
#include "../gpu/gpu_abi.h"
#undef CUlaunchAttribute
#undef CUlaunchConfig

_Static_assert((int)GPU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION == (int)their_attribute, "the attribute has another number");

#define SAME_FIELD(type, field)                                                                                                            \
    _Static_assert(offsetof(type, field) == offsetof(our_##type, field) && sizeof(((type *)0)->field) == sizeof(((our_##type *)0)->field), \
                   #type "." #field " differs")
#define SAME_SIZE(type) _Static_assert(sizeof(type) == sizeof(our_##type) && _Alignof(type) == _Alignof(our_##type), #type " differs")

SAME_SIZE(CUlaunchAttribute);
SAME_FIELD(CUlaunchAttribute, id);
SAME_FIELD(CUlaunchAttribute, value);
SAME_FIELD(CUlaunchAttribute, value.programmaticStreamSerializationAllowed);
SAME_SIZE(CUlaunchConfig);
SAME_FIELD(CUlaunchConfig, gridDimX);
SAME_FIELD(CUlaunchConfig, gridDimZ);
SAME_FIELD(CUlaunchConfig, blockDimX);
SAME_FIELD(CUlaunchConfig, blockDimZ);
SAME_FIELD(CUlaunchConfig, sharedMemBytes);
SAME_FIELD(CUlaunchConfig, hStream);
SAME_FIELD(CUlaunchConfig, attrs);
SAME_FIELD(CUlaunchConfig, numAttrs);

#endif
