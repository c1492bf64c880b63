/*
 * The calls on captures and capture sets with good and bad input: the documented status, and nothing changed by what is refused. Needs the
 * simulated device beside it.
 */
#include "capture_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

static void sets_are_made_in_pools(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), private_pool, set = 77, other = 77;
    DONE(cmpool_private_create(&private_pool, pool));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_create(NULL, pool));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_create(&other, 0));
    assert_int_equal(other, 0);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_create(&other, pool + 1));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_create(&other, private_pool));
    DONE(cmpool_capture_create(&set, pool));
    assert_true(set != 0 && set != pool && set != private_pool);
    other = 77;
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_create(&other, set));
    assert_int_equal(other, 0);
    assert_string_equal(cmpool_last_error()->call, "cmpool_capture_create");
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_private_create(&other, set));

    cmpool_stats before = figures(pool);
    assert_int_equal(before.reserved_bytes, 0); /* a set takes nothing before it is used */
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_destroy(set));
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
    must_be_unchanged(pool, &before);
    DONE(cmpool_destroy(private_pool));
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
    DONE(cmpool_capture_release(set));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_release(set));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_begin(set));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_end(set));
    end_pool(pool);
}

static void begins_and_ends_come_in_pairs(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), private_pool, set = set_in(pool), other = set_in(pool);
    DONE(cmpool_private_create(&private_pool, pool));
    cmpool_stats before = figures(pool);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_end(0));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_end(set));
    assert_string_equal(cmpool_last_error()->call, "cmpool_capture_end");
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_begin(pool));
    assert_string_equal(cmpool_last_error()->call, "cmpool_capture_begin");
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_begin(private_pool));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_end(pool));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_release(pool));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_capture_release(private_pool));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_release(0));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_begin(set + 1));
    must_be_unchanged(pool, &before);
    DONE(cmpool_trim(pool, 0, NULL)); /* none of these left a capture live */

    /* Each end ends one of its own kind. */
    DONE(cmpool_capture_begin(set));
    DONE(cmpool_capture_begin(set));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_end(0));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_end(other));
    DONE(cmpool_capture_end(set));
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_capture_release(set));
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(pool, 0, NULL));
    DONE(cmpool_capture_begin(0));
    DONE(cmpool_capture_end(set));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_capture_end(set));
    GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(pool, 0, NULL));
    DONE(cmpool_capture_end(0));
    DONE(cmpool_trim(pool, 0, NULL));
    DONE(cmpool_capture_release(set));
    DONE(cmpool_capture_release(other));
    DONE(cmpool_destroy(private_pool));
    end_pool(pool);
}

/* Where something would have to be waited for or unmapped, the status says why it is not, and a later call does it. */
static void what_a_capture_bars(void **state)
{
    (void)state;
    for (int with_set = 0; with_set < 2; with_set++) {
        device_start("sim:64MiB,order=lazy");
        cmpool_t pool = pool_with(NULL), second = pool_with(NULL), set = with_set ? set_in(second) : 0;
        CUstream stream = sim_test_stream(), dying = sim_test_stream();
        give(pool, take_and_use(pool, 8 * MIB, stream), stream);
        give(pool, take_and_use(pool, 1000, dying), dying);
        void *kept = take(pool, 1000, stream);
        DONE(cmpool_capture_begin(set));
        cmpool_stats before = figures(pool);
        size_t released = 99;
        panel.counts_reset();
        GIVES(CMPOOL_ERR_CAPTURE, cmpool_trim(pool, 0, &released));
        assert_int_equal(released, 0);
        released = 99;
        GIVES(CMPOOL_ERR_CAPTURE, cmpool_device_trim(0, 64 * MIB, &released));
        assert_int_equal(released, 0);
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool)); /* live blocks come first */
        must_be_unchanged(pool, &before);
        DONE(cmpool_set_limit(pool, 4 * MIB)); /* holds from now on; what is above it goes later */
        DONE(cmpool_record_use(pool, kept, dying));
        DONE(cmpool_free(pool, kept, stream));
        GIVES(CMPOOL_ERR_CAPTURE, cmpool_destroy(pool));
        DONE(cmpool_stream_retire(0, dying));
        DONE(cmpool_reserve(second, 2 * MIB));
        must_be_sound(pool);
        nothing_barred_was_called();
        DONE(cmpool_capture_end(set));
        OK(cuStreamDestroy_v2(dying));
        DONE(cmpool_trim(pool, 0, &released));
        assert_true(released >= 8 * MIB);
        if (set)
            DONE(cmpool_capture_release(set));
        DONE(cmpool_destroy(second));
        end_pool(pool);
    }
}

static void blocks_of_a_set(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), set = set_in(pool), other = set_in(pool);
    CUstream stream = sim_test_stream();
    begin(set, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    char *small = take(set, 1000, stream), *large = take(set, 3 * MIB, stream);
    cmpool_block_info info = {.struct_size = sizeof info};
    DONE(cmpool_lookup(large + 12345, &info));
    assert_true(info.pool == set);
    assert_ptr_equal(info.base, large);
    assert_int_equal(figures(set).live_blocks, 2);
    assert_int_equal(figures(other).live_blocks, 0);
    assert_int_equal(figures(pool).live_blocks, 2);
    size_t usable;
    DONE(cmpool_usable_size(set, small, &usable));
    assert_true(usable >= 1000);
    GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_free(set, large + 512, stream));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(other, large, stream));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_set_limit(set, MIB));
    give(set, small, stream);
    GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(set, small, stream));
    OK(cuGraphExecDestroy(end_capture(set, stream)));
    give(set, take(set, 500, stream), stream);
    DONE(cmpool_capture_release(set));

    /* What lived then is the parent's. */
    void *none;
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_malloc(set, &none, 1, stream));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_free(set, large, stream));
    DONE(cmpool_lookup(large, &info));
    assert_true(info.pool == pool);
    assert_int_equal(figures(pool).live_blocks, 1);
    give(pool, large, stream);
    DONE(cmpool_capture_release(other));
    end_pool(pool);
}

/* ---- calls inside -------------------------------------------------------------------------------------------------- */

static struct {
    cmpool_t set;
    cmpool_status status;
} from_within;

static int release_from_within(void *user, cmpool_t pool, size_t bytes)
{
    (void)user;
    (void)bytes;
    assert_true(pool == from_within.set);
    from_within.status = cmpool_capture_release(from_within.set);
    return 0;
}

static void a_set_with_calls_inside_is_busy(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("limit:8MiB");
    from_within.set = set_in(pool);
    DONE(cmpool_set_low_memory_callback(pool, release_from_within, NULL));
    void *none;
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(from_within.set, &none, 16 * MIB, sim_test_stream()));
    GIVES(CMPOOL_ERR_BUSY, from_within.status);
    DONE(cmpool_capture_release(from_within.set));
    end_pool(pool);
}

/* ---- forked children ----------------------------------------------------------------------------------------------- */

static void in_a_forked_child(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), set = set_in(pool);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cmpool_t other;
        bool told = cmpool_capture_create(&other, pool) == CMPOOL_ERR_FORKED && cmpool_capture_begin(set) == CMPOOL_ERR_FORKED &&
                    cmpool_capture_begin(0) == CMPOOL_ERR_FORKED && cmpool_capture_end(set) == CMPOOL_ERR_FORKED &&
                    cmpool_capture_end(0) == CMPOOL_ERR_FORKED && cmpool_capture_release(set) == CMPOOL_ERR_FORKED;
        _exit(told ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    DONE(cmpool_capture_release(set));
    end_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_made_in_pools), cmocka_unit_test(begins_and_ends_come_in_pairs),   cmocka_unit_test(what_a_capture_bars),
        cmocka_unit_test(blocks_of_a_set),        cmocka_unit_test(a_set_with_calls_inside_is_busy), cmocka_unit_test(in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
