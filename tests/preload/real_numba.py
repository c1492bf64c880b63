"""numba's CUDA arrays and streams: a client that nobody here wrote. Lines that begin with # are counts and versions."""
import ctypes
import warnings

import numpy as np

warnings.filterwarnings("ignore")
import numba  # noqa: E402
from numba import cuda  # noqa: E402

# Until 2025 numba took any name with _v2 for the better form of a function; CUDA 13 gave two such names other arguments. The drivers that
# such a numba is for do not have them.
UNKNOWN = {"cuCtxGetDevice_v2", "cuCtxSynchronize_v2"}


class OlderDriver:
    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        if name in UNKNOWN:
            raise AttributeError(name)
        return getattr(self.library, name)


try:
    import numba_cuda
    print(f"# numba {numba.__version__}, numba-cuda {numba_cuda.__version__}")
except ImportError:
    from numba.cuda.cudadrv.driver import driver as own
    own.lib = OlderDriver(own.lib)
    print(f"# numba {numba.__version__}")

stream = cuda.stream()
numbers = np.arange(5000, dtype=np.int32)
for round in range(3):
    on_device = cuda.to_device(numbers, stream=stream)
    more = cuda.device_array((64, 64), np.float64)
    on_device[10:20].copy_to_device(numbers[100:110], stream=stream)
    back = on_device.copy_to_host(stream=stream)
    stream.synchronize()
    changed = numbers.copy()
    changed[10:20] = numbers[100:110]
    print("same bytes", (changed == back).all(), more.shape)
    del on_device, more
event = cuda.event()
event.record(stream)
event.synchronize()
print("event", event.query())
with cuda.pinned(numbers):
    print("pinned", (cuda.to_device(numbers, stream=stream).copy_to_host() == numbers).all())
print("total", cuda.current_context().get_memory_info().total)
try:
    cuda.device_array(1 << 40, np.int8)
except Exception as error:  # of a class that differs between numba's bindings
    print("refused", "OUT_OF_MEMORY" in str(error))
library = ctypes.CDLL("libcuda.so.1")
library.simcuda_calls_of.restype = ctypes.c_uint64
print("# cuMemAlloc_v2", library.simcuda_calls_of(b"cuMemAlloc_v2"))
