"""Every header compiles alone; the public ones as C++ too."""
import concurrent.futures
import os
import shutil
import subprocess

import tree

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wundef", "-Werror"]


def compile_alone(command, name):
    """The compiler's first complaint, or None. `name` is as it stands in an #include, with its brackets or quotes."""
    # Twice, so that a missing guard is seen too.
    program = f"#include {name}\n#include {name}\n"
    result = subprocess.run(command, input=program, capture_output=True, text=True)
    if result.returncode == 0:
        return None
    complaint = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
    return f"{name} {command[2]}: {complaint[0]}"


def main():
    source, _ = tree.arguments()
    c_compiler = os.environ.get("CC", "cc")
    cxx_compiler = shutil.which("g++") or shutil.which("clang++")
    paths = [f"-I{source}/{folder}" for folder in ("include", "lib", "tools/simcuda", "tools/cudamempool", "bench/workloads")]

    c_command = [c_compiler, "-x", "c", "-std=gnu11", "-D_GNU_SOURCE", "-Wstrict-prototypes", *WARNINGS, *paths, "-fsyntax-only", "-"]
    jobs = []
    for header in tree.files(source, (".h",), ("lib", "tools", "bench/workloads")):
        jobs.append((c_command, f'"{header.split("/", 1 if header.startswith("lib/") else 2)[-1]}"'))
    public = [f"<{header.split('/', 1)[1]}>" for header in tree.files(source, (".h",), ("include",))] + ['"simcuda.h"']
    for header in public:
        strict_c = [c_compiler, "-x", "c", "-std=c11", "-pedantic", *WARNINGS, *paths, "-fsyntax-only", "-"]
        jobs.append((strict_c, header))
        if cxx_compiler:
            jobs.append(([cxx_compiler, "-x", "c++", "-std=c++11", *WARNINGS, *paths, "-fsyntax-only", "-"], header))

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as workers:
        complaints = workers.map(lambda job: compile_alone(*job), jobs)
    tree.finish([complaint for complaint in complaints if complaint], len(jobs))


main()
