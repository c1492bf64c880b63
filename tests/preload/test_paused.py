"""cudamempool pause and resume: a running program that is not changed gives its device memory up, and goes on with it afterwards."""
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = sys.argv[1:3]
CLIENT = os.path.join(SOURCE, "tests/preload/client_paused.py")
TOOL = os.path.join(BUILD, "bin/cudamempool")
PRELOAD = os.path.join(BUILD, "lib/libcudamempool_preload.so")
STATE_OFFSET, ASKED, STOPPED = 24, 1, 3  # <cudamempool/control.h>
DEADLINE_S = 60


class Program:
    def __init__(self, folder, conf="control:on"):
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("CUDAMEMPOOL_", "LD_", "SIMCUDA"))}
        self.environment["CUDAMEMPOOL_LIVE_DIR"] = folder
        more = dict(self.environment, SIMCUDA_DEVICE="sim:64MiB,content", LD_LIBRARY_PATH=os.path.join(BUILD, "simcuda"),
                    LD_PRELOAD=PRELOAD, CUDAMEMPOOL_CONF=conf)
        self.process = subprocess.Popen([sys.executable, CLIENT], env=more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.number = int(self.line())
        self.file = os.path.join(folder, f"cudamempool-control.{os.geteuid()}.{self.number}")

    def line(self):
        return self.process.stdout.readline().strip()

    def say(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def do(self, words):
        self.say(words)
        return self.line()

    def state(self):
        with open(self.file, "rb") as file:
            return struct.unpack_from("I", file.read(), STATE_OFFSET)[0]

    def wait_for(self, state):
        end = time.monotonic() + DEADLINE_S
        while self.state() != state and time.monotonic() < end:
            time.sleep(0.005)
        return self.state() == state

    def begin(self, *words):
        return subprocess.Popen([TOOL, *words, str(self.number)], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def tool(self, *words):
        tool = self.begin(*words)
        out, err = tool.communicate(timeout=DEADLINE_S)
        return tool.returncode, out.strip(), err.strip()

    def pause(self, *words, by="step"):
        """Ask, and have the program make a call; what the tool said."""
        tool = self.begin("pause", *words)
        assert self.wait_for(ASKED)
        self.say(by)
        out, err = tool.communicate(timeout=DEADLINE_S)
        return tool.returncode, out.strip(), err.strip()

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(DEADLINE_S)
        self.process.stdout.close()
        return code


class Paused(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.programs = []
        self.addCleanup(lambda: [self.stop(program) for program in self.programs])

    def stop(self, program):
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
        program.process.stdin.close()
        program.process.stdout.close()

    def program(self, **more):
        program = Program(self.folder, **more)
        self.programs.append(program)
        self.assertEqual(program.do("fill"), "fill 0")
        return program

    def test_contents_come_back(self):
        """The device has everything back while the program stands still, and the program has its bytes at the same addresses afterwards."""
        for words in ([], ["--keep"], ["--file", os.path.join(self.folder, "kept")]):
            with self.subTest(words=words):
                program = self.program()
                self.assertEqual(program.do("check"), "check 0")
                code, out, err = program.pause(*words, by="threads")
                self.assertEqual((code, err), (0, ""))
                self.assertRegex(out, rf"^process {program.number}: paused, \d+\.\d MiB given back$")
                self.assertGreaterEqual(float(out.split()[3]), 24)
                self.assertEqual(program.line(), "threads 0")
                self.assertEqual(program.do("others"), "others 0")
                self.assertEqual(program.tool("pause"), (1, "", f"cudamempool: process {program.number} is paused already"))
                self.assertEqual(program.do("others_leave"), "others_leave 0")
                self.assertEqual(program.tool("resume"), (0, f"process {program.number}: resumed", ""))
                self.assertEqual([program.line() for _ in range(3)], ["thread 0"] * 3)  # none came back before
                self.assertEqual(program.do("check"), "check 0")
                self.assertEqual(program.do("step"), "step 0")
                self.assertEqual(program.end(), 0)
                self.assertEqual(os.listdir(self.folder), [])

    def test_no_room_to_resume(self):
        """Who has the device meanwhile may keep it: the program stays paused, loses nothing, and is resumed later."""
        program = self.program()
        self.assertEqual(program.pause(by="threads")[0], 0)
        self.assertEqual((program.line(), program.do("others")), ("threads 0", "others 0"))
        code, out, err = program.tool("resume")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("device 0", err)
        self.assertTrue(program.wait_for(STOPPED))
        self.assertEqual(program.do("others_leave"), "others_leave 0")
        self.assertEqual(program.tool("resume")[0], 0)
        self.assertEqual([program.line() for _ in range(3)], ["thread 0"] * 3)
        self.assertEqual(program.do("check"), "check 0")
        self.assertEqual(program.end(), 0)

    def test_discard(self):
        program = self.program()
        self.assertEqual(program.pause("--discard")[0], 0)
        self.assertEqual(program.tool("resume")[0], 0)
        self.assertEqual((program.line(), program.do("step"), program.do("fill"), program.do("check")),
                         ("step 0", "step 0", "fill 0", "check 0"))

    def test_tag(self):
        """A part of the memory: the program goes on."""
        program = self.program()
        code, out, _ = program.pause("--tag", "of nobody")
        self.assertEqual((code, out, program.line()), (0, f"process {program.number}: paused, 0.0 MiB given back", "step 0"))
        self.assertEqual((program.do("step"), program.do("check")), ("step 0", "check 0"))
        resume = program.begin("resume")
        self.assertTrue(program.wait_for(ASKED))
        self.assertEqual(program.do("step"), "step 0")
        self.assertEqual((resume.communicate(timeout=DEADLINE_S)[0].strip(), resume.returncode), (f"process {program.number}: resumed", 0))

    def test_a_program_that_makes_no_call(self):
        """Nothing is done behind its back, and nothing is left of the request."""
        program = self.program()
        code, out, err = program.tool("pause", "--wait", "0")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("nothing was done", err)
        self.assertEqual((program.do("step"), program.do("check")), ("step 0", "check 0"))

    def test_capture(self):
        """What may not be done now is refused in the program's place, and the program notices nothing."""
        program = self.program()
        self.assertEqual(program.do("capture"), "capture 0")
        code, out, err = program.pause()
        self.assertEqual((code, out, program.line()), (1, "", "step 0"))
        self.assertIn("capture", err)
        self.assertEqual((program.do("end_capture"), program.do("check")), ("end_capture 0", "check 0"))
        self.assertEqual(program.pause()[0], 0)
        self.assertEqual((program.tool("resume")[0], program.line(), program.do("check")), (0, "step 0", "check 0"))

    def test_ends_while_paused(self):
        program = self.program()
        self.assertEqual((program.pause(by="threads")[0], program.line()), (0, "threads 0"))
        self.assertEqual((program.end(), os.listdir(self.folder)), (0, []))
        program = self.program()
        self.assertEqual((program.pause(by="threads")[0], program.line()), (0, "threads 0"))
        program.process.kill()
        program.process.wait()
        code, _, err = program.tool("resume")
        self.assertEqual((code, err), (1, f"cudamempool: process {program.number} has ended"))
        self.assertEqual(os.listdir(self.folder), [])

    def test_who_is_not_reached(self):
        program = self.program(conf="")
        for words in ("pause", "resume"):
            code, out, err = program.tool(words)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("control:on", err)
        self.assertEqual(os.listdir(self.folder), [])

    def test_wrong_usage(self):
        def usage(*words):
            return subprocess.run([TOOL, *words], capture_output=True, text=True).returncode

        for words in (["pause"], ["pause", "x"], ["pause", "0"], ["pause", "1", "2"], ["pause", "--no-such", "1"], ["pause", "--tag=", "1"],
                      ["pause", "--discard", "--file", "f", "1"], ["resume"], ["resume", "--keep", "1"], ["resume", "--wait", "x", "1"]):
            self.assertEqual((words, usage(*words)), (words, 2))
        self.assertEqual((usage("pause", "--help"), usage("resume", "--help")), (0, 0))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
