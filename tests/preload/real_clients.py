"""Clients that nobody here wrote, on the simulated device with and without the preload library: the same outcomes, served by the pool.

    python3 tests/preload/real_clients.py BUILD [FOLDER]

Not part of ctest: it installs packages with pip, into an environment in FOLDER (kept) or in one of its own (removed afterwards).
"""
import os
import subprocess
import sys
import tempfile

PACKAGES = ["numpy", "cuda-bindings", "numba-cuda"]
PROGRAMS = ["real_cuda_python.py", "real_numba.py"]


def run(python, program, build, preload):
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "simcuda"), SIMCUDA_DEVICE="sim:256MiB,content")
    if preload:
        environment["LD_PRELOAD"] = os.path.join(build, "lib/libcudamempool_preload.so")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), program)
    done = subprocess.run([python, program], env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
    lines = done.stdout.splitlines()
    counts = [int(line.split()[-1]) for line in lines if line.startswith("# cuMemAlloc_v2")]
    return done.returncode, [line for line in lines if not line.startswith("#")], counts


def main(build, folder):
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    failed = 0
    for program in PROGRAMS:
        plain, served = (run(python, program, build, preload) for preload in (False, True))
        same = plain[:2] == served[:2] and plain[0] == 0 and bool(plain[1])
        pooled = sum(plain[2]) > 0 and served[2] == [0]
        print(f"{program}: {'same outcomes' if same else f'{plain} without, {served} with'}; "
              f"{plain[2]} requests to the driver without, {served[2]} with")
        failed += not (same and pooled)
    return failed


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
if len(sys.argv) == 3:
    sys.exit(main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])))
with tempfile.TemporaryDirectory() as own:
    sys.exit(main(os.path.abspath(sys.argv[1]), own))
