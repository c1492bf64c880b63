"""PyTorch's device memory from libcudamempool.

    import cudamempool
    cudamempool.use()

before anything is allocated on a GPU. `cudamempool run -- python train.py` does the same with no line changed.
"""
from __future__ import annotations

from typing import Optional

from . import _allocator, _library

__all__ = ["CudaMemPoolError", "in_use", "library_path", "stats", "use", "version"]

CudaMemPoolError = _library.CudaMemPoolError


def use(conf: Optional[str] = None) -> None:
    """Make PyTorch take its device memory from the pool. Again is fine.

    conf: options, "key:value,key:value", over those of the environment variable CUDAMEMPOOL_CONF.
    Raises CudaMemPoolError, with PyTorch left as it was, when it has allocated already, has no CUDA, or is too old.
    """
    _allocator.use(conf)


def in_use() -> bool:
    """Whether use() was called with success in this process."""
    return _allocator.in_use()


def stats(device: int = 0) -> dict[str, int]:
    """The pool's counters on a device, by their names (see the README's table); empty as long as it has no pool."""
    return _library.counters(device)


def library_path() -> str:
    """The libcudamempool.so that is used."""
    return _library.path()


def version() -> str:
    """Of that library."""
    return _library.text("cmpool_version")
