/*
 * A program as the compiler driver makes it: linked against one libcudart, which finds the driver by itself. Built once for each of the
 * two; says nothing and exits with 0 when its memory, streams and events did what they should.
 */
#include "runtime/sim_runtime_abi.h"

#include <stdio.h>
#include <string.h>

cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream);
cudaError_t cudaStreamCreate(CUstream *stream);
cudaError_t cudaStreamDestroy(CUstream stream);
cudaError_t cudaStreamSynchronize(CUstream stream);
cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
cudaError_t cudaEventCreate(CUevent *event);
cudaError_t cudaEventRecord(CUevent event, CUstream stream);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void);

#define MUST(call)                                                           \
    do {                                                                     \
        int code = (int)(call);                                              \
        if (code != 0) {                                                     \
            fprintf(stderr, "line %d: %s gave %d\n", __LINE__, #call, code); \
            return 1;                                                        \
        }                                                                    \
    } while (0)

int main(void)
{
    char words[64] = "from host to device and back", back[64] = "";
    int version = 0;
    void *memory;
    CUstream first, second;
    CUevent copied;
    MUST(cudaRuntimeGetVersion(&version));
    MUST(version / 1000 != SIM_RUNTIME_MAJOR);
    MUST(cudaFree(NULL));
    MUST(cudaMalloc(&memory, 1 << 20));
    MUST(cudaStreamCreate(&first));
    MUST(cudaStreamCreate(&second));
    MUST(cudaEventCreate(&copied));
    MUST(cudaMemsetAsync(memory, 0, 1 << 20, first));
    MUST(cudaMemcpyAsync(memory, words, sizeof words, cudaMemcpyHostToDevice, first));
    MUST(cudaEventRecord(copied, first));
    MUST(cudaStreamWaitEvent(second, copied, 0));
    MUST(cudaMemcpyAsync(back, memory, sizeof back, cudaMemcpyDeviceToHost, second));
    MUST(cudaStreamSynchronize(second));
    MUST(strcmp(words, back));
    MUST(cudaStreamDestroy(first));
    MUST(cudaStreamDestroy(second));
    MUST(cudaFree(memory));
    MUST(cudaGetLastError());
    return 0;
}
