/*
 * Every public function with every kind of bad input: the status that the header names, and nothing changed. A pool that has small and
 * large blocks, free ones, holes and a private pool is looked at before and after. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static int host_variable;

/* ---- making pools ------------------------------------------------------------------------------------------------------------------ */

static void refused_config(cmpool_status expected, cmpool_config config)
{
    simcuda_census before = census_of(0);
    cmpool_t pool = 77;
    assert_int_equal(cmpool_create(&pool, &config), expected);
    assert_int_equal(pool, 0);
    assert_int_equal(cmpool_last_error()->status, expected);
    assert_string_equal(cmpool_last_error()->call, "cmpool_create");
    simcuda_census after = census_of(0);
    assert_memory_equal(&before, &after, sizeof before);
}

static void bad_configs_are_refused(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=2");
    const int itself[] = {0}, negative[] = {-1}, far[] = {64}, absent[] = {7}, good[] = {1};
    const cmpool_config fine = {.struct_size = sizeof fine};
    cmpool_config config;
#define REFUSED_WITH(status, ...)       \
    do {                                \
        config = fine;                  \
        __VA_ARGS__;                    \
        refused_config(status, config); \
    } while (0)
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.struct_size = 0);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.struct_size--);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.struct_size += 8);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.device = -1);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.device = INT_MIN);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.device = INT_MAX);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.device = 64);
    REFUSED_WITH(CMPOOL_ERR_DRIVER_MISSING, config.device = 2);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peer_count = 1);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peers = good, config.peer_count = 64);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peers = good, config.peer_count = SIZE_MAX);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peers = itself, config.peer_count = 1);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peers = negative, config.peer_count = 1);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.peers = far, config.peer_count = 1);
    REFUSED_WITH(CMPOOL_ERR_DRIVER_MISSING, config.peers = absent, config.peer_count = 1);
    REFUSED_WITH(CMPOOL_ERR_INVALID_ARGUMENT, config.options = "page_size:1MiB");
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_create(NULL, &fine));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_create(NULL, NULL));

    panel.set_feature(SIMCUDA_FEATURE_PEER, 0);
    REFUSED_WITH(CMPOOL_ERR_UNSUPPORTED, config.peers = good, config.peer_count = 1);
#undef REFUSED_WITH
    device_end();
}

static void bad_options_count_only_when_strict(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    static const char *const bad[] = {"no_such_key:1", "limit:abc", "limit:-1", "slack:0", "pending:maybe",
                                      "rdma:perhaps",  "verbose:9", "limit",    ":",       "floor:99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "strict:true,%s", bad[i]);
        refused_config(CMPOOL_ERR_BAD_OPTION, (cmpool_config){.struct_size = sizeof(cmpool_config), .options = text});
        snprintf(text, sizeof text, "%s,strict:true", bad[i]);
        refused_config(CMPOOL_ERR_BAD_OPTION, (cmpool_config){.struct_size = sizeof(cmpool_config), .options = text});
        DONE(cmpool_destroy(pool_with(bad[i])));
    }
    setenv("CUDAMEMPOOL_CONF", "no_such_key:1", 1);
    DONE(cmpool_destroy(pool_with("")));
    refused_config(CMPOOL_ERR_BAD_OPTION, (cmpool_config){.struct_size = sizeof(cmpool_config), .options = "strict:true"});
    setenv("CUDAMEMPOOL_CONF", "limit:4MiB,strict:true", 1);
    cmpool_t pool = pool_with(NULL);
    void *block;
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &block, 6 * MIB, NULL));
    DONE(cmpool_destroy(pool));
    pool = pool_with("limit:8MiB"); /* applied over the environment */
    give(pool, take(pool, 6 * MIB, NULL), NULL);
    DONE(cmpool_destroy(pool));
    unsetenv("CUDAMEMPOOL_CONF");
    device_end();
}

static void no_driver(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    char *path = strdup(getenv("CUDAMEMPOOL_DRIVER"));
    assert_non_null(path);
    setenv("CUDAMEMPOOL_DRIVER", "/nonexistent/libcuda.so.1", 1);
    cmi_driver_forget();
    refused_config(CMPOOL_ERR_DRIVER_MISSING, (cmpool_config){.struct_size = sizeof(cmpool_config)});
    setenv("CUDAMEMPOOL_DRIVER", path, 1);
    free(path);
    DONE(cmpool_destroy(pool_with(NULL)));
    device_end();
}

/* ---- a pool with something of everything ------------------------------------------------------------------------------------------- */

static cmpool_t pool, private_pool, other;
static void *small, *large, *tagged, *in_private, *in_other;              /* live */
static void *freed_small, *freed_large, *freed_joined[3], *freed_trimmed; /* no longer */
static CUdeviceptr foreign;

static void make_everything(void)
{
    device_start("sim:256MiB,devices=2");
    OK(cuMemAlloc_v2(&foreign, 1 << 20));
    census_at_start = census_of(0);
    pool = pool_with(NULL);
    other = pool_with(NULL);
    DONE(cmpool_private_create(&private_pool, pool));
    in_other = take(other, 3 * MIB, NULL);
    in_private = take(private_pool, 3 * MIB, NULL);
    small = take(pool, 1000, NULL);
    freed_small = take(pool, 1000, NULL);
    large = take(pool, 5 * MIB + 100, NULL);
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 7 * MIB - 512, .alignment = 2 * MIB, .tag = 42};
    DONE(cmpool_malloc_ex(pool, &tagged, &request));
    for (int i = 0; i < 3; i++)
        freed_joined[i] = take(pool, MIB, NULL);
    void *guard = take(pool, MIB, NULL);
    freed_large = take(pool, 9 * MIB, NULL);
    freed_trimmed = take(pool, 30 * MIB, NULL);
    give(pool, freed_trimmed, NULL);
    size_t released;
    DONE(cmpool_trim(pool, 0, &released));
    assert_true(released >= 28 * MIB);
    give(pool, freed_small, NULL);
    give(pool, freed_large, NULL);
    give(pool, freed_joined[1], NULL);
    give(pool, freed_joined[0], NULL);
    give(pool, freed_joined[2], NULL);
    give(pool, guard, NULL);
    must_be_sound(pool);
    figures(pool);
}

static void end_everything(void)
{
    give(pool, small, NULL);
    give(pool, large, NULL);
    give(pool, tagged, NULL);
    give(private_pool, in_private, NULL);
    give(other, in_other, NULL);
    DONE(cmpool_destroy(private_pool));
    DONE(cmpool_destroy(pool));
    DONE(cmpool_destroy(other));
    device_end();
    OK(cuMemFree_v2(foreign));
}

/* ---- pointers --------------------------------------------------------------------------------------------------------------------------
 */

static void bad_pointer(cmpool_status expected, void *ptr)
{
    cmpool_stats before = figures(pool);
    GIVES(expected, cmpool_free(pool, ptr, NULL));
    assert_int_equal(cmpool_last_error()->status, expected);
    assert_string_equal(cmpool_last_error()->call, "cmpool_free");
    GIVES(expected, cmpool_record_use(pool, ptr, NULL));
    assert_string_equal(cmpool_last_error()->call, "cmpool_record_use");
    size_t bytes = 5;
    GIVES(expected, cmpool_usable_size(pool, ptr, &bytes));
    assert_int_equal(bytes, 0);
    int fd = 7;
    GIVES(expected, cmpool_export_fd(pool, ptr, &fd));
    assert_string_equal(cmpool_last_error()->call, "cmpool_export_fd");
    assert_int_equal(fd, -1);
    must_be_unchanged(pool, &before);
}

static cmpool_status look(void *ptr, cmpool_block_info *info)
{
    *info = (cmpool_block_info){.struct_size = sizeof *info};
    return cmpool_lookup(ptr, info);
}

static void *at(void *block, size_t bytes) { return (char *)block + bytes; }

static void bad_pointers_change_nothing(void **state)
{
    (void)state;
    make_everything();
    void *const foreign_pointers[] = {&host_variable, (void *)1, (void *)UINTPTR_MAX, (void *)(uintptr_t)foreign, in_other};
    for (size_t i = 0; i < sizeof foreign_pointers / sizeof foreign_pointers[0]; i++)
        bad_pointer(CMPOOL_ERR_NOT_OURS, foreign_pointers[i]);

    void *const interior[] = {at(small, 1),        at(small, 512),     at(small, 1023),         at(large, 1),
                              at(large, 512),      at(large, 2 * MIB), at(large, 5 * MIB + 99), at(large, 5 * MIB + 511),
                              at(tagged, 2 * MIB), at(in_private, 512)};
    for (size_t i = 0; i < sizeof interior / sizeof interior[0]; i++)
        bad_pointer(CMPOOL_ERR_INTERIOR_POINTER, interior[i]);

    void *const freed[] = {freed_small,        freed_large,          freed_joined[0],
                           freed_joined[1],    freed_joined[2],      freed_trimmed,
                           at(freed_small, 1), at(freed_large, MIB), at(freed_trimmed, 20 * MIB)};
    for (size_t i = 0; i < sizeof freed / sizeof freed[0]; i++)
        bad_pointer(CMPOOL_ERR_ALREADY_FREED, freed[i]);

    cmpool_stats before = figures(pool);
    DONE(cmpool_free(pool, NULL, NULL));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_record_use(pool, NULL, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_usable_size(pool, large, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_export_fd(pool, large, NULL));
    must_be_unchanged(pool, &before);
    end_everything();
}

static void usable_size_and_lookup(void **state)
{
    (void)state;
    make_everything();
    size_t bytes;
    DONE(cmpool_usable_size(pool, small, &bytes));
    assert_int_equal(bytes, 1024);
    DONE(cmpool_usable_size(pool, large, &bytes));
    assert_int_equal(bytes, 5 * MIB + 512);

    cmpool_block_info info;
    DONE(look(at(tagged, 7 * MIB - 513), &info));
    assert_true(info.pool == pool && info.device == 0 && info.tag == 42 && info.base == tagged);
    assert_int_equal(info.usable_bytes, 7 * MIB - 512);
    assert_int_equal(info.requested_bytes, 7 * MIB - 512);
    assert_int_equal((uintptr_t)tagged % (2 * MIB), 0);
    DONE(look(at(large, 77), &info));
    assert_true(info.pool == pool && info.base == large && info.requested_bytes == 5 * MIB + 100);
    DONE(look(at(small, 1), &info));
    assert_true(info.pool == pool && info.base == small && info.usable_bytes == 1024);
    DONE(look(in_private, &info));
    assert_true(info.pool == private_pool);
    DONE(look(at(in_other, 5), &info));
    assert_true(info.pool == other && info.base == in_other);

    GIVES(CMPOOL_ERR_NOT_OURS, look(NULL, &info));
    GIVES(CMPOOL_ERR_NOT_OURS, look(&host_variable, &info));
    GIVES(CMPOOL_ERR_NOT_OURS, look((void *)(uintptr_t)foreign, &info));
    GIVES(CMPOOL_ERR_ALREADY_FREED, look(freed_small, &info));
    GIVES(CMPOOL_ERR_ALREADY_FREED, look(freed_large, &info));
    GIVES(CMPOOL_ERR_ALREADY_FREED, look(freed_trimmed, &info));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_lookup(large, NULL));
    info.struct_size--;
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_lookup(large, &info));
    info.struct_size = 0;
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_lookup(large, &info));
    end_everything();
}

/* ---- requests --------------------------------------------------------------------------------------------------------------------------
 */

static void sizes_out_of_range(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats before = figures(pool);
    const size_t two47 = (size_t)1 << 47;
    const size_t too_large[] = {two47 + 1, two47 + 512, SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - 510, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof too_large / sizeof too_large[0]; i++) {
        void *block = &host_variable;
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc(pool, &block, too_large[i], NULL));
        assert_null(block);
        const cmpool_request request = {.struct_size = sizeof request, .bytes = too_large[i]};
        block = &host_variable;
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc_ex(pool, &block, &request));
        assert_null(block);
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_reserve(pool, too_large[i]));
    }
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc(pool, NULL, 512, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc(pool, NULL, 0, NULL));
    void *block = &host_variable;
    DONE(cmpool_malloc(pool, &block, 0, NULL));
    assert_null(block);
    must_be_unchanged(pool, &before);
    end_everything();
}

/* More than there can be: refused as want of memory, and no address taken for it. */
static void more_than_the_device(void **state)
{
    (void)state;
    make_everything();
    const size_t two47 = (size_t)1 << 47;
    const size_t sizes[] = {256 * MIB + 1, 513 * MIB, GIB, (size_t)1 << 40, two47 - 511, two47};
    cmpool_stats before = figures(pool);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *block = &host_variable;
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &block, sizes[i], NULL));
        assert_null(block);
        const cmpool_error *error = cmpool_last_error();
        assert_int_equal(error->bytes, (sizes[i] + 511) / 512 * 512);
        assert_true(error->short_bytes >= sizes[i] - 256 * MIB);
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_reserve(pool, sizes[i]));
        must_be_sound(pool);
    }
    cmpool_stats after = figures(pool);
    assert_int_equal(after.address_bytes, before.address_bytes);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_true(after.metadata_bytes < before.metadata_bytes + MIB);
    assert_int_equal(after.refusals, before.refusals + sizeof sizes / sizeof sizes[0]);
    end_everything();
}

static void bad_requests(void **state)
{
    (void)state;
    make_everything();
    const cmpool_request fine = {.struct_size = sizeof fine, .bytes = 4096};
    cmpool_stats before = figures(pool);
    cmpool_request request;
    void *block;
#define REFUSED_REQUEST(...)                                                          \
    do {                                                                              \
        request = fine;                                                               \
        __VA_ARGS__;                                                                  \
        block = &host_variable;                                                       \
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc_ex(pool, &block, &request)); \
        assert_null(block);                                                           \
        assert_string_equal(cmpool_last_error()->call, "cmpool_malloc_ex");           \
    } while (0)
    REFUSED_REQUEST(request.struct_size = 0);
    REFUSED_REQUEST(request.struct_size--);
    REFUSED_REQUEST(request.struct_size += 8);
    REFUSED_REQUEST(request.flags = CMPOOL_EXPORTABLE << 1);
    REFUSED_REQUEST(request.flags = CMPOOL_EXPORTABLE | 0x80000000u);
    REFUSED_REQUEST(request.flags = 0x80000000u);
    REFUSED_REQUEST(request.alignment = 3);
    REFUSED_REQUEST(request.alignment = 1000);
    REFUSED_REQUEST(request.alignment = 4 * MIB);
    REFUSED_REQUEST(request.alignment = (size_t)1 << 63);
    REFUSED_REQUEST(request.alignment = SIZE_MAX);
#undef REFUSED_REQUEST
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc_ex(pool, &block, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_malloc_ex(pool, NULL, &fine));
    must_be_unchanged(pool, &before);

    static const size_t sizes[] = {1, 511, 512, 513, 4096, 262144, 262145, 3 << 20};
    for (size_t align = 1; align <= 2 * MIB; align *= 2)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            request = fine;
            request.alignment = align;
            request.bytes = sizes[i];
            DONE(cmpool_malloc_ex(pool, &block, &request));
            assert_int_equal((uintptr_t)block % (align > 512 ? align : 512), 0);
            size_t usable;
            DONE(cmpool_usable_size(pool, block, &usable));
            assert_true(usable >= sizes[i]);
            give(pool, block, NULL);
        }
    end_everything();
}

/* ---- handles
 * ----------------------------------------------------------------------------------------------------------------------------- */

static int never_called(void *user, cmpool_t of, size_t bytes)
{
    (void)user;
    (void)of;
    (void)bytes;
    return 0;
}

static void every_call_with(cmpool_t handle)
{
    void *block = &host_variable;
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 512};
    size_t bytes = 9;
    cmpool_t child = 9;
    cmpool_stats stats = {.struct_size = sizeof stats};
    const char *finding = "";
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_malloc(handle, &block, 512, NULL));
    assert_null(block);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_malloc(handle, &block, 0, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_malloc_ex(handle, &block, &request));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_free(handle, NULL, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_free(handle, large, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_record_use(handle, large, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_usable_size(handle, large, &bytes));
    int fd = 7;
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_export_fd(handle, large, &fd));
    assert_int_equal(fd, -1);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_trim(handle, 0, &bytes));
    assert_int_equal(bytes, 0);
    cmpool_pause_request pause_request = {.struct_size = sizeof pause_request};
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pause(handle, CMPOOL_KEEP));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pause_ex(handle, &pause_request));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_resume(handle));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_create(handle, &block, MIB));
    assert_null(block);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_grow(handle, large, MIB, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_shrink(handle, large, MIB, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_destroy(handle, large, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_reserve(handle, 4096));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_limit(handle, 4096));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_floor(handle, 4096));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_headroom(handle, 4096));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_low_memory_callback(handle, never_called, NULL));
    cmpool_pinned_stats pinned_stats = {.struct_size = sizeof pinned_stats};
    const cmpool_pinned_request pinned_request = {.struct_size = sizeof pinned_request, .bytes = 512};
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_malloc(handle, &block, 512, NULL));
    assert_null(block);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_malloc_ex(handle, &block, &pinned_request));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_free(handle, NULL, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_free_unordered(handle, large));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_record_use(handle, large, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_set_limit(handle, 4096));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_trim(handle, 0, &bytes));
    assert_int_equal(bytes, 0);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_pinned_stats_get(handle, &pinned_stats));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_stats_get(handle, &stats));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_stats_reset_peaks(handle));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_validate(handle, &finding));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_validate(handle, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_private_create(&child, handle));
    assert_int_equal(child, 0);
    block = &host_variable;
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_malloc_unordered(handle, &block, 512));
    assert_null(block);
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_free_unordered(handle, large));
    child = 9;
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_create(&child, handle));
    assert_int_equal(child, 0);
    if (handle) { /* 0 is a capture without a set */
        GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_begin(handle));
        GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_end(handle));
    }
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_capture_release(handle));
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_refusal_get(handle, &refusal));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_set_refusal_callback(handle, NULL, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_destroy(handle));
    assert_string_equal(cmpool_last_error()->call, "cmpool_destroy");
}

static void handles_that_are_none(void **state)
{
    (void)state;
    make_everything();
    cmpool_t gone = pool_with(NULL), gone_private;
    DONE(cmpool_private_create(&gone_private, pool));
    DONE(cmpool_destroy(gone_private));
    DONE(cmpool_destroy(gone));
    cmpool_t successor = pool_with(NULL); /* may sit where the dead one sat */
    assert_true(successor != gone && successor != gone_private);
    cmpool_stats before = figures(pool);
    const cmpool_t none[] = {0,
                             1,
                             2,
                             7,
                             UINT64_MAX,
                             (cmpool_t)1 << 63,
                             pool + 1,
                             pool + 7,
                             pool + 0x10000,
                             pool - 0x10000,
                             pool + 0x1000,
                             gone,
                             gone_private,
                             pool & 0xffff,
                             pool | (cmpool_t)1 << 60};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (none[i] != other && none[i] != private_pool && none[i] != successor)
            every_call_with(none[i]);
    must_be_unchanged(pool, &before);
    DONE(cmpool_destroy(successor));
    every_call_with(successor);
    end_everything();
}

static void what_a_private_pool_is_refused(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats before = figures(pool);
    cmpool_t child = 9;
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_private_create(&child, private_pool));
    assert_int_equal(child, 0);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_private_create(NULL, pool));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_set_limit(private_pool, MIB));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_set_floor(private_pool, MIB));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_set_headroom(private_pool, MIB));
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(private_pool)); /* it has a live block */
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));         /* so has this, and a private pool */
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(other));
    must_be_unchanged(pool, &before);
    end_everything();

    device_start("sim:64MiB");
    pool = pool_with(NULL);
    DONE(cmpool_private_create(&child, pool));
    GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool)); /* nothing is live, but there is a private pool */
    DONE(cmpool_destroy(child));
    DONE(cmpool_destroy(pool));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_destroy(pool));
    device_end();
}

static void bad_pauses_change_nothing(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats before = figures(pool);
    const cmpool_pause_request bad[] = {
        {.struct_size = 0},
        {.struct_size = sizeof bad[0] - 1},
        {.struct_size = sizeof bad[0], .contents = 2},
        {.struct_size = sizeof bad[0], .contents = CMPOOL_KEEP, .flags = 2},
        {.struct_size = sizeof bad[0], .flags = CMPOOL_PAUSE_VERIFY}, /* of nothing */
        {.struct_size = sizeof bad[0], .file = "no-contents"},
        {.struct_size = sizeof bad[0], .contents = CMPOOL_KEEP, .file = ""},
        {.struct_size = sizeof bad[0], .tag_name = ""},
        {.struct_size = sizeof bad[0], .fixed_room = 1},
    };
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pause_ex(pool, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pause(pool, (cmpool_contents)7));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cmpool_pause_request request = bad[i];
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pause_ex(pool, &request));
    }
    cmpool_pause_request nowhere = {.struct_size = sizeof nowhere, .contents = CMPOOL_KEEP, .file = "no such folder/kept"};
    GIVES(CMPOOL_ERR_FILE, cmpool_pause_ex(pool, &nowhere));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_pause(private_pool, CMPOOL_KEEP));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_resume(private_pool));
    DONE(cmpool_resume(pool));
    must_be_unchanged(pool, &before);
    end_everything();
}

static void devices_that_are_none(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats before = figures(pool);
    static const int bad[] = {-1, 64, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t released = 9;
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_device_trim(bad[i], MIB, &released));
        assert_int_equal(released, 0);
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_device_trim(bad[i], MIB, NULL));
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_stream_retire(bad[i], NULL));
    }
    size_t released = 9;
    DONE(cmpool_device_trim(1, MIB, &released)); /* a device without pools has nothing to give */
    assert_int_equal(released, 0);
    DONE(cmpool_device_trim(0, 0, &released));
    assert_int_equal(released, 0);
    DONE(cmpool_stream_retire(0, (CUstream)&host_variable)); /* unknown streams are OK, and not touched */
    DONE(cmpool_stream_retire(1, (CUstream)&host_variable));
    must_be_unchanged(pool, &before);
    end_everything();
}

/* ---- figures and errors
 * -------------------------------------------------------------------------------------------------------------------- */

static void figures_of_any_length(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats full = figures(pool);
    for (size_t bytes = sizeof(size_t) + 8; bytes <= sizeof full; bytes += 8) {
        union {
            cmpool_stats stats;
            unsigned char bytes[sizeof(cmpool_stats)];
        } part;
        memset(&part, 0xAB, sizeof part);
        part.stats.struct_size = bytes;
        DONE(cmpool_stats_get(pool, &part.stats));
        assert_memory_equal(part.bytes + sizeof(size_t), (unsigned char *)&full + sizeof(size_t), bytes - sizeof(size_t));
        for (size_t i = bytes; i < sizeof full; i++)
            assert_int_equal(part.bytes[i], 0xAB);
    }
    union {
        cmpool_stats stats;
        unsigned char bytes[sizeof(cmpool_stats) + 64];
    } longer;
    memset(&longer, 0xAB, sizeof longer);
    longer.stats.struct_size = sizeof longer;
    DONE(cmpool_stats_get(pool, &longer.stats));
    assert_int_equal(longer.stats.struct_size, sizeof longer);
    assert_int_equal(longer.stats.live_bytes, full.live_bytes);
    for (size_t i = sizeof full; i < sizeof longer; i++)
        assert_int_equal(longer.bytes[i], 0); /* counters this library does not know */

    for (size_t bytes = 0; bytes < sizeof(size_t) + 8; bytes++) {
        cmpool_stats none = {.struct_size = bytes, .live_bytes = 3};
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_stats_get(pool, &none));
        assert_int_equal(none.live_bytes, 3);
    }
    cmpool_stats huge = {.struct_size = SIZE_MAX};
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_stats_get(pool, &huge));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_stats_get(pool, NULL));
    end_everything();
}

static void figures_add_up(void **state)
{
    (void)state;
    make_everything();
    cmpool_stats all = figures(pool), part = figures(private_pool);
    assert_int_equal(part.live_blocks, 1);
    assert_int_equal(part.live_bytes, 3 * MIB);
    assert_int_equal(part.allocations, 1);
    assert_int_equal(part.reserved_bytes, all.reserved_bytes);
    assert_int_equal(all.live_blocks, 4);
    assert_int_equal(all.live_bytes, 1024 + 5 * MIB + 512 + 7 * MIB - 512 + 3 * MIB);
    assert_int_equal(all.requested_bytes, 1024 + 5 * MIB + 100 + 7 * MIB - 512 + 3 * MIB);
    assert_int_equal(all.allocations - all.frees, all.live_blocks);
    assert_true(all.peak_live_bytes > all.live_bytes && all.peak_reserved_bytes > all.reserved_bytes);
    assert_int_equal(all.address_bytes, 512 * MIB);
    cmpool_stats its = figures(other);
    assert_int_equal(all.reserved_bytes + its.reserved_bytes, census_of(0).handle_bytes);
    assert_int_equal(all.mapped_slots, census_of(0).mappings);
    DONE(cmpool_stats_reset_peaks(pool));
    all = figures(pool);
    assert_int_equal(all.peak_live_bytes, all.live_bytes);
    assert_int_equal(all.peak_reserved_bytes, all.reserved_bytes);
    end_everything();
}

static void *first_error_of_a_thread(void *unused)
{
    (void)unused;
    return cmpool_last_error()->status == CMPOOL_OK && cmpool_last_error()->call && cmpool_last_error()->driver_call ? &host_variable
                                                                                                                     : NULL;
}

static void the_last_error(void **state)
{
    (void)state;
    pthread_t thread;
    void *answer;
    assert_int_equal(pthread_create(&thread, NULL, first_error_of_a_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &answer), 0);
    assert_non_null(answer);

    make_everything();
    DONE(cmpool_set_limit(pool, 64 * MIB));
    void *block;
    cmpool_stats now = figures(pool);
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &block, 100 * MIB, NULL));
    const cmpool_error *error = cmpool_last_error();
    assert_int_equal(error->status, CMPOOL_ERR_LIMIT);
    assert_string_equal(error->call, "cmpool_malloc");
    assert_int_equal(error->bytes, 100 * MIB);
    assert_int_equal(error->limit_bytes, 64 * MIB);
    assert_int_equal(error->live_bytes, now.live_bytes);
    assert_true(error->short_bytes >= 100 * MIB - 64 * MIB && error->short_bytes <= 100 * MIB);

    DONE(cmpool_malloc(pool, &block, 512, NULL)); /* a success changes nothing */
    assert_int_equal(cmpool_last_error()->status, CMPOOL_ERR_LIMIT);
    give(pool, block, NULL);
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, &host_variable, NULL)); /* numbers of another failure do not linger */
    error = cmpool_last_error();
    assert_true(error->bytes == 0 && error->limit_bytes == 0 && error->driver_code == 0);
    assert_string_equal(error->driver_call, "");

    DONE(cmpool_set_limit(pool, 0));
    panel.plan_failure("cuMemCreate", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    GIVES(CMPOOL_ERR_DRIVER, cmpool_malloc(pool, &block, 100 * MIB, NULL));
    assert_string_equal(cmpool_last_error()->driver_call, "cuMemCreate");
    assert_int_equal(cmpool_last_error()->driver_code, CUDA_ERROR_UNKNOWN);
    must_be_sound(pool);
    end_everything();
}

static void words_for_every_status(void **state)
{
    (void)state;
#define CMPOOL_STATUS(name, number, text)                                    \
    assert_string_equal(cmpool_status_name(CMPOOL_##name), "CMPOOL_" #name); \
    assert_string_equal(cmpool_status_text((cmpool_status)number), text);
#include <cudamempool/status.def>
#undef CMPOOL_STATUS
    static const int unknown[] = {-1, 1000, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_non_null(cmpool_status_name((cmpool_status)unknown[i]));
        assert_non_null(cmpool_status_text((cmpool_status)unknown[i]));
    }
    assert_string_equal(cmpool_version(), "0.1.0");
}

/* Tags, steps, snapshots, contexts, what was refused: bad input changes nothing and leaves nothing behind. */
static void what_is_told_and_asked(void **state)
{
    (void)state;
    make_everything();
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    cmpool_stats before = figures(pool);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_push(NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_push(""));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_tag_pop()); /* a push that failed needs none */
    assert_string_equal(cmpool_last_error()->call, "cmpool_tag_pop");
    DONE(cmpool_step());

    cmpool_refusal refusal = {.struct_size = sizeof refusal - 1};
    char text[8] = "before";
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, &refusal));
    assert_int_equal(cmpool_refusal_text(&refusal, text, sizeof text), 0);
    assert_int_equal(cmpool_refusal_text(NULL, text, sizeof text), 0);
    refusal.struct_size = sizeof refusal;
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_refusal_get(pool, &refusal)); /* nothing was refused */
    assert_int_equal(cmpool_refusal_text(&refusal, NULL, sizeof text), 0);
    assert_string_equal(text, "before");
    DONE(cmpool_set_refusal_callback(private_pool, NULL, NULL));

    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write(NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write(""));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write("/dev/null%d"));
    GIVES(CMPOOL_ERR_FILE, cmpool_snapshot_write("/dev/null/below"));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_snapshot_write_fd(-1));

    static const int bad[] = {-1, 64, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_add(bad[i], context));
        GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_remove(bad[i], context));
    }
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_add(0, NULL));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_context_remove(0, NULL));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_context_add(1, context));

    cmpool_block_info info = {.struct_size = sizeof info};
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_lookup(large, &info));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_pinned_lookup(NULL, &info));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_lookup(large, NULL));
    info.struct_size = 0;
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_pinned_lookup(large, &info));
    unsigned counters = 0;
#define CMPOOL_COUNTER(name, kind, help) assert_string_equal(cmpool_counter_name(counters++), #name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    assert_null(cmpool_counter_name(counters));
    assert_null(cmpool_counter_name(UINT_MAX));
    must_be_unchanged(pool, &before);
    end_everything();
}

/* ---- after fork
 * -------------------------------------------------------------------------------------------------------------------------------- */

static int calls_that_a_child_got_wrong(void)
{
    int wrong = 0;
    void *block = NULL;
    size_t bytes;
    cmpool_t made;
    cmpool_stats stats = {.struct_size = sizeof stats};
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 512};
#define MUST_SAY_FORKED(call) wrong += (call) != CMPOOL_ERR_FORKED
    MUST_SAY_FORKED(cmpool_malloc(pool, &block, 512, NULL));
    MUST_SAY_FORKED(cmpool_malloc_ex(pool, &block, &request));
    MUST_SAY_FORKED(cmpool_free(pool, large, NULL));
    MUST_SAY_FORKED(cmpool_record_use(pool, large, NULL));
    MUST_SAY_FORKED(cmpool_usable_size(pool, large, &bytes));
    int fd;
    MUST_SAY_FORKED(cmpool_export_fd(pool, large, &fd));
    MUST_SAY_FORKED(cmpool_trim(pool, 0, &bytes));
    MUST_SAY_FORKED(cmpool_device_trim(0, 1, &bytes));
    cmpool_pause_request pause_request = {.struct_size = sizeof pause_request};
    MUST_SAY_FORKED(cmpool_pause(pool, CMPOOL_DISCARD));
    MUST_SAY_FORKED(cmpool_pause_ex(pool, &pause_request));
    MUST_SAY_FORKED(cmpool_resume(pool));
    MUST_SAY_FORKED(cmpool_region_create(pool, &block, MIB));
    MUST_SAY_FORKED(cmpool_region_grow(pool, large, MIB, NULL));
    MUST_SAY_FORKED(cmpool_region_shrink(pool, large, MIB, NULL));
    MUST_SAY_FORKED(cmpool_region_destroy(pool, large, NULL));
    MUST_SAY_FORKED(cmpool_reserve(pool, MIB));
    MUST_SAY_FORKED(cmpool_stream_retire(0, NULL));
    MUST_SAY_FORKED(cmpool_stats_get(pool, &stats));
    MUST_SAY_FORKED(cmpool_create(&made, NULL));
    MUST_SAY_FORKED(cmpool_private_create(&made, pool));
    MUST_SAY_FORKED(cmpool_malloc_unordered(pool, &block, 512));
    MUST_SAY_FORKED(cmpool_free_unordered(pool, large));
    MUST_SAY_FORKED(cmpool_context_add(0, &made));
    MUST_SAY_FORKED(cmpool_context_remove(0, &made));
    MUST_SAY_FORKED(cmpool_capture_create(&made, pool));
    MUST_SAY_FORKED(cmpool_capture_begin(0));
    MUST_SAY_FORKED(cmpool_capture_end(0));
    MUST_SAY_FORKED(cmpool_capture_release(pool));
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    MUST_SAY_FORKED(cmpool_refusal_get(pool, &refusal));
    MUST_SAY_FORKED(cmpool_set_refusal_callback(pool, NULL, NULL));
    MUST_SAY_FORKED(cmpool_tag_push("child"));
    MUST_SAY_FORKED(cmpool_tag_pop());
    MUST_SAY_FORKED(cmpool_step());
    MUST_SAY_FORKED(cmpool_snapshot_write("/dev/null"));
    MUST_SAY_FORKED(cmpool_snapshot_write_fd(1));
    MUST_SAY_FORKED(cmpool_destroy(pool));
#undef MUST_SAY_FORKED
    return wrong;
}

static void a_child_process_is_refused(void **state)
{
    (void)state;
    make_everything();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(calls_that_a_child_got_wrong());
    int outcome;
    assert_int_equal(waitpid(child, &outcome, 0), child);
    assert_true(WIFEXITED(outcome));
    assert_int_equal(WEXITSTATUS(outcome), 0);
    end_everything();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(bad_options_count_only_when_strict),
        cmocka_unit_test(no_driver),
        cmocka_unit_test(bad_pointers_change_nothing),
        cmocka_unit_test(usable_size_and_lookup),
        cmocka_unit_test(sizes_out_of_range),
        cmocka_unit_test(more_than_the_device),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(handles_that_are_none),
        cmocka_unit_test(bad_pauses_change_nothing),
        cmocka_unit_test(what_a_private_pool_is_refused),
        cmocka_unit_test(devices_that_are_none),
        cmocka_unit_test(figures_of_any_length),
        cmocka_unit_test(figures_add_up),
        cmocka_unit_test(the_last_error),
        cmocka_unit_test(words_for_every_status),
        cmocka_unit_test(what_is_told_and_asked),
        cmocka_unit_test(a_child_process_is_refused),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
