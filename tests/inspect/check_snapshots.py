"""Snapshots of a program's situations, and the sample in the tree: schema, sums, and what each situation must show."""
import json
import os
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
    same("options", (pool["options"]["limit"], pool["options"]["stacks"], pool["options"]["pending"]), (96 << 20, 1, "grow"))
    if device["driver_free_bytes"] is None or len(rows(device["streams"])) != 2:
        sys.exit("the driver was not asked, or streams are missing")


def main():
    program, source = sys.argv[1:]
    load(os.path.join(source, "include/cudamempool/snapshot.sample.json"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, folder], check=True)
        found = {name[:-5]: load(os.path.join(folder, name)) for name in os.listdir(folder)}
    same("snapshots", sorted(found), ["descriptor", "everything", "freed", "none", "plain", "ring"])
    check_everything(found["everything"])
    check_everything(found["descriptor"])
    same("devices without a pool", found["none"]["devices"], [])
    same("devices and pools", [len(device["pools"]) for device in found["plain"]["devices"]], [2, 1])
    for device in found["plain"]["devices"]:
        for pool in device["pools"]:
            same("nothing that was not asked for", (rows(pool["history"]["events"]), rows(pool["slot_notes"])), ([], []))
    same("live blocks at the end", only_pool(found["freed"])["counters"]["live_blocks"], 0)
    ring = only_pool(found["ring"])["history"]
    same("events kept", len(ring["events"]["rows"]), 8)
    if ring["lost"] < 30:
        sys.exit(f"events lost: {ring['lost']}")


main()
