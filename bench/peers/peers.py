"""The other allocators: where each comes from, how it becomes a shared library that `cudamempool bench --allocator` loads. Used by run.py.

Packages are downloaded with pip (and one of Debian's with apt-get), unpacked in the build directory and not installed. CUB comes with the
CUDA toolkit, whose headers all but UMF need.
"""
import glob
import os
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
WORKLOADS = os.path.join(os.path.dirname(HERE), "workloads")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
RMM_FLAGS = ["-DSPDLOG_FMT_EXTERNAL", "-DSPDLOG_COMPILED_LIB", "-DSPDLOG_SHARED_LIB", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"]
TORCH_PARTS = ("torch/lib/libc10", "torch/include/c10/", "torch/include/torch/headeronly/")
# RMM: the last release that is headers alone. Later ones have a library with a runtime linked in, which no stand-in for the driver satisfies.
PACKAGES = {  # name -> pip's words, what of it is kept
    "torch-2.15.0": ("torch==2.15.0", TORCH_PARTS),
    "torch-2.6.0": ("torch==2.6.0", TORCH_PARTS),
    "rmm-24.12.1": ("librmm-cu12==24.12.1", ("librmm/",)),
    "umf-1.2.0": ("umf==1.2.0", ("umf-1.2.0.data/data/",)),
}


class Peer:
    """One allocator. Source without a package needs the toolkit alone; cudart is the major version of the runtime it is linked to."""

    def __init__(self, about, source=None, package=None, cudart=13, flags=(), environment=None, include=(), libraries=()):
        self.about, self.source, self.package, self.cudart, self.flags = about, source, package, cudart, list(flags)
        self.environment, self.include, self.libraries = environment or {}, include, libraries

    def folders(self, packages):
        return [os.path.join(packages, self.package, folder) for folder in self.include] if self.package else []


def torch(version, cudart, old_strings, **more):
    with_option = ", expandable segments" if "environment" in more else ""
    return Peer(f"PyTorch's caching allocator, pip's torch {version}{with_option}", "peer_torch.cpp", f"torch-{version}", cudart,
                [f"-D_GLIBCXX_USE_CXX11_ABI={0 if old_strings else 1}"], include=["torch/include"],
                libraries=["torch/lib/libc10_cuda.so", "torch/lib/libc10.so"], **more)


def rmm(name, arena):
    return Peer(f"RMM 24.12's {name} over cudaMalloc", "peer_rmm.cpp", "rmm-24.12.1", 12, [f"-DPEER_ARENA={arena}", *RMM_FLAGS],
                environment={"RMM_DEBUG_LOG_FILE": os.devnull},
                include=["librmm/include", "librmm/include/rapids/libcudacxx", "librmm/include/rapids"],
                libraries=["librmm/lib64/libfmt.so.11", "librmm/lib64/libspdlog.so.1.14"])


PEERS = {
    "cudamempool": Peer("this library"),
    "torch-2.15": torch("2.15.0", 13, False),
    "torch-2.6": torch("2.6.0", 12, True),
    "torch-2.6-expandable": torch("2.6.0", 12, True, environment=EXPANDABLE),
    "cub": Peer("CUB's CachingDeviceAllocator as it is by default", "peer_cub.cpp"),
    "cub-growth2": Peer("CUB's CachingDeviceAllocator, bins of powers of two without limits", "peer_cub.cpp", flags=["-DPEER_GROWTH=2"]),
    "rmm-pool": rmm("pool", 0),
    "rmm-arena": rmm("arena", 1),
    "umf-disjoint": Peer("UMF 1.2's disjoint pool over its CUDA provider", "peer_umf.cpp", "umf-1.2.0",
                         include=["umf-1.2.0.data/data/include"], libraries=["umf-1.2.0.data/data/lib/libumf.so.1"]),
    "driver": Peer("cuMemAlloc and cuMemFree of the simulated driver"),
    "driver-async": Peer("cuMemAllocAsync and cuMemFreeAsync of the simulated driver"),
    "nothing": Peer("the loops alone"),
}


def install(packages):
    """Download what is not there yet."""
    for name, (words, kept) in PACKAGES.items():
        place = os.path.join(packages, name)
        if os.path.exists(os.path.join(place, "complete")):
            continue
        os.makedirs(place, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", place, words]
        if subprocess.run(command).returncode != 0:
            print(f"{name}: pip has no such package here", file=sys.stderr)
            continue
        for wheel in glob.glob(os.path.join(place, "*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place, [member for member in archive.namelist() if member.startswith(kept)])
            os.unlink(wheel)
        open(os.path.join(place, "complete"), "w").close()
    place = os.path.join(packages, "hwloc")
    if not os.path.exists(place) and shutil.which("apt-get"):  # UMF's library wants it
        os.makedirs(place)
        if subprocess.run(["apt-get", "-q", "download", "libhwloc15"], cwd=place, capture_output=True).returncode == 0:
            for package in glob.glob(os.path.join(place, "*.deb")):
                subprocess.run(["dpkg-deb", "-x", package, place], check=True)
        else:
            os.rmdir(place)


def library_path(build, packages):
    """Where the loader looks: the simulated driver and runtime before any real ones."""
    folders = [os.path.join(build, "simcuda"), *glob.glob(os.path.join(packages, "hwloc/usr/lib/*"))]
    return ":".join(folders + [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder])


def build_peer(name, build, packages, cuda):
    """The words for --allocator, or None and why not."""
    peer = PEERS[name]
    if not peer.source:
        return name, None
    if peer.package and not os.path.exists(os.path.join(packages, peer.package, "complete")):
        return None, f"package {peer.package} is not there: --install"
    if peer.source != "peer_umf.cpp" and not os.path.exists(os.path.join(cuda, "include/cuda_runtime_api.h")):
        return None, f"no CUDA toolkit in {cuda}"
    folder = os.path.join(build, "peers")
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, f"{name}.so")
    newest = max(os.path.getmtime(path) for path in (__file__, os.path.join(HERE, peer.source), os.path.join(WORKLOADS, "bench.h")))
    if os.path.exists(out) and os.path.getmtime(out) > newest:
        return out, None
    libraries = [os.path.join(packages, peer.package, path) for path in peer.libraries] if peer.package else []
    libraries += [os.path.join(build, "simcuda", f"libcudart.so.{peer.cudart}"), os.path.join(build, "simcuda/libcuda.so.1")]
    include = [*peer.folders(packages), os.path.join(cuda, "include/cccl"), os.path.join(cuda, "include")]
    command = ["c++", "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", f"-I{WORKLOADS}",
               f'-DPEER_NAME="{name}"', f'-DPEER_ABOUT="{peer.about}"', *peer.flags, *[word for path in include for word in ("-isystem", path)],
               os.path.join(HERE, peer.source), *libraries, "-Wl,--allow-shlib-undefined",
               *[f"-Wl,-rpath,{os.path.dirname(path)}" for path in libraries], "-o", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return None, f"it does not compile: {(errors or ['?'])[0]}"
    return out, None
