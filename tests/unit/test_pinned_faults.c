/*
 * Pinned memory while the driver, or host memory, fails at every place: a short program is run again and again, each time with the next
 * driver call (or request for host memory) failing once, or from there on, before or after its effect. Whatever fails, each call answers
 * with a status of its list, the structures stay sound, what is live stays live, and in the end the driver has everything back that it
 * would take.
 */
#include "pinned_fixture.h"

#define BIT(status) (1u << (status))
#define DRIVER_SAYS (BIT(CMPOOL_ERR_DRIVER) | BIT(CMPOOL_ERR_SHUTTING_DOWN) | BIT(CMPOOL_ERR_DEVICE_LOST))
#define OF_MALLOC (DRIVER_SAYS | BIT(CMPOOL_ERR_LIMIT) | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY) | BIT(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY))
#define OF_FREE (DRIVER_SAYS | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY))

enum { BLOCKS = 12 };

static char plan_words[160];
static cmpool_t pool;
static CUstream streams[2];
static void *on_device; /* half for each stream */
static struct {
    void *address;
    size_t bytes;
} blocks[BLOCKS];

static void documented(cmpool_status status, unsigned allowed)
{
    if (status != CMPOOL_OK && !(allowed & BIT(status)))
        fail_msg("%s: gave %s", plan_words, cmpool_status_name(status));
    if (status != CMPOOL_OK && cmpool_last_error()->status != status)
        fail_msg("%s: the last error is another one", plan_words);
    const char *finding = NULL;
    if (pool && cmpool_validate(pool, &finding) != CMPOOL_OK)
        fail_msg("%s: validator: %s", plan_words, finding);
    if (panel.races())
        fail_msg("%s: %s", plan_words, panel.finding_text(0));
}

static cmpool_pinned_stats now(void)
{
    cmpool_pinned_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(cmpool_pinned_stats_get(pool, &stats), CMPOOL_OK);
    return stats;
}

static void get(int number, size_t bytes, int stream, uint32_t flags)
{
    cmpool_pinned_stats before = now();
    void *block = &before;
    cmpool_pinned_request request = {.struct_size = sizeof request, .bytes = bytes, .stream = streams[stream], .flags = flags};
    cmpool_status status =
        flags ? cmpool_pinned_malloc_ex(pool, &block, &request) : cmpool_pinned_malloc(pool, &block, bytes, request.stream);
    documented(status, OF_MALLOC);
    if (status == CMPOOL_OK) {
        blocks[number].address = block;
        blocks[number].bytes = bytes;
        memset(block, number, bytes < 4096 ? bytes : 4096);
        if (on_device)
            (void)cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)on_device + (uint64_t)stream * MIB, block, bytes < MIB ? bytes : MIB,
                                       streams[stream]);
    } else if (block || now().live_bytes != before.live_bytes) {
        fail_msg("%s: a refusal left something", plan_words);
    }
}

static void put(int number, int stream)
{
    if (!blocks[number].address)
        return;
    cmpool_pinned_stats before = now();
    cmpool_status status = stream < 2 ? cmpool_pinned_free(pool, blocks[number].address, streams[stream])
                                      : cmpool_pinned_free_unordered(pool, blocks[number].address);
    documented(status, OF_FREE);
    if (status == CMPOOL_OK)
        blocks[number].address = NULL;
    else if (now().live_bytes != before.live_bytes)
        fail_msg("%s: a free that failed changed something", plan_words);
}

static void body(void)
{
    get(0, 100, 0, 0);
    get(1, 40000, 0, 0);
    get(2, 3 * MIB, 0, 0);
    get(3, 900000, 1, CMPOOL_PINNED_WRITE_COMBINED);
    get(4, 5 * MIB, 1, 0);
    for (int i = 0; i < 2; i++)
        if (blocks[i + 1].address)
            documented(cmpool_pinned_record_use(pool, blocks[i + 1].address, streams[1]), OF_FREE);
    put(0, 0);
    put(2, 0);
    put(3, 1);
    get(5, 100, 1, 0);
    get(6, 3 * MIB, 0, 0);
    put(1, 2);
    put(4, 2);
    get(7, 9 * MIB, 1, 0); /* the limit: the host waits, extents go for one that fits */
    get(8, 30000, 0, 0);
    put(5, 1);
    put(6, 0);
    documented(cmpool_pinned_trim(pool, 4 * MIB, NULL), OF_FREE);
    get(9, 700000, 0, CMPOOL_PINNED_UNORDERED);
    put(7, 1);
    documented(cmpool_pinned_set_limit(pool, 3 * MIB), BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY));
    get(10, 2 * MIB, 1, 0);
}

/* Driver calls are those after the pool is made and a block of it used: its own failures are another test's. */
static void run(const char *words, uint64_t nth, uint64_t count, CUresult code, simcuda_when when, uint64_t meta_nth)
{
    CUcontext primary = sim_test_start(words);
    streams[0] = sim_test_stream();
    streams[1] = sim_test_stream();
    simcuda_census before = census_of(0);
    uint64_t meta_before = cmi_meta_bytes();
    memset(blocks, 0, sizeof blocks);
    pool = pool_with("pinned_limit:16MiB");
    on_device = take(pool, 2 * MIB, streams[0]);
    OK(cuStreamSynchronize(streams[0]));
    DONE(cmpool_record_use(pool, on_device, streams[1]));
    if (nth)
        assert_true(panel.plan_failure("*", nth, count, (int)code, when) >= 0);
    if (meta_nth)
        cmi_meta_fail(meta_nth, count);
    body();
    uint64_t struck = panel.failures_injected();
    panel.fail_clear();
    if (meta_nth && !count)
        cmi_meta_fail(0, 0);
    OK(cuCtxSetCurrent(primary));
    for (int twice = 0; twice < 2; twice++) /* again, for what failed for want of host memory */
        for (int i = 0; i < BLOCKS; i++)
            put(i, i % 2);
    if (!meta_nth || !count) {
        DONE(cmpool_pinned_set_limit(pool, 0));
        get(11, 8 * MIB, 0, 0); /* what does no longer fail must work */
        assert_non_null(blocks[11].address);
        put(11, 0);
    }
    cmpool_status freed = cmpool_free(pool, on_device, streams[0]);
    if (freed != CMPOOL_OK)
        DONE(cmpool_free(pool, on_device, streams[0]));
    uint64_t stranded = now().stranded_bytes;
    cmpool_status status = cmpool_destroy(pool);
    pool = 0;
    documented(status, DRIVER_SAYS);
    simcuda_census after = census_of(0);
    /* A driver that answers everything with INVALID_VALUE says, when asked, that it does not know the memory. */
    bool lied = count == 0 && code == CUDA_ERROR_INVALID_VALUE;
    if (after.pinned > before.pinned + struck || (after.pinned_bytes > before.pinned_bytes + stranded && !lied))
        fail_msg("%s: %llu pinned bytes are left", plan_words, (unsigned long long)after.pinned_bytes);
    if (cmi_meta_bytes() != meta_before)
        fail_msg("%s: %d bytes of host memory are left", plan_words, (int)(cmi_meta_bytes() - meta_before));
}

/* Was the nth request for host memory not reached yet? */
static bool plan_is_open(uint64_t nth)
{
    bool open = false;
    for (uint64_t i = 0; i < nth && !open; i++) {
        void *probe = cmi_meta_alloc(64);
        open = probe == NULL;
        cmi_meta_free(probe, 64);
    }
    cmi_meta_fail(0, 0);
    return open;
}

static const char *const devices[] = {"sim:32MiB,order=lazy", "sim:32MiB,order=eager"};

static void every_driver_call_fails_once(void **state)
{
    (void)state;
    static const CUresult codes[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE};
    for (size_t d = 0; d < 2; d++)
        for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++)
            for (int when = SIMCUDA_BEFORE; when <= SIMCUDA_AFTER; when++)
                for (uint64_t count = 0; count < 2; count++) {
                    if (count == 0 && when == SIMCUDA_AFTER)
                        continue; /* a driver that does everything and says it failed: nothing it says can be believed */
                    device_start(devices[d]);
                    cmi_error_detail();
                    uint64_t nth = 1, struck, stride = d == 0 ? 1 : 3; /* every place in the order that leaves most work pending */
                    do {
                        snprintf(plan_words, sizeof plan_words, "%s: driver call %llu%s gives %d %s its effect", devices[d],
                                 (unsigned long long)nth, count ? "" : " and all later ones", (int)codes[c], when ? "after" : "before");
                        run(devices[d], nth, count, codes[c], (simcuda_when)when, 0);
                        struck = panel.failures_injected();
                        nth += stride;
                    } while (struck);
                    assert_true(nth > 60); /* the program does call the driver */
                }
}

static void no_host_memory(void **state)
{
    (void)state;
    device_start(devices[0]);
    cmi_error_detail();
    uint64_t nth = 0;
    do {
        nth++;
        for (uint64_t count = 0; count < 2; count++) { /* the last one says how far the program got */
            snprintf(plan_words, sizeof plan_words, "host memory request %llu%s fails", (unsigned long long)nth,
                     count ? "" : " and all later ones");
            run(devices[0], 0, count, CUDA_SUCCESS, SIMCUDA_BEFORE, nth);
        }
    } while (!plan_is_open(nth));
    assert_true(nth > 12); /* the program does ask */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_driver_call_fails_once),
        cmocka_unit_test(no_host_memory),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
