"""Every C file is as clang-format would write it. Only version 14 is asked: others differ in details."""
import os
import re
import shutil
import subprocess

import tree


def find_formatter():
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and re.search(r"version 14\.", subprocess.run([path, "--version"], capture_output=True, text=True).stdout):
            return path
    return None


def main():
    source, _ = tree.arguments()
    formatter = find_formatter()
    if not formatter:
        tree.skip("there is no clang-format 14")
    findings = []
    paths = tree.files(source, (".c", ".h"))
    for path in paths:
        result = subprocess.run([formatter, "--style=file", "--dry-run", "--Werror", path], cwd=source, capture_output=True, text=True)
        if result.returncode != 0:
            findings.append(result.stderr.splitlines()[0])
    tree.finish(findings, len(paths))


main()
