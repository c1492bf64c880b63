"""NVIDIA's libraries and CUDA graphs in PyTorch with this library's memory: `torch_libraries.py NAME`. Matrix products (cuBLAS), convolutions (cuDNN),
transforms (cuFFT), sorting, a reduction over one rank (NCCL) and a captured step launched often, each against what the CPU computes. Started
by tools/gpu-check.sh under `cudamempool run` and with PyTorch's cache off in front of the preload library."""
import os
import sys

from torch_lines import import_torch, say

torch = import_torch()
NAME = sys.argv[1]
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ
generator = torch.Generator().manual_seed(3)


def near(name, ours, wanted):
    """Whether the device has computed what the CPU has, within what single precision allows."""
    worst = (ours.detach().cpu().double() - wanted.double()).abs().max().item() / max(wanted.abs().max().item(), 1e-30)
    say(f"{name}: {NAME}", "passed" if worst < 1e-3 else "failed", f"off by {worst:.1e} at most")


def matrix_products():
    for size in (64, 500, 2000):
        a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
        near(f"matrix product of {size}", a.cuda() @ b.cuda(), a @ b)


def convolutions():
    x, layer = torch.randn(4, 8, 64, 64, generator=generator), torch.nn.Conv2d(8, 16, 5, padding=2)
    wanted = layer(x)
    near("convolution", layer.cuda()(x.cuda()), wanted)


def transforms():
    x = torch.randn(64, 3000, generator=generator)
    near("Fourier transform", torch.fft.irfft(torch.fft.rfft(x.cuda())), x)


def sorting():
    x = torch.randn(1 << 20, generator=generator)
    near("sort", x.cuda().sort().values, x.sort().values)


def reductions():
    import torch.distributed as distributed

    if not distributed.is_available() or not distributed.is_nccl_available():
        say(f"NCCL: {NAME}", "not answerable here", "this PyTorch has none")
        return
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    x = torch.randn(1 << 20, generator=generator)
    y = x.cuda()
    distributed.all_reduce(y)
    near("NCCL all-reduce of one rank", y, x)
    distributed.destroy_process_group()


def graphs():
    if UNCACHED:
        say(f"CUDA graph: {NAME}", "not answerable here", "PyTorch captures no graph without its cache")
        return
    x, wanted = torch.randn(1000, 1000, generator=generator), torch.zeros(1000, 1000)
    still, total = x.cuda(), torch.zeros(1000, 1000, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # what is loaded and made at the first time
        (still @ still).relu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += (still @ still).relu()
    kept = []
    for _ in range(100):
        graph.replay()
        kept.append(torch.full((1 << 18,), 7.0, device="cuda"))  # others take memory meanwhile
    wanted = 100 * (x @ x).relu()
    near("CUDA graph, launched 100 times", total, wanted)
    near("tensors beside it", torch.stack(kept), torch.full((100, 1 << 18), 7.0))


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
for case in (matrix_products, convolutions, transforms, sorting, reductions, graphs):
    try:
        case()
    except Exception as error:  # the next ones may work
        say(f"{case.__name__}: {NAME}", "failed", f"{type(error).__name__}: {error}"[:300].replace("\n", " "))
