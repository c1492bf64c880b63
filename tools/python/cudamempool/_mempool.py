"""torch.cuda.MemPool and use_mem_pool over private pools: PyTorch's own class is refused by every allocator but its own."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

import torch

from . import _snapshot


class MemPool:
    """Memory whose blocks reuse each other first; its idle whole pages serve everybody."""

    def __init__(self, allocator: Optional[Any] = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None:
            raise RuntimeError("a MemPool with an allocator of its own needs PyTorch's native allocator, and this process uses "
                               "libcudamempool's: leave out the argument, or do not call cudamempool.use()")
        self._id: tuple[int, int] = tuple(torch.cuda.graph_pool_handle())  # type: ignore[assignment]
        self._users = 1

    @property
    def id(self) -> tuple[int, int]:
        return self._id

    @property
    def allocator(self) -> None:
        return None

    @property
    def is_user_created(self) -> bool:
        return True

    def use_count(self) -> int:
        return self._users

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        segments: list[dict[str, Any]] = _snapshot.memory_snapshot()["segments"]
        return segments


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """What the calling thread allocates on the device meanwhile comes from the pool (before PyTorch 2.8: what any thread does)."""
    core = torch._C
    index = torch.cuda.current_device() if device is None else torch.cuda._utils._get_device_index(device)
    begin = getattr(core, "_cuda_beginAllocateCurrentThreadToPool", None) or core._cuda_beginAllocateToPool
    end = getattr(core, "_cuda_endAllocateToPool", None) or getattr(core, "_cuda_endAllocateCurrentStreamToPool")
    begin(index, pool.id)
    pool._users += 1
    try:
        yield
    finally:
        end(index, pool.id)
        core._cuda_releasePool(index, pool.id)
        pool._users -= 1
