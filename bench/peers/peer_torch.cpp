/*
 * PyTorch's caching allocator, as it lies in libc10_cuda of a CUDA build. Its question for the current device, one for each allocation, is
 * answered here at once: a runtime answers it in nanoseconds too, while the simulated one counts, locks and reads clocks for it.
 */
#include "bench.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define INIT_PEERS() c10::cuda::detail::init_p2p_access_cache(1) /* expandable segments ask it */
#else
#define INIT_PEERS()
#endif

namespace cca = c10::cuda::CUDACachingAllocator;

namespace c10::cuda::_internal
{ /* exported, in no header */
void setHasPrimaryContext(bool (*ask)(DeviceIndex));
}

extern "C" __attribute__((visibility("default"))) cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

namespace
{
bool has_context(c10::DeviceIndex) { return true; }

int open_allocator()
{
    c10::cuda::_internal::setHasPrimaryContext(has_context);
    INIT_PEERS();
    cca::init(1);
    return 0;
}

void *take(size_t bytes, void *stream)
{
    try {
        return cca::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
    } catch (const c10::OutOfMemoryError &) {
        return nullptr;
    }
}

void give(void *block, size_t, void *) { cca::raw_delete(block); }

void use(void *block, void *stream)
{
    c10::DataPtr pointer(block, block, cca::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
    cca::recordStream(pointer, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
    pointer.release_context();
}

const bench_allocator allocator = {PEER_NAME, PEER_ABOUT, false, open_allocator, take, give, use, nullptr};
} // namespace

extern "C" __attribute__((visibility("default"))) const bench_allocator *bench_peer() { return &allocator; }
