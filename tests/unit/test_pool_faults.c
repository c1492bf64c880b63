/*
 * A driver call that fails, at every place: a short program that creates, grows, moves pages, waits, captures, trims and destroys is run
 * again and again, each time with the next driver call (or the next request for host memory) failing once, or from there on. Whatever
 * fails, each call answers with a status of its list, the structures stay sound, live blocks stay live, the pool works again when the
 * failure is over, and everything is given back that the driver takes. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#include <unistd.h>

#define BLOCKS 40
#define BIT(status) (1u << (status))
/* A driver that is gone answers in place of DRIVER wherever that is listed. */
#define DRIVER_SAYS (BIT(CMPOOL_ERR_DRIVER) | BIT(CMPOOL_ERR_SHUTTING_DOWN) | BIT(CMPOOL_ERR_DEVICE_LOST))
#define OF_CREATE                                                                                                      \
    (DRIVER_SAYS | BIT(CMPOOL_ERR_DRIVER_MISSING) | BIT(CMPOOL_ERR_UNSUPPORTED) | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY) | \
     BIT(CMPOOL_ERR_OUT_OF_ADDRESSES) | BIT(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY))
#define OF_MALLOC                                                                                                      \
    (DRIVER_SAYS | BIT(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY) | BIT(CMPOOL_ERR_LIMIT) | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY) | \
     BIT(CMPOOL_ERR_OUT_OF_ADDRESSES) | BIT(CMPOOL_ERR_MAPPING_CEILING) | BIT(CMPOOL_ERR_CAPTURE) | BIT(CMPOOL_ERR_PAUSED))
#define OF_FREE (DRIVER_SAYS | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY))
#define OF_TRIM (DRIVER_SAYS | BIT(CMPOOL_ERR_CAPTURE))
#define OF_PRIVATE BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY)
#define OF_RELEASE (BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY) | BIT(CMPOOL_ERR_CAPTURE))

static const char *step = "start"; /* where the program is, for messages */
static char plan_words[160];       /* what fails, for messages */
static cmpool_t pool, private_pool, capture_set;
static CUstream stream_a, stream_b, stream_c;
static struct {
    void *address;
    size_t bytes;
    cmpool_t pool;
} blocks[BLOCKS];

#define CHECK(condition, ...)                                 \
    do {                                                      \
        if (!(condition)) {                                   \
            print_error("%s, at \"%s\": ", plan_words, step); \
            fail_msg(__VA_ARGS__);                            \
        }                                                     \
    } while (0)

static void sound(void)
{
    const char *finding = NULL;
    cmpool_status status = pool ? cmpool_validate(pool, &finding) : CMPOOL_OK;
    CHECK(status == CMPOOL_OK, "validator: %s", finding ? finding : cmpool_status_name(status));
    CHECK(panel.races() == 0, "%s", panel.finding_text(0));
    CHECK(panel.findings(SIMCUDA_BAD_ACCESS) == 0, "%s", panel.finding_text(0));
}

static void documented(cmpool_status status, unsigned allowed)
{
    CHECK(status == CMPOOL_OK || (allowed & BIT(status)), "gave %s", cmpool_status_name(status));
    CHECK(status == CMPOOL_OK || cmpool_last_error()->status == status, "the last error is another one");
    sound();
}

static cmpool_stats now(void)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    CHECK(cmpool_stats_get(pool, &stats) == CMPOOL_OK, "no figures");
    return stats;
}

static void same_live(const cmpool_stats *before)
{
    cmpool_stats after = now();
    CHECK(after.live_bytes == before->live_bytes && after.live_blocks == before->live_blocks &&
              after.requested_bytes == before->requested_bytes,
          "a call that failed changed what is live");
}

static void get(int number, cmpool_t from, size_t bytes, CUstream stream)
{
    if (!from || blocks[number].address) /* the free of an earlier one failed */
        return;
    cmpool_stats before = now();
    void *block = &before;
    cmpool_status status = cmpool_malloc(from, &block, bytes, stream);
    documented(status, OF_MALLOC);
    if (status == CMPOOL_OK) {
        blocks[number].address = block;
        blocks[number].bytes = bytes;
        blocks[number].pool = from;
        CHECK(panel.touch(stream, (uint64_t)(uintptr_t)block, bytes, 1) == 0, "the block cannot be used");
        sound();
    } else {
        CHECK(!block, "a refusal left an address");
        same_live(&before);
    }
}

static void put(int number, CUstream stream)
{
    if (!blocks[number].address)
        return;
    cmpool_stats before = now();
    cmpool_status status = cmpool_free(blocks[number].pool, blocks[number].address, stream);
    documented(status, OF_FREE);
    if (status == CMPOOL_OK)
        blocks[number].address = NULL;
    else
        same_live(&before);
}

static void get_unordered(int number, size_t bytes)
{
    if (blocks[number].address)
        return;
    cmpool_stats before = now();
    void *block = &before;
    cmpool_status status = cmpool_malloc_unordered(pool, &block, bytes);
    documented(status, OF_MALLOC);
    if (status == CMPOOL_OK) {
        blocks[number].address = block;
        blocks[number].bytes = bytes;
        blocks[number].pool = pool;
    } else {
        CHECK(!block, "a refusal left an address");
        same_live(&before);
    }
}

static void put_unordered(int number)
{
    if (!blocks[number].address)
        return;
    cmpool_stats before = now();
    cmpool_status status = cmpool_free_unordered(blocks[number].pool, blocks[number].address);
    documented(status, OF_FREE);
    if (status == CMPOOL_OK)
        blocks[number].address = NULL;
    else
        same_live(&before);
}

/* What is left of it is the pool's. */
static void end_set(void)
{
    step = "release";
    cmpool_status status = capture_set ? cmpool_capture_release(capture_set) : CMPOOL_OK;
    documented(status, OF_RELEASE);
    for (int i = 0; i < BLOCKS && status == CMPOOL_OK && capture_set; i++)
        blocks[i].pool = blocks[i].pool == capture_set ? pool : blocks[i].pool;
    capture_set = status == CMPOOL_OK ? 0 : capture_set;
}

/* ---- the program ------------------------------------------------------------------------------------------------------------------------
 */

static void make_pool(const char *options)
{
    step = "create";
    const cmpool_config config = {.struct_size = sizeof config, .options = options};
    simcuda_census before = census_of(0);
    cmpool_status status = cmpool_create(&pool, &config);
    documented(status, OF_CREATE);
    if (status != CMPOOL_OK) {
        CHECK(pool == 0, "a pool that could not be made has a handle");
        simcuda_census after = census_of(0);
        CHECK(after.handles == before.handles && after.mappings == before.mappings, "create left something");
    }
}

static void grow_and_wait(void)
{
    step = "small blocks";
    for (int i = 0; i < 4; i++)
        get(i, pool, 1000 + (size_t)i * 9000, stream_a);
    step = "growth";
    get(4, pool, 5 * MIB, stream_a);
    get(5, pool, 3 * MIB + 512, stream_b);
    step = "use on another stream";
    if (blocks[4].address)
        documented(cmpool_record_use(pool, blocks[4].address, stream_b), OF_FREE);
    if (blocks[1].address)
        documented(cmpool_record_use(pool, blocks[1].address, stream_b), OF_FREE);
    step = "free";
    put(1, stream_a);
    put(4, stream_a);
    put(5, stream_c);
    step = "another stream's memory on a full device";
    get(6, pool, 26 * MIB, stream_b);
    put(6, stream_b);
    get(6, pool, 28 * MIB, stream_a);
    put(6, stream_a);
}

static void move(void)
{
    step = "fill";
    for (int i = 10; i < 24; i++)
        get(i, pool, 2 * MIB, i % 2 ? stream_a : stream_b);
    step = "free every other";
    for (int i = 10; i < 24; i += 2)
        put(i, stream_b);
    step = "move pages";
    get(24, pool, 9 * MIB + 512, stream_a);
    get(25, pool, 3 * MIB, stream_c);
    for (int i = 11; i < 24; i += 2)
        put(i, stream_a);
    put(24, stream_a);
    step = "move once more";
    get(24, pool, 20 * MIB, stream_b);
    put(24, stream_b);
    put(25, stream_c);
}

static void give_back(void)
{
    size_t released = 0;
    step = "reserve";
    documented(cmpool_reserve(pool, 24 * MIB), OF_MALLOC);
    step = "trim";
    documented(cmpool_trim(pool, 12 * MIB, &released), OF_TRIM);
    step = "trim for others";
    documented(cmpool_device_trim(0, 6 * MIB, &released), OF_TRIM);
    step = "limit";
    documented(cmpool_set_limit(pool, 8 * MIB), 0);
    get(30, pool, 7 * MIB, stream_a);
    put(30, stream_a);
    documented(cmpool_set_limit(pool, 0), 0);
    step = "retire";
    documented(cmpool_stream_retire(0, stream_c), DRIVER_SAYS | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY));
}

/* The pages go, with and without their contents, and come back; blocks are freed before, meanwhile and after. */
static void pause_part(void)
{
    const unsigned allowed = OF_MALLOC | BIT(CMPOOL_ERR_UNSUPPORTED);
    step = "pause";
    get(34, pool, 5 * MIB, stream_a);
    get(35, pool, 3000, stream_a);
    get(36, pool, 3 * MIB, stream_b);
    documented(cmpool_pause(pool, CMPOOL_KEEP), allowed);
    put(36, stream_a);
    step = "resume";
    documented(cmpool_resume(pool), allowed);
    documented(cmpool_pause(pool, CMPOOL_DISCARD), allowed);
    documented(cmpool_resume(pool), allowed);
    documented(cmpool_resume(pool), allowed);
    put(34, stream_b);
    put(35, stream_a);
}

/* Another device allocation for one block, a descriptor of it, and its end behind two streams. */
static void exportable_part(void)
{
    step = "exportable block";
    const cmpool_request request = {.struct_size = sizeof request, .bytes = 5 * MIB, .stream = stream_a, .flags = CMPOOL_EXPORTABLE};
    cmpool_stats before = now();
    void *block = &before;
    cmpool_status status = cmpool_malloc_ex(pool, &block, &request);
    documented(status, OF_MALLOC | BIT(CMPOOL_ERR_UNSUPPORTED));
    if (status != CMPOOL_OK) {
        CHECK(!block, "a refusal left an address");
        same_live(&before);
        return;
    }
    blocks[33].address = block;
    blocks[33].bytes = request.bytes;
    blocks[33].pool = pool;
    CHECK(panel.touch(stream_a, (uint64_t)(uintptr_t)block, request.bytes, 1) == 0, "the block cannot be used");
    step = "descriptor";
    int fd = 0;
    status = cmpool_export_fd(pool, block, &fd);
    documented(status, DRIVER_SAYS);
    CHECK(status == CMPOOL_OK ? close(fd) == 0 : fd == -1, "no descriptor, or one that nobody was given");
    step = "its end";
    documented(cmpool_record_use(pool, block, stream_b), OF_FREE);
    put(33, stream_a);
}

static void private_part(void)
{
    step = "private pool";
    documented(cmpool_private_create(&private_pool, pool), OF_PRIVATE);
    get(31, private_pool, 4 * MIB, stream_a);
    get(32, private_pool, 700, stream_b);
    put(31, stream_a);
    put(32, stream_b);
    if (private_pool && !blocks[31].address && !blocks[32].address) {
        documented(cmpool_destroy(private_pool), 0);
        private_pool = 0;
    }
}

/* Memory that names no stream: epochs are sealed, and every context waits. */
static void unordered_part(void)
{
    step = "without a stream";
    for (int i = 0; i < 3; i++)
        get_unordered(33 + i, 6 * MIB + (size_t)i);
    for (int i = 0; i < 3; i++)
        put_unordered(33 + i);
    get(33, pool, 20 * MIB, stream_a);
    put(33, stream_a);
    get_unordered(33, 22 * MIB);
    put_unordered(33);
}

/* The driver asks for memory back, which the next call gives; a stream that is retired with frees not covered yet. */
static void others_part(void)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    step = "a memory notification";
    get(34, pool, 5 * MIB, stream_b);
    (void)panel.notify_over_budget(0, 7 * MIB);
    documented(cmpool_stats_get(pool, &stats), 0);
    step = "retire with frees";
    put(34, stream_b);
    documented(cmpool_stream_retire(0, stream_b), DRIVER_SAYS | BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY));
}

/* A set, two captures that allocate from it, its release; the capture itself is the program's and is not made to fail. */
static void capture_part(void)
{
    step = "capture set";
    documented(cmpool_capture_create(&capture_set, pool), OF_PRIVATE);
    for (int round = 0; round < 2 && capture_set; round++) {
        step = "capture";
        cmpool_status begun = cmpool_capture_begin(capture_set);
        documented(begun, OF_MALLOC);
        get(37, capture_set, 3 * MIB, stream_c);
        get(38, capture_set, 900, stream_c);
        get(39, pool, 4 * MIB, stream_a);
        put(37, stream_c);
        put(39, stream_a);
        if (begun == CMPOOL_OK)
            documented(cmpool_capture_end(capture_set), 0);
        put(38, stream_c);
    }
    end_set();
}

static void body(const char *options)
{
    make_pool(options);
    if (!pool)
        return;
    grow_and_wait();
    move();
    private_part();
    unordered_part();
    capture_part();
    others_part();
    pause_part();
    exportable_part();
    give_back();
}

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

/* What does no longer fail must work. */
static void must_work(const char *options)
{
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
    CHECK(blocks[35].address, REFUSED_WORDS);
    get(36, pool, 900, stream_a);
    CHECK(blocks[36].address, REFUSED_WORDS);
}

static void run(const plan *p, uint64_t nth)
{
    CUcontext primary = sim_test_start(p->words);
    stream_a = sim_test_stream();
    stream_b = sim_test_stream();
    stream_c = sim_test_stream();
    simcuda_census before = census_of(0);
    pool = private_pool = capture_set = 0;
    memset(blocks, 0, sizeof blocks);
    uint64_t meta_before = cmi_meta_bytes();
    if (nth)
        CHECK(panel.plan_failure("*", nth, p->count, (int)p->code, p->when) >= 0, "no plan");

    body(p->options);
    if (!p->lasts) {
        if (p->count == 0)
            panel.fail_clear();
        if (p->count == 0 || panel.failures_injected())
            must_work(p->options);
    }
    step = "free all";
    for (int i = 0; i < 2 * BLOCKS; i++) /* again, for the one free that may have failed */
        put(i % BLOCKS, i % 2 ? stream_a : stream_b);
    step = "destroy";
    bool stuck = false;
    for (int i = 0; i < BLOCKS; i++)
        stuck = stuck || blocks[i].address;
    if (stuck) { /* a free may fail, but not for good */
        CHECK(p->lasts, "a block cannot be freed: %s", cmpool_status_name(cmpool_last_error()->status));
        panel.fail_clear();
        OK(cuCtxSetCurrent(primary));
        for (int i = 0; i < BLOCKS; i++)
            put(i, stream_a);
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
    /* A driver that answers INVALID_VALUE to everything says, when asked, that nothing is mapped and that no handle is known. */
    bool lied = p->count == 0 && p->code == CUDA_ERROR_INVALID_VALUE;
    if (status == CMPOOL_OK && !lied) {
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

static uint64_t sweep(plan p, uint64_t from, uint64_t stride)
{
    device_start(p.words);
    cmi_error_detail(); /* this thread's record stays */
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
        must_work(NULL);
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
            cmi_error_detail();
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
