"""Who may include whom: a room sees itself and the rooms above it, with the exceptions below."""
import os
import re

import tree

ROOMS = ["base", "record", "driver", "vm", "heap", "pool", "pinned", "inspect", "api", "trace", "preload"]
NEVER = {
    "heap": {"driver", "vm"},  # pure: offsets in and out, no device
    "preload": set(ROOMS) - {"preload"},  # a client of the public interface like any other
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
OWN_HEADERS = ("cudamempool/",)


def may_include(path, included):
    """Whether a file may include a header of a room of lib."""
    room = included.split("/")[0]
    parts = path.split("/")
    if parts[0] == "lib":
        own = parts[1]
        return ROOMS.index(room) <= ROOMS.index(own) and room not in NEVER.get(own, set())
    if parts[:2] == ["tools", "simcuda"]:
        return included in ("driver/driver_abi.h", "driver/driver_enums.def")
    if parts[:2] == ["tools", "cudamempool"]:
        return room in ("base", "trace") or included == "inspect/verdict.h"
    if parts[0] == "tests":
        # abi compares the library's own declarations of the driver and of NVTX with a toolkit's; simcuda's programs are written against those
        allowed = {"integration": (), "simcuda": ("driver",), "gpu": ("driver",), "abi": ("driver", "record")}
        return room in allowed.get(parts[1], ROOMS)
    if parts[:2] == ["bench", "workloads"]:
        return included == "trace/trace.h"
    return False  # include, examples, other benchmarks: public headers only


def check(source, path, findings):
    text = tree.read(source, path)
    for bracket, name in INCLUDE.findall(text):
        where = f"{path}: includes {name}"
        if bracket == "<" and name.startswith(OWN_HEADERS):
            if not os.path.exists(os.path.join(source, "include", name)):
                findings.append(f"{where}, which is no public header")
        elif bracket == '"' and name.split("/")[0] in ROOMS and "/" in name:
            if not os.path.exists(os.path.join(source, "lib", name)):
                findings.append(f"{where}, which does not exist")
            elif not may_include(path, name):
                findings.append(f"{where}, which lies in a room it must not know")
        elif bracket == '"' and name == "simcuda.h":
            if path.split("/")[0] not in ("tools", "tests", "bench"):
                findings.append(f"{where}: the simulated device's control panel is for tools and tests")
        elif bracket == '"':
            beside = [os.path.join(source, os.path.dirname(path), name), os.path.join(source, "tools/simcuda", name)]
            if path.startswith("tools/cudamempool/bench_") and name == "bench.h":
                beside[0] = os.path.join(source, "bench/workloads", name)
            if path.startswith(("lib/", "include/")):
                findings.append(f"{where}: write \"room/header.h\" or <cudamempool/header.h>")
            elif not any(os.path.exists(place) for place in beside):
                findings.append(f"{where}, which does not exist")
            elif not os.path.exists(beside[0]) and not path.startswith(("tools/simcuda/", "tests/simcuda/")):
                findings.append(f"{where}, a private header of simcuda")


def main():
    source, _ = tree.arguments()
    findings = []
    paths = tree.files(source, (".c", ".h", ".def"))
    for path in paths:
        if path.startswith("lib/") and path.split("/")[1] not in ROOMS:
            findings.append(f"{path}: no room of that name; the order of rooms is in lib/README.md and in this check")
        else:
            check(source, path, findings)
    tree.finish(findings, len(paths))


main()
