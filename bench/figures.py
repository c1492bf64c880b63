#!/usr/bin/env python3
"""The figures the project promises, measured: `python3 bench/figures.py TOOL [TRACE...] [--quick] [--json FILE]`.

TOOL is build/bin/cudamempool; without TRACE the traces in bench/traces are replayed. Prints a table with the command, machine and date, and
exits 1 if a promise is missed. Times (ns per call) are printed, never judged. --quick leaves out the capacity search and all orders but one.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import subprocess
import sys

PAGE = 2 << 20
ORDERS = ("eager", "lazy", "random:1")


def replay(tool, trace, device, *more):
    command = [tool, "replay", "--json", "--device", device, *more, trace]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def device(peak, ratio, order):
    """A device of ratio times the peak, rounded up to a page."""
    return f"sim:{-(-int(peak * ratio) // PAGE) * PAGE},order={order}"


class Judge:
    """Collects what each trace was measured to do, and which promises that misses."""

    def __init__(self):
        self.rows, self.missed = [], []

    def demand(self, what, holds):
        if not holds:
            self.missed.append(what)

    def judge_trace(self, tool, trace, quick):
        name = os.path.basename(trace).split(".cmtrace")[0]
        row = {"trace": name}
        peak = replay(tool, trace, "sim:512GiB")["peak_live_bytes"]
        row["peak_live_bytes"] = peak
        for order in ORDERS[:1] if quick else ORDERS:
            tight = replay(tool, trace, device(peak, 1.006, order))
            served = tight["served"] and not tight["false_refusals"] and tight["races"] == 0
            self.demand(f"{name}: served at 1.006 x peak in order {order}, no false refusal, no race", served)
            loop = replay(tool, trace, device(peak, 1.02, order))
            self.demand(f"{name}: served at 1.02 x peak in order {order}, no race", loop["served"] and loop["races"] == 0)
            self.demand(f"{name}: no host synchronisation at 1.02 x peak in order {order}", loop["driver_calls"]["host_sync"] == 0)
            row[f"steady_{order}"] = loop["driver_calls"]["steady_per_step"]
        roomy = replay(tool, trace, device(peak, 3, "eager"))
        row["efficiency"], row["ns_per_call"] = roomy["efficiency"], roomy["ns_per_call"]
        self.demand(f"{name}: efficiency >= 0.96 with room to spare", roomy["efficiency"] >= 0.96)
        again = replay(tool, trace, device(peak, 1.02, "eager"), "--repeat-last", "16")
        row["repeated"] = again["driver_calls"]["steady_per_step"]
        if not quick:
            found = replay(tool, trace, "sim:512GiB", "--find-capacity")
            row["capacity_ratio"] = found["capacity_ratio"]
            self.demand(f"{name}: capacity ratio <= 1.005", found["capacity_ratio"] <= 1.005)
        self.rows.append(row)

    def mean(self, key):
        return sum(row[key] for row in self.rows) / len(self.rows)

    def judge_all(self, quick):
        self.demand("efficiency >= 0.985 on average", self.mean("efficiency") >= 0.985)
        self.demand("at most 900 memory calls per steady step at 1.02 x peak on average", self.mean("steady_eager") <= 900)
        quiet = sum(row["repeated"] == 0 for row in self.rows)
        self.demand("repeated steps make no memory call in 10 of 13 traces", quiet * 13 >= 10 * len(self.rows))
        if not quick:
            self.demand("capacity ratio <= 1.0025 on average", self.mean("capacity_ratio") <= 1.0025)

    def table(self):
        keys = [key for key in self.rows[0] if key != "trace"]
        width = max(len(row["trace"]) for row in self.rows)
        lines = [" ".join([f"{'trace':{width}}"] + [f"{key:>15}" for key in keys])]
        for row in self.rows:
            lines.append(" ".join([f"{row['trace']:{width}}"] + [f"{row[key]:>15}" for key in keys]))
        means = [f"{self.mean(key):>15.6g}" for key in keys]
        return "\n".join(lines + [" ".join([f"{'mean':{width}}"] + means)])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tool")
    parser.add_argument("traces", nargs="*", default=sorted(glob.glob(os.path.join(here, "traces", "*.gz"))))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    judge = Judge()
    for trace in arguments.traces:
        judge.judge_trace(arguments.tool, trace, arguments.quick)
    judge.judge_all(arguments.quick)
    head = {
        "command": " ".join(["bench/figures.py"] + [os.path.basename(word) for word in sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "date": datetime.date.today().isoformat(),
        "device": "simulated",
    }
    print("\n".join(f"{key}: {value}" for key, value in head.items()))
    print(judge.table())
    for what in judge.missed:
        print(f"MISSED  {what}")
    print(f"{len(judge.rows)} traces, {len(judge.missed)} promises missed")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({**head, "rows": judge.rows, "missed": judge.missed}, out, indent=1)
            out.write("\n")
    return 1 if judge.missed else 0


if __name__ == "__main__":
    sys.exit(main())
