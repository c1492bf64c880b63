"""The allocator's side: CUDAPluggableAllocator with its setters, and functions that only PyTorch's own allocator can answer."""
import ctypes

_SIGNATURES = {
    "set_init_fn": (None, ctypes.c_int),
    "set_reset_fn": (None,),
    "set_memory_fraction_fn": (None, ctypes.c_double, ctypes.c_int),
    "set_base_alloc_fn": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "set_record_stream_fn": (None, ctypes.c_void_p, ctypes.c_void_p),
    "set_begin_allocate_to_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
    "set_end_allocate_to_pool_fn": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    "set_release_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
}
current = None
initialized = False
_handles = 0
_FILTER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)


class Pluggable:
    def __init__(self, malloc, free):
        self.malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(malloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
        self.hooks = {}

    def __getattr__(self, name):
        if name not in _SIGNATURES:
            raise AttributeError(name)
        return lambda address: self.hooks.__setitem__(name, ctypes.CFUNCTYPE(*_SIGNATURES[name])(address))


def _cuda_customAllocator(malloc, free):
    return Pluggable(malloc, free)


def _cuda_changeCurrentAllocator(allocator):
    global current
    if initialized:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = allocator


def _hook(name, *arguments):
    return current.hooks[name](*arguments)


def _cuda_setMemoryFraction(fraction, device):
    _hook("set_memory_fraction_fn", fraction, device)


def _cuda_emptyCache():
    _hook("set_reset_fn")


def _unsupported(*_arguments):
    raise RuntimeError("pluggable does not yet support this")


_cuda_memoryStats = _cuda_memorySnapshot = _cuda_resetPeakMemoryStats = _cuda_resetAccumulatedMemoryStats = _unsupported
_cuda_getMemoryFraction = _cuda_record_memory_history = _unsupported

_accept_all = _FILTER(lambda functor, stream: True)
_std_function = (ctypes.c_void_p * 4)(None, None, None, ctypes.cast(_accept_all, ctypes.c_void_p).value)


def _cuda_beginAllocateCurrentThreadToPool(device, pool):
    _hook("set_begin_allocate_to_pool", device, *pool, ctypes.addressof(_std_function))


def _cuda_endAllocateToPool(device, pool):
    _hook("set_end_allocate_to_pool_fn", device, *pool)


def _cuda_releasePool(device, pool):
    _hook("set_release_pool", device, *pool)


def graph_pool_handle():
    global _handles
    _handles += 1
    return (0, _handles)
