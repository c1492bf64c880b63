"""Real PyTorch (CUDA builds from the package index, and of Debian's build the allocator classes) over the simulated device.

    python3 tests/pytorch/run.py BUILD [--folder FOLDER]                       the newest, 2.6.0, and Debian's libc10_cuda 2.6
    python3 tests/pytorch/run.py BUILD [--folder FOLDER] --torch VERSION ...   these versions
    python3 tests/pytorch/run.py BUILD --python PYTHON ...                     the PyTorch that these Pythons have
    python3 tests/pytorch/run.py BUILD [--folder FOLDER] --debian              Debian's alone (debian_c10.py)

Not part of ctest: it installs about 3 GB a version with pip, into environments in FOLDER (kept) or in one of its own (removed afterwards);
for Debian's it downloads 490 MB. Kernels are accepted and not executed. Libraries that bring a runtime of their own linked in (cuBLAS and
the like) cannot start there.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import debian_c10

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
ORDERS = ("eager", "lazy", "random:3")
PLAIN = "sim:1GiB,kernels=accept"
# case: (how it is started, words of the device)
CASES = {
    "swap": ("plain", PLAIN),
    "autograd": ("plain", PLAIN),
    "record_stream": ("orders", PLAIN),
    "graphs": ("orders", PLAIN),
    "mempool": ("plain", PLAIN),
    "native_mempool": ("plain", PLAIN),
    "snapshot": ("plain", PLAIN),
    "by_run": ("run", PLAIN),
    "plain.py": ("run", PLAIN),
    "uncached": ("uncached", PLAIN),
    "two_devices": ("plain", "sim:256MiB,devices=2,content,kernels=accept"),
    "two_devices_apart": ("plain", "sim:256MiB,devices=2,content,kernels=accept"),
}


def environment(build, major, words, **more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_", "PYTORCH", "SIMCUDA"))}
    simcuda = os.path.join(build, "simcuda")
    preload = f"{simcuda}/libcuda.so.1:{simcuda}/libcudart.so.{major}"  # by name, so that PyTorch's own are not loaded
    return {**kept, "LD_PRELOAD": preload, "SIMCUDA_DEVICE": words, "PYTHONPATH": os.path.join(SOURCE, "tools/python"),
            "CUDAMEMPOOL_LIBRARY": os.path.join(build, "lib/libcudamempool.so"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def start(build, python, major, case, how, words):
    command = [python, os.path.join(HERE, "real_torch.py"), case]
    more, expected = {}, f"fine: {case}"
    if case.endswith(".py"):
        command, expected = [python, os.path.join(SOURCE, "examples/pytorch", case)], "CUDA out of memory."
    if how in ("run", "uncached"):
        command = [os.path.join(build, "bin/cudamempool"), "run", "--", *command]
    if how == "uncached":
        more["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    done = subprocess.run(command, env=environment(build, major, words, **more), capture_output=True, text=True, timeout=600)
    fine = done.returncode == 0 and expected in done.stdout
    print(f"  {'fine  ' if fine else 'FAILED'} {case} ({how if how != 'orders' else words.rpartition('=')[2]})", flush=True)
    if not fine:
        print("\n".join("    | " + line for line in (done.stdout + done.stderr).splitlines()[-25:]))
    return fine


def test(build, python):
    """All cases with one PyTorch; the number that failed."""
    told = subprocess.run([python, "-c", "import torch; print(torch.__version__, torch.version.cuda)"], capture_output=True, text=True, check=True)
    version, cuda = told.stdout.split()
    if cuda == "None":
        sys.exit(f"PyTorch {version} is built without CUDA")
    print(f"PyTorch {version}, CUDA {cuda}:", flush=True)
    major, results = cuda.split(".")[0], []
    for case, (how, words) in CASES.items():
        for order in ORDERS if how == "orders" else ("eager",):
            results.append(start(build, python, major, case, how, f"{words},order={order}"))
    print(f"PyTorch {version}: {sum(results)} passed, {results.count(False)} failed", flush=True)
    return results.count(False)


def install(folder, version):
    """A virtual environment with this PyTorch (None: the newest); its Python."""
    place = os.path.join(folder, version or "newest")
    python = os.path.join(place, "bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"torch=={version}" if version else "torch", "numpy"], check=True)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("--torch", action="append", metavar="VERSION", default=[])
    parser.add_argument("--python", action="append", metavar="PYTHON", default=[])
    parser.add_argument("--debian", action="store_true")
    parser.add_argument("--folder", type=os.path.abspath)
    given = parser.parse_args()
    failed = sum(test(given.build, python) for python in given.python)
    with tempfile.TemporaryDirectory() as own:
        folder = given.folder or own
        named = given.torch or given.python or given.debian
        for version in given.torch if named else (None, "2.6.0"):
            failed += test(given.build, install(folder, version))
        if given.debian or (not named and debian_c10.archive()):
            failed += debian_c10.test(given.build, folder)
        elif not named:
            print("Debian's libc10_cuda was not run: apt-get has no archive of Debian's here")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
