"""tools/gpu-check.sh itself: what it makes of parts that pass, fail, hang, crash or say nothing, with stand-ins for its programs; and a rehearsal
on the simulated device, packed and unpacked elsewhere. `test_gpu_check.py SOURCE BUILD`."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
LINE = """echo '{{"name":"{0}","verdict":"{1}","text":"{2}"}}'"""
FACTS = "; ".join(LINE.format(*words) for words in (("GPU", "answered", 'a \\"stand-in\\"'), ("driver", "answered", "for CUDA 0.0")))


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def stand_in(self, **programs):
        """A tree whose programs are lines of shell."""
        for folder in ("tools", "build/tests/gpu", "build/bin", "build/lib"):
            os.makedirs(os.path.join(self.folder, folder), exist_ok=True)
        shutil.copy(os.path.join(SOURCE, "tools/gpu-check.sh"), os.path.join(self.folder, "tools"))
        shutil.copytree(os.path.join(SOURCE, "tools/gpu-check"), os.path.join(self.folder, "tools/gpu-check"))
        for name, text in {"ask_device": FACTS, **programs}.items():
            path = os.path.join(self.folder, "build/tests/gpu", name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{text}\n")
            os.chmod(path, 0o755)

    def check(self, *arguments, root=None):
        """Exit status, what was written as JSON (None: nothing), table, complaints."""
        out = os.path.join(self.folder, "out.json")
        if os.path.exists(out):
            os.remove(out)
        environment = dict(os.environ, CUDAMEMPOOL_CONF="nonsense:1")  # which must not get through to the programs
        done = subprocess.run(["sh", os.path.join(root or self.folder, "tools/gpu-check.sh"), "--json", out, *arguments], env=environment,
                              capture_output=True, text=True, timeout=300, cwd=self.folder)
        written = None
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                written = json.load(file)
        return done.returncode, written, done.stdout, done.stderr

    def verdicts(self, written):
        return {part["part"]: (part["verdict"], part["reason"]) for part in written["parts"]}

    def test_what_becomes_of_parts(self):
        self.stand_in(
            check_blocks=LINE.format("one", "passed", "fine"),
            check_order=LINE.format("one", "passed", "fine") + "; " + LINE.format("two", "failed", "a \\\"quoted\\\" reason") + "; exit 1",
            check_graphs="true",
            ask_mapping="echo '{\"name\":\"cost\",\"verdict\":\"measured\",\"value\":1.5e-3,\"unit\":\"us\",\"text\":\"\"}'; echo not a line",
            ask_alias=LINE.format("one", "passed", "fine") + "; kill -SEGV $$",
            ask_calls="echo 'no such \"thing\"' >&2; exit 77",
            ask_captures=LINE.format("one", "skipped", "not here"),
            ask_sharing=LINE.format("one", "failed", "but it ends with 0"),
            check_unchanged="exit 77")
        names = "blocks,order,graphs,preload,mapping,alias,calls,captures,sharing,allocators"
        code, written, table, _ = self.check("--only", names, "--device", "cuda:0", "--patience", "10")
        self.assertEqual(code, 1)
        verdicts = self.verdicts(written)
        self.assertEqual({name: verdict for name, (verdict, _) in verdicts.items()},
                         {"device": "passed", "blocks": "passed", "order": "failed", "graphs": "failed", "mapping": "passed", "alias": "failed",
                          "preload": "skipped", "calls": "skipped", "captures": "skipped", "sharing": "failed", "allocators": "failed"})
        self.assertEqual(verdicts["graphs"][1], "it said nothing")
        self.assertEqual(verdicts["calls"][1], "no such thing")
        self.assertIn("139", verdicts["alias"][1])
        self.assertIn("exit status 12", verdicts["allocators"][1])  # the tool is not there
        self.assertEqual((written["passed"], written["failed"], written["skipped"]), (3, 5, 3))
        self.assertEqual((written["gpu"], written["device"]), ('a "stand-in"', "cuda:0"))
        self.assertIn("order        FAILED", table)
        self.assertIn('a "quoted" reason', table)
        self.assertIn("0.0015 us" if "0.0015 us" in table else "1.5e-3 us", table)

    def test_a_part_that_hangs(self):
        self.stand_in(check_order=LINE.format("one", "passed", "fine") + "; sleep 100", check_graphs=LINE.format("one", "passed", "fine"))
        code, written, _, _ = self.check("--only", "order,graphs", "--budget", "5")
        self.assertEqual(code, 1)
        verdicts = self.verdicts(written)
        self.assertEqual(verdicts["order"][0], "failed")
        self.assertIn("killed after", verdicts["order"][1])
        self.assertEqual(verdicts["graphs"], ("skipped", "there was no time left for it"))
        self.assertEqual(len(written["parts"][1]["lines"]), 1)  # what it said before is kept

    def test_no_gpu(self):
        self.stand_in(ask_device="echo '*** NO GPU: none ***' >&2; exit 77")
        code, written, _, complaint = self.check()
        self.assertEqual((code, written), (77, None))
        self.assertIn("NO GPU", complaint)

    def test_no_python(self):
        self.stand_in()
        code, written, _, _ = self.check("--only", "torch_speed,training,runtime", "--python", "/nowhere/python")
        self.assertEqual(code, 0)
        self.assertEqual((written["passed"], written["failed"], written["skipped"]), (1, 0, 3))

    def test_usage(self):
        self.stand_in()
        for arguments in (["--only", "nothing"], ["--device", "gpu"], ["--budget", "soon"], ["--patience", "0"], ["--what"], ["--json"]):
            self.assertEqual(self.check(*arguments)[0], 2, arguments)

    def test_eight_minutes(self):
        self.stand_in()
        _, _, listed, _ = self.check("--list")
        seconds = [int(line.split()[1]) for line in listed.splitlines()]
        self.assertGreater(len(seconds), 10)
        self.assertLess(sum(seconds), 480)

    def test_rehearsal(self):
        """On the simulated device, from another folder; and again with a preload library that is none."""
        archive = os.path.join(self.folder, "packed.tar.gz")
        done = subprocess.run(["sh", os.path.join(SOURCE, "tools/gpu-check.sh"), "--build", BUILD, "--pack", archive], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        subprocess.run(["tar", "-xzf", archive, "-C", self.folder], check=True)
        root = os.path.join(self.folder, "cudamempool-gpu-check")
        names = "preload,mapping,captures,sharing,runtime,allocators,replay"
        code, written, table, complaint = self.check("--device", "simcuda", "--only", names, "--python", sys.executable, "--patience", "10",
                                                     root=root)
        self.assertEqual(code, 0, table + complaint)
        self.assertEqual({verdict for verdict, _ in self.verdicts(written).values()}, {"passed"}, table)
        self.assertIn("NO FIGURE HOLDS FOR A GPU", complaint)
        self.assertIn("SIMULATED", written["gpu"])
        preload = os.path.join(root, "build/lib/libcudamempool_preload.so")
        os.remove(preload)
        shutil.copy(os.path.join(root, "build/lib/libcudamempool.so"), preload)
        code, written, table, _ = self.check("--device", "simcuda", "--only", "preload", "--patience", "10", root=root)
        self.assertEqual((code, self.verdicts(written)["preload"][0]), (1, "failed"), table)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
