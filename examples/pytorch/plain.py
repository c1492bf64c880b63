"""PyTorch with one line more: a loop, a refusal that is caught, figures, a snapshot for pytorch.org/memory_viz."""
import sys

import torch

import cudamempool

cudamempool.use()  # before the first tensor on a GPU


def step(weights, optimizer):
    loss = sum((weight * weight).sum() for weight in weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    weights = [torch.ones(n, device="cuda", requires_grad=True) for n in (1_000, 1_000_000, 10_000_000)]
    optimizer = torch.optim.AdamW(weights)
    for _ in range(10):
        step(weights, optimizer)
    print(f"{torch.cuda.max_memory_allocated() >> 20} MiB at most, {torch.cuda.max_memory_reserved() >> 20} MiB held for them")
    try:
        torch.empty(1 << 42, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        print(error)
    print(f"{cudamempool.stats()['page_moves']} pages were mapped elsewhere, {cudamempool.stats()['host_waits']} times the host waited")
    if len(sys.argv) > 1:
        torch.cuda.memory._dump_snapshot(sys.argv[1])


if __name__ == "__main__":
    main()
