"""A small training loop whose losses are the same, bit by bit, wherever its memory comes from: `torch_train.py NAME BACKEND LOSSES`. A transformer with
sequences of many lengths, whose batches come on a stream of their own. Started by tools/gpu-check.sh as it is, under `cudamempool run`, and
with PyTorch's cache off in front of the preload library. BACKEND is what PyTorch has to call its allocator; the loss of each step goes into
the file LOSSES."""
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only so
from torch_lines import figure, import_torch, say

torch = import_torch()
NAME, BACKEND, LOSSES = sys.argv[1:4]
SIMULATED = os.environ.get("GPU_CHECK_DEVICE") == "simcuda"  # no cuBLAS there: no matrix product
STEPS, WIDTH, WORDS = (3, 32, 50) if SIMULATED else (40, 512, 5000)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)])
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = torch.nn.Linear(WIDTH, WIDTH)
        self.inner = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        query, key, value = self.attention(self.norms[0](x)).chunk(3, dim=-1)
        weights = (query @ key.transpose(1, 2) / WIDTH**0.5).softmax(-1)
        x = x + self.mix(weights @ value)
        return x + self.inner(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.out = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        x = self.words(text[:, :-1])
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return torch.nn.functional.cross_entropy(self.out(x).flatten(0, 1), text[:, 1:].flatten())


class Weights(torch.nn.Module):
    """Without a matrix product, for the rehearsal."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(WIDTH * WORDS))

    def forward(self, text):
        return (self.weights * self.weights).sum() + text.float().sum()


def beyond_the_pool():
    """Bytes of the device in use that are not held by the allocator: context, kernels, libraries' own, other processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def main():
    if torch.cuda.get_allocator_backend() != BACKEND:
        say(f"allocator: {NAME}", "failed", f"PyTorch says {torch.cuda.get_allocator_backend()}, not {BACKEND}")
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = (Weights if SIMULATED else Model)().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    lengths = [int(n) for n in torch.randint(40, 700, (STEPS,), generator=torch.Generator().manual_seed(2))]
    texts = [torch.randint(WORDS, (8, length), generator=torch.Generator().manual_seed(length)).pin_memory() for length in lengths]
    side, losses, beyond, start = torch.cuda.Stream(), [], 0, 0.0
    for step, text in enumerate(texts):
        if step == 2:
            torch.cuda.synchronize()
            beyond, start = beyond_the_pool(), time.perf_counter()
        with torch.cuda.stream(side):
            batch = text.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        batch.record_stream(torch.cuda.current_stream())
        loss = model(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del batch, loss
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / (STEPS - 2)
    grown = beyond_the_pool() - beyond
    with open(LOSSES, "w", encoding="utf-8") as file:
        file.writelines(f"{float(loss).hex()}\n" for loss in losses)
    figure(f"training step: {NAME}", seconds * 1e3, "ms", f"mean of {STEPS - 2}; {BACKEND} allocator; loss "
           f"{float(losses[0]):.4f} to {float(losses[-1]):.4f}")
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
        figure(f"training, memory held: {NAME}", torch.cuda.max_memory_reserved() / 2**20, "MiB",
               f"at most, for {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB of tensors")
        say(f"memory that the allocator does not see: {NAME}", "answered", f"{grown / 2**20:+.1f} MiB on the device in {STEPS - 2} steps")


import torch.utils.checkpoint  # noqa: E402: behind the check that there is a PyTorch

main()
