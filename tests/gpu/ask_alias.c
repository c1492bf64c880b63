/*
 * Questions to the device about one page at two addresses, on which the library rests: whether what is written through one is read through
 * the other by later kernels, copies, graphs and dependent launches; whether one may be unmapped while kernels use the other; what it
 * costs; what the driver says of such addresses. A case fails where the library could not work. Part "alias" of tools/gpu-check.sh.
 */
#include "pages.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PAGES = 128 };
static size_t pages = 8; /* at each of the two addresses */
#define BYTES (pages * PAGE)

typedef struct twice { /* pages at two addresses, at the second one in the opposite order */
    CUmemGenericAllocationHandle page[MOST_PAGES], reversed[MOST_PAGES];
    CUdeviceptr one, other;
} twice;

static const void *at(CUdeviceptr address) { return (const void *)(uintptr_t)address; }

static CUresult make(twice *t)
{
    CUresult code = CUDA_SUCCESS;
    for (size_t i = 0; i < pages && code == CUDA_SUCCESS; i++) {
        code = page_create(&t->page[i]);
        t->reversed[pages - 1 - i] = t->page[i];
    }
    if (code == CUDA_SUCCESS)
        code = cu.MemAddressReserve(&t->one, BYTES, 0, 0, 0);
    if (code == CUDA_SUCCESS)
        code = cu.MemAddressReserve(&t->other, BYTES, 0, 0, 0);
    if (code == CUDA_SUCCESS)
        code = pages_map(t->one, t->page, pages);
    return code == CUDA_SUCCESS ? pages_map(t->other, t->page, pages) : code;
}

static CUresult end(twice *t)
{
    CUresult code = cu.MemUnmap(t->one, BYTES);
    if (code == CUDA_SUCCESS)
        code = cu.MemUnmap(t->other, BYTES);
    for (size_t i = 0; i < pages && code == CUDA_SUCCESS; i++)
        code = cu.MemRelease(t->page[i]);
    if (code == CUDA_SUCCESS)
        code = cu.MemAddressFree(t->one, BYTES);
    return code == CUDA_SUCCESS ? cu.MemAddressFree(t->other, BYTES) : code;
}

static unsigned rounds(void) { return gpu_simulated ? 2 : 1000; }

/* What later work reads must be what was written: the case fails if not. */
#define TELL(question)                                                                                                         \
    do {                                                                                                                       \
        uint64_t wrong_ = gpu_wrong_words();                                                                                   \
        EXPECT(wrong_ == 0, "%llu words of %u rounds of %zu MiB were old", (unsigned long long)wrong_, rounds(), BYTES >> 20); \
        gpu_answer(question, "coherent: no old word in %u rounds of %zu MiB", rounds(), BYTES >> 20);                          \
    } while (0)

static void kernels_of_a_stream(void)
{
    twice t;
    CUstream stream = gpu_stream();
    MUST(make(&t));
    for (uint32_t i = 0; i < rounds(); i++) {
        gpu_fill(stream, at(t.one), BYTES, 2 * i);
        gpu_check(stream, at(t.other), BYTES, 2 * i);
        gpu_fill(stream, at(t.other), BYTES, 2 * i + 1);
        gpu_check(stream, at(t.one), BYTES, 2 * i + 1);
    }
    TELL("alias: kernels of one stream");
    MUST(end(&t));
}

static void kernels_of_two_streams(void)
{
    twice t;
    CUstream first = gpu_stream(), second = gpu_stream();
    CUevent written = gpu_event(), looked_at = gpu_event();
    MUST(make(&t));
    for (uint32_t i = 0; i < rounds(); i++) {
        gpu_fill(first, at(t.one), BYTES, i);
        MUST(cu.EventRecord(written, first));
        MUST(cu.StreamWaitEvent(second, written, 0));
        gpu_check(second, at(t.other), BYTES, i);
        MUST(cu.EventRecord(looked_at, second));
        MUST(cu.StreamWaitEvent(first, looked_at, 0));
    }
    TELL("alias: kernels of two streams, an event between them");
    MUST(end(&t));
}

static void copies(void)
{
    twice t;
    CUstream stream = gpu_stream();
    CUdeviceptr third;
    MUST(make(&t));
    MUST(cu.MemAlloc(&third, BYTES));
    for (uint32_t i = 0; i < rounds(); i++) {
        gpu_fill(stream, at(third), BYTES, i);
        MUST(cu.MemcpyDtoDAsync(t.one, third, BYTES, stream));
        gpu_check(stream, at(t.other), BYTES, i);
        gpu_fill(stream, at(t.other), BYTES, ~i);
        MUST(cu.MemcpyDtoDAsync(third, t.one, BYTES, stream));
        gpu_check(stream, at(third), BYTES, ~i);
    }
    TELL("alias: copies");
    MUST(cu.MemFree(third));
    MUST(end(&t));
}

/* A captured address and its alias, launched often. */
static void graphs(void)
{
    twice t;
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream = gpu_stream();
    MUST(make(&t));
    MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    gpu_fill(stream, at(t.one), BYTES, 5);
    gpu_check(stream, at(t.other), BYTES, 5);
    gpu_fill(stream, at(t.other), BYTES, 6);
    gpu_check(stream, at(t.one), BYTES, 6);
    MUST(cu.StreamEndCapture(stream, &graph));
    MUST(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    for (uint32_t i = 0; i < rounds(); i++)
        MUST(cu.GraphLaunch(exec, stream));
    TELL("alias: kernels of a graph");
    MUST(cu.GraphExecDestroy(exec));
    MUST(cu.GraphDestroy(graph));
    MUST(end(&t));
}

static void dependent_launches(void)
{
    static const char question[] = "alias: programmatic dependent launches";
    twice t;
    CUstream stream = gpu_stream();
    MUST(make(&t));
    gpu_fill(stream, at(t.one), BYTES, 1);
    if (!gpu_dependent_launch(stream, at(t.one), at(t.other), BYTES, 2, false)) {
        MUST(cu.StreamSynchronize(stream));
        gpu_no_answer(question, "compute capability 9.0 and a driver for CUDA 11.8 are wanted, and no simulation");
    } else {
        bool early = gpu_wrong_words() > 0;
        for (uint32_t i = 0; i < rounds(); i++)
            gpu_dependent_launch(stream, at(t.one), at(t.other), BYTES, i + 3, true);
        TELL(question);
        gpu_answer("a dependent kernel that does not wait", early ? "starts before the first has written" : "did not start early here");
    }
    MUST(end(&t));
}

/* The old address goes, and comes, while a kernel stands and others wait for it that use the new one. */
static void unmapped_beside(void)
{
    twice t;
    bool waits = false;
    CUstream stream = gpu_stream();
    MUST(make(&t));
    for (uint32_t i = 0; i < (gpu_simulated ? 2 : 20); i++) {
        gpu_fill(stream, at(t.other), BYTES, ~i);
        MUST(cu.StreamSynchronize(stream));
        int gate = gpu_gate_close(stream, UINT64_C(100000000));
        gpu_fill(stream, at(t.one), BYTES, i);
        gpu_check(stream, at(t.one), BYTES, i);
        MUST(cu.MemUnmap(t.other, BYTES));
        if (i % 2)
            MUST(pages_map(t.other, t.page, pages));
        gpu_gate_open(gate);
        MUST(cu.StreamSynchronize(stream));
        waits |= gpu_gate_gave_up(gate);
        if (i % 2 == 0)
            MUST(pages_map(t.other, t.page, pages));
        gpu_check(stream, at(t.other), BYTES, i);
    }
    uint64_t wrong = gpu_wrong_words();
    EXPECT(wrong == 0, "%llu words were wrong", (unsigned long long)wrong);
    gpu_answer("alias: one address unmapped while kernels use the other", "right contents; the unmap %s",
               waits ? "waits for them" : "does not wait");
    MUST(end(&t));
}

/* ---- what it costs
 * ------------------------------------------------------------------------------------------------------------------------ */

static double gigabytes_per_second(CUstream stream, CUdeviceptr address, CUdeviceptr alternate)
{
    const unsigned turns = gpu_simulated ? 2 : 1000;
    double start = 0;
    for (unsigned i = 0; i < turns + turns / 10; i++) {
        if (i == turns / 10) {
            cu.StreamSynchronize(stream);
            start = gpu_now_us();
        }
        gpu_fill(stream, at(i % 2 ? alternate : address), BYTES, i);
    }
    cu.StreamSynchronize(stream);
    return (double)BYTES * turns / (gpu_now_us() - start) * 1e-3;
}

static void bandwidth(void)
{
    twice t;
    CUdeviceptr plain, shuffled;
    CUstream stream = gpu_stream();
    pages = pages_to_use(gpu_simulated ? 8 : MOST_PAGES); /* more than a cache holds */
    MUST(make(&t));
    MUST(cu.MemAlloc(&plain, BYTES));
    MUST(cu.MemAddressReserve(&shuffled, BYTES, 0, 0, 0));
    MUST(pages_map(shuffled, t.reversed, pages));
    gpu_figure("fill cuMemAlloc memory", gigabytes_per_second(stream, plain, plain), "GB/s", "%zu MiB over and over", BYTES >> 20);
    gpu_figure("fill mapped pages", gigabytes_per_second(stream, t.one, t.one), "GB/s", "all of them mapped three times");
    gpu_figure("fill mapped pages, at two addresses by turns", gigabytes_per_second(stream, t.one, t.other), "GB/s", "in the same order");
    gpu_figure("fill mapped pages in another order", gigabytes_per_second(stream, shuffled, shuffled), "GB/s", "mapped three times");
    MUST(cu.MemUnmap(shuffled, BYTES));
    MUST(cu.MemAddressFree(shuffled, BYTES));
    MUST(cu.MemFree(plain));
    MUST(end(&t));
    pages = 8;
}

/* ---- what the driver says of such addresses
 * ------------------------------------------------------------------------------------------------ */

static void identity(void)
{
    twice t;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0, range = 0;
    CUcontext context = (CUcontext)1;
    size_t bytes = 0, range_bytes = 0;
    unsigned long long buffer[2] = {0, 0};
    MUST(make(&t));
    CUresult code = cu.MemGetAddressRange(&base, &bytes, t.one + PAGE + 512);
    gpu_answer("cuMemGetAddressRange of mapped pages", "%s: base + %lld, %zu MiB of a reservation of %zu MiB in pages of 2 MiB",
               gpu_code(code), code == CUDA_SUCCESS ? (long long)(base - t.one) : 0, bytes >> 20, BYTES >> 20);
    code = cu.PointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, t.one);
    gpu_answer("context of mapped pages", "%s: %s", gpu_code(code),
               context == gpu_context ? "the primary one"
               : context              ? "another"
                                      : "none");
    code = cu.PointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, t.one + PAGE);
    CUresult size_code = cu.PointerGetAttribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, t.one + PAGE);
    gpu_answer("range of mapped pages", "start %s, size %s: %s, %zu MiB", gpu_code(code), gpu_code(size_code),
               range == t.one          ? "the reservation"
               : range == t.one + PAGE ? "the page"
                                       : "something else",
               range_bytes >> 20);
    code = cu.PointerGetAttribute(&buffer[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, t.one);
    size_code = cu.PointerGetAttribute(&buffer[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, t.other);
    gpu_answer("buffer number of two addresses of a page", "%s, %s: %s", gpu_code(code), gpu_code(size_code),
               buffer[0] == buffer[1] ? "the same" : "two numbers");
    code = cu.MemRetainAllocationHandle ? cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)t.other) : CUDA_ERROR_NOT_SUPPORTED;
    gpu_answer("cuMemRetainAllocationHandle of an alias", "%s: %s handle", gpu_code(code),
               handle == t.page[0] ? "the page's own" : "another");
    if (code == CUDA_SUCCESS)
        MUST(cu.MemRelease(handle));
    MUST(end(&t));
}

/* Descriptors for network cards and IPC: one page, pages next to each other, and their aliases. */
static void descriptors(void)
{
    static const char question[] = "dma-buf descriptors of mapped pages";
    twice t;
    int rdma = 0, fd = -1;
    CUipcMemHandle ipc;
    CUresult code[3];
    MUST(make(&t));
    CUresult asked = cu.PointerGetAttribute(&rdma, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, t.one);
    gpu_answer("GPUDirect RDMA of mapped pages",
               "%s: capable %d; device: with mapped pages %d, dma-buf %d. That a network card reaches an "
               "alias is not tried",
               gpu_code(asked), rdma, gpu_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
               gpu_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
    if (cu.MemGetHandleForAddressRange && gpu_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) && !gpu_simulated) {
        const struct {
            CUdeviceptr address;
            size_t bytes;
        } range[3] = {{t.one, PAGE}, {t.one, BYTES}, {t.other, PAGE}};
        for (unsigned i = 0; i < 3; i++) {
            code[i] = cu.MemGetHandleForAddressRange(&fd, range[i].address, range[i].bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
            if (code[i] == CUDA_SUCCESS)
                close(fd);
        }
        gpu_answer(question, "a page %s, %zu pages %s, an alias %s", gpu_code(code[0]), pages, gpu_code(code[1]), gpu_code(code[2]));
    } else {
        gpu_no_answer(question, "the device or the driver has none");
    }
    gpu_answer("cuIpcGetMemHandle of mapped pages", "%s", gpu_code(cu.IpcGetMemHandle(&ipc, t.one)));
    MUST(end(&t));
}

static const gpu_case cases[] = {
    {"kernels_of_a_stream", kernels_of_a_stream, false},
    {"kernels_of_two_streams", kernels_of_two_streams, false},
    {"copies", copies, false},
    {"graphs", graphs, false},
    {"dependent_launches", dependent_launches, false},
    {"unmapped_beside", unmapped_beside, false},
    {"bandwidth", bandwidth, false},
    {"identity", identity, false},
    {"descriptors", descriptors, false},
};
GPU_MAIN(cases)
