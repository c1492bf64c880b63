/*
 * Two devices under PyTorch's functions, which reach each other's memory or do not: copies bring the right bytes, or the driver refuses
 * them and the library has named `backend:malloc`, whose memory the driver copies in any case. Needs the simulated device beside it.
 */
#include "pool_fixture.h"

#include <cudamempool/pytorch.h>
#include <unistd.h>

#define COPY_CALLS(CALL)                                                                   \
    CALL(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    CALL(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream))

#define COPY_DECLARE(name, params) static CUresult(CUDAAPI *name) params;
COPY_CALLS(COPY_DECLARE)
#undef COPY_DECLARE

static int copies_open(void **state)
{
    int failed = sim_test_open(state);
    void *library = failed ? NULL : dlopen(SIMCUDA_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 1;
#define COPY_FIND(name, params) sim_test_find(library, #name, &name);
    COPY_CALLS(COPY_FIND)
#undef COPY_FIND
    return 0;
}

enum { BYTES = 5 << 20 };

static unsigned char pattern[BYTES], seen[BYTES];

static void *take_on(int device)
{
    void *block = cmpool_torch_malloc(BYTES, device, NULL);
    assert_non_null(block);
    return block;
}

/* Blocks on both devices and a copy from the first to the second by each call; what they answered, and what the library wrote to stderr. */
static void copy_between(bool with_peers, const char *options, CUresult codes[2], char *said, size_t room)
{
    CUcontext contexts[2];
    int ends[2], saved = dup(STDERR_FILENO);
    device_start("sim:64MiB,devices=2,content");
    panel.set_feature(SIMCUDA_FEATURE_PEER, with_peers);
    DONE(cmpool_torch_configure(options));
    for (int i = 0; i < 2; i++)
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    CUdeviceptr blocks[2] = {(uintptr_t)take_on(0), (uintptr_t)take_on(1)};
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t length = read(ends[0], said, room - 1);
    close(ends[0]);
    said[length > 0 ? length : 0] = '\0';
    for (int way = 0; way < 2; way++) {
        for (size_t i = 0; i < BYTES; i++)
            pattern[i] = (unsigned char)(i * 31 + (i >> 12) + (size_t)way);
        OK(cuCtxSetCurrent(contexts[0]));
        OK(cuMemcpyHtoD_v2(blocks[0], pattern, BYTES));
        codes[way] = way ? cuMemcpyPeerAsync(blocks[1], contexts[1], blocks[0], contexts[0], BYTES, NULL)
                         : cuMemcpyAsync(blocks[1], blocks[0], BYTES, NULL);
        panel.findings_reset(); /* a refused copy is one */
        OK(cuCtxSynchronize());
        OK(cuCtxSetCurrent(contexts[1]));
        OK(cuMemcpyDtoH_v2(seen, blocks[1], BYTES));
        if (codes[way] == CUDA_SUCCESS)
            assert_memory_equal(seen, pattern, BYTES);
    }
    OK(cuCtxSetCurrent(contexts[0]));
    for (int i = 0; i < 2; i++)
        cmpool_torch_free((void *)(uintptr_t)blocks[i], BYTES, i, NULL);
    DONE(cmpool_torch_close());
    DONE(cmpool_torch_configure(NULL));
    for (int i = 0; i < 2; i++)
        OK(cuDevicePrimaryCtxRelease_v2(i));
    device_end();
}

static void kernels_reach_the_other_device(void **state)
{
    (void)state;
    for (int with_peers = 0; with_peers < 2; with_peers++) {
        device_start("sim:64MiB,devices=2");
        panel.set_feature(SIMCUDA_FEATURE_PEER, with_peers);
        CUstream stream = sim_test_stream();
        void *here = cmpool_torch_malloc(2 * MIB, 0, stream), *there = cmpool_torch_malloc(2 * MIB, 1, NULL);
        assert_true(here && there);
        CUresult code = panel.touch(stream, (uint64_t)(uintptr_t)there, 2 * MIB, 0); /* a kernel of device 0 */
        assert_int_equal(code, with_peers ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
        panel.findings_reset();
        OK(cuCtxSynchronize());
        cmpool_torch_free(here, 2 * MIB, 0, stream);
        cmpool_torch_free(there, 2 * MIB, 1, NULL);
        DONE(cmpool_torch_close());
        device_end();
    }
}

static void copies_with_peers(void **state)
{
    CUresult codes[2];
    char said[512];
    (void)state;
    copy_between(true, NULL, codes, said, sizeof said);
    assert_int_equal(codes[0], CUDA_SUCCESS);
    assert_int_equal(codes[1], CUDA_SUCCESS);
    assert_string_equal(said, "");
}

static void copies_without_peers(void **state)
{
    CUresult codes[2];
    char said[512];
    (void)state;
    copy_between(false, NULL, codes, said, sizeof said);
    assert_int_not_equal(codes[0], CUDA_SUCCESS); /* the one that PyTorch makes; drivers may take the other */
    assert_non_null(strstr(said, "backend:malloc"));
}

static void copies_of_the_drivers_memory(void **state)
{
    CUresult codes[2];
    char said[512];
    (void)state;
    copy_between(false, "backend:malloc", codes, said, sizeof said);
    assert_int_equal(codes[0], CUDA_SUCCESS);
    assert_int_equal(codes[1], CUDA_SUCCESS);
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_reach_the_other_device),
        cmocka_unit_test(copies_with_peers),
        cmocka_unit_test(copies_without_peers),
        cmocka_unit_test(copies_of_the_drivers_memory),
    };
    return cmocka_run_group_tests(tests, copies_open, NULL);
}
