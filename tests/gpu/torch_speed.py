"""How long PyTorch's requests for memory take, as a program sees them: tensors made and dropped, and recorded training runs whose requests are
made again at a memory limit. `torch_speed.py MODE TRACE...`, MODE: native (PyTorch's own allocator), async (cudaMallocAsync; the environment
says so too), pool (this library). Started by tools/gpu-check.sh."""
import gzip
import os
import sys
import time

from torch_lines import figure, import_torch, say

torch = import_torch()
MODES = {"native": "PyTorch's allocator", "async": "cudaMallocAsync in PyTorch", "pool": "libcudamempool in PyTorch"}
MODE = MODES[sys.argv[1]]
SLOW = os.environ.get("GPU_CHECK_DEVICE") == "simcuda"
LIMIT = 1.02  # times the peak of live bytes

raw_alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
raw_delete = torch._C._cuda_cudaCachingAllocator_raw_delete


def pairs():
    for size in (4096, 1 << 20, 64 << 20):
        count = 200 if SLOW else 20000
        for turn in range(2):  # the first one warms up
            start = time.perf_counter_ns()
            for _ in range(count):
                x = torch.empty(size, dtype=torch.uint8, device="cuda")
                del x
            ns = (time.perf_counter_ns() - start) / count
        figure(f"torch.empty of {size} bytes and its end: {MODE}", ns, "ns", "Python's part included")


def read(path):
    """Requests and frees of a recorded run, in order: (number, bytes, stream), a free with -1 bytes; the peak of live bytes."""
    calls, peak, live, sizes = [], 0, 0, {}
    with gzip.open(path, "rt") as file:
        for line in file:
            words = line.split()
            if words[0] == "a":
                sizes[words[1]] = (int(words[2]) + 511) // 512 * 512
                live += sizes[words[1]]
                peak = max(peak, live)
                calls.append((words[1], int(words[2]), int(words[3])))
            elif words[0] == "f":
                live -= sizes.pop(words[1])
                calls.append((words[1], -1, 0))
    return calls, peak


def replay(calls, streams, alloc, delete):
    """Seconds, and how many requests were refused."""
    blocks, refused = {}, 0
    start = time.perf_counter()
    for number, size, stream in calls:
        if size >= 0:
            try:
                blocks[number] = alloc(size, streams[stream])
            except torch.cuda.OutOfMemoryError:
                refused += 1
        elif number in blocks:
            delete(blocks.pop(number))
    seconds = time.perf_counter() - start
    for block in blocks.values():
        delete(block)
    return seconds, refused


def run(path):
    name = os.path.basename(path).split(".")[0]
    question = f"{name} at {LIMIT} x its peak: {MODE}"
    calls, peak = read(path)
    free, total = torch.cuda.mem_get_info()
    if LIMIT * peak > 0.95 * free:
        say(question, "skipped", f"{peak * LIMIT / 2**30:.1f} GiB are wanted, {free / 2**30:.1f} GiB are free")
        return
    count = max(stream for _, _, stream in calls) + 1
    held = [torch.cuda.Stream() for _ in range(count - 1)]
    streams = [torch.cuda.current_stream().cuda_stream] + [stream.cuda_stream for stream in held]
    empty, _ = replay(calls, streams, lambda size, stream: 1, lambda block: None)
    torch.cuda.set_per_process_memory_fraction(LIMIT * peak / total)
    torch.cuda.reset_peak_memory_stats()
    seconds, refused = replay(calls, streams, raw_alloc, raw_delete)
    again, refused_again = replay(calls, streams, raw_alloc, raw_delete)  # with a warm cache
    reserved = torch.cuda.max_memory_reserved()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    figure(question, (seconds - empty) / len(calls) * 1e9, "ns",
           f"a call of {len(calls)}, Python's loop taken off; once more {(again - empty) / len(calls) * 1e9:.0f} ns; {refused} and "
           f"{refused_again} refused; {reserved / peak:.4f} x the peak held; nothing uses the memory, uses on other streams are left out")


if sys.argv[1] == "pool":
    import cudamempool

    cudamempool.use()
pairs()
for trace in sys.argv[2:]:
    run(trace)
