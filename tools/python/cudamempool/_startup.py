"""How `cudamempool run` gets into Python before a program's first line: when PyTorch is imported, use() comes right behind.

This file is loaded by each Python process under `cudamempool run`, alone: it imports the rest of the package only behind PyTorch.

Where that does not work (PyTorch without CUDA is none of our business; another version may lack a hook) memory is left to the library in
front of the driver, if it is loaded, and then PyTorch is told not to keep a cache of its own above it.
"""
from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Optional, Sequence

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def install() -> None:
    """Wait for the import of PyTorch, unless the user has asked for the other way: its uncached mode, over the library before the driver."""
    if UNCACHED not in os.environ and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: Optional[importlib.machinery.ModuleSpec] = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None and not isinstance(spec.loader, _Loader):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The module's own loader, and use() when it is done."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        after_import(module)


def after_import(torch: ModuleType) -> None:
    from . import _allocator, _library

    if not hasattr(torch._C, "_cuda_customAllocator"):
        return
    try:
        _allocator.use()
    except (_library.CudaMemPoolError, RuntimeError) as error:
        fall_back(str(error))
    else:
        if os.environ.get("CUDAMEMPOOL_REPORT"):
            import atexit

            atexit.register(_report, os.environ["CUDAMEMPOOL_REPORT"], os.getpid())


def _report(name: str, process: int) -> None:
    """The line of `cudamempool run --report`, which the library in front of the driver leaves to us."""
    import json

    from . import _library

    devices = [{"device": device, **counters} for device in range(64) if (counters := _library.counters(device))]
    if devices and os.getpid() == process:  # not in a child that forked
        with open(name, "a", encoding="utf-8") as file:
            file.write(json.dumps({"program": sys.argv[0], "process": process, "devices": devices}) + "\n")


def fall_back(why: str) -> None:
    if preloaded():
        os.environ[UNCACHED] = "1"  # read by PyTorch at its first allocation
        what = "memory is served in front of the driver instead, without PyTorch's cache above it"
    else:
        what = "PyTorch keeps its own allocator"
    print(f"cudamempool: {why}; {what}", file=sys.stderr)


def preloaded() -> bool:
    import ctypes

    return hasattr(ctypes.CDLL(None), "cudamempool_preload_stand_aside")
