/*
 * Programs with kernels of their own: refused by name unless the device says kernels=accept; then images load, kernels are found, and a
 * launch is ordered work that nobody executes. The rules on arguments are those of cuda.h, "Module Management" and "Execution Control".
 */
#include "test_rt_driver.h"

#include "runtime/sim_runtime_abi.h"

#define ACCEPTING "sim:64MiB,kernels=accept,order=lazy"

static CUresult (*unload_library)(CUlibrary library);
static CUresult (*launch_configured)(const CUlaunchConfig *how, CUfunction function, void **arguments, void **extra);
static CUresult (*library_module)(CUmodule *module, CUlibrary library);
static CUresult (*module_function)(CUfunction *function, CUmodule module, const char *name);

static void find_more(void)
{
    TEST_ASSIGN(unload_library, test_symbol("cuLibraryUnload"));
    TEST_ASSIGN(launch_configured, test_symbol("cuLaunchKernelEx"));
    TEST_ASSIGN(library_module, test_symbol("cuLibraryGetModule"));
    TEST_ASSIGN(module_function, test_symbol("cuModuleGetFunction"));
}

static CUresult load(CUlibrary *library) { return cu.LibraryLoadData(library, "image", NULL, NULL, 0, NULL, NULL, 0); }

static CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream)
{
    return cu.LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, NULL, NULL);
}

static void refused_by_name(void **state)
{
    (void)state;
    start("sim:64MiB");
    find_more();
    CUlibrary library = NULL;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, load(&library));
    assert_null(library);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, launch_configured(NULL, NULL, NULL, NULL));
    assert_int_equal(panel.findings(SIMCUDA_UNSUPPORTED_CALL), 2);
    assert_non_null(strstr(panel.finding_text(0), "cuLibraryLoadData"));
    assert_non_null(strstr(panel.finding_text(1), "cuLaunchKernelEx"));
}

static void words(void **state)
{
    (void)state;
    start("sim:64MiB");
    char why[200];
    assert_int_equal(panel.configure("sim:64MiB,kernels=run", why, sizeof why), -1);
    assert_non_null(strstr(why, "kernels=accept"));
    assert_int_equal(panel.configure("sim:64MiB,kernels=refuse", why, sizeof why), 0);
}

static void accepted(void **state)
{
    (void)state;
    start(ACCEPTING);
    find_more();
    CUlibrary library;
    CUmodule module;
    CUkernel kernel, same;
    CUfunction function;
    OK(load(&library));
    OK(cu.LibraryGetKernel(&kernel, library, "add"));
    OK(cu.LibraryGetKernel(&same, library, "add"));
    assert_ptr_equal(kernel, same);
    OK(library_module(&module, library));
    OK(module_function(&function, module, "add"));
    assert_ptr_equal(function, kernel);
    CUstream stream = new_stream();
    OK(launch(function, 1, 256, stream));
    GIVES(CUDA_ERROR_NOT_READY, cu.StreamQuery(stream)); /* it is work */
    OK(cu.StreamSynchronize(stream));
    OK(cu.StreamQuery(stream));
    const CUlaunchConfig how = {2, 1, 1, 32, 32, 1, 1024, stream, NULL, 0};
    OK(launch_configured(&how, function, NULL, NULL));
    assert_int_equal(panel.calls_of("cuLaunchKernel"), 1);
    assert_int_equal(panel.calls_of("cuLaunchKernelEx"), 1);
    assert_int_equal(panel.findings(SIMCUDA_UNSUPPORTED_CALL), 0);

    GIVES(CUDA_ERROR_INVALID_VALUE, launch(function, 0, 256, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, launch(function, 1, 1025, stream));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch(NULL, 1, 256, stream));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch((CUfunction)(void *)stream, 1, 256, stream));
    OK(unload_library(library));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch(function, 1, 256, stream));
    assert_int_equal(panel.findings(SIMCUDA_USE_AFTER_DESTROY), 1);
}

static void attributes(void **state)
{
    (void)state;
    start(ACCEPTING);
    CUlibrary library;
    CUkernel kernel;
    int value = 0, blocks = 0;
    OK(load(&library));
    OK(cu.LibraryGetKernel(&kernel, library, "add"));
    CUfunction function = (CUfunction)(void *)kernel;
    OK(cu.FuncGetAttribute(&value, 0, function));
    assert_int_equal(value, 1024);
    OK(cu.FuncSetAttribute(function, 8, 100 << 10));
    OK(cu.FuncGetAttribute(&value, 8, function));
    assert_int_equal(value, 100 << 10);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.FuncSetAttribute(function, 8, 1 << 20));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.FuncSetAttribute(function, 0, 512)); /* read only */
    OK(cu.OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 1024, 0, 0));
    assert_int_equal(blocks, 2);
    OK(cu.OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 128, 100 << 10, 0));
    assert_int_equal(blocks, 2);
}

static void captured(void **state)
{
    (void)state;
    start(ACCEPTING);
    CUlibrary library;
    CUkernel kernel;
    CUgraph graph;
    CUgraphNode node;
    CUgraphNodeType type;
    size_t count = 1;
    CUstream stream = new_stream();
    OK(load(&library));
    OK(cu.LibraryGetKernel(&kernel, library, "add"));
    OK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(launch((CUfunction)(void *)kernel, 1, 32, stream));
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphGetNodes(graph, &node, &count));
    assert_int_equal(count, 1);
    OK(cu.GraphNodeGetType(node, &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);
}

/* What the code does that a compiler makes of a program with kernels. */
static void through_the_runtime(void **state)
{
    (void)state;
    start(ACCEPTING);
    void *library = dlopen(SIMCUDA_DIR "/libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    struct dim3 grid = {4, 1, 1}, block = {128, 1, 1}, grid_back, block_back;
    size_t shared_back = 0;
    CUstream stream = new_stream(), stream_back = NULL;
    unsigned (*push)(struct dim3, struct dim3, size_t, CUstream);
    cudaError_t (*pop)(struct dim3 *, struct dim3 *, size_t *, CUstream *), (*find)(CUkernel *, const void *);
    cudaError_t (*run)(const void *, struct dim3, struct dim3, void **, size_t, CUstream);
    cudaError_t (*ask)(struct cudaFuncAttributes *, const void *);
    TEST_ASSIGN(push, dlsym(library, "__cudaPushCallConfiguration"));
    TEST_ASSIGN(pop, dlsym(library, "__cudaPopCallConfiguration"));
    TEST_ASSIGN(find, dlsym(library, "__cudaGetKernel"));
    TEST_ASSIGN(run, dlsym(library, "cudaLaunchKernel"));
    TEST_ASSIGN(ask, dlsym(library, "cudaFuncGetAttributes"));
    assert_int_equal(push(grid, block, 256, stream), 0);
    OK(pop(&grid_back, &block_back, &shared_back, &stream_back));
    assert_int_equal(grid_back.x, 4);
    assert_int_equal(block_back.x, 128);
    assert_int_equal(shared_back, 256);
    assert_ptr_equal(stream_back, stream);
    GIVES(cudaErrorInvalidValue, pop(&grid_back, &block_back, &shared_back, &stream_back));
    CUkernel kernel = NULL;
    OK(find(&kernel, &state));
    assert_non_null(kernel);
    OK(run(&state, grid, block, NULL, 0, stream));
    assert_int_equal(panel.calls_of("cuLaunchKernel"), 1);
    GIVES(CUDA_ERROR_NOT_READY, cu.StreamQuery(stream));
    struct cudaFuncAttributes attributes;
    OK(ask(&attributes, &state));
    assert_int_equal(attributes.maxThreadsPerBlock, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_by_name), cmocka_unit_test(words),    cmocka_unit_test(accepted),
        cmocka_unit_test(attributes),      cmocka_unit_test(captured), cmocka_unit_test(through_the_runtime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
