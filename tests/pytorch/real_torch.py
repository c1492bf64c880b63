"""One case of real PyTorch over the simulated device: `real_torch.py CASE`. Started by run.py, which sets the environment. Kernels are not
executed, so nothing here looks at what one computes; simcuda_touch stands for kernels where the order of streams is the matter."""
import contextlib
import ctypes
import io
import os
import sys
import tempfile

import torch

import cudamempool

MIB = 1 << 20
sim = ctypes.CDLL("libcuda.so.1")
sim.simcuda_calls_of.restype = sim.simcuda_races.restype = sim.simcuda_findings.restype = ctypes.c_uint64
sim.simcuda_finding_text.restype = ctypes.c_char_p
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def touch(tensor, stream):
    """A kernel on the stream that writes all of the tensor."""
    size = tensor.numel() * tensor.element_size()
    code = sim.simcuda_touch(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(size), 1)
    assert code == 0, code


def no_races():
    assert sim.simcuda_races() == 0, sim.simcuda_finding_text(0)


def tensor(mib, **more):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda", **more)


@case
def swap():
    """Tensors, statistics, an out-of-memory that is caught, and all that answers from the pool's figures."""
    cudamempool.use()
    assert torch._C._cuda_getAllocatorBackend() == "pluggable" and torch.cuda.memory_allocated() == 0
    x = tensor(3)
    assert (x + 1).shape == x.shape
    assert torch.cuda.memory_allocated() == 3 * MIB and torch.cuda.max_memory_allocated() == 6 * MIB
    assert sim.simcuda_calls_of(b"cuMemAlloc") == 0 and sim.simcuda_calls_of(b"cuMemCreate") > 0
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    kept = []
    for size in (300, 1 << 20, 1 << 40):
        try:
            while True:
                kept.append(tensor(size))
        except torch.cuda.OutOfMemoryError as error:
            text = str(error)
        assert text.startswith("CUDA out of memory. Tried to allocate") and "libcudamempool" in text, text
    assert all(each.data_ptr() for each in kept) and torch.cuda.memory_stats()["num_ooms"] >= 2
    live = torch.cuda.memory_allocated()
    kept.clear()
    assert torch.cuda.memory_allocated() < live
    tensor(300)  # and on it goes
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 8 * MIB
    assert "Allocated memory" in torch.cuda.memory_summary()
    torch.cuda.set_per_process_memory_fraction(0.25)
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        tensor(300)
        raise AssertionError("the fraction is no limit")
    no_races()
    print(text)


@case
def autograd():
    """A refusal in a thread of the backward pass arrives in Python as what it is; a training loop takes nothing from the driver once it is warm."""
    cudamempool.use()

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x + 1

        @staticmethod
        def backward(_context, gradient):
            tensor(1 << 30)
            return gradient

    x = torch.ones(1000, device="cuda", requires_grad=True)
    try:
        Greedy.apply(x).sum().backward()
        raise AssertionError("nothing was refused")
    except torch.cuda.OutOfMemoryError as error:
        assert "CUDA out of memory." in str(error)

    def calls():
        return [sim.simcuda_calls_of(name) for name in (b"cuMemCreate", b"cuMemRelease", b"cuMemAlloc", b"cuCtxSynchronize")]

    weights = [torch.ones(n, device="cuda", requires_grad=True) for n in (1000, 1 << 20, 1 << 22)]
    optimizer = torch.optim.AdamW(weights, foreach=False)
    for step in range(20):
        if step == 12:
            before = calls()
        loss = sum((weight * weight).sum() for weight in weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert calls() == before, (before, calls())
    no_races()


@case
def record_stream():
    """What another stream uses goes to nobody before that use, whatever the device has finished."""
    cudamempool.use()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for turn in range(30):
        x = tensor(5)
        touch(x, main)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            touch(x, side)
            x.record_stream(side)
            y = tensor(5)
            touch(y, side)
        del x
        z = tensor(5)
        touch(z, main)
        main.wait_stream(side) if turn % 7 == 0 else None
        del y, z
    assert cudamempool.stats()["uses_recorded"] == 30
    no_races()


@case
def graphs():
    """Captured work finds its memory at its place at each launch; the program's own gets none of it until the graph is gone."""
    cudamempool.use()
    x = tensor(4)
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        touch(y, torch.cuda.current_stream())
        z = y * 2
    with torch.cuda.graph(second, pool=graph.pool()):
        w = x * 3
    others = [tensor(4) for _ in range(20)]
    addresses = {each.data_ptr() for each in (y, z, w)}
    assert not addresses & {each.data_ptr() for each in others}
    for _ in range(5):
        graph.replay()
        second.replay()
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    del y, z, w, others
    graph.reset()
    second.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved and torch.cuda.memory_reserved() <= 6 * MIB
    no_races()


@case
def mempool():
    """torch.cuda.MemPool while the pool serves, and on the side of PyTorch's own allocator in the next case."""
    cudamempool.use()
    pool = torch.cuda.MemPool()
    outside = tensor(2)
    with torch.cuda.use_mem_pool(pool):
        inside = tensor(2)
    so = ctypes.CDLL(cudamempool.library_path())

    def owner(pointer):
        info = (ctypes.c_uint64 * 6)(48)  # cmpool_block_info: its size, the pool ...
        assert so.cmpool_lookup(ctypes.c_void_p(pointer), ctypes.byref(info)) == 0
        return info[1]

    assert owner(inside.data_ptr()) != owner(outside.data_ptr())
    del inside, pool
    again = tensor(2)
    assert owner(again.data_ptr()) == owner(outside.data_ptr())


@case
def native_mempool():
    """PyTorch keeps its allocator; one MemPool of it takes its segments from the library, and a refusal is PyTorch's own."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(cudamempool.library_path(), "cmpool_torch_malloc", "cmpool_torch_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = tensor(30)
        assert cudamempool.stats()["live_bytes"] >= 30 * MIB
        try:
            tensor(1 << 20)
            raise AssertionError("nothing was refused")
        except torch.cuda.OutOfMemoryError as error:
            assert "libcudamempool" not in str(error)
    outside = tensor(30)
    assert sim.simcuda_calls_of(b"cuMemAlloc") == 1 and torch.cuda.memory_allocated() == 60 * MIB
    del inside, outside
    del pool  # PyTorch 2.6 wants it to go before its allocator


@case
def snapshot():
    """memory._snapshot, printed by PyTorch's own _memory_viz."""
    cudamempool.use()
    kept = [tensor(size) for size in (1, 2, 3, 40)] + [torch.empty(100, device="cuda")]
    del kept[1]
    from torch.cuda import _memory_viz

    taken = torch.cuda.memory._snapshot()
    blocks = [block for segment in taken["segments"] for block in segment["blocks"]]
    assert sum(block["size"] for block in blocks if block["state"] == "active_allocated") == torch.cuda.memory_allocated()
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(os.path.join(folder, "snapshot.pickle"))
    out = io.StringIO()
    out.write(_memory_viz.segsum(taken))
    out.write(_memory_viz.trace(taken))
    assert "active_allocated" in _memory_viz.segment_plot(taken) or "snapshot" in _memory_viz.segment_plot(taken)
    assert len(torch.cuda.memory_snapshot()) == len(taken["segments"])
    print(out.getvalue())


@case
def by_run():
    """Started by `cudamempool run`, with nothing in the program."""
    assert cudamempool.in_use() and torch._C._cuda_getAllocatorBackend() == "pluggable"
    x = tensor(3)
    assert torch.cuda.memory_allocated() == 3 * MIB == x.numel() and sim.simcuda_calls_of(b"cuMemAlloc") == 0


@case
def uncached():
    """PYTORCH_NO_CUDA_MEMORY_CACHING and the library in front of the driver: no exchange, and no call reaches the driver either."""
    assert not cudamempool.in_use() and torch._C._cuda_getAllocatorBackend() == "native"
    x = [tensor(3) for _ in range(10)]
    assert len(x) == 10 and sim.simcuda_calls_of(b"cuMemAlloc") == 0 and sim.simcuda_calls_of(b"cuMemCreate") > 0
    try:
        tensor(1 << 20)
        raise AssertionError("nothing was refused")
    except RuntimeError as error:  # this mode has no words of its own for it
        assert "out of memory" in str(error)


def copy_between_devices():
    x = torch.arange(1000, dtype=torch.int32).to("cuda:0")
    y = x.to("cuda:1")
    z = torch.empty_like(x)
    z.copy_(y)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    want = torch.arange(1000, dtype=torch.int32)
    assert torch.equal(y.cpu(), want) and torch.equal(z.cpu(), want) and torch.equal(y.cuda(0).cpu(), want)


def copy_in_cpp():
    """A copy between the devices that no Python function sees, as in DataParallel."""
    x = torch.arange(1000, dtype=torch.int32).to("cuda:0")
    y = torch.empty(1000, dtype=torch.int32, device="cuda:1")
    torch.ops.aten.copy_(y, x)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert torch.equal(y.cpu(), torch.arange(1000, dtype=torch.int32))


def take_peers_away():
    sim.simcuda_configure(os.environ["SIMCUDA_DEVICE"].encode(), None, ctypes.c_size_t(0))
    sim.simcuda_set_feature(5, 0)  # SIMCUDA_FEATURE_PEER


@contextlib.contextmanager
def written_to_stderr(lines):
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode().splitlines()


@case
def two_devices():
    """Right bytes between two devices that reach each other."""
    cudamempool.use()
    copy_between_devices()
    copy_in_cpp()
    no_races()


@case
def two_devices_apart():
    """Two that do not: right bytes from Python, through the host; inside C++ the driver refuses, and the library has said what else there is."""
    take_peers_away()
    cudamempool.use()
    lines = []
    with written_to_stderr(lines):
        copy_between_devices()
        no_races()
        try:
            copy_in_cpp()
            raise AssertionError("it was copied")
        except RuntimeError as error:
            assert "CUDA error" in str(error), error
    assert any("backend:malloc" in line for line in lines), lines


@case
def two_devices_malloc():
    """With the driver's own memory it copies whatever asks."""
    take_peers_away()
    cudamempool.use("backend:malloc")
    copy_between_devices()
    copy_in_cpp()
    no_races()
    assert sim.simcuda_calls_of(b"cuMemCreate") == 0


if __name__ == "__main__":
    CASES[sys.argv[1]]()
    print(f"fine: {sys.argv[1]}")
