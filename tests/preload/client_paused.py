"""A program that is paused from outside: does what the lines on its input say, through the driver's names, and prints how it went."""
import ctypes
import os
import sys
import threading

DEVICE_BYTES = 64 << 20
BYTES = 24 << 20
PATTERN = bytes(range(256)) * (BYTES // 256)
cuda = ctypes.CDLL("libcuda.so.1")
context, block, stream, graph = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0


def step():
    taken = ctypes.c_uint64()
    cuda.cuCtxSetCurrent(context)
    return cuda.cuMemAlloc_v2(ctypes.byref(taken), ctypes.c_size_t(1 << 20)) or cuda.cuMemFree_v2(taken)


def fill():
    return cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(BYTES)) or cuda.cuMemcpyHtoD_v2(block, PATTERN, ctypes.c_size_t(BYTES))


def check():
    back = ctypes.create_string_buffer(BYTES)
    return cuda.cuMemcpyDtoH_v2(back, block, ctypes.c_size_t(BYTES)) or back.raw != PATTERN


def threads():
    """Three that go on by themselves; how each fares is printed when it has."""
    for _ in range(3):
        threading.Thread(target=lambda: os.write(1, b"thread %d\n" % step()), daemon=True).start()
    return 0


def capture():
    return cuda.cuStreamCreate(ctypes.byref(stream), 1) or cuda.cuStreamBeginCapture_v2(stream, 2)


def end_capture():
    return cuda.cuStreamEndCapture(stream, ctypes.byref(graph))


def others():
    """Another process takes the whole device."""
    return cuda.simcuda_sibling_take(0, ctypes.c_uint64(DEVICE_BYTES), None)


def others_leave():
    cuda.simcuda_sibling_return(0, ctypes.c_uint64(DEVICE_BYTES))
    return 0


print(os.getpid(), flush=True)
for line in sys.stdin:
    print(line.strip(), globals()[line.strip()]() + 0, flush=True)
