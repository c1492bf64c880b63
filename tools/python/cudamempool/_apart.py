"""Copies between devices that cannot reach each other's memory go through the host: the driver copies its own allocations that way by
itself, but refuses to for memory that is mapped page by page. Put in only where there are such devices. What PyTorch copies inside C++
(DataParallel, say) does not come by here and is refused by the driver; `backend:malloc` is for those."""
from __future__ import annotations

import functools
import os
from typing import Any, Optional

import torch

_reach: dict[tuple[int, int], bool] = {}


def _is_mapped(conf: Optional[str]) -> bool:
    """Whether memory is mapped page by page; as in the library, the last word counts, and options given to use() before the environment's."""
    for options in (conf or "", os.environ.get("CUDAMEMPOOL_CONF", "")):
        words = [option.partition(":")[2].strip() for option in options.split(",") if option.partition(":")[0].strip() == "backend"]
        if words:
            return words[-1] != "malloc"
    return True


def install_where_needed(conf: Optional[str]) -> None:
    """When PyTorch initialises CUDA, and not before: asking would initialise it."""
    if _is_mapped(conf):
        torch.cuda._lazy_call(_look)  # type: ignore[no-untyped-call]


def _look() -> None:
    count = torch.cuda.device_count()
    for one in range(count):
        for other in range(count):
            _reach[one, other] = one == other or torch.cuda.can_device_access_peer(one, other)
    if not all(_reach.values()):
        _install()


def _apart(tensor: Any, device: Any) -> bool:
    if not tensor.is_cuda or device is None or device.type != "cuda":
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    here = tensor.device.index
    return not (_reach.get((here, index), True) and _reach.get((index, here), True))


def _install() -> None:
    to, copy, cuda = torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.cuda

    @functools.wraps(to)
    def to_by_host(self: Any, *arguments: Any, **more: Any) -> Any:
        device = torch._C._nn._parse_to(*arguments, **{key: value for key, value in more.items() if key != "copy"})[0]
        return to(self.cpu() if _apart(self, device) else self, *arguments, **more)

    @functools.wraps(copy)
    def copy_by_host(self: Any, other: Any, *arguments: Any, **more: Any) -> Any:
        return copy(self, other.cpu() if _apart(other, self.device) else other, *arguments, **more)

    @functools.wraps(cuda)
    def cuda_by_host(self: Any, device: Any = None, *arguments: Any, **more: Any) -> Any:
        target = torch.device("cuda" if device is None else device if not isinstance(device, int) else f"cuda:{device}")
        return cuda(self.cpu() if _apart(self, target) else self, device, *arguments, **more)

    torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.cuda = to_by_host, copy_by_host, cuda_by_host  # type: ignore[method-assign]
