/*
 * The project's own declarations of the driver API (lib/driver/driver_abi.h and its lists) against the toolkit's cuda.h: compiling this
 * file is the test. Prototypes are compared with those of cuda.h and with the version of each function that cudaTypedefs.h knows;
 * constants by value; types by size, alignment, and the offset and size of every field.
 */
#include <cuda.h>

#if CUDA_VERSION < 13000
#pragma message("the driver's types are compared with CUDA 13.0 or newer only")
#else

#include <cudaTypedefs.h>

#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)

/* ---- prototypes --------------------------------------------------------------------------------- */

#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params)                                         \
    _Static_assert(SAME_TYPE(__typeof__(&exported), result(CUDAAPI *) params), #exported " differs from cuda.h"); \
    _Static_assert(SAME_TYPE(PFN_cu##field##_v##version, result(CUDAAPI *) params), "cu" #field " is not of " #version);
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL

/* Proof that these can fail: the form of CUDA 12.5 is another one, and so is a prototype with one parameter of another type. */
_Static_assert(!SAME_TYPE(PFN_cuStreamGetCtx_v12050, __typeof__(&cuStreamGetCtx)), "two versions of a function cannot be told apart");
_Static_assert(!SAME_TYPE(__typeof__(&cuMemUnmap), CUresult(CUDAAPI *)(CUdeviceptr, unsigned)), "prototypes cannot be told apart");

/* ---- constants ---------------------------------------------------------------------------------- */

#define CMI_DRIVER_ENUM(type)
#define CMI_DRIVER_VALUE(type, name, number) \
    _Static_assert(name == (number) && SAME_TYPE(__typeof__((type)name), type), #name " has another number in cuda.h");
#define CMI_DRIVER_ENUM_END(type)
#include "driver/driver_enums.def"
#undef CMI_DRIVER_ENUM
#undef CMI_DRIVER_VALUE
#undef CMI_DRIVER_ENUM_END

/* Constants that are macros in both. */
#define MACROS(MACRO)                    \
    MACRO(CU_MEMHOSTALLOC_PORTABLE)      \
    MACRO(CU_MEMHOSTALLOC_DEVICEMAP)     \
    MACRO(CU_MEMHOSTALLOC_WRITECOMBINED) \
    MACRO(CU_MEMHOSTREGISTER_PORTABLE)   \
    MACRO(CU_MEMHOSTREGISTER_DEVICEMAP)  \
    MACRO(CU_MEMHOSTREGISTER_IOMEMORY)   \
    MACRO(CU_MEMHOSTREGISTER_READ_ONLY)  \
    MACRO(CU_IPC_HANDLE_SIZE)            \
    MACRO(CU_DEVICE_CPU)                 \
    MACRO(CU_DEVICE_INVALID)
enum {
#define MACRO(name) their_##name = name,
    MACROS(MACRO)
#undef MACRO
};
#undef CU_MEMHOSTALLOC_PORTABLE
#undef CU_MEMHOSTALLOC_DEVICEMAP
#undef CU_MEMHOSTALLOC_WRITECOMBINED
#undef CU_MEMHOSTREGISTER_PORTABLE
#undef CU_MEMHOSTREGISTER_DEVICEMAP
#undef CU_MEMHOSTREGISTER_IOMEMORY
#undef CU_MEMHOSTREGISTER_READ_ONLY
#undef CU_IPC_HANDLE_SIZE
#undef CU_DEVICE_CPU
#undef CU_DEVICE_INVALID
#undef CUDA_VERSION

/* ---- types -------------------------------------------------------------------------------------- */

/*
 * Both headers are read. C takes a typedef twice if it names the same type both times, so plain types, handles and callbacks are compared
 * by that alone. Structures and enumerations of ours get a name of their own: one that is added to driver_abi.h and not named here does
 * not compile.
 */
#define CMI_ABI_NAME(name) our_##name
#define CUuuid_st our_CUuuid_st
#define CUuuid our_CUuuid
#define CUipcEventHandle_st our_CUipcEventHandle_st
#define CUipcEventHandle our_CUipcEventHandle
#define CUipcMemHandle_st our_CUipcMemHandle_st
#define CUipcMemHandle our_CUipcMemHandle
#define CUmemLocation_st our_CUmemLocation_st
#define CUmemLocation our_CUmemLocation
#define CUmemAllocationProp_st our_CUmemAllocationProp_st
#define CUmemAllocationProp our_CUmemAllocationProp
#define CUmemAccessDesc_st our_CUmemAccessDesc_st
#define CUmemAccessDesc our_CUmemAccessDesc
#define CUmemPoolProps_st our_CUmemPoolProps_st
#define CUmemPoolProps our_CUmemPoolProps
#define CUmemPoolPtrExportData_st our_CUmemPoolPtrExportData_st
#define CUmemPoolPtrExportData our_CUmemPoolPtrExportData
#define CUDA_MEMCPY2D_st our_CUDA_MEMCPY2D_st
#define CUDA_MEMCPY2D our_CUDA_MEMCPY2D
#define CUDA_MEMCPY3D_st our_CUDA_MEMCPY3D_st
#define CUDA_MEMCPY3D our_CUDA_MEMCPY3D
#define CUDA_MEMCPY3D_PEER_st our_CUDA_MEMCPY3D_PEER_st
#define CUDA_MEMCPY3D_PEER our_CUDA_MEMCPY3D_PEER
#define CUDA_MEMSET_NODE_PARAMS_st our_CUDA_MEMSET_NODE_PARAMS_st
#define CUDA_MEMSET_NODE_PARAMS_v1 our_CUDA_MEMSET_NODE_PARAMS_v1
#define CUDA_HOST_NODE_PARAMS_st our_CUDA_HOST_NODE_PARAMS_st
#define CUDA_HOST_NODE_PARAMS_v1 our_CUDA_HOST_NODE_PARAMS_v1
#define CUasyncNotificationInfo_st our_CUasyncNotificationInfo_st
#define CUasyncNotificationInfo our_CUasyncNotificationInfo
#define CUasyncCallback our_CUasyncCallback
#define CUgraphEdgeData_st our_CUgraphEdgeData_st
#define CUgraphEdgeData our_CUgraphEdgeData
#define CUDA_GRAPH_INSTANTIATE_PARAMS_st our_CUDA_GRAPH_INSTANTIATE_PARAMS_st
#define CUDA_GRAPH_INSTANTIATE_PARAMS our_CUDA_GRAPH_INSTANTIATE_PARAMS
#define CUgraphExecUpdateResultInfo_st our_CUgraphExecUpdateResultInfo_st
#define CUgraphExecUpdateResultInfo our_CUgraphExecUpdateResultInfo

#undef __cuda_cuda_h__ /* so that driver_abi.h does not leave everything to cuda.h */
#undef CU_UUID_HAS_BEEN_DEFINED
#include "driver/driver_abi.h"

#define MACRO(name) _Static_assert((int)(name) == their_##name, #name " has another value");
MACROS(MACRO)
#undef MACRO

#undef CUuuid
#undef CUipcEventHandle
#undef CUipcMemHandle
#undef CUmemLocation
#undef CUmemAllocationProp
#undef CUmemAccessDesc
#undef CUmemPoolProps
#undef CUmemPoolPtrExportData
#undef CUDA_MEMCPY2D
#undef CUDA_MEMCPY3D
#undef CUDA_MEMCPY3D_PEER
#undef CUDA_MEMSET_NODE_PARAMS_v1
#undef CUDA_HOST_NODE_PARAMS_v1
#undef CUasyncNotificationInfo
#undef CUasyncCallback
#undef CUgraphEdgeData
#undef CUDA_GRAPH_INSTANTIATE_PARAMS
#undef CUgraphExecUpdateResultInfo

#define CMI_DRIVER_ENUM(type) _Static_assert(sizeof(our_##type) == sizeof(type), #type " has another size");
#define CMI_DRIVER_VALUE(type, name, number)
#define CMI_DRIVER_ENUM_END(type)
#include "driver/driver_enums.def"
#undef CMI_DRIVER_ENUM
#undef CMI_DRIVER_VALUE
#undef CMI_DRIVER_ENUM_END

#define STRUCT(type)                                                               \
    _Static_assert(sizeof(our_##type) == sizeof(type), #type " has another size"); \
    _Static_assert(_Alignof(our_##type) == _Alignof(type), #type " has another alignment");
#define FIELD(type, field)                                                                                        \
    _Static_assert(offsetof(our_##type, field) == offsetof(type, field), #type "." #field " has another offset"); \
    _Static_assert(sizeof(((our_##type *)0)->field) == sizeof(((type *)0)->field), #type "." #field " has another size");

STRUCT(CUuuid)
FIELD(CUuuid, bytes)

STRUCT(CUipcEventHandle)
FIELD(CUipcEventHandle, reserved)

STRUCT(CUipcMemHandle)
FIELD(CUipcMemHandle, reserved)

STRUCT(CUasyncNotificationInfo)
FIELD(CUasyncNotificationInfo, type)
FIELD(CUasyncNotificationInfo, info.overBudget.bytesOverBudget)

STRUCT(CUmemLocation)
FIELD(CUmemLocation, type)
FIELD(CUmemLocation, id)

STRUCT(CUmemAllocationProp)
FIELD(CUmemAllocationProp, type)
FIELD(CUmemAllocationProp, requestedHandleTypes)
FIELD(CUmemAllocationProp, location)
FIELD(CUmemAllocationProp, win32HandleMetaData)
FIELD(CUmemAllocationProp, allocFlags.compressionType)
FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
FIELD(CUmemAllocationProp, allocFlags.usage)
FIELD(CUmemAllocationProp, allocFlags.reserved)

STRUCT(CUmemAccessDesc)
FIELD(CUmemAccessDesc, location)
FIELD(CUmemAccessDesc, flags)

STRUCT(CUmemPoolProps)
FIELD(CUmemPoolProps, allocType)
FIELD(CUmemPoolProps, handleTypes)
FIELD(CUmemPoolProps, location)
FIELD(CUmemPoolProps, win32SecurityAttributes)
FIELD(CUmemPoolProps, maxSize)
FIELD(CUmemPoolProps, usage)
FIELD(CUmemPoolProps, reserved)

STRUCT(CUmemPoolPtrExportData)
FIELD(CUmemPoolPtrExportData, reserved)

STRUCT(CUDA_MEMCPY2D)
FIELD(CUDA_MEMCPY2D, srcXInBytes)
FIELD(CUDA_MEMCPY2D, srcY)
FIELD(CUDA_MEMCPY2D, srcMemoryType)
FIELD(CUDA_MEMCPY2D, srcHost)
FIELD(CUDA_MEMCPY2D, srcDevice)
FIELD(CUDA_MEMCPY2D, srcArray)
FIELD(CUDA_MEMCPY2D, srcPitch)
FIELD(CUDA_MEMCPY2D, dstXInBytes)
FIELD(CUDA_MEMCPY2D, dstY)
FIELD(CUDA_MEMCPY2D, dstMemoryType)
FIELD(CUDA_MEMCPY2D, dstHost)
FIELD(CUDA_MEMCPY2D, dstDevice)
FIELD(CUDA_MEMCPY2D, dstArray)
FIELD(CUDA_MEMCPY2D, dstPitch)
FIELD(CUDA_MEMCPY2D, WidthInBytes)
FIELD(CUDA_MEMCPY2D, Height)

STRUCT(CUDA_MEMCPY3D)
FIELD(CUDA_MEMCPY3D, srcXInBytes)
FIELD(CUDA_MEMCPY3D, srcY)
FIELD(CUDA_MEMCPY3D, srcZ)
FIELD(CUDA_MEMCPY3D, srcLOD)
FIELD(CUDA_MEMCPY3D, srcMemoryType)
FIELD(CUDA_MEMCPY3D, srcHost)
FIELD(CUDA_MEMCPY3D, srcDevice)
FIELD(CUDA_MEMCPY3D, srcArray)
FIELD(CUDA_MEMCPY3D, reserved0)
FIELD(CUDA_MEMCPY3D, srcPitch)
FIELD(CUDA_MEMCPY3D, srcHeight)
FIELD(CUDA_MEMCPY3D, dstXInBytes)
FIELD(CUDA_MEMCPY3D, dstY)
FIELD(CUDA_MEMCPY3D, dstZ)
FIELD(CUDA_MEMCPY3D, dstLOD)
FIELD(CUDA_MEMCPY3D, dstMemoryType)
FIELD(CUDA_MEMCPY3D, dstHost)
FIELD(CUDA_MEMCPY3D, dstDevice)
FIELD(CUDA_MEMCPY3D, dstArray)
FIELD(CUDA_MEMCPY3D, reserved1)
FIELD(CUDA_MEMCPY3D, dstPitch)
FIELD(CUDA_MEMCPY3D, dstHeight)
FIELD(CUDA_MEMCPY3D, WidthInBytes)
FIELD(CUDA_MEMCPY3D, Height)
FIELD(CUDA_MEMCPY3D, Depth)

STRUCT(CUDA_MEMCPY3D_PEER)
FIELD(CUDA_MEMCPY3D_PEER, srcXInBytes)
FIELD(CUDA_MEMCPY3D_PEER, srcY)
FIELD(CUDA_MEMCPY3D_PEER, srcZ)
FIELD(CUDA_MEMCPY3D_PEER, srcLOD)
FIELD(CUDA_MEMCPY3D_PEER, srcMemoryType)
FIELD(CUDA_MEMCPY3D_PEER, srcHost)
FIELD(CUDA_MEMCPY3D_PEER, srcDevice)
FIELD(CUDA_MEMCPY3D_PEER, srcArray)
FIELD(CUDA_MEMCPY3D_PEER, srcContext)
FIELD(CUDA_MEMCPY3D_PEER, srcPitch)
FIELD(CUDA_MEMCPY3D_PEER, srcHeight)
FIELD(CUDA_MEMCPY3D_PEER, dstXInBytes)
FIELD(CUDA_MEMCPY3D_PEER, dstY)
FIELD(CUDA_MEMCPY3D_PEER, dstZ)
FIELD(CUDA_MEMCPY3D_PEER, dstLOD)
FIELD(CUDA_MEMCPY3D_PEER, dstMemoryType)
FIELD(CUDA_MEMCPY3D_PEER, dstHost)
FIELD(CUDA_MEMCPY3D_PEER, dstDevice)
FIELD(CUDA_MEMCPY3D_PEER, dstArray)
FIELD(CUDA_MEMCPY3D_PEER, dstContext)
FIELD(CUDA_MEMCPY3D_PEER, dstPitch)
FIELD(CUDA_MEMCPY3D_PEER, dstHeight)
FIELD(CUDA_MEMCPY3D_PEER, WidthInBytes)
FIELD(CUDA_MEMCPY3D_PEER, Height)
FIELD(CUDA_MEMCPY3D_PEER, Depth)

STRUCT(CUDA_MEMSET_NODE_PARAMS_v1)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, dst)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, pitch)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, value)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, elementSize)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, width)
FIELD(CUDA_MEMSET_NODE_PARAMS_v1, height)

STRUCT(CUDA_HOST_NODE_PARAMS_v1)
FIELD(CUDA_HOST_NODE_PARAMS_v1, fn)
FIELD(CUDA_HOST_NODE_PARAMS_v1, userData)

STRUCT(CUgraphEdgeData)
FIELD(CUgraphEdgeData, from_port)
FIELD(CUgraphEdgeData, to_port)
FIELD(CUgraphEdgeData, type)
FIELD(CUgraphEdgeData, reserved)

STRUCT(CUDA_GRAPH_INSTANTIATE_PARAMS)
FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, flags)
FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream)
FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, hErrNode_out)
FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out)

STRUCT(CUgraphExecUpdateResultInfo)
FIELD(CUgraphExecUpdateResultInfo, result)
FIELD(CUgraphExecUpdateResultInfo, errorNode)
FIELD(CUgraphExecUpdateResultInfo, errorFromNode)

/* Proof that these can fail. */
_Static_assert(offsetof(our_CUmemAllocationProp, location) != offsetof(CUmemAllocationProp, win32HandleMetaData), "offsets are all alike");

#endif
