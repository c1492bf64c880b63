"""The Python package over a stand-in for PyTorch and the simulated device; how Python is started with it; the library in a stock Python."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BUILD, "lib/libcudamempool.so")
PACKAGE = os.path.join(SOURCE, "tools/python")
STARTUP = os.path.join(BUILD, "lib/cudamempool/python/startup")
TOOL = os.path.join(BUILD, "bin/cudamempool")
SIMCUDA = os.path.join(BUILD, "simcuda")
FAKE = os.path.join(HERE, "fake")
PRELUDE = "import sys; sys.dont_write_bytecode = True\n"


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_", "PYTHON", "PYTORCH", "SIMCUDA"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


def simulated(**more):
    return environment(CUDAMEMPOOL_LIBRARY=LIBRARY, CUDAMEMPOOL_DRIVER=os.path.join(SIMCUDA, "libcuda.so.1"), LD_LIBRARY_PATH=SIMCUDA,
                       SIMCUDA_DEVICE="sim:64MiB", FAKE_C10=os.path.join(BUILD, "tests/pytorch/form1/libc10.so"), **more)


def run(script, *options, env=None, command=()):
    return subprocess.run([*command, sys.executable, *options, "-c", script], env=env, capture_output=True, text=True, timeout=120)


class Case(unittest.TestCase):
    def fine(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()


class Library(Case):
    def test_stock_python(self):
        """Loaded with no environment set, by path; what it says without a driver."""
        lines = self.fine(run(f"import ctypes; so = ctypes.CDLL({LIBRARY!r})\n"
                              "so.cmpool_version.restype = so.cmpool_status_name.restype = ctypes.c_char_p\n"
                              "pool = ctypes.c_uint64()\n"
                              "print(so.cmpool_version().decode(), so.cmpool_status_name(so.cmpool_create(ctypes.byref(pool), None)).decode())\n"
                              "print(so.cmpool_torch_can_raise())", "-I", env={"PATH": os.environ.get("PATH", "")}))
        version, status = lines[0].split()
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        self.assertIn(status, ("CMPOOL_ERR_DRIVER_MISSING", "CMPOOL_OK"))
        self.assertEqual(lines[1], "0")

    def test_library_is_found(self):
        lines = self.fine(run("import cudamempool; print(cudamempool.library_path()); print(cudamempool.version()); print(cudamempool.in_use())",
                              env=environment(PYTHONPATH=os.path.join(BUILD, "lib/cudamempool/python"))))
        self.assertEqual(lines[0], os.path.realpath(LIBRARY))
        self.assertEqual(lines[2], "False")

    def test_library_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("import cudamempool\ntry: cudamempool.version()\nexcept cudamempool.CudaMemPoolError as error: print(error)",
                       env=environment(PYTHONPATH=PACKAGE, CUDAMEMPOOL_LIBRARY=os.path.join(folder, "no.so"), LD_LIBRARY_PATH=folder))
        if "was not found" not in self.fine(done)[0]:
            self.assertRegex(done.stdout, r"^\d|^$")  # one is installed on this machine


class Use(Case):
    def script(self, text, **more):
        path = os.pathsep.join((PACKAGE, FAKE))
        return self.fine(run(PRELUDE + "import torch, cudamempool\nfrom torch.cuda import *\nfrom torch.cuda.memory import Block\n" + text,
                             env=simulated(PYTHONPATH=path, **more)))

    def test_figures(self):
        lines = self.script(
            "cudamempool.use(); cudamempool.use(); print(cudamempool.in_use(), memory_allocated(), cudamempool.stats())\n"
            "a = Block(3 << 20); b = Block(1000); print(memory_allocated(), memory_reserved(), memory_stats()['allocation.all.current'])\n"
            "del a; print(memory_allocated(), max_memory_allocated())\n"
            "reset_peak_memory_stats(); print(max_memory_allocated())\n"
            "empty_cache(); print(memory_reserved())\n"
            "reset_accumulated_memory_stats(); c = Block(1 << 20); print(memory_stats()['allocated_bytes.all.allocated'], "
            "memory_stats()['allocation.all.allocated'], memory_stats()['allocation.all.freed'])\n"
            "print(torch._C.current.malloc(1 << 30, 0, None) if 0 else memory_stats()['num_ooms'])\n"
            "print(sorted(set(cudamempool.stats()) & {'live_bytes', 'page_moves'}), cudamempool.stats()['live_blocks'])")
        self.assertEqual(lines[0], "True 0 {}")
        self.assertEqual(lines[1], f"{(3 << 20) + 1024} {4 << 20} 2")
        self.assertEqual(lines[2], f"1024 {(3 << 20) + 1024}")
        self.assertEqual(lines[3], "1024")
        self.assertEqual(lines[4], str(2 << 20))
        self.assertEqual(lines[5], f"{1 << 20} 1 0")
        self.assertEqual(lines[6], "0")
        self.assertEqual(lines[7], "['live_bytes', 'page_moves'] 2")

    def test_fraction(self):
        lines = self.script("cudamempool.use(); print(get_per_process_memory_fraction()); set_per_process_memory_fraction(0.5)\n"
                            "print(get_per_process_memory_fraction())\nb = Block(30 << 20); print(b.pointer is not None)")
        self.assertEqual(lines, ["1.0", "0.5", "True"])

    def test_options(self):
        lines = self.script("cudamempool.use('limit:8MiB')\nimport ctypes\n"
                            "plain = ctypes.CDLL(cudamempool.library_path()).cmpool_torch_malloc; plain.restype = ctypes.c_void_p\n"
                            "print(plain(ctypes.c_size_t(16 << 20), 0, None), memory_stats()['num_ooms'])")
        self.assertEqual(lines, ["None 1"])

    def test_mempool(self):
        lines = self.script(
            "cudamempool.use()\npool, other = torch.cuda.MemPool(), torch.cuda.MemPool(); print(pool.id != other.id, pool.use_count())\n"
            "with torch.cuda.use_mem_pool(pool):\n    a = Block(1 << 20)\n    print(pool.use_count())\n"
            "b = Block(1 << 20); print(pool.use_count(), memory_allocated())\n"
            "try: torch.cuda.MemPool(object())\nexcept RuntimeError as error: print(str(error)[:20])\n"
            "try: torch._C._cuda_record_memory_history('all')\nexcept RuntimeError as error: print('history' in str(error))")
        self.assertEqual(lines, ["True 1", "2", f"1 {2 << 20}", "a MemPool with an al", "True"])

    def test_too_late(self):
        lines = self.script("torch._C.initialized = True\ntry: cudamempool.use()\nexcept cudamempool.CudaMemPoolError as error: print(error)\n"
                            "print(cudamempool.in_use())")
        self.assertIn("too late", lines[0])
        self.assertEqual(lines[1], "False")

    def test_without_cuda(self):
        lines = self.script("del torch._C._cuda_customAllocator\ntry: cudamempool.use()\n"
                            "except cudamempool.CudaMemPoolError as error: print(error)")
        self.assertIn("has no CUDA", lines[0])

    def test_a_hook_is_missing(self):
        lines = self.script("torch._C._SIGNATURES.pop('set_record_stream_fn')\ntry: cudamempool.use()\n"
                            "except cudamempool.CudaMemPoolError as error: print(error)\nprint(torch._C.current)")
        self.assertIn("set_record_stream_fn", lines[0])
        self.assertEqual(lines[1], "None")

    def test_without_torch(self):
        done = run("import cudamempool\ntry: cudamempool.use()\nexcept cudamempool.CudaMemPoolError as error: print(error)", "-S",
                   env=simulated(PYTHONPATH=PACKAGE))
        self.assertIn("cannot be imported", self.fine(done)[0])


class Snapshot(Case):
    def test_of_the_sample(self):
        with open(os.path.join(SOURCE, "include/cudamempool/snapshot.sample.json"), encoding="utf-8") as file:
            sample = json.load(file)
        sys.path.insert(0, PACKAGE)
        sys.dont_write_bytecode = True
        os.environ["CUDAMEMPOOL_LIBRARY"] = LIBRARY
        from cudamempool import _snapshot

        made = _snapshot.convert(sample)
        live = pending = 0
        for segment in made["segments"]:
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)  # blocks tile the segment
                at += block["size"]
                live += block["size"] * (block["state"] == "active_allocated")
                pending += block["size"] * (block["state"] == "active_pending_free")
            self.assertEqual(at, segment["address"] + segment["total_size"])
        counters = sample["devices"][0]["pools"][0]["counters"]
        self.assertEqual(live, counters["live_bytes"])
        self.assertGreater(pending, 0)
        actions = [entry["action"] for entry in made["device_traces"][0]]
        self.assertEqual(actions, ["segment_map", "alloc", "alloc", "free_requested", "free_completed", "oom"])
        frames = [block["frames"] for segment in made["segments"] for block in segment["blocks"] if block["frames"]]
        self.assertEqual(frames[0][1], {"filename": "/opt/app/train", "line": 0, "name": "main"})


class Start(Case):
    """How `cudamempool run` reaches Python."""

    def python(self, script, *options, **more):
        return run(PRELUDE + script, *options, command=(TOOL, "run", "--"), env=simulated(PYTHONPATH=FAKE, **more))

    def test_torch_is_served(self):
        lines = self.fine(self.python("import torch, cudamempool\nfrom torch.cuda.memory import Block\n"
                                      "b = Block(5000); print(cudamempool.in_use(), torch.cuda.memory_allocated())"))
        self.assertEqual(lines, ["True 5120"])

    def test_other_programs(self):
        lines = self.fine(self.python("import json; print(json.dumps([1]), 'cudamempool._allocator' in sys.modules)"))
        self.assertEqual(lines, ["[1] False"])

    def test_report(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "report")
            done = run(PRELUDE + "import torch\nfrom torch.cuda.memory import Block\nb = Block(5000)",
                       command=(TOOL, "run", "--report", name, "--"), env=simulated(PYTHONPATH=FAKE))
            self.fine(done)
            with open(name, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        self.assertEqual([line["devices"][0]["allocations"] for line in lines], [1])

    def test_the_other_way_is_left_alone(self):
        """PyTorch's uncached mode over the library before the driver, where the user asks for it."""
        done = self.python("import torch, os; print(torch._C.current, os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'])",
                           PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        self.assertEqual(self.fine(done), ["None 1"])

    def test_fall_back(self):
        done = run(PRELUDE + "import cudamempool._allocator as a, os\n"
                   "def no(conf=None): raise a._library.CudaMemPoolError('cannot')\n"
                   "a.use = no\nimport torch; print(torch._C.current, os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'])",
                   command=(TOOL, "run", "--"), env=simulated(PYTHONPATH=FAKE))
        self.assertEqual(self.fine(done), ["None 1"])
        self.assertIn("in front of the driver", done.stderr)

    def test_fall_back_without_preload(self):
        done = run(PRELUDE + "from cudamempool import _allocator as a, _startup; import os\n"
                   "def no(conf=None): raise a._library.CudaMemPoolError('cannot')\n"
                   "a.use = no; _startup.install()\nimport torch; print('PYTORCH_NO_CUDA_MEMORY_CACHING' in os.environ)",
                   env=simulated(PYTHONPATH=os.pathsep.join((PACKAGE, FAKE))))
        self.assertEqual(self.fine(done), ["False"])
        self.assertIn("keeps its own allocator", done.stderr)

    def test_chains_to_the_users_sitecustomize(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
                file.write("import builtins; builtins.from_the_user = 42\n")
            done = run(PRELUDE + "import torch, cudamempool, sitecustomize; print(from_the_user, cudamempool.in_use(), sitecustomize.__file__)",
                       command=(TOOL, "run", "--"), env=simulated(PYTHONPATH=os.pathsep.join((folder, FAKE))))
            self.assertEqual(self.fine(done), [f"42 True {folder}/sitecustomize.py"])

    def test_isolated_python(self):
        """-I, -E and -S leave the hook out; the program runs all the same."""
        for option in ("-I", "-E", "-S"):
            with self.subTest(option=option):
                self.assertEqual(self.fine(self.python("print('cudamempool' in sys.modules)", option)), ["False"])

    def test_a_broken_package_stops_nobody(self):
        done = run(PRELUDE + "import cudamempool\nprint('runs')", command=(TOOL, "run", "--"),
                   env={**simulated(PYTHONPATH=FAKE), "CUDAMEMPOOL_LIBRARY": "/nowhere/libcudamempool.so"})
        self.assertEqual(self.fine(done), ["runs"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
