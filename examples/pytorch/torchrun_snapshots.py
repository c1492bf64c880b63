"""Several ranks, each with a pool of its own, and one snapshot a rank when it refuses or ends:

    cudamempool run -- torchrun --nproc-per-node 2 torchrun_snapshots.py
    cudamempool inspect rank*.json
"""
import ctypes
import os

import torch
import torch.distributed

import cudamempool

cudamempool.use()  # nothing to do where `cudamempool run` was there before


def write_snapshot(rank):
    library = ctypes.CDLL(cudamempool.library_path())
    status = library.cmpool_snapshot_write(f"rank{rank}.json".encode())
    print(f"rank {rank}: {'rank%d.json' % rank if status == 0 else 'no snapshot'}")


def main():
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    weights = [torch.ones(n, device="cuda", requires_grad=True) for n in (1_000, 1_000_000 * (1 + rank))]
    optimizer = torch.optim.AdamW(weights)
    try:
        for _ in range(10):
            loss = sum((weight * weight).sum() for weight in weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        write_snapshot(rank)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
