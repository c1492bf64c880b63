"""Instruction counts of the main paths, against those kept in bench/instructions.json.

    python3 bench/instructions.py build             compare; exit 1 where a path costs more than the tolerance allows
    python3 bench/instructions.py build --record    write what was counted: for a change that costs more on purpose, or less

Counts do not depend on how busy the machine is. Each is the difference of two runs under valgrind, so that the start of the program is not
in it. valgrind has no membarrier: a latch is entered as on systems without it, in as many instructions. Exit 77: no valgrind here.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

KEPT = pathlib.Path(__file__).with_name("instructions.json")
# Workloads of `cudamempool bench`, each with two numbers of operations; valgrind cannot reserve the addresses of much larger devices.
PATHS = {
    "pair-512": (2000, 6000),
    "pair-64k": (2000, 6000),
    "pair-1m": (500, 1500),
    "pair-64m": (500, 1500),
    "mix-1k": (500, 1500),
    "mix-small-1k": (500, 1500),
    "streams-64": (1000, 3000),
    "record-use": (200, 600),
    "cross-free": (500, 1500),
}
BENCH = ["bin/cudamempool", "bench", "--profile", "--rounds", "1", "--capacity", "4GiB", "--live", "100", "--workload"]
# What the preload library adds to a pair: two such paths behind it, of which the second has all but the library's part.
ADDED = {"interposition": ("tests/preload/cost", "interposed", "own", 2000, 6000)}


def count(command, turns, environment):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command, str(turns)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or not found:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return int(found[1])


def each(build, program, few, many, environment):
    runs = [count([build / program[0], *program[1:]], turns, environment) for turns in (few, many)]
    return round((runs[1] - runs[0]) / (many - few))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("valgrind not found: instructions are not counted")
        return 77
    build = options.build.resolve()
    environment = dict(os.environ, CUDAMEMPOOL_DRIVER=str(build / "simcuda/libcuda.so.1"), SIMCUDA_DEVICE="sim:4GiB", CUDAMEMPOOL_CONF="")
    counted = {}
    for name, (few, many) in PATHS.items():
        counted[name] = each(build, [*BENCH, name, "--count"], few, many, environment)
    preloaded = dict(environment, LD_PRELOAD=str(build / "lib/libcudamempool_preload.so"), LD_LIBRARY_PATH=str(build / "simcuda"))
    for name, (program, whole, part, few, many) in ADDED.items():
        whole, part = (each(build, [program, case], few, many, preloaded) for case in (whole, part))
        counted[name] = whole - part
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"tolerance": 0.15, "instructions": {}}
    if options.record:
        kept["instructions"] = counted
        KEPT.write_text(json.dumps(kept, indent=4) + "\n")
    worse = 0
    for name, now in counted.items():
        before = kept["instructions"].get(name, 0)
        verdict = "costs more" if now > before * (1 + kept["tolerance"]) else "less: record it" if now < before * (1 - kept["tolerance"]) else ""
        worse += verdict == "costs more"
        print(f"{name:18} {before:7} kept {now:7} counted  {verdict}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
