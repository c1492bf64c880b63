/*
 * Growing regions on the simulated device, in each order: addresses that stay, pages that come from anywhere in the pool and go anywhere,
 * in stream order; refusals; a driver that fails at every call; and random programs over regions and blocks with contents compared. Needs
 * the simulated device beside it.
 */
#include "capture_fixture.h"

static void *region_in(cmpool_t pool, size_t most)
{
    void *base;
    DONE(cmpool_region_create(pool, &base, most));
    assert_non_null(base);
    return base;
}

static void it_grows_and_shrinks_in_place(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream();
        char *base = region_in(pool, 48 * MIB), *other = region_in(pool, 200 * MIB);
        assert_int_equal(figures(pool).live_bytes, 0);
        assert_int_equal(census_of(0).handles, 0);
        for (size_t mib = 1; mib <= 48; mib += 5) {
            DONE(cmpool_region_grow(pool, base, mib * MIB, a));
            use(a, base, mib * MIB);
            must_be_sound(pool);
        }
        DONE(cmpool_region_grow(pool, base, 3 * MIB, a));
        assert_int_equal(figures(pool).region_bytes, 46 * MIB);
        assert_int_equal(figures(pool).live_bytes, 46 * MIB);
        assert_int_equal(figures(pool).page_moves, 0);
        DONE(cmpool_region_grow(pool, other, 10 * MIB, a));
        cmpool_block_info info = {.struct_size = sizeof info};
        DONE(cmpool_lookup(base + 17 * MIB, &info));
        assert_ptr_equal(info.base, base);
        assert_int_equal(info.usable_bytes, 46 * MIB);
        assert_int_equal(info.pool, pool);
        size_t usable;
        DONE(cmpool_usable_size(pool, other, &usable));
        assert_int_equal(usable, 10 * MIB);
        DONE(cmpool_region_shrink(pool, base, 7 * MIB, a));
        assert_int_equal(figures(pool).region_bytes, 18 * MIB);
        DONE(cmpool_region_grow(pool, other, 50 * MIB, a)); /* by the pages that the first has left */
        use(a, other, 50 * MIB);
        must_be_sound(pool);
        GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_region_grow(pool, base, 40 * MIB, a));
        use(a, base, 8 * MIB);
        DONE(cmpool_region_shrink(pool, other, 0, a));
        DONE(cmpool_region_grow(pool, base, 40 * MIB, a));
        use(a, base, 40 * MIB);
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(pool));
        DONE(cmpool_region_destroy(pool, base, a));
        DONE(cmpool_region_destroy(pool, other, a));
        GIVES(CMPOOL_ERR_NOT_OURS, cmpool_region_grow(pool, base, MIB, a));
        void *all = take_and_use(pool, 62 * MIB, a);
        give(pool, all, a);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

/* Whole pages of blocks go to a region, and a region's to blocks; other streams wait. */
static void pages_are_shared_in_stream_order(void **state)
{
    (void)state;
    EACH_SMALL_DEVICE(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL), sibling = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        char *base = region_in(pool, 60 * MIB);
        for (int round = 0; round < 6; round++) {
            void *block = take_and_use(round % 3 == 2 ? sibling : pool, 52 * MIB, a);
            give(round % 3 == 2 ? sibling : pool, block, a);
            DONE(cmpool_region_grow(pool, base, 56 * MIB, b));
            use(b, base, 56 * MIB);
            DONE(cmpool_region_grow(pool, base, 58 * MIB, a)); /* named by two streams from now on */
            order(b, a);
            use(a, base, 58 * MIB);
            DONE(cmpool_region_shrink(pool, base, (size_t)round * MIB, round % 2 ? a : b));
            must_be_sound(pool);
        }
        size_t released;
        DONE(cmpool_trim(pool, 0, &released));
        must_be_sound(pool);
        assert_int_equal(figures(pool).reserved_bytes, 6 * MIB);
        DONE(cmpool_region_grow(pool, base, 60 * MIB, NULL));
        DONE(cmpool_region_destroy(pool, base, b));
        DONE(cmpool_destroy(pool));
        DONE(cmpool_destroy(sibling));
        device_end();
    }
}

static void what_is_refused(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=1");
    cmpool_t pool = pool_with("limit:16MiB"), inside, segmented = pool_with("backend:malloc");
    CUstream a = sim_test_stream();
    void *base = &pool, *none = NULL;
    DONE(cmpool_private_create(&inside, pool));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_region_create(pool, NULL, MIB));
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_region_create(pool, &base, 0));
    assert_null(base);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_region_create(pool, &base, SIZE_MAX));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_region_create(inside, &base, MIB));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_region_create(segmented, &base, MIB));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_create(0, &base, MIB));
    base = region_in(pool, 30 * MIB);
    GIVES(CMPOOL_ERR_INVALID_ARGUMENT, cmpool_region_grow(pool, base, 31 * MIB, a));
    GIVES(CMPOOL_ERR_LIMIT, cmpool_region_grow(pool, base, 30 * MIB, a));
    GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_region_grow(pool, (char *)base + MIB, MIB, a));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_region_grow(pool, none, MIB, a));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_region_grow(inside, base, MIB, a));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_region_shrink(pool, &pool, MIB, a));
    GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_region_shrink(0, base, MIB, a));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_region_destroy(pool, none, a));
    DONE(cmpool_region_grow(pool, base, 9 * MIB, a));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_free(pool, base, a));
    GIVES(CMPOOL_ERR_UNSUPPORTED, cmpool_free_unordered(pool, base));
    assert_int_equal(figures(pool).live_bytes, 10 * MIB);
    DONE(cmpool_pause(pool, CMPOOL_KEEP));
    GIVES(CMPOOL_ERR_PAUSED, cmpool_region_grow(pool, base, 12 * MIB, a));
    GIVES(CMPOOL_ERR_PAUSED, cmpool_region_shrink(pool, base, 0, a));
    GIVES(CMPOOL_ERR_PAUSED, cmpool_region_destroy(pool, base, a));
    DONE(cmpool_resume(pool));
    use(a, base, 10 * MIB);
    DONE(cmpool_region_shrink(pool, base, 3 * MIB, a));
    DONE(cmpool_pause(pool, CMPOOL_DISCARD));
    assert_int_equal(census_of(0).handles, 0);
    DONE(cmpool_resume(pool));
    DONE(cmpool_region_grow(pool, base, 12 * MIB, a));
    DONE(cmpool_region_destroy(pool, base, a));
    DONE(cmpool_destroy(inside));
    DONE(cmpool_destroy(pool));
    DONE(cmpool_destroy(segmented));
    device_end();
}

/* ---- a driver that fails at one call, and from there on ------------------------------------------- */

static bool sound_and(cmpool_t pool, cmpool_status status, cmpool_status *last)
{
    must_be_sound(pool);
    *last = status;
    return status == CMPOOL_OK;
}

static void try_with_failure(uint64_t nth, uint64_t count, int code, simcuda_when when, const char *options, bool *reached)
{
    device_start("sim:64MiB,order=lazy");
    cmpool_t pool = pool_with(options);
    CUstream a = sim_test_stream(), b = sim_test_stream();
    char *base = region_in(pool, 60 * MIB), *extra = NULL;
    void *block = take_and_use(pool, 40 * MIB, a), *edge = take_and_use(pool, 5 * MIB, b);
    cmpool_status last;
    size_t released;
    uint64_t before = panel.failures_injected();
    panel.plan_failure("*", nth, count, code, when);
    sound_and(pool, cmpool_region_grow(pool, base, 7 * MIB, b), &last);
    if (sound_and(pool, cmpool_free(pool, block, a), &last))
        block = NULL;
    sound_and(pool, cmpool_region_grow(pool, base, 50 * MIB, b), &last);
    sound_and(pool, cmpool_region_create(pool, (void **)&extra, 20 * MIB), &last);
    sound_and(pool, cmpool_region_shrink(pool, base, 4 * MIB, a), &last);
    if (extra)
        sound_and(pool, cmpool_region_grow(pool, extra, 20 * MIB, a), &last);
    sound_and(pool, cmpool_trim(pool, 30 * MIB, &released), &last);
    sound_and(pool, cmpool_region_grow(pool, base, 12 * MIB, a), &last);
    if (extra && sound_and(pool, cmpool_region_destroy(pool, extra, b), &last))
        extra = NULL;
    *reached = panel.failures_injected() > before;
    panel.fail_clear();
    if (block)
        give(pool, block, a);
    if (extra)
        DONE(cmpool_region_destroy(pool, extra, b));
    DONE(cmpool_region_grow(pool, base, 52 * MIB, a));
    use(a, base, 52 * MIB);
    give(pool, edge, b);
    DONE(cmpool_region_destroy(pool, base, b));
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    assert_int_equal(panel.races(), 0);
}

static void each_call_fails(void **state)
{
    (void)state;
    static const struct {
        uint64_t count;
        int code;
        simcuda_when when;
        const char *options;
    } ways[] = {{1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE, NULL},
                {1, CUDA_ERROR_OUT_OF_MEMORY, SIMCUDA_BEFORE, NULL},
                {0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE, NULL},
                {1, CUDA_ERROR_UNKNOWN, SIMCUDA_AFTER, NULL},
                {1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE, "stale_budget:0"}};
    for (size_t way = 0; way < CMI_ARRAY_LENGTH(ways); way++) {
        bool reached = true;
        uint64_t nth = 0;
        while (reached)
            try_with_failure(++nth, ways[way].count, ways[way].code, ways[way].when, ways[way].options, &reached);
        assert_in_range(nth, 20, 2000);
    }
}

/* ---- random programs ------------------------------------------------------------------------------ */

enum { REGIONS = 5, BLOCKS = 12, STEPS = 1500 };

typedef struct held {
    unsigned char *at;
    size_t bytes;
    unsigned char fill;
} held;

static uint64_t random_below(uint64_t *chance, uint64_t bound)
{
    *chance = *chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*chance >> 33) % bound;
}

static void check(const held *h)
{
    for (size_t i = 0; i < h->bytes; i += 4093)
        if (h->at[i] != h->fill)
            fail_msg("byte %zu of %zu at %p is not what was written", i, h->bytes, (void *)h->at);
}

static void step(cmpool_t pool, uint64_t *chance, held *regions, held *blocks, CUstream stream)
{
    held *h = &regions[random_below(chance, REGIONS)];
    held *block = &blocks[random_below(chance, BLOCKS)];
    size_t bytes = (size_t)random_below(chance, 24) * MIB;
    OK(cuCtxSynchronize()); /* the CPU writes */
    switch (random_below(chance, 6)) {
    case 0:
    case 1:
        if (!h->at) {
            h->at = region_in(pool, 24 * MIB);
        } else if (bytes > h->bytes && cmpool_region_grow(pool, h->at, bytes, stream) == CMPOOL_OK) {
            check(h); /* nothing has moved */
            OK(cuCtxSynchronize());
            h->bytes = cmi_round_up(bytes, 2 * MIB);
            h->fill = (unsigned char)random_below(chance, 255);
            memset(h->at, h->fill, h->bytes);
        }
        break;
    case 2:
        if (h->at) {
            DONE(cmpool_region_shrink(pool, h->at, bytes, stream));
            size_t left = cmi_round_up(bytes, 2 * MIB);
            h->bytes = left < h->bytes ? left : h->bytes;
        }
        break;
    case 3:
        if (h->at && random_below(chance, 4) == 0) {
            DONE(cmpool_region_destroy(pool, h->at, stream));
            *h = (held){0};
        }
        break;
    default:
        if (block->at) {
            check(block);
            give(pool, block->at, stream);
            block->at = NULL;
        } else if (cmpool_malloc(pool, (void **)&block->at, 1 + bytes, stream) == CMPOOL_OK) {
            OK(cuCtxSynchronize());
            block->bytes = 1 + bytes;
            block->fill = (unsigned char)random_below(chance, 255);
            memset(block->at, block->fill, block->bytes);
        } else {
            block->at = NULL;
        }
    }
    for (int i = 0; i < REGIONS; i++)
        check(&regions[i]);
}

static void random_programs(void **state)
{
    (void)state;
    static const char *const options[] = {NULL, "stale_budget:0", "idle_release:1"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(options); i++) {
        device_start("sim:96MiB,content,order=random:3");
        cmpool_t pool = pool_with(options[i]);
        CUstream streams[3] = {sim_test_stream(), sim_test_stream(), NULL};
        uint64_t chance = 7 + i;
        held regions[REGIONS] = {{0}}, blocks[BLOCKS] = {{0}};
        for (int n = 0; n < STEPS; n++) {
            step(pool, &chance, regions, blocks, streams[random_below(&chance, 3)]);
            if (n % 100 == 0)
                DONE(cmpool_trim(pool, 16 * MIB, NULL));
        }
        must_be_sound(pool);
        for (int n = 0; n < REGIONS; n++)
            if (regions[n].at)
                DONE(cmpool_region_destroy(pool, regions[n].at, streams[0]));
        for (int n = 0; n < BLOCKS; n++)
            if (blocks[n].at)
                give(pool, blocks[n].at, streams[1]);
        assert_int_equal(figures(pool).region_bytes, 0);
        assert_int_equal(figures(pool).live_bytes, 0);
        DONE(cmpool_destroy(pool));
        device_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_grows_and_shrinks_in_place),
        cmocka_unit_test(pages_are_shared_in_stream_order),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(each_call_fails),
        cmocka_unit_test(random_programs),
    };
    return cmocka_run_group_tests(tests, capture_open, NULL);
}
