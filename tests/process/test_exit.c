/*
 * A process that ends with live blocks, in any order of destructors, also after the driver's: the program starts itself again for each way
 * to end, and looks how that went.
 */
#include "life.h"

#include <pthread.h>

#define EXPECT(holds)                                                   \
    do {                                                                \
        if (!(holds)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds); \
            _exit(2);                                                   \
        }                                                               \
    } while (0)

static cmpool_t pool;
static void *large, *small;
static cmpool_status when_freed = CMPOOL_OK, when_destroyed = CMPOOL_OK, when_asked = CMPOOL_OK;
static bool use_in_destructor;

static void end_the_pool(void)
{
    void *more = NULL;
    EXPECT(cmpool_malloc(pool, &more, 9 * MIB, NULL) == when_asked);
    if (more)
        EXPECT(cmpool_free(pool, more, NULL) == CMPOOL_OK);
    EXPECT(cmpool_free(pool, large, NULL) == when_freed);
    EXPECT(cmpool_free(pool, small, NULL) == when_freed);
    EXPECT(cmpool_validate(pool, NULL) == CMPOOL_OK);
    EXPECT(cmpool_destroy(pool) == when_destroyed);
    EXPECT(cmpool_destroy(pool) == CMPOOL_ERR_INVALID_POOL);
}

static void the_driver_goes(void)
{
    EXPECT(panel.plan_failure("*", 1, 0, CUDA_ERROR_DEINITIALIZED, SIMCUDA_BEFORE) >= 0);
    when_asked = when_destroyed = CMPOOL_ERR_SHUTTING_DOWN;
}

/* Runs after all handlers of atexit. */
__attribute__((destructor)) static void last_of_all(void)
{
    if (use_in_destructor)
        end_the_pool();
}

static void start(void)
{
    EXPECT(cmpool_create(&pool, NULL) == CMPOOL_OK);
    EXPECT(cmpool_malloc(pool, &large, 5 * MIB, NULL) == CMPOOL_OK);
    EXPECT(cmpool_malloc(pool, &small, 700, NULL) == CMPOOL_OK);
}

static void *stay_inside(void *argument)
{
    (void)argument;
    cmpool_reserve(pool, 30 * MIB); /* parked in the driver while the process ends */
    return NULL;
}

/* The child: ways to end. */
static int end_by(const char *way)
{
    sim_test_open(NULL);
    if (!strcmp(way, "atexit before first use"))
        atexit(end_the_pool);
    start();
    if (!strcmp(way, "atexit"))
        atexit(end_the_pool);
    if (!strcmp(way, "destructor") || !strcmp(way, "destructor, driver gone"))
        use_in_destructor = true;
    if (!strcmp(way, "driver gone first") || !strcmp(way, "destructor, driver gone")) {
        if (!use_in_destructor)
            atexit(end_the_pool);
        atexit(the_driver_goes); /* handlers run in reverse order */
    }
    if (!strcmp(way, "a thread inside")) {
        pthread_t thread;
        EXPECT(panel.park("cuMemCreate", 2) == 0);
        EXPECT(pthread_create(&thread, NULL, stay_inside, NULL) == 0);
        EXPECT(panel.wait_parked(10000) == 1);
    }
    if (!strcmp(way, "quick"))
        quick_exit(0);
    return 0; /* with live blocks */
}

static void run(const char *way)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_exit", way, (char *)NULL);
        _exit(3);
    }
    int status = life_wait(child, 30);
    if (status != 0)
        fail_msg("%s: exit status %d", way, status);
}

static void a_process_ends(void **state)
{
    (void)state;
    static const char *const ways[] = {"live blocks",     "quick",
                                       "atexit",          "atexit before first use",
                                       "destructor",      "driver gone first",
                                       "a thread inside", "destructor, driver gone"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        run(ways[i]);
}

int main(int count, char **arguments)
{
    if (count > 1)
        return end_by(arguments[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_process_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
