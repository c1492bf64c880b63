/*
 * Random programs over pinned memory, in three orders of the device and with contents: requests of all sizes and kinds, copies both ways on
 * several streams, uses told and untold, limits, trims, failing driver calls. After each step the validator runs; each block keeps what the
 * CPU wrote; what was copied to the device from a block is there in the end, although the block may have been freed, handed out again and
 * written over at once; the race checker finds nothing. CMPOOL_TEST_OPERATIONS makes it longer, CMPOOL_TEST_SEED repeats a program.
 */
#include "pinned_fixture.h"

enum { SLOTS = 40, STREAMS = 4, COPIES = 24, COPY_BYTES = 1 << 16, OPERATIONS = 600 };

static uint64_t seed;
static cmpool_t pool;
static CUstream streams[STREAMS];
static struct {
    unsigned char *address;
    size_t bytes;
    unsigned stream;
    unsigned char value;
    bool unordered;
} slots[SLOTS];
static unsigned char *on_device;
static unsigned char expected[COPIES]; /* of each stretch of device memory; 0: nothing was copied there */
static uint64_t limit;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % below);
}

static bool is_intact(int i)
{
    for (size_t at = 0; at < slots[i].bytes; at += 1 + slots[i].bytes / 50)
        if (slots[i].address[at] != slots[i].value)
            return false;
    return slots[i].address[slots[i].bytes - 1] == slots[i].value;
}

static void step_alloc(int i)
{
    static const size_t most[] = {600, 20000, 300000, 1 << 20, 3 << 20, 9 << 20};
    slots[i].bytes = 1 + draw((uint32_t)most[draw(6)]);
    slots[i].stream = draw(STREAMS);
    slots[i].unordered = draw(6) == 0;
    cmpool_pinned_request request = {.struct_size = sizeof request,
                                     .bytes = slots[i].bytes,
                                     .alignment = (size_t)1 << draw(13),
                                     .stream = streams[slots[i].stream],
                                     .flags = (draw(8) == 0 ? CMPOOL_PINNED_WRITE_COMBINED : 0u) |
                                              (slots[i].unordered ? CMPOOL_PINNED_UNORDERED : 0u)};
    cmi_pinned_pretend_node((int)draw(3));
    void *block;
    cmpool_status status = cmpool_pinned_malloc_ex(pool, &block, &request);
    cmi_pinned_pretend_node(-1);
    slots[i].address = block;
    if (status == CMPOOL_OK) {
        assert_int_equal((uintptr_t)block % request.alignment, 0);
        slots[i].value = (unsigned char)(1 + draw(250));
        memset(block, slots[i].value, slots[i].bytes);
    } else if (status == CMPOOL_ERR_LIMIT) {
        assert_true(limit != 0);
    } else {
        assert_true(panel.failures_injected() > 0);
    }
}

static void step_free(int i)
{
    assert_true(is_intact(i));
    cmpool_status status = draw(5) == 0 ? cmpool_pinned_free_unordered(pool, slots[i].address)
                                        : cmpool_pinned_free(pool, slots[i].address, streams[slots[i].stream]);
    if (status == CMPOOL_OK)
        slots[i].address = NULL;
    else
        assert_true(panel.failures_injected() > 0);
}

/* From a block to the device, on its own stream, or on another that is told of. Each stretch of the device belongs to one stream. */
static void step_copy(int i)
{
    unsigned stretch = draw(COPIES), stream = stretch % STREAMS;
    if (stream != slots[i].stream && !slots[i].unordered &&
        cmpool_pinned_record_use(pool, slots[i].address, streams[stream]) != CMPOOL_OK) {
        assert_true(panel.failures_injected() > 0);
        return;
    }
    size_t bytes = slots[i].bytes < COPY_BYTES ? slots[i].bytes : COPY_BYTES;
    if (cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)(on_device + stretch * COPY_BYTES), slots[i].address, bytes, streams[stream]) ==
        CUDA_SUCCESS)
        expected[stretch] = slots[i].value;
}

static void step(void)
{
    const cmpool_pinned_stats before = pinned_figures(pool);
    int i = (int)draw(SLOTS);
    uint32_t what = draw(100);
    if (what < 45)
        slots[i].address ? step_free(i) : step_alloc(i);
    else if (what < 85 && slots[i].address)
        step_copy(i);
    else if (what < 89)
        (void)cuStreamSynchronize(streams[draw(STREAMS)]);
    else if (what < 92)
        panel.run_device();
    else if (what < 94)
        (void)cmpool_pinned_trim(pool, draw(20) * MIB, NULL);
    else if (what < 95)
        (void)cmpool_pinned_set_limit(pool, limit = draw(3) ? (4 + draw(40)) * MIB : 0);
    else if (what < 97)
        panel.plan_failure("*", 1 + draw(12), 1, draw(2) ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY, SIMCUDA_BEFORE);
    must_be_sound(pool);
    cmpool_pinned_stats after = pinned_figures(pool);
    assert_true(!limit || after.held_bytes <= limit || after.held_bytes <= before.held_bytes); /* above a new limit nothing is added */
    assert_int_equal(census_of(0).pinned_bytes, after.held_bytes + after.stranded_bytes);
}

static void run(const char *words, uint64_t operations)
{
    device_start(words);
    memset(slots, 0, sizeof slots);
    memset(expected, 0, sizeof expected);
    limit = 0;
    pool = pool_with(NULL);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = sim_test_stream();
    on_device = take(pool, COPIES * COPY_BYTES, streams[0]);
    OK(cuStreamSynchronize(streams[0]));
    for (uint64_t i = 0; i < operations; i++)
        step();
    panel.fail_clear();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].address) {
            assert_true(is_intact(i));
            unpin(pool, slots[i].address, streams[slots[i].stream]);
        }
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < COPIES; i++)
        if (expected[i])
            assert_int_equal(on_device[i * COPY_BYTES], expected[i]); /* with contents the CPU may look at device memory */
    give(pool, on_device, streams[0]);
    assert_int_equal(panel.races(), 0);
    pinned_must_end(pool);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void random_programs(void **state)
{
    (void)state;
    static const char *const devices[] = {"sim:64MiB,order=eager,content", "sim:64MiB,order=lazy,content",
                                          "sim:64MiB,order=random:3,content"};
    uint64_t first = number_from("CMPOOL_TEST_SEED", 1), programs = getenv("CMPOOL_TEST_SEED") ? 1 : 6;
    for (uint64_t s = first; s < first + programs; s++)
        for (size_t d = 0; d < 3; d++) {
            seed = s * 1000 + d;
            print_message("seed %llu on %s\n", (unsigned long long)s, devices[d]);
            run(devices[d], number_from("CMPOOL_TEST_OPERATIONS", OPERATIONS));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
