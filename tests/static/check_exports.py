"""What the shared library shows and needs: cmpool_* and nothing else, all the header promises, no CUDA library, no heap of the program."""
import os
import re
import subprocess

import tree

PROMISE = re.compile(r"CMPOOL_API\s+[^;]*?\b(cmpool_\w+)\s*\(", re.S)
# What NVTX looks for in a tool's library, which this one can stand in for.
AS_TOOL = {"InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension"}
# The library's own records never come from the program's heap, and it neither ends the program nor writes to its streams.
UNWANTED = set(
    "malloc calloc realloc free aligned_alloc posix_memalign memalign strdup strndup asprintf exit _exit abort "
    "printf puts putchar fputs fwrite fprintf fopen perror __printf_chk __fprintf_chk".split())


def symbols(library, kind):
    output = subprocess.run(["nm", "-D", kind, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines() if line.split()[-2] != "A"}


def needed(path):
    output = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output)


def has_jemalloc(build):
    """Whether the library has jemalloc inside."""
    folder = tree.cache_value(build, "CMPOOL_JEMALLOC_DIR")
    return tree.cache_value(build, "CMPOOL_JEMALLOC") != "OFF" and os.path.exists(os.path.join(folder, "lib/libjemalloc_pic.a"))


def main():
    source, build = tree.arguments()
    library = os.path.join(build, "lib/libcudamempool.so")
    sanitized = tree.cache_value(build, "CMPOOL_SANITIZE") or tree.cache_value(build, "CMPOOL_FUZZ") == "ON"
    findings = []

    exported = symbols(library, "--defined-only")
    exported -= AS_TOOL
    findings += [f"exports {name}" for name in sorted(exported) if not name.startswith("cmpool_")]
    promised = set()
    for header in tree.files(source, (".h",), ("include",)):
        text = re.sub(r"/\*.*?\*/", "", tree.read(source, header), flags=re.S)
        promised |= set(PROMISE.findall(text))
    findings += [f"{name} is declared but not exported" for name in sorted(promised - exported)]
    findings += [f"{name} is exported but not declared" for name in sorted(exported - promised)]
    if not sanitized:
        unwanted = UNWANTED - {"abort"} if has_jemalloc(build) else UNWANTED  # its last word when its own records are damaged
        findings += [f"calls {name}" for name in sorted(symbols(library, "--undefined-only") & unwanted)]

    for path in ("lib/libcudamempool.so", "bin/cudamempool"):
        path = os.path.join(build, path)
        if not os.path.exists(path):
            findings.append(f"{path} was not built")
            continue
        findings += [f"{path} links {name}" for name in needed(path) if name.startswith(("libcuda.", "libcudart."))]
    tree.finish(findings, len(exported))


main()
