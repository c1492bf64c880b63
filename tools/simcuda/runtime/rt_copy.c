/*
 * Copies and fills. The kind decides which driver call is made; cudaMemcpyDefault and host to host leave it to the addresses. No state.
 */
#include "runtime/rt.h"

RT_API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
RT_API cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
RT_API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream stream);
RT_API cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream stream);
RT_API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes);
RT_API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, CUstream stream);

RT_FORWARD(cudaMemset, (void *to, int value, size_t bytes), MemsetD8, (rt_address(to), (unsigned char)value, bytes))
RT_FORWARD(cudaMemset_ptds, (void *to, int value, size_t bytes), MemsetD8Async,
           (rt_address(to), (unsigned char)value, bytes, CU_STREAM_PER_THREAD))
RT_FORWARD(cudaMemsetAsync, (void *to, int value, size_t bytes, CUstream stream), MemsetD8Async,
           (rt_address(to), (unsigned char)value, bytes, stream))
RT_FORWARD(cudaMemsetAsync_ptsz, (void *to, int value, size_t bytes, CUstream stream), MemsetD8Async,
           (rt_address(to), (unsigned char)value, bytes, rt_per_thread(stream)))

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && bytes != 0) {
        switch (kind) {
        case cudaMemcpyHostToDevice:
            code = RT_CALL(MemcpyHtoD, (rt_address(to), from, bytes));
            break;
        case cudaMemcpyDeviceToHost:
            code = RT_CALL(MemcpyDtoH, (to, rt_address(from), bytes));
            break;
        case cudaMemcpyDeviceToDevice:
            code = RT_CALL(MemcpyDtoD, (rt_address(to), rt_address(from), bytes));
            break;
        case cudaMemcpyHostToHost:
        case cudaMemcpyDefault:
            code = RT_CALL(Memcpy, (rt_address(to), rt_address(from), bytes));
            break;
        default:
            code = cudaErrorInvalidMemcpyDirection;
        }
    }
    return rt_leave(code);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream stream)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess && bytes != 0) {
        switch (kind) {
        case cudaMemcpyHostToDevice:
            code = RT_CALL(MemcpyHtoDAsync, (rt_address(to), from, bytes, stream));
            break;
        case cudaMemcpyDeviceToHost:
            code = RT_CALL(MemcpyDtoHAsync, (to, rt_address(from), bytes, stream));
            break;
        case cudaMemcpyDeviceToDevice:
            code = RT_CALL(MemcpyDtoDAsync, (rt_address(to), rt_address(from), bytes, stream));
            break;
        case cudaMemcpyHostToHost:
        case cudaMemcpyDefault:
            code = RT_CALL(MemcpyAsync, (rt_address(to), rt_address(from), bytes, stream));
            break;
        default:
            code = cudaErrorInvalidMemcpyDirection;
        }
    }
    return rt_leave(code);
}

cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream stream)
{
    return cudaMemcpyAsync(to, from, bytes, kind, rt_per_thread(stream));
}

/* On the thread's default stream, then waited for. */
cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, CU_STREAM_PER_THREAD);
    if (code == cudaSuccess) {
        code = rt_leave(RT_CALL(StreamSynchronize, (CU_STREAM_PER_THREAD)));
    }
    return code;
}

static cudaError_t peer_contexts(int to_device, CUcontext *to, int from_device, CUcontext *from)
{
    cudaError_t code = rt_enter();
    if (code == cudaSuccess) {
        code = rt_primary_context(to_device, to);
    }
    if (code == cudaSuccess) {
        code = rt_primary_context(from_device, from);
    }
    return code;
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    CUcontext to_context, from_context;
    cudaError_t code = peer_contexts(to_device, &to_context, from_device, &from_context);
    if (code == cudaSuccess) {
        code = RT_CALL(MemcpyPeer, (rt_address(to), to_context, rt_address(from), from_context, bytes));
    }
    return rt_leave(code);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, CUstream stream)
{
    CUcontext to_context, from_context;
    cudaError_t code = peer_contexts(to_device, &to_context, from_device, &from_context);
    if (code == cudaSuccess) {
        code = RT_CALL(MemcpyPeerAsync, (rt_address(to), to_context, rt_address(from), from_context, bytes, stream));
    }
    return rt_leave(code);
}
