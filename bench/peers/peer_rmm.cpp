/* RMM's pool or arena (PEER_RESOURCE) over cudaMalloc, from the headers of a release that has all of it in headers. */
#include "bench.h"

#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

namespace
{
rmm::mr::cuda_memory_resource upstream;
rmm::mr::device_memory_resource *resource;

int open_allocator()
{
    constexpr size_t start = size_t{64} << 20; /* grows from there, as everybody else does from nothing */
#if PEER_ARENA
    resource = new rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>(&upstream);
    (void)start;
#else
    resource = new rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>(&upstream, start);
#endif
    return 0;
}

void *take(size_t bytes, void *stream)
{
    try {
        return resource->allocate(bytes, rmm::cuda_stream_view(static_cast<cudaStream_t>(stream)));
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void give(void *block, size_t bytes, void *stream)
{
    resource->deallocate(block, bytes, rmm::cuda_stream_view(static_cast<cudaStream_t>(stream)));
}

const bench_allocator allocator = {PEER_NAME, PEER_ABOUT, true, open_allocator, take, give, nullptr, nullptr};
} // namespace

extern "C" __attribute__((visibility("default"))) const bench_allocator *bench_peer() { return &allocator; }
