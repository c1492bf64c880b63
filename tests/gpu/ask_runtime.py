"""Calls of the CUDA runtime that allocate, made so often: `ask_runtime.py CALL COUNT`. Started by tools/gpu-check.sh behind the preload library,
whose report then says how many of them reached cuMemAlloc. Prints nothing on success; exit 77: there is no runtime library, which the
programs that bring one (PyTorch) have in their folders."""
import ctypes
import glob
import importlib.util
import os
import sys


class Extent(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]


class Pitched(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("xsize", ctypes.c_size_t), ("ysize", ctypes.c_size_t)]


def find_runtime():
    rehearsal = os.environ.get("GPU_CHECK_DEVICE") == "simcuda"  # whose runtime is found by its name
    torch = None if rehearsal else importlib.util.find_spec("torch")
    places = [os.path.dirname(os.path.dirname(torch.origin))] if torch and torch.origin else []
    paths = [path for place in places for path in sorted(glob.glob(place + "/nvidia/*/lib/libcudart.so.1[0-9]"), reverse=True)]
    for path in paths + ["libcudart.so.13", "libcudart.so.12", "libcudart.so"]:
        try:
            return ctypes.CDLL(path), path
        except OSError:
            continue
    print("no CUDA runtime library was found", file=sys.stderr)
    return sys.exit(77)


def must(code, what):
    if code != 0:
        sys.exit(f"{what} gave {code}")


def allocate(runtime, call):
    """The address of a new block of 1 MiB."""
    address, pitch, pitched = ctypes.c_void_p(), ctypes.c_size_t(), Pitched()
    if call == "cudaMalloc":
        must(runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 20)), call)
    elif call == "cudaMallocPitch":
        must(runtime.cudaMallocPitch(ctypes.byref(address), ctypes.byref(pitch), ctypes.c_size_t(1024), ctypes.c_size_t(1024)), call)
    elif call == "cudaMalloc3D":
        must(runtime.cudaMalloc3D(ctypes.byref(pitched), Extent(1024, 32, 32)), call)
        address = ctypes.c_void_p(pitched.ptr)
    else:
        sys.exit(f"no such call: {call}")
    return address


def main():
    call, count = sys.argv[1], int(sys.argv[2])
    runtime, path = find_runtime()
    print(path, file=sys.stderr)
    blocks = [allocate(runtime, call) for _ in range(count)]
    for block in blocks:
        must(runtime.cudaFree(block), "cudaFree")


main()
