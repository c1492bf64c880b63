/*
 * Pools in several situations, each written as a snapshot into the folder that is given, for check_snapshots.py to judge; and what the
 * calls say to bad input. Needs the simulated device beside it.
 */
#include "../unit/pool_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static const char *folder;

static const char *file_named(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    return path;
}

static CUstream new_stream(void)
{
    CUstream stream;
    assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

/* Blocks of all kinds on two streams, some of them freed, while the device finishes nothing. */
static void everything_at_once(void **state)
{
    (void)state;
    device_start("sim:256MiB,order=lazy");
    cmpool_t pool = pool_with("history:1000,stacks:all,limit:96MiB"), private, set;
    CUstream one = new_stream(), two = new_stream();
    DONE(cmpool_tag_push("forward"));
    void *big = take(pool, 22 * MIB - 100, one);
    DONE(cmpool_tag_push("attention"));
    void *small[40];
    for (int i = 0; i < 40; i++) {
        small[i] = take(pool, 1000 + 100 * (size_t)i, one);
    }
    DONE(cmpool_tag_pop());
    void *used = take(pool, 6 * MIB, one), *shared = take(pool, 3 * MIB, two);
    DONE(cmpool_tag_pop());
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_pop());
    DONE(cmpool_private_create(&private, pool));
    void *mine = take(private, 5 * MIB, two);
    DONE(cmpool_capture_create(&set, pool));
    void *graph = take(set, 4 * MIB, two);
    const cmpool_request tagged = {.struct_size = sizeof tagged, .bytes = 700, .stream = two, .tag = 77};
    void *numbered;
    DONE(cmpool_malloc_ex(pool, &numbered, &tagged));
    cmpool_block_info info = {.struct_size = sizeof info};
    DONE(cmpool_lookup(numbered, &info));
    assert_int_equal(info.tag, 77);
    use(one, used, 6 * MIB);
    DONE(cmpool_record_use(pool, used, two));
    void *pinned;
    DONE(cmpool_pinned_malloc(pool, &pinned, 3 * MIB, one));
    DONE(cmpool_record_use(pool, shared, one));
    DONE(cmpool_record_use(pool, small[3], two));
    give(pool, used, one);
    give(pool, small[3], one);
    give(pool, small[5], one);
    give(set, graph, two);
    void *unordered;
    DONE(cmpool_malloc_unordered(pool, &unordered, 2 * MIB));
    DONE(cmpool_free_unordered(pool, unordered));
    void *refused;
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &refused, 90 * MIB, two));
    DONE(cmpool_snapshot_write(file_named("everything")));
    must_be_sound(pool);

    int file = open(file_named("descriptor"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    DONE(cmpool_snapshot_write_fd(file));
    close(file);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write_fd(file));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write_fd(-1));
    file = open(file_named("descriptor"), O_RDONLY);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write_fd(file));
    close(file);
    if (access("/dev/full", W_OK) == 0) {
        GIVES(CMPOOL_ERR_FILE, cmpool_snapshot_write("/dev/full"));
    }
    GIVES(CMPOOL_ERR_FILE, cmpool_snapshot_write(file_named("no such folder/x")));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write(NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write(""));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write("%x"));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write("%"));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_push(NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_push(""));

    give(pool, big, one);
    for (int i = 0; i < 40; i++) {
        if (i != 3 && i != 5) {
            give(pool, small[i], i % 2 ? one : two);
        }
    }
    give(pool, shared, two);
    DONE(cmpool_pinned_free(pool, pinned, one));
    give(private, mine, two);
    give(pool, numbered, two);
    DONE(cmpool_destroy(private));
    DONE(cmpool_capture_release(set));
    DONE(cmpool_snapshot_write(file_named("freed")));
    DONE(cmpool_destroy(pool));
}

static void regions_are_told(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    CUstream stream = new_stream();
    void *base, *empty;
    DONE(cmpool_region_create(pool, &base, 40 * MIB));
    DONE(cmpool_region_create(pool, &empty, 10 * MIB));
    DONE(cmpool_region_grow(pool, base, 15 * MIB, stream));
    DONE(cmpool_region_shrink(pool, base, 7 * MIB, stream));
    DONE(cmpool_snapshot_write(file_named("regions")));
    DONE(cmpool_region_destroy(pool, base, stream));
    DONE(cmpool_region_destroy(pool, empty, stream));
    DONE(cmpool_destroy(pool));
}

static void history_keeps_the_newest(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("history:8");
    CUstream stream = new_stream();
    for (int i = 0; i < 20; i++) {
        give(pool, take(pool, 1 * MIB, stream), stream);
    }
    DONE(cmpool_snapshot_write(file_named("ring")));
    DONE(cmpool_destroy(pool));
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

static cmpool_refusal told;
static int times_told;

static void note_refusal(void *user, const cmpool_refusal *refusal)
{
    told = *refusal;
    times_told++;
    void *nothing;
    cmpool_t pool = *(cmpool_t *)user;
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc(pool, NULL, 1, NULL)); /* an error of its own changes nothing for the caller */
    DONE(cmpool_malloc(pool, &nothing, 0, NULL));
}

static void refusals_are_explained(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("limit:48MiB,stacks:all");
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, &refusal)); /* none yet */
    DONE(cmpool_set_refusal_callback(pool, note_refusal, &pool));
    DONE(cmpool_tag_push("weights"));
    void *weights = take(pool, 30 * MIB, NULL), *few[3], *none = weights;
    DONE(cmpool_tag_pop());
    for (int i = 0; i < 3; i++) {
        few[i] = take(pool, 4 * MIB, NULL);
    }
    give(pool, few[1], NULL);
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &none, 20 * MIB, NULL));
    assert_null(none);
    assert_int_equal(cmpool_last_error()->status, CMPOOL_ERR_LIMIT);
    assert_string_equal(cmpool_last_error()->call, "cmpool_malloc");
    assert_int_equal(times_told, 1);
    assert_int_equal(told.pool, pool);
    assert_int_equal(told.verdict, CMPOOL_VERDICT_TRUE_DEMAND);
    assert_int_equal(told.request_bytes, 20 * MIB);
    assert_int_equal(told.live_bytes, 38 * MIB);
    assert_int_equal(told.idle_bytes, 4 * MIB);
    assert_int_equal(told.short_bytes, 10 * MIB); /* 48 - 38 are left */
    assert_int_equal(told.driver_free_bytes, 64 * MIB - told.process_bytes);
    assert_int_equal(told.limit_bytes, 48 * MIB);
    assert_int_equal(told.holders[0].by, CMPOOL_BY_TAG);
    assert_int_equal(told.holders[0].bytes, 30 * MIB);
    uint64_t of_size[2] = {0};
    for (uint32_t i = 0; i < told.holder_count; i++) {
        if (told.holders[i].by == CMPOOL_BY_SIZE) {
            of_size[told.holders[i].key == 4 * MIB] = told.holders[i].blocks;
        }
    }
    assert_int_equal(of_size[0], 1);
    assert_int_equal(of_size[1], 2);

    DONE(cmpool_refusal_get(pool, &refusal));
    assert_memory_equal(&refusal, &told, sizeof refusal);
    char text[4096], cut[100];
    size_t length = cmpool_refusal_text(&refusal, text, sizeof text);
    assert_int_equal(length, strlen(text));
    static const char *const said[] = {"refused 20.0 MiB on device 0 (limit), 10.0 MiB short", "verdict: true_demand", "38.0 MiB live",
                                       "tag \"weights\"", "advice: The pool's own limit of 48.0 MiB stops it"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (!strstr(text, said[i])) {
            fail_msg("not in the report: %s\n%s", said[i], text);
        }
    }
    assert_int_equal(cmpool_refusal_text(&refusal, cut, sizeof cut), length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, text, sizeof cut - 1);
    assert_int_equal(cmpool_refusal_text(NULL, text, sizeof text), 0);
    assert_int_equal(cmpool_refusal_text(&refusal, NULL, 5), 0);
    refusal.struct_size--;
    assert_int_equal(cmpool_refusal_text(&refusal, text, sizeof text), 0);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, &refusal));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, NULL));
    refusal.struct_size++;
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_refusal_get(0, &refusal));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_refusal_callback(0, NULL, NULL));

    DONE(cmpool_set_refusal_callback(pool, NULL, NULL));
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &none, 100 * MIB, NULL));
    assert_int_equal(times_told, 1);
    DONE(cmpool_refusal_get(pool, &refusal));
    assert_int_equal(refusal.number, 2);
    DONE(cmpool_snapshot_write(file_named("refused")));
    give(pool, weights, NULL);
    give(pool, few[0], NULL);
    give(pool, few[2], NULL);
    DONE(cmpool_destroy(pool));
}

/* Steps of ordinary calls on two streams, recorded; what was live at most is written beside it. */
static void a_trace_is_recorded(const char *name)
{
    char options[4200];
    static void *blocks[64];
    device_start("sim:256MiB");
    snprintf(options, sizeof options, "trace:%s/%s", folder, name);
    cmpool_t pool = pool_with(options);
    CUstream streams[2] = {new_stream(), new_stream()};
    uint64_t live = 0, peak = 0, sizes[64] = {0};
    unsigned draw = 1;
    for (int step = 0; step < 40; step++) {
        DONE(cmpool_step());
        for (int i = 0; i < 400; i++) {
            draw = draw * 1103515245 + 12345;
            unsigned slot = draw >> 16 & 63, on = draw >> 22 & 1;
            if (blocks[slot]) {
                give(pool, blocks[slot], streams[on]);
                live -= sizes[slot];
                blocks[slot] = NULL;
                continue;
            }
            size_t bytes = 1 + (draw >> 8 & 0xffff) * (i % 3 ? 1u : 16u);
            blocks[slot] = take(pool, bytes, streams[on]);
            sizes[slot] = cmi_round_up(bytes, 512);
            live += sizes[slot];
            peak = live > peak ? live : peak;
            if (i % 5 == 0) {
                DONE(cmpool_record_use(pool, blocks[slot], streams[!on]));
            }
        }
    }
    for (int i = 0; i < 64; i++) {
        cmpool_free(pool, blocks[i], streams[0]);
        blocks[i] = NULL;
    }
    DONE(cmpool_destroy(pool));
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.peak", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%llu\n", (unsigned long long)peak);
    fclose(file);
}

static void traces_are_recorded(void **state)
{
    (void)state;
    a_trace_is_recorded("calls.cmtrace.gz");
}

/* Nothing is kept that was not asked for. */
static void plain_pools(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=2");
    DONE(cmpool_snapshot_write(file_named("none")));
    cmpool_t first = pool_on(0, ""), second = pool_on(0, "slack:5%"), third = pool_on(1, "");
    void *block = take(first, 3 * MIB, NULL);
    DONE(cmpool_snapshot_write(file_named("plain")));
    give(first, block, NULL);
    DONE(cmpool_destroy(first));
    DONE(cmpool_destroy(second));
    DONE(cmpool_destroy(third));
    device_end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_pools),
        cmocka_unit_test(everything_at_once),
        cmocka_unit_test(regions_are_told),
        cmocka_unit_test(history_keeps_the_newest),
        cmocka_unit_test(refusals_are_explained),
        cmocka_unit_test(traces_are_recorded),
    };
    if (argc != 2) {
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
