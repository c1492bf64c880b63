"""Clients that nobody here wrote, on the simulated device with and without the preload library: the same outcomes, served by the pool.

    python3 tests/preload/real_clients.py BUILD [FOLDER]

cuda-python's bindings of the driver and numba with numba-cuda, installed with pip; Debian's own python3-numba and ffmpeg, which have to be
installed (apt-get install python3-numba ffmpeg); libc10_cuda of Debian's PyTorch, downloaded (see tests/pytorch/debian_c10.py). Not part of
ctest. FOLDER keeps what is installed for the next time; without one it is a temporary folder. Exit 1: a client fails or is not there.

Kernels are not run: the simulated device executes none. So numba's arrays and streams are used, not its compiler, and ffmpeg copies frames
to the device and back (hwupload_cuda, hwdownload) with no filter or codec between.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ["numpy", "cuda-bindings", "numba-cuda"]
VIDEO = ["-hide_banner", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=10:duration=2"]
ROUND_TRIP = "format=nv12,hwupload_cuda,hwdownload,format=nv12"


def run(command, build, preload, **more):
    """Lines, of which those with # are told and not compared; how it ended; how many requests the pool served."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "simcuda"), SIMCUDA_DEVICE="sim:256MiB,content", **more)
        if preload:
            environment.update(LD_PRELOAD=os.path.join(build, "lib/libcudamempool_preload.so"), CUDAMEMPOOL_REPORT=report)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
        served = 0
        if os.path.exists(report):
            with open(report, encoding="utf-8") as file:
                served = sum(device["allocations"] for line in file for device in json.loads(line)["devices"])
    return done.stdout.splitlines(), done.returncode, served


def compare(name, command, build, expected=None):
    """Whether the program ends well, in the same words with the library and without, and the pool served it."""
    plain, served = (run(command, build, preload) for preload in (False, True))
    told = ''.join(f' ({line[2:]})' for line in plain[0] if line.startswith('# ') and 'cuMemAlloc' not in line)
    outcomes = [[line for line in each[0] if not line.startswith("#")] for each in (plain, served)]
    counts = [line for line in served[0] if line.startswith("# cuMemAlloc_v2")]
    fine = (plain[1] == served[1] == 0 and outcomes[0] == outcomes[1] and bool(outcomes[0]) and served[2] > 0 and
            expected in (None, outcomes[0]) and counts in ([], ["# cuMemAlloc_v2 0"]))
    print(f"{'fine  ' if fine else 'FAILED'} {name}{told}: {len(outcomes[0])} lines, {served[2]} requests served by the pool",
          flush=True)
    if not fine:
        print(f"    without: {plain}\n    with: {served}")
    return fine


def installed_with_pip(build, folder):
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return [compare("cuda-python", [python, os.path.join(HERE, "real_cuda_python.py")], build),
            compare("numba-cuda", [python, os.path.join(HERE, "real_numba.py")], build)]


def debian_numba(build):
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import numba"], stderr=subprocess.DEVNULL).returncode:
        print("FAILED Debian's numba: not installed (apt-get install python3-numba)")
        return False
    return compare("Debian's numba", [python, os.path.join(HERE, "real_numba.py")], build)


def ffmpeg(build):
    program = shutil.which("ffmpeg")
    if not program:
        print("FAILED ffmpeg: not installed (apt-get install ffmpeg)")
        return False
    version = subprocess.run([program, "-version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[2]
    sums, _, _ = run([program, *VIDEO, "-vf", "format=nv12", "-f", "framemd5", "-"], build, False)
    return compare(f"ffmpeg {version}, the same frames as without a device",
                   [program, "-init_hw_device", "cuda=cu:0", "-filter_hw_device", "cu", *VIDEO, "-vf", ROUND_TRIP, "-f", "framemd5", "-"],
                   build, [line for line in sums if not line.startswith("#")])


def libc10_cuda(build, folder):
    sys.path.insert(0, os.path.join(HERE, "../pytorch"))
    import debian_c10
    if not debian_c10.archive():
        print("FAILED libc10_cuda: apt-get has no archive of Debian's")
        return False
    cases = [("native", f"order={order}", preload, {}) for order in ("eager", "lazy") for preload in (None, debian_c10.PRELOAD)]
    return debian_c10.test(build, folder, cases) == 0


def main(build, folder):
    results = installed_with_pip(build, folder) + [debian_numba(build), ffmpeg(build), libc10_cuda(build, folder)]
    print(f"{results.count(True)} of {len(results)} clients: the same with the library and without")
    return results.count(False)


if len(sys.argv) not in (2, 3) or not glob.glob(os.path.join(sys.argv[1], "lib/libcudamempool_preload.so")):
    sys.exit(__doc__)
if len(sys.argv) == 3:
    sys.exit(1 if main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])) else 0)
with tempfile.TemporaryDirectory() as own:
    sys.exit(1 if main(os.path.abspath(sys.argv[1]), own) else 0)
