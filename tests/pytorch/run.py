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
import json
import os
import subprocess
import sys
import tempfile

import debian_c10

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
ORDERS = ("eager", "lazy", "random:3")
PLAIN = "sim:1GiB,kernels=accept"
ROOMY = "sim:4GiB,content,kernels=accept"  # Transformers counts on 1.2 GiB of free memory
TWO = "sim:256MiB,devices=2,content,kernels=accept"
# case, or program of examples/pytorch: (how it is started, words of the device)
CASES = {
    "swap": ("plain", PLAIN),
    "autograd": ("plain", PLAIN),
    "record_stream": ("orders", PLAIN),
    "graphs": ("orders", PLAIN),
    "mempool": ("plain", PLAIN),
    "native_mempool": ("plain", PLAIN),
    "snapshot": ("plain", PLAIN),
    "by_run": ("run", PLAIN),
    "uncached": ("uncached", PLAIN),
    "two_devices": ("plain", TWO),
    "two_devices_apart": ("plain", TWO),
    "two_devices_malloc": ("plain", TWO),
    "plain.py": ("run", PLAIN),
    "trainer_lora.py": ("accepted", ROOMY),
    "torchrun_snapshots.py": ("torchrun", TWO),
    "llamafactory.sh": ("llamafactory", ROOMY),
}
NEEDS = {"trainer_lora.py": ("transformers", "peft", "accelerate"), "llamafactory.sh": ("llamafactory",)}  # packages beside PyTorch
# what an example that went well has said
SAYS = {
    "plain.py": "CUDA out of memory.",
    "trainer_lora.py": "written: checkpoint-12 checkpoint-6",
    "torchrun_snapshots.py": "rank 1: rank1.json",
    "llamafactory.sh": "train metrics",
}


def environment(build, major, words, **more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_", "PYTORCH", "SIMCUDA"))}
    simcuda = os.path.join(build, "simcuda")
    preload = f"{simcuda}/libcuda.so.1:{simcuda}/libcudart.so.{major}"  # by name, so that PyTorch's own are not loaded
    return {**kept, "LD_PRELOAD": preload, "SIMCUDA_DEVICE": words, "PYTHONPATH": os.path.join(SOURCE, "tools/python"),
            "CUDAMEMPOOL_LIBRARY": os.path.join(build, "lib/libcudamempool.so"), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", **more}


def command(build, python, case, how, folder):
    run = [os.path.join(build, "bin/cudamempool"), "run", "--"]
    accepted = os.path.join(HERE, "accepted.py")
    example = os.path.join(SOURCE, "examples/pytorch", case)
    if how == "accepted":
        return [*run, python, accepted, example]
    if how == "torchrun":
        return [*run, python, "-m", "torch.distributed.run", "--nproc-per-node", "2", example]
    if how == "llamafactory":  # the script finds these by PATH
        os.symlink(run[0], os.path.join(folder, "cudamempool"))
        cli = os.path.join(os.path.dirname(python), "llamafactory-cli")
        with open(os.path.join(folder, "llamafactory-cli"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {python} {accepted} {cli} "$@"\n')
        os.chmod(file.name, 0o755)
        subprocess.run([python, os.path.join(HERE, "small_model.py"), folder], check=True, capture_output=True)
        return ["sh", example, os.path.join(folder, "train.yaml")]
    words = [python, example] if case in SAYS else [python, os.path.join(HERE, "real_torch.py"), case]
    return words if how in ("plain", "orders") else [*run, *words]


def missing(python, packages):
    """Those that this Python does not have."""
    code = "import importlib.util, sys; print(*[name for name in sys.argv[1:] if not importlib.util.find_spec(name)])"
    return subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True).stdout.split()


def served(report):
    """Requests that the pools of all processes served, by the report of `cudamempool run`."""
    if not os.path.exists(report):
        return 0
    with open(report, encoding="utf-8") as lines:
        return sum(device["allocations"] for line in lines for device in json.loads(line)["devices"])


def start(build, python, major, case, how, words):
    with tempfile.TemporaryDirectory() as folder:
        more = {"PATH": folder + os.pathsep + os.environ["PATH"], "CUDAMEMPOOL_REPORT": os.path.join(folder, "report")}
        if how == "uncached":
            more["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        done = subprocess.run(command(build, python, case, how, folder), cwd=folder, env=environment(build, major, words, **more),
                              capture_output=True, text=True, timeout=600)
        said = done.stdout
        if how == "torchrun" and done.returncode == 0:
            ranks = sorted(name for name in os.listdir(folder) if name.startswith("rank"))
            done = subprocess.run([os.path.join(build, "bin/cudamempool"), "inspect", *ranks], cwd=folder, capture_output=True, text=True)
            said += done.stdout if len(ranks) == 2 else ""
        fine = done.returncode == 0 and SAYS.get(case, f"fine: {case}") in said and (case not in SAYS or served(more["CUDAMEMPOOL_REPORT"]) > 50)
    print(f"  {'fine  ' if fine else 'FAILED'} {case} ({how if how != 'orders' else words.rpartition('=')[2]})", flush=True)
    if not fine:
        print("\n".join("    | " + line for line in (said + done.stderr).splitlines()[-25:]))
    return fine


def test(build, python):
    """All cases with one PyTorch; the number that failed."""
    told = subprocess.run([python, "-c", "import torch; print(torch.__version__, torch.version.cuda)"], capture_output=True, text=True, check=True)
    version, cuda = told.stdout.split()
    if cuda == "None":
        sys.exit(f"PyTorch {version} is built without CUDA")
    print(f"PyTorch {version}, CUDA {cuda}:", flush=True)
    major, results, left_out = cuda.split(".")[0], [], 0
    for case, (how, words) in CASES.items():
        if lacking := missing(python, NEEDS.get(case, ())):
            left_out += 1
            print(f"  not run {case}: there is no {', no '.join(lacking)}", flush=True)
            continue
        for order in ORDERS if how == "orders" else ("eager",):
            results.append(start(build, python, major, case, how, f"{words},order={order}"))
    print(f"PyTorch {version}: {sum(results)} passed, {results.count(False)} failed, {left_out} not run", flush=True)
    return results.count(False)


def install(folder, version):
    """A virtual environment with this PyTorch (None: the newest); its Python."""
    place = os.path.join(folder, version or "newest")
    python = os.path.join(place, "bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    wanted = f"torch=={version}" if version else "torch"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wanted, "numpy"], check=True)
    for packages in NEEDS.values():  # where they cannot be had, or pip finds no versions that go with this PyTorch, their case is not run
        try:
            subprocess.run([python, "-m", "pip", "install", "--quiet", wanted, *packages], check=False, timeout=600)
        except subprocess.TimeoutExpired:
            print(f"{', '.join(packages)}: given up", flush=True)
    if version:  # the newest torchaudio, which LLaMA-Factory brings, is built for newer ones; without one of this number it stays
        subprocess.run([python, "-m", "pip", "install", "--quiet", wanted, f"torchaudio=={version}"], check=False, stderr=subprocess.DEVNULL)
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
