/*
 * The shared library as a program sees it that knows its public headers and nothing else: a pool is made, used and ended, and what goes
 * wrong is told. The device is the simulated one, which the library loads as its driver; this program has no CUDA in it.
 */
#include <cudamempool/cudamempool.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static cmpool_t make(const char *options)
{
    cmpool_t pool = 0;
    const cmpool_config config = {.struct_size = sizeof config, .options = options};
    assert_int_equal(cmpool_create(&pool, &config), CMPOOL_OK);
    assert_true(pool != 0);
    return pool;
}

static void the_library_is_that_of_the_header(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", CMPOOL_VERSION_MAJOR, CMPOOL_VERSION_MINOR, CMPOOL_VERSION_PATCH);
    assert_string_equal(cmpool_version(), version);
}

static void a_block_from_beginning_to_end(void **state)
{
    (void)state;
    cmpool_t pool = make(NULL);
    void *small, *large;
    assert_int_equal(cmpool_malloc(pool, &small, 1000, NULL), CMPOOL_OK);
    assert_int_equal(cmpool_malloc(pool, &large, 5 * MIB, NULL), CMPOOL_OK);
    size_t usable;
    assert_int_equal(cmpool_usable_size(pool, large, &usable), CMPOOL_OK);
    assert_int_equal(usable, 5 * MIB);
    cmpool_block_info info = {.struct_size = sizeof info};
    assert_int_equal(cmpool_lookup((char *)large + 77, &info), CMPOOL_OK);
    assert_true(info.base == large && info.pool == pool);

    cmpool_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(cmpool_stats_get(pool, &stats), CMPOOL_OK);
    assert_int_equal(stats.live_blocks, 2);
    assert_true(stats.live_bytes >= 5 * MIB + 1000 && stats.reserved_bytes >= stats.live_bytes);
    assert_int_equal(cmpool_destroy(pool), CMPOOL_ERR_BUSY);

    assert_int_equal(cmpool_free(pool, small, NULL), CMPOOL_OK);
    assert_int_equal(cmpool_free(pool, large, NULL), CMPOOL_OK);
    assert_int_equal(cmpool_free(pool, large, NULL), CMPOOL_ERR_ALREADY_FREED);
    size_t released;
    assert_int_equal(cmpool_trim(pool, 0, &released), CMPOOL_OK);
    assert_int_equal(released, stats.reserved_bytes);
    assert_int_equal(cmpool_validate(pool, NULL), CMPOOL_OK);
    assert_int_equal(cmpool_destroy(pool), CMPOOL_OK);
    assert_int_equal(cmpool_destroy(pool), CMPOOL_ERR_INVALID_POOL);
}

static void a_refusal_is_explained(void **state)
{
    (void)state;
    cmpool_t pool = make("limit:16MiB");
    void *block = &pool;
    assert_int_equal(cmpool_malloc(pool, &block, 20 * MIB, NULL), CMPOOL_ERR_LIMIT);
    assert_null(block);
    const cmpool_error *error = cmpool_last_error();
    assert_int_equal(error->status, CMPOOL_ERR_LIMIT);
    assert_string_equal(error->call, "cmpool_malloc");
    assert_int_equal(error->bytes, 20 * MIB);
    assert_int_equal(error->limit_bytes, 16 * MIB);
    assert_int_equal(error->short_bytes, 4 * MIB);
    assert_string_equal(cmpool_status_name(error->status), "CMPOOL_ERR_LIMIT");
    assert_true(strlen(cmpool_status_text(error->status)) > 10);
    assert_int_equal(cmpool_destroy(pool), CMPOOL_OK);
}

int main(void)
{
    setenv("SIMCUDA_CAPACITY", "64MiB", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_is_that_of_the_header),
        cmocka_unit_test(a_block_from_beginning_to_end),
        cmocka_unit_test(a_refusal_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
