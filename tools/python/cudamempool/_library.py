"""libcudamempool.so: where it is, and its functions."""
from __future__ import annotations

import ctypes
import functools
import os
from typing import Iterator

NAME = "libcudamempool.so"


class CudaMemPoolError(RuntimeError):
    """The pool cannot be used here; the text says why. PyTorch is as it was."""


def _places() -> Iterator[str]:
    """The library named, beside this package, as installed, as built in the tree, and wherever the loader finds one."""
    given = os.environ.get("CUDAMEMPOOL_LIBRARY")
    if given:
        yield given
        return
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, NAME)
    yield os.path.join(here, "../../..", NAME)  # lib/cudamempool/python/cudamempool
    yield os.path.join(here, "../../../build/lib", NAME)
    yield NAME
    yield NAME + ".0"


@functools.lru_cache(maxsize=None)
def _load() -> tuple[ctypes.CDLL, str]:
    failures = []
    for place in _places():
        if os.sep in place and not os.path.exists(place):
            continue
        try:
            return ctypes.CDLL(place), place
        except OSError as error:
            failures.append(str(error))
    raise CudaMemPoolError(f"{NAME} was not found; CUDAMEMPOOL_LIBRARY can name it. {' '.join(failures)}".rstrip())


def path() -> str:
    return os.path.realpath(_load()[1])


def function(name: str, *arguments: type, result: type | None = ctypes.c_int):  # type: ignore[no-untyped-def]
    found = getattr(_load()[0], name)
    found.argtypes = arguments
    found.restype = result
    return found


def address(name: str) -> int:
    """Of a function, for those that take one as a number."""
    value = ctypes.cast(getattr(_load()[0], name), ctypes.c_void_p).value
    assert value is not None
    return value


def has(name: str) -> bool:
    return hasattr(_load()[0], name)


def text(name: str, *arguments: object) -> str:
    """What a function that returns a string returns."""
    found = getattr(_load()[0], name)
    found.restype = ctypes.c_char_p
    value: bytes = found(*arguments)
    return value.decode()


def check(status: int, call: str) -> None:
    if status != 0:
        raise CudaMemPoolError(f"{call}: {text('cmpool_status_text', status)} ({text('cmpool_status_name', status)})")


@functools.lru_cache(maxsize=None)
def counter_names() -> tuple[str, ...]:
    name_of = function("cmpool_counter_name", ctypes.c_uint, result=ctypes.c_char_p)
    return tuple(name.decode() for name in iter(map(name_of, range(1000)).__next__, None))


def pool(device: int) -> int:
    """The handle of a device's pool; 0: none yet."""
    handle: int = function("cmpool_torch_pool", ctypes.c_int, result=ctypes.c_uint64)(device)
    return handle


def counters(device: int) -> dict[str, int]:
    handle, names = pool(device), counter_names()
    if not handle:
        return {}
    words = (ctypes.c_uint64 * (1 + len(names)))(8 * (1 + len(names)))  # cmpool_stats: its size, then the counters
    get = function("cmpool_stats_get", ctypes.c_uint64, ctypes.c_void_p)
    check(get(handle, ctypes.addressof(words)), "cmpool_stats_get")
    return dict(zip(names, words[1:]))


def reset_peaks(device: int) -> None:
    handle = pool(device)
    if handle:
        check(function("cmpool_stats_reset_peaks", ctypes.c_uint64)(handle), "cmpool_stats_reset_peaks")


def totals(device: int) -> tuple[int, int]:
    """Bytes served and freed since ever."""
    served, freed = ctypes.c_uint64(), ctypes.c_uint64()
    get = function("cmpool_torch_totals", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, result=None)
    get(device, ctypes.addressof(served), ctypes.addressof(freed))
    return served.value, freed.value
