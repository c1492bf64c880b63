"""Statistics in the form of torch._C._cuda_memoryStats, from the pool's counters."""
from __future__ import annotations

from typing import Any

from . import _library

_GROUPS = ("all", "small_pool", "large_pool")
_baselines: dict[int, dict[str, tuple[int, int]]] = {}  # device: what was counted when reset_accumulated_memory_stats was called
_peak_blocks: dict[int, int] = {}


def _empty() -> dict[str, int]:
    return {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def _counts(device: int) -> dict[str, tuple[int, int]]:
    """What only grows: of each kind the number or bytes allocated and freed."""
    counters = _library.counters(device)
    served, freed = _library.totals(device)
    page = counters["reserved_bytes"] // pages if (pages := counters["pages_created"] - counters["pages_released"]) > 0 else 2 << 20
    return {
        "blocks": (counters["allocations"], counters["frees"]),
        "bytes": (served, freed),
        "pages": (counters["pages_created"], counters["pages_released"]),
        "reserved": (counters["pages_created"] * page, counters["pages_released"] * page),
        "events": (counters["refusals"], counters["host_waits"]),
    }


def memory_stats(device: int) -> dict[str, Any]:
    """All memory counts as PyTorch's large pool: there is no other. Bytes of slots and whole 512-byte steps count as allocated, as there."""
    counters = _library.counters(device)
    kinds = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
             "requested_bytes")
    result: dict[str, Any] = {
        "num_alloc_retries": 0, "num_ooms": 0, "max_split_size": -1, "num_sync_all_streams": 0, "num_device_alloc": 0, "num_device_free": 0,
        "oversize_allocations": _empty(), "oversize_segments": _empty(), "reserved_bytes_by_private_pools": {},
    }
    for kind in kinds:
        result[kind] = {group: _empty() for group in _GROUPS}
    if not counters:
        return result
    base = _baselines.get(device, {})
    counts = {key: tuple(new - old for new, old in zip(value, base.get(key, (0, 0)))) for key, value in _counts(device).items()}
    peak_blocks = _peak_blocks[device] = max(_peak_blocks.get(device, 0), counters["live_blocks"])

    def put(kind: str, current: int, peak: int, count: str) -> None:
        allocated, freed = counts[count]
        for group in ("all", "large_pool"):
            result[kind][group] = {"current": current, "peak": max(peak, current), "allocated": allocated, "freed": freed}

    live, reserved = counters["live_bytes"], counters["reserved_bytes"]
    held = counters["pages_created"] - counters["pages_released"]
    put("allocation", counters["live_blocks"], peak_blocks, "blocks")
    put("active", counters["live_blocks"], peak_blocks, "blocks")
    put("segment", held, held, "pages")
    put("allocated_bytes", live, counters["peak_live_bytes"], "bytes")
    put("active_bytes", live, counters["peak_live_bytes"], "bytes")
    put("requested_bytes", counters["requested_bytes"], counters["requested_bytes"], "bytes")
    put("reserved_bytes", reserved, counters["peak_reserved_bytes"], "reserved")
    partly = max(reserved - live - counters["idle_bytes"], 0)  # free bytes of pages that carry live ones
    put("inactive_split_bytes", partly, partly, "bytes")
    result["num_ooms"], result["num_sync_all_streams"] = counts["events"]
    result["num_device_alloc"], result["num_device_free"] = counts["pages"]
    return result


def reset_peaks(device: int) -> None:
    _library.reset_peaks(device)
    _peak_blocks.pop(device, None)


def reset_accumulated(device: int) -> None:
    if _library.pool(device):
        _baselines[device] = _counts(device)
