"""Real PyTorch (CUDA builds from the package index) over the simulated device.

    python3 tests/pytorch/run.py BUILD [--torch VERSION]... [--folder FOLDER]    newest and 2.6.0 unless versions are named
    python3 tests/pytorch/run.py BUILD --python PYTHON                           the PyTorch that this Python has

Not part of ctest: it installs about 3 GB a version with pip, into environments in FOLDER (kept) or in one of its own (removed afterwards).
Kernels are accepted and not executed. Libraries that bring a runtime of their own linked in (cuBLAS and the like) cannot start there.
"""
import argparse
import os
import subprocess
import sys
import tempfile

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
    parser.add_argument("--torch", action="append", metavar="VERSION")
    parser.add_argument("--python", action="append", metavar="PYTHON")
    parser.add_argument("--folder", type=os.path.abspath)
    given = parser.parse_args()
    if given.python:
        return sum(test(given.build, python) for python in given.python)
    with tempfile.TemporaryDirectory() as own:
        return sum(test(given.build, install(given.folder or own, version)) for version in given.torch or [None, "2.6.0"])


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
