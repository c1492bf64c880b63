/*
 * The side of NVTX that a program has, without NVIDIA's headers: finds the tool, hands it the places for its functions, calls them. Owns
 * those places, which do not change once the tool is there, and the tables of heaps and counters, guarded by table_lock (rank RECORD),
 * under which the tool is called to register one, so that none is registered twice. Called by api and, around driver calls, by pool.
 */
#include "record/nvtx.h"

#include "base/base.h"
#include "record/nvtx_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_HEAPS = 256, MOST_COUNTERS = 64 };

static const char *const step_names[CMI_STEPS] = {
#define CMI_STEP(name, text, help) [CMI_STEP_##name] = text,
#include "record/steps.def"
#undef CMI_STEP
};

_Atomic bool cmi_nvtx_on;

static cmi_nvtx_function core2[CMI_NVTX_CORE2_PLACES];
static intptr_t memory[CMI_NVTX_EXTENSION_PLACES], counters[CMI_NVTX_EXTENSION_PLACES];
static cmi_nvtx_domain domain;

static cmi_lock table_lock = CMI_LOCK_INITIALIZER(CMI_RANK_RECORD);
static struct {
    uint64_t base, bytes;
    cmi_nvtx_heap heap;
} heaps[MOST_HEAPS];
static struct {
    uint64_t pool, number;
} samples[MOST_COUNTERS];
static unsigned heap_count, counter_count;

/* ---- the tool ----------------------------------------------------------------------------------------- */

/* Sets of functions that are not used here have places all the same, since a tool may insist on them; what it puts there is ignored. */
static int get_places(int set, cmi_nvtx_function ***places, unsigned *count)
{
    static const unsigned counts[] = {
        [CMI_NVTX_CORE] = CMI_NVTX_CORE_PLACES,     [CMI_NVTX_CUDA] = CMI_NVTX_CUDA_PLACES,   [CMI_NVTX_OPENCL] = CMI_NVTX_OPENCL_PLACES,
        [CMI_NVTX_CUDART] = CMI_NVTX_CUDART_PLACES, [CMI_NVTX_CORE2] = CMI_NVTX_CORE2_PLACES, [CMI_NVTX_SYNC] = CMI_NVTX_SYNC_PLACES};
    static cmi_nvtx_function ignored[CMI_NVTX_CORE_PLACES];
    static cmi_nvtx_function *lists[CMI_ARRAY_LENGTH(counts)][CMI_NVTX_CORE_PLACES + 1]; /* each ends with NULL */
    if (set <= 0 || set >= (int)CMI_ARRAY_LENGTH(counts)) {
        return 0;
    }
    for (unsigned i = 1; i < counts[set]; i++) {
        lists[set][i] = set == CMI_NVTX_CORE2 ? &core2[i] : &ignored[i];
    }
    if (places) {
        *places = lists[set];
    }
    if (count) {
        *count = counts[set];
    }
    return 1;
}

static void set_tool_version(uint32_t version) { (void)version; }

static const void *get_table(uint32_t table)
{
    static const cmi_nvtx_callbacks callbacks = {sizeof callbacks, get_places};
    static const cmi_nvtx_version version = {sizeof version, CMI_NVTX_VERSION, 0, set_tool_version};
    return table == CMI_NVTX_TABLE_CALLBACKS ? (const void *)&callbacks : table == CMI_NVTX_TABLE_VERSION ? &version : NULL;
}

static void extend(cmi_nvtx_extend tool, unsigned number, unsigned version, intptr_t *places)
{
    cmi_nvtx_segment segment = {1, CMI_NVTX_EXTENSION_PLACES, places};
    cmi_nvtx_extension extension = {CMI_NVTX_VERSION, sizeof extension, (uint16_t)number, (uint16_t)version, 1, &segment, NULL, NULL};
    if (!tool || !tool(&extension)) {
        for (unsigned i = 0; i < CMI_NVTX_EXTENSION_PLACES; i++) {
            places[i] = CMI_NVTX_PLACE_OFF;
        }
    }
}

/* The library stands in for a tool where it takes the program's ranges as tags; it has nothing to tell itself. */
static bool is_ours(cmi_nvtx_start tool)
{
    Dl_info it, self;
    return dladdr((void *)(uintptr_t)tool, &it) && dladdr((void *)(uintptr_t)get_table, &self) && it.dli_fbase == self.dli_fbase;
}

static void start(void)
{
    const char *next = getenv(CMI_NVTX_NEXT_VARIABLE), *path = next && next[0] ? next : getenv(CMI_NVTX_TOOL_VARIABLE);
    void *library = path && path[0] ? dlopen(path, RTLD_LAZY) : NULL;
    cmi_nvtx_start tool = library ? (cmi_nvtx_start)(uintptr_t)dlsym(library, CMI_NVTX_TOOL_START) : NULL;
    if (!tool || is_ours(tool) || !tool(get_table)) {
        cmi_log(CMI_LOG_NOTE, "nvtx: no tool, %s is %s", CMI_NVTX_TOOL_VARIABLE, path ? path : "not set");
        return;
    }
    cmi_nvtx_extend more = (cmi_nvtx_extend)(uintptr_t)dlsym(library, CMI_NVTX_TOOL_EXTEND);
    extend(more, CMI_NVTX_MEMORY, CMI_NVTX_MEMORY_VERSION, memory);
    extend(more, CMI_NVTX_COUNTERS, CMI_NVTX_COUNTERS_VERSION, counters);
    if (core2[CMI_NVTX_DOMAIN_CREATE]) {
        domain = ((cmi_nvtx_domain_create)core2[CMI_NVTX_DOMAIN_CREATE])("cudamempool");
    }
    atomic_store_explicit(&cmi_nvtx_on, true, memory_order_release);
}

void cmi_nvtx_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}

void cmi_nvtx_close(void) { atomic_store(&cmi_nvtx_on, false); }

/* ---- marks and ranges --------------------------------------------------------------------------------- */

static cmi_nvtx_attributes attributes_of(cmi_step step, uint64_t number)
{
    return (cmi_nvtx_attributes){.version = CMI_NVTX_ATTRIBUTES_VERSION,
                                 .size = sizeof(cmi_nvtx_attributes),
                                 .category = (uint32_t)step + 1,
                                 .payload_type = CMI_NVTX_PAYLOAD_UINT64,
                                 .payload = number,
                                 .message_type = CMI_NVTX_MESSAGE_ASCII,
                                 .message.ascii = step_names[step]};
}

void cmi_nvtx_step_begin(cmi_step step, uint64_t number)
{
    const cmi_nvtx_attributes attributes = attributes_of(step, number);
    if (core2[CMI_NVTX_DOMAIN_PUSH]) {
        ((cmi_nvtx_domain_push)core2[CMI_NVTX_DOMAIN_PUSH])(domain, &attributes);
    }
}

void cmi_nvtx_step_end(void)
{
    if (core2[CMI_NVTX_DOMAIN_POP]) {
        ((cmi_nvtx_domain_pop)core2[CMI_NVTX_DOMAIN_POP])(domain);
    }
}

void cmi_nvtx_mark(cmi_step step, uint64_t number)
{
    const cmi_nvtx_attributes attributes = attributes_of(step, number);
    if (core2[CMI_NVTX_DOMAIN_MARK]) {
        ((cmi_nvtx_domain_mark)core2[CMI_NVTX_DOMAIN_MARK])(domain, &attributes);
    }
}

/* ---- extensions --------------------------------------------------------------------------------------- */

/* NULL: the tool has no such function. */
static cmi_nvtx_function function_of(const intptr_t *places, unsigned number)
{
    return places[number] > CMI_NVTX_PLACE_OFF ? (cmi_nvtx_function)places[number] : NULL;
}

static uint64_t register_counter(uint64_t pool, int device)
{
    char name[64];
    snprintf(name, sizeof name, "live_bytes of device %d, pool %llu", device, (unsigned long long)pool);
    const cmi_nvtx_counter counter = {.size = sizeof counter,
                                      .type = CMI_NVTX_TYPE_INT64,
                                      .name = name,
                                      .description = "bytes handed out by the pool",
                                      .scope = CMI_NVTX_SCOPE_PROCESS};
    return ((cmi_nvtx_counter_register)function_of(counters, CMI_NVTX_COUNTER_REGISTER))(domain, &counter);
}

void cmi_nvtx_sample(uint64_t pool, int device, uint64_t live_bytes)
{
    cmi_nvtx_function sample = function_of(counters, CMI_NVTX_COUNTER_SAMPLE_INT64);
    if (!sample || !function_of(counters, CMI_NVTX_COUNTER_REGISTER)) {
        return;
    }
    cmi_lock_acquire(&table_lock);
    unsigned i = 0;
    while (i < counter_count && samples[i].pool != pool) {
        i++;
    }
    if (i == counter_count && i < MOST_COUNTERS) {
        samples[i].pool = pool;
        samples[i].number = register_counter(pool, device);
        counter_count++;
    }
    uint64_t number = i < counter_count ? samples[i].number : 0;
    cmi_lock_release(&table_lock);
    if (number) {
        ((cmi_nvtx_counter_sample)sample)(domain, number, (int64_t)live_bytes);
    }
}

static cmi_nvtx_heap register_heap(uint64_t base, uint64_t bytes)
{
    const cmi_nvtx_bytes range = {bytes, (const void *)(uintptr_t)base};
    const cmi_nvtx_heap_description description = {.version = CMI_NVTX_MEMORY_VERSION,
                                                   .size = sizeof description,
                                                   .usage = CMI_NVTX_SUB_ALLOCATOR,
                                                   .type = CMI_NVTX_VIRTUAL_ADDRESS,
                                                   .bytes_size = sizeof range,
                                                   .bytes = &range,
                                                   .message_type = CMI_NVTX_MESSAGE_ASCII,
                                                   .message.ascii = "cudamempool"};
    return ((cmi_nvtx_heap_register)function_of(memory, CMI_NVTX_HEAP_REGISTER))(domain, &description);
}

/* A range of addresses is a heap; one with the same start and another length has taken the place of one that is gone. false: no room. */
static bool heap_of(uint64_t base, uint64_t bytes, cmi_nvtx_heap *heap)
{
    unsigned i = 0;
    cmi_lock_acquire(&table_lock);
    while (i < heap_count && heaps[i].base != base) {
        i++;
    }
    bool found = i < heap_count || heap_count < MOST_HEAPS;
    bool stale = i < heap_count && heaps[i].bytes != bytes;
    if (stale && function_of(memory, CMI_NVTX_HEAP_UNREGISTER)) {
        ((cmi_nvtx_heap_unregister)function_of(memory, CMI_NVTX_HEAP_UNREGISTER))(domain, heaps[i].heap);
    }
    if (found && (stale || i == heap_count)) {
        heaps[i].base = base;
        heaps[i].bytes = bytes;
        heaps[i].heap = register_heap(base, bytes);
        heap_count += i == heap_count;
    }
    *heap = found ? heaps[i].heap : NULL;
    cmi_lock_release(&table_lock);
    return found;
}

void cmi_nvtx_alloc(const cmi_nvtx_block *block)
{
    cmi_nvtx_heap heap;
    cmi_nvtx_function add = function_of(memory, CMI_NVTX_REGIONS_REGISTER);
    if (add && function_of(memory, CMI_NVTX_HEAP_REGISTER) && heap_of(block->range, block->range_bytes, &heap)) {
        const cmi_nvtx_bytes bytes = {block->bytes, (const void *)(uintptr_t)block->address};
        const cmi_nvtx_regions regions = {.version = CMI_NVTX_MEMORY_VERSION,
                                          .size = sizeof regions,
                                          .type = CMI_NVTX_VIRTUAL_ADDRESS,
                                          .heap = heap,
                                          .count = 1,
                                          .bytes_size = sizeof bytes,
                                          .bytes = &bytes};
        ((cmi_nvtx_regions_register)add)(domain, &regions);
    }
}

void cmi_nvtx_free(uint64_t address)
{
    cmi_nvtx_function drop = function_of(memory, CMI_NVTX_REGIONS_UNREGISTER);
    if (drop) {
        const void *start = (const void *)(uintptr_t)address;
        const cmi_nvtx_gone gone = {.version = CMI_NVTX_MEMORY_VERSION,
                                    .size = sizeof gone,
                                    .by = CMI_NVTX_BY_POINTER,
                                    .count = 1,
                                    .reference_size = sizeof start,
                                    .references = &start};
        ((cmi_nvtx_regions_unregister)drop)(domain, &gone);
    }
}
