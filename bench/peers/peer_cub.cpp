/*
 * CUB's caching device allocator. As it is by default it keeps no block above 2 MiB and 6 MiB in all; PEER_GROWTH 2 makes it keep blocks of
 * every size in powers of two.
 */
#include "bench.h"

#include <cub/util_allocator.cuh>

namespace
{
cub::CachingDeviceAllocator *cache;

int open_allocator()
{
#ifdef PEER_GROWTH
    cache = new cub::CachingDeviceAllocator(PEER_GROWTH, 9, cub::CachingDeviceAllocator::INVALID_BIN,
                                            cub::CachingDeviceAllocator::INVALID_SIZE);
#else
    cache = new cub::CachingDeviceAllocator();
#endif
    return 0;
}

void *take(size_t bytes, void *stream)
{
    void *block = nullptr;
    return cache->DeviceAllocate(0, &block, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess ? block : nullptr;
}

void give(void *block, size_t, void *) { cache->DeviceFree(0, block); }

const bench_allocator allocator = {PEER_NAME, PEER_ABOUT, false, open_allocator, take, give, nullptr, nullptr};
} // namespace

extern "C" __attribute__((visibility("default"))) const bench_allocator *bench_peer() { return &allocator; }
