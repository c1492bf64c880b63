/*
 * UMF's disjoint pool with its default parameters over its CUDA provider. It knows no streams: what is given back is handed out again at
 * once, and the program has to wait before it frees; nobody waits here.
 */
#include "bench.h"

#include <cstdio>
#include <umf/memory_pool.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>

extern "C" int cuCtxGetCurrent(void **context);

namespace
{
umf_memory_pool_handle_t pool;

int open_allocator()
{
    umf_cuda_memory_provider_params_handle_t provider_parameters;
    umf_disjoint_pool_params_handle_t pool_parameters;
    umf_memory_provider_handle_t provider;
    void *context = nullptr;
    cuCtxGetCurrent(&context);
    bool fine = umfCUDAMemoryProviderParamsCreate(&provider_parameters) == UMF_RESULT_SUCCESS &&
                umfCUDAMemoryProviderParamsSetContext(provider_parameters, context) == UMF_RESULT_SUCCESS &&
                umfCUDAMemoryProviderParamsSetDevice(provider_parameters, 0) == UMF_RESULT_SUCCESS &&
                umfCUDAMemoryProviderParamsSetMemoryType(provider_parameters, UMF_MEMORY_TYPE_DEVICE) == UMF_RESULT_SUCCESS &&
                umfMemoryProviderCreate(umfCUDAMemoryProviderOps(), provider_parameters, &provider) == UMF_RESULT_SUCCESS &&
                umfDisjointPoolParamsCreate(&pool_parameters) == UMF_RESULT_SUCCESS &&
                umfPoolCreate(umfDisjointPoolOps(), provider, pool_parameters, 0, &pool) == UMF_RESULT_SUCCESS;
    if (!fine)
        std::fprintf(stderr, "bench: UMF made no pool\n");
    return fine ? 0 : 3;
}

void *take(size_t bytes, void *) { return umfPoolMalloc(pool, bytes); }

void give(void *block, size_t, void *) { umfPoolFree(pool, block); }

const bench_allocator allocator = {PEER_NAME, PEER_ABOUT, true, open_allocator, take, give, nullptr, nullptr};
} // namespace

extern "C" __attribute__((visibility("default"))) const bench_allocator *bench_peer() { return &allocator; }
