"""Programs that are not changed at all, with and without the library in LD_PRELOAD: the same outcomes, served by the pool."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
HERE = os.path.join(BUILD, "tests/preload")
SIMCUDA = os.path.join(BUILD, "simcuda")
PRELOAD = os.path.join(BUILD, "lib/libcudamempool_preload.so")
TOOL = os.path.join(BUILD, "bin/cudamempool")
DEVICES = "sim:256MiB,devices=2"

# How programs come by the driver's functions.
KINDS = {
    "linked": [os.path.join(HERE, "client_linked")],
    "dlsym": [os.path.join(HERE, "client_lookup"), "dlsym"],
    "runtime": [os.path.join(HERE, "client_lookup"), "runtime"],
    "plugin": [os.path.join(HERE, "client_lookup"), os.path.join(HERE, "client_plugin.so")],
}
# Requests that a program makes in vain are the driver's to refuse, so these reach it: sizes that are none or too large, bad arguments.
# So do those during a capture.
PASSED_ON = {"malloc": 4, "pitch": 5, "capture": 2, "forbidden": 2}
SAME = ["malloc", "free", "pitch", "info", "attributes", "capture", "forbidden", "reset", "contexts", "peer", "between", "sibling", "exit", "fork", "threads", "ends"]


def run(command, preload=False, device=DEVICES, **more):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_"))}
    environment.update(SIMCUDA_DEVICE=device, LD_LIBRARY_PATH=SIMCUDA)
    if preload:
        environment["LD_PRELOAD"] = PRELOAD
    environment.update(more)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def split(output):
    """Outcomes, and the counts of the simulated device by name."""
    lines = output.splitlines()
    counts = {}
    for line in lines:
        if line.startswith("# "):
            name, _, value = line[2:].rpartition(" ")
            counts[name] = int(value) if value.isdigit() else value
    return [line for line in lines if not line.startswith("#")], counts


class Clients(unittest.TestCase):
    maxDiff = None

    def test_same_outcomes(self):
        for kind, command in KINDS.items():
            for behaviour in SAME:
                with self.subTest(kind=kind, behaviour=behaviour):
                    plain = run(command + [behaviour])
                    served = run(command + [behaviour], preload=True)
                    outcomes, counts = split(plain.stdout)
                    self.assertGreater(len(outcomes), 1)
                    self.assertNotIn("giving up", plain.stdout)
                    self.assertEqual(split(served.stdout)[0], outcomes)
                    self.assertEqual(served.returncode, plain.returncode)
                    self.assertEqual(served.stderr, plain.stderr)
                    if behaviour != "exit":
                        self.assertGreater(counts["cuMemAlloc_v2"], PASSED_ON.get(behaviour, 0))
                        self.assertEqual(split(served.stdout)[1]["cuMemAlloc_v2"], PASSED_ON.get(behaviour, 0))
                        self.assertEqual(split(served.stdout)[1]["races"], 0)

    def test_every_order(self):
        for order in ("lazy", "random:7"):
            for behaviour in ("capture", "contexts", "reset", "free", "threads", "ends"):
                with self.subTest(order=order, behaviour=behaviour):
                    device = f"{DEVICES},order={order}"
                    plain = run(KINDS["runtime"] + [behaviour], device=device)
                    served = run(KINDS["runtime"] + [behaviour], preload=True, device=device)
                    self.assertEqual(split(served.stdout)[0], split(plain.stdout)[0])
                    self.assertEqual(split(served.stdout)[1]["races"], 0)

    def test_frees_in_the_order_of_a_stream(self):
        """cuMemFreeAsync takes what cuMemAlloc gave, where the driver would refuse it."""
        for order in ("eager", "lazy", "random:7"):
            with self.subTest(order=order):
                outcomes, counts = split(run(KINDS["runtime"] + ["ordered"], preload=True, device=f"{DEVICES},order={order}").stdout)
                self.assertEqual([line.rpartition(" ")[2] for line in outcomes], ["1"])  # the last one is a second free
                self.assertEqual((counts["races"], counts["cuMemAlloc_v2"]), (0, 0))

    def test_requests_in_the_order_of_a_stream(self):
        """async: cudaMallocAsync is the driver's, or the pool's; what is captured, and what is refused, is the driver's."""
        for kind in ("linked", "runtime"):
            for order in ("eager", "lazy", "random:7"):
                with self.subTest(kind=kind, order=order):
                    device = f"{DEVICES},order={order}"
                    outcomes, counts = split(run(KINDS[kind] + ["async"], device=device).stdout)
                    self.assertGreater(counts["ordered requests"], 300)
                    left, left_counts = split(run(KINDS[kind] + ["async"], preload=True, device=device).stdout)
                    self.assertEqual((left, left_counts["ordered requests"]), (outcomes, counts["ordered requests"]))
                    served, served_counts = split(
                        run(KINDS[kind] + ["async"], preload=True, device=device, CUDAMEMPOOL_CONF="async:pool").stdout)
                    self.assertEqual(served, outcomes)
                    self.assertEqual((served_counts["ordered requests"], served_counts["races"]), (4, 0))  # three bad ones and the graph's

    def test_pinned_host_memory(self):
        """pinned: what programs are told of pinned memory is the same, whether the driver serves it or the pool."""
        for kind in KINDS:
            for order in ("eager", "lazy"):
                with self.subTest(kind=kind, order=order):
                    device = f"{DEVICES},order={order}"
                    outcomes, counts = split(run(KINDS[kind] + ["pinned"], device=device).stdout)
                    self.assertGreater(counts["pinned requests"], 200)
                    left, left_counts = split(run(KINDS[kind] + ["pinned"], preload=True, device=device).stdout)
                    self.assertEqual((left, left_counts["pinned requests"]), (outcomes, counts["pinned requests"]))
                    served, served_counts = split(
                        run(KINDS[kind] + ["pinned"], preload=True, device=device, CUDAMEMPOOL_CONF="pinned:on").stdout)
                    self.assertEqual(served, outcomes)
                    # a device that finishes nothing before the host waits keeps more of it busy
                    self.assertLess(served_counts["pinned requests"], 20 if order == "eager" else 100)
                    self.assertEqual(served_counts["races"], 0)

    def test_callers(self):
        """bypass: libraries whose memory is the driver's own, known by the address that a call returns to."""
        names = ["libplain", "libnccl", "libordinary", "libmpi"]
        command = [os.path.join(HERE, "client_callers"), *(os.path.join(HERE, f"{name}.so") for name in names)]

        def sources(**more):
            done = run(command, preload=True, **more)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            found = {}
            for line in done.stdout.splitlines():
                name, words, *rest = line.replace(".so", "").split(", ")
                size, code = words.split(" bytes: ")
                self.assertEqual((code, rest[1]), ("0", "freed 0"))
                found.setdefault((name, int(size)), set()).add(rest[0])
            self.assertEqual(len(found), 10)
            return tuple({key for key, where in found.items() if where == {source}} for source in ("driver", "pool", "shared"))

        driver, pool, _ = sources()
        # behind the shared runtime only what may be worth exporting is looked into
        self.assertEqual(driver, {("libnccl", 4096), ("libnccl", 1 << 20), ("libmpi", 1 << 20)})
        self.assertEqual(len(pool), 7)
        self.assertEqual(sources(CUDAMEMPOOL_CONF="bypass:")[0], set())
        self.assertEqual(len(sources(CUDAMEMPOOL_CONF="bypass:*")[0]), 10)
        self.assertEqual(sources(CUDAMEMPOOL_CONF="bypass:client_call*+libplain")[0],
                         {("program", 4096), ("program", 1 << 20), ("libplain", 4096), ("libplain", 1 << 20)})
        self.assertEqual(sources(CUDAMEMPOOL_CONF="bypass:libcudart")[0],
                         {(name, size) for name in ("libordinary", "libmpi") for size in (4096, 1 << 20)})

        # share: memory that other processes can be given; bypass wins, and where there is no such memory the driver serves
        _, pool, shared = sources(CUDAMEMPOOL_CONF="share:libplain+libnccl+libordinary")
        self.assertEqual(shared, {("libplain", 4096), ("libplain", 1 << 20), ("libordinary", 1 << 20)})
        self.assertEqual(len(pool), 4)
        self.assertEqual(sources(CUDAMEMPOOL_CONF="share:libplain,backend:malloc")[2], set())

    def test_capture_that_forbids_memory_lives(self):
        """capture:pool serves from what is ready, where the driver refuses and breaks the capture."""
        plain, _ = split(run(KINDS["linked"] + ["forbidden"]).stdout)
        self.assertIn("900", [line.rpartition(" ")[2] for line in plain])
        outcomes, counts = split(run(KINDS["linked"] + ["forbidden"], preload=True, CUDAMEMPOOL_CONF="capture:pool").stdout)
        self.assertEqual([line.rpartition(" ")[2] for line in outcomes], ["0"] * len(plain))
        self.assertEqual((counts["cuMemAlloc_v2"], counts["races"]), (0, 0))
        plain, _ = split(run(KINDS["linked"] + ["capture"]).stdout)
        outcomes, counts = split(run(KINDS["linked"] + ["capture"], preload=True, CUDAMEMPOOL_CONF="capture:pool").stdout)
        self.assertEqual((outcomes, counts["cuMemAlloc_v2"]), (plain, 0))

    def test_ipc_of_pool_memory(self):
        served = run(KINDS["linked"] + ["ipc"], preload=True)
        self.assertEqual([line.rpartition(" ")[2] for line in split(served.stdout)[0]], ["801", "801"])
        self.assertEqual(len(served.stderr.splitlines()), 1)
        option = "bypass:*"
        self.assertIn(option, served.stderr)
        advised = run(KINDS["linked"] + ["ipc"], preload=True, CUDAMEMPOOL_CONF=option)
        self.assertEqual([line.rpartition(" ")[2] for line in split(advised.stdout)[0]], ["0", "0"])

    def test_steady_loop(self):
        for kind, behaviour in (("linked", "steady"), ("runtime", "steady_short")):
            with self.subTest(kind=kind):
                _, counts = split(run(KINDS[kind] + [behaviour], preload=True).stdout)
                print(f"{behaviour}, {kind}: {counts}")
                self.assertEqual(counts["memory calls"], 0)
                self.assertEqual(counts["host waits"], 0)
                self.assertEqual(counts["races"], 0)
                self.assertEqual(counts["cuMemAlloc_v2"], 0)
        _, counts = split(run(KINDS["linked"] + ["steady_short"]).stdout)
        self.assertGreater(counts["races"], 0)  # the checker does see such loops

    def test_segments(self):
        """backend:malloc: the same outcomes from segments of the driver, of which a steady loop takes no more."""
        for order in ("eager", "lazy"):
            for behaviour in ("malloc", "free", "pitch", "info", "attributes", "capture", "contexts", "threads", "ends"):
                with self.subTest(order=order, behaviour=behaviour):
                    device = f"{DEVICES},order={order}"
                    plain = run(KINDS["linked"] + [behaviour], device=device)
                    served = run(KINDS["linked"] + [behaviour], preload=True, device=device, CUDAMEMPOOL_CONF="backend:malloc")
                    self.assertEqual(split(served.stdout)[0], split(plain.stdout)[0])
                    self.assertEqual(split(served.stdout)[1]["races"], 0)
        _, counts = split(run(KINDS["linked"] + ["steady_short"], preload=True, CUDAMEMPOOL_CONF="backend:malloc").stdout)
        self.assertEqual((counts["memory calls"], counts["host waits"], counts["races"]), (0, 0, 0))

    def test_free_that_waits(self):
        """free_sync: how a free without a stream is made safe."""
        # the short steady loop frees 8,000 blocks behind its warm-up
        _, host = split(run(KINDS["linked"] + ["steady_short"], preload=True, CUDAMEMPOOL_CONF="slack:2%, free_sync : host").stdout)
        self.assertEqual((host["host waits"], host["races"]), (8000, 0))
        _, none = split(run(KINDS["linked"] + ["steady_short"], preload=True, CUDAMEMPOOL_CONF="free_sync:none").stdout)
        self.assertEqual(none["host waits"], 0)
        self.assertGreater(none["races"], 0)  # the program uses two streams, which this is not for
        wrong = run(KINDS["linked"] + ["info"], preload=True, CUDAMEMPOOL_CONF="free_sync:sometimes")
        self.assertIn("free_sync", wrong.stderr)

    def test_refusal(self):
        """A pool at its limit refuses with the driver's code."""
        served = run(KINDS["runtime"] + ["malloc"], preload=True, CUDAMEMPOOL_CONF="limit:32MiB")
        self.assertIn("67108864 bytes: 2, aligned 0", served.stdout)

    def test_runtimes(self):
        for major in (12, 13):
            client = os.path.join(BUILD, f"tests/simcuda/simcuda-runtime_client_{major}")
            with self.subTest(runtime=major), tempfile.TemporaryDirectory() as folder:
                report = os.path.join(folder, "report")
                served = run([client], preload=True, device="sim:64MiB,content", CUDAMEMPOOL_REPORT=report)
                self.assertEqual((served.returncode, served.stdout, served.stderr), (0, "", ""))
                with open(report, encoding="utf-8") as file:
                    device = json.loads(file.read())["devices"][0]
                self.assertEqual((device["allocations"], device["frees"], device["live_bytes"]), (1, 1, 0))

    @unittest.skipUnless(os.path.exists(os.path.join(HERE, "client_objects")), "built without a C++ compiler")
    def test_objects(self):
        """Memory in objects of C++: static ones give theirs back behind main."""
        plain, served = run([os.path.join(HERE, "client_objects")]), run([os.path.join(HERE, "client_objects")], preload=True)
        self.assertEqual((plain.returncode, plain.stderr), (0, ""))
        self.assertIn("caught: no memory", plain.stdout)
        self.assertEqual((served.returncode, served.stderr, split(served.stdout)[0]), (0, "", split(plain.stdout)[0]))
        self.assertEqual(split(plain.stdout)[1]["cuMemAlloc_v2"], 7)
        self.assertEqual(split(served.stdout)[1]["cuMemAlloc_v2"], 0)

    def test_python(self):
        script = os.path.join(SOURCE, "tests/preload/client_ctypes.py")
        plain, served = run([sys.executable, script]), run([sys.executable, script], preload=True)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertEqual(split(served.stdout)[0], split(plain.stdout)[0])
        self.assertGreater(split(plain.stdout)[1]["cuMemAlloc_v2"], 0)
        self.assertEqual(split(served.stdout)[1]["cuMemAlloc_v2"], 0)


class Bystanders(unittest.TestCase):
    """Programs that have nothing to do with CUDA."""

    def same(self, command, **more):
        plain, served = run(command, **more), run(command, preload=True, **more)
        self.assertEqual((served.returncode, served.stdout, served.stderr), (plain.returncode, plain.stdout, plain.stderr))
        return served

    def test_true(self):
        self.assertEqual(self.same(["/bin/true"]).returncode, 0)

    def test_shell(self):
        self.same(["/bin/sh", "-c", "for i in 1 2 3; do echo $i | cat; done; exit 4"])

    def test_python(self):
        self.same([sys.executable, "-c", "import ctypes, json, ssl, threading; print(json.dumps([1]))"])

    def test_no_driver(self):
        """A look-up of the driver's functions where there is no driver."""
        self.same([sys.executable, "-c", "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError: print('none')"],
                  LD_LIBRARY_PATH="")

    def test_compiler(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "hello.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write("#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n")
            self.same([os.environ.get("CC", "cc"), "-O2", "-o", os.path.join(folder, "hello"), source])
            self.assertEqual(self.same([os.path.join(folder, "hello")]).stdout, "hello\n")


class Run(unittest.TestCase):
    """cudamempool run."""

    def test_serves_and_reports(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            done = run([TOOL, "run", "--report", report, "--", *KINDS["runtime"], "info"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(split(done.stdout)[1]["cuMemAlloc_v2"], 0)
            with open(report, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual(len(lines), 1)
            self.assertEqual(lines[0]["devices"][0]["allocations"], 4)
            self.assertEqual((lines[0]["refusals"], lines[0]["last_refusals"]), (0, []))
            self.assertEqual(lines[0]["snapshot"], f"{os.path.realpath(report)}.{lines[0]['process']}.snapshot")
            with open(lines[0]["snapshot"], encoding="utf-8") as file:
                self.assertEqual(len(json.load(file)["devices"]), 1)

    def test_refusal_is_in_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            run([TOOL, "run", "--conf", "limit:32MiB", f"--report={report}", *KINDS["linked"], "malloc"])
            with open(report, encoding="utf-8") as file:
                report = json.loads(file.read())
            self.assertEqual([refusal["bytes"] for refusal in report["last_refusals"]], [64 << 20, 1 << 40])
            self.assertEqual([refusal["limit_bytes"] for refusal in report["last_refusals"]], [32 << 20] * 2)
            self.assertTrue(all(refusal["reason"] and "grow" in refusal["rung_bytes"] for refusal in report["last_refusals"]))

    def test_report_knows_pools_that_ended(self):
        """A device that is reset loses its pool, not its figures."""
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            run([TOOL, "run", f"--report={report}", *KINDS["linked"], "reset"])
            with open(report, encoding="utf-8") as file:
                device = json.loads(file.read())["devices"][0]
            self.assertEqual((device["allocations"], device["live_bytes"], device["reserved_bytes"] > 0), (11, 0, True))
            self.assertGreaterEqual(device["peak_live_bytes"], 6 << 20)

    def test_trace(self):
        """A recorded program is served again by replay, up to the same peak of live bytes."""
        with tempfile.TemporaryDirectory() as folder:
            for kind, behaviour in (("linked", "malloc"), ("runtime", "threads")):
                trace, report = os.path.join(folder, f"{kind}.cmtrace"), os.path.join(folder, f"{kind}.json")
                done = run([TOOL, "run", "--trace", trace, "--report", report, "--", *KINDS[kind], behaviour])
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(report, encoding="utf-8") as file:
                    device = json.loads(file.read())["devices"][0]
                replayed = json.loads(run([TOOL, "replay", "--json", "--device", "sim:1GiB", trace]).stdout)
                self.assertTrue(replayed["served"])
                # the pool counts whole slots of slabs, replay what was asked for, rounded up to 512
                self.assertAlmostEqual(replayed["peak_live_bytes"], device["peak_live_bytes"], delta=device["peak_live_bytes"] / 1000)

    def test_snapshot_from_outside(self):
        """A signal has the next call of the program write a snapshot; the program goes on."""
        program = ("import ctypes, os, sys\n"
                   "cuda = ctypes.CDLL('libcuda.so.1')\ncontext, address = ctypes.c_void_p(), ctypes.c_uint64()\n"
                   "assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0\n"
                   "assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 << 20)) == 0\n"
                   "print(os.getpid(), flush=True)\nsys.stdin.readline()\n"
                   "assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == cuda.cuMemFree_v2(address) == 0\n"
                   "print('went on', flush=True)\nsys.stdin.readline()\n")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.json")
            environment = dict(os.environ, SIMCUDA_DEVICE=DEVICES, LD_LIBRARY_PATH=SIMCUDA)
            command = [TOOL, "run", "--conf", f"snapshot_signal:12,snapshot_file:{path}", "--", sys.executable, "-c", program]
            with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                os.kill(int(process.stdout.readline()), signal.SIGUSR2)
                process.stdin.write("\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.readline(), "went on\n")
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["reason"], "signal")
                process.stdin.write("\n")
                process.stdin.flush()
                self.assertEqual(process.wait(60), 0)

    def test_summary(self):
        """verbose:1 says in one line what was used; without it there is none."""
        self.assertEqual(run([TOOL, "run", *KINDS["linked"], "info"]).stderr, "")
        for behaviour in ("info", "contexts"):
            done = run([TOOL, "run", "--conf", "verbose:1", *KINDS["linked"], behaviour])
            self.assertRegex(done.stderr, r"^cudamempool: client_linked \(\d+\): device 0: 4 requests, at most \d+\.\d MiB in use and "
                                          r"\d+\.\d MiB held, 0 refused\n$")

    def test_status_and_signals(self):
        self.assertEqual(run([TOOL, "run", "sh", "-c", "exit 42"]).returncode, 42)
        self.assertEqual(run([TOOL, "run", "sh", "-c", "kill -TERM $$"]).returncode, -15)

    def test_environment(self):
        done = run([TOOL, "run", "--conf", "slack:2%", "sh", "-c", "echo $CUDAMEMPOOL_CONF; echo $LD_PRELOAD"],
                   CUDAMEMPOOL_CONF="slack:5%", LD_PRELOAD="libm.so.6")
        self.assertEqual(done.stdout.splitlines()[0], "slack:5%,slack:2%")
        self.assertTrue(done.stdout.splitlines()[1].startswith("libm.so.6:/"))

    def test_wrong_usage(self):
        self.assertEqual(run([TOOL, "run"]).returncode, 2)
        self.assertEqual(run([TOOL, "run", "--no-such-option", "true"]).returncode, 2)
        self.assertEqual(run([TOOL, "run", "./there-is-no-such-program"]).returncode, 2)
        self.assertEqual(run([TOOL, "run", "--help"]).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
