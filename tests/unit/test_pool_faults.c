/*
 * A driver call that fails, at every place: a short program that creates, grows, moves pages, waits, captures, trims and destroys is run
 * again and again, each time with the next driver call (or the next request for host memory) failing once, or from there on. Whatever
 * fails, each call answers with a status of its list, the structures stay sound, live blocks stay live, the pool works again when the
 * failure is over, and everything is given back that the driver takes. Needs the simulated device beside it.
 */
#include "fault_program.h"

/* ---- one run
 * ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct plan {
    const char *words; /* the device */
    const char *options;
    uint64_t count; /* of driver calls that fail; 0: all from the first on */
    CUresult code;
    simcuda_when when;
    bool lasts; /* through destroy too */
} plan;

#define REFUSED_WORDS                                                                                        \
    "refused: %s, %s %d", cmpool_status_name(cmpool_last_error()->status), cmpool_last_error()->driver_call, \
        cmpool_last_error()->driver_code

/* A driver that answers INVALID_VALUE to everything says, when asked, that nothing is mapped and that no handle is known; what it says it
 * does not have is lost. */
static bool driver_lies(const plan *p) { return p->count == 0 && p->code == CUDA_ERROR_INVALID_VALUE; }

/* What does no longer fail must work. */
static void must_work(const plan *p)
{
    const char *options = p->options;
    step = "after the failure";
    if (pool)
        documented(cmpool_resume(pool), BIT(CMPOOL_ERR_UNSUPPORTED));
    if (options && strstr(options, "backend:malloc")) /* blocks that could not be freed may have left no segment long enough */
        for (int i = 0; i < BLOCKS; i++)
            put(i, stream_a);
    if (!pool)
        make_pool(options);
    CHECK(pool, "no pool: %s", cmpool_status_name(cmpool_last_error()->status));
    get(35, pool, 4 * MIB, stream_b);
    CHECK(blocks[35].address || driver_lies(p), REFUSED_WORDS);
    get(36, pool, 900, stream_a);
    CHECK(blocks[36].address || driver_lies(p), REFUSED_WORDS);
}

static void run(const plan *p, uint64_t nth)
{
    CUcontext primary = sim_test_start(p->words);
    stream_a = sim_test_stream();
    stream_b = sim_test_stream();
    stream_c = sim_test_stream();
    simcuda_census before = census_of(0);
    pool = private_pool = capture_set = 0;
    region = NULL;
    memset(blocks, 0, sizeof blocks);
    uint64_t meta_before = cmi_meta_bytes();
    if (nth)
        CHECK(panel.plan_failure("*", nth, p->count, (int)p->code, p->when) >= 0, "no plan");

    body(p->options);
    if (!p->lasts) {
        if (p->count == 0)
            panel.fail_clear();
        if (p->count == 0 || panel.failures_injected())
            must_work(p);
    }
    step = "free all";
    for (int i = 0; i < 2 * BLOCKS; i++) /* again, for the one free that may have failed */
        put(i % BLOCKS, i % 2 ? stream_a : stream_b);
    end_region(stream_a);
    end_region(stream_b);
    step = "destroy";
    bool stuck = region != NULL;
    for (int i = 0; i < BLOCKS; i++)
        stuck = stuck || blocks[i].address;
    if (stuck) { /* a free may fail, but not for good */
        CHECK(p->lasts, "a block cannot be freed: %s", cmpool_status_name(cmpool_last_error()->status));
        panel.fail_clear();
        OK(cuCtxSetCurrent(primary));
        for (int i = 0; i < BLOCKS; i++)
            put(i, stream_a);
        end_region(stream_a);
    }
    end_set();
    if (private_pool)
        documented(cmpool_destroy(private_pool), 0);
    cmpool_t gone = pool;
    pool = 0;
    cmpool_status status = gone ? cmpool_destroy(gone) : CMPOOL_OK;
    if (p->lasts && p->count == 0 && p->when == SIMCUDA_AFTER)
        panel.findings_reset(); /* every call reports a failure and does its work: nothing can be waited for, all is unmapped */
    documented(status, DRIVER_SAYS);
    if (gone)
        CHECK(cmpool_destroy(gone) == CMPOOL_ERR_INVALID_POOL, "not destroyed");

    panel.fail_clear();
    OK(cuCtxSetCurrent(primary));
    simcuda_census after = census_of(0);
    uint64_t struck = panel.failures_injected();
    if (status == CMPOOL_OK && !driver_lies(p)) {
        CHECK(after.handles == before.handles, "%d pages are left", (int)(after.handles - before.handles));
        CHECK(after.mappings == before.mappings, "%d mappings are left", (int)(after.mappings - before.mappings));
        CHECK(after.free_bytes == before.free_bytes, "memory is left");
    }
    /* Addresses and events are given back at the last moment; each that is left has its failure. */
    CHECK(after.handles + after.reservations + after.events <= before.handles + before.reservations + before.events + struck,
          "more is left than the driver refused to take");
    CHECK(cmi_meta_bytes() == meta_before, "%d bytes of host memory are left", (int)(cmi_meta_bytes() - meta_before));
}

/* ---- the sweeps
 * ----------------------------------------------------------------------------------------------------------------------------- */

static const char *const devices[] = {"sim:32MiB,order=lazy", "sim:32MiB,order=eager"};

/* The thread's record and the names of tags are there for the life of the process. */
static void keep_what_stays(void)
{
    cmi_error_detail();
    DONE(cmpool_tag_push("faults"));
    DONE(cmpool_tag_pop());
}

static uint64_t sweep(plan p, uint64_t from, uint64_t stride)
{
    device_start(p.words);
    keep_what_stays();
    run(&p, 0);
    uint64_t nth = from;
    for (;; nth += stride) {
        snprintf(plan_words, sizeof plan_words, "%s, %s: driver call %llu%s gives %d %s its effect%s", p.words, p.options ? p.options : "",
                 (unsigned long long)nth, p.count ? "" : " and all later ones", (int)p.code, p.when == SIMCUDA_BEFORE ? "before" : "after",
                 p.lasts ? ", through destroy" : "");
        run(&p, nth);
        if (panel.failures_injected() == 0)
            break;
    }
    assert_true(nth > 200); /* the program does call the driver */
    return nth;
}

#ifdef CMI_VALIDATE /* each call looks at everything, so every third place must do; other builds try them all */
enum { THINNING = 3 };
#else
enum { THINNING = 1 };
#endif

/* Each place in the order that leaves most work pending; every few places where more of it is finished. */
static void all_ways(CUresult code, const char *options, uint64_t places)
{
    uint64_t stride = places * THINNING;
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++)
        for (int when = SIMCUDA_BEFORE; when <= SIMCUDA_AFTER; when++) {
            uint64_t step_by = d == 0 ? stride : stride * 4 + 1, first = 1 + (uint64_t)when % step_by;
            sweep((plan){devices[d], options, 1, code, (simcuda_when)when, false}, first, step_by);
            sweep((plan){devices[d], options, 0, code, (simcuda_when)when, false}, first, step_by);
            sweep((plan){devices[d], options, 0, code, (simcuda_when)when, true}, first, step_by);
        }
}

static void unknown_error(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_UNKNOWN, NULL, 1);
}

static void out_of_memory(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_OUT_OF_MEMORY, NULL, 3);
}

static void invalid_value(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_INVALID_VALUE, NULL, 4);
}

static void a_driver_that_goes(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_DEINITIALIZED, NULL, 13);
    all_ways(CUDA_ERROR_CONTEXT_IS_DESTROYED, NULL, 17);
}

static void other_options(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_UNKNOWN, "stale_budget:0", 7);
    all_ways(CUDA_ERROR_UNKNOWN, "cross_stream_wait:off", 11);
}

static void segments(void **state)
{
    (void)state;
    all_ways(CUDA_ERROR_UNKNOWN, "backend:malloc", 5);
    all_ways(CUDA_ERROR_OUT_OF_MEMORY, "backend:malloc", 11);
    all_ways(CUDA_ERROR_INVALID_VALUE, "backend:malloc", 13);
}

/* ---- the end of a pool ------------------------------------------------------------------------------ */

/* Memory that the device still works on is not unmapped because waiting for it failed once. */
static void a_wait_that_fails_once(void **state)
{
    (void)state;
    device_start("sim:64MiB,order=lazy");
    cmpool_t one = pool_with(NULL);
    CUstream stream = sim_test_stream();
    void *block = take(one, 10 * MIB, stream);
    use(stream, block, 10 * MIB);
    give(one, block, stream);
    panel.plan_failure("cuCtxSynchronize", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    DONE(cmpool_destroy(one));
    assert_int_equal(panel.failures_injected(), 1);
    assert_int_equal(panel.races(), 0);
    device_end();
}

/* What the driver does not take back is told, and the process goes on. */
static void what_cannot_be_given_back_is_told(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        device_start("sim:64MiB");
        cmpool_t one = pool_with(NULL);
        give(one, take(one, 10 * MIB, NULL), NULL);
        panel.plan_failure(calls[i], 1, 0, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
        GIVES(CMPOOL_ERR_DRIVER, cmpool_destroy(one));
        GIVES(CMPOOL_ERR_INVALID_POOL, cmpool_destroy(one));
        panel.fail_clear();
        cmpool_t next = pool_with(NULL);
        give(next, take(next, 40 * MIB, NULL), NULL);
        must_be_sound(next);
        DONE(cmpool_destroy(next));
        assert_int_equal(cmi_meta_bytes(), meta_at_start);
    }
}

/* ---- host memory
 * ------------------------------------------------------------------------------------------------------------------------------ */

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

static void host_memory_run(const char *words, uint64_t nth, uint64_t count)
{
    sim_test_start(words);
    stream_a = sim_test_stream();
    stream_b = sim_test_stream();
    stream_c = sim_test_stream();
    simcuda_census before = census_of(0);
    pool = private_pool = capture_set = 0;
    memset(blocks, 0, sizeof blocks);
    uint64_t meta_before = cmi_meta_bytes();
    cmi_meta_fail(nth, count);
    body(NULL);
    if (count == 0)
        cmi_meta_fail(0, 0);
    for (int i = 0; i < BLOCKS; i++)
        put(i, i % 2 ? stream_a : stream_b);
    for (int i = 0; i < BLOCKS; i++) /* again, for what failed for want of host memory */
        put(i, stream_a);
    if (count == 0)
        must_work(&(plan){.words = words});
    for (int i = 0; i < BLOCKS; i++)
        put(i, stream_a);
    step = "destroy";
    end_set();
    if (private_pool)
        documented(cmpool_destroy(private_pool), 0);
    cmpool_t gone = pool;
    pool = 0;
    if (gone)
        documented(cmpool_destroy(gone), DRIVER_SAYS);
    simcuda_census after = census_of(0);
    CHECK(after.handles == before.handles && after.mappings == before.mappings && after.reservations == before.reservations &&
              after.events == before.events,
          "something is left");
    CHECK(cmi_meta_bytes() == meta_before, "%d bytes of host memory are left", (int)(cmi_meta_bytes() - meta_before));
}

static void no_host_memory(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++)
        for (uint64_t count = 0; count < 2; count++) {
            device_start(devices[d]);
            keep_what_stays();
            host_memory_run(devices[d], 0, 0);
            uint64_t nth = 1;
            do {
                snprintf(plan_words, sizeof plan_words, "%s: host memory request %llu%s fails", devices[d], (unsigned long long)nth,
                         count ? "" : " and all later ones");
                host_memory_run(devices[d], nth, count);
                if (count == 0) { /* the plan was taken back: ask again how far it reached */
                    cmi_meta_fail(nth, 1);
                    host_memory_run(devices[d], nth, 1);
                }
            } while (!plan_is_open(nth++));
            assert_true(nth > 20);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_memory),      cmocka_unit_test(unknown_error),          cmocka_unit_test(invalid_value),
        cmocka_unit_test(a_driver_that_goes), cmocka_unit_test(other_options),          cmocka_unit_test(segments),
        cmocka_unit_test(no_host_memory),     cmocka_unit_test(a_wait_that_fails_once), cmocka_unit_test(what_cannot_be_given_back_is_told),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
