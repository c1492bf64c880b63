"""The command-line tool from outside: output, exit status, and what it says of bad input. Usage: test_cli.py TOOL SOURCE [unittest arguments]."""
import glob
import gzip
import json
import os
import pickle
import pickletools
import random
import subprocess
import sys
import tempfile
import unittest

TOOL = SOURCE = None
MIB = 1 << 20
DEVICE = "sim:1GiB"  # large enough for the traces made here; builds that check every structure are quicker on a small one
ORDERS = ("eager", "lazy", "random:1")
SCENARIO_ORDERS = os.environ.get("CMPOOL_TEST_ORDERS", " ".join(ORDERS)).split()

REPLAY_TYPES = {
    "file": str, "format": str, "events": int, "steps": int, "streams": int, "peak_live_bytes": int, "peak_reserved_bytes": int,
    "efficiency": float, "served": bool, "refusals": int, "false_refusals": int, "races": int, "driver_calls": dict,
    "driver_us": dict, "page_moves": int, "ns_per_call": float,
}


def tool(*words, env=None):
    return subprocess.run([TOOL, *words], capture_output=True, timeout=500, env={**os.environ, **(env or {})})


def small_trace(seed=1, steps=4, streams=1, unit=MIB):
    """A made-up training loop: some blocks stay, others come and go in each step, some are used on another stream."""
    rng = random.Random(seed)
    lines, live, number = ["# format cmtrace-1", "p load"], [], 0
    for _ in range(6):
        number += 1
        lines.append(f"a {number} {rng.randrange(1, 20 * unit)} 0")
    for step in range(1, steps + 1):
        lines.append(f"s {step}")
        for _ in range(60):
            number += 1
            stream = rng.randrange(streams)
            size = rng.choice([rng.randrange(1, 4096), rng.randrange(1, unit), rng.randrange(unit, 16 * unit)])
            lines.append(f"a {number} {size} {stream}")
            live.append((number, stream))
            if streams > 1 and rng.random() < 0.4:
                lines.append(f"u {rng.choice(live)[0]} {rng.randrange(streams)}")
            while len(live) > 12:
                gone, on = live.pop(rng.randrange(len(live)))
                lines.append(f"f {gone} {on}")
        while live:
            gone, on = live.pop()
            lines.append(f"f {gone} {on}")
    return "\n".join(lines) + "\n"


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(os.fsencode(self.folder.name), os.fsencode(name))
        if content is not None:
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        return os.fsdecode(path)

    def lines(self, result):
        """The JSON objects on stdout; each line must be whole."""
        text = result.stdout.decode()
        self.assertTrue(text == "" or text.endswith("\n"), text)
        return [json.loads(line, parse_constant=self.fail) for line in text.splitlines()]

    def one_fault(self, result, *parts):
        """Exit status 2, nothing on stdout, one line on stderr that holds the parts."""
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 2, message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(len(message.splitlines()), 1, message)
        for part in parts:
            self.assertIn(part, message)


class Words(Cli):
    def test_help_and_version(self):
        for words in (["--help"], ["convert", "--help"], ["replay", "--help"], ["scenario", "--help"]):
            result = tool(*words)
            self.assertEqual((result.returncode, result.stderr), (0, b""), words)
            self.assertTrue(result.stdout.startswith(b"Usage: cudamempool"), words)
        with open(os.path.join(SOURCE, "include/cudamempool/cudamempool.h")) as header:
            numbers = [line.split()[2] for line in header if line.startswith("#define CMPOOL_VERSION_")]
        self.assertEqual(tool("--version").stdout.decode(), f"cudamempool {'.'.join(numbers)}\n")

    def test_wrong_usage(self):
        trace = self.path("t", small_trace())
        cases = [
            (["frobnicate"], "frobnicate"),
            (["replay"], "needs a file"),
            (["replay", "--frobnicate", trace], "--frobnicate"),
            (["replay", trace, "--device"], "--device needs a value"),
            (["replay", "--json=yes", trace], "--json"),
            (["replay", "--repeat-last", "x", trace], "'x'"),
            (["replay", "--repeat-last", "-1", trace], "'-1'"),
            (["replay", "--find-capacity", "--device", "cuda:0", trace], "--find-capacity"),
            (["scenario"], "needs a file"),
            (["scenario", "--device", "cuda:0", trace], "simulated"),
            (["scenario", "--find-capacity", trace], "--find-capacity"),
        ]
        for words, part in cases:
            with self.subTest(words=words[:4]):
                self.one_fault(tool(*words), part)

    def test_bad_devices(self):
        trace = self.path("t", small_trace())
        for device in ("sim:0", "sim:", "sim:12Gib", "sim:1GiB,order=sometimes", "sim:1GiB,page=3", "sim:1GiB,nothing", "gpu", "cuda:",
                       "cuda:x", "sim:99999999999GiB"):
            with self.subTest(device=device):
                self.one_fault(tool("replay", "--json", "--device", device, trace), device.split(",")[0].split(":")[0])

    def test_bad_options(self):
        trace = self.path("t", small_trace())
        self.one_fault(tool("replay", "--json", "--conf", "frobnicate:1", trace), "frobnicate")
        self.one_fault(tool("replay", "--json", "--conf", "limit:lots", trace), "limit", "lots")
        self.one_fault(tool("replay", "--json", trace, env={"CUDAMEMPOOL_CONF": "frobnicate:1"}), "frobnicate")
        self.one_fault(tool("scenario", "--conf", "frobnicate:1", trace), "frobnicate")


class BadTraces(Cli):
    def bad_files(self):
        good = small_trace().encode()
        packed = gzip.compress(good)
        line = good.count(b"\n") + 1
        yield self.path("empty", b""), 1
        yield self.path("letter", good + b"z 1 0\n"), line
        yield self.path("unknown_free", good + b"f 99999 0\n"), line
        yield self.path("dead_free", b"a 1 5 0\nf 1 0\nf 1 0\n"), 3
        yield self.path("repeated", good + b"a 1 512 0\n"), line
        yield self.path("zero", good + b"a 99999 0 0\n"), line
        yield self.path("huge", good + b"a 99999 18446744073709551615 0\n"), line
        yield self.path("huger", good + b"a 99999 99999999999999999999999 0\n"), line
        yield self.path("stream", good + b"a 99999 512 first\n"), line
        yield self.path("truncated.gz", packed[:-9]), line
        yield self.path("cut.gz", packed[:len(packed) // 2]), None
        yield self.path("corrupt.gz", packed[:200] + bytes(30) + packed[230:]), None
        yield self.path("checksum.gz", packed[:-8] + b"\0\0\0\0" + packed[-4:]), line
        yield self.path("binary", bytes(range(256)) * 16), 1
        yield self.path("pickle", b"\x80\x04\x95" + bytes(100)), 1
        os.mkdir(self.path("folder"))
        yield self.path("folder"), 0
        yield self.path("absent"), 0
        if os.geteuid() != 0:
            locked = self.path("locked", good)
            os.chmod(locked, 0)
            yield locked, 0

    def test_each_kind(self):
        for path, line in self.bad_files():
            with self.subTest(file=os.path.basename(path)):
                where = f"{path}:" if line is None else f"{path}:{line}: "
                result = tool("replay", "--json", path)
                self.one_fault(result, where)
                self.assertTrue(result.stderr.decode().startswith(where), result.stderr)

    def test_other_files_get_their_line(self):
        good = self.path("good", small_trace())
        bad = [path for path, _ in self.bad_files()]
        result = tool("replay", "--json", "--device", DEVICE, *bad[:3], good, *bad[3:])
        self.assertEqual(result.returncode, 2)
        self.assertEqual([line["file"] for line in self.lines(result)], [good])
        self.assertEqual(len(result.stderr.decode().splitlines()), len(bad))


class Convert(Cli):
    """From a recorded snapshot to every format and back; the pickle as PyTorch's own tools take it."""

    def setUp(self):
        super().setUp()
        self.source = os.path.join(SOURCE, "tests/data/tiny.pickle")

    def convert(self, source, name, *words):
        out = self.path(name)
        result = tool("convert", source, "-o", out, *words)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))
        return out

    def blocks(self, snapshot):
        """Blocks as the viewer places them: by a running sum in their segment."""
        found = []
        for segment in snapshot["segments"]:
            self.assertEqual(segment["total_size"], sum(block["size"] for block in segment["blocks"]))
            address = segment["address"]
            for block in segment["blocks"]:
                found.append((segment["device"], segment["stream"], address, block["size"], block["state"]))
                address += block["size"]
        return found

    def test_pickle_is_what_the_viewer_knows(self):
        many = ["# format cmtrace-1"] + [f"a {i} {512 * (1 + i % 7)} {i % 2}" for i in range(1, 3001)] + [f"f {i} 0" for i in range(1, 1500)]
        written = self.convert(self.path("many", "\n".join(many) + "\n"), "many.pickle")
        known = {"PROTO", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MARK", "APPENDS", "SETITEMS", "EMPTY_LIST", "EMPTY_DICT", "TUPLE2",
                 "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "NEWTRUE", "NEWFALSE", "STOP"}
        with open(written, "rb") as file:
            data = file.read()
        depth, groups = 0, [0]
        for opcode, argument, _ in pickletools.genops(data):
            self.assertIn(opcode.name, known)
            if opcode.name == "PROTO":
                self.assertEqual(argument, 2)
            groups[-1] += len(opcode.stack_after) - len(opcode.stack_before) if opcode.name not in ("MARK", "APPENDS", "SETITEMS") else 0
            if opcode.name == "MARK":
                groups.append(0)
            elif opcode.name in ("APPENDS", "SETITEMS"):
                depth = max(depth, groups.pop())
        self.assertLessEqual(depth, 1000)
        self.assertGreater(depth, 500)
        snapshot = pickle.loads(data)
        (trace,) = snapshot["device_traces"]
        self.assertEqual(len([event for event in trace if event["action"] == "alloc"]), 3000)
        live = {(event["addr"]) for event in trace if event["action"] == "alloc"} & {
            block[2] for block in self.blocks(snapshot) if block[4] == "active_allocated"}
        self.assertEqual(len(live), 3000 - 1499)

    def test_there_and_back(self):
        with open(self.source, "rb") as file:
            first = pickle.load(file)
        for name in ("again.pickle", "again.json", "packed.json.gz"):
            with self.subTest(name=name):
                once = self.convert(self.source, name)
                with open(self.convert(once, "back.pickle"), "rb") as file:
                    self.assertEqual(self.blocks(pickle.load(file)), self.blocks(first))

    def test_cmtrace_replays_to_the_same_peak(self):
        trace = self.convert(self.source, "t.cmtrace.gz")
        found = {}
        for file in (self.source, trace):
            result = tool("replay", "--json", "--device", DEVICE, file)
            self.assertEqual(result.returncode, 0, result.stderr)
            (found[file],) = self.lines(result)
        self.assertEqual(found[self.source]["format"], "pytorch")
        self.assertEqual(found[trace]["format"], "cmtrace.gz")
        self.assertEqual(found[self.source]["peak_live_bytes"], found[trace]["peak_live_bytes"])
        self.assertEqual(found[self.source]["as_run_peak_reserved_bytes"], 109051904)
        self.assertNotIn("as_run_peak_reserved_bytes", found[trace])

    def test_perfetto_has_counters_and_is_read_again(self):
        trace = self.path("t", small_trace())
        written = self.convert(trace, "t.perfetto-trace.json")
        with open(written) as file:
            events = json.load(file)["traceEvents"]
        peak = max(event["args"]["live bytes"] for event in events if event["ph"] == "C" and event["name"] == "memory")
        (line,) = self.lines(tool("replay", "--json", "--device", DEVICE, trace))
        self.assertEqual(peak, line["peak_live_bytes"])
        (line,) = self.lines(tool("replay", "--json", "--device", DEVICE, written))
        self.assertEqual((line["format"], line["peak_live_bytes"]), ("kineto", peak))

    def test_sentence(self):
        result = tool("replay", "--device", DEVICE, self.source)
        self.assertRegex(result.stdout.decode().splitlines()[-1],
                         r": this run reserved 0\.10 GiB for 0\.08 GiB live; libcudamempool serves it in 0\.\d\d GiB \(0\.02 GiB were stranded\)\.$")

    def test_wrong_usage(self):
        for words, part in (([], "one file"), ([self.source], "-o OUT"), ([self.source, "-o", "x"], "--to"), ([self.source, self.source], "one file"),
                            ([self.source, "--to", "xml", "-o", "x"], "'xml'"), ([self.source, "-o", "x.cmtrace", "--gpu", "3"], "GPU 3"),
                            ([self.path("bad", b"\x80\x04cos\nsystem\n."), "-o", "x.json"], "GLOBAL")):
            with self.subTest(words=words):
                self.one_fault(tool("convert", *words), part)
                self.assertFalse(os.path.exists("x.json") or os.path.exists("x.cmtrace"))
        self.assertEqual(tool("convert", self.source, "-o", self.path("no/such/folder.json")).returncode, 3)


class Replay(Cli):
    def replay(self, text, *words, status=0, name="t"):
        path = self.path(name, text)
        device = () if "--device" in words else ("--device", DEVICE)
        result = tool("replay", "--json", *device, *words, path)
        self.assertEqual(result.returncode, status, result.stderr.decode())
        (line,) = self.lines(result)
        self.assertEqual(line["file"], path)
        return line

    def check_types(self, line):
        for key, kind in REPLAY_TYPES.items():
            self.assertIs(type(line[key]), kind, key)

    def test_schema(self):
        text = small_trace(steps=5)
        line = self.replay(text)
        self.check_types(line)
        self.assertEqual(set(line), set(REPLAY_TYPES))
        self.assertEqual(line["format"], "cmtrace")
        self.assertEqual(line["steps"], 5)
        self.assertEqual(line["streams"], 1)
        self.assertEqual(line["events"], sum(row[0] in "afu" for row in text.splitlines()))
        self.assertTrue(line["served"])
        self.assertEqual((line["refusals"], line["false_refusals"], line["races"]), (0, 0, 0))
        calls = line["driver_calls"]
        self.assertEqual(calls["total"], sum(calls[group] for group in ("memory", "order", "host_sync", "other")))
        self.assertEqual(calls["total"], sum(calls["by_name"].values()))
        self.assertEqual(len(calls["per_step"]), 5)
        self.assertAlmostEqual(calls["steady_per_step"], sum(calls["per_step"][2:]) / 3, places=2)
        self.assertEqual(set(line["driver_us"]), {"per_page", "per_range"})
        self.assertGreaterEqual(line["peak_reserved_bytes"], line["peak_live_bytes"])
        self.assertAlmostEqual(line["efficiency"], line["peak_live_bytes"] / line["peak_reserved_bytes"], places=5)

    def test_peak_counts_blocks_in_units_of_512(self):
        self.assertEqual(self.replay("a 1 1 0\na 2 513 0\nf 1 0\na 3 512 0\n")["peak_live_bytes"], 512 + 1024)

    def test_gzip_by_content(self):
        text = small_trace()
        plain, packed = self.replay(text), self.replay(gzip.compress(text.encode()), name="u")
        self.assertEqual(packed["format"], "cmtrace.gz")
        self.assertEqual(packed["peak_reserved_bytes"], plain["peak_reserved_bytes"])

    def test_orders_and_streams(self):
        for seed in (1, 2):
            text = small_trace(seed=seed, streams=3)
            for order in ORDERS:
                with self.subTest(seed=seed, order=order):
                    line = self.replay(text, "--device", f"{DEVICE},order={order}")
                    self.assertEqual(line["streams"], 3)
                    self.assertEqual((line["served"], line["races"], line["false_refusals"]), (True, 0, 0))

    def test_refusals(self):
        text = small_trace()
        for order in ORDERS:
            line = self.replay(text, "--device", f"sim:64MiB,order={order}", status=1)
            self.check_types(line)
            self.assertFalse(line["served"])
            self.assertGreater(line["refusals"], 0)
            self.assertEqual((line["false_refusals"], line["races"]), (0, 0))
            self.assertLessEqual(line["peak_reserved_bytes"], 64 * MIB)

    def test_limit(self):
        line = self.replay(small_trace(), "--conf", "limit:64MiB", status=1)
        self.assertGreater(line["refusals"], 0)
        self.assertEqual(line["false_refusals"], 0)
        self.assertLessEqual(line["peak_reserved_bytes"], 64 * MIB)

    def test_find_capacity(self):
        text = small_trace(seed=3)
        line = self.replay(text, "--find-capacity")
        capacity = line["min_capacity_bytes"]
        self.assertEqual(capacity % (2 * MIB), 0)
        self.assertGreaterEqual(capacity, line["peak_live_bytes"])
        self.assertAlmostEqual(line["capacity_ratio"], capacity / line["peak_live_bytes"], places=5)
        self.assertTrue(self.replay(text, "--device", f"sim:{capacity}")["served"])
        self.assertFalse(self.replay(text, "--device", f"sim:{capacity - 2 * MIB}", status=1)["served"])

    def test_repeat_last(self):
        line = self.replay(small_trace(steps=3), "--repeat-last", "5")
        calls = line["driver_calls"]
        self.assertEqual(line["steps"], 3)
        self.assertEqual(len(calls["per_step"]), 8)
        self.assertAlmostEqual(calls["steady_per_step"], sum(calls["per_step"][5:]) / 3, places=2)

    def test_no_steady_step(self):
        self.assertIsNone(self.replay(small_trace(steps=2))["driver_calls"]["steady_per_step"])

    def test_own_calls_are_not_counted(self):
        line = self.replay(small_trace(streams=2), "--sync-steps")
        self.assertEqual(line["driver_calls"]["host_sync"], 0)
        self.assertNotIn("cuCtxSynchronize", line["driver_calls"]["by_name"])
        self.assertLessEqual(line["driver_calls"]["by_name"].get("cuStreamCreate", 0), 1)  # the pool's own; the trace has two streams

    def test_file_names_are_escaped(self):
        name = b'a "quoted"\\\n\x01\xff name'
        path = self.path(name, small_trace())
        result = subprocess.run([os.fsencode(TOOL), b"replay", b"--json", b"--device", DEVICE.encode(), os.fsencode(path)], capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        (line,) = self.lines(result)
        self.assertEqual(os.path.basename(line["file"]), 'a "quoted"\\\n\x01\ufffd name')

    def test_table(self):
        paths = [self.path(f"t{i}.cmtrace", small_trace(seed=i)) for i in range(2)]
        result = tool("replay", "--find-capacity", "--device", DEVICE, *paths)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        rows = [row.split()[0] for row in result.stdout.decode().splitlines() if row.startswith("t") and "." in row]
        self.assertEqual(rows[:2], ["t0", "t1"])


class Scenario(Cli):
    def scenario(self, text, *words, status=0):
        result = tool("scenario", "--json", *words, self.path("t.txt", text))
        self.assertEqual(result.returncode, status, result.stderr.decode())
        (line,) = self.lines(result)
        self.assertEqual(set(line), {"file", "passed", "line", "reason"})
        return line

    def test_all(self):
        files = sorted(glob.glob(os.path.join(SOURCE, "tests/scenarios/R*.txt")))
        self.assertGreater(len(files), 50)
        for order in SCENARIO_ORDERS:
            with self.subTest(order=order):
                result = tool("scenario", "--json", "--device", f"sim:24GiB,order={order}", *files)
                lines = self.lines(result)
                self.assertEqual([line["file"] for line in lines], files)
                failed = {os.path.basename(line["file"]): (line["line"], line["reason"]) for line in lines if not line["passed"]}
                self.assertEqual(failed, {})
                self.assertEqual(result.returncode, 0, result.stderr.decode())

    def test_passed(self):
        line = self.scenario("@cap 1G\na b 900M\nx c 200M\nf b\na c 200M\nexpect live==200M\n")
        self.assertEqual((line["passed"], line["line"], line["reason"]), (True, None, None))

    def test_failed(self):
        cases = [
            ("@cap 1G\na b 900M\na c 200M\n", 3, "refused"),
            ("@cap 1G\na b 900M\nx c 100M\n", 3, "had to be refused"),
            ("@cap 1G\na b 100M\nexpect live==0\n", 3, "expected == 0, found 104857600"),
            ("@cap 1G\na b 100M\nexpect drvcalls<=0\n", 3, "expected <= 0"),
            ("@cap 1G\na b 900M\next +200M\n", 3, "missing"),
            ("@cap 1G\nrep 3 {\na b$i 400M\n}\n", 3, "refused"),
        ]
        for text, number, part in cases:
            with self.subTest(text=text):
                line = self.scenario(text, status=1)
                self.assertEqual((line["passed"], line["line"]), (False, number))
                self.assertIn(part, line["reason"])

    def test_bad_scripts(self):
        cases = [("", 1), ("a b\n", 1), ("a b 1M\nwhat\n", 2), ("rep 2 {\na b 1M\n", 1), ("a b 1M\nf c\n", 2), ("a b 1M\na b 1M\n", 2),
                 ("rep 2 {\na b$i 1M-1M*$i\n}\n", 2), ("pool P end\n", 1)]
        for text, number in cases:
            with self.subTest(text=text):
                path = self.path("t.txt", text)
                self.one_fault(tool("scenario", "--json", path), f"{path}:{number}: ")

    def test_worst_status_wins(self):
        good, fails = self.path("good", "a b 1M\n"), self.path("fails", "x b 1M\n")
        bad = self.path("bad", "what\n")
        result = tool("scenario", "--json", bad, fails, good)
        self.assertEqual(result.returncode, 2)
        self.assertEqual([line["passed"] for line in self.lines(result)], [False, True])
        self.assertEqual(tool("scenario", fails, good).returncode, 1)


if __name__ == "__main__":
    TOOL, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
