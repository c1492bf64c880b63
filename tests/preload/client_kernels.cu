/*
 * A program for nvcc: kernels and their launches, and memory of the runtime. Prints outcomes; lines that begin with # are counts of the
 * simulated device, which accepts kernels and does not execute them, so no result of one is looked at.
 */
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

__global__ void scale(float *values, float factor, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] *= factor;
    }
}

template <typename T> __global__ void fill(T *values, T value, int count)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        values[i] = value;
    }
}

static void say(const char *what, cudaError_t code) { std::printf("%s: %d, then %d\n", what, code, cudaGetLastError()); }

int main()
{
    cudaStream_t streams[2];
    say("set device", cudaSetDevice(0));
    for (auto &stream : streams) {
        say("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    constexpr int COUNT = 1 << 18;
    std::vector<float> out(COUNT), in(COUNT);
    for (int i = 0; i < COUNT; i++) {
        out[i] = static_cast<float>(i);
    }
    for (int round = 0; round < 20; round++) {
        float *values = nullptr, *more = nullptr;
        say("malloc", cudaMalloc(&values, COUNT * sizeof *values));
        say("malloc", cudaMalloc(&more, 100 + round * 5000));
        std::printf("aligned %d\n", static_cast<int>(reinterpret_cast<std::uintptr_t>(values) % 512));
        scale<<<COUNT / 256, 256, 0, streams[0]>>>(values, 2.0f, COUNT);
        fill<double><<<4, 64, 1024, streams[1]>>>(reinterpret_cast<double *>(more), 1.5, 10);
        say("launches", cudaPeekAtLastError());
        say("copy in", cudaMemcpyAsync(values, out.data(), COUNT * sizeof *values, cudaMemcpyHostToDevice, streams[0]));
        say("copy out", cudaMemcpyAsync(in.data(), values, COUNT * sizeof *values, cudaMemcpyDeviceToHost, streams[0]));
        say("synchronize", cudaStreamSynchronize(streams[0]));
        std::printf("same bytes %d\n", std::memcmp(in.data(), out.data(), COUNT * sizeof(float)) == 0);
        cudaPointerAttributes attributes;
        say("attributes", cudaPointerGetAttributes(&attributes, values));
        std::printf("type %d device %d\n", attributes.type, attributes.device);
        say("free", cudaFree(values)); /* the other one may still be written by its stream */
        say("free", cudaFree(more));
    }
    void *nothing = nullptr, *pitched = nullptr;
    size_t pitch = 0, free_bytes = 0, total = 0;
    say("malloc of too much", cudaMalloc(&nothing, size_t{1} << 40));
    say("malloc of nothing", cudaMalloc(&nothing, 0));
    say("free of nothing", cudaFree(nullptr));
    say("pitch", cudaMallocPitch(&pitched, &pitch, 1000, 100));
    std::printf("pitch %zu\n", pitch);
    say("free", cudaFree(pitched));
    say("free twice", cudaFree(pitched));
    say("in the order of a stream", cudaMallocAsync(&nothing, 4096, streams[0]));
    say("in the order of a stream", cudaFreeAsync(nothing, streams[0]));
    say("info", cudaMemGetInfo(&free_bytes, &total));
    std::printf("total %zu\n", total);
    say("synchronize", cudaDeviceSynchronize());
    for (auto &stream : streams) {
        say("destroy", cudaStreamDestroy(stream));
    }
    say("reset", cudaDeviceReset());
    say("malloc after it", cudaMalloc(&nothing, 4096));
    say("free", cudaFree(nothing));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto calls_of = reinterpret_cast<std::uint64_t (*)(const char *)>(driver ? dlsym(driver, "simcuda_calls_of") : nullptr);
    for (const char *name : {"cuMemAlloc_v2", "cuLaunchKernel"}) {
        std::printf("# %s %llu\n", name, calls_of ? static_cast<unsigned long long>(calls_of(name)) : 0ULL);
    }
    auto races = reinterpret_cast<std::uint64_t (*)()>(driver ? dlsym(driver, "simcuda_races") : nullptr);
    std::printf("# races %llu\n", races ? static_cast<unsigned long long>(races()) : 0ULL);
    return 0;
}
