"""`cudamempool top`: table and JSON for scripts, and the screen in a terminal of 160 columns. Usage: test_top.py BUILD SOURCE [unittest arguments]."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import unittest

import live
from live import MIB

COLUMNS, LINES = 160, 45


class Screen:
    """A terminal with the tool in it; what it draws is kept in cells, as far as its escape sequences are those of TERM=vt100."""

    def __init__(self, folder):
        self.cells = [[" "] * COLUMNS for _ in range(LINES)]
        self.row = self.column = 0
        self.rest = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="vt100", LC_ALL="C", CUDAMEMPOOL_LIVE_DIR=folder, LINES=str(LINES), COLUMNS=str(COLUMNS))
            os.execv(live.TOOL, ["cudamempool", "top", "--interval", "0.2"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def press(self, keys):
        os.write(self.terminal, keys)

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row = min(self.row + 1, LINES - 1)
        elif character == "\b":
            self.column = max(self.column - 1, 0)
        elif character >= " ":
            if self.column < COLUMNS:
                self.cells[self.row][self.column] = character
            self.column += 1

    def control(self, arguments, letter):
        numbers = [int(number) if number else 0 for number in arguments.split(";")]
        first = numbers[0] or 1
        if letter == "H":
            self.row, self.column = min(first, LINES) - 1, (numbers[1] if len(numbers) > 1 and numbers[1] else 1) - 1
        elif letter == "J" and numbers[0] == 0:
            self.cells[self.row][self.column:] = [" "] * (COLUMNS - self.column)
            for row in range(self.row + 1, LINES):
                self.cells[row] = [" "] * COLUMNS
        elif letter == "J":
            self.cells = [[" "] * COLUMNS for _ in range(LINES)]
        elif letter == "K" and numbers[0] == 1:
            self.cells[self.row][:self.column + 1] = [" "] * (self.column + 1)
        elif letter == "K":
            self.cells[self.row][self.column:] = [" "] * (COLUMNS - self.column)
        elif letter in "ABCD":
            self.row += {"A": -first, "B": first}.get(letter, 0)
            self.column += {"C": first, "D": -first}.get(letter, 0)

    def draw(self, data):
        text = (self.rest + data).decode("latin-1")
        at = 0
        while at < len(text):
            match = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78MDE]|[\x0e\x0f]").match(text, at)
            if match:
                if match.group(2) and "?" not in match.group(1):
                    self.control(match.group(1), match.group(2))
                elif match.group(0) == "\x1bM":
                    self.row = max(self.row - 1, 0)
                at = match.end()
            elif text[at] == "\x1b" and len(text) - at < 12:
                break
            else:
                self.put(text[at])
                at += 1
        self.rest = text[at:].encode("latin-1")

    def read(self):
        """False at the end."""
        if select.select([self.terminal], [], [], 1)[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:
                return False
            self.draw(data)
            return bool(data)
        return True

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def wait(self, pattern):
        """Until the screen shows the pattern; what it shows then."""
        for _ in range(300):
            if re.search(pattern, self.text()):
                return self.text()
            if not self.read():
                break
        raise AssertionError(f"no {pattern!r} on the screen:\n{self.text()}")

    def end(self):
        self.press(b"q")
        while self.read():
            pass
        os.close(self.terminal)
        return os.waitpid(self.pid, 0)[1]


class Top(unittest.TestCase):
    def setUp(self):
        scratch = live.scratch()
        self.folder = scratch.name
        self.addCleanup(scratch.cleanup)

    def test_table(self):
        with live.Client(self.folder) as small, live.Client(self.folder) as large:
            small.tell(f"alloc {2 * MIB}")
            large.tell(f"alloc {40 * MIB}")
            for order, first in (("live", large), ("process", min(small, large, key=lambda client: client.pid))):
                result = live.tool(self.folder, "top", "--once", "--sort", order)
                head, *rows = [line.split() for line in result.stdout.splitlines()]
                self.assertEqual((result.returncode, head[:6]), (0, ["PID", "PROGRAM", "GPU", "POOL", "LIVE", "RESERVED"]))
                self.assertEqual((len(rows), int(rows[0][0])), (2, first.pid))
                of_large = next(row for row in rows if int(row[0]) == large.pid)
                self.assertEqual(of_large[1:6], ["client", "0", "1", "40.0M", "40.0M"])

    def test_empty_and_bad_words(self):
        result = live.tool(self.folder, "top", "--json")
        self.assertEqual(json.loads(result.stdout), {"processes": 0, "unreadable": 0, "pools": []})
        for words in (["--sort", "size"], ["--interval", "0"], ["--interval", "x"], ["file"], ["--fast"], ["--sort"]):
            self.assertEqual(live.tool(self.folder, "top", *words).returncode, 2, words)
        self.assertNotEqual(live.tool(self.folder, "top").returncode, 0)  # no terminal

    @unittest.skipUnless(live.built_with("libncursesw"), "built without ncurses")
    def test_screen(self):
        with live.Client(self.folder) as one, live.Client(self.folder, conf="live:on,limit:16MiB") as two:
            one.tell(f"alloc {128 * MIB}")
            two.tell(f"alloc {4 * MIB}")
            two.tell(f"alloc {64 * MIB}")  # refused
            screen = Screen(self.folder)
            screen.wait(r"2 processes, 2 pools: 132.0M live, 132.0M reserved, 0B idle")
            half_of_device, quarter_of_limit = r"\[\|{10} {10}\]", r"\[\|{5} {15}\]"
            screen.wait(rf"PID .*\n *{one.pid} client .*{half_of_device}.*\n *{two.pid} client .*{quarter_of_limit}")
            screen.press(b"f")
            screen.wait(r"sorted by refusals(.|\n)*q: end")
            screen.wait(rf"PID .*\n *{two.pid} ")
            screen.press(b"l")
            screen.wait(rf"PID .*\n *{one.pid} ")
            screen.press(b"R")
            screen.wait(rf"PID .*\n *{two.pid} (.|\n)*smallest first")
            screen.press(b"R")
            screen.wait(rf"PID .*\n *{one.pid} ")
            screen.press(b"j\n")  # the row after the one that is chosen, if there is one: either way a pool's page
            screen.wait(r"client, process \d+, GPU 0, pool 1")
            for counter in live.COUNTERS:
                screen.wait(rf"\n{counter} +\d")
            screen.press(b"\x1b")
            screen.wait(r"PID +PROGRAM")
            one.tell("free")
            screen.wait(r"2 processes, 2 pools: 4.0M live")
            two.end()
            screen.wait(r"1 processes, 1 pools")
            one.end()
            screen.wait(r"0 processes, 0 pools(.|\n)*No process shows a pool")
            self.assertEqual(screen.end(), 0)


unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
