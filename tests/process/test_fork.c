/*
 * fork: the child of a process that used the library gets FORKED from every call, asks the driver nothing and ends cleanly, whatever the
 * other threads of the parent were doing at that moment; the parent goes on as if nothing had happened. A child of a process that only
 * loaded the library may use it.
 */
#include "life.h"

#include <pthread.h>
#include <stdatomic.h>

static cmpool_t pool;
static void *block;

/* In the child. 0: all is as it should be. */
static int child_is_told(bool count_calls)
{
    uint64_t before = count_calls ? life_driver_calls() : 0;
    const char *wrong = life_calls_give(CMPOOL_ERR_FORKED, pool, block);
    if (wrong) {
        fprintf(stderr, "in the child: %s\n", wrong);
        return 2;
    }
    return count_calls && life_driver_calls() != before ? 3 : 0;
}

static void *make_and_end(void *argument)
{
    cmpool_t own = 0;
    (void)argument;
    if (cmpool_create(&own, NULL) == CMPOOL_OK && cmpool_destroy(own) == CMPOOL_OK)
        return NULL;
    return &pool;
}

static void a_child_before_first_use(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        panel.configure("sim:64MiB", NULL, 0);
        pid_t grandchild;
        bool good = !make_and_end(NULL) && (grandchild = fork()) >= 0;
        if (good && grandchild == 0) /* now there was a use */
            _exit(child_is_told(true));
        _exit(good && life_wait(grandchild, 20) == 0 ? 0 : 1);
    }
    assert_int_equal(life_wait(child, 30), 0);
}

static void a_child_is_told(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    pool = life_pool();
    block = life_block(pool, 3 * MIB);
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, &pool, NULL)); /* the thread has an error record */
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            int wrong = child_is_told(true);
            if (wrong || way == 0)
                _exit(wrong);
            if (way == 1 || LIFE_THREADS_WATCHED)
                exit(0);
            pthread_exit(NULL); /* the last thread: its error record goes, and the process ends with 0 */
        }
        assert_int_equal(life_wait(child, 20), 0);
    }
    DONE(cmpool_validate(pool, NULL));
    DONE(cmpool_free(pool, block, NULL));
    DONE(cmpool_destroy(pool));
}

/* ---- while other threads are inside ------------------------------------------------------------- */

static atomic_bool stop;
static CUcontext context;

static void *use_all_the_time(void *argument)
{
    uintptr_t number = (uintptr_t)argument;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return &pool;
    for (unsigned round = 0; !atomic_load(&stop); round++) {
        void *own = NULL;
        size_t bytes = (round * 37 + number * 101) % 40 * 100 * 1024 + 1;
        cmpool_status status = cmpool_malloc(pool, &own, bytes, NULL);
        if (status == CMPOOL_OK)
            status = cmpool_free(pool, own, NULL);
        if (status == CMPOOL_OK)
            status = cmpool_free(pool, &own, NULL) == CMPOOL_ERR_NOT_OURS ? CMPOOL_OK : CMPOOL_ERR_DRIVER;
        if (status == CMPOOL_OK)
            status = cmpool_pinned_malloc(pool, &own, bytes / 4 + 1, NULL);
        if (status == CMPOOL_OK)
            status = cmpool_pinned_free(pool, own, NULL);
        if (status == CMPOOL_OK && round % 16 == 0)
            status = cmpool_pinned_trim(pool, 0, NULL);
        if (status == CMPOOL_OK && round % 8 == 0)
            status = cmpool_trim(pool, 0, NULL);
        if (status == CMPOOL_OK && number == 0 && make_and_end(NULL))
            status = CMPOOL_ERR_DRIVER;
        if (status != CMPOOL_OK)
            return &pool;
    }
    return NULL;
}

static void others_are_inside(void **state)
{
    (void)state;
    context = sim_test_start("sim:64MiB");
    pool = life_pool();
    block = life_block(pool, 3 * MIB);
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, &pool, NULL));
    atomic_store(&stop, false);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_all_the_time, (void *)i), 0);
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0) { /* the device may have been locked, so it is not asked either; a call that waits is killed by life_wait */
            int wrong = child_is_told(false);
            if (wrong || i % 2 || LIFE_THREADS_WATCHED)
                _exit(wrong);
            pthread_exit(NULL);
        }
        assert_int_equal(life_wait(child, 20), 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    DONE(cmpool_validate(pool, NULL));
    DONE(cmpool_free(pool, block, NULL));
    DONE(cmpool_destroy(pool));
}

/* A thread stands inside the driver with the registry's lock and the lock of page calls held. */
static void another_stands_in_the_driver(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    pool = life_pool();
    block = life_block(pool, 3 * MIB);
    assert_int_equal(panel.park("cuMemAddressReserve", 1), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_and_end, NULL), 0);
    assert_int_equal(panel.wait_parked(10000), 1);
    pid_t child = fork();
    if (child == 0)
        _exit(child_is_told(true));
    assert_int_equal(life_wait(child, 20), 0);
    panel.release_parked();
    void *wrong;
    pthread_join(thread, &wrong);
    assert_null(wrong);
    DONE(cmpool_free(pool, block, NULL));
    DONE(cmpool_destroy(pool));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_before_first_use), /* comes first */
        cmocka_unit_test(a_child_is_told),
        cmocka_unit_test(others_are_inside),
        cmocka_unit_test(another_stands_in_the_driver),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
