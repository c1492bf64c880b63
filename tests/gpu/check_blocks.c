/*
 * Device check: what the public calls promise of blocks, with contents that the device writes and looks at. Sizes, refusals and limits,
 * pages that are moved, trims, pauses, regions, pinned memory, segments, memory for another process. Part "blocks" of tools/gpu-check.sh.
 */
#include "gpu_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Filled each with a seed of its own, all at once; none may have written into another. */
static void sizes(void)
{
    static const size_t bytes[] = {1, 511, 512, 513, 4096, 100000, MIB, 2 * MIB, 3 * MIB + 1, 33 * MIB, 64 * MIB};
    enum { COUNT = sizeof bytes / sizeof *bytes, MOST = 8 * COUNT };
    const unsigned blocks = gpu_simulated ? 2 * COUNT : MOST;
    void *block[MOST];
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, ""));
    for (unsigned i = 0; i < blocks; i++) {
        size_t usable = 0, wanted = bytes[i % COUNT];
        DONE(cmpool_malloc(pool, &block[i], i < COUNT || wanted < MIB ? wanted : wanted / 64, stream));
        DONE(cmpool_usable_size(pool, block[i], &usable));
        EXPECT((uintptr_t)block[i] % 512 == 0, "a block of %zu bytes at %p", wanted, block[i]);
        gpu_fill(stream, block[i], usable, i + 1);
    }
    for (unsigned i = 0; i < blocks; i++) {
        size_t usable = 0;
        DONE(cmpool_usable_size(pool, block[i], &usable));
        gpu_check(stream, block[i], usable, i + 1);
    }
    contents_must_be_right();
    for (unsigned i = 0; i < blocks; i++)
        DONE(cmpool_free(pool, block[i], stream));
    void *none = &pool;
    DONE(cmpool_malloc(pool, &none, 0, stream));
    EXPECT(none == NULL, "0 bytes are %p", none);
    for (size_t alignment = 512; alignment <= 2 * MIB; alignment *= 8) {
        const cmpool_request request = {.struct_size = sizeof request, .bytes = 700, .alignment = alignment, .stream = stream};
        DONE(cmpool_malloc_ex(pool, &none, &request));
        EXPECT((uintptr_t)none % alignment == 0, "%p is not aligned to %zu", none, alignment);
        DONE(cmpool_free(pool, none, stream));
    }
    pool_end(pool);
}

static void bad_frees(void)
{
    cmpool_t pool;
    void *block;
    int host = 0;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, ""));
    DONE(cmpool_malloc(pool, &block, 5 * MIB, stream));
    GIVES(CMPOOL_ERR_INTERIOR_POINTER, cmpool_free(pool, (char *)block + 512, stream));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, &host, stream));
    CUdeviceptr foreign;
    MUST(cu.MemAlloc(&foreign, MIB));
    GIVES(CMPOOL_ERR_NOT_OURS, cmpool_free(pool, (void *)(uintptr_t)foreign, stream));
    MUST(cu.MemFree(foreign));
    DONE(cmpool_free(pool, block, stream));
    GIVES(CMPOOL_ERR_ALREADY_FREED, cmpool_free(pool, block, stream));
    pool_end(pool);
}

/* At a limit of 128 MiB: every second of 30 blocks is freed, and what is free in pieces serves one request. The others keep their contents.
 */
static void moved_pages(void)
{
    enum { COUNT = 30 };
    void *block[COUNT], *large;
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, "limit:128MiB"));
    for (int round = 0; round < (gpu_simulated ? 1 : 20); round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            DONE(cmpool_malloc(pool, &block[i], 4 * MIB, stream));
            gpu_fill(stream, block[i], 4 * MIB, 100 + i);
        }
        for (unsigned i = 0; i < COUNT; i += 2)
            DONE(cmpool_free(pool, block[i], stream));
        DONE(cmpool_malloc(pool, &large, 64 * MIB, stream));
        gpu_fill(stream, large, 64 * MIB, 7);
        for (unsigned i = 1; i < COUNT; i += 2)
            gpu_check(stream, block[i], 4 * MIB, 100 + i);
        gpu_check(stream, large, 64 * MIB, 7);
        contents_must_be_right();
        DONE(cmpool_free(pool, large, stream));
        for (unsigned i = 1; i < COUNT; i += 2)
            DONE(cmpool_free(pool, block[i], stream));
    }
    cmpool_stats figures = pool_figures(pool);
    EXPECT(figures.page_moves > 0, "no page was moved");
    EXPECT(figures.host_waits == 0, "the host waited %llu times", (unsigned long long)figures.host_waits);
    EXPECT(figures.peak_reserved_bytes <= 128 * MIB, "%llu bytes were held", (unsigned long long)figures.peak_reserved_bytes);
    pool_end(pool);
}

static void refusals(void)
{
    cmpool_t pool;
    void *block, *more;
    size_t released;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, "limit:64MiB"));
    DONE(cmpool_malloc(pool, &block, 64 * MIB, stream));
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &more, 512, stream));
    EXPECT(more == NULL && cmpool_last_error()->live_bytes == 64 * MIB, "the refusal does not have its numbers");
    DONE(cmpool_free(pool, block, stream));
    DONE(cmpool_malloc(pool, &more, 512, stream));
    DONE(cmpool_free(pool, more, stream));
    GIVES(CMPOOL_ERR_LIMIT, cmpool_malloc(pool, &more, 65 * MIB, stream));
    DONE(cmpool_set_limit(pool, 0));
    GIVES(CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, cmpool_malloc(pool, &more, (size_t)1 << 45, stream));
    DONE(cmpool_trim(pool, 0, &released));
    EXPECT(released > 0 && pool_figures(pool).reserved_bytes == 0, "a trim left %llu bytes",
           (unsigned long long)pool_figures(pool).reserved_bytes);
    DONE(cmpool_reserve(pool, 32 * MIB));
    uint64_t turns = pool_figures(pool).driver_turns;
    DONE(cmpool_malloc(pool, &block, 32 * MIB, stream));
    EXPECT(pool_figures(pool).driver_turns == turns, "what was reserved did not serve");
    DONE(cmpool_free(pool, block, stream));
    pool_end(pool);
}

static void paused(void)
{
    enum { COUNT = 12 };
    void *block[COUNT], *other;
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, ""));
    for (unsigned i = 0; i < COUNT; i++) {
        DONE(cmpool_malloc(pool, &block[i], (i % 3 + 1) * 3 * MIB / 2, stream));
        gpu_fill(stream, block[i], (i % 3 + 1) * 3 * MIB / 2, 40 + i);
    }
    cmpool_pause_request request = {.struct_size = sizeof request, .contents = CMPOOL_KEEP, .flags = CMPOOL_PAUSE_VERIFY};
    DONE(cmpool_pause_ex(pool, &request));
    EXPECT(pool_figures(pool).reserved_bytes == 0, "a paused pool holds %llu bytes", (unsigned long long)pool_figures(pool).reserved_bytes);
    GIVES(CMPOOL_ERR_PAUSED, cmpool_malloc(pool, &other, MIB, stream));
    DONE(cmpool_resume(pool));
    for (unsigned i = 0; i < COUNT; i++) {
        gpu_check(stream, block[i], (i % 3 + 1) * 3 * MIB / 2, 40 + i);
        DONE(cmpool_free(pool, block[i], stream));
    }
    contents_must_be_right();
    pool_end(pool);
}

static void regions(void)
{
    enum { STEPS = 12 };
    void *base, *block;
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, "limit:64MiB"));
    DONE(cmpool_region_create(pool, &base, GIB));
    for (unsigned i = 0; i < STEPS; i++) {
        DONE(cmpool_region_grow(pool, base, (i + 1) * 4 * MIB, stream));
        gpu_fill(stream, (char *)base + i * 4 * MIB, 4 * MIB, 60 + i);
    }
    for (unsigned i = 0; i < STEPS; i++)
        gpu_check(stream, (char *)base + i * 4 * MIB, 4 * MIB, 60 + i);
    contents_must_be_right();
    DONE(cmpool_region_shrink(pool, base, 8 * MIB, stream));
    DONE(cmpool_malloc(pool, &block, 56 * MIB, stream)); /* with the pages that the region has given up */
    gpu_fill(stream, block, 56 * MIB, 5);
    gpu_check(stream, base, 4 * MIB, 60);
    gpu_check(stream, block, 56 * MIB, 5);
    contents_must_be_right();
    DONE(cmpool_free(pool, block, stream));
    DONE(cmpool_region_destroy(pool, base, stream));
    pool_end(pool);
}

/* Pinned blocks as source and target of copies; one that a copy still reads is not handed out again. */
static void pinned(void)
{
    uint32_t *source, *target, *other;
    void *block;
    cmpool_t pool;
    CUstream stream = gpu_stream();
    size_t words = 3 * MIB / sizeof *source;
    DONE(pool_make(&pool, ""));
    DONE(cmpool_malloc(pool, &block, 3 * MIB, stream));
    DONE(cmpool_pinned_malloc(pool, (void **)&source, 3 * MIB, stream));
    DONE(cmpool_pinned_malloc(pool, (void **)&target, 3 * MIB, stream));
    for (size_t i = 0; i < words; i++)
        source[i] = (uint32_t)(i * 7 + 1);
    int gate = gpu_gate_close(stream, UINT64_C(200000000));
    MUST(cu.MemcpyHtoDAsync((CUdeviceptr)(uintptr_t)block, source, 3 * MIB, stream));
    DONE(cmpool_pinned_free(pool, source, stream));
    DONE(cmpool_pinned_malloc(pool, (void **)&other, 3 * MIB, stream));
    EXPECT(other != source, "pinned memory that a copy still reads was handed out");
    gpu_gate_open(gate);
    MUST(cu.MemcpyDtoHAsync(target, (CUdeviceptr)(uintptr_t)block, 3 * MIB, stream));
    MUST(cu.StreamSynchronize(stream));
    gpu_answer("pinned memory freed and taken beside a kernel", gpu_gate_gave_up(gate) ? "waits for it" : "does not wait");
    for (size_t i = 0; i < words; i++)
        EXPECT(target[i] == (uint32_t)(i * 7 + 1), "word %zu went wrong on its way", i);
    DONE(cmpool_pinned_free(pool, target, stream));
    DONE(cmpool_pinned_free(pool, other, stream));
    DONE(cmpool_free(pool, block, stream));
    pool_end(pool);
}

/* Memory from cuMemAlloc, which is not moved. */
static void segments(void)
{
    enum { COUNT = 16 };
    void *block[COUNT];
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, "backend:malloc"));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            DONE(cmpool_malloc(pool, &block[i], (i % 4 + 1) * MIB, stream));
            gpu_fill(stream, block[i], (i % 4 + 1) * MIB, round * 100 + i);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            gpu_check(stream, block[i], (i % 4 + 1) * MIB, round * 100 + i);
            DONE(cmpool_free(pool, block[i], stream));
        }
    }
    contents_must_be_right();
    pool_end(pool);
}

/* ---- memory for another process -------------------------------------------------------------------------------------------------------
 */

#define SHARED_BYTES (6 * MIB)
enum { SHARED_SEED = 77, ANSWER_SEED = 78 };

/* The other process: this program, started with the descriptor. Looks at the block, then fills it anew. */
static void imported(void)
{
    const char *text = getenv("CMPOOL_GPU_SHARED_FD");
    EXPECT(text, "no descriptor: this case is started by the case exported");
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT(cu.MemImportFromShareableHandle, "the driver has no cuMemImportFromShareableHandle");
    MUST(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)atoi(text), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cu.MemAddressReserve(&address, SHARED_BYTES, 0, 0, 0));
    MUST(cu.MemMap(address, SHARED_BYTES, 0, handle, 0));
    MUST(cu.MemSetAccess(address, SHARED_BYTES, &access, 1));
    CUstream stream = gpu_stream();
    gpu_check(stream, (void *)(uintptr_t)address, SHARED_BYTES, SHARED_SEED);
    contents_must_be_right();
    gpu_fill(stream, (void *)(uintptr_t)address, SHARED_BYTES, ANSWER_SEED);
    MUST(cu.CtxSynchronize());
    MUST(cu.MemUnmap(address, SHARED_BYTES));
    MUST(cu.MemRelease(handle));
}

static void exported(void)
{
    cmpool_t pool;
    void *block;
    int fd, status = -1;
    CUstream stream = gpu_stream();
    const cmpool_request request = {.struct_size = sizeof request, .bytes = SHARED_BYTES, .stream = stream, .flags = CMPOOL_EXPORTABLE};
    if (gpu_simulated) {
        gpu_skip("the simulated device shares no memory with other processes");
        return;
    }
    if (gpu_is_exclusive()) {
        gpu_skip("the device lets no second process in");
        return;
    }
    DONE(pool_make(&pool, ""));
    cmpool_status given = cmpool_malloc_ex(pool, &block, &request);
    if (given == CMPOOL_ERR_UNSUPPORTED) {
        pool_end(pool);
        gpu_skip("the device has no handles for other processes");
        return;
    }
    DONE(given);
    gpu_fill(stream, block, SHARED_BYTES, SHARED_SEED);
    MUST(cu.CtxSynchronize());
    DONE(cmpool_export_fd(pool, block, &fd));
    char number[20];
    int copied = dup(fd); /* without close-on-exec */
    snprintf(number, sizeof number, "%d", copied);
    setenv("CMPOOL_GPU_SHARED_FD", number, 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "check_blocks", "imported", (char *)NULL);
        _exit(126);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    close(copied);
    close(fd);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ended with %d", status);
    gpu_check(stream, block, SHARED_BYTES, ANSWER_SEED);
    contents_must_be_right();
    DONE(cmpool_free(pool, block, stream));
    pool_end(pool);
}

static const gpu_case cases[] = {
    {"sizes", sizes, false},       {"bad_frees", bad_frees, false}, {"moved_pages", moved_pages, false}, {"refusals", refusals, false},
    {"paused", paused, false},     {"regions", regions, false},     {"pinned", pinned, false},           {"segments", segments, false},
    {"exported", exported, false}, {"imported", imported, true},
};
GPU_MAIN(cases)
