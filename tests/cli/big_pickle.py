"""By command: a generated PyTorch snapshot of a gigabyte is read and converted within limits of time and memory. Usage: big_pickle.py TOOL [MIB].

Fails when that took more than 20 seconds of processor or three times the file's size in memory. The file is as Python's pickler writes it:
each event and each frame a dictionary of its own, put into the memo; keys and names got from there.
"""
import os
import resource
import struct
import subprocess
import sys
import tempfile

MIB = 1 << 20
WORDS = ["action", "addr", "size", "stream", "time_us", "frames", "filename", "line", "name", "alloc", "free_requested", "free_completed"] + [
    f"file{i}.py" for i in range(40)] + [f"function{i}" for i in range(200)]


def text(word):
    return b"\x8c" + bytes([len(word)]) + word.encode()


def get(word):
    return b"h" + bytes([WORDS.index(word)])


def long(number):
    return b"\x8a\x08" + struct.pack("<q", number)


def frame(number):
    return b"}\x94(" + get("filename") + get(f"file{number % 40}.py") + get("line") + b"M" + struct.pack("<H", number % 900) + get("name") + get(
        f"function{number % 200}") + b"u"


def events(count):
    for i in range(count):
        for action in ("alloc", "free_requested", "free_completed"):
            yield (b"}\x94(" + get("action") + get(action) + get("addr") + long((1 << 33) + i * 4 * MIB) + get("size") + b"J" +
                   struct.pack("<i", 10**6 + i) + get("stream") + b"K\0" + get("time_us") + long(1783874422287973 + i) + get("frames") +
                   b"]\x94(" + b"".join(frame(7 * i + 3 * j) for j in range(6)) + b"e" + b"u")


def write(path, size):
    with open(path, "wb") as file:
        file.write(b"\x80\x04}(" + text("words") + b"](" + b"".join(text(word) + b"\x94" for word in WORDS) + b"e" + text("segments") + b"]" +
                   text("device_traces") + b"](]")
        batch = b"(" + b"".join(events(333)) + b"e"
        while file.tell() < size:
            file.write(batch)
        file.write(b"eu.")
        return file.tell()


def main():
    tool, size = sys.argv[1], int(sys.argv[2] if len(sys.argv) > 2 else 1024) * MIB
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "big.pickle")
        written = write(path, size)
        status = subprocess.run([tool, "convert", path, "--to", "cmtrace", "-o", os.devnull]).returncode
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        print(f"{written / MIB:.0f} MiB converted in {seconds:.1f} s of processor and {memory / MIB:.0f} MiB")
        sys.exit(status != 0 or seconds > 20 or memory > 3 * written)


main()
