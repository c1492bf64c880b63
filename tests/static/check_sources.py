"""Each source file opens with words about itself, guards its headers, and speaks of this project alone."""
import re

import tree

# Places and services that mean something only where a file was written. Spelled so that this file does not contain them.
FOREIGN = re.compile("|".join([
    r"/" + r"work/(main|shared)",
    r"\.\./" + r"shared\b",
    r"/" + r"tmp/\w",
    r"/(root|home)" + r"/\w",
    r"pypi\." + r"org|files\.python" + r"hosted|registry\." + r"npmjs|proxy\." + r"golang|static\." + r"crates",
    r"\bissue" + r" #?\d",
]))
TEXT = (".c", ".h", ".def", ".py", ".sh", ".md", ".txt", ".cmake", ".in", ".map", ".json")


def check_opening(path, text, findings):
    match = re.match(r"/\*(.*?)\*/\n", text, re.S)
    if not match:
        findings.append(f"{path}: does not open with a comment")
    elif len(match.group(1).split()) < 8:
        findings.append(f"{path}: its opening comment says too little")


def check_guard(path, text, findings):
    guard = re.search(r"^#ifndef (\w+_H)\n#define \1$", text, re.M)
    if not guard:
        findings.append(f"{path}: has no include guard")


def main():
    source, _ = tree.arguments()
    findings = []
    paths = tree.files(source, TEXT) + ["CMakeLists.txt", "README.md", ".gitignore", ".ci/run"]
    for path in paths:
        text = tree.read(source, path)
        if path.endswith(".c"):
            check_opening(path, text, findings)
        if path.endswith(".h"):
            check_guard(path, text, findings)
        for number, line in enumerate(text.splitlines(), 1):
            foreign = FOREIGN.search(line)
            if foreign:
                findings.append(f"{path}:{number}: speaks of {foreign.group(0)}")
    tree.finish(findings, len(paths))


main()
