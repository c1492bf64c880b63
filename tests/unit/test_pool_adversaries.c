/*
 * Programs that mean harm. One fragments on purpose, as in Robson's lower bound for allocators that cannot move: it fills memory with
 * blocks, frees those that leave the least behind, and asks for larger ones; an oracle of its own, which knows only its live blocks and the
 * device's capacity, says when a refusal was due. The other has many devices, pools, private pools and streams, and counts what each costs
 * in addresses, device memory and host memory. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#define PAGE_OF(address) ((uint64_t)(uintptr_t)(address) / PAGE)

/* ---- fragmentation on purpose
 * ------------------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 1 << 17 };

typedef struct held {
    void *address;
    size_t bytes;
} held;

static held *blocks;
static uint32_t block_count;

static int by_address(const void *a, const void *b)
{
    const held *one = a, *other = b;
    return one->address < other->address ? -1 : one->address > other->address;
}

/* Pages that carry a live byte. */
static uint64_t live_pages(void)
{
    qsort(blocks, block_count, sizeof *blocks, by_address);
    uint64_t count = 0, last = UINT64_MAX;
    for (uint32_t i = 0; i < block_count; i++) {
        uint64_t first = PAGE_OF(blocks[i].address), end = PAGE_OF((char *)blocks[i].address + blocks[i].bytes - 1);
        count += end - first + (first != last);
        last = end;
    }
    return count;
}

typedef struct outcome {
    uint64_t peak_live_pages, peak_reserved_pages, refusals;
} outcome;

/* Fill up with blocks of one size until `most` bytes are live, or a refusal that the oracle agrees with. */
static uint64_t fill(cmpool_t pool, CUstream stream, size_t bytes, uint64_t live, uint64_t most, uint64_t capacity, outcome *o)
{
    while (live + bytes <= most && block_count < MOST_BLOCKS) {
        held *block = &blocks[block_count];
        cmpool_status status = cmpool_malloc(pool, &block->address, bytes, stream);
        if (status == CMPOOL_OK) {
            block->bytes = bytes;
            block_count++;
            live += bytes;
            continue;
        }
        assert_int_equal(status, CMPOOL_ERR_OUT_OF_DEVICE_MEMORY);
        uint64_t idle = capacity - live_pages(), wanted = (bytes + PAGE - 1) / PAGE;
        if (idle >= wanted)
            fail_msg("refused %zu bytes, %llu pages, while %llu of %llu pages carry nothing", bytes, (unsigned long long)wanted,
                     (unsigned long long)idle, (unsigned long long)capacity);
        o->refusals++;
        break;
    }
    uint64_t now = live_pages(), reserved = figures(pool).reserved_bytes / PAGE;
    o->peak_live_pages = now > o->peak_live_pages ? now : o->peak_live_pages;
    o->peak_reserved_pages = reserved > o->peak_reserved_pages ? reserved : o->peak_reserved_pages;
    return live;
}

/* Free what leaves one block on each stretch of `stride` bytes, so that nothing of that length is free in one piece. */
static uint64_t thin(cmpool_t pool, CUstream stream, size_t stride, uint64_t live)
{
    live_pages(); /* sorts */
    uint32_t kept = 0;
    uint64_t last = UINT64_MAX;
    for (uint32_t i = 0; i < block_count; i++) {
        uint64_t stretch = (uint64_t)(uintptr_t)blocks[i].address / stride;
        if (stretch != last) {
            last = stretch;
            blocks[kept++] = blocks[i];
        } else {
            live -= blocks[i].bytes;
            give(pool, blocks[i].address, stream);
        }
    }
    block_count = kept;
    return live;
}

static outcome fragment(const char *words, uint64_t capacity, uint64_t most, size_t smallest)
{
    device_start(words);
    cmpool_t pool = pool_with(NULL);
    CUstream stream = sim_test_stream();
    outcome o = {0};
    uint64_t live = 0;
    block_count = 0;
    for (size_t bytes = smallest; bytes <= most / 4; bytes *= 2) {
        live = fill(pool, stream, bytes, live, most, capacity, &o);
        live = thin(pool, stream, 4 * bytes, live);
        live = fill(pool, stream, bytes * 3 / 2, live, most, capacity, &o);
        live = thin(pool, stream, 2 * bytes, live);
        must_be_sound(pool);
    }
    for (uint32_t i = 0; i < block_count; i++)
        give(pool, blocks[i].address, stream);
    DONE(cmpool_trim(pool, 0, NULL));
    assert_int_equal(figures(pool).reserved_bytes, 0);
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
    return o;
}

static const char *const orders[] = {"eager", "lazy", "random:5"};

/* Blocks of pages and more leave nothing behind: the device is a little larger than what is live, and nothing is refused. */
static void large_blocks_cannot_fragment(void **state)
{
    (void)state;
    blocks = calloc(MOST_BLOCKS, sizeof *blocks);
    assert_non_null(blocks);
    for (int i = 0; i < 3; i++) {
        char words[64];
        snprintf(words, sizeof words, "sim:260MiB,order=%s", orders[i]);
        outcome o = fragment(words, 130, 256 * MIB, 4 * MIB);
        assert_int_equal(o.refusals, 0);
        assert_true(o.peak_live_pages >= 126);
    }
    free(blocks);
}

/* Small blocks hold their pages; a refusal comes only when too few pages carry nothing. */
/* All pages are idle, but the best window takes a part of one that is then missing, and too few addresses are left to do without any. */
static void addresses_are_no_reason_to_refuse(void **state)
{
    (void)state;
    device_start("sim:30MiB");
    cmpool_t pool = pool_with(NULL);
    void *region;
    char *small = take(pool, 1000, NULL), *blocks_of_pages[3];
    static const size_t pages[] = {11, 1, 2};
    for (int i = 0; i < 3; i++)
        blocks_of_pages[i] = take(pool, pages[i] * PAGE, NULL);
    assert_int_equal(PAGE_OF(blocks_of_pages[2]), PAGE_OF(small) + 13);
    give(pool, blocks_of_pages[1], NULL);
    DONE(cmpool_trim(pool, 14 * PAGE, NULL)); /* a hole amid the rest */
    assert_int_equal(panel.sibling_take(0, PAGE, NULL), 0);
    char *rest = take(pool, PAGE - 65536, NULL); /* of the page of small blocks */
    assert_int_equal(PAGE_OF(rest), PAGE_OF(small));
    DONE(cmpool_region_create(pool, &region, 4 * PAGE)); /* addresses that are in use */
    uint64_t addresses = figures(pool).address_bytes;
    give(pool, small, NULL);
    give(pool, rest, NULL);
    give(pool, blocks_of_pages[0], NULL);
    give(pool, blocks_of_pages[2], NULL);
    void *all = take(pool, 14 * PAGE, NULL);
    void *more = &all;
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &more, 512, NULL));
    assert_true(figures(pool).address_bytes > addresses);
    give(pool, all, NULL);
    DONE(cmpool_region_destroy(pool, region, NULL));
    panel.sibling_return(0, PAGE);
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void small_blocks_hold_only_their_pages(void **state)
{
    (void)state;
    blocks = calloc(MOST_BLOCKS, sizeof *blocks);
    assert_non_null(blocks);
    for (int i = 0; i < 3; i++) {
        char words[64];
        snprintf(words, sizeof words, "sim:48MiB,order=%s", orders[i]);
        static const size_t smallest[] = {16 << 10, 96 << 10, 300 << 10, 700 << 10};
        for (int k = 0; k < 4; k++) {
            outcome o = fragment(words, 24, 40 * MIB, smallest[k]);
            assert_true(o.peak_live_pages <= 24);
        }
    }
    free(blocks);
}

enum { SMALL_SLACK_PAGES = 16 }; /* a small pool may hold so many, whatever its share is */

/* With all the room in the world the pool still takes no more than what was live at most, the slack and the old addresses' budget. */
static void room_does_not_invite_waste(void **state)
{
    (void)state;
    blocks = calloc(MOST_BLOCKS, sizeof *blocks);
    assert_non_null(blocks);
    for (int i = 0; i < 3; i++) {
        char words[64];
        snprintf(words, sizeof words, "sim:8GiB,order=%s", orders[i]);
        static const size_t smallest[] = {300 << 10, 2 << 20};
        for (int k = 0; k < 2; k++) {
            outcome o = fragment(words, 4096, 128 * MIB, smallest[k]);
            assert_int_equal(o.refusals, 0);
            /* Where nothing is seen done, old addresses use up their budget, and then new pages are cheaper than moves. */
            uint64_t more = strcmp(orders[i], "lazy") == 0 ? o.peak_live_pages : o.peak_live_pages / 50 + SMALL_SLACK_PAGES;
            if (o.peak_reserved_pages > o.peak_live_pages + more)
                fail_msg("%llu pages held for %llu live ones", (unsigned long long)o.peak_reserved_pages,
                         (unsigned long long)o.peak_live_pages);
        }
    }
    free(blocks);
}

/* ---- many of everything
 * ------------------------------------------------------------------------------------------------------------------------ */

#ifdef CMI_VALIDATE /* each call looks at everything */
enum { DEVICES = 8, POOLS = 4, PRIVATE_POOLS = 64, STREAMS = 128 };
#else
enum { DEVICES = 8, POOLS = 4, PRIVATE_POOLS = 200, STREAMS = 2000 };
#endif

static void streams_cost_a_slab_each(void **state)
{
    (void)state;
    device_start("sim:80GiB,order=lazy");
    cmpool_t pool = pool_with(NULL);
    static CUstream streams[STREAMS];
    static void *small[STREAMS];
    uint64_t metadata = figures(pool).metadata_bytes;
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = sim_test_stream();
        small[i] = take(pool, 1000, streams[i]);
        use(streams[i], small[i], 1000);
    }
    cmpool_stats stats = figures(pool);
    assert_true(stats.reserved_bytes < STREAMS * (160 * MIB / 2000));
    assert_int_equal(stats.address_bytes, 160 * GIB); /* streams reserve none */
    assert_true(stats.metadata_bytes - metadata < (uint64_t)STREAMS * 8192);
    must_be_sound(pool);
    for (int i = 0; i < STREAMS; i++)
        give(pool, small[i], streams[i]);
    DONE(cmpool_trim(pool, 0, NULL));
    assert_int_equal(figures(pool).reserved_bytes, 0);
    must_be_sound(pool);
    DONE(cmpool_destroy(pool));
    device_end();
}

static void many_pools_fit_into_the_addresses(void **state)
{
    (void)state;
    char words[64];
    snprintf(words, sizeof words, "sim:141GiB,devices=%d", DEVICES);
    device_start(words);
    CUcontext own;
    OK(cuCtxGetCurrent(&own));
    static cmpool_t pools[DEVICES * POOLS], private_pools[PRIVATE_POOLS];
    static CUstream streams[STREAMS];
    static void *small[STREAMS];
    for (int i = 0; i < DEVICES * POOLS; i++)
        pools[i] = pool_on(i % DEVICES, NULL);
    uint64_t reserved = census_of(0).peak_address_bytes;
    uint64_t metadata = cmi_meta_bytes() - meta_at_start;
    for (int i = 0; i < PRIVATE_POOLS; i++)
        DONE(cmpool_private_create(&private_pools[i], pools[i % (DEVICES * POOLS)]));
    for (int i = 0; i < STREAMS; i++) {
        CUcontext context;
        OK(cuDevicePrimaryCtxRetain(&context, i % PRIVATE_POOLS % DEVICES));
        OK(cuCtxSetCurrent(context));
        streams[i] = sim_test_stream();
        small[i] = take(private_pools[i % PRIVATE_POOLS], 1000, streams[i]);
        use(streams[i], small[i], 1000);
    }
    OK(cuCtxSetCurrent(own));
    simcuda_census census = census_of(0);
    assert_true(census.peak_address_bytes < 16 * 1024 * GIB);
    assert_int_equal(census.peak_address_bytes, reserved); /* neither private pools nor streams took any */
    assert_int_equal(census.reservations, DEVICES * POOLS);
    assert_true(metadata < DEVICES * 141 * GIB / 1000); /* 0.1 % of what is managed */
    assert_true(cmi_meta_bytes() - meta_at_start - metadata < 16 * MIB);
    for (int i = 0; i < STREAMS; i++)
        give(private_pools[i % PRIVATE_POOLS], small[i], streams[i]);
    for (int device = 0; device < DEVICES; device++) {
        DONE(cmpool_device_trim(device, SIZE_MAX, NULL));
        assert_int_equal(census_of(device).free_bytes, 141 * GIB);
    }
    for (int i = 0; i < PRIVATE_POOLS; i++)
        DONE(cmpool_destroy(private_pools[i]));
    for (int i = 0; i < DEVICES * POOLS; i++) {
        must_be_sound(pools[i]);
        DONE(cmpool_destroy(pools[i]));
    }
    device_end();
}

/* Pools that come and go leave nothing in the process. */
static void pools_come_and_go(void **state)
{
    (void)state;
    device_start("sim:1GiB");
    CUstream stream = sim_test_stream();
    for (int i = 0; i < 300; i++) {
        cmpool_t pool = pool_with(NULL), child;
        DONE(cmpool_private_create(&child, pool));
        give(child, take(child, 5000, stream), stream);
        give(pool, take(pool, 3 * MIB, stream), stream);
        DONE(cmpool_destroy(child));
        DONE(cmpool_destroy(pool));
        assert_int_equal(cmi_meta_bytes(), meta_at_start);
    }
    assert_true(census_of(0).peak_address_bytes <= 2 * GIB);
    device_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_blocks_cannot_fragment),
        cmocka_unit_test(small_blocks_hold_only_their_pages),
        cmocka_unit_test(addresses_are_no_reason_to_refuse),
        cmocka_unit_test(room_does_not_invite_waste),
        cmocka_unit_test(streams_cost_a_slab_each),
        cmocka_unit_test(many_pools_fit_into_the_addresses),
        cmocka_unit_test(pools_come_and_go),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
