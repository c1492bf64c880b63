"""What an NVTX tool is told of a program's pool, from first block to last. Usage: test_nvtx.py BUILD SOURCE [unittest arguments]."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../live"))
import live
from live import MIB

TOOL = os.path.join(live.BUILD, "tests/nvtx/tool.so")


class Nvtx(unittest.TestCase):
    def setUp(self):
        scratch = live.scratch()
        self.folder = scratch.name
        self.addCleanup(scratch.cleanup)
        self.record = os.path.join(self.folder, "record")

    def run_client(self, words, conf="nvtx:on", device="sim:64MiB", tool=TOOL, refuse=""):
        """The tool's lines, cut into words, and what the client answered."""
        os.environ.update(NVTX_RECORD=self.record, NVTX_REFUSE=refuse, NVTX_INJECTION64_PATH=tool)
        with live.Client(self.folder, conf=conf, device=device) as client:
            answers = [client.tell(word) for word in words]
            code, error = client.end()
        self.assertEqual((code, error), (0, ""))
        lines = []
        if os.path.exists(self.record):
            with open(self.record, encoding="utf-8") as file:
                lines = [line.split() for line in file]
        self.assertEqual([line for line in lines if line[0] == "bad"], [])
        return lines, answers

    def test_life_of_blocks(self):
        lines, _ = self.run_client([f"alloc {5 * MIB}", "alloc 1000", "free", f"alloc {64 * MIB}", "free", "trim"])
        self.assertEqual(lines[0], ["domain", "cudamempool"])
        kinds = [line[0] for line in lines]
        self.assertEqual(kinds.count("push"), kinds.count("pop"))
        pushed = {line[1]: int(line[2]) for line in lines if line[0] == "push"}
        self.assertLessEqual({"grow", "take", "trim"}, set(pushed))
        self.assertEqual(sum(int(line[2]) for line in lines if line[:2] == ["push", "grow"]) % (2 * MIB), 0)
        self.assertIn(["mark", "refuse", str(64 * MIB)], lines)
        (heap,) = [line for line in lines if line[0] == "heap"]
        first, last = int(heap[2]), int(heap[2]) + int(heap[3])
        regions = [(int(line[2]), int(line[3])) for line in lines if line[0] == "region"]
        self.assertEqual([size for _, size in regions], [5 * MIB, 1000])  # as asked for, to the byte
        for line in lines:
            if line[0] == "region":
                self.assertEqual(line[1], heap[1])
                self.assertTrue(first <= int(line[2]) and int(line[2]) + int(line[3]) <= last)
        gone = [int(line[1]) for line in lines if line[0] == "unregion"]
        self.assertEqual(gone, [regions[1][0], regions[0][0]])

    def test_counter(self):
        lines, _ = self.run_client([f"alloc {5 * MIB}", f"alloc {3 * MIB}", "free", "free"])
        (counter,) = [line for line in lines if line[0] == "counter"]
        self.assertEqual(" ".join(counter[2:]), "live_bytes of device 0, pool 1")
        values = [int(line[2]) for line in lines if line[0] == "sample"]
        self.assertEqual(values, [5 * MIB, 8 * MIB, 5 * MIB, 0])

    def test_small_blocks_are_told_too(self):
        lines, _ = self.run_client(["small"])
        regions = [line[2] for line in lines if line[0] == "region"]
        gone = [line[1] for line in lines if line[0] == "unregion"]
        self.assertEqual((len(regions), regions), (1000, gone))

    def test_waits(self):
        lines, _ = self.run_client([f"alloc {5 * MIB}", "free", "trim"], device="sim:64MiB,order=lazy")
        self.assertIn(["push", "wait", "0"], lines)

    def test_off_unless_asked(self):
        self.assertEqual(self.run_client([f"alloc {MIB}"], conf="")[0], [])

    def test_tools_that_want_less(self):
        self.assertEqual(self.run_client([f"alloc {MIB}"], refuse="start")[0], [])
        lines, answers = self.run_client([f"alloc {MIB}", "free"], refuse="extend")
        self.assertEqual(answers, ["CMPOOL_OK"] * 2)
        self.assertEqual({line[0] for line in lines}, {"domain", "push", "pop"})

    def test_no_tool(self):
        for tool in ("", os.path.join(self.folder, "none.so")):
            self.assertEqual(self.run_client([f"alloc {MIB}", "free"], tool=tool), ([], ["CMPOOL_OK"] * 2))

    def test_fork(self):
        lines, answers = self.run_client([f"alloc {MIB}", "fork", "free"])
        self.assertEqual(answers, ["CMPOOL_OK"] * 3)
        self.assertEqual([line[0] for line in lines].count("region"), 1)


unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
