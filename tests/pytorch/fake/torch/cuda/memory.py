"""As in PyTorch: Python functions over names in torch._C, looked up when they are called."""
from .. import _C


def memory_stats(device=0):
    flat = {}

    def add(prefix, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    add("", _C._cuda_memoryStats(device))
    return flat


def memory_allocated(device=0):
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device=0):
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device=0):
    return memory_stats(device)["reserved_bytes.all.current"]


def reset_peak_memory_stats(device=0):
    _C._cuda_resetPeakMemoryStats(device)


def reset_accumulated_memory_stats(device=0):
    _C._cuda_resetAccumulatedMemoryStats(device)


def empty_cache():
    _C._cuda_emptyCache()


def set_per_process_memory_fraction(fraction, device=0):
    _C._cuda_setMemoryFraction(fraction, device)


def get_per_process_memory_fraction(device=0):
    return _C._cuda_getMemoryFraction(device)


def _snapshot(device=None):
    return _C._cuda_memorySnapshot(None)


class Block:
    """What a tensor is here."""

    def __init__(self, size, device=0, stream=None):
        _C.initialized = True
        self.size, self.device, self.stream = size, device, stream
        self.pointer = _C.current.malloc(size, device, stream)

    def __del__(self):
        _C.current.free(self.pointer, self.size, self.device, self.stream)
