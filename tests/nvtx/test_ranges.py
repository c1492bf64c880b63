"""NVTX ranges of a program as tags: the library as tool, alone and before another. Usage: test_ranges.py BUILD SOURCE [unittest arguments]."""
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../live"), os.path.join(HERE, "../inspect")]
import live
from live import MIB
from snapshot_rules import rows

WANTED = {3 * MIB: "step", 5 * MIB: "step/forward", 7 * MIB: "step/backward", 9 * MIB: "step/optimizer", 11 * MIB: ""}


class Ranges(unittest.TestCase):
    def setUp(self):
        scratch = live.scratch()
        self.folder = scratch.name
        self.addCleanup(scratch.cleanup)

    def tags_of_blocks(self, conf="", **environment):
        snapshot = os.path.join(self.folder, "snapshot")
        environment = dict(os.environ, SIMCUDA_DEVICE="sim:64MiB", CUDAMEMPOOL_CONF=conf,
                           NVTX_INJECTION64_PATH=os.path.join(live.BUILD, "lib/libcudamempool.so"), **environment)
        result = subprocess.run([os.path.join(live.BUILD, "tests/nvtx/ranges"), snapshot], env=environment, capture_output=True, text=True,
                                check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(snapshot, encoding="utf-8") as file:
            snapshot = json.load(file)
        names = {row["tag"]: row for row in rows(snapshot["tags"])}

        def path(tag):
            return (path(names[tag]["parent"]) + "/" if names[tag]["parent"] else "") + names[tag]["name"] if tag else ""

        return {run["requested"]: path(run["tag"]) for run in rows(snapshot["devices"][0]["pools"][0]["runs"]) if run["state"] == "live"}

    def test_alone(self):
        self.assertEqual(self.tags_of_blocks(), WANTED)
        self.assertEqual(self.tags_of_blocks(conf="nvtx:on"), WANTED)  # it has nothing to tell itself

    def test_before_another_tool(self):
        record = os.path.join(self.folder, "record")
        tool = os.path.join(live.BUILD, "tests/nvtx/tool.so")
        self.assertEqual(self.tags_of_blocks(conf="nvtx:on", CUDAMEMPOOL_NVTX_TOOL=tool, NVTX_RECORD=record), WANTED)
        with open(record, encoding="utf-8") as file:
            lines = [line.split() for line in file]
        self.assertIn(["domain", "program"], lines)
        self.assertIn(["domain", "cudamempool"], lines)
        self.assertEqual([line[1] for line in lines if line[0] == "range"][:3], ["step", "forward", "backward"])
        self.assertEqual([line[0] for line in lines].count("region"), len(WANTED))
        self.assertEqual([line for line in lines if line[0] == "bad"], [])


unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
