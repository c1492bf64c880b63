/*
 * What every replacement begins and ends with, and small services of this library. Owns the mark of threads that are inside and the one
 * of a fork's child, both read without a lock. Called by all files of lib/preload.
 */
#include "preload/preload.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CMPOOL_OPTION(key, kind, value, low, high, help)
#include <cudamempool/options.def> /* for the words of the choices */
#undef CMPOOL_OPTION

__thread unsigned cmi_preload_depth;
_Atomic bool cmi_preload_ready;
static _Atomic bool in_child;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* The child of a fork has the parent's tables but not its device; locks may be held by threads that it does not have. */
static void after_fork(void)
{
    atomic_store(&in_child, true);
    atomic_store(&cmi_preload_ready, false);
}

static void watch(void) { pthread_atfork(NULL, NULL, after_fork); }

bool cmi_preload_prepare(void)
{
    if (atomic_load(&in_child) || !cmi_preload_driver()) {
        return false;
    }
    pthread_once(&watch_once, watch);
    atomic_store_explicit(&cmi_preload_ready, true, memory_order_release);
    return true;
}

void cmi_preload_say(const char *format, ...)
{
    int kept = errno;
    char line[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof line - 1 ? (size_t)length : sizeof line - 2;
        line[bytes++] = '\n';
        while (write(STDERR_FILENO, line, bytes) < 0 && errno == EINTR) {}
    }
    errno = kept;
}

CUresult cmi_preload_code(cmpool_status status)
{
    switch (status) {
    case CMPOOL_OK:
        return CUDA_SUCCESS;
    case CMPOOL_ERR_OUT_OF_DEVICE_MEMORY:
    case CMPOOL_ERR_LIMIT:
    case CMPOOL_ERR_OUT_OF_HOST_MEMORY:
    case CMPOOL_ERR_OUT_OF_ADDRESSES:
    case CMPOOL_ERR_MAPPING_CEILING:
        cmi_preload_report_refusal(cmpool_last_error());
        return CUDA_ERROR_OUT_OF_MEMORY;
    case CMPOOL_ERR_NOT_OURS:
    case CMPOOL_ERR_ALREADY_FREED:
    case CMPOOL_ERR_INTERIOR_POINTER:
    case CMPOOL_ERR_INVALID_POOL:
        return CUDA_ERROR_INVALID_VALUE;
    default: {
        int code = cmpool_last_error()->driver_code; /* the pool turned to the driver, and this is what it said */
        return code ? code : CUDA_ERROR_UNKNOWN;
    }
    }
}

const char *cmi_preload_setting(const char *key, size_t *length)
{
    const char *found = NULL, *conf = getenv("CUDAMEMPOOL_CONF");
    while (conf && *conf) { /* as the pool's own parser reads it */
        conf += strspn(conf, " \t,");
        size_t end = strcspn(conf, ","), word = strcspn(conf, ": \t,");
        const char *value = conf + word + strspn(conf + word, " \t");
        if (word == strlen(key) && strncmp(conf, key, word) == 0 && *value == ':') {
            found = value + 1 + strspn(value + 1, " \t");
            *length = strcspn(found, " \t,");
        }
        conf += end;
    }
    return found;
}

/* The position of an option's value among its words, "a|b|c"; what is not among them is the first. */
PRELOAD_SELDOM static int read_choice(const char *key, const char *words)
{
    size_t length;
    const char *value = cmi_preload_setting(key, &length);
    int answer = 0;
    for (int i = 0; value && *words; i++) {
        size_t word = strcspn(words, "|");
        if (length == word && strncmp(value, words, word) == 0) {
            answer = i;
        }
        words += word + (words[word] == '|');
    }
    return answer;
}

/* The position, read once: *known is 1 more, 0 at first. */
static int choice(_Atomic int *known, const char *key, const char *words)
{
    int answer = atomic_load_explicit(known, memory_order_relaxed);
    if (!answer) {
        answer = 1 + read_choice(key, words);
        atomic_store_explicit(known, answer, memory_order_relaxed);
    }
    return answer - 1;
}

_Atomic int cmi_preload_known_free_sync = PRELOAD_FREE_UNREAD;

preload_free_sync cmi_preload_read_free_sync(void)
{
    int answer = read_choice("free_sync", CMPOOL_CHOICES_free_sync);
    atomic_store_explicit(&cmi_preload_known_free_sync, answer, memory_order_relaxed);
    return (preload_free_sync)answer;
}

#define FLAG_WORDS "false|true|off|on|0|1"

bool cmi_preload_pinned_from_pool(void)
{
    static _Atomic int known;
    return choice(&known, "pinned", FLAG_WORDS) % 2 == 1;
}

bool cmi_preload_control_is_asked_for(void) { return read_choice("control", FLAG_WORDS) % 2 == 1; }

bool cmi_preload_capture_by_driver(void)
{
    static _Atomic int known;
    return choice(&known, "capture", CMPOOL_CHOICES_capture) == 0;
}

bool cmi_preload_async_from_pool(void)
{
    static _Atomic int known;
    return choice(&known, "async", CMPOOL_CHOICES_async) == 1;
}

void *cmi_preload_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void cmi_preload_unmap(void *memory, size_t bytes)
{
    if (memory) {
        munmap(memory, bytes);
    }
}
