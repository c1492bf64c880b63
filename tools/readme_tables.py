#!/usr/bin/env python3
"""Writes the tables of README.md that come from the .def lists, between their markers.

    python3 tools/readme_tables.py            rewrite README.md
    python3 tools/readme_tables.py --check    say whether it is as it would be written; status 1 if not
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# An argument of a list's macro: a string of one or more pieces, or a word.
ARGUMENT = re.compile(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)+|[^,()"]+)\s*[,)]')


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def entries(name, macro):
    """The argument lists of each macro(...) in include/cudamempool/<name>.def."""
    text = re.sub(r"/\*.*?\*/", "", read(f"include/cudamempool/{name}.def"), flags=re.S)
    for match in re.finditer(rf"^{macro}\(", text, re.M):
        at, found = match.end(), []
        while True:
            argument = ARGUMENT.match(text, at)
            word = argument.group(1).strip()
            found.append("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', word)) if word.startswith('"') else word)
            at = argument.end()
            if text[at - 1] == ")":
                break
        yield found


def size_text(number):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number and number % unit == 0:
            return f"{number // unit}{name}"
    return str(number)


def list_row(key, names, help_text):
    return f"`{key}`", "names divided by `+`", f"`{names}`" if names else "empty", help_text


def option_rows():
    choices = dict(re.findall(r'#define CMPOOL_CHOICES_(\w+) "([^"]*)"', read("include/cudamempool/options.def")))
    for key, kind, default, low, high, help_text in entries("options", "CMPOOL_OPTION"):
        number = int(default)
        if kind == "CHOICE":
            words = choices[key].split("|")
            allowed, shown = ", ".join(f"`{word}`" for word in words), words[number]
        elif kind == "FLAG":
            allowed, shown = "`true`, `false`", "true" if number else "false"
        elif kind == "RATIO":
            allowed, shown = f"{int(low) / 1e4:g}% to {int(high) / 1e4:g}%", f"{number / 1e4:g}%"
        elif kind == "EVERY":
            allowed, shown = "`off`, `all`, `sampled:N`", "off"
        elif kind == "TEXT":
            allowed, shown = "a text", "" if number == 0 else default
        elif kind == "SECONDS":
            allowed, shown = f"{low} to {high} seconds", default
        else:
            allowed = "a size" if high == "UINT64_MAX" else f"{low} to {size_text(int(high))}"
            shown = size_text(number)
        yield f"`{key}`", allowed, f"`{shown}`" if shown else "empty", help_text
    yield from (list_row(*entry) for entry in entries("options", "CMPOOL_OPTION_LIST"))


TABLES = {
    "options": (("key", "allowed", "default", "meaning"), option_rows),
    "statuses": (("status", "number", "meaning"),
                 lambda: ((f"`CMPOOL_{name}`", number, text) for name, number, text in entries("status", "CMPOOL_STATUS"))),
    "counters": (("counter", "kind", "meaning"),
                 lambda: ((f"`{name}`", kind.lower(), text) for name, kind, text in entries("counters", "CMPOOL_COUNTER"))),
    "pinned": (("figure", "kind", "meaning"),
               lambda: ((f"`{name}`", kind.lower(), text) for name, kind, text in entries("pinned", "CMPOOL_PINNED_COUNTER"))),
    "events": (("event", "meaning"), lambda: ((f"`{name}`", text) for name, text in entries("events", "CMPOOL_EVENT"))),
}


def table(name):
    head, rows = TABLES[name]
    lines = [head, ["---"] * len(head), *rows()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main():
    old = new = read("README.md")
    for name in TABLES:
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end of table -->)"
        new, replaced = re.subn(pattern, lambda match: match.group(1) + table(name) + "\n" + match.group(2), new, flags=re.S)
        if replaced != 1:
            sys.exit(f"README.md: {replaced} places for the table of {name}, not 1")
    if sys.argv[1:] == ["--check"]:
        if new != old:
            sys.exit("README.md: its tables differ from the .def lists; run python3 tools/readme_tables.py")
        print(f"{len(TABLES)} tables are up to date")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    elif new != old:
        with open(os.path.join(ROOT, "README.md"), "w", encoding="utf-8") as file:
            file.write(new)


main()
