/*
 * dlopen and dlclose of the library by a program that is not linked with it: with pools left its code stays mapped and they go on, it can
 * be loaded again, and threads that used it may end after everything.
 */
#include "../simcuda/sim_test.h"
#include <cudamempool/cudamempool.h>

#include <pthread.h>
#include <semaphore.h>

#define LIBRARY TEST_BUILD_DIR "/lib/libcudamempool.so"

static struct {
    __typeof__(cmpool_create) *create;
    __typeof__(cmpool_destroy) *destroy;
    __typeof__(cmpool_malloc) *malloc;
    __typeof__(cmpool_free) *free;
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
    FIND(malloc);
    FIND(free);
    FIND(validate);
    FIND(last_error);
#undef FIND
    return handle;
}

static sem_t used, may_end;

/* The thread has an error record of the library's when it ends. */
static void *use_and_stay(void *argument)
{
    cmpool_t pool = *(cmpool_t *)argument;
    void *none;
    bool good = library.free(pool, &none, NULL) == CMPOOL_ERR_NOT_OURS && library.last_error()->status == CMPOOL_ERR_NOT_OURS;
    sem_post(&used);
    sem_wait(&may_end);
    return good ? NULL : argument;
}

static void closed_with_pools_left(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    assert_int_equal(sem_init(&used, 0, 0) | sem_init(&may_end, 0, 0), 0);
    void *handle = load();
    cmpool_t pool = 0, second = 0;
    void *block = NULL, *other = NULL;
    assert_int_equal(library.create(&pool, NULL), CMPOOL_OK);
    assert_int_equal(library.malloc(pool, &block, 5 * PAGE, NULL), CMPOOL_OK);
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, use_and_stay, &pool), 0);
    sem_wait(&used);

    assert_int_equal(dlclose(handle), 0);
    assert_int_equal(library.malloc(pool, &other, PAGE, NULL), CMPOOL_OK); /* pointers into it are still good */
    __typeof__(library) before = library;
    handle = load();
    assert_memory_equal(&before, &library, sizeof library);
    assert_int_equal(library.free(pool, other, NULL), CMPOOL_OK);
    assert_int_equal(library.create(&second, NULL), CMPOOL_OK);
    assert_int_equal(library.destroy(second), CMPOOL_OK);
    assert_int_equal(pthread_create(&threads[1], NULL, use_and_stay, &pool), 0);
    sem_wait(&used);
    assert_int_equal(library.free(pool, block, NULL), CMPOOL_OK);
    assert_int_equal(library.validate(pool, NULL), CMPOOL_OK);
    assert_int_equal(library.destroy(pool), CMPOOL_OK);
    assert_int_equal(dlclose(handle), 0);

    for (int i = 0; i < 2; i++)
        sem_post(&may_end);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    simcuda_census census = sim_test_census();
    assert_int_equal(census.handles + census.mappings + census.reservations + census.events, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(closed_with_pools_left)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
