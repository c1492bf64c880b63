"""Snapshots of a program's situations, and the sample in the tree: schema, sums, and what each situation must show."""
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile

import snapshot_rules
from snapshot_rules import rows, same


def load(path):
    with open(path, encoding="utf-8") as file:
        snapshot = json.load(file)
    try:
        snapshot_rules.check(snapshot)
    except snapshot_rules.Mismatch as fault:
        sys.exit(f"{path}: {fault}")
    return snapshot


def only_pool(snapshot):
    return snapshot["devices"][0]["pools"][0]


def check_everything(snapshot):
    device, pool = snapshot["devices"][0], only_pool(snapshot)
    names = {row["tag"]: row for row in rows(snapshot["tags"])}
    path = {tag: (names[row["parent"]]["name"] + "/" if row["parent"] else "") + row["name"] for tag, row in names.items()}
    same("names", sorted(path.values()), ["forward", "forward/attention"])
    of_tag = {}
    for run in rows(pool["runs"]):
        if run["state"] == "live":
            of_tag.setdefault(path.get(run["tag"], run["tag"]), []).append(run["requested"])
    same("tags of blocks", of_tag[0] + of_tag["forward"], [5 << 20, (22 << 20) - 100, 3 << 20])
    notes = [path.get(note["tag"], note["tag"]) for note in rows(pool["slot_notes"])]
    same("tags of slots", (notes.count("forward/attention"), notes.count(77)), (38, 1))
    same("every live block has a time and a stack",
         [row for row in rows(pool["runs"]) + rows(pool["slot_notes"])
          if row.get("state", "live") == "live" and not (row["time_ns"] and row["stack"])], [])
    frames = [frame for stack in rows(snapshot["stacks"]) for frame in stack["frames"]]
    if not any("situations" in frame for frame in frames):
        sys.exit(f"no frame of the program: {frames}")
    kinds = {row["owner"]: row["kind"] for row in rows(pool["owners"])}
    same("owners", sorted(kinds.values()), ["capture", "pool", "private"])
    pending = {row["stream"]: row["bytes"] for row in rows(pool["pending"])}
    if pending.get(None, 0) < (6 << 20) + (2 << 20):
        sys.exit(f"what two streams and the whole device are waited for is missing: {pending}")
    events = [event["event"] for event in rows(pool["history"]["events"])]
    same("allocations in history", events.count("ALLOC"), 40 + 7)
    same("refusals in history", events.count("REFUSE"), 1)
    pinned = pool["pinned"]
    same("pinned host memory", (pinned["live_bytes"], pinned["live_blocks"], pinned["held_bytes"] >= 3 << 20), (3 << 20, 1, True))
    same("options", (pool["options"]["limit"], pool["options"]["stacks"], pool["options"]["pending"]), (96 << 20, 1, "grow"))
    if device["driver_free_bytes"] is None or len(rows(device["streams"])) != 2:
        sys.exit("the driver was not asked, or streams are missing")


def check_refused(snapshot):
    refusal = only_pool(snapshot)["last_refusal"]
    same("refusal", (refusal["status"], refusal["verdict"], refusal["request_bytes"]), ("OUT_OF_DEVICE_MEMORY", "true_demand", 100 << 20))
    same("rungs", [rung["rung"] for rung in refusal["ladder"]][:2], ["bins", "promote"])
    names = {row["tag"]: row["name"] for row in rows(snapshot["tags"])}
    same("holders", [names[holder["key"]] for holder in refusal["holders"] if holder["by"] == "tag"], ["weights"])
    if not refusal["advice"] or "verdict: true_demand" not in refusal["text"]:
        sys.exit(f"the report says too little: {refusal}")


def check_watched(program, folder):
    """Snapshots that nobody calls for: after a signal, at refusals, at exit."""
    environment = dict(os.environ, SIMCUDA_DEVICE="sim:64MiB", CUDAMEMPOOL_CONF=",".join([
        f"snapshot_signal:{signal.SIGUSR2.value}", f"snapshot_file:{folder}/signal-%p.json", f"snapshot_at_exit:{folder}/exit-%p.json",
        f"snapshot_on_refusal:{folder}/refusal-%n.json", "snapshot_refusals:1", "refusal_report:on"]))
    with subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.communicate()
    same("the program's end", (process.returncode, output), (0, "CMPOOL_OK\n"))
    same("reports", errors.count("cudamempool: refused 1.0 TiB on device 0"), 2)
    names = {f"signal-{process.pid}.json": ("signal", 2), "refusal-1.json": ("refusal", 2), f"exit-{process.pid}.json": ("exit", 2)}
    same("files", sorted(os.listdir(folder)), sorted(names))
    for name, (reason, blocks) in names.items():
        snapshot = load(os.path.join(folder, name))
        same(name, (snapshot["reason"], snapshot["process"]["pid"], snapshot["process"]["program"]), (reason, process.pid, "watched"))
        same(f"live blocks in {name}", only_pool(snapshot)["counters"]["live_blocks"], blocks)
    same("the driver at exit", snapshot["devices"][0]["driver_free_bytes"], None)
    environment["CUDAMEMPOOL_CONF"] = f"snapshot_signal:{signal.SIGUSR2.value},snapshot_file:{folder}/never.json"
    result = subprocess.run([program, str(signal.SIGUSR2.value)], env=environment, capture_output=True, text=True, check=True)
    same("a signal that the program uses is left to it", "is used by the program" in result.stderr, True)
    same("and nothing is written", os.path.exists(os.path.join(folder, "never.json")), False)


def check_trace(path, tool):
    """What was recorded replays to the same live peak."""
    with open(path + ".peak", encoding="ascii") as file:
        peak = int(file.read())
    with gzip.open(path, "rt", encoding="ascii") as file:
        letters = [line[0] for line in file]
    same("steps", letters.count("s"), 40)
    same("blocks given back", letters.count("a"), letters.count("f"))
    if not letters.count("u") or letters.count("a") < 4096:
        sys.exit("the trace is too short to show anything")
    command = [tool, "replay", "--device", "sim:256MiB", "--json", path]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    same("live peak of the replay", figures["peak_live_bytes"], peak)
    same("served", (figures["served"], figures["races"]), (True, 0))


def main():
    programs, source, tool = sys.argv[1:]
    load(os.path.join(source, "include/cudamempool/snapshot.sample.json"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(programs, "situations"), folder], check=True)
        found = {name[:-5]: load(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".json")}
        check_trace(os.path.join(folder, "calls.cmtrace.gz"), tool)
    with tempfile.TemporaryDirectory() as folder:
        check_watched(os.path.join(programs, "watched"), folder)
    same("snapshots", sorted(found), ["descriptor", "everything", "freed", "none", "plain", "refused", "regions", "ring"])
    check_refused(found["refused"])
    check_everything(found["everything"])
    check_everything(found["descriptor"])
    same("devices without a pool", found["none"]["devices"], [])
    same("devices and pools", [len(device["pools"]) for device in found["plain"]["devices"]], [2, 1])
    for device in found["plain"]["devices"]:
        for pool in device["pools"]:
            same("nothing that was not asked for", (rows(pool["history"]["events"]), rows(pool["slot_notes"])), ([], []))
    regions = only_pool(found["regions"])
    same("regions", sorted((row["bytes"], row["max_bytes"]) for row in rows(regions["regions"])), [(0, 10 << 20), (8 << 20, 40 << 20)])
    same("bytes of regions", (regions["counters"]["region_bytes"], regions["counters"]["live_bytes"]), (8 << 20, 8 << 20))
    same("live blocks at the end", only_pool(found["freed"])["counters"]["live_blocks"], 0)
    ring = only_pool(found["ring"])["history"]
    same("events kept", len(ring["events"]["rows"]), 8)
    if ring["lost"] < 30:
        sys.exit(f"events lost: {ring['lost']}")


main()
