"""Each workload of `cudamempool bench` for a handful of operations, and what its JSON says. Usage: test_bench.py TOOL SOURCE [unittest arguments].

Times are looked at for being there and in order, never for being short.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

TOOL = SOURCE = None
LITTLE = ("--count", "20", "--live", "40", "--rounds", "2")


def bench(*words):
    return subprocess.run([TOOL, "bench", *words], capture_output=True, text=True, timeout=500)


def names():
    return [line.split()[0] for line in bench("--list").stdout.splitlines()]


class Bench(unittest.TestCase):
    def rows(self, *words):
        done = bench(*LITTLE, "--json", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        header, *rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(set(header), {"command", "date", "machine", "build"})
        self.assertTrue(header["command"].startswith("cudamempool bench --count 20"))
        self.assertEqual(set(header["build"]), {"version", "compiler", "type"})
        return rows

    def check(self, row):
        for word in ("workload", "operation", "allocator", "about", "device", "order"):
            self.assertIsInstance(row[word], str)
        if "skipped" in row:
            return
        self.assertGreater(row["ns"], 0)
        self.assertGreaterEqual(row["median_ns"], row["ns"])
        self.assertGreater(row["calls"] + row["driver_calls"], 0)
        if row["calls"]:
            self.assertLessEqual(row["p50_ns"], row["p99_ns"])
            self.assertLessEqual(row["p99_ns"], row["p999_ns"])
            self.assertLessEqual(row["p999_ns"], row["worst_ns"])
        if row["workload"].startswith("memory-"):
            self.assertGreaterEqual(row["host_many_bytes"], row["host_few_bytes"])
            self.assertGreater(row["host_fixed_bytes"], 0)

    def test_every_workload(self):
        rows = self.rows()
        self.assertEqual([row["workload"] for row in rows], [name for name in names() if name != "replay"])
        for row in rows:
            with self.subTest(row["workload"]):
                self.check(row)
                self.assertEqual(row["allocator"], "cudamempool")
                self.assertNotIn("skipped", row)

    def test_calls_are_counted(self):
        (row,) = self.rows("--workload", "pair-4k")
        self.assertEqual(row["calls"] + row["driver_calls"], 2 * 2 * 20)  # two rounds of pairs
        self.assertEqual(row["refused"], 0)

    def test_other_allocators(self):
        for allocator in ("driver", "driver-async", "nothing"):
            with self.subTest(allocator):
                rows = self.rows("--allocator", allocator, "--workload", "pair-", "--workload", "record-use")
                for row in rows:
                    self.check(row)
                self.assertEqual("skipped" in rows[-1], allocator != "nothing")

    def test_orders(self):
        for order in ("lazy", "random:1"):
            with self.subTest(order):
                for row in self.rows("--order", order, "--workload", "record-use", "--workload", "cross-free"):
                    self.check(row)
                    self.assertEqual(row["order"], order)

    def test_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "little.cmtrace")
            with open(trace, "w", encoding="utf-8") as file:
                file.write("# format cmtrace-1\na 1 5000000 0\ns 1\na 2 4096 1\nu 1 1\nf 2 1\na 3 700 0\nf 1 0\n")
            (row,) = self.rows(trace)
        self.check(row)
        self.assertEqual((row["workload"], row["refused"]), ("little", 0))
        self.assertEqual(row["calls"] + row["driver_calls"], 2 * 7)  # two rounds; the block left live is given back after each

    def test_table_and_profile(self):
        done = bench(*LITTLE, "--profile", "--workload", "pair-4k")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^pair-4k +\d")

    def test_side_by_side(self):
        """The runner of the comparison, with the allocators that need no package."""
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "peers")
            names = ["cudamempool", "driver", "nothing"]
            done = subprocess.run([sys.executable, os.path.join(SOURCE, "bench/peers/run.py"), os.path.dirname(os.path.dirname(TOOL)), "--out", out,
                                   "--count", "20", "--rounds", "1", "--repeat", "1", "--workload", "pair-512", "--workload", "record-use",
                                   *[word for name in names for word in ("--only", name)]], capture_output=True, text=True, timeout=500)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"{out}.json", encoding="utf-8") as file:
                result = json.load(file)
            with open(f"{out}.md", encoding="utf-8") as file:
                self.assertIn("| pair-512 |", file.read())
            self.assertEqual(ElementTree.parse(f"{out}.svg").getroot().tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual(list(result["allocators"]), names)
        self.assertEqual(len(result["rows"]), 3 * 4)  # pair-512 in one order of the device, record-use in three
        self.assertEqual([row for row in result["rows"] if "failed" in row], [])
        self.assertEqual({row["allocator"] for row in result["rows"] if "skipped" in row}, {"driver"})

    def test_bad_words(self):
        for words, said in ((["--workload", "nosuch"], "nosuch"), (["--device", "sim:1GiB"], "cuda:N"), (["--rounds", "6"], "0 to 5"),
                            (["--allocator", "nosuch", *LITTLE], "nosuch"), (["--profile", "--workload", "mix-1k"], "--profile"), (["--nosuch"], "--nosuch"),
                            (["--allocator", "/nosuch.so", *LITTLE], "/nosuch.so"), (["/nosuch.cmtrace"], "/nosuch.cmtrace"),
                            (["--order", "sideways", *LITTLE], "sideways")):
            with self.subTest(words):
                done = bench("--workload", "pair-4k", *words)
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)


if __name__ == "__main__":
    TOOL, SOURCE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
