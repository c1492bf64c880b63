/*
 * Who asks for memory: whether the library that called is in the list of an option. Owns the lists, read once, and a table of return
 * addresses that were looked up before, written and read without a lock. Called by the replacements that give memory.
 *
 * A caller is known by its return address, and an address by the file it lies in. A call of the shared runtime is its caller's: then the
 * stack is unwound, but only for requests that may be worth exporting, and only while a library of a list is loaded at all.
 */
#include "preload/preload.h"

#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define RUNTIME_NAME "libcudart"

enum {
    LIST_BYTES = 512, /* as the parser of the options allows */
    KNOWN_BITS = 10,
    MOST_FRAMES = 16,
    LEAST_EXPORTED = 64 << 10, /* smaller memory of the shared runtime's callers is not looked into */
};

/* What is kept of an address, in its low bits. 0: nothing yet. */
typedef enum verdict { UNKNOWN, ORDINARY, LISTED_BYPASS, LISTED_SHARE, RUNTIME, VERDICT_BITS = 3 } verdict;

typedef struct name_list {
    verdict means;
    const char *key, *preset;
    char names[LIST_BYTES + 1]; /* divided by '+' */
} name_list;

static name_list lists[] = {
#define CMPOOL_OPTION(key, kind, value, low, high, help)
#define CMPOOL_OPTION_LIST_bypass LISTED_BYPASS
#define CMPOOL_OPTION_LIST_share LISTED_SHARE
#define CMPOOL_OPTION_LIST(key, value, help) {CMPOOL_OPTION_LIST_##key, #key, value, ""},
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
#undef CMPOOL_OPTION_LIST
};
enum { LIST_COUNT = sizeof lists / sizeof *lists };

typedef enum lists_state { LISTS_UNREAD, LISTS_EMPTY, LISTS_READ } lists_state;

static pthread_once_t lists_once = PTHREAD_ONCE_INIT;
static _Atomic lists_state lists_are;
static _Atomic uint64_t known[1 << KNOWN_BITS]; /* address << VERDICT_BITS | verdict */
static _Atomic uint64_t loaded;                 /* the loader's count of changes << 1 | a listed library is loaded */

static void read_lists(void)
{
    bool empty = true;
    for (int i = 0; i < LIST_COUNT; i++) {
        size_t length;
        const char *value = cmi_preload_setting(lists[i].key, &length);
        if (!value || length > LIST_BYTES) { /* the pool says so when it reads the same */
            value = lists[i].preset;
            length = strlen(value);
        }
        memcpy(lists[i].names, value, length);
        empty = empty && length == 0;
    }
    atomic_store_explicit(&lists_are, empty ? LISTS_EMPTY : LISTS_READ, memory_order_release);
}

/* '*' stands for any characters; behind a name there may be a version: "libnccl" is libnccl.so.2 too. */
static bool matches(const char *name, size_t length, const char *file)
{
    for (; length && *name != '*'; name++, length--, file++) {
        if (*file != *name) {
            return false;
        }
    }
    if (!length) {
        return *file == '\0' || *file == '.' || *file == '-';
    }
    while (!matches(name + 1, length - 1, file)) {
        if (*file++ == '\0') {
            return false;
        }
    }
    return true;
}

static bool is_in(const name_list *list, const char *file)
{
    for (const char *name = list->names; *name;) {
        size_t length = strcspn(name, "+");
        if (length && matches(name, length, file)) {
            return true;
        }
        name += length + (name[length] == '+');
    }
    return false;
}

/* path "": the program itself. */
static verdict verdict_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path[0] ? path : program_invocation_short_name;
    for (int i = 0; i < LIST_COUNT; i++) {
        if (is_in(&lists[i], file)) {
            return lists[i].means;
        }
    }
    return strncmp(file, RUNTIME_NAME, sizeof RUNTIME_NAME - 1) == 0 ? RUNTIME : ORDINARY;
}

typedef struct search {
    uintptr_t address;
    verdict found;
} search;

static int find_file(struct dl_phdr_info *info, size_t size, void *data)
{
    search *for_address = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && for_address->address - info->dlpi_addr - part->p_vaddr < part->p_memsz) {
            for_address->found = verdict_of(info->dlpi_name);
            return 1;
        }
    }
    return 0;
}

PRELOAD_SELDOM static verdict find_verdict(uint64_t address, _Atomic uint64_t *place)
{
    search for_address = {.address = address, .found = ORDINARY};
    dl_iterate_phdr(find_file, &for_address);
    atomic_store_explicit(place, address << VERDICT_BITS | for_address.found, memory_order_relaxed);
    return for_address.found;
}

static inline verdict look_up(const void *caller)
{
    uint64_t address = (uintptr_t)caller;
    _Atomic uint64_t *place = &known[address * UINT64_C(0x9e3779b97f4a7c15) >> (64 - KNOWN_BITS)];
    uint64_t seen = atomic_load_explicit(place, memory_order_relaxed);
    return seen >> VERDICT_BITS == address ? (verdict)(seen & ((1 << VERDICT_BITS) - 1)) : find_verdict(address, place);
}

typedef struct census {
    uint64_t changes;
    bool begun, same, listed;
} census;

static int take_census(struct dl_phdr_info *info, size_t size, void *data)
{
    census *all = data;
    (void)size;
    if (!all->begun) {
        uint64_t changes = info->dlpi_adds + info->dlpi_subs;
        all->begun = true;
        all->same = changes == all->changes;
        all->changes = changes;
    }
    verdict is = all->same ? UNKNOWN : verdict_of(info->dlpi_name);
    all->listed = all->listed || is == LISTED_BYPASS || is == LISTED_SHARE;
    return all->same; /* 1 ends the walk */
}

/* Whether a library of a list is loaded. What was known of addresses is forgotten when libraries have come or gone. */
static bool listed_is_loaded(void)
{
    uint64_t before = atomic_load_explicit(&loaded, memory_order_relaxed);
    census all = {.changes = before >> 1};
    dl_iterate_phdr(take_census, &all);
    if (all.same) {
        return before & 1;
    }
    for (int i = 0; i < 1 << KNOWN_BITS; i++) {
        atomic_store_explicit(&known[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&loaded, all.changes << 1 | all.listed, memory_order_relaxed);
    return all.listed;
}

/* Whoever called the runtime. */
PRELOAD_SELDOM static verdict behind_runtime(void)
{
    if (!listed_is_loaded()) {
        return RUNTIME;
    }
    void *frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES);
    bool in_runtime = false;
    for (int i = 0; i < count; i++) {
        verdict is = look_up(frames[i]);
        if (in_runtime && is != RUNTIME) {
            return is;
        }
        in_runtime = is == RUNTIME;
    }
    return ORDINARY;
}

preload_caller cmi_preload_caller(const void *caller, size_t bytes)
{
    lists_state state = atomic_load_explicit(&lists_are, memory_order_acquire);
    if (state == LISTS_UNREAD) {
        pthread_once(&lists_once, read_lists);
        state = atomic_load_explicit(&lists_are, memory_order_relaxed);
    }
    if (state == LISTS_EMPTY) {
        return PRELOAD_CALLER_ANY;
    }
    verdict is = look_up(caller);
    if (is == RUNTIME && bytes >= LEAST_EXPORTED) {
        is = behind_runtime();
    }
    return is == LISTED_BYPASS ? PRELOAD_CALLER_BYPASS : is == LISTED_SHARE ? PRELOAD_CALLER_SHARE : PRELOAD_CALLER_ANY;
}
