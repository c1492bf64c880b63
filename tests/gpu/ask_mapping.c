/*
 * Questions to the device: what creating, mapping, allowing, unmapping and releasing pages costs, by page and by range, idle, under load
 * and beside a kernel that does not end; whether any of it waits for kernels or slows them; how many pages and mappings a process may have.
 * Part "mapping" of tools/gpu-check.sh.
 */
#include "pages.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_PAGES = 512 };

static CUmemGenericAllocationHandle page[MOST_PAGES];
static double since_us;

static void start_clock(void) { since_us = gpu_now_us(); }

static void tell_cost(const char *what, const char *when, size_t count)
{
    char name[80];
    double us = gpu_now_us() - since_us;
    snprintf(name, sizeof name, "%s, %s", what, when);
    gpu_figure(name, us / (double)count, "us", "each of %zu", count);
}

/* ---- what one call may span -------------------------------------------------------------------------------------------------------------
 */

/* Pages mapped next to each other, one call each: the library allows and unmaps them in runs, and single ones among neighbours. */
static void ranges(void)
{
    enum { PAGES = 8 };
    CUdeviceptr base;
    MUST(cu.MemAddressReserve(&base, PAGES * PAGE, 0, 0, 0));
    for (unsigned i = 0; i < PAGES; i++)
        MUST(page_create(&page[i]));
    MUST(pages_map(base, page, PAGES)); /* allows all in one call */
    CUresult again = page_allow(base + 2 * PAGE, PAGE), middle = cu.MemUnmap(base + 2 * PAGE, PAGE);
    CUresult hole = cu.MemUnmap(base, PAGES * PAGE), back = cu.MemMap(base + 2 * PAGE, PAGE, 0, page[2], 0);
    CUresult mixed = page_allow(base, PAGES * PAGE), part = cu.MemUnmap(base + PAGE, 3 * PAGE),
             rest = cu.MemUnmap(base + 4 * PAGE, 4 * PAGE);
    MUST(cu.MemUnmap(base, PAGE));
    gpu_answer("one page among mapped neighbours", "allow %s, unmap %s, map %s", gpu_code(again), gpu_code(middle), gpu_code(back));
    gpu_answer("a run of pages in one call",
               "unmap of 3 among others %s, of 4 at the end %s; allow, some being allowed, %s; unmap of more than is mapped %s",
               gpu_code(part), gpu_code(rest), gpu_code(mixed), gpu_code(hole));
    EXPECT(again == CUDA_SUCCESS && middle == CUDA_SUCCESS && back == CUDA_SUCCESS && mixed == CUDA_SUCCESS && part == CUDA_SUCCESS &&
               rest == CUDA_SUCCESS,
           "the library makes such calls");
    for (unsigned i = 0; i < PAGES; i++)
        MUST(cu.MemRelease(page[i]));
    MUST(cu.MemAddressFree(base, PAGES * PAGE));
}

/* ---- load ------------------------------------------------------------------------------------------------------------------------------
 */

static CUstream load_stream;
static CUdeviceptr load_block;
static size_t load_bytes;

/* A queue of fills, some tens of milliseconds long on any GPU. */
static void queue_load(void)
{
    for (unsigned i = 0; load_block && i < (gpu_simulated ? 5 : 200); i++)
        gpu_fill(load_stream, (void *)(uintptr_t)load_block, load_bytes, i);
}

static void drain_load(const char *what)
{
    if (load_block && cu.StreamQuery(load_stream) == CUDA_SUCCESS && !gpu_simulated)
        gpu_answer(what, "the load had ended before: the figure is in part one of an idle device");
    if (load_block)
        cu.StreamSynchronize(load_stream);
}

/* ---- costs -----------------------------------------------------------------------------------------------------------------------------
 */

static void costs(const char *when)
{
    size_t count = pages_to_use(gpu_simulated ? 32 : MOST_PAGES);
    CUdeviceptr base;
    if (count < 16) {
        gpu_skip("too little free memory: %zu MiB", gpu_free_bytes() >> 20);
        return;
    }
    queue_load();
    start_clock();
    for (size_t i = 0; i < count; i++)
        MUST(page_create(&page[i]));
    tell_cost("create a page", when, count);
    drain_load("create a page");
    start_clock();
    MUST(cu.MemAddressReserve(&base, count * PAGE, 0, 0, 0));
    tell_cost("reserve addresses", when, 1);

    for (size_t run = 1; run <= count; run = run * 16 <= count || run == count ? run * 16 : count) {
        char name[60];
        queue_load();
        start_clock();
        for (size_t i = 0; i < count; i++)
            MUST(cu.MemMap(base + i * PAGE, PAGE, 0, page[i], 0));
        if (run == 1)
            tell_cost("map a page", when, count);
        start_clock();
        size_t calls = 0;
        for (size_t i = 0; i < count; i += run, calls++)
            MUST(page_allow(base + i * PAGE, (i + run < count ? run : count - i) * PAGE));
        snprintf(name, sizeof name, "allow access to %zu pages", run);
        tell_cost(name, when, calls);
        start_clock();
        for (size_t i = 0; i < count; i += run)
            MUST(cu.MemUnmap(base + i * PAGE, (i + run < count ? run : count - i) * PAGE));
        snprintf(name, sizeof name, "unmap %zu pages", run);
        tell_cost(name, when, calls);
        drain_load(name);
    }

    queue_load();
    start_clock();
    for (size_t i = 0; i < count; i++)
        MUST(cu.MemRelease(page[i]));
    tell_cost("release a page", when, count);
    drain_load("release a page");
    MUST(cu.MemAddressFree(base, count * PAGE));
}

static void idle(void) { costs("idle"); }

static void under_load(void)
{
    load_bytes = gpu_simulated ? MIB : gpu_free_bytes() / 8 < GIB ? gpu_free_bytes() / 8 / 512 * 512 : GIB;
    load_stream = gpu_stream();
    MUST(cu.MemAlloc(&load_block, load_bytes));
    costs("under load");
    MUST(cu.CtxSynchronize());
    MUST(cu.MemFree(load_block));
    load_block = 0;
}

/* ---- waiting for kernels, and slowing them
 * ------------------------------------------------------------------------------------------------ */

/* Every call once, each beside a kernel of its own that gives up after 0.1 s: a call that took as long has waited for it. */
static void beside_a_kernel(void)
{
    CUstream stream = gpu_stream();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0, block = 0;
#define BESIDE(name, call)                                                                                          \
    do {                                                                                                            \
        int gate_ = gpu_gate_close(stream, UINT64_C(100000000));                                                    \
        double start_ = gpu_now_us();                                                                               \
        CUresult result_ = (call);                                                                                  \
        double us_ = gpu_now_us() - start_;                                                                         \
        gpu_gate_open(gate_);                                                                                       \
        MUST(cu.StreamSynchronize(stream));                                                                         \
        EXPECT(result_ == CUDA_SUCCESS, "%s gave %s", name, gpu_code(result_));                                     \
        gpu_figure(name " beside a kernel", us_, "us", gpu_gate_gave_up(gate_) ? "waits for it" : "does not wait"); \
    } while (0)
    BESIDE("cuMemCreate", page_create(&handle));
    BESIDE("cuMemAddressReserve", cu.MemAddressReserve(&base, 2 * PAGE, 0, 0, 0));
    BESIDE("cuMemMap", cu.MemMap(base, PAGE, 0, handle, 0));
    BESIDE("cuMemSetAccess", page_allow(base, PAGE));
    BESIDE("cuMemMap of an alias", cu.MemMap(base + PAGE, PAGE, 0, handle, 0));
    BESIDE("cuMemSetAccess of an alias", page_allow(base + PAGE, PAGE));
    BESIDE("cuMemUnmap of an alias", cu.MemUnmap(base + PAGE, PAGE));
    BESIDE("cuMemUnmap", cu.MemUnmap(base, PAGE));
    BESIDE("cuMemRelease", cu.MemRelease(handle));
    BESIDE("cuMemAddressFree", cu.MemAddressFree(base, 2 * PAGE));
    BESIDE("cuMemAlloc of 64 MiB", cu.MemAlloc(&block, 64 * MIB));
    BESIDE("cuMemFree of 64 MiB", cu.MemFree(block));
#undef BESIDE
}

static void slowing_kernels(void)
{
    enum { PAGES = 16 };
    const unsigned fills = gpu_simulated ? 10 : 400;
    CUdeviceptr base, block;
    size_t bytes = gpu_simulated ? MIB : 256 * MIB, rounds = 0;
    CUstream stream = gpu_stream();
    double start, alone, beside;
    if (pages_to_use(PAGES + 256) < PAGES + 256 && !gpu_simulated) {
        gpu_skip("too little free memory: %zu MiB", gpu_free_bytes() >> 20);
        return;
    }
    MUST(cu.MemAlloc(&block, bytes));
    MUST(cu.MemAddressReserve(&base, PAGES * PAGE, 0, 0, 0));
    for (unsigned i = 0; i < PAGES; i++)
        MUST(page_create(&page[i]));
    for (int turn = 0; turn < 2; turn++) { /* the first one warms up */
        start = gpu_now_us();
        for (unsigned i = 0; i < fills; i++)
            gpu_fill(stream, (void *)(uintptr_t)block, bytes, i);
        MUST(cu.StreamSynchronize(stream));
        alone = gpu_now_us() - start;
    }
    start = gpu_now_us();
    for (unsigned i = 0; i < fills; i++)
        gpu_fill(stream, (void *)(uintptr_t)block, bytes, i);
    do {
        MUST(pages_map(base, page, PAGES));
        MUST(cu.MemUnmap(base, PAGES * PAGE));
        rounds++;
    } while (cu.StreamQuery(stream) == CUDA_ERROR_NOT_READY && rounds < 100000);
    MUST(cu.StreamSynchronize(stream));
    beside = gpu_now_us() - start;
    gpu_figure("kernels beside mapping and unmapping", beside / alone, "x",
               "time of %u fills of %zu MiB, %zu times %d pages mapped, allowed and unmapped meanwhile, over the same alone", fills,
               bytes >> 20, rounds, PAGES);
    for (unsigned i = 0; i < PAGES; i++)
        MUST(cu.MemRelease(page[i]));
    MUST(cu.MemAddressFree(base, PAGES * PAGE));
    MUST(cu.MemFree(block));
}

/* ---- many ------------------------------------------------------------------------------------------------------------------------------
 */

/* As a pool on a large card has them: half of what is free, 40,000 at most, 10 seconds at most. */
static void many_pages(void)
{
    size_t most = gpu_free_bytes() / 2 / PAGE, count = 0;
    double start = gpu_now_us(), hundred = start, first = 0, last = 0;
    most = gpu_simulated ? 200 : most < 40000 ? most : 40000;
    CUmemGenericAllocationHandle *handle = calloc(most + 1, sizeof *handle);
    EXPECT(handle, "no host memory");
    while (count < most && gpu_now_us() - start < 10e6) {
        CUresult code = page_create(&handle[count]);
        if (code != CUDA_SUCCESS) {
            gpu_answer("many pages end", "with %s after %zu", gpu_code(code), count);
            break;
        }
        if (++count % 100 == 0) {
            last = (gpu_now_us() - hundred) / 100;
            first = first > 0 ? first : last;
            hundred = gpu_now_us();
        }
    }
    gpu_figure("create many pages", (gpu_now_us() - start) * 1e-6, "s", "%zu pages; the first hundred %.2f us each, the last %.2f us",
               count, first, last);
    start = gpu_now_us();
    for (size_t i = 0; i < count; i++)
        MUST(cu.MemRelease(handle[i]));
    gpu_figure("release many pages", (gpu_now_us() - start) * 1e-6, "s", "%zu pages", count);
    free(handle);
}

/* One page at as many addresses as the driver lets it have, 600,000 at most, 6 seconds at most. */
static void many_mappings(void)
{
    enum { AT_ONCE = 1000 };
    size_t most = gpu_simulated ? 2 * AT_ONCE : 600 * AT_ONCE, count = 0;
    CUmemGenericAllocationHandle handle;
    CUresult code = CUDA_SUCCESS;
    CUdeviceptr base = 0;
    double start = gpu_now_us(), last = 0;
    MUST(page_create(&handle));
    while (most > AT_ONCE && cu.MemAddressReserve(&base, most * PAGE, 0, 0, 0) != CUDA_SUCCESS)
        most = most / 2 / AT_ONCE * AT_ONCE;
    EXPECT(most > AT_ONCE, "no addresses to map at");
    while (count < most && code == CUDA_SUCCESS && gpu_now_us() - start < 6e6) {
        double turn = gpu_now_us();
        size_t mapped = 0;
        while (mapped < AT_ONCE && code == CUDA_SUCCESS) {
            code = cu.MemMap(base + (count + mapped) * PAGE, PAGE, 0, handle, 0);
            mapped += code == CUDA_SUCCESS;
        }
        if (code == CUDA_SUCCESS)
            code = page_allow(base + count * PAGE, AT_ONCE * PAGE);
        count += mapped;
        last = (gpu_now_us() - turn) / AT_ONCE;
    }
    if (code == CUDA_SUCCESS)
        gpu_figure("mappings of a process", (double)count, "mappings", "no end was reached in %.1f s; the last cost %.2f us each",
                   (gpu_now_us() - start) * 1e-6, last);
    else
        gpu_figure("mappings of a process", (double)count, "mappings", "then %s; the last cost %.2f us each", gpu_code(code), last);
    start = gpu_now_us();
    for (size_t done = 0; done < count; done += AT_ONCE)
        MUST(cu.MemUnmap(base + done * PAGE, (done + AT_ONCE < count ? AT_ONCE : count - done) * PAGE));
    gpu_figure("unmap them", (gpu_now_us() - start) / (double)(count ? count : 1), "us", "each, in calls for %d", AT_ONCE);
    MUST(cu.MemAddressFree(base, most * PAGE));
    MUST(cu.MemRelease(handle));
}

static const gpu_case cases[] = {
    {"ranges", ranges, false},
    {"idle", idle, false},
    {"under_load", under_load, false},
    {"beside_a_kernel", beside_a_kernel, false},
    {"slowing_kernels", slowing_kernels, false},
    {"many_pages", many_pages, false},
    {"many_mappings", many_mappings, false},
};
GPU_MAIN(cases)
