/*
 * dlopen and dlclose of the library by a program that is not linked with it: what the library holds goes back, but for the memory of live
 * blocks; it can be loaded again, any number of times, and threads that used it may end after everything.
 */
#include "life.h"

#include <pthread.h>
#include <semaphore.h>

#define LIBRARY TEST_BUILD_DIR "/lib/libcudamempool.so"

static struct {
    __typeof__(cmpool_create) *create;
    __typeof__(cmpool_destroy) *destroy;
    __typeof__(cmpool_private_create) *private_create;
    __typeof__(cmpool_capture_create) *capture_create;
    __typeof__(cmpool_malloc) *malloc;
    __typeof__(cmpool_free) *free;
    __typeof__(cmpool_pinned_malloc) *pinned_malloc;
    __typeof__(cmpool_pinned_free) *pinned_free;
    __typeof__(cmpool_validate) *validate;
    __typeof__(cmpool_last_error) *last_error;
} library;

static void *load(void)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
#define FIND(name) sim_test_find(handle, "cmpool_" #name, &library.name)
    FIND(create);
    FIND(destroy);
    FIND(private_create);
    FIND(capture_create);
    FIND(malloc);
    FIND(free);
    FIND(pinned_malloc);
    FIND(pinned_free);
    FIND(validate);
    FIND(last_error);
#undef FIND
    return handle;
}

static sem_t used, may_end;

/* The thread has an error record of the library's when it ends, and what jemalloc keeps for each thread. */
static void *use_and_stay(void *argument)
{
    cmpool_t pool = *(cmpool_t *)argument;
    void *none, *pinned = NULL;
    bool good = library.pinned_malloc(pool, &pinned, 1000, NULL) == CMPOOL_OK && library.pinned_free(pool, pinned, NULL) == CMPOOL_OK;
    good = good && library.free(pool, &none, NULL) == CMPOOL_ERR_NOT_OURS && library.last_error()->status == CMPOOL_ERR_NOT_OURS;
    sem_post(&used);
    sem_wait(&may_end);
    return good ? NULL : argument;
}

static void start_user(pthread_t *thread, cmpool_t *pool)
{
    assert_int_equal(pthread_create(thread, NULL, use_and_stay, pool), 0);
    sem_wait(&used);
}

/* A pool with one block, and some memory that is free. */
static cmpool_t pool_with_block(void **block)
{
    cmpool_t pool = 0;
    void *passing = NULL;
    DONE(library.create(&pool, NULL));
    DONE(library.malloc(pool, block, 5 * PAGE, NULL));
    DONE(library.malloc(pool, &passing, 7 * PAGE, NULL));
    OK(panel.touch(NULL, (uint64_t)(uintptr_t)*block, 5 * PAGE, 1));
    OK(panel.touch(NULL, (uint64_t)(uintptr_t)passing, 7 * PAGE, 1));
    DONE(library.free(pool, passing, NULL));
    DONE(library.pinned_malloc(pool, &passing, 1000, NULL));
    DONE(library.pinned_free(pool, passing, NULL));
    return pool;
}

static void nothing_is_left_but(uint64_t pages)
{
    simcuda_census census = sim_test_census();
    assert_int_equal(census.handles, pages);
    assert_int_equal(census.mappings, pages);
    assert_int_equal(census.notifications, 0);
    assert_int_equal(census.pinned, 0);
    if (!pages)
        assert_int_equal(census.reservations + census.events, 0);
    if (panel.finding_text(0))
        fail_msg("%s", panel.finding_text(0));
}

static void threads_end_after_it(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    assert_int_equal(sem_init(&used, 0, 0) | sem_init(&may_end, 0, 0), 0);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) { /* each of them used another loading of the library */
        void *handle = load(), *block;
        cmpool_t pool = pool_with_block(&block);
        start_user(&threads[i], &pool);
        DONE(library.free(pool, block, NULL));
        DONE(library.validate(pool, NULL));
        assert_int_equal(dlclose(handle), 0);
        nothing_is_left_but(0);
    }
    for (int i = 0; i < 3; i++)
        sem_post(&may_end);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
}

static void pools_go(void **state)
{
    (void)state;
    for (const char *const *words = sim_test_orders; words < sim_test_orders + 3; words++) {
        sim_test_start(*words);
        void *handle = load(), *block;
        cmpool_t pool = pool_with_block(&block), second = 0, inside = 0;
        DONE(library.private_create(&inside, pool));
        DONE(library.create(&second, NULL));
        CUstream a = sim_test_stream(), b = sim_test_stream();
        for (int i = 0; i < 6; i++) { /* events are outstanding, and one page has two addresses */
            void *passing = NULL;
            DONE(library.malloc(i % 2 ? second : inside, &passing, (i + 1) * 3 * MIB, i % 2 ? a : b));
            OK(panel.touch(i % 2 ? a : b, (uint64_t)(uintptr_t)passing, (i + 1) * 3 * MIB, 1));
            DONE(library.free(i % 2 ? second : inside, passing, i % 2 ? a : b));
        }
        DONE(library.free(pool, block, NULL));
        assert_int_equal(dlclose(handle), 0);
        nothing_is_left_but(0);
        assert_int_equal(sim_test_census().free_bytes, sim_test_census().capacity_bytes);
    }
}

static void live_blocks_stay(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    void *handle = load(), *block, *other;
    cmpool_t with_block = pool_with_block(&block), without = pool_with_block(&other), set = 0;
    DONE(library.free(without, other, NULL));
    assert_int_equal(dlclose(handle), 0);
    nothing_is_left_but(5);
    OK(panel.touch(NULL, (uint64_t)(uintptr_t)block, 5 * PAGE, 1));

    handle = load(); /* knows nothing of them, and has the rest of the device */
    GIVES(CMPOOL_ERR_INVALID_POOL, library.free(with_block, block, NULL));
    cmpool_t pool = 0;
    DONE(library.create(&pool, NULL));
    DONE(library.malloc(pool, &other, 27 * PAGE, NULL));
    DONE(library.free(pool, other, NULL));
    DONE(library.capture_create(&set, pool)); /* graphs of it may still be launched: its pool stays, with no memory */
    assert_int_equal(dlclose(handle), 0);
    nothing_is_left_but(5);
}

/* Addresses, threads' storage and records of the host must not run out. */
static void again_and_again(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    for (int i = 0; i < 100; i++) {
        void *handle = load(), *block;
        cmpool_t pool = pool_with_block(&block);
        GIVES(CMPOOL_ERR_NOT_OURS, library.free(pool, &pool, NULL));
        DONE(library.free(pool, block, NULL));
        if (i % 2)
            DONE(library.destroy(pool));
        assert_int_equal(dlclose(handle), 0);
        nothing_is_left_but(0);
    }
}

/* A child that closes it touches nothing of CUDA, and may go on forking. */
static void closed_by_a_child(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    void *handle = load(), *block;
    cmpool_t pool = pool_with_block(&block);
    uint64_t calls = life_driver_calls();
    pid_t child = fork();
    if (child == 0) {
        bool good = dlclose(handle) == 0 && life_driver_calls() == calls;
        pid_t grandchild = good ? fork() : -1;
        if (grandchild == 0)
            _exit(0);
        _exit(grandchild > 0 && life_wait(grandchild, 20) == 0 ? 0 : 1);
    }
    assert_int_equal(life_wait(child, 60), 0);
    DONE(library.free(pool, block, NULL));
    DONE(library.destroy(pool));
    assert_int_equal(dlclose(handle), 0);
    nothing_is_left_but(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_end_after_it), cmocka_unit_test(pools_go),          cmocka_unit_test(live_blocks_stay),
        cmocka_unit_test(again_and_again),      cmocka_unit_test(closed_by_a_child),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
