"""What the checks of the source tree share: which files there are, and how a finding is told."""
import os
import sys

SOURCE_FOLDERS = ("include", "lib", "tools", "tests", "examples", "bench")


def arguments():
    """(source folder, build folder) as ctest gives them."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} SOURCE BUILD")
    return sys.argv[1], sys.argv[2]


def files(source, suffixes, folders=SOURCE_FOLDERS):
    """Paths relative to the source folder, in order."""
    found = []
    for folder in folders:
        for here, below, names in os.walk(os.path.join(source, folder)):
            below[:] = [name for name in below if name != "__pycache__"]
            found += [os.path.relpath(os.path.join(here, name), source) for name in names if name.endswith(suffixes)]
    return sorted(found)


def read(source, path):
    with open(os.path.join(source, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def finish(findings, checked):
    """One line for each finding; exit status says whether there was one. A check that looked at nothing has failed."""
    for finding in findings:
        print(finding)
    if not checked:
        sys.exit("nothing was checked")
    print(f"{checked} checked, {len(findings)} findings")
    sys.exit(1 if findings else 0)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def cache_value(build, name):
    """A value of the build's CMake cache, or ""."""
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(name + ":"):
                return line.split("=", 1)[1].strip()
    return ""
