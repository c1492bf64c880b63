/*
 * A C++ program: memory in objects, some of which are static and give theirs back when the process ends, also from threads; and an
 * exception that passes frames which hold some. What the calls answered is on stdout.
 */
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, std::size_t bytes);
int cuMemFree_v2(unsigned long long address);
unsigned long long simcuda_calls_of(const char *name);
}

namespace
{

void *context;

class block
{
  public:
    explicit block(std::size_t bytes)
    {
        int code = cuMemAlloc_v2(&address, bytes);
        std::printf("take %zu: %d\n", bytes, code);
        if (code)
            throw std::runtime_error("no memory");
    }
    block(block &&other) noexcept : address(other.address) { other.address = 0; }
    block(const block &) = delete;
    block &operator=(const block &) = delete;
    ~block() { std::printf("give back: %d\n", address ? cuMemFree_v2(address) : -1); }

  private:
    unsigned long long address = 0;
};

block &at_exit()
{
    static block lives_long(3 << 20);
    return lives_long;
}

void throws()
{
    block held(5000);
    block too_large(static_cast<std::size_t>(1) << 40);
}

} // namespace

int main()
{
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 3;
    at_exit();
    try {
        throws();
    } catch (const std::runtime_error &error) {
        std::printf("caught: %s\n", error.what());
    }
    std::vector<block> blocks;
    blocks.reserve(4);
    for (std::size_t bytes = 600; bytes < 40000; bytes *= 4)
        blocks.emplace_back(bytes);
    std::thread([moved = std::move(blocks)] { std::printf("current here: %d\n", cuCtxSetCurrent(context)); }).join();
    std::printf("# cuMemAlloc_v2 %llu\n", simcuda_calls_of("cuMemAlloc_v2"));
}
