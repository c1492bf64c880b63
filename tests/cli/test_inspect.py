"""`cudamempool inspect`: figures, words, the data inside its page, and running processes. Usage: test_inspect.py TOOL SOURCE STAYS [unittest arguments]."""
import array
import base64
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
import zlib

TOOL = SOURCE = STAYS = None
MIB, PAGE = 1 << 20, 2 << 20
NONE = 0xFFFFFFFF
BASE = 0x7F0000000000
STACK = [{"name": "</script><b>forward & \"more\"", "filename": "model/layer.py", "line": 7}, {"name": "main", "filename": "train.py", "line": 3}]


def tool(*words, env=None):
    return subprocess.run([TOOL, "inspect", *words], capture_output=True, timeout=120, env={**os.environ, **(env or {})})


def block(size, state="inactive", frames=()):
    state = {"live": "active_allocated", "pending": "active_awaiting_free"}.get(state, state)
    return {"size": size, "requested_size": size if state.startswith("active") else 0, "state": state, "frames": list(frames)}


def segment(address, blocks, stream=0, pool=(0, 0), expandable=False, device=0):
    at = address
    for each in blocks:
        each["address"] = at
        at += each["size"]
    return {"device": device, "address": address, "total_size": at - address, "stream": stream, "segment_type": "large", "is_expandable": expandable,
            "segment_pool_id": pool, "allocated_size": 0, "active_size": 0, "requested_size": 0, "frames": [], "blocks": blocks}


def event(action, address, size, time_us, frames=(), **more):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": list(frames), **more}


def snapshot():
    """Two segments of the default pool, one of them idle, one of another stream, one of a graph; four events and a refusal."""
    mixed = [block(5 * MIB, "live", STACK), block(3 * MIB), block(4 * MIB, "pending"), block(1 * MIB, "live"), block(7 * MIB)]
    segments = [segment(BASE, mixed), segment(BASE + 64 * MIB, [block(20 * MIB)]), segment(BASE + 128 * MIB, [block(2 * MIB, "live")], stream=9),
                segment(BASE + 192 * MIB, [block(2 * MIB, "live"), block(30 * MIB)], pool=(0, 1))]
    trace = [event("segment_alloc", BASE + 128 * MIB, 2 * MIB, 1000), event("alloc", BASE + 64 * MIB, 18 * MIB, 1010, STACK),
             event("alloc", BASE, 5 * MIB, 1020, STACK), event("free_requested", BASE + 64 * MIB, 18 * MIB, 1030),
             event("free_completed", BASE + 64 * MIB, 18 * MIB, 1040),
             {"action": "oom", "size": 500 * MIB, "device_free": 6 * MIB, "stream": 0, "time_us": 1050, "frames": STACK}]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}


def decode(page):
    """What a browser makes of a page's data: the JSON, with all columns in place."""
    text = page.decode()
    about = json.loads(re.search(r'<script id="about" type="application/json">(.*?)</script>', text, re.S).group(1))
    packed = re.search(r'<script id="columns" type="text/plain">(.*?)</script>', text, re.S).group(1)
    data = zlib.decompress(base64.b64decode(packed, validate=True))
    kinds = {"u8": "B", "u16": "H", "u32": "I", "f64": "d"}

    def columns(places):
        result = {}
        for name, (kind, at, count) in places.items():
            column = array.array(kinds[kind])
            assert at % 8 == 0 and at + count * column.itemsize <= len(data), name
            column.frombytes(data[at:at + count * column.itemsize])
            if sys.byteorder == "big":
                column.byteswap()
            result[name] = column.tolist()
        return result

    about["columns"] = columns(about["columns"])
    for device in about["devices"]:
        device["columns"] = columns(device["columns"])
    return about


class Inspect(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder.name, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else pickle.dumps(content, protocol=4))
        return path

    def json(self, *words):
        result = tool("--json", *words)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        return [json.loads(line, parse_constant=self.fail) for line in result.stdout.decode().splitlines()]

    def page(self, path):
        out = self.path("page.html")
        result = tool("--html", out, path)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))
        with open(out, "rb") as file:
            return file.read()

    def refused(self, result, code, *parts):
        message = result.stderr.decode()
        self.assertEqual(result.returncode, code, message)
        self.assertEqual(result.stdout, b"")
        for part in parts:
            self.assertIn(part, message)

    # ---- figures ----

    def test_figures(self):
        (whole,) = self.json(self.path("a.pickle", snapshot()))
        (device,) = whole["devices"]
        figures = {"reserved_bytes": 74 * MIB, "live_bytes": 10 * MIB, "pending_bytes": 4 * MIB, "idle_bytes": 60 * MIB, "private_bytes": 32 * MIB,
                   "fixed_bytes": 0, "segments": 4, "live_blocks": 4}
        for each in (whole, device):
            self.assertEqual({key: each[key] for key in figures}, figures)
        self.assertEqual((whole["format"], whole["has_state"], whole["events"]), ("pytorch", True, 6))
        shares = {share["name"]: share for share in device["streams"] + device["pools"]}
        self.assertEqual(set(shares), {"default stream", "stream 9", "default pool", "private 0/1"})
        self.assertEqual((shares["stream 9"]["live_bytes"], shares["default stream"]["pending_bytes"]), (2 * MIB, 4 * MIB))
        self.assertEqual((shares["private 0/1"]["idle_bytes"], shares["default pool"]["reserved_bytes"]), (30 * MIB, 42 * MIB))
        for kind in ("streams", "pools"):
            self.assertEqual(sum(share["reserved_bytes"] for share in device[kind]), 74 * MIB)
        runs = {run["from_bytes"]: (run["runs"], run["bytes"]) for run in device["idle_runs"]}
        self.assertEqual(runs, {1 * MIB: (1, 3 * MIB), 4 * MIB: (1, 7 * MIB), 16 * MIB: (2, 50 * MIB)})

    def test_largest_request(self):
        (whole,) = self.json(self.path("a.pickle", snapshot()))
        largest = whole["devices"][0]["largest_request"]
        # whole pages from each segment's start: [6, 12) and [14, 20) MiB of the first, all of the second; a private pool's serve it alone
        self.assertEqual(largest, {"driver_room_bytes": None, "now_bytes": 20 * MIB, "after_waiting_bytes": 20 * MIB,
                                   "after_moving_bytes": (6 + 6 + 20) * MIB, "after_trim_bytes": 20 * MIB, "without_moving_bytes": 20 * MIB})
        waits = {"segments": [segment(BASE, [block(3 * MIB), block(4 * MIB, "pending"), block(1 * MIB, "live")])], "device_traces": []}
        largest = self.json(self.path("b.pickle", waits))[0]["devices"][0]["largest_request"]
        self.assertEqual((largest["now_bytes"], largest["after_waiting_bytes"], largest["after_trim_bytes"]), (3 * MIB, 7 * MIB, 7 * MIB))
        pages = {"segments": [segment(BASE, [block(4 * MIB), block(2 * MIB, "live"), block(6 * MIB)], expandable=True)], "device_traces": []}
        largest = self.json(self.path("c.pickle", pages))[0]["devices"][0]["largest_request"]
        self.assertEqual((largest["after_moving_bytes"], largest["after_trim_bytes"], largest["without_moving_bytes"]), (10 * MIB, 10 * MIB, 6 * MIB))

    def test_holders_and_what_is_in_the_way(self):
        (device,) = self.json(self.path("a.pickle", snapshot()))[0]["devices"]
        frames = [f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in STACK]
        self.assertEqual([(holder["bytes"], holder["blocks"], holder["frames"]) for holder in device["stacks"]], [(5 * MIB, 3, []), (5 * MIB, 1, frames)])
        stuck = device["largest_idle_segment"]
        self.assertEqual((stuck["address"], stuck["idle_bytes"], stuck["held_by_blocks"]), (hex(BASE + 192 * MIB), 30 * MIB, 1))
        without_graph = snapshot()
        del without_graph["segments"][3]
        (device,) = self.json(self.path("b.pickle", without_graph))[0]["devices"]
        stuck = device["largest_idle_segment"]
        held = [(each["address"], each["bytes"], each["state"]) for each in stuck["held_by"]]
        self.assertEqual(held, [(hex(BASE), 5 * MIB, "live"), (hex(BASE + 8 * MIB), 4 * MIB, "pending"), (hex(BASE + 12 * MIB), MIB, "live")])
        self.assertEqual((stuck["held_by"][0]["frames"], stuck["held_by"][0]["age_ns"], stuck["held_by"][2]["age_ns"]), (frames, 30000, None))
        (device,) = self.json("--top", "1", self.path("b.pickle"))[0]["devices"]
        self.assertEqual((len(device["stacks"]), len(device["largest_idle_segment"]["held_by"]), device["largest_idle_segment"]["held_by_blocks"]), (1, 1, 3))

    def test_refusal(self):
        """The same verdict as explain gives, of the moment of the refusal."""
        path = self.path("a.pickle", snapshot())
        (device,) = self.json(path)[0]["devices"]
        explained = json.loads(subprocess.run([TOOL, "explain", "--json", path], capture_output=True, timeout=60).stdout)
        explained.pop("file")
        self.assertEqual(device["refusals"], [explained])
        self.assertEqual((explained["verdict"], explained["request_bytes"]), ("true_demand", 500 * MIB))
        self.assertIn("true_demand", tool(path).stdout.decode())

    def test_own_snapshot(self):
        """The sample that goes with the schema: what the library said of its refusal is what is said of it here."""
        path = os.path.join(SOURCE, "include/cudamempool/snapshot.sample.json")
        with open(path) as file:
            said = json.load(file)["devices"][0]["pools"][0]["last_refusal"]
        (device,) = self.json(path)[0]["devices"]
        (refusal,) = device["refusals"]
        self.assertEqual((refusal["verdict"], refusal["request_bytes"], refusal["live_bytes"]), (said["verdict"], said["request_bytes"], said["live_bytes"]))
        self.assertEqual(refusal["idle_bytes"], said["idle_bytes"] + said["sibling_idle_bytes"])
        self.assertEqual([holder["tag"] for holder in device["tags"]][:2], ["forward", "7"])
        about = decode(self.page(path))
        self.assertEqual([each["event"] is not None for each in about["devices"][0]["refusals"]], [True])

    # ---- words ----

    def test_text(self):
        path = self.path("a.pickle", snapshot())
        text = tool(path).stdout.decode()
        for words in ("reserved", "default stream", "stream 9", "private 0/1", "idle runs", "largest request that would be served", "after moving pages",
                      "live memory by call stack", "model/layer.py:7", "what keeps the largest idle segment", hex(BASE + 192 * MIB)):
            self.assertIn(words, text)
        self.assertNotIn("total of", text)
        text = tool(path, path).stdout.decode()
        self.assertIn("total of 2 files", text)
        self.assertIn("148 MiB", text.split("total of 2 files")[1])

    def test_what_there_is(self):
        """A recorded snapshot, a trace without a state, a device more, nothing at all."""
        kept = os.path.join(SOURCE, "tests/data/tiny.pickle")
        trace = self.path("a.cmtrace", b"# format cmtrace-1\na 1 1000 0\na 2 5000 0\nf 1 0\n")
        two = snapshot()
        two["segments"].append(segment(BASE, [block(6 * MIB, "live")], device=3))
        found = self.json(kept, trace, self.path("two.pickle", two), self.path("nothing.pickle", {"segments": [], "device_traces": []}))
        self.assertEqual([len(each["devices"]) for each in found], [1, 1, 2, 0])
        self.assertEqual((found[1]["has_state"], found[1]["devices"][0]["peak_live_bytes"]), (False, 1024 + 5120))
        self.assertEqual([device["device"] for device in found[2]["devices"]], [0, 3])
        self.assertEqual(found[0]["reserved_bytes"], found[0]["live_bytes"] + found[0]["pending_bytes"] + found[0]["idle_bytes"])
        self.assertEqual(tool(kept, trace, self.path("two.pickle"), self.path("nothing.pickle")).returncode, 0)

    def test_bad_input(self):
        self.refused(tool(), 2, "needs a file")
        self.refused(tool("--what"), 2, "--what")
        self.refused(tool("--top", "x", "a"), 2, "--top")
        self.refused(tool(self.path("absent")), 2, "absent")
        self.refused(tool(self.path("bad.pickle", b"\x80\x04}q")), 2, "bad.pickle")
        path = self.path("a.pickle", snapshot())
        self.refused(tool("--html", self.path("page"), path, path), 2, "one file")
        self.refused(tool("--html", self.path("no/page"), path), 3, "no/page")

    # ---- page ----

    def test_page_decodes_to_the_picture(self):
        source = snapshot()
        about = decode(self.page(self.path("a.pickle", source)))
        (device,), (report,) = about["devices"], about["reports"]
        c, g = device["columns"], about["columns"]
        self.assertEqual([int(address, 16) for address in device["segments"]], [each["address"] for each in source["segments"]])
        self.assertEqual(c["segment_bytes"], [each["total_size"] for each in source["segments"]])
        blocks = [each for one in source["segments"] for each in one["blocks"]]
        self.assertEqual(c["block_bytes"], [each["size"] for each in blocks])
        self.assertEqual(c["block_state"], [{"inactive": 0, "active_awaiting_free": 1, "active_allocated": 2}[each["state"]] for each in blocks])
        self.assertEqual(c["segment_blocks"], [len(each["blocks"]) for each in source["segments"]])
        self.assertEqual([about["streams"][stream] for stream in c["block_stream"]], ["default stream"] * 6 + ["stream 9"] + ["default stream"] * 2)

        def frames(stack):
            numbers = g["stack_frames"][g["stack_first"][stack]:][:g["stack_count"][stack]]
            return [(about["strings"][g["frame_function"][n]], about["strings"][g["frame_file"][n]], g["frame_line"][n]) for n in numbers]
        stack = [(frame["name"], frame["filename"], frame["line"]) for frame in STACK]
        self.assertEqual([frames(each) for each in c["block_stack"]], [stack] + [[]] * 8)

        # lives: those of before the history by address, then the two that the history begins
        self.assertEqual(list(zip(c["life_begin"], c["life_free"], c["life_done"], c["life_bytes"])),
                         [(NONE, NONE, NONE, MIB), (NONE, NONE, NONE, 2 * MIB), (NONE, NONE, NONE, 2 * MIB), (1, 3, 4, 18 * MIB), (2, NONE, NONE, 5 * MIB)])
        self.assertEqual(c["life_block"], [3, 6, 7, NONE, 0])
        ends, shelves = [0], [int(address, 16) for address in device["shelves"]]
        for size in c["shelf_bytes"]:
            ends.append(ends[-1] + size)
        addresses = []
        for place in c["life_place"]:
            shelf = max(i for i in range(len(shelves)) if ends[i] <= place)
            addresses.append(int(shelves[shelf] + place - ends[shelf]))
        self.assertEqual(addresses, [BASE + 12 * MIB, BASE + 128 * MIB, BASE + 192 * MIB, BASE + 64 * MIB, BASE])
        self.assertEqual((c["time_step"], c["step_event"], c["step_bytes"]), ([0, 10000, 10000, 10000, 10000, 10000], [0], [2 * MIB]))
        self.assertEqual(device["first_reserved_bytes"], 72 * MIB)
        self.assertEqual([(refusal["event"], refusal["verdict"]) for refusal in device["refusals"]], [(5, "true_demand")])
        live = [0] * (device["events"] + 1)
        for begin, free, size in zip(c["life_begin"], c["life_free"], c["life_bytes"]):
            live[0 if begin == NONE else begin + 1] += size
            if free != NONE:
                live[free + 1] -= size
        self.assertEqual(max(sum(live[:i + 1]) for i in range(len(live))), report["peak_live_bytes"])
        report["refusals"] = self.json(self.path("a.pickle"))[0]["devices"][0]["refusals"]
        self.assertEqual(report, self.json(self.path("a.pickle"))[0]["devices"][0])

    def test_page_needs_no_network(self):
        page = self.page(self.path("a.pickle", snapshot())).decode()
        self.assertIn("Content-Security-Policy\" content=\"default-src 'none'", page)
        packed = re.search(r'<script id="columns" type="text/plain">(.*?)</script>', page, re.S).group(1)
        rest = page.replace(packed, "")
        for name in (r"https?:", r"\bsrc\s*=", r"\bhref\s*=", r"url\(", r"@import", r"\bfetch\(", r"XMLHttpRequest", r"WebSocket", r"\bimport\b"):
            self.assertIsNone(re.search(name, rest), name)
        self.assertEqual(rest.count("</script>"), 3)
        self.assertNotIn("<!--", rest)

    def test_large_page(self):
        """Columns that take more than one piece, of two devices."""
        count = 40000
        traces = [[event("alloc", BASE + 4096 * i, 512 * (1 + i % 7), 1000 + i) for i in range(count)] for _ in range(2)]
        about = decode(self.page(self.path("a.pickle", {"segments": [], "device_traces": traces})))
        for device in about["devices"]:
            self.assertEqual(device["columns"]["life_begin"], list(range(count)))
            self.assertEqual(device["columns"]["life_bytes"], [512 * (1 + i % 7) for i in range(count)])

    def test_page_of_nothing(self):
        self.assertEqual(decode(self.page(self.path("a.pickle", {"segments": [], "device_traces": []})))["devices"], [])
        out = tool("--html", "-", self.path("a.pickle"))
        self.assertEqual(out.returncode, 0)
        self.assertEqual(decode(out.stdout)["devices"], [])

    # ---- processes ----

    def running(self, conf):
        program = subprocess.Popen([STAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.folder.name,
                                   env={**os.environ, "CUDAMEMPOOL_CONF": conf})

        def end():
            program.stdin.close()
            program.stdout.close()
            self.assertEqual(program.wait(60), 0)
        self.addCleanup(end)
        self.assertEqual(program.stdout.readline(), b"CMPOOL_OK\n")
        return str(program.pid)

    def test_process(self):
        for conf in ("snapshot_signal:12", f"snapshot_signal:10,snapshot_file:{self.folder.name}/of-%p.json"):
            pid = self.running(conf)
            for _ in range(2):
                result = tool("--json", "--wait", "60", pid)
                self.assertEqual((result.returncode, result.stderr), (0, b""))
                found = json.loads(result.stdout)
                self.assertEqual((found["format"], found["file"]), ("cudamempool", "process " + pid))
                self.assertGreaterEqual(found["live_bytes"], 6 * PAGE)
                self.assertLessEqual(found["live_bytes"], 6 * PAGE + MIB)

    def test_process_without_a_door(self):
        pid = self.running("verbose:0")
        self.refused(tool("--wait", "0", pid), 3, f"process {pid}", "snapshot_signal:12")
        self.refused(tool(str(os.getpid())), 3, "has not loaded libcudamempool")
        self.refused(tool("2147483647"), 2, "no process")
        self.refused(tool("99999999999999999999999"), 2)


if __name__ == "__main__":
    TOOL, SOURCE, STAYS = (os.path.abspath(word) for word in sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
