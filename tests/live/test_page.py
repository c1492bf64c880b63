"""The live page: what is in it, who may read it, when it goes. Usage: test_page.py BUILD SOURCE [unittest arguments]."""
import fcntl
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import unittest

import live
from live import MIB


class Page(unittest.TestCase):
    def setUp(self):
        scratch = live.scratch()
        self.folder = scratch.name
        self.addCleanup(scratch.cleanup)

    def only(self):
        (name,) = live.pages(self.folder)
        return os.path.join(self.folder, name)

    def top(self):
        result = live.tool(self.folder, "top", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_off_unless_asked(self):
        with live.Client(self.folder, conf="") as client:
            client.tell(f"alloc {MIB}")
            self.assertEqual(live.pages(self.folder), [])

    def test_figures_file_and_end(self):
        with live.Client(self.folder) as client:
            path = self.only()
            self.assertEqual(os.path.basename(path), f"cudamempool.{os.geteuid()}.{client.pid}.0")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            client.tell(f"alloc {5 * MIB}")
            client.tell(f"alloc {3 * MIB}")
            client.tell("free")
            head, (pool,) = live.read_page(path)
            self.assertEqual((head[0], head[1], head[7]), (b"cmplive\0", 1, client.pid))
            self.assertEqual(head[9].rstrip(b"\0"), b"client")
            self.assertEqual((pool["number"], pool["device"], pool["device_bytes"], pool["sequence"] % 2), (1, 0, 256 * MIB, 0))
            self.assertEqual((pool["live_bytes"], pool["live_blocks"], pool["allocations"], pool["frees"]), (5 * MIB, 1, 2, 1))
            self.assertEqual(pool["pages_created"] * 2 * MIB, pool["reserved_bytes"])
            self.assertEqual(client.end()[0], 0)
            self.assertEqual(live.pages(self.folder), [])

    def test_destroyed_pool_is_shown_no_more(self):
        with live.Client(self.folder) as client:
            self.assertEqual(client.tell("destroy"), "CMPOOL_OK")
            self.assertEqual(live.read_page(self.only())[1], [])
            self.assertEqual(self.top(), {"processes": 1, "unreadable": 0, "pools": []})

    def test_refusals_by_verdict(self):
        with live.Client(self.folder, conf="live:on,limit:16MiB") as client:
            self.assertEqual(client.tell(f"alloc {64 * MIB}"), "CMPOOL_ERR_LIMIT")
            client.tell(f"alloc {MIB}")
            (pool,) = self.top()["pools"]
            self.assertEqual(pool["limit_bytes"], 16 * MIB)
            self.assertEqual(pool["counters"]["refusals"], 1)
            self.assertEqual(sum(pool["refusals_by"].values()), 1)
            self.assertEqual(pool["refusals_by"]["true_demand"], 1)
            self.assertEqual(list(pool["refusals_by"]), live.VERDICTS)
            self.assertEqual(list(pool["counters"]), live.COUNTERS)

    def test_cached_calls_answer_a_reader(self):
        with live.Client(self.folder) as client:
            client.tell("small")
            self.top()  # asks
            client.tell("small")  # the next call answers; where that was too soon to count, one of a later round does
            for _ in range(100):
                self.top()
                client.tell("small")
                (pool,) = self.top()["pools"]
                if pool["counters"]["allocations"] > 2000:
                    break
            self.assertGreater(pool["counters"]["allocations"], 2000)

    def test_stopped_process_is_read(self):
        with live.Client(self.folder) as client:
            client.tell(f"alloc {7 * MIB}")
            os.kill(client.pid, signal.SIGSTOP)
            (pool,) = self.top()["pools"]
            os.kill(client.pid, signal.SIGCONT)
            self.assertEqual(pool["counters"]["live_bytes"], 7 * MIB)

    def test_killed_process_is_cleaned_up(self):
        with live.Client(self.folder) as client:
            client.process.kill()
            client.process.wait()
            self.assertEqual(len(live.pages(self.folder)), 1)
            self.assertEqual(self.top(), {"processes": 0, "unreadable": 0, "pools": []})
            self.assertEqual(live.pages(self.folder), [])

    def test_forked_child_leaves_the_page(self):
        with live.Client(self.folder) as client:
            self.assertEqual(client.tell("fork"), "CMPOOL_OK")
            self.assertEqual(len(self.top()["pools"]), 1)

    def test_unloaded_library_takes_it_along(self):
        program = """
import ctypes, os, _ctypes
library = ctypes.CDLL(os.environ["LIBRARY"])
pool = ctypes.c_uint64()
assert library.cmpool_create(ctypes.byref(pool), None) == 0
before = len(os.listdir(os.environ["CUDAMEMPOOL_LIVE_DIR"]))
_ctypes.dlclose(library._handle)
print(before, len(os.listdir(os.environ["CUDAMEMPOOL_LIVE_DIR"])))
"""
        if not live.sanitized():
            environment = dict(os.environ, CUDAMEMPOOL_LIVE_DIR=self.folder, CUDAMEMPOOL_CONF="live:on", SIMCUDA_DEVICE="sim:64MiB",
                               LIBRARY=os.path.join(live.BUILD, "lib/libcudamempool.so"))
            result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
            self.assertEqual((result.stdout, result.stderr), ("1 0\n", ""))

    def test_two_processes(self):
        with live.Client(self.folder) as one, live.Client(self.folder, device="sim:64MiB") as two:
            two.tell(f"alloc {MIB}")
            one.tell(f"alloc {2 * MIB}")
            found = {pool["process"]: pool["counters"]["live_bytes"] for pool in self.top()["pools"]}
            self.assertEqual(found, {one.pid: 2 * MIB, two.pid: MIB})

    def test_no_folder(self):
        gone = os.path.join(self.folder, "gone")
        with live.Client(gone) as client:
            self.assertEqual(client.tell(f"alloc {MIB}"), "CMPOOL_OK")  # memory is served all the same
            code, error = client.end()
            self.assertEqual(code, 0)
            self.assertIn("live: ", error)
        self.assertEqual(live.tool(gone, "top", "--once").returncode, 3)

    def test_strangers(self):
        """Files of other kinds and versions are neither read nor removed while somebody holds them."""
        for name in ("cudamempool.x.1.0", "cudamempool.0.1.0.old", "other"):
            open(os.path.join(self.folder, name), "wb").close()
        os.symlink("other", os.path.join(self.folder, f"cudamempool.{os.geteuid()}.999999.0"))
        with live.Client(self.folder) as client:
            path = os.path.join(self.folder, f"cudamempool.{os.geteuid()}.{client.pid}.0")
            with open(path, "r+b") as file:
                file.seek(8)
                file.write(struct.pack("=I", 2))
            self.assertEqual(self.top(), {"processes": 0, "unreadable": 1, "pools": []})
            before = live.pages(self.folder)
            client.end()
            self.assertEqual(len(live.pages(self.folder)), len(before) - 1)

    def test_name_that_is_taken(self):
        """Another container's process of our number has the first name: the next one is taken."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # becomes the client, whose parent holds the file of its number
            os.read(read, 1)
            environment = dict(os.environ, CUDAMEMPOOL_LIVE_DIR=self.folder, CUDAMEMPOOL_CONF="live:on", SIMCUDA_DEVICE="sim:64MiB")
            os.dup2(read, 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execve(os.path.join(live.BUILD, "tests/live/client"), ["client"], environment)
        with open(os.path.join(self.folder, f"cudamempool.{os.geteuid()}.{child}.0"), "wb") as held:
            fcntl.lockf(held, fcntl.LOCK_EX, 1)
            os.write(write, b"x")
            for _ in range(1000):
                if any(pool["process"] == child for pool in self.top()["pools"]):
                    break
            self.assertIn(f"cudamempool.{os.geteuid()}.{child}.1", live.pages(self.folder))
            os.close(write)
            os.close(read)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
