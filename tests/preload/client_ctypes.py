"""A Python program that calls the driver through ctypes."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
cuda.simcuda_calls_of.restype = ctypes.c_uint64
context, block, stream = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
print(cuda.cuStreamCreate(ctypes.byref(stream), 1))
for size in (1, 4096, 5 << 20):
    print(size, cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)))
    print(cuda.cuMemsetD8Async(block, 0, ctypes.c_size_t(size), stream), cuda.cuStreamSynchronize(stream))
    print(cuda.cuMemFree_v2(block), cuda.cuMemFree_v2(block))
print(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), free.value == total.value)
print(cuda.cuStreamDestroy_v2(stream))
print("# cuMemAlloc_v2", cuda.simcuda_calls_of(b"cuMemAlloc_v2"))
