/*
 * The project's own declarations of NVTX (lib/record/nvtx_abi.h) against a toolkit's nvtx3 headers: compiling this file is the test. Types
 * by size and the offset and size of every field, numbers by value, functions by their parameters' kinds. Headers without the counter
 * extension are too old to compare with.
 */
#if __has_include(<nvtx3/nvToolsExtCounters.h>)

#include <nvtx3/nvToolsExtCounters.h>
#include <nvtx3/nvToolsExtMem.h>

#include "record/nvtx_abi.h"

#define EQUAL(a, b) _Static_assert((uint64_t)(a) == (uint64_t)(b), #a " is not " #b)
#define SAME_SIZE(a, b) _Static_assert(sizeof(a) == sizeof(b) && _Alignof(a) == _Alignof(b), #a " is not like " #b)
#define FIELD(a, x, b, y) \
    _Static_assert(offsetof(a, x) == offsetof(b, y) && sizeof(((a *)0)->x) == sizeof(((b *)0)->y), #a "." #x " is not like " #b "." #y)

EQUAL(CMI_NVTX_VERSION, NVTX_VERSION);
EQUAL(CMI_NVTX_ATTRIBUTES_VERSION, NVTX_VERSION);
EQUAL(CMI_NVTX_TABLE_CALLBACKS, NVTX_ETID_CALLBACKS);
EQUAL(CMI_NVTX_TABLE_VERSION, NVTX_ETID_VERSIONINFO);
EQUAL(CMI_NVTX_CORE, NVTX_CB_MODULE_CORE);
EQUAL(CMI_NVTX_CUDA, NVTX_CB_MODULE_CUDA);
EQUAL(CMI_NVTX_OPENCL, NVTX_CB_MODULE_OPENCL);
EQUAL(CMI_NVTX_CUDART, NVTX_CB_MODULE_CUDART);
EQUAL(CMI_NVTX_CORE2, NVTX_CB_MODULE_CORE2);
EQUAL(CMI_NVTX_SYNC, NVTX_CB_MODULE_SYNC);
EQUAL(CMI_NVTX_CORE_PLACES, NVTX_CBID_CORE_SIZE);
EQUAL(CMI_NVTX_CUDA_PLACES, NVTX_CBID_CUDA_SIZE);
EQUAL(CMI_NVTX_OPENCL_PLACES, NVTX_CBID_OPENCL_SIZE);
EQUAL(CMI_NVTX_CUDART_PLACES, NVTX_CBID_CUDART_SIZE);
EQUAL(CMI_NVTX_CORE2_PLACES, NVTX_CBID_CORE2_SIZE);
EQUAL(CMI_NVTX_SYNC_PLACES, NVTX_CBID_SYNC_SIZE);
EQUAL(CMI_NVTX_RANGE_PUSH, NVTX_CBID_CORE_RangePushEx);
EQUAL(CMI_NVTX_RANGE_PUSH_ASCII, NVTX_CBID_CORE_RangePushA);
EQUAL(CMI_NVTX_RANGE_PUSH_WIDE, NVTX_CBID_CORE_RangePushW);
EQUAL(CMI_NVTX_RANGE_POP, NVTX_CBID_CORE_RangePop);
EQUAL(CMI_NVTX_DOMAIN_STRING, NVTX_CBID_CORE2_DomainRegisterStringA);
EQUAL(CMI_NVTX_MESSAGE_UNICODE, NVTX_MESSAGE_TYPE_UNICODE);
EQUAL(CMI_NVTX_MESSAGE_REGISTERED, NVTX_MESSAGE_TYPE_REGISTERED);
EQUAL(CMI_NVTX_DOMAIN_MARK, NVTX_CBID_CORE2_DomainMarkEx);
EQUAL(CMI_NVTX_DOMAIN_PUSH, NVTX_CBID_CORE2_DomainRangePushEx);
EQUAL(CMI_NVTX_DOMAIN_POP, NVTX_CBID_CORE2_DomainRangePop);
EQUAL(CMI_NVTX_DOMAIN_CREATE, NVTX_CBID_CORE2_DomainCreateA);
EQUAL(CMI_NVTX_DOMAIN_DESTROY, NVTX_CBID_CORE2_DomainDestroy);
EQUAL(CMI_NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);
EQUAL(CMI_NVTX_PAYLOAD_UINT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
EQUAL(CMI_NVTX_EXTENSION_PLACES, NVTX_EXT_MEM_SLOT_COUNT);
EQUAL(CMI_NVTX_EXTENSION_PLACES, NVTX_EXT_COUNTERS_SLOT_COUNT);
EQUAL(CMI_NVTX_PLACE_OFF, NVTX_EXTENSION_DISABLED);
EQUAL(CMI_NVTX_MEMORY, NVTX_EXT_MODULEID_MEM);
EQUAL(CMI_NVTX_MEMORY_VERSION, NVTX_EXT_COMPATID_MEM);
EQUAL(CMI_NVTX_HEAP_REGISTER, NVTX3EXT_CBID_nvtxMemHeapRegister);
EQUAL(CMI_NVTX_HEAP_UNREGISTER, NVTX3EXT_CBID_nvtxMemHeapUnregister);
EQUAL(CMI_NVTX_REGIONS_REGISTER, NVTX3EXT_CBID_nvtxMemRegionsRegister);
EQUAL(CMI_NVTX_REGIONS_UNREGISTER, NVTX3EXT_CBID_nvtxMemRegionsUnregister);
EQUAL(CMI_NVTX_SUB_ALLOCATOR, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
EQUAL(CMI_NVTX_VIRTUAL_ADDRESS, NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
EQUAL(CMI_NVTX_BY_POINTER, NVTX_MEM_REGION_REF_TYPE_POINTER);
EQUAL(CMI_NVTX_COUNTERS, NVTX_EXT_COUNTERS_MODULEID);
EQUAL(CMI_NVTX_COUNTERS_VERSION, NVTX_EXT_COUNTERS_COMPATID);
EQUAL(CMI_NVTX_COUNTER_REGISTER, NVTX3EXT_CBID_nvtxCounterRegister);
EQUAL(CMI_NVTX_COUNTER_SAMPLE_INT64, NVTX3EXT_CBID_nvtxCounterSampleInt64);
EQUAL(CMI_NVTX_TYPE_INT64, NVTX_PAYLOAD_ENTRY_TYPE_INT64);
EQUAL(CMI_NVTX_SCOPE_PROCESS, NVTX_SCOPE_CURRENT_SW_PROCESS);

SAME_SIZE(cmi_nvtx_callbacks, NvtxExportTableCallbacks);
FIELD(cmi_nvtx_callbacks, size, NvtxExportTableCallbacks, struct_size);
FIELD(cmi_nvtx_callbacks, get_places, NvtxExportTableCallbacks, GetModuleFunctionTable);
SAME_SIZE(cmi_nvtx_version, NvtxExportTableVersionInfo);
FIELD(cmi_nvtx_version, version, NvtxExportTableVersionInfo, version);
FIELD(cmi_nvtx_version, set_tool_version, NvtxExportTableVersionInfo, SetInjectionNvtxVersion);
SAME_SIZE(cmi_nvtx_segment, nvtxExtModuleSegment_t);
FIELD(cmi_nvtx_segment, count, nvtxExtModuleSegment_t, slotCount);
FIELD(cmi_nvtx_segment, places, nvtxExtModuleSegment_t, functionSlots);
SAME_SIZE(cmi_nvtx_extension, nvtxExtModuleInfo_t);
FIELD(cmi_nvtx_extension, nvtx_version, nvtxExtModuleInfo_t, nvtxVer);
FIELD(cmi_nvtx_extension, size, nvtxExtModuleInfo_t, structSize);
FIELD(cmi_nvtx_extension, number, nvtxExtModuleInfo_t, moduleId);
FIELD(cmi_nvtx_extension, version, nvtxExtModuleInfo_t, compatId);
FIELD(cmi_nvtx_extension, segment_count, nvtxExtModuleInfo_t, segmentsCount);
FIELD(cmi_nvtx_extension, segments, nvtxExtModuleInfo_t, segments);
FIELD(cmi_nvtx_extension, get_function, nvtxExtModuleInfo_t, getExportFunction);
FIELD(cmi_nvtx_extension, more, nvtxExtModuleInfo_t, extInfo);
SAME_SIZE(cmi_nvtx_attributes, nvtxEventAttributes_t);
FIELD(cmi_nvtx_attributes, version, nvtxEventAttributes_t, version);
FIELD(cmi_nvtx_attributes, size, nvtxEventAttributes_t, size);
FIELD(cmi_nvtx_attributes, category, nvtxEventAttributes_t, category);
FIELD(cmi_nvtx_attributes, color_type, nvtxEventAttributes_t, colorType);
FIELD(cmi_nvtx_attributes, color, nvtxEventAttributes_t, color);
FIELD(cmi_nvtx_attributes, payload_type, nvtxEventAttributes_t, payloadType);
FIELD(cmi_nvtx_attributes, payload, nvtxEventAttributes_t, payload);
FIELD(cmi_nvtx_attributes, message_type, nvtxEventAttributes_t, messageType);
FIELD(cmi_nvtx_attributes, message, nvtxEventAttributes_t, message);
SAME_SIZE(cmi_nvtx_bytes, nvtxMemVirtualRangeDesc_t);
FIELD(cmi_nvtx_bytes, size, nvtxMemVirtualRangeDesc_t, size);
FIELD(cmi_nvtx_bytes, start, nvtxMemVirtualRangeDesc_t, ptr);
SAME_SIZE(cmi_nvtx_heap_description, nvtxMemHeapDesc_t);
FIELD(cmi_nvtx_heap_description, version, nvtxMemHeapDesc_t, extCompatID);
FIELD(cmi_nvtx_heap_description, size, nvtxMemHeapDesc_t, structSize);
FIELD(cmi_nvtx_heap_description, usage, nvtxMemHeapDesc_t, usage);
FIELD(cmi_nvtx_heap_description, type, nvtxMemHeapDesc_t, type);
FIELD(cmi_nvtx_heap_description, bytes_size, nvtxMemHeapDesc_t, typeSpecificDescSize);
FIELD(cmi_nvtx_heap_description, bytes, nvtxMemHeapDesc_t, typeSpecificDesc);
FIELD(cmi_nvtx_heap_description, message_type, nvtxMemHeapDesc_t, messageType);
FIELD(cmi_nvtx_heap_description, message, nvtxMemHeapDesc_t, message);
SAME_SIZE(cmi_nvtx_regions, nvtxMemRegionsRegisterBatch_t);
FIELD(cmi_nvtx_regions, version, nvtxMemRegionsRegisterBatch_t, extCompatID);
FIELD(cmi_nvtx_regions, size, nvtxMemRegionsRegisterBatch_t, structSize);
FIELD(cmi_nvtx_regions, type, nvtxMemRegionsRegisterBatch_t, regionType);
FIELD(cmi_nvtx_regions, heap, nvtxMemRegionsRegisterBatch_t, heap);
FIELD(cmi_nvtx_regions, count, nvtxMemRegionsRegisterBatch_t, regionCount);
FIELD(cmi_nvtx_regions, bytes_size, nvtxMemRegionsRegisterBatch_t, regionDescElementSize);
FIELD(cmi_nvtx_regions, bytes, nvtxMemRegionsRegisterBatch_t, regionDescElements);
FIELD(cmi_nvtx_regions, handles, nvtxMemRegionsRegisterBatch_t, regionHandleElementsOut);
SAME_SIZE(cmi_nvtx_gone, nvtxMemRegionsUnregisterBatch_t);
FIELD(cmi_nvtx_gone, version, nvtxMemRegionsUnregisterBatch_t, extCompatID);
FIELD(cmi_nvtx_gone, size, nvtxMemRegionsUnregisterBatch_t, structSize);
FIELD(cmi_nvtx_gone, by, nvtxMemRegionsUnregisterBatch_t, refType);
FIELD(cmi_nvtx_gone, count, nvtxMemRegionsUnregisterBatch_t, refCount);
FIELD(cmi_nvtx_gone, reference_size, nvtxMemRegionsUnregisterBatch_t, refElementSize);
FIELD(cmi_nvtx_gone, references, nvtxMemRegionsUnregisterBatch_t, refElements);
SAME_SIZE(cmi_nvtx_counter, nvtxCounterAttr_t);
FIELD(cmi_nvtx_counter, size, nvtxCounterAttr_t, structSize);
FIELD(cmi_nvtx_counter, type, nvtxCounterAttr_t, schemaId);
FIELD(cmi_nvtx_counter, name, nvtxCounterAttr_t, name);
FIELD(cmi_nvtx_counter, description, nvtxCounterAttr_t, description);
FIELD(cmi_nvtx_counter, scope, nvtxCounterAttr_t, scopeId);
FIELD(cmi_nvtx_counter, semantics, nvtxCounterAttr_t, semantics);
FIELD(cmi_nvtx_counter, number, nvtxCounterAttr_t, counterId);

#else
#pragma message("this toolkit's NVTX has no counters; NVTX is compared with newer ones only")
#endif
