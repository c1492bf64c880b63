/*
 * Pauses while other threads allocate, free and grow regions: a pause meets frees in any state of its pages, requests answer PAUSED or are
 * served, and nothing is lost or handed out twice. Nobody uses the blocks on the device meanwhile, as cmpool_pause asks for. Needs the
 * simulated device beside it.
 */
#include "../unit/pool_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { WORKERS = 3, PAUSES = 60, KEPT = 8 };

static cmpool_t pool;
static CUcontext context;
static atomic_bool done;
static atomic_int wrong;
static atomic_long calls;

static bool may_be(cmpool_status status)
{
    return status == CMPOOL_OK || status == CMPOOL_ERR_PAUSED || status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY;
}

static void note(bool right, const char *what)
{
    if (!right) {
        print_error("%s: %s\n", what, cmpool_status_name(cmpool_last_error()->status));
        atomic_fetch_add(&wrong, 1);
    }
}

static void *work(void *seed)
{
    uint64_t chance = (uintptr_t)seed;
    void *blocks[KEPT] = {NULL}, *region = NULL;
    CUstream stream = NULL;
    note(cuCtxSetCurrent(context) == CUDA_SUCCESS && cuStreamCreate(&stream, 1) == CUDA_SUCCESS, "stream");
    note(cmpool_region_create(pool, &region, 16 * MIB) == CMPOOL_OK, "cmpool_region_create");
    for (; !atomic_load(&done); atomic_fetch_add(&calls, 1)) {
        chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t draw = chance >> 33;
        void **block = &blocks[draw % KEPT];
        if (draw % 13 == 0) {
            note(may_be(cmpool_region_grow(pool, region, draw / 13 % 16 * MIB, stream)), "cmpool_region_grow");
        } else if (draw % 13 == 1) {
            note(may_be(cmpool_region_shrink(pool, region, draw / 13 % 16 * MIB, stream)), "cmpool_region_shrink");
        } else if (*block) {
            note(cmpool_free(pool, *block, stream) == CMPOOL_OK, "cmpool_free");
            *block = NULL;
        } else {
            note(may_be(cmpool_malloc(pool, block, draw % 3 ? draw / 64 % 9000 : draw / 64 % (6 * MIB), stream)), "cmpool_malloc");
        }
    }
    for (int i = 0; i < KEPT; i++)
        note(cmpool_free(pool, blocks[i], stream) == CMPOOL_OK, "cmpool_free");
    note(cmpool_region_destroy(pool, region, stream) == CMPOOL_OK, "cmpool_region_destroy");
    return NULL;
}

static void let_them_make(long more)
{
    for (long until = atomic_load(&calls) + more; atomic_load(&calls) < until;)
        sched_yield();
}

static void pauses_beside_threads(void **state)
{
    (void)state;
    device_start("sim:128MiB,order=random:9");
    pool = pool_with(NULL);
    OK(cuCtxGetCurrent(&context));
    pthread_t threads[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
    for (int i = 0; i < PAUSES; i++) {
        let_them_make(40);
        cmpool_status paused = cmpool_pause(pool, i % 2 ? CMPOOL_KEEP : CMPOOL_DISCARD);
        note(paused == CMPOOL_OK, "cmpool_pause");
        if (i % 3 == 0)
            must_be_sound(pool);
        let_them_make(20);
        DONE(cmpool_resume(pool));
    }
    atomic_store(&done, true);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    must_be_sound(pool);
    assert_int_equal(figures(pool).live_bytes, 0);
    assert_int_equal(panel.races(), 0);
    DONE(cmpool_destroy(pool));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pauses_beside_threads)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
