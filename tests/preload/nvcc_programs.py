"""Programs built by nvcc, with and without the preload library: the same outcomes, served by the pool.

    python3 tests/preload/nvcc_programs.py SOURCE BUILD [NVCC]

With -cudart shared they run on the simulated device's own runtime. With -cudart static, nvcc's default, NVIDIA's runtime is inside; it asks
the driver for private tables, which are not imitated, and gives up. Until then it has looked up all that it would call, and what it holds
must be this library's functions (static_runtime.c). Exit 77: there is no nvcc here.
"""
import os
import shutil
import subprocess
import sys
import tempfile

STREAMS = {"legacy": [], "per-thread": ["--default-stream", "per-thread"]}


def find_nvcc():
    places = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    return shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", ""), *places, "/usr/local/cuda/bin"]))


class Builder:
    def __init__(self, nvcc, source, folder):
        self.nvcc, self.tests, self.folder = nvcc, os.path.join(source, "tests/preload"), folder
        self.includes = [f"-I{os.path.join(source, 'lib')}"]

    def build(self, name, files, options):
        program = os.path.join(self.folder, name)
        sources = [file if os.path.isabs(file) else os.path.join(self.tests, file) for file in files]
        subprocess.run([self.nvcc, "-o", program, *self.includes, *options, *sources], check=True)
        return program


def run(build, program, preload, order="eager"):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_"))}
    environment = dict(kept, SIMCUDA_DEVICE=f"sim:256MiB,content,kernels=accept,order={order}", LD_LIBRARY_PATH=f"{build}/simcuda")
    if preload:
        environment["LD_PRELOAD"] = f"{build}/lib/libcudamempool_preload.so"
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=120)
    outcomes = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    counts = {line.split()[1]: int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("#")}
    return outcomes, counts, done.returncode


def shared(builder, build):
    """Served: nothing of the program's memory is asked of the driver, and frees wait for the streams."""
    for words, options in STREAMS.items():
        program = builder.build(f"shared-{words}", ["client_kernels.cu"], ["-std=c++17", "-cudart", "shared", *options])
        for order in ("eager", "lazy"):
            (plain, plain_counts, plain_code), (served, counts, code) = (run(build, program, preload, order) for preload in (False, True))
            fine = plain == served and len(plain) > 200 and plain_code == code == 0 and plain_counts["cuMemAlloc_v2"] > 40
            # what is too much for the device is the pool's to refuse
            yield f"shared runtime, {words} stream, {order}", fine and counts["cuMemAlloc_v2"] == 0 and counts["races"] == 0, counts


def static(builder, build):
    kernels = builder.build("kernels.o", ["client_kernels.cu"], ["-std=c++17", "-c", "-Dmain=client_kernels"])
    for words, options in STREAMS.items():
        holder = builder.build(f"static-{words}", ["static_runtime.c", kernels], ["-D_GNU_SOURCE", "-cudart", "static", *options])
        held, _, code = run(build, holder, True)
        yield f"static runtime, {words} stream: {held[-1] if held else 'nothing'}", code == 0, held
    program = builder.build("static", ["client_kernels.cu"], ["-std=c++17", "-cudart", "static"])
    plain, served = (run(build, program, preload) for preload in (False, True))
    yield f"static runtime gives up in the same words: {plain[0][0] if plain[0] else 'none'}", plain == served and bool(plain[0]), served


def main(source, build, nvcc):
    if not nvcc:
        print("SKIPPED: no nvcc, neither on the path nor in CUDA_HOME or /usr/local/cuda")
        return 77
    print(subprocess.run([nvcc, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-2])
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(nvcc, source, folder)
        for part in (shared, static):
            for words, fine, told in part(builder, build):
                print(f"{'fine  ' if fine else 'FAILED'} {words}", flush=True)
                if not fine:
                    print(f"    {told}")
                    failed += 1
    return 1 if failed else 0


if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
sys.exit(main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3] if len(sys.argv) == 4 else find_nvcc()))
