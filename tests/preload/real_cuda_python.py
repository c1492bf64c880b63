"""NVIDIA's Python bindings of the driver, with copies, streams and virtual memory of the program's own. Lines that begin with # are counts."""
import ctypes

import cuda.bindings
import numpy as np
from cuda.bindings import driver

print("# cuda-bindings", cuda.bindings.__version__)


def call(name, *arguments):
    answer = getattr(driver, name)(*arguments)
    print(name, int(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


call("cuInit", 0)
device = call("cuDeviceGet", 0)
call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
stream = call("cuStreamCreate", 1)
numbers = np.arange(1000, dtype=np.float32)
back = np.zeros_like(numbers)
block = call("cuMemAlloc", numbers.nbytes)
call("cuMemcpyHtoDAsync", block, numbers.ctypes.data, numbers.nbytes, stream)
call("cuMemcpyDtoHAsync", back.ctypes.data, block, numbers.nbytes, stream)
call("cuStreamSynchronize", stream)
print("same bytes", (numbers == back).all())
base, size = call("cuMemGetAddressRange", block)
print("range", int(base) == int(block), size)
call("cuMemFree", block)
call("cuMemFree", block)
print("memory", call("cuMemGetInfo"))

PAGE = 2 << 20
prop = driver.CUmemAllocationProp()
prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
access = driver.CUmemAccessDesc()
access.location = prop.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
handle = call("cuMemCreate", PAGE, prop, 0)
address = call("cuMemAddressReserve", PAGE, 0, 0, 0)
call("cuMemMap", address, PAGE, 0, handle, 0)
call("cuMemSetAccess", address, PAGE, [access], 1)
call("cuMemRelease", call("cuMemRetainAllocationHandle", int(address)))
call("cuMemUnmap", address, PAGE)
call("cuMemRelease", handle)
call("cuMemAddressFree", address, PAGE)
library = ctypes.CDLL("libcuda.so.1")
library.simcuda_calls_of.restype = ctypes.c_uint64
print("# cuMemAlloc_v2", library.simcuda_calls_of(b"cuMemAlloc_v2"))
