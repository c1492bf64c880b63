"""What the preload library shows and needs: the functions of its one list and dlsym, the C library and nothing of CUDA."""
import os
import re
import subprocess
import sys

SOURCE, BUILD = sys.argv[1:3]
LIBRARY = os.path.join(BUILD, "lib/libcudamempool_preload.so")
FLOOR = (2, 34)
MOST_TLS = 128  # bytes a thread: the marks of the library's threads, all of them initial-exec
UNWANTED = set("malloc calloc realloc free aligned_alloc posix_memalign strdup exit _exit abort printf puts fputs fwrite fprintf fopen".split())


def has_jemalloc():
    """Whether the library has jemalloc inside, whose last word is abort when its own records are damaged."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        values = dict(re.findall(r"^(CMPOOL_JEMALLOC\w*):\w+=(.*)$", cache.read(), re.M))
    inside = os.path.exists(os.path.join(values.get("CMPOOL_JEMALLOC_DIR", ""), "lib/libjemalloc_pic.a"))
    return inside and values.get("CMPOOL_JEMALLOC") != "OFF"


def output(*command):
    return subprocess.run([*command, LIBRARY], check=True, capture_output=True, text=True).stdout


with open(os.path.join(SOURCE, "lib/preload/hooks.def"), encoding="utf-8") as file:
    hooks = set(re.findall(r"^PRELOAD_HOOK\((\w+),", file.read(), re.M))
symbols = [line.split()[-1] for line in output("nm", "-D", "--defined-only").splitlines() if line.split()[-2] != "A"]
hooks |= {"cudamempool_preload_stand_aside", "InitializeInjectionNvtx2", "InitializeInjectionNvtxExtension"}
versions = [name for name in symbols if name.startswith("dlsym@")]
findings = [f"exports {name}" for name in sorted(set(symbols) - hooks - set(versions))]
findings += [f"does not export {name}" for name in sorted(hooks - set(symbols))]
if len(versions) != 2 or "dlsym@@GLIBC_2.34" not in versions:
    findings.append(f"dlsym has the versions {versions}")
wanted = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only").splitlines()}
findings += [f"calls {name}" for name in sorted(wanted & (UNWANTED - {"abort"} if has_jemalloc() else UNWANTED))]
findings += [f"needs {name}" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW"))
             if not re.match(r"(libc|libdl|libpthread|ld-linux.*)\.so\.", name)]
if "NODELETE" not in output("readelf", "-dW"):
    findings.append("can be unloaded")
for version in set(re.findall(r"GLIBC_([0-9.]+)", output("readelf", "-VW"))):
    if tuple(int(part) for part in version.split(".")) > FLOOR:
        findings.append(f"needs GLIBC_{version}")
tls = re.search(r"^\s*TLS\s+(?:0x[0-9a-f]+\s+){4}(0x[0-9a-f]+)", output("readelf", "-lW"), re.M)
tls_bytes = int(tls.group(1), 16) if tls else 0
if tls_bytes > MOST_TLS:
    findings.append(f"has {tls_bytes} bytes of thread-local storage")
for finding in findings:
    print(finding)
print(f"{len(symbols)} exports, {tls_bytes} bytes of TLS, {len(findings)} findings")
sys.exit(1 if findings or not hooks else 0)
