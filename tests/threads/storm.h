/*
 * What the tests of many threads share: threads that stop at the first thing that goes wrong anywhere (cmocka's assertions jump, which
 * only the main thread may do), numbers drawn from a seed, and the time a test may take (CMPOOL_TEST_SECONDS).
 */
#ifndef STORM_H
#define STORM_H

#include "../unit/pool_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static atomic_bool storm_stop;
static pthread_mutex_t storm_lock = PTHREAD_MUTEX_INITIALIZER;
static char storm_failure[512];

/* Note what went wrong, the first thing only, and let all threads end. */
__attribute__((format(printf, 1, 2))) static inline void storm_fail(const char *format, ...)
{
    pthread_mutex_lock(&storm_lock);
    if (!storm_failure[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(storm_failure, sizeof storm_failure, format, arguments);
        va_end(arguments);
    }
    pthread_mutex_unlock(&storm_lock);
    atomic_store(&storm_stop, true);
}

/* A call that must give `wanted`, on any thread. */
#define STORM_EXPECT(wanted, call)                                                                                                    \
    do {                                                                                                                              \
        int storm_got_ = (int)(call);                                                                                                 \
        if (storm_got_ != (int)(wanted))                                                                                              \
            storm_fail("%s:%d: %s gives %d (driver: %s %d)", __FILE__, __LINE__, #call, storm_got_, cmpool_last_error()->driver_call, \
                       cmpool_last_error()->driver_code);                                                                             \
    } while (0)

static inline void storm_begin(void)
{
    atomic_store(&storm_stop, false);
    storm_failure[0] = '\0';
}

static inline void storm_end(void)
{
    if (storm_failure[0])
        fail_msg("%s", storm_failure);
}

static inline uint64_t storm_draw(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static inline double storm_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Seconds that the whole program may take. */
static inline double storm_seconds(void)
{
    const char *words = getenv("CMPOOL_TEST_SECONDS");
    double seconds = words ? atof(words) : 0;
    return seconds > 0 ? seconds : 4;
}

static inline void storm_sleep_ms(unsigned milliseconds)
{
    struct timespec pause = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

#endif
