/*
 * Ranges of the program as tags: this library as an NVTX tool. Where NVTX_INJECTION64_PATH names it, each part of the program that uses
 * NVTX asks it for functions, and the ranges that a thread pushes and pops become names of what the thread allocates. The tool that
 * CUDAMEMPOOL_NVTX_TOOL names, if it does, is asked first, and told of every range as before. Owns that tool's functions, which are the
 * same for all parts, set once; and each thread's ranges. Called by NVTX.
 */
#include "base/base.h"
#include "record/nvtx_abi.h"

#include <cudamempool/cudamempool.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

CMPOOL_API int InitializeInjectionNvtx2(cmi_nvtx_get_table get_table);
CMPOOL_API int InitializeInjectionNvtxExtension(cmi_nvtx_extension *extension);

enum { MOST_RANGES = 64, NAME_BYTES = 256, MOST_STRINGS = 1024 };

/* What the other tool put where ours are now; NULL: it wants nothing of that. */
static _Atomic(cmi_nvtx_function) next_push, next_push_ascii, next_push_wide, next_pop, next_domain_push, next_domain_pop, next_string;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cmi_nvtx_start next_start;
static cmi_nvtx_extend next_extend;

/* Strings that the program registered, by the handle it got. Only added to. */
static cmi_lock string_lock = CMI_LOCK_INITIALIZER(CMI_RANK_RECORD);
static struct {
    const void *handle;
    char *text;
} strings[MOST_STRINGS];
static _Atomic unsigned string_count;

/* Ranges from number `untagged` on (0: none) are no tags: the first could not be pushed, or they are deeper than anybody looks. */
static __thread struct {
    uint16_t depth, untagged;
} ranges __attribute__((tls_model("initial-exec")));

static void find_next(void)
{
    const char *path = getenv(CMI_NVTX_NEXT_VARIABLE);
    void *library = path && path[0] ? dlopen(path, RTLD_LAZY) : NULL;
    if (library) {
        next_start = (cmi_nvtx_start)(uintptr_t)dlsym(library, CMI_NVTX_TOOL_START);
        next_extend = (cmi_nvtx_extend)(uintptr_t)dlsym(library, CMI_NVTX_TOOL_EXTEND);
    } else if (path && path[0]) {
        cmi_log(CMI_LOG_ERROR, "%s: %s cannot be loaded", CMI_NVTX_NEXT_VARIABLE, path);
    }
}

/* ---- ranges of a thread ------------------------------------------------------------------------------- */

static int enter(const char *name)
{
    if (ranges.depth < UINT16_MAX) {
        ranges.depth++;
    }
    bool tagged = !ranges.untagged && ranges.depth <= MOST_RANGES && cmpool_tag_push(name && name[0] ? name : "range") == CMPOOL_OK;
    if (!tagged && !ranges.untagged) {
        ranges.untagged = ranges.depth;
    }
    return ranges.depth - 1;
}

static int leave(void)
{
    if (!ranges.depth) {
        return -1;
    }
    if (!ranges.untagged) {
        (void)cmpool_tag_pop();
    } else if (ranges.untagged == ranges.depth) {
        ranges.untagged = 0;
    }
    return --ranges.depth;
}

/* Wide characters beyond ASCII are shown as question marks. */
static const char *narrow(const wchar_t *wide, char *name)
{
    unsigned length = 0;
    for (; wide && wide[length] && length + 1 < NAME_BYTES; length++) {
        name[length] = wide[length] > 0 && wide[length] < 128 ? (char)wide[length] : '?';
    }
    name[length] = '\0';
    return name;
}

static const char *text_of(const void *handle)
{
    unsigned count = atomic_load_explicit(&string_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        if (strings[i].handle == handle) {
            return strings[i].text;
        }
    }
    return NULL;
}

static const char *name_of(const cmi_nvtx_attributes *attributes, char *name)
{
    switch (attributes ? attributes->message_type : 0) {
    case CMI_NVTX_MESSAGE_ASCII:
        return attributes->message.ascii;
    case CMI_NVTX_MESSAGE_UNICODE:
        return narrow(attributes->message.other, name);
    case CMI_NVTX_MESSAGE_REGISTERED:
        return text_of(attributes->message.other);
    default:
        return NULL;
    }
}

/* ---- the functions that NVTX calls -------------------------------------------------------------------- */

static int on_push(const cmi_nvtx_attributes *attributes)
{
    char name[NAME_BYTES];
    int depth = enter(name_of(attributes, name));
    cmi_nvtx_push next = (cmi_nvtx_push)atomic_load(&next_push);
    return next ? next(attributes) : depth;
}

static int on_push_ascii(const char *message)
{
    int depth = enter(message);
    cmi_nvtx_push_ascii next = (cmi_nvtx_push_ascii)atomic_load(&next_push_ascii);
    return next ? next(message) : depth;
}

static int on_push_wide(const wchar_t *message)
{
    char name[NAME_BYTES];
    int depth = enter(narrow(message, name));
    cmi_nvtx_push_wide next = (cmi_nvtx_push_wide)atomic_load(&next_push_wide);
    return next ? next(message) : depth;
}

static int on_pop(void)
{
    int depth = leave();
    cmi_nvtx_pop next = (cmi_nvtx_pop)atomic_load(&next_pop);
    return next ? next() : depth;
}

static int on_domain_push(cmi_nvtx_domain domain, const cmi_nvtx_attributes *attributes)
{
    char name[NAME_BYTES];
    int depth = enter(name_of(attributes, name));
    cmi_nvtx_domain_push next = (cmi_nvtx_domain_push)atomic_load(&next_domain_push);
    return next ? next(domain, attributes) : depth;
}

static int on_domain_pop(cmi_nvtx_domain domain)
{
    int depth = leave();
    cmi_nvtx_domain_pop next = (cmi_nvtx_domain_pop)atomic_load(&next_domain_pop);
    return next ? next(domain) : depth;
}

/* Without another tool the handle is our copy of the string. */
static const void *on_string(cmi_nvtx_domain domain, const char *text)
{
    size_t bytes = text ? strlen(text) + 1 : 1;
    char *copy = cmi_meta_alloc(bytes);
    if (copy && text) {
        memcpy(copy, text, bytes);
    }
    cmi_nvtx_string next = (cmi_nvtx_string)atomic_load(&next_string);
    const void *handle = next ? next(domain, text) : copy;
    cmi_lock_acquire(&string_lock);
    unsigned count = atomic_load_explicit(&string_count, memory_order_relaxed);
    bool kept = copy && handle && !text_of(handle) && count < MOST_STRINGS;
    if (kept) {
        strings[count].handle = handle;
        strings[count].text = copy;
        atomic_store_explicit(&string_count, count + 1, memory_order_release);
    }
    cmi_lock_release(&string_lock);
    if (!kept && handle != copy) {
        cmi_meta_free(copy, bytes);
    }
    return handle;
}

/* ---- start -------------------------------------------------------------------------------------------- */

static void take(cmi_nvtx_function *place, cmi_nvtx_function ours, _Atomic(cmi_nvtx_function) *next)
{
    if (*place && *place != ours) {
        atomic_store(next, *place);
    }
    *place = ours;
}

int InitializeInjectionNvtx2(cmi_nvtx_get_table get_table)
{
    pthread_once(&once, find_next);
    if (next_start && !next_start(get_table)) {
        cmi_log(CMI_LOG_NOTE, "the tool of %s wants nothing", CMI_NVTX_NEXT_VARIABLE);
    }
    const cmi_nvtx_callbacks *callbacks = get_table(CMI_NVTX_TABLE_CALLBACKS);
    cmi_nvtx_function **core, **core2;
    unsigned count, count2;
    if (!callbacks || callbacks->size < sizeof *callbacks || !callbacks->get_places(CMI_NVTX_CORE, &core, &count) ||
        !callbacks->get_places(CMI_NVTX_CORE2, &core2, &count2) || count <= CMI_NVTX_RANGE_POP || count2 <= CMI_NVTX_DOMAIN_STRING) {
        return 0;
    }
    take(core[CMI_NVTX_RANGE_PUSH], (cmi_nvtx_function)on_push, &next_push);
    take(core[CMI_NVTX_RANGE_PUSH_ASCII], (cmi_nvtx_function)on_push_ascii, &next_push_ascii);
    take(core[CMI_NVTX_RANGE_PUSH_WIDE], (cmi_nvtx_function)on_push_wide, &next_push_wide);
    take(core[CMI_NVTX_RANGE_POP], (cmi_nvtx_function)on_pop, &next_pop);
    take(core2[CMI_NVTX_DOMAIN_PUSH], (cmi_nvtx_function)on_domain_push, &next_domain_push);
    take(core2[CMI_NVTX_DOMAIN_POP], (cmi_nvtx_function)on_domain_pop, &next_domain_pop);
    take(core2[CMI_NVTX_DOMAIN_STRING], (cmi_nvtx_function)on_string, &next_string);
    return 1;
}

int InitializeInjectionNvtxExtension(cmi_nvtx_extension *extension)
{
    pthread_once(&once, find_next);
    return next_extend ? next_extend(extension) : 0;
}
