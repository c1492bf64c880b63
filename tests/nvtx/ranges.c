/*
 * A program with NVTX ranges and a pool: it starts the tool that NVTX_INJECTION64_PATH names as NVTX does, for two parts of the program,
 * pushes ranges in every way there is, allocates in each, and writes a snapshot to the file that its argument names. For test_ranges.py.
 */
#include <cudamempool/cudamempool.h>

#include "record/nvtx_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

enum { PARTS = 2 };

static cmi_nvtx_function core[PARTS][CMI_NVTX_CORE_PLACES], core2[PARTS][CMI_NVTX_CORE2_PLACES];
static cmi_nvtx_function *core_places[CMI_NVTX_CORE_PLACES + 1], *core2_places[CMI_NVTX_CORE2_PLACES + 1];
static cmi_nvtx_function ignored[CMI_NVTX_CORE2_PLACES], *ignored_places[CMI_NVTX_CORE2_PLACES + 1];
static unsigned part;
static cmpool_t pool;

static int get_places(int set, cmi_nvtx_function ***places, unsigned *count)
{
    if (set < CMI_NVTX_CORE || set > CMI_NVTX_SYNC) {
        return 0;
    }
    for (unsigned i = 1; i < CMI_NVTX_CORE2_PLACES; i++) {
        core_places[i] = &core[part][i];
        core2_places[i] = &core2[part][i];
        ignored_places[i] = &ignored[i];
    }
    *places = set == CMI_NVTX_CORE ? core_places : set == CMI_NVTX_CORE2 ? core2_places : ignored_places;
    *count = CMI_NVTX_CORE2_PLACES;
    return 1;
}

static void set_tool_version(uint32_t version) { (void)version; }

static const void *get_table(uint32_t table)
{
    static const cmi_nvtx_callbacks callbacks = {sizeof callbacks, get_places};
    static const cmi_nvtx_version version = {sizeof version, CMI_NVTX_VERSION, 0, set_tool_version};
    return table == CMI_NVTX_TABLE_CALLBACKS ? (const void *)&callbacks : table == CMI_NVTX_TABLE_VERSION ? &version : NULL;
}

static void require(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void allocate(size_t bytes)
{
    void *block;
    require(cmpool_malloc(pool, &block, bytes, NULL) == CMPOOL_OK, "no memory");
}

int main(int argc, char **argv)
{
    void *library = dlopen(getenv(CMI_NVTX_TOOL_VARIABLE), RTLD_LAZY);
    require(library != NULL, "no tool");
    cmi_nvtx_start start = (cmi_nvtx_start)(uintptr_t)dlsym(library, CMI_NVTX_TOOL_START);
    for (part = 0; part < PARTS; part++) {
        require(start && start(get_table), "the tool does not start");
    }
    require(argc == 2 && cmpool_create(&pool, NULL) == CMPOOL_OK, "no pool");

    cmi_nvtx_push_ascii push_ascii = (cmi_nvtx_push_ascii)core[0][CMI_NVTX_RANGE_PUSH_ASCII];
    cmi_nvtx_push_wide push_wide = (cmi_nvtx_push_wide)core[1][CMI_NVTX_RANGE_PUSH_WIDE];
    cmi_nvtx_push push = (cmi_nvtx_push)core[0][CMI_NVTX_RANGE_PUSH];
    cmi_nvtx_pop pop = (cmi_nvtx_pop)core[1][CMI_NVTX_RANGE_POP];
    cmi_nvtx_domain_push domain_push = (cmi_nvtx_domain_push)core2[0][CMI_NVTX_DOMAIN_PUSH];
    cmi_nvtx_domain_pop domain_pop = (cmi_nvtx_domain_pop)core2[1][CMI_NVTX_DOMAIN_POP];
    cmi_nvtx_domain_create domain_create = (cmi_nvtx_domain_create)core2[0][CMI_NVTX_DOMAIN_CREATE];
    cmi_nvtx_string string = (cmi_nvtx_string)core2[0][CMI_NVTX_DOMAIN_STRING];
    cmi_nvtx_domain domain = domain_create ? domain_create("program") : NULL;
    cmi_nvtx_attributes attributes = {.version = CMI_NVTX_ATTRIBUTES_VERSION,
                                      .size = sizeof attributes,
                                      .payload_type = CMI_NVTX_PAYLOAD_UINT64,
                                      .message_type = CMI_NVTX_MESSAGE_ASCII,
                                      .message.ascii = "backward"};

    require(pop() < 0, "a range that was never pushed was popped");
    push_ascii("step");
    allocate(3 << 20);
    push_wide(L"forward");
    allocate(5 << 20);
    pop();
    push(&attributes);
    allocate(7 << 20);
    pop();
    attributes.message_type = CMI_NVTX_MESSAGE_REGISTERED;
    attributes.message.other = string(domain, "optimizer");
    domain_push(domain, &attributes);
    allocate(9 << 20);
    domain_pop(domain);
    pop();
    for (unsigned i = 0; i < 100; i++) { /* deeper than tags are kept */
        push_ascii("deep");
    }
    for (unsigned i = 0; i < 100; i++) {
        pop();
    }
    allocate(11 << 20);
    require(cmpool_snapshot_write(argv[1]) == CMPOOL_OK, "no snapshot");
    return 0;
}
