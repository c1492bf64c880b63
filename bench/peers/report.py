"""Tables and a plot of what bench/peers/run.py measured. Usage: report.py FILE.json: writes FILE.md and FILE.svg beside it."""
import json
import math
import sys

OURS = "cudamempool"
COLOURS = ["#d62728", "#1f77b4", "#6baed6", "#9ecae1", "#2ca02c", "#98df8a", "#ff7f0e", "#ffbb78", "#9467bd", "#7f7f7f", "#c7c7c7", "#e0e0e0"]


DRIVER = 0.1  # share of the time above which the simulated driver's part cannot be taken off: it is real time, not the processor's


def with_driver(row):
    return row.get("driver_ns", 0) > DRIVER * row.get("cpu_ns", 0)


def own(row):
    """An operation's time: the processor's without the simulated driver where that can be said; None where nothing was measured."""
    return row.get("cpu_ns", row.get("ns")) if with_driver(row) else row.get("own_ns", row.get("ns"))


def cell(row, ours):
    if own(row) is None:
        return "-" if "skipped" in row else "failed"
    time = f"{own(row):.0f}" + ("+" if with_driver(row) else "")
    if row["allocator"] != OURS and ours:
        time += f" ({own(row) / ours:.1f})"
    return time + ("*" if row.get("refused") else "")


def table(rows, allocators, value, head):
    lines = ["| " + " | ".join([head, *allocators]) + " |", "|---" * (len(allocators) + 1) + "|"]
    for label in dict.fromkeys(row["workload"] for row in rows):
        found = {row["allocator"]: row for row in rows if row["workload"] == label}
        lines.append("| " + " | ".join([label, *(value(found[name], found.get(OURS)) if name in found else "" for name in allocators)]) + " |")
    return lines


def times(row, ours):
    return cell(row, own(ours) if ours else None)


def percentiles(row, _):
    return f"{row['p50_ns']:.0f} / {row['p99_ns']:.0f} / {row['p999_ns']:.0f} / {row['worst_ns'] / 1000:.0f}k" if "p50_ns" in row else "-"


def waits(row, _):
    return f"{row['memory_calls']:.2f}, {row['host_waits']:.3f}" if "host_waits" in row else "-"


def notes(result):
    for row in result["rows"]:
        if "failed" in row:
            yield f"- {row['allocator']}, {row['workload']} ({row['order']}): {row['failed']}"
        elif row.get("refused"):
            yield f"- {row['allocator']}, {row['workload']} ({row['order']}): {row['refused']:.0f} requests refused"
    for name, reason in result["absent"].items():
        yield f"- {name} was not run: {reason}"


def markdown(result, name):
    about, allocators = result["about"], list(result["allocators"])
    machine = about["machine"]
    lines = [f"# Allocators side by side, {about['date'][:10]}", "", f"`{result['command']}`", "",
             f"{machine['processor']}, {machine['cores']} cores shared with other work (load {machine['load']} at the start); {machine['system']}; "
             f"libcudamempool {about['build']['version']}, {about['build']['type']}, gcc {about['build']['compiler']}. Simulated device: not a GPU.", ""]
    lines += [f"- {key}: {words}" for key, words in result["allocators"].items()]
    lines += ["", f"![Times]({name.rpartition('/')[2]}.svg)"]
    for order in dict.fromkeys(row["order"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["order"] == order]
        lines += ["", f"## Order {order}", "", "Processor time of one operation without the simulated driver, ns, best round; in brackets, over ours. "
                  "+: with the simulated driver, which took more than a tenth. *: requests were refused. Workloads of several workers: real "
                  "time, and so what else the machine did is in it.", "", *table(rows, allocators, times, "ns")]
        lines += ["", "Calls of the driver about memory and calls on which the host waits, an operation.", "",
                  *table([row for row in rows if any("host_waits" in other for other in rows if other["workload"] == row["workload"])], allocators,
                         waits, "memory calls, host waits")]
        if order == "eager":
            lines += ["", "Single calls that needed no driver, the clock's reading included: p50 / p99 / p99.9 / worst, ns (k: thousand).", "",
                      *table(rows, allocators, percentiles, "ns a call")]
    if "instructions" in result:
        lines += ["", "## Instructions", "", "Of one operation, counted by callgrind (simulated driver included, 100 live blocks).", "",
                  "| | " + " | ".join(allocators) + " |", "|---" * (len(allocators) + 1) + "|"]
        lines += ["| " + " | ".join([workload, *(str(counts.get(key) or "-") for key in allocators)]) + " |"
                  for workload, counts in result["instructions"].items()]
    memory = [row for row in result["rows"] if "host_bytes_per_block" in row]
    if memory:
        lines += ["", "## Host memory", "", "| | with one block | with 1,000 | with all | a block |", "|---|---|---|---|---|"]
        lines += [f"| {row['allocator']}, {row['workload']} | {row['host_fixed_bytes']:.0f} | {row['host_few_bytes']:.0f} | "
                  f"{row['host_many_bytes']:.0f} | {row['host_bytes_per_block']:.1f} |" for row in memory]
    told = list(notes(result))
    return "\n".join(lines + (["", "## Notes", "", *told] if told else [])) + "\n"


def svg(result):
    rows = [row for row in result["rows"] if row["order"] == "eager" and own(row) and own(row) > 0 and row["allocator"] != "nothing"]
    labels, allocators = list(dict.fromkeys(row["workload"] for row in rows)), [key for key in result["allocators"] if key != "nothing"]
    left, right, line, top = 170, 960, 24, 40 + 18 * math.ceil(len(allocators) / 4)
    decades = range(1, math.ceil(math.log10(max(own(row) for row in rows))) + 1)

    def x(ns):
        return left + (right - left) * (math.log10(max(ns, 10)) - 1) / max(decades[-1] - 1, 1)

    height = top + line * len(labels) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="1000" height="{height}" fill="white"/>',
           '<text x="20" y="20" font-size="14">Nanoseconds of one operation (logarithmic; left is better)</text>']
    for number, name in enumerate(allocators):
        at = 20 + 240 * (number % 4), 40 + 18 * (number // 4)
        out += [f'<circle cx="{at[0]}" cy="{at[1] - 4}" r="5" fill="{COLOURS[number]}"/>', f'<text x="{at[0] + 10}" y="{at[1]}">{name}</text>']
    for decade in decades:
        at = x(10 ** decade)
        out += [f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{height - 30}" stroke="#ddd"/>',
                f'<text x="{at:.1f}" y="{height - 12}" text-anchor="middle">{10 ** decade}</text>']
    for number, label in enumerate(labels):
        y = top + line * number + line / 2
        out += [f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#f0f0f0"/>', f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{label}</text>']
        found = {row["allocator"]: row for row in rows if row["workload"] == label}
        for name in reversed(allocators):
            if name in found:
                colour, radius = COLOURS[allocators.index(name)], 6 if name == OURS else 4.5
                out.append(f'<circle cx="{x(own(found[name])):.1f}" cy="{y}" r="{radius}" fill="{colour}" fill-opacity="0.85"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def write(result, name):
    for extension, text in (("md", markdown(result, name)), ("svg", svg(result))):
        with open(f"{name}.{extension}", "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as given:
        write(json.load(given), sys.argv[1].removesuffix(".json"))
