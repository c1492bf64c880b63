/*
 * What every replacement begins and ends with, and small services of this library. Owns the mark of threads that are inside and the one
 * of a fork's child, both read without a lock, and the last refusal under its own. Called by all files of lib/preload.
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

static __thread unsigned depth __attribute__((tls_model("initial-exec")));
static _Atomic bool in_child, watching;
static pthread_mutex_t refusal_lock = PTHREAD_MUTEX_INITIALIZER;
static cmpool_error last_refusal;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* The child of a fork has the parent's tables but not its device; locks may be held by threads that it does not have. */
static void after_fork(void) { atomic_store(&in_child, true); }
static void watch(void)
{
    pthread_atfork(NULL, NULL, after_fork);
    atomic_store_explicit(&watching, true, memory_order_release);
}

bool cmi_preload_enter(void)
{
    if (depth || atomic_load_explicit(&in_child, memory_order_relaxed) || !cmi_preload_driver()) {
        return false;
    }
    if (!atomic_load_explicit(&watching, memory_order_acquire)) {
        pthread_once(&watch_once, watch);
    }
    depth++;
    return true;
}

void cmi_preload_leave(void) { depth--; }

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

bool cmi_preload_last_refusal(cmpool_error *error)
{
    pthread_mutex_lock(&refusal_lock);
    *error = last_refusal;
    pthread_mutex_unlock(&refusal_lock);
    return error->status != CMPOOL_OK;
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
        pthread_mutex_lock(&refusal_lock);
        last_refusal = *cmpool_last_error();
        pthread_mutex_unlock(&refusal_lock);
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

/* The value of the last setting with the key, as the pool's own parser takes it; *length 0: there is none. */
static const char *setting(const char *conf, const char *key, size_t *length)
{
    const char *found = NULL;
    *length = 0;
    while (conf && *conf) {
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

preload_free_sync cmi_preload_free_sync(void)
{
    static const char *const words[] = {"event", "host", "none"};
    static _Atomic int known; /* 1 + the answer */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        size_t length;
        const char *value = setting(getenv("CUDAMEMPOOL_CONF"), "free_sync", &length);
        answer = 1 + PRELOAD_FREE_EVENT;
        for (int i = 0; value && i < 3; i++) {
            if (length == strlen(words[i]) && strncmp(value, words[i], length) == 0) {
                answer = 1 + i;
            }
        }
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return (preload_free_sync)(answer - 1);
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
