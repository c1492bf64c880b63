/*
 * What the tests of a process's life share: the simulated device's functions and panel (see sim_test.h; the library loads the same file as
 * its driver), pools in one line, and children that are waited for, but not for ever.
 */
#ifndef LIFE_H
#define LIFE_H

#include "../simcuda/sim_test.h"
#include <cudamempool/cudamempool.h>

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Processes end here with blocks, threads and frames left on purpose: what is not given back then is no leak. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

/* ThreadSanitizer has a thread of its own, which keeps a process alive when all others have ended. */
#if defined(__SANITIZE_THREAD__)
#define LIFE_THREADS_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LIFE_THREADS_WATCHED 1
#endif
#endif
#ifndef LIFE_THREADS_WATCHED
#define LIFE_THREADS_WATCHED 0
#endif

#define MIB ((size_t)1 << 20)
#define DONE(call) assert_int_equal((call), CMPOOL_OK)
#define GIVES(status, call) assert_int_equal((call), (status))

static inline cmpool_t life_pool(void)
{
    cmpool_t pool = 0;
    DONE(cmpool_create(&pool, NULL));
    return pool;
}

static inline void *life_block(cmpool_t pool, size_t bytes)
{
    void *block = NULL;
    DONE(cmpool_malloc(pool, &block, bytes, NULL));
    return block;
}

/* Driver calls of any kind so far. */
static inline uint64_t life_driver_calls(void)
{
    uint64_t calls = 0;
    for (int group = 0; group < SIMCUDA_GROUPS; group++)
        calls += panel.calls((simcuda_group)group);
    return calls;
}

/* The exit status of a child, or 1000 + its signal. One that does not end is killed after `seconds`. */
static inline int life_wait(pid_t child, unsigned seconds)
{
    int status = 0;
    for (unsigned i = 0; waitpid(child, &status, WNOHANG) == 0; i++) {
        const struct timespec pause = {0, 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
        if (i == seconds * 100)
            kill(child, SIGKILL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/*
 * Every public function on a pool, with arguments that would be good, each expected to give `status`. Returns the first that does not, or
 * NULL. Uses no assertion, so that it can be called in a child.
 */
static inline const char *life_calls_give(cmpool_status status, cmpool_t pool, void *block)
{
    cmpool_t made = 0;
    void *ptr = NULL;
    size_t bytes = 0;
    const cmpool_config config = {.struct_size = sizeof config};
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 4096};
    cmpool_block_info info = {.struct_size = sizeof info};
    cmpool_stats stats = {.struct_size = sizeof stats};
    const cmpool_pinned_request pinned_request = {.struct_size = sizeof pinned_request, .bytes = 4096};
    cmpool_pinned_stats pinned_stats = {.struct_size = sizeof pinned_stats};
#define LIFE_CALL(call)   \
    if ((call) != status) \
        return #call;
    LIFE_CALL(cmpool_create(&made, &config));
    LIFE_CALL(cmpool_private_create(&made, pool));
    LIFE_CALL(cmpool_malloc(pool, &ptr, 4096, NULL));
    LIFE_CALL(cmpool_malloc_ex(pool, &ptr, &request));
    LIFE_CALL(cmpool_malloc_unordered(pool, &ptr, 4096));
    LIFE_CALL(cmpool_record_use(pool, block, (cmpool_stream)2));
    LIFE_CALL(cmpool_usable_size(pool, block, &bytes));
    LIFE_CALL(cmpool_lookup(block, &info));
    LIFE_CALL(cmpool_stream_retire(0, NULL));
    LIFE_CALL(cmpool_context_add(0, pool ? &made : NULL));
    LIFE_CALL(cmpool_context_remove(0, &made));
    LIFE_CALL(cmpool_free(pool, block, NULL));
    LIFE_CALL(cmpool_free_unordered(pool, block));
    LIFE_CALL(cmpool_trim(pool, 0, &bytes));
    LIFE_CALL(cmpool_device_trim(0, 1, &bytes));
    LIFE_CALL(cmpool_reserve(pool, MIB));
    LIFE_CALL(cmpool_set_limit(pool, 0));
    LIFE_CALL(cmpool_set_floor(pool, 0));
    LIFE_CALL(cmpool_set_headroom(pool, 0));
    LIFE_CALL(cmpool_set_low_memory_callback(pool, NULL, NULL));
    LIFE_CALL(cmpool_capture_create(&made, pool));
    LIFE_CALL(cmpool_capture_begin(0));
    LIFE_CALL(cmpool_capture_end(0));
    LIFE_CALL(cmpool_capture_release(pool));
    LIFE_CALL(cmpool_pinned_malloc(pool, &ptr, 4096, NULL));
    LIFE_CALL(cmpool_pinned_malloc_ex(pool, &ptr, &pinned_request));
    LIFE_CALL(cmpool_pinned_record_use(pool, block, (cmpool_stream)2));
    LIFE_CALL(cmpool_pinned_lookup(block, &info));
    LIFE_CALL(cmpool_pinned_free(pool, block, NULL));
    LIFE_CALL(cmpool_pinned_free_unordered(pool, block));
    LIFE_CALL(cmpool_pinned_set_limit(pool, 0));
    LIFE_CALL(cmpool_pinned_trim(pool, 0, &bytes));
    LIFE_CALL(cmpool_pinned_stats_get(pool, &pinned_stats));
    LIFE_CALL(cmpool_stats_get(pool, &stats));
    LIFE_CALL(cmpool_stats_reset_peaks(pool));
    LIFE_CALL(cmpool_validate(pool, NULL));
    LIFE_CALL(cmpool_destroy(pool));
    /* whatever else is wrong with a call */
    LIFE_CALL(cmpool_malloc(pool, NULL, 4096, NULL));
    LIFE_CALL(cmpool_free(pool + 1, block, NULL));
    LIFE_CALL(cmpool_device_trim(-1, 1, &bytes));
#undef LIFE_CALL
    return NULL;
}

#endif
