/*
 * The short program that test_pool_faults.c runs again and again: it creates, grows, moves pages, waits, captures, pauses, trims and
 * destroys, and holds each call to the statuses that are documented for it. What a call that failed should have done is left out from
 * there.
 */
#ifndef FAULT_PROGRAM_H
#define FAULT_PROGRAM_H

#include "pool_fixture.h"

#include <fcntl.h>
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
static void *region;
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

static void end_region(CUstream stream)
{
    if (region) {
        cmpool_status status = cmpool_region_destroy(pool, region, stream);
        documented(status, OF_FREE | BIT(CMPOOL_ERR_PAUSED));
        region = status == CMPOOL_OK ? NULL : region;
    }
}

/* Pages for a region from wherever they are, and back. */
static void region_part(void)
{
    step = "region";
    documented(cmpool_region_create(pool, &region, 20 * MIB), OF_CREATE);
    if (!region)
        return;
    documented(cmpool_region_grow(pool, region, 5 * MIB, stream_a), OF_MALLOC);
    documented(cmpool_region_grow(pool, region, 19 * MIB, stream_b), OF_MALLOC);
    documented(cmpool_region_shrink(pool, region, 7 * MIB, stream_a), OF_FREE);
    get(34, pool, 9 * MIB, stream_b);
    step = "its end";
    end_region(stream_b);
    put(34, stream_a);
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

static int nothing_to_give(void *user, cmpool_t of, size_t bytes)
{
    (void)user;
    (void)of;
    (void)bytes;
    return 0;
}

/* May fail in calls of its own; the refusal it tells of stands. */
static void note_refusal(void *user, const cmpool_refusal *refusal)
{
    char text[2000];
    (void)user;
    CHECK(cmpool_refusal_text(refusal, text, sizeof text) > 0, "a refusal without words");
}

/* Names, levels, what is asked about memory, callbacks of a refusal, a pause of what has a name. */
static void told_part(void)
{
    const unsigned host_memory = BIT(CMPOOL_ERR_OUT_OF_HOST_MEMORY);
    cmpool_block_info info = {.struct_size = sizeof info};
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    cmpool_pause_request request = {.struct_size = sizeof request, .tag_name = "faults"};
    size_t usable = 0;
    CUcontext context = NULL;
    step = "tag";
    cmpool_status tagged = cmpool_tag_push("faults");
    documented(tagged, host_memory);
    get(34, pool, 3 * MIB, stream_a);
    if (tagged == CMPOOL_OK)
        documented(cmpool_tag_pop(), 0);
    documented(cmpool_step(), 0);
    step = "lookup";
    if (blocks[34].address) {
        documented(cmpool_lookup(blocks[34].address, &info), 0);
        documented(cmpool_usable_size(pool, blocks[34].address, &usable), 0);
        documented(cmpool_pinned_lookup(blocks[34].address, &info), BIT(CMPOOL_ERR_NOT_OURS));
    }
    step = "pause of a tag";
    documented(cmpool_pause_ex(pool, &request), OF_MALLOC | BIT(CMPOOL_ERR_UNSUPPORTED));
    documented(cmpool_resume(pool), OF_MALLOC | BIT(CMPOOL_ERR_UNSUPPORTED));
    step = "a refusal";
    documented(cmpool_set_low_memory_callback(pool, nothing_to_give, NULL), 0);
    documented(cmpool_set_refusal_callback(pool, note_refusal, NULL), 0);
    documented(cmpool_set_floor(pool, 2 * MIB), 0);
    documented(cmpool_set_headroom(pool, 4 * MIB), 0);
    get(35, pool, 31 * MIB, stream_b);
    put(35, stream_b);
    documented(cmpool_refusal_get(pool, &refusal), BIT(CMPOOL_ERR_INVALID_ARGUMENT));
    documented(cmpool_set_refusal_callback(pool, NULL, NULL), 0);
    documented(cmpool_set_low_memory_callback(pool, NULL, NULL), 0);
    documented(cmpool_set_floor(pool, 0), 0);
    documented(cmpool_set_headroom(pool, 0), 0);
    put(34, stream_b);
    step = "a snapshot";
    documented(cmpool_snapshot_write("/dev/null"), host_memory);
    int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
    documented(cmpool_snapshot_write_fd(file), host_memory);
    close(file);
    documented(cmpool_stats_reset_peaks(pool), 0);
    step = "a context";
    if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context) {
        documented(cmpool_context_add(0, context), host_memory);
        documented(cmpool_context_remove(0, context), 0);
    }
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
    told_part();
    others_part();
    region_part();
    pause_part();
    exportable_part();
    give_back();
}

#endif
