"""PyTorch's allocator is exchanged for the pool, and the questions that PyTorch asks its own are answered from the pool's figures."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional

from . import _figures, _library, _snapshot

_allocator: Optional[Any] = None  # PyTorch's object, which must live as long as PyTorch does
_fractions: dict[int, float] = {}

# Setter of torch._C._CUDAPluggableAllocator: our function.
_HOOKS = {
    "set_init_fn": "cmpool_torch_init",
    "set_reset_fn": "cmpool_torch_reset",
    "set_memory_fraction_fn": "cmpool_torch_memory_fraction",
    "set_base_alloc_fn": "cmpool_torch_base_alloc",
    "set_record_stream_fn": "cmpool_torch_record_stream",
    "set_begin_allocate_to_pool": "cmpool_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "cmpool_torch_end_pool",
    "set_release_pool": "cmpool_torch_release_pool",
}


def in_use() -> bool:
    return _allocator is not None


def use(conf: Optional[str] = None) -> None:
    global _allocator
    if _allocator is not None:
        return
    try:
        import torch
    except ImportError as error:
        raise _library.CudaMemPoolError(f"PyTorch cannot be imported: {error}") from error
    core = torch._C
    if not hasattr(core, "_cuda_customAllocator"):
        raise _library.CudaMemPoolError(f"PyTorch {torch.__version__} has no CUDA, or is older than 2.0")
    if not _library.function("cmpool_torch_can_raise")():
        raise _library.CudaMemPoolError(f"PyTorch {torch.__version__} has other exceptions than those known, so a refusal could not be told")
    configure = _library.function("cmpool_torch_configure", ctypes.c_char_p)
    _library.check(configure(conf.encode() if conf else None), "options")
    made = core._cuda_customAllocator(_library.address("cmpool_torch_malloc_or_raise"), _library.address("cmpool_torch_free"))
    missing = [setter for setter in _HOOKS if not hasattr(made, setter)]
    if missing:
        raise _library.CudaMemPoolError(f"PyTorch {torch.__version__} lacks {', '.join(missing)}: memory used on several streams would not be safe")
    for setter, name in _HOOKS.items():
        getattr(made, setter)(_library.address(name))
    try:
        core._cuda_changeCurrentAllocator(made)
    except RuntimeError as error:
        raise _library.CudaMemPoolError(f"too late, PyTorch has allocated memory already: {error}") from error
    _allocator = made
    _let_preload_stand_aside()
    _answer(torch, conf)


def _let_preload_stand_aside() -> None:
    """Of the pool in PyTorch and the one in front of the driver, one serves: this one knows streams."""
    try:
        ctypes.CDLL(None).cudamempool_preload_stand_aside()
    except AttributeError:
        pass  # it is not loaded
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is not None:
        os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING")  # of no meaning here, but children would take it for a wish of the user's


def _answer(torch: Any, conf: Optional[str]) -> None:
    """PyTorch raises for any allocator but its own; its Python functions reach these by their names in torch._C."""
    set_fraction = torch._C._cuda_setMemoryFraction

    def set_memory_fraction(fraction: float, device: int) -> None:
        set_fraction(fraction, device)
        _fractions[device] = fraction

    def refuse_history(*_arguments: Any, **_more: Any) -> None:
        raise RuntimeError("PyTorch's own history of memory needs its own allocator; libcudamempool's is recorded with the options of "
                           "CUDAMEMPOOL_CONF, and torch.cuda.memory._snapshot() has it")

    answers: dict[str, Callable[..., Any]] = {
        "_cuda_memoryStats": _figures.memory_stats,
        "_cuda_resetPeakMemoryStats": _figures.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": _figures.reset_accumulated,
        "_cuda_memorySnapshot": _snapshot.memory_snapshot,
        "_cuda_setMemoryFraction": set_memory_fraction,
        "_cuda_getMemoryFraction": lambda device: _fractions.get(device, 1.0),
        "_cuda_record_memory_history": refuse_history,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_getDeviceStats": _figures.memory_stats,
        "_accelerator_resetPeakStats": _figures.reset_peaks,
        "_accelerator_resetAccumulatedStats": _figures.reset_accumulated,
    }
    for name, answer in answers.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, answer)
    from . import _apart  # these need torch
    from ._mempool import MemPool, use_mem_pool

    _apart.install_where_needed(conf)

    for module in (torch.cuda, torch.cuda.memory, getattr(torch.cuda, "graphs", None)):
        for name, replacement in (("MemPool", MemPool), ("use_mem_pool", use_mem_pool)):
            if hasattr(module, name):
                setattr(module, name, replacement)
