"""Every public call is asked for nonsense, joins the random programs (and with them the fuzzer), and has each driver call fail under it."""
import re

import tree

PROMISE = re.compile(r"CMPOOL_API\s+[^;]*?\b(cmpool_\w+)\s*\(", re.S)
PLACES = {
    "arguments": ("tests/unit/test_api_arguments.c", "tests/unit/test_api_pytorch.c"),
    "programs": ("tests/property/",),
    "faults": ("tests/unit/fault_program.h", "tests/unit/test_pool_faults.c", "tests/unit/test_pinned_faults.c"),
}
WORDS = "words for a number: asked for every number in tests/unit/test_api_arguments.c"
NAMES = "reads a constant table"
TORCH = "void in place of a status, over the calls that are here: tests/unit/test_api_pytorch.c and tests/pytorch"
# Calls that are missing in a place, and why that is right.
EXCEPTIONS = {
    "cmpool_status_text": {"programs": WORDS, "faults": WORDS},
    "cmpool_version": {"programs": NAMES, "faults": NAMES},
    "cmpool_counter_name": {"programs": NAMES, "faults": NAMES},
}


def main():
    source, _ = tree.arguments()
    calls = set()
    for header in tree.files(source, (".h",), ("include",)):
        text = re.sub(r"/\*.*?\*/", "", tree.read(source, header), flags=re.S)
        calls |= set(PROMISE.findall(text))
    tests = tree.files(source, (".c", ".h"), ("tests",))
    found = {}
    for place, where in PLACES.items():
        text = "\n".join(tree.read(source, path) for path in tests if path.startswith(where))
        found[place] = set(re.findall(r"\b(cmpool_\w+)\(", text))
    findings = []
    for call in sorted(calls):
        excused = dict.fromkeys(("programs", "faults"), TORCH) if call.startswith("cmpool_torch_") else EXCEPTIONS.get(call, {})
        for place in PLACES:
            if call not in found[place] and place not in excused:
                findings.append(f"{call} is missing in {place}: {' '.join(PLACES[place])}")
            if call in found[place] and place in excused:
                findings.append(f"{call} is in {place}: its exception can go")
    findings += [f"{call} is no public call" for call in EXCEPTIONS if call not in calls]
    tree.finish(findings, len(calls))


if __name__ == "__main__":
    main()
