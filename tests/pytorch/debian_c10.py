"""PyTorch's allocator classes as Debian builds them: libc10_cuda 2.6 of trixie's contrib section, over the simulated device. Used by run.py.

Needs apt-get with an archive of Debian's among its sources (any release of it) and a C++20 compiler. Packages are downloaded and unpacked,
not installed, and run with their own C library, so the machine may be an older Debian. libtorch_cuda, the library above, is not loaded: it
is linked with cuBLAS, cuDNN and NCCL, which cannot start on a simulated device.
"""
import glob
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
RELEASE = "trixie"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = ("libtorch-cuda-2.6", "libtorch-cuda-dev", "libc6", "libstdc++6", "libgcc-s1", "libnuma1", "libcpuinfo0")
PRELOAD = "libcudamempool_preload.so"
# case of the program, what it is in words, in front of the driver, more environment
CASES = [
    ("pluggable", "order=eager", None, {}),
    ("pluggable", "order=lazy", None, {}),
    ("pluggable", "order=random:3", None, {}),
    ("mempool", "order=eager", None, {}),
    ("native", "order=eager", None, {}),
    ("native", "order=eager", PRELOAD, {}),
    ("native", "order=lazy", PRELOAD, {}),
    ("native", "order=eager", PRELOAD, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
]


def apt(program, folder, *words):
    state = (f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache", "Dir::Etc::SourceList=/dev/null",
             f"Dir::Etc::SourceParts={folder}/sources", "Dir::State::Status=/dev/null", "APT::Sandbox::User=root", "Acquire::Languages=none")
    options = [part for each in state for part in ("-o", each)]
    return subprocess.run([program, *options, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def archive():
    """Where this machine has Debian's packages from; None where it has none from there."""
    try:
        told = subprocess.run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"],
                              check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    places = [line.split("|")[2] for line in told.splitlines() if line.startswith("Debian|Debian|")]
    return places[0] if places else None


def fetch(folder):
    """The unpacked packages; downloaded where they are not in the folder yet."""
    root = os.path.join(folder, "root")
    if os.path.exists(os.path.join(root, "complete")):
        return root
    for name in ("lists/partial", "cache/archives/partial", "sources", "root"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, "sources/debian.sources"), "w", encoding="utf-8") as file:
        file.write(f"Types: deb\nURIs: {archive()}\nSuites: {RELEASE}\nComponents: main contrib\n")
        file.write(f"Signed-By: {KEYS}\n" if os.path.exists(KEYS) else "")
    apt("apt-get", folder, "update")
    apt("apt-get", folder, "download", *PACKAGES)
    for package in glob.glob(os.path.join(folder, "*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
            # of the 3 GB of libtorch-cuda these two libraries
            only = ["--wildcards", "./usr/lib/*/libc10*"] if os.path.basename(package).startswith(PACKAGES[0]) else []
            subprocess.run(["tar", "-x", "-C", root, *only], stdin=files.stdout, check=True)
        os.unlink(package)
    open(os.path.join(root, "complete"), "w").close()
    return root


def build_program(build, root, libraries, program):
    stand_ins = [f"{build}/lib/libcudamempool.so", f"{build}/simcuda/libcuda.so.1", f"{build}/simcuda/libcudart.so.12"]
    subprocess.run(["c++", "-std=c++20", "-O1", "-Wall", "-Wextra", f"-I{HERE}/debian", "-isystem", f"{root}/usr/include",
                    f"-I{SOURCE}/include", f"-I{SOURCE}/tools/simcuda", f"{HERE}/debian/libc10_cuda.cpp", "-o", program,
                    f"{libraries}/libc10_cuda.so.2.6.0", f"{libraries}/libc10.so.2.6.0", *stand_ins, "-Wl,--allow-shlib-undefined"], check=True)


def start(build, libraries, program, name, order, before, more):
    loader = glob.glob(f"{libraries}/ld-linux-*.so.*")[0]
    command = [loader, "--library-path", f"{build}/simcuda:{build}/lib:{libraries}"]
    if before:
        command += ["--preload", os.path.join(build, "lib", before)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_", "PYTORCH", "SIMCUDA"))}
    done = subprocess.run([*command, program, name], env={**kept, "SIMCUDA_DEVICE": f"sim:1GiB,{order}", **more}, capture_output=True, text=True,
                          timeout=120)
    fine = done.returncode == 0 and f"fine: {name}" in done.stdout
    detail = ", ".join([order.partition("=")[2], *([f"behind {before}"] if before else []), *more.values()])
    print(f"  {'fine  ' if fine else 'FAILED'} {name} ({detail})", flush=True)
    if not fine:
        print("\n".join("    | " + line for line in (done.stdout + done.stderr).splitlines()[-25:]))
    return fine


def test(build, folder, cases=CASES):
    """The number of cases that failed."""
    folder = os.path.join(folder, "debian")
    os.makedirs(folder, exist_ok=True)
    root = fetch(folder)
    libraries = os.path.dirname(glob.glob(f"{root}/usr/lib/*/libc10_cuda.so.2.6.0")[0])
    program = os.path.join(folder, "libc10_cuda")
    build_program(build, root, libraries, program)
    print("Debian's libc10_cuda 2.6.0, the allocator classes alone:", flush=True)
    results = [start(build, libraries, program, *case) for case in cases]
    print(f"Debian's libc10_cuda 2.6.0: {sum(results)} passed, {results.count(False)} failed", flush=True)
    return results.count(False)
