"""Runs a program of PyTorch's with matrix products that are accepted and not executed, as all other kernels on the simulated device are:
`accepted.py PROGRAM [WORDS...]`. They are cuBLAS's, which cannot start there, so their results are given here, with the right shapes and
nothing in them. What the program allocates, keeps and frees is as with a GPU, but for cuBLAS's own workspace."""
import runpy
import sys

import torch

_library = torch.library.Library("aten", "IMPL")


def implement(name):
    def register(function):
        _library.impl(name, function, "CUDA")
        return function

    return register


@implement("mm")
def mm(a, b):
    return a.new_empty(a.shape[0], b.shape[1])


@implement("addmm")
def addmm(_bias, a, b, *, beta=1, alpha=1):
    return a.new_empty(a.shape[0], b.shape[1])


@implement("bmm")
def bmm(a, b):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


@implement("baddbmm")
def baddbmm(_bias, a, b, *, beta=1, alpha=1):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


@implement("dot")
def dot(a, _b):
    return a.new_empty(())


@implement("mv")
def mv(a, _b):
    return a.new_empty(a.shape[0])


if __name__ == "__main__":
    torch.backends.cuda.enable_flash_sdp(False)  # these look at the device for kernels built for it
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
