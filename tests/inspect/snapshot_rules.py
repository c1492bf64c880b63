"""What every snapshot must satisfy: its schema, and sums that agree with each other."""
import json
import os


class Mismatch(Exception):
    pass


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def has_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def conforms(value, schema, root, where="snapshot"):
    """Holds a value against the parts of JSON Schema that snapshot.schema.json uses."""
    known = {"$schema", "$id", "title", "description", "$defs", "$ref", "oneOf", "const", "enum", "type", "minimum", "pattern", "required",
             "properties", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"}
    if set(schema) - known:
        raise Mismatch(f"{where}: the schema has words this reader does not know: {set(schema) - known}")
    if "$ref" in schema:
        conforms(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    if "oneOf" in schema:
        faults = []
        for choice in schema["oneOf"]:
            try:
                conforms(value, choice, root, where)
            except Mismatch as fault:
                faults.append(fault)
        if len(faults) + 1 != len(schema["oneOf"]):
            raise Mismatch(f"{where}: {faults}")
    if "const" in schema and value != schema["const"]:
        raise Mismatch(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        raise Mismatch(f"{where}: {value!r} is none of {schema['enum']}")
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(has_type(value, name) for name in names):
        raise Mismatch(f"{where}: {value!r} is no {' or '.join(names)}")
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        raise Mismatch(f"{where}: {value} is below {schema['minimum']}")
    if isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                raise Mismatch(f"{where}: has no {key}")
        for key, item in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if rule is False:
                raise Mismatch(f"{where}: {key} is not in the schema")
            if isinstance(rule, dict):
                conforms(item, rule, root, f"{where}.{key}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise Mismatch(f"{where}: {len(value)} items")
        rules = schema.get("prefixItems")
        for i, item in enumerate(value):
            rule = rules[i] if rules else schema.get("items")
            if rule:
                conforms(item, rule, root, f"{where}[{i}]")


def rows(table):
    return [dict(zip(table["columns"], row)) for row in table["rows"]]


def same(what, one, other):
    if one != other:
        raise Mismatch(f"{what}: {one} and {other}")


def check_memory(device, pool):
    """Runs against ranges, slots, slabs, counters and what is pending."""
    counters, page = pool["counters"], device["page_bytes"]
    runs, slots, slabs = rows(pool["runs"]), rows(pool["slots"]), {slab["address"]: slab for slab in rows(pool["slabs"])}
    for what, pieces, length in (("runs", runs, lambda r: r["bytes"]), ("slots", slots, lambda r: r["pages"] * page)):
        at = iter(pieces)
        for span in rows(pool["ranges"]):
            end = span["address"]
            while end < span["address"] + span["bytes"]:
                piece = next(at)
                same(f"{what} lie one behind the other", piece["address"], end)
                end += length(piece)
            same(f"{what} end with the range", end, span["address"] + span["bytes"])
        same(f"{what} outside every range", list(at), [])
    same("ranges", sum(span["bytes"] for span in rows(pool["ranges"])), counters["address_bytes"])
    live = [run for run in runs if run["state"] == "live"]
    live_slots = sum(slab["slots"].count("L") for slab in slabs.values())
    live_bytes = sum(slab["slots"].count("L") * slab["slot_bytes"] for slab in slabs.values())
    same("live bytes", sum(run["bytes"] for run in live) + live_bytes, counters["live_bytes"])
    same("live blocks", len(live) + live_slots, counters["live_blocks"])
    same("requested bytes", sum(run["requested"] for run in live) + live_bytes, counters["requested_bytes"])
    same("slabs", {run["address"] for run in runs if run["state"] == "slab"}, set(slabs))
    mapped = sum(slot["pages"] for slot in slots if slot["state"] == "mapped")
    same("mapped slots", mapped * page, counters["reserved_bytes"])
    same("stale slots", sum(slot["pages"] for slot in slots if slot["state"] == "stale"), counters["stale_slots"])
    idle, low, high = 0, None, None  # whole pages of neighbouring free runs
    for run in runs + [{"state": "end", "address": 0, "bytes": 0}]:
        if run["state"] in ("free", "pending") and run["address"] == high:
            high += run["bytes"]
            continue
        if low is not None:
            idle += max(0, high // page * page - -(-low // page) * page)
        low, high = (run["address"], run["address"] + run["bytes"]) if run["state"] in ("free", "pending") else (None, None)
    same("idle bytes", idle, counters["idle_bytes"])
    owners = {owner["owner"]: owner for owner in rows(pool["owners"])}
    for number, owner in owners.items():
        theirs = [slabs[run["address"]] for run in runs if run["state"] == "slab" and run["owner"] == number]
        free = sum(run["bytes"] for run in runs if run["state"] in ("free", "pending") and run["owner"] == number)
        free += sum((slab["slots"].count("F") + slab["slots"].count("P")) * slab["slot_bytes"] for slab in theirs)
        held = sum(run["bytes"] for run in live if run["owner"] == number)
        held += sum(slab["slots"].count("L") * slab["slot_bytes"] for slab in theirs)
        same(f"free bytes of owner {number}", free, owner["free_bytes"])
        same(f"live bytes of owner {number}", held, owner["live_bytes"])
    pending = {row["stream"]: row["bytes"] for row in rows(pool["pending"])}
    parked = sum(slab["slots"].count("P") * slab["slot_bytes"] for slab in slabs.values() if slab["stamp"])
    least = sum(run["bytes"] for run in runs if run["state"] == "pending") + parked
    if not least <= sum(pending.values()) <= sum(owner["free_bytes"] for owner in owners.values()):
        raise Mismatch(f"pending bytes: {pending} for runs with {least}")


def check_numbers(snapshot, device, pool):
    """Everything that is named by a number is there."""
    streams = {row["stream"] for row in rows(device["streams"])} | {0}
    stamps = {row["stamp"] for row in rows(device["stamps"])} | {0}
    tags = {row["tag"] for row in rows(snapshot["tags"])}
    stacks = {row["stack"] for row in rows(snapshot["stacks"])} | {0}
    for name in ("runs", "slot_notes", "slots", "slabs"):
        for row in rows(pool[name]):
            for column, there in (("stream", streams), ("stamp", stamps), ("stack", stacks)):
                if row.get(column, 0) not in there:
                    raise Mismatch(f"{name}: {column} {row[column]} is not listed")
            if row.get("tag", 0) >= 1 << 31 and row["tag"] not in tags:
                raise Mismatch(f"{name}: tag {row['tag']} has no name")
    times = [event["time_ns"] for event in rows(pool["history"]["events"])]
    same("history in order of time", times, sorted(times))


def check(snapshot):
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../include/cudamempool/snapshot.schema.json"), encoding="utf-8") as file:
        schema = json.load(file)
    conforms(snapshot, schema, schema)
    for device in snapshot["devices"]:
        same("held pages", sum(pool["counters"]["reserved_bytes"] for pool in device["pools"]), device["held_pages"] * device["page_bytes"])
        for pool in device["pools"]:
            check_memory(device, pool)
            check_numbers(snapshot, device, pool)
