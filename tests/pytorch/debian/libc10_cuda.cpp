/*
 * One case of Debian's libc10_cuda 2.6 over the simulated device: PyTorch's own allocator classes, streams and exceptions without Python
 * and without the libraries of CUDA. Built and started by tests/pytorch/debian_c10.py, which says what stands in front of the driver.
 */
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cudamempool/pytorch.h>
#include <simcuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cca = c10::cuda::CUDACachingAllocator;

namespace c10::cuda::_internal
{ /* exported, in no header */
void setHasPrimaryContext(bool (*ask)(DeviceIndex));
}

#define CHECK(condition)                                                 \
    do {                                                                 \
        if (!(condition)) {                                              \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::exit(1);                                                \
        }                                                                \
    } while (0)

static constexpr size_t MiB = size_t{1} << 20;

/* What PyTorch's CUDAPluggableAllocator does with our functions; that class itself lies in libtorch_cuda, which does not load without
 * cuBLAS and the like. */
class Pluggable final : public cca::CUDAAllocator
{
  public:
    explicit Pluggable(void *(*serve)(size_t, int, cmpool_stream)) : serve_(serve)
    {
        void (*begin)(int, uint64_t, uint64_t, const void *) = cmpool_torch_begin_pool;
        std::memcpy(&begin_, &begin, sizeof begin_);
    }

    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        int device = c10::cuda::current_device();
        void *ptr = serve_(bytes, device, reinterpret_cast<cmpool_stream>(stream));
        std::lock_guard<std::mutex> guard(lock_);
        if (ptr) {
            blocks_[ptr] = {bytes, device, stream};
        }
        return ptr;
    }
    void *raw_alloc(size_t bytes) override { return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream()); }
    void raw_delete(void *ptr) override
    {
        std::unique_lock<std::mutex> guard(lock_);
        auto found = blocks_.find(ptr);
        CHECK(found != blocks_.end());
        Block block = found->second;
        blocks_.erase(found);
        guard.unlock();
        cmpool_torch_free(ptr, block.bytes, block.device, reinterpret_cast<cmpool_stream>(block.stream));
    }
    c10::DataPtr allocate(size_t bytes) override
    {
        c10::Device device(c10::DeviceType::CUDA, c10::cuda::current_device());
        void *ptr = raw_alloc(bytes);
        return {ptr, ptr, raw_deleter(), device};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return [](void *ptr) { cca::raw_delete(ptr); };
    }
    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override
    {
        cmpool_torch_record_stream(data.get(), reinterpret_cast<cmpool_stream>(stream.stream()));
    }
    void beginAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id, std::function<bool(cudaStream_t)> filter) override
    {
        begin_(device, id, std::move(filter));
    }
    void endAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override
    {
        cmpool_torch_end_pool(device, id.first, id.second);
    }
    void releasePool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override
    {
        cmpool_torch_release_pool(device, id.first, id.second);
    }
    void *getBaseAllocation(void *ptr, size_t *size) override { return cmpool_torch_base_alloc(ptr, size); }
    void emptyCache() override { cmpool_torch_reset(); }
    void setMemoryFraction(double fraction, c10::DeviceIndex device) override { cmpool_torch_memory_fraction(fraction, device); }

    void init(int) override {}
    bool initialized() override { return true; }
    void enable(bool) override {}
    bool isEnabled() const override { return true; }
    std::string name() override { return "pluggable"; }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream()));
    }
    cudaError_t memcpyAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream, bool) override
    {
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }

    /* PyTorch's refuses these for every library's allocator. */
    [[noreturn]] static void refuse() { TORCH_CHECK(false, "not supported"); }
    double getMemoryFraction(c10::DeviceIndex) override { refuse(); }
    void cacheInfo(c10::DeviceIndex, size_t *) override { refuse(); }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { refuse(); }
    void resetAccumulatedStats(c10::DeviceIndex) override { refuse(); }
    void resetPeakStats(c10::DeviceIndex) override { refuse(); }
    cca::SnapshotInfo snapshot() override { refuse(); }
    cca::ShareableHandle shareIpcHandle(void *) override { refuse(); }
    std::shared_ptr<void> getIpcDevPtr(std::string) override { refuse(); }
    void recordHistory(bool, cca::CreateContextFn, size_t, cca::RecordContext) override { refuse(); }
    void attachOutOfMemoryObserver(cca::OutOfMemoryObserver) override { refuse(); }
    void attachAllocatorTraceTracker(cca::AllocatorTraceTracker) override { refuse(); }
    void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override { refuse(); }
    std::shared_ptr<cca::AllocatorState> getCheckpointState(c10::DeviceIndex, c10::cuda::MempoolId_t) override { refuse(); }
    cca::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex, std::shared_ptr<cca::AllocatorState>) override { refuse(); }

  private:
    struct Block {
        size_t bytes;
        int device;
        cudaStream_t stream;
    };
    void *(*serve_)(size_t, int, cmpool_stream);
    void (*begin_)(int, c10::cuda::MempoolId_t, std::function<bool(cudaStream_t)>); /* the type PyTorch calls it by */
    std::mutex lock_;
    std::unordered_map<void *, Block> blocks_;
};

static void touch(const c10::DataPtr &data, size_t bytes, c10::cuda::CUDAStream stream)
{
    CHECK(simcuda_touch(stream.stream(), reinterpret_cast<uint64_t>(data.get()), bytes, 1) == 0);
}

/* Whatever serves: streams, record_stream, a cache that is emptied, and an out-of-memory that is caught as what it is. */
static void program(const char *words_of_refusal)
{
    auto main = c10::cuda::getCurrentCUDAStream(), side = c10::cuda::getStreamFromPool(false, 0);
    c10::Allocator *allocator = cca::get();
    for (int turn = 0; turn < 40; turn++) {
        size_t bytes = static_cast<size_t>(1 + turn % 7) * MiB + 512;
        c10::DataPtr x = allocator->allocate(bytes);
        touch(x, bytes, main);
        cudaEvent_t event;
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        C10_CUDA_CHECK(cudaEventRecord(event, main));
        C10_CUDA_CHECK(cudaStreamWaitEvent(side, event, 0));
        C10_CUDA_CHECK(cudaEventDestroy(event));
        touch(x, bytes, side);
        cca::recordStream(x, side);
        x.clear();
        c10::DataPtr next = allocator->allocate(bytes);
        touch(next, bytes, main);
    }
    std::vector<c10::DataPtr> kept;
    std::string text;
    try {
        for (;;) {
            kept.push_back(allocator->allocate(100 * MiB));
            CHECK(kept.back().get());
        }
    } catch (const c10::OutOfMemoryError &error) {
        text = error.what_without_backtrace();
    }
    CHECK(text.find("CUDA out of memory. Tried to allocate 100.00 MiB.") == 0 && text.find(words_of_refusal) != std::string::npos);
    CHECK(kept.size() >= 8);
    kept.clear();
    CHECK(allocator->allocate(300 * MiB).get());
    cca::emptyCache();
    std::printf("%s\n", text.c_str());
}

/* PyTorch's own allocator, its segments from the library in front of the driver; its expandable ones are pages of its own. */
static void native()
{
    cca::init(c10::cuda::device_count());
    CHECK(cca::get()->name() == "native");
    bool behind_ours = dlsym(RTLD_DEFAULT, "cudamempool_preload_stand_aside");
    program("reserved by PyTorch but unallocated");
    /* By itself it gives a segment back under work that may still run, and relies on cudaFree to wait for it. */
    CHECK(simcuda_races() == 0 || !behind_ours);
    CHECK((simcuda_calls_of("cuMemAlloc") == 0) == behind_ours && (simcuda_calls_of("cuMemCreate") > 0) == behind_ours);
}

static cmpool_stats figures()
{
    cmpool_stats stats{};
    stats.struct_size = sizeof stats;
    CHECK(cmpool_stats_get(cmpool_torch_pool(0), &stats) == CMPOOL_OK);
    return stats;
}

/* Ours in its place. */
static void pluggable()
{
    static Pluggable ours(cmpool_torch_malloc_or_raise);
    CHECK(cmpool_torch_can_raise());
    cca::allocator.store(&ours);
    program("libcudamempool");
    CHECK(simcuda_races() == 0);
    CHECK(simcuda_calls_of("cuMemAlloc") == 0 && simcuda_calls_of("cuMemCreate") > 0);
    CHECK(figures().uses_recorded == 40 && figures().live_bytes == 0);
    void *pointer = cca::raw_alloc(MiB);
    size_t bytes = 0;
    CHECK(cca::getBaseAllocation(static_cast<char *>(pointer) + 100, &bytes) == pointer && bytes >= MiB);
    cca::raw_delete(pointer);
    cca::setMemoryFraction(0.25, 0);
    try {
        (void)cca::get()->allocate(512 * MiB);
        CHECK(false);
    } catch (const c10::OutOfMemoryError &) {
    }
    auto id = c10::cuda::MemPool::graph_pool_handle();
    cca::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    c10::DataPtr inside = cca::get()->allocate(3 * MiB);
    cca::endAllocateToPool(0, id);
    cmpool_block_info info{};
    info.struct_size = sizeof info;
    CHECK(cmpool_lookup(inside.get(), &info) == CMPOOL_OK && info.pool != cmpool_torch_pool(0));
    inside.clear();
    cca::releasePool(0, id);
    CHECK(cmpool_torch_close() == CMPOOL_OK);
}

/* PyTorch's allocator stays, one MemPool takes its segments from ours; NULL becomes PyTorch's own refusal. */
static void mempool()
{
    static Pluggable ours(cmpool_torch_malloc);
    cca::init(c10::cuda::device_count());
    {
        c10::cuda::MemPool pool(&ours);
        c10::cuda::MemPoolContext active(&pool);
        cca::beginAllocateToPool(0, pool.id(), [](cudaStream_t) { return true; });
        c10::DataPtr inside = cca::get()->allocate(30 * MiB);
        CHECK(figures().live_bytes == 30 * MiB);
        try {
            (void)cca::get()->allocate(MiB << 20);
            CHECK(false);
        } catch (const c10::OutOfMemoryError &error) {
            CHECK(std::strstr(error.what(), "libcudamempool") == nullptr);
        }
        cca::endAllocateToPool(0, pool.id());
        inside.clear();
        cca::releasePool(0, pool.id()); /* twice in all: for the end of its use, and by the pool itself */
        c10::DataPtr outside = cca::get()->allocate(30 * MiB);
        CHECK(simcuda_calls_of("cuMemAlloc") == 1 && simcuda_calls_of("cuMemCreate") > 0);
    }
    cca::emptyCache();
    CHECK(figures().live_bytes == 0);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"native", native}, {"pluggable", pluggable}, {"mempool", mempool}};
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    CHECK(count == 2);
    for (const auto &each : cases) {
        if (std::strcmp(each.name, words[1]) == 0) {
            each.run();
            std::printf("fine: %s\n", each.name);
            return 0;
        }
    }
    return 2;
}
