"""Snapshots in the form of torch._C._cuda_memorySnapshot, made of the library's own (include/cudamempool/snapshot.schema.json)."""
from __future__ import annotations

import ctypes
import json
import os
import re
import tempfile
from typing import Any, Iterator, Optional

from . import _library

_FRAME = re.compile(r"(?:(?P<name>\S+?)\+0x[0-9a-f]+ \()?(?P<file>[^()]+?)\+0x[0-9a-f]+\)?$")


def memory_snapshot(_mempool_id: Any = None, *_more: Any, **_options: Any) -> dict[str, Any]:
    return convert(_take())


def _take() -> dict[str, Any]:
    if not _library.has("cmpool_snapshot_write"):
        raise RuntimeError(f"{_library.path()} is of a version that writes no snapshots")
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "snapshot.json")
        _library.check(_library.function("cmpool_snapshot_write", ctypes.c_char_p)(name.replace("%", "%%").encode()), "cmpool_snapshot_write")
        with open(name, encoding="utf-8") as file:
            taken: dict[str, Any] = json.load(file)
            return taken


def _rows(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (dict(zip(table["columns"], row)) for row in table["rows"])


def _frame(words: str) -> dict[str, Any]:
    found = _FRAME.match(words)
    return {"filename": found["file"] if found else "", "line": 0, "name": (found and found["name"]) or words}


def convert(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A PyTorch snapshot of the same moment: a segment is a stretch of mapped pages, its blocks tile it."""
    stacks = {row["stack"]: [_frame(words) for words in row["frames"]] for row in _rows(snapshot["stacks"])}
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    for device in snapshot["devices"]:
        while len(traces) <= device["device"]:
            traces.append([])
        for pool in device["pools"]:
            segments.extend(_segments(device["device"], pool, stacks))
            traces[device["device"]].extend(_trace(pool, snapshot["time"], stacks))
    segments.sort(key=lambda segment: segment["address"])
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), "max_split_size": -1, "garbage_collection_threshold": 0.0,
        "expandable_segments": True, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False, "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
    }
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}


def _segments(device: int, pool: dict[str, Any], stacks: dict[int, Any]) -> list[dict[str, Any]]:
    slabs = {row["address"]: row for row in _rows(pool["slabs"])}
    owners = {row["owner"]: row for row in _rows(pool["owners"])}
    segments: list[dict[str, Any]] = []
    current: Optional[dict[str, Any]] = None
    for run in sorted(_rows(pool["runs"]), key=lambda run: run["address"]):
        if run["state"] in ("hole", "stale"):
            current = None
            continue
        number = run["owner"] if owners.get(run["owner"], {}).get("kind", "pool") != "pool" else 0
        if current is None or current["address"] + current["total_size"] != run["address"]:
            current = {"device": device, "address": run["address"], "total_size": 0, "allocated_size": 0, "active_size": 0, "requested_size": 0,
                       "stream": 0, "segment_type": "large", "segment_pool_id": (0, number), "is_expandable": True, "frames": [], "blocks": []}
            segments.append(current)
        for block in _blocks(run, slabs, stacks):
            current["blocks"].append(block)
            current["total_size"] += block["size"]
            if block["state"] != "inactive":
                current["active_size"] += block["size"]
                current["requested_size"] += block["requested_size"]
            if block["state"] == "active_allocated":
                current["allocated_size"] += block["size"]
    return segments


def _block(address: int, size: int, state: str, requested: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def _blocks(run: dict[str, Any], slabs: dict[int, Any], stacks: dict[int, Any]) -> Iterator[dict[str, Any]]:
    """One block for a run; for a slab one for each live slot and for what lies between."""
    if run["state"] == "slab" and run["address"] in slabs:
        slab = slabs[run["address"]]
        at, end, size = run["address"], run["address"] + run["bytes"], slab["slot_bytes"]
        for kind in re.findall(r"L|P+|[^LP]+", slab["slots"]):
            state = {"L": "active_allocated", "P": "active_pending_free"}.get(kind[0], "inactive")
            bytes_here = min(size * len(kind), end - at)
            yield _block(at, bytes_here, state, bytes_here if state != "inactive" else 0, [])
            at += bytes_here
        if at < end:
            yield _block(at, end - at, "inactive", 0, [])
        return
    if run["state"] in ("live", "busy"):
        yield _block(run["address"], run["bytes"], "active_allocated", run["requested"] or run["bytes"], stacks.get(run["stack"], []))
    elif run["state"] == "pending" and not run["stream"]:  # several streams have to finish, as after record_stream
        yield _block(run["address"], run["bytes"], "active_pending_free", run["bytes"], [])
    else:
        yield _block(run["address"], run["bytes"], "inactive", 0, [])


def _trace(pool: dict[str, Any], time: dict[str, int], stacks: dict[int, Any]) -> Iterator[dict[str, Any]]:
    """The event history, where it was recorded, in PyTorch's words."""
    words = {"alloc": ("alloc",), "free": ("free_requested", "free_completed"), "grow": ("segment_map",), "release": ("segment_unmap",),
             "refuse": ("oom",)}
    for event in _rows(pool["history"]["events"]):
        when = (time["realtime_ns"] - time["monotonic_ns"] + event["time_ns"]) // 1000
        for action in words.get(str(event["event"]).lower(), ()):
            entry = {"action": action, "addr": event["address"], "size": event["bytes"], "stream": event["stream"] or 0, "time_us": when,
                     "frames": stacks.get(event.get("stack", 0), [])}
            if action == "oom":
                entry["device_free"] = entry.pop("addr")
            yield entry
