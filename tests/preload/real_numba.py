"""numba's CUDA arrays and streams: a client that nobody here wrote. Lines that begin with # are counts of the simulated device."""
import ctypes
import warnings

import numpy as np

warnings.filterwarnings("ignore")
from numba import cuda  # noqa: E402

stream = cuda.stream()
numbers = np.arange(5000, dtype=np.int32)
for round in range(3):
    on_device = cuda.to_device(numbers, stream=stream)
    more = cuda.device_array((64, 64), np.float64)
    back = on_device.copy_to_host(stream=stream)
    stream.synchronize()
    print("same bytes", (numbers == back).all())
    del on_device, more
print("total", cuda.current_context().get_memory_info().total)
driver = ctypes.CDLL("libcuda.so.1")
driver.simcuda_calls_of.restype = ctypes.c_uint64
print("# cuMemAlloc_v2", driver.simcuda_calls_of(b"cuMemAlloc_v2"))
