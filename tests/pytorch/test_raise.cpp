/*
 * What PyTorch's C++ sees of the library: refusals arrive as its own exceptions, through functions called by std::function as it calls
 * them, and its filters of streams are copied, asked and destroyed as C++ objects. Over the simulated device.
 */
#include "fake_c10.h"

#include <cudamempool/pytorch.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#define CHECK(condition)                                                 \
    do {                                                                 \
        if (!(condition)) {                                              \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::exit(1);                                                \
        }                                                                \
    } while (0)

using Stream = cmpool_stream;
using PoolId = std::pair<unsigned long long, unsigned long long>; /* c10::cuda::MempoolId_t */

extern "C" void c10_throw(const char *text);

static std::function<void *(size_t, int, Stream)> allocate = cmpool_torch_malloc_or_raise;

static void refusals()
{
    struct Guard { /* what C++ has to take down on the way */
        bool *passed;
        ~Guard() { *passed = true; }
    };
    for (int i = 0; i < 100; i++) {
        bool passed = false, caught = false;
        try {
            Guard guard{&passed};
            allocate(size_t{1} << 40, 0, nullptr);
        } catch (const c10::OutOfMemoryError &error) {
            caught = true;
            CHECK(std::strncmp(error.what(), "CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 64.00 MiB",
                               88) == 0);
            CHECK(std::strstr(error.what(), "is missing. Verdict: true_demand: ") != nullptr);
        }
        CHECK(caught && passed);
    }
    try { /* as PyTorch itself throws */
        c10_throw("mine");
        CHECK(false);
    } catch (const c10::OutOfMemoryError &error) {
        CHECK(std::strncmp(error.what(), "mine", 4) == 0);
    }
    bool caught = false;
    try {
        allocate(512, 5, nullptr); /* no such device: no lack of memory */
    } catch (const c10::OutOfMemoryError &) {
        CHECK(false);
    } catch (const c10::Error &error) {
        caught = std::strstr(error.what(), "GPU 5") != nullptr;
    }
    CHECK(caught);
}

static void filters()
{
    std::function<void(int, PoolId, std::function<bool(Stream)>)> begin =
        reinterpret_cast<void (*)(int, PoolId, std::function<bool(Stream)>)>(reinterpret_cast<void *>(cmpool_torch_begin_pool));
    std::function<void(int, PoolId)> end = reinterpret_cast<void (*)(int, PoolId)>(reinterpret_cast<void *>(cmpool_torch_end_pool));
    std::function<void(int, PoolId)> release = reinterpret_cast<void (*)(int, PoolId)>(reinterpret_cast<void *>(cmpool_torch_release_pool));
    void *outside = allocate(1 << 20, 0, nullptr), *inside;
    auto counted = std::make_shared<int>(0); /* too large for the function's own storage, and shows copies */
    char padding[64] = {1};
    {
        std::function<bool(Stream)> filter = [counted, padding](Stream) {
            ++*counted;
            return padding[0] == 1;
        };
        CHECK(counted.use_count() == 2);
        begin(0, {0, 7}, filter);
        CHECK(counted.use_count() == 3);
    }
    CHECK(counted.use_count() == 2);
    inside = allocate(1 << 20, 0, nullptr);
    CHECK(*counted >= 2);
    cmpool_block_info first = {}, second = {};
    first.struct_size = second.struct_size = sizeof first;
    CHECK(cmpool_lookup(outside, &first) == CMPOOL_OK && cmpool_lookup(inside, &second) == CMPOOL_OK);
    CHECK(first.pool != second.pool);
    end(0, {0, 7});
    CHECK(counted.use_count() == 1);
    cmpool_torch_free(inside, 1 << 20, 0, nullptr);
    cmpool_torch_free(outside, 1 << 20, 0, nullptr);

    begin(0, {0, 8}, [](Stream stream) -> bool { /* as PyTorch's do when the driver refuses their question */
                                                 if (stream == nullptr)
                                                     throw c10::Error({__func__, __FILE__, 0}, "a question was refused");
                                                 return true;
    });
    for (int i = 0; i < 3; i++) {
        bool caught = false;
        try {
            allocate(1 << 20, 0, nullptr);
        } catch (const c10::Error &) {
            caught = true;
        }
        CHECK(caught);
    }
    end(0, {0, 8}); /* no lock was left behind */
    release(0, {0, 8});
    release(0, {0, 7});
}

int main()
{
    CHECK(cmpool_torch_can_raise() == 1);
    refusals();
    filters();
    CHECK(cmpool_torch_close() == CMPOOL_OK);
    std::puts("fine");
    return 0;
}
