"""This library and other allocators side by side: same machine, same simulated device, same workloads, one after the other.

    python3 bench/peers/run.py BUILD --install                          fetch the packages into BUILD/peers first (1.3 GB of downloads)
    python3 bench/peers/run.py BUILD [--out FILE] [--instructions]      made-up workloads, in three orders of the device
    python3 bench/peers/run.py BUILD [--out FILE] TRACE...              recorded programs instead

Nothing is fetched without --install. FILE.json has all figures with command, machine, date and build; FILE.md the tables, FILE.svg the plot
(bench/peers/report.py makes both again from the first). Each workload is run by every allocator in turn, REPEAT times over, so that what else the machine
does meets all of them alike; the best run counts. --instructions counts instructions of an operation with valgrind as well.
"""
import argparse
import json
import os
import re
import subprocess
import sys

import peers
import report

# workload -> operations a round: fewer than the workload's own, since some allocators take their time
WORKLOADS = {"pair-512": 200000, "pair-64k": 200000, "pair-1m": 200000, "pair-4m": 200000, "pair-64m": 200000, "mix-1k": 50000,
             "mix-small-1k": 50000, "mix-small-1m": 100000, "threads-1": 200000, "threads-2": 200000, "processes-2": 200000,
             "one-stream-2": 200000, "handoff": 100000, "streams-64": 100000, "record-use": 20000, "cross-free": 20000, "page-moves": 5000,
             "memory-512": 1}
ORDERED = ["streams-64", "record-use", "page-moves"]  # those in which the order of the device can be felt
COUNTED = {"pair-512": (500, 1500), "pair-4m": (500, 1500), "mix-1k": (300, 900), "streams-64": (500, 1500), "record-use": (200, 600)}
LIMIT_S = 40


class Runner:
    def __init__(self, build, packages):
        self.build, self.tool = build, os.path.join(build, "bin/cudamempool")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "SIMCUDA", "PYTORCH", "LD_PRELOAD"))}
        self.environment = {**kept, "LD_LIBRARY_PATH": peers.library_path(build, packages)}

    def bench(self, name, allocator, words, before=()):
        environment = {**self.environment, **peers.PEERS[name].environment}
        try:
            return subprocess.run([*before, self.tool, "bench", "--allocator", allocator, *words], env=environment, capture_output=True, text=True,
                                  timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return None

    def measure(self, name, allocator, words):
        """The header, and the row or what went wrong."""
        done = self.bench(name, allocator, ["--json", *words])
        if done is None:
            return None, {"failed": f"not done after {LIMIT_S} s"}
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode != 0 or len(lines) != 2:
            said = [line for line in done.stderr.splitlines() if "not simulated" not in line and line.strip()]
            return lines[0] if lines else None, {"failed": (said or ["?"])[0][:200]}
        return lines[0], lines[1]

    def instructions(self, name, allocator, workload, few, many):
        counts = []
        for operations in (few, many):
            words = ["--profile", "--rounds", "1", "--capacity", "4GiB", "--live", "100", "--count", str(operations), "--workload", workload]
            done = self.bench(name, allocator, words, ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"))
            found = re.search(r"Collected : (\d+)", done.stderr) if done and done.returncode == 0 else None
            if not found:
                return None
            counts.append(int(found[1]))
        return round((counts[1] - counts[0]) / (many - few))


def better(old, new):
    """Of two runs of the same: the quicker one's times; what is no time is the same in both."""
    if old is None or "failed" in old or "ns" not in old:
        return new
    if "ns" not in new:
        return old
    best = dict(new if report.own(new) < report.own(old) else old)
    for key in ("p50_ns", "p99_ns", "p999_ns", "worst_ns", "first_ns"):
        if key in old and key in new:
            best[key] = min(old[key], new[key])
    return best


def tasks(given):
    if given.traces:
        return [(os.path.basename(trace).partition(".cmtrace")[0], "eager", [trace]) for trace in given.traces]
    chosen = given.workload or WORKLOADS
    return [(workload, order, ["--workload", workload, "--count", str(given.count or WORKLOADS[workload])]) for order in ("eager", "lazy", "random:1") for workload in chosen
            if order == "eager" or workload in ORDERED]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--cuda", default="/usr/local/cuda", help="a CUDA toolkit, for its headers")
    parser.add_argument("--only", action="append", choices=list(peers.PEERS))
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--count", type=int, help="operations a round, instead of the workload's")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--out", default="peers", help="name of the results, without extension")
    given = parser.parse_intermixed_args()
    packages = os.path.join(given.build, "peers/packages")
    if given.install:
        os.makedirs(packages, exist_ok=True)
        peers.install(packages)
    result = {"command": " ".join(["python3", "bench/peers/run.py", *(os.path.basename(word) if "/" in word else word for word in sys.argv[1:])]),
              "about": None, "allocators": {}, "absent": {}, "rows": []}
    allocators = {}
    for name in given.only or peers.PEERS:
        words, reason = peers.build_peer(name, given.build, packages, given.cuda)
        if reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            result["absent"][name] = reason
        else:
            allocators[name] = words
            result["allocators"][name] = peers.PEERS[name].about
    runner = Runner(given.build, packages)
    for label, order, words in tasks(given):
        best = dict.fromkeys(allocators)
        for _ in range(given.repeat):
            for name, allocator in allocators.items():
                about, row = runner.measure(name, allocator, [*words, "--order", order, "--rounds", str(given.rounds)])
                result["about"] = result["about"] or about
                best[name] = better(best[name], row)
        for name, row in best.items():
            for key in ("about", "allocator", "device", "operation"):
                row.pop(key, None)
            result["rows"].append({**row, "workload": label, "order": order, "allocator": name})
        shown = [f"{name} {report.own(row):.0f}" for name, row in best.items() if "ns" in row]
        print(f"{label} ({order}): {', '.join(shown)}", file=sys.stderr, flush=True)
    if given.instructions:
        result["instructions"] = {workload: {name: runner.instructions(name, allocator, workload, *pair) for name, allocator in allocators.items()}
                                  for workload, pair in COUNTED.items()}
    del result["about"]["command"]
    with open(f"{given.out}.json", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    report.write(result, given.out)


if __name__ == "__main__":
    main()
