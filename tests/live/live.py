"""What the tests of the live page share: a program that shows its pool, and the page as a reader of its own finds it from the lists."""
import os
import re
import struct
import subprocess
import sys
import tempfile

BUILD, SOURCE = (os.path.abspath(path) for path in sys.argv[1:3])
TOOL = os.path.join(BUILD, "bin/cudamempool")
MIB = 1 << 20


def names(name, macro):
    """First arguments, or the keys, of a list's entries."""
    with open(os.path.join(SOURCE, f"include/cudamempool/{name}.def"), encoding="utf-8") as file:
        return re.findall(rf"^{macro}\((.*)", re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S), re.M)


COUNTERS = [entry.split(",")[0] for entry in names("counters", "CMPOOL_COUNTER")]
KINDS = {entry.split(",")[0]: entry.split(",")[1].strip() for entry in names("counters", "CMPOOL_COUNTER")}
VERDICTS = [re.search(r'"(\w+)"', entry).group(1) for entry in names("verdicts", "CMPOOL_VERDICT")]
HEAD = struct.Struct("=8s6IQQ32s6QQ7Q")
POOL = struct.Struct(f"={7 + len(VERDICTS) + len(COUNTERS)}Q")
POOLS = 64


def read_page(path):
    """(head, pools) of a page; pools as dictionaries."""
    with open(path, "rb") as file:
        data = file.read()
    assert len(data) == HEAD.size + POOLS * POOL.size, len(data)
    head = HEAD.unpack_from(data)
    pools = []
    for i in range(POOLS):
        words = POOL.unpack_from(data, HEAD.size + i * POOL.size)
        if words[1]:
            counters = words[7 + len(VERDICTS):]
            pools.append({"sequence": words[0], "number": words[1], "device": words[2], "device_bytes": words[3], "limit_bytes": words[4],
                          "refusals_by": dict(zip(VERDICTS, words[7:])), **dict(zip(COUNTERS, counters))})
    return head, pools


class Client:
    """The program, and what it is told."""

    def __init__(self, folder, conf="live:on", device="sim:256MiB"):
        environment = dict(os.environ, CUDAMEMPOOL_LIVE_DIR=folder, CUDAMEMPOOL_CONF=conf, SIMCUDA_DEVICE=device)
        self.process = subprocess.Popen([os.path.join(BUILD, "tests/live/client")], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        assert self.answer() == "CMPOOL_OK"

    def answer(self):
        return self.process.stdout.readline().strip()

    def tell(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        """Its exit status, and what it said on stderr."""
        error = self.process.communicate()[1]
        return self.process.returncode, error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


def pages(folder):
    return sorted(os.listdir(folder))


def tool(folder, *arguments, **options):
    return subprocess.run([TOOL, *arguments], env=dict(os.environ, CUDAMEMPOOL_LIVE_DIR=folder), capture_output=True, text=True, check=False,
                          **options)


def built_with(what):
    """Whether the tool has an optional library."""
    needed = subprocess.run(["readelf", "-d", TOOL], capture_output=True, text=True, check=True).stdout
    return what in needed


def scratch():
    return tempfile.TemporaryDirectory(prefix="cudamempool-live-")


def sanitized():
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return any(re.match(r"CMPOOL_SANITIZE:\w+=.|CMPOOL_FUZZ:\w+=ON", line) for line in file)
