/*
 * How much memory a pool holds, and whose it is: limit, floor and headroom, reserve and trim against the device's own census, pools that
 * help each other out, low-memory callbacks, several devices, peers, RDMA, private pools, and the numbers of a refusal. Needs the simulated
 * device beside it.
 */
#include "pool_fixture.h"

/* Device memory in use by this process. */
static uint64_t used_on(int device)
{
    simcuda_census census = census_of(device);
    return census.capacity_bytes - census.free_bytes - census.sibling_bytes;
}

static void end(cmpool_t pool)
{
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
}

static void take_pages(cmpool_t pool, void **blocks, int count, CUstream stream)
{
    for (int i = 0; i < count; i++)
        blocks[i] = take(pool, 2 * MIB, stream);
}

static void give_pages(cmpool_t pool, void **blocks, int count, CUstream stream)
{
    for (int i = 0; i < count; i++)
        give(pool, blocks[i], stream);
}

static void refused(cmpool_status status, cmpool_t pool, size_t bytes)
{
    void *block;
    GIVES(status, cmpool_malloc(pool, &block, bytes, NULL));
    assert_null(block);
    must_be_sound(pool);
}

/* ---- limit, headroom -------------------------------------------------------------------------------------------------------------------
 */

static void a_limit_holds_to_the_page(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("limit:17MiB"); /* eight pages */
    void *blocks[8];
    take_pages(pool, blocks, 8, NULL);
    refused(CMPOOL_ERR_LIMIT, pool, 2 * MIB);
    refused(CMPOOL_ERR_LIMIT, pool, 512);
    const cmpool_error *error = cmpool_last_error();
    assert_true(error->limit_bytes == 17 * MIB && error->reserved_bytes == 16 * MIB && error->idle_bytes == 0);
    assert_int_equal(used_on(0), 16 * MIB);
    give(pool, blocks[3], NULL);
    give(pool, take(pool, 512, NULL), NULL);
    blocks[3] = take(pool, 2 * MIB, NULL);
    DONE(cmpool_set_limit(pool, 20 * MIB));
    give(pool, take(pool, 4 * MIB, NULL), NULL);
    refused(CMPOOL_ERR_LIMIT, pool, 6 * MIB);

    DONE(cmpool_set_limit(pool, 6 * MIB)); /* live memory stays, whatever the limit */
    assert_int_equal(figures(pool).reserved_bytes, 16 * MIB);
    give_pages(pool, blocks, 8, NULL);
    DONE(cmpool_set_limit(pool, 6 * MIB));
    assert_int_equal(figures(pool).reserved_bytes, 6 * MIB);
    assert_int_equal(used_on(0), 6 * MIB);
    refused(CMPOOL_ERR_LIMIT, pool, 8 * MIB);
    DONE(cmpool_set_limit(pool, 0));
    give(pool, take(pool, 64 * MIB, NULL), NULL);
    DONE(cmpool_set_limit(pool, 1)); /* less than a page */
    assert_int_equal(used_on(0), 0);
    refused(CMPOOL_ERR_LIMIT, pool, 1);
    end(pool);
    device_end();
}

static void headroom_is_left_to_others(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with("headroom:19MiB"); /* 45 MiB may go: 22 pages */
    void *first = take(pool, 44 * MIB, NULL);
    assert_int_equal(census_of(0).free_bytes, 20 * MIB);
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 512);
    give(pool, first, NULL);
    DONE(cmpool_trim(pool, 0, NULL));
    assert_int_equal(panel.sibling_take(0, 10 * MIB, NULL), 0); /* another process */
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 36 * MIB);
    give(pool, take(pool, 34 * MIB, NULL), NULL);
    assert_int_equal(panel.sibling_take(0, 20 * MIB, NULL), 0);
    give(pool, take(pool, 34 * MIB, NULL), NULL); /* what it holds stays its own */
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 36 * MIB);
    panel.sibling_return(0, 30 * MIB);
    DONE(cmpool_set_headroom(pool, 0));
    give(pool, take(pool, 64 * MIB, NULL), NULL);
    end(pool);
    device_end();
}

/* ---- reserve, trim ----------------------------------------------------------------------------------------------------------------------
 */

static void reserve_is_paid_once(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    void *live = take(pool, 3 * MIB, NULL);
    DONE(cmpool_reserve(pool, 32 * MIB));
    assert_int_equal(used_on(0), 32 * MIB);
    panel.counts_reset();
    static const size_t sizes[] = {10 << 20, 512, 5 << 20, 100000, 2 << 20, 5000, 6 << 20, 700 << 10};
    void *blocks[8];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            blocks[i] = take(pool, sizes[i], NULL);
        for (int i = 0; i < 8; i++)
            give(pool, blocks[(i * 3) % 8], NULL);
        DONE(cmpool_reserve(pool, 30 * MIB)); /* there already */
    }
    assert_int_equal(panel.calls(SIMCUDA_MEMORY) + panel.calls(SIMCUDA_HOST_SYNC), 0);

    cmpool_stats before = figures(pool);
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_reserve(pool, 65 * MIB)); /* all or nothing */
    assert_int_equal(figures(pool).reserved_bytes, before.reserved_bytes);
    assert_int_equal(used_on(0), 32 * MIB);
    assert_int_equal(panel.sibling_take(0, 20 * MIB, NULL), 0);
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_reserve(pool, 46 * MIB));
    assert_int_equal(cmpool_last_error()->short_bytes, 2 * MIB);
    assert_int_equal(used_on(0), 32 * MIB);
    DONE(cmpool_reserve(pool, 44 * MIB));
    DONE(cmpool_set_limit(pool, 44 * MIB));
    panel.sibling_return(0, 20 * MIB);
    GIVES(CMPOOL_ERR_LIMIT, cmpool_reserve(pool, 46 * MIB));
    DONE(cmpool_reserve(pool, 0));
    give(pool, live, NULL);
    end(pool);
    device_end();
}

static void trim_gives_what_it_says(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        device_start(words);
        cmpool_t pool = pool_with(NULL);
        CUstream a = sim_test_stream(), b = sim_test_stream();
        void *blocks[40];
        take_pages(pool, blocks, 40, a);
        for (int i = 0; i < 40; i++)
            use(a, blocks[i], 2 * MIB);
        for (int i = 0; i < 40; i++)
            if (i % 10)
                give(pool, blocks[i], a);
        give(pool, take(pool, 20 * MIB, b), b); /* moves pages: old addresses stay mapped for a while */
        uint64_t held = used_on(0);
        assert_int_equal(held, figures(pool).reserved_bytes);
        size_t released = 1;
        DONE(cmpool_trim(pool, held, &released));
        assert_int_equal(released, 0);
        DONE(cmpool_trim(pool, 30 * MIB + 1, &released));
        assert_int_equal(released, held - 30 * MIB);
        assert_int_equal(used_on(0), 30 * MIB);
        DONE(cmpool_trim(pool, 0, &released));
        assert_int_equal(used_on(0), 8 * MIB); /* four live pages */
        assert_int_equal(census_of(0).mappings, 4);
        assert_int_equal(released, 22 * MIB);
        must_be_sound(pool);
        DONE(cmpool_trim(pool, 0, &released));
        assert_int_equal(released, 0);
        for (int i = 0; i < 40; i += 10)
            give(pool, blocks[i], a);
        end(pool);
        device_end();
    }
}

static void a_device_is_trimmed_down_to_the_floors(void **state)
{
    (void)state;
    device_start("sim:256MiB,devices=2");
    cmpool_t a = pool_with("floor:8MiB"), b = pool_with("floor:5MiB"), elsewhere = pool_on(1, NULL);
    void *live = take(a, 4 * MIB, NULL);
    give(a, take(a, 30 * MIB, NULL), NULL);
    give(b, take(b, 30 * MIB, NULL), NULL);
    DONE(cmpool_reserve(elsewhere, 30 * MIB));
    uint64_t held = used_on(0);
    size_t released;
    DONE(cmpool_device_trim(0, 9 * MIB, &released));
    assert_int_equal(released, 10 * MIB);
    assert_int_equal(used_on(0), held - 10 * MIB);
    DONE(cmpool_device_trim(0, SIZE_MAX, &released));
    assert_int_equal(figures(a).reserved_bytes, 8 * MIB);
    assert_int_equal(figures(b).reserved_bytes, 6 * MIB);
    assert_int_equal(released, held - 10 * MIB - 14 * MIB);
    assert_int_equal(used_on(1), 30 * MIB);
    DONE(cmpool_trim(b, 0, &released)); /* the floor is for others */
    assert_int_equal(released, 6 * MIB);
    give(a, live, NULL);
    end(a);
    end(b);
    end(elsewhere);
    device_end();
}

/* ---- pools that share a device
 * ------------------------------------------------------------------------------------------------------------ */

static void pools_help_each_other_out(void **state)
{
    (void)state;
    EACH_ORDER(words)
    {
        device_start(words);
        cmpool_t a = pool_with("floor:104MiB"), b = pool_with(NULL), c = pool_with(NULL);
        CUstream one = sim_test_stream(), two = sim_test_stream();
        void *block = take(a, 600 * MIB, one);
        use(one, block, 600 * MIB);
        give(a, block, one);
        block = take(b, 300 * MIB, one);
        use(one, block, 300 * MIB);
        give(b, block, one);
        void *large = take(c, 920 * MIB, two); /* 1024 less the floor */
        use(two, large, 920 * MIB);
        assert_int_equal(figures(a).reserved_bytes, 104 * MIB);
        assert_int_equal(figures(b).reserved_bytes, 0);
        assert_int_equal(figures(a).host_waits + figures(b).host_waits + figures(c).host_waits, 0);
        refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, b, 2 * MIB);
        give(c, large, two);
        block = take(b, 920 * MIB, one);
        use(one, block, 920 * MIB);
        give(b, block, one);
        must_be_sound(a);
        must_be_sound(c);
        end(c);
        end(a);
        end(b);
        device_end();
    }
}

/* ---- low-memory callbacks
 * -------------------------------------------------------------------------------------------------------------------- */

static struct {
    int calls, answer;
    cmpool_t told_pool, owner;
    size_t told_bytes;
    void *block; /* freed by the callback */
} low;

static int when_low(void *user, cmpool_t of, size_t bytes)
{
    assert_ptr_equal(user, &low);
    low.calls++;
    low.told_pool = of;
    low.told_bytes = bytes;
    figures(of); /* no lock is held */
    if (low.block) {
        give(low.owner, low.block, NULL);
        low.block = NULL;
    }
    return low.answer;
}

static void a_callback_may_free(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL), other = pool_with(NULL), child;
    DONE(cmpool_private_create(&child, pool));
    DONE(cmpool_set_low_memory_callback(pool, when_low, &low));
    const cmpool_t owners[] = {pool, other, child};
    for (int i = 0; i < 3; i++) {
        memset(&low, 0, sizeof low);
        low.answer = 1;
        low.owner = owners[i];
        low.block = take(owners[i], 40 * MIB, NULL);
        give(pool, take(pool, 50 * MIB, NULL), NULL);
        assert_int_equal(low.calls, 1);
        assert_int_equal(low.told_bytes, 50 * MIB);
        assert_true(low.told_pool == pool);
        DONE(cmpool_trim(pool, 0, NULL));
        DONE(cmpool_trim(other, 0, NULL));
    }
    void *live = take(pool, 40 * MIB, NULL);
    memset(&low, 0, sizeof low); /* answers that there is nothing to try again */
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 50 * MIB);
    assert_int_equal(low.calls, 1);
    low.answer = 1; /* says so without having freed: the search ends all the same */
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 50 * MIB);
    assert_int_equal(low.calls, 2);
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, child, 50 * MIB);
    assert_true(low.calls == 3 && low.told_pool == child);
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, other, 50 * MIB); /* has no callback */
    DONE(cmpool_set_low_memory_callback(pool, NULL, NULL));
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 50 * MIB);
    assert_int_equal(low.calls, 3);
    give(pool, live, NULL);
    DONE(cmpool_destroy(child));
    end(other);
    end(pool);
    device_end();
}

/* ---- devices, peers, RDMA
 * -------------------------------------------------------------------------------------------------------------------- */

static void devices_are_apart(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=3");
    cmpool_t pools[3];
    void *blocks[3];
    for (int i = 0; i < 3; i++) {
        pools[i] = pool_on(i, NULL);
        blocks[i] = take(pools[i], (20 + 10 * (size_t)i) * MIB, NULL);
        CUdevice current;
        OK(cuCtxGetDevice(&current));
        assert_int_equal(current, 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(used_on(i), (20 + 10 * (uint64_t)i) * MIB);
        cmpool_block_info info = {.struct_size = sizeof info};
        DONE(cmpool_lookup((char *)blocks[i] + MIB, &info));
        assert_true(info.device == i && info.pool == pools[i] && info.base == blocks[i]);
        GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pools[(i + 1) % 3], blocks[i], NULL));
        refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pools[i], 50 * MIB); /* memory of other devices is no help */
    }
    for (int i = 0; i < 3; i++) {
        give(pools[i], blocks[i], NULL);
        end(pools[i]);
        assert_int_equal(used_on(i), 0);
    }
    device_end();
}

/* A stream of the device's primary context; device 0's is current again afterwards. */
static CUstream stream_on(int device)
{
    CUcontext own, theirs;
    OK(cuCtxGetCurrent(&own));
    OK(cuDevicePrimaryCtxRetain(&theirs, device));
    OK(cuCtxSetCurrent(theirs));
    CUstream stream = sim_test_stream();
    OK(cuCtxSetCurrent(own));
    return stream;
}

static int touch_from(CUstream stream, void *block, size_t bytes)
{
    OK(cuCtxSynchronize()); /* this is about access, not about order */
    int code = panel.touch(stream, (uint64_t)(uintptr_t)block, bytes, 0);
    OK(cuStreamSynchronize(stream));
    return code;
}

static void peers_reach_every_page(void **state)
{
    (void)state;
    device_start("sim:64MiB,devices=4");
    CUstream first = stream_on(1), second = stream_on(2), stranger = stream_on(3);
    const int peer_one[] = {1}, peer_two[] = {2};
    cmpool_t pool, later;
    cmpool_config config = {.struct_size = sizeof config, .peers = peer_one, .peer_count = 1};
    DONE(cmpool_create(&pool, &config));
    void *blocks[20], *large, *small = take(pool, 512, NULL);
    take_pages(pool, blocks, 20, NULL);
    for (int i = 0; i < 20; i += 2)
        give(pool, blocks[i], NULL);
    large = take(pool, 38 * MIB, NULL); /* pages that moved, and new ones */
    assert_true(figures(pool).page_moves > 0);
    assert_int_equal(touch_from(first, large, 38 * MIB), CUDA_SUCCESS);
    assert_int_equal(touch_from(first, small, 512), CUDA_SUCCESS);
    assert_true(touch_from(second, large, 512) != CUDA_SUCCESS);
    panel.findings_reset();

    config.peers = peer_two; /* another pool's peer is let in to all memory of the device */
    DONE(cmpool_create(&later, &config));
    assert_int_equal(touch_from(second, large, 38 * MIB), CUDA_SUCCESS);
    for (int i = 1; i < 20; i += 2)
        assert_int_equal(touch_from(second, blocks[i], 2 * MIB), CUDA_SUCCESS);
    give(pool, large, NULL);
    large = take(later, 30 * MIB, NULL);
    assert_int_equal(touch_from(second, large, 30 * MIB), CUDA_SUCCESS);
    assert_int_equal(touch_from(first, large, 30 * MIB), CUDA_SUCCESS);
    assert_true(touch_from(stranger, large, 512) != CUDA_SUCCESS);
    panel.findings_reset();
    give(later, large, NULL);
    for (int i = 1; i < 20; i += 2)
        give(pool, blocks[i], NULL);
    give(pool, small, NULL);
    end(later);
    end(pool);
    device_end();
}

/* How many of the pages mapped on the devices can be read by other devices on the bus. */
static int pages_with_rdma(void)
{
    simcuda_mapping mapping;
    int count = 0;
    for (size_t i = 0; panel.mapping_at(i, &mapping); i++) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop;
        OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)mapping.address));
        OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
        OK(cuMemRelease(handle));
        count += prop.allocFlags.gpuDirectRDMACapable != 0;
    }
    return count;
}

static void pages_are_made_for_rdma_where_it_is(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        int device_can, pages;
    } cases[] = {{NULL, 1, 10}, {"rdma:off", 1, 0}, {NULL, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        device_start("sim:64MiB");
        panel.set_feature(SIMCUDA_FEATURE_RDMA, cases[i].device_can);
        cmpool_t pool = pool_with(cases[i].options);
        DONE(cmpool_reserve(pool, 4 * MIB));
        void *block = take(pool, 19 * MIB, NULL), *small = take(pool, 512, NULL);
        assert_int_equal(census_of(0).mappings, 10);
        assert_int_equal(pages_with_rdma(), cases[i].pages);
        give(pool, block, NULL);
        give(pool, small, NULL);
        end(pool);
        device_end();
    }
}

/* ---- private pools
 * -------------------------------------------------------------------------------------------------------------------------- */

static void private_blocks_reuse_each_other_first(void **state)
{
    (void)state;
    device_start("sim:256MiB");
    cmpool_t pool = pool_with(NULL), child, sister;
    CUstream stream = sim_test_stream();
    uint64_t reservations = census_of(0).reservations;
    DONE(cmpool_private_create(&child, pool));
    DONE(cmpool_private_create(&sister, pool));
    const cmpool_t owners[] = {pool, child, sister};
    void *blocks[3], *guards[3], *small[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take(owners[i], 3 * MIB - 512, stream);
        guards[i] = take(owners[i], MIB, stream);
        small[i] = take(owners[i], 1000, stream);
    }
    for (int i = 0; i < 3; i++) {
        give(owners[i], blocks[i], stream);
        give(owners[i], small[i], stream);
    }
    panel.counts_reset();
    for (int i = 2; i >= 0; i--) {
        assert_ptr_equal(take(owners[i], 3 * MIB - 512, stream), blocks[i]);
        assert_ptr_equal(take(owners[i], 1000, stream), small[i]);
    }
    assert_int_equal(driver_calls(), 0);
    assert_int_equal(census_of(0).reservations, reservations);
    for (int i = 0; i < 3; i++) {
        give(owners[i], blocks[i], stream);
        give(owners[i], guards[i], stream);
        give(owners[i], small[i], stream);
        must_be_sound(owners[i]);
    }
    DONE(cmpool_destroy(sister));
    DONE(cmpool_destroy(child));
    end(pool);
    device_end();
}

static void idle_pages_serve_parent_and_child(void **state)
{
    (void)state;
    static const char *const small_devices[] = {"sim:64MiB,order=eager", "sim:64MiB,order=lazy", "sim:64MiB,order=random:3"};
    for (int i = 0; i < 3; i++) {
        device_start(small_devices[i]);
        cmpool_t pool = pool_with(NULL), child, sister;
        DONE(cmpool_private_create(&child, pool));
        DONE(cmpool_private_create(&sister, pool));
        const cmpool_t turns[] = {child, pool, sister, child, sister, pool};
        CUstream streams[] = {sim_test_stream(), sim_test_stream()};
        for (int k = 0; k < 6; k++) {
            void *block = take(turns[k], 60 * MIB, streams[k % 2]);
            use(streams[k % 2], block, 60 * MIB);
            must_be_sound(pool);
            give(turns[k], block, streams[k % 2]);
        }
        void *live = take(child, 30 * MIB, streams[0]);
        GIVES(CMPOOL_ERR_BUSY, cmpool_destroy(child));
        assert_int_equal(figures(child).live_bytes, 30 * MIB);
        DONE(cmpool_destroy(sister));
        give(child, live, streams[0]);
        DONE(cmpool_destroy(child));
        GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_free(child, live, streams[0]));
        void *all = take(pool, 64 * MIB, streams[0]);
        use(streams[0], all, 64 * MIB);
        give(pool, all, streams[0]);
        end(pool);
        device_end();
    }
}

/* ---- the explanation
 * --------------------------------------------------------------------------------------------------------------------------- */

static void a_refusal_says_why(void **state)
{
    (void)state;
    device_start("sim:64MiB");
    cmpool_t pool = pool_with(NULL);
    void *blocks[20];
    take_pages(pool, blocks, 20, NULL);
    for (int i = 1; i < 11; i += 2)
        give(pool, blocks[i], NULL); /* five idle pages apart from each other, twelve with the device */
    refused(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, pool, 40 * MIB);
    const cmpool_error *error = cmpool_last_error();
    assert_int_equal(error->bytes, 40 * MIB);
    assert_int_equal(error->live_bytes, 30 * MIB);
    assert_int_equal(error->reserved_bytes, 40 * MIB);
    assert_int_equal(error->idle_bytes, 10 * MIB);
    assert_int_equal(error->largest_free_bytes, 2 * MIB);
    assert_int_equal(error->short_bytes, 6 * MIB);
    assert_int_equal(error->limit_bytes, 0);
    assert_int_equal(figures(pool).refusals, 1);
    void *block = take(pool, 34 * MIB, NULL); /* what was not short is there */
    give(pool, block, NULL);
    for (int i = 0; i < 20; i++)
        if (i % 2 == 0 || i > 10)
            give(pool, blocks[i], NULL);
    end(pool);
    device_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_holds_to_the_page),
        cmocka_unit_test(headroom_is_left_to_others),
        cmocka_unit_test(reserve_is_paid_once),
        cmocka_unit_test(trim_gives_what_it_says),
        cmocka_unit_test(a_device_is_trimmed_down_to_the_floors),
        cmocka_unit_test(pools_help_each_other_out),
        cmocka_unit_test(a_callback_may_free),
        cmocka_unit_test(devices_are_apart),
        cmocka_unit_test(peers_reach_every_page),
        cmocka_unit_test(pages_are_made_for_rdma_where_it_is),
        cmocka_unit_test(private_blocks_reuse_each_other_first),
        cmocka_unit_test(idle_pages_serve_parent_and_child),
        cmocka_unit_test(a_refusal_says_why),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
