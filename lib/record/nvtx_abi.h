/*
 * What NVTX 3 and a tool that was injected agree upon, as far as it is used here: how a tool is found and handed tables of functions, and
 * the functions of domains, marks and ranges, of the memory extension and of the counter extension. Declared here since the build needs no
 * toolkit; tests/abi compares it with a toolkit's nvtx3 headers where there is one.
 */
#ifndef CMI_NVTX_ABI_H
#define CMI_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The tool's library is named by this variable and has these two functions; both answer 0 when they want nothing. */
#define CMI_NVTX_TOOL_VARIABLE "NVTX_INJECTION64_PATH"
/* Where that names this library itself, for the ranges of the program: the tool proper. */
#define CMI_NVTX_NEXT_VARIABLE "CUDAMEMPOOL_NVTX_TOOL"
#define CMI_NVTX_TOOL_START "InitializeInjectionNvtx2"
#define CMI_NVTX_TOOL_EXTEND "InitializeInjectionNvtxExtension"

enum {
    CMI_NVTX_VERSION = 3,
    /* tables that a tool asks for */
    CMI_NVTX_TABLE_CALLBACKS = 1,
    CMI_NVTX_TABLE_VERSION = 3,
    /* sets of functions, and how many places each has, number 0 included, which is none */
    CMI_NVTX_CORE = 1,
    CMI_NVTX_CUDA = 2,
    CMI_NVTX_OPENCL = 3,
    CMI_NVTX_CUDART = 4,
    CMI_NVTX_CORE2 = 5,
    CMI_NVTX_SYNC = 6,
    CMI_NVTX_CORE_PLACES = 16,
    CMI_NVTX_CUDA_PLACES = 9,
    CMI_NVTX_OPENCL_PLACES = 15,
    CMI_NVTX_CUDART_PLACES = 7,
    CMI_NVTX_CORE2_PLACES = 16,
    CMI_NVTX_SYNC_PLACES = 7,
    /* of CORE */
    CMI_NVTX_RANGE_PUSH = 8,
    CMI_NVTX_RANGE_PUSH_ASCII = 9,
    CMI_NVTX_RANGE_PUSH_WIDE = 10,
    CMI_NVTX_RANGE_POP = 11,
    /* of CORE2 */
    CMI_NVTX_DOMAIN_MARK = 1,
    CMI_NVTX_DOMAIN_PUSH = 4,
    CMI_NVTX_DOMAIN_POP = 5,
    CMI_NVTX_DOMAIN_STRING = 10,
    CMI_NVTX_DOMAIN_CREATE = 12,
    CMI_NVTX_DOMAIN_DESTROY = 14,
    /* event attributes */
    CMI_NVTX_ATTRIBUTES_VERSION = 3,
    CMI_NVTX_MESSAGE_ASCII = 1,
    CMI_NVTX_MESSAGE_UNICODE = 2,
    CMI_NVTX_MESSAGE_REGISTERED = 3,
    CMI_NVTX_PAYLOAD_UINT64 = 1,
    /* extensions: number and version of each, places, functions */
    CMI_NVTX_EXTENSION_PLACES = 63,
    CMI_NVTX_PLACE_OFF = 1, /* a place that holds this or less has no function */
    CMI_NVTX_MEMORY = 1,
    CMI_NVTX_MEMORY_VERSION = 0x0102,
    CMI_NVTX_HEAP_REGISTER = 0,
    CMI_NVTX_HEAP_UNREGISTER = 1,
    CMI_NVTX_REGIONS_REGISTER = 3,
    CMI_NVTX_REGIONS_UNREGISTER = 5,
    CMI_NVTX_SUB_ALLOCATOR = 1,
    CMI_NVTX_VIRTUAL_ADDRESS = 1,
    CMI_NVTX_BY_POINTER = 1,
    CMI_NVTX_COUNTERS = 4,
    CMI_NVTX_COUNTERS_VERSION = 0x0102,
    CMI_NVTX_COUNTER_REGISTER = 0,
    CMI_NVTX_COUNTER_SAMPLE_INT64 = 1,
    CMI_NVTX_TYPE_INT64 = 17,
    CMI_NVTX_SCOPE_PROCESS = 21
};

typedef struct cmi_nvtx_domain *cmi_nvtx_domain; /* the tool's own */
typedef void (*cmi_nvtx_function)(void);
typedef union cmi_nvtx_message {
    const char *ascii;
    const void *other;
} cmi_nvtx_message;

/* ---- start of a tool ---------------------------------------------------------------------------------- */

typedef const void *(*cmi_nvtx_get_table)(uint32_t table);
typedef int (*cmi_nvtx_start)(cmi_nvtx_get_table get_table);

typedef struct cmi_nvtx_callbacks {
    size_t size;
    /* A list of addresses of places for functions. */
    int (*get_places)(int set, cmi_nvtx_function ***places, unsigned *count);
} cmi_nvtx_callbacks;

typedef struct cmi_nvtx_version {
    size_t size;
    uint32_t version, reserved;
    void (*set_tool_version)(uint32_t version);
} cmi_nvtx_version;

typedef struct cmi_nvtx_segment {
    size_t number, count;
    intptr_t *places;
} cmi_nvtx_segment;

typedef struct cmi_nvtx_extension {
    uint16_t nvtx_version, size, number, version;
    size_t segment_count;
    cmi_nvtx_segment *segments;
    intptr_t (*get_function)(uint32_t number);
    const void *more;
} cmi_nvtx_extension;

typedef int (*cmi_nvtx_extend)(cmi_nvtx_extension *extension);

/* ---- domains, marks, ranges --------------------------------------------------------------------------- */

typedef struct cmi_nvtx_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    cmi_nvtx_message message;
} cmi_nvtx_attributes;

typedef cmi_nvtx_domain (*cmi_nvtx_domain_create)(const char *name);
typedef void (*cmi_nvtx_domain_destroy)(cmi_nvtx_domain domain);
typedef void (*cmi_nvtx_domain_mark)(cmi_nvtx_domain domain, const cmi_nvtx_attributes *attributes);
typedef int (*cmi_nvtx_domain_push)(cmi_nvtx_domain domain, const cmi_nvtx_attributes *attributes);
typedef int (*cmi_nvtx_domain_pop)(cmi_nvtx_domain domain);
typedef const void *(*cmi_nvtx_string)(cmi_nvtx_domain domain, const char *text); /* a handle for messages */
typedef int (*cmi_nvtx_push)(const cmi_nvtx_attributes *attributes);
typedef int (*cmi_nvtx_push_ascii)(const char *message);
typedef int (*cmi_nvtx_push_wide)(const wchar_t *message);
typedef int (*cmi_nvtx_pop)(void);

/* ---- memory ------------------------------------------------------------------------------------------- */

typedef struct cmi_nvtx_heap *cmi_nvtx_heap; /* the tool's own */

typedef struct cmi_nvtx_bytes {
    size_t size;
    const void *start;
} cmi_nvtx_bytes;

typedef struct cmi_nvtx_heap_description {
    uint16_t version, size;
    uint32_t reserved, usage, type;
    size_t bytes_size;
    const void *bytes; /* cmi_nvtx_bytes */
    uint32_t category, message_type;
    cmi_nvtx_message message;
} cmi_nvtx_heap_description;

typedef struct cmi_nvtx_regions {
    uint16_t version, size;
    uint32_t type;
    cmi_nvtx_heap heap;
    size_t count, bytes_size;
    const void *bytes; /* cmi_nvtx_bytes each */
    void **handles;    /* not wanted: NULL */
} cmi_nvtx_regions;

typedef struct cmi_nvtx_gone {
    uint16_t version, size;
    uint32_t by;
    size_t count, reference_size;
    const void *const *references; /* by pointer: addresses */
} cmi_nvtx_gone;

typedef cmi_nvtx_heap (*cmi_nvtx_heap_register)(cmi_nvtx_domain domain, const cmi_nvtx_heap_description *description);
typedef void (*cmi_nvtx_heap_unregister)(cmi_nvtx_domain domain, cmi_nvtx_heap heap);
typedef void (*cmi_nvtx_regions_register)(cmi_nvtx_domain domain, const cmi_nvtx_regions *regions);
typedef void (*cmi_nvtx_regions_unregister)(cmi_nvtx_domain domain, const cmi_nvtx_gone *regions);

/* ---- counters ----------------------------------------------------------------------------------------- */

typedef struct cmi_nvtx_counter {
    size_t size;
    uint64_t type;
    const char *name, *description;
    uint64_t scope;
    const void *semantics;
    uint64_t number; /* 0: the tool gives one */
} cmi_nvtx_counter;

typedef uint64_t (*cmi_nvtx_counter_register)(cmi_nvtx_domain domain, const cmi_nvtx_counter *counter);
typedef void (*cmi_nvtx_counter_sample)(cmi_nvtx_domain domain, uint64_t counter, int64_t value);

#endif
