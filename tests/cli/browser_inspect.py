"""The page of `cudamempool inspect --html` in a browser: drawn, clicked, zoomed, searched, by keys, light and dark; screenshots are written.

Not part of ctest's set, since it needs chromium. Usage: browser_inspect.py TOOL OUT [SNAPSHOT...]; CHROMIUM names another browser. Without a
SNAPSHOT only a large one made here is shown. The browser is driven through a pipe, by the DevTools protocol.
"""
import base64
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time

EVENTS = 500000


class Browser:
    """One page of a headless Chromium; file descriptors 3 and 4 are the protocol's."""

    def __init__(self, folder):
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()
        program = os.environ.get("CHROMIUM", "chromium")

        def descriptors():
            read, write = os.dup(to_read), os.dup(to_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={folder}/profile", "--no-first-run", "--disable-background-networking", "--window-size=1400,1500"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.from_browser, 1 << 20)
            if not piece:
                raise SystemExit("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def js(self, text):
        result = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{text}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path, state=""):
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{path}#{state}")
        begun = time.monotonic()
        while not self.js("document.getElementById('status')?.textContent === '' && Number(document.body.dataset.drawn) > 0"):
            if time.monotonic() > begun + 60:
                raise SystemExit("the page was not drawn: " + str(self.js("document.getElementById('status')?.textContent")))
            time.sleep(0.05)
        return time.monotonic() - begun

    def drawn(self):
        """Waits for the picture after a change."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path):
        self.drawn()
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        print("wrote", path)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.drawn()

    def wheel(self, x, y, span):
        """Turns the wheel until what span says has changed: for a while a browser gives turns to what the last ones went to."""
        self.mouse("mouseMoved", x, y)
        before, begun = self.js(span), time.monotonic()
        while self.js(span) == before and time.monotonic() < begun + 10:
            self.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
            self.drawn()
        return self.js(span) < before

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            text = {"text": name} if kind == "keyDown" and len(name) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **text)
        self.drawn()

    def complaints(self):
        """Errors of the page, and requests of anything but the file itself."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and params["entry"]["level"] == "error"):
                found.append(params)
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "about:", "data:", "blob:")):
                found.append(params["request"]["url"])
        return found

    def close(self):
        self.process.terminate()
        self.process.wait()


def large_snapshot(path):
    """A made-up run of half a million events in which the last request is refused."""
    rng, live, events, clock = random.Random(1), [], [], 10 ** 15
    free, base, top = {}, 0x7F0000000000, 0
    frames = [[{"name": f"layer{i}.forward", "filename": f"model/block{i % 12}.py", "line": 10 + i},
               {"name": "train_step", "filename": "train.py", "line": 88}] for i in range(60)]
    while len(events) < EVENTS - 1:
        clock += rng.randrange(1, 40)
        if len(live) < 3000 + 1500 * ((len(events) // 40000) % 2) or rng.random() < 0.5:
            size = 512 * rng.choice([1, 2, 8, 16, 64, 256, 1024, 4096])
            address = free[size].pop() if free.get(size) else base + top
            top += size if address == base + top else 0
            live.append((address, size))
            events.append({"action": "alloc", "addr": address, "size": size, "stream": 0, "time_us": clock, "frames": frames[rng.randrange(60)]})
        else:
            address, size = live.pop(rng.randrange(len(live)))
            free.setdefault(size, []).append(address)
            for action in ("free_requested", "free_completed"):
                events.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": clock, "frames": []})
    events.append({"action": "oom", "size": 8 << 30, "device_free": 1 << 30, "stream": 0, "time_us": clock + 5, "frames": frames[3]})
    blocks, at = [], base
    for address, size in sorted(live):
        if address > at:
            blocks.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
        blocks.append({"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames[address // 512 % 60]})
        at = address + size
    total = -(-top // (2 << 20)) * (2 << 20)
    blocks.append({"address": at, "size": base + total - at, "requested_size": 0, "state": "inactive", "frames": []})
    segment = {"device": 0, "address": base, "total_size": total, "stream": 0, "segment_type": "large", "allocated_size": 0, "active_size": 0,
               "requested_size": 0, "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}
    with open(path, "wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [events], "allocator_settings": {}}, file)


def centre(browser, selector, dx=0.5, dy=0.5):
    box = browser.js(f"(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{block: 'center'}}); "
                     "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()")
    return box[0] + dx * box[2], box[1] + dy * box[3]


def check(condition, words):
    if not condition:
        raise SystemExit("not so: " + words)
    print("ok:", words)


def painted(browser, surface, least=3):
    """How many colours a picture has."""
    return browser.js(f"new Set(page.{surface}.pixels).size") >= least


def drive(browser, page, out, name):
    seconds = browser.open(page, "theme=light")
    print(f"{name}: drawn {seconds:.1f} s after it was asked for, {os.path.getsize(page)} bytes")
    browser.screenshot(f"{out}/{name}-light.png")
    has_map, has_time = browser.js("!document.getElementById('state').hidden"), browser.js("!document.getElementById('history').hidden")
    if has_map:
        check(painted(browser, "map.surface", 2), "the map is drawn")
        x, y = centre(browser, "#map", 0.3, 0.4)
        browser.click(x, y)
        check(browser.js("page.block !== null && document.getElementById('details').textContent.includes('0x')"), "a click on the map selects a block")
        check(browser.wheel(x, y, "page.map.axis.span"), "the wheel zooms the map")
        browser.js("document.getElementById('map').focus()")
        block = browser.js("page.block")
        browser.key("ArrowRight")
        check(browser.js("page.block") in (block, block + 1), "the right arrow selects the next block")
        browser.screenshot(f"{out}/{name}-map-zoomed.png")
        browser.key("Home")
        check(browser.js("page.map.axis.span") == browser.js("page.device.mapBytes"), "Home shows the whole map")
    if has_time:
        check(painted(browser, "time.lives") and painted(browser, "time.curve"), "curve and lives are drawn")
        x, y = centre(browser, "#lives", 0.5, 0.5)
        check(browser.wheel(x, y, "page.time.time.span"), "the wheel zooms the lives")
        begun = time.monotonic()
        for _ in range(8):
            browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
        browser.drawn()
        print(f"8 turns of the wheel: {time.monotonic() - begun:.2f} s")
        browser.mouse("mouseMoved", x, y)
        browser.js("document.getElementById('lives').focus()")
        browser.key("n")
        check(browser.js("page.life !== null"), "N selects an allocation")
        at = browser.js("(() => { const b = page.time.box(page.life), s = page.time.lives.scale, c = document.getElementById('lives').getBoundingClientRect(); "
                        "return [c.left + (Math.max(b[0], 0) + Math.min(b[2], page.time.lives.width)) / 2 / s, c.top + (b[1] + b[3]) / 2 / s]; })()")
        browser.mouse("mouseMoved", at[0], at[1])
        browser.drawn()
        check(browser.js("!document.getElementById('hover').hidden && document.getElementById('hover').textContent.includes('begins')"),
              "an allocation under the pointer is told")
        browser.screenshot(f"{out}/{name}-lives-zoomed.png")
        browser.key("+")
        view = browser.js("page.time.time.view")
        browser.key("ArrowRight")
        moved = browser.js("page.time.time.view")
        check(moved[0] > view[0] or view[1] == browser.js("page.time.time.whole[1]"), "the right arrow moves on")
        browser.key("-")
        check(browser.js("page.time.time.span") > moved[1] - moved[0], "minus zooms out")
        browser.key("Home")
        if browser.js("page.device.refusals.length") > 0:
            browser.key("r")
            check("verdict" in browser.js("document.getElementById('details').textContent"), "R goes to the refusal")
            check(browser.js("getComputedStyle(document.getElementById('refusals')).display !== 'none'"), "the refusal stands on top")
            browser.screenshot(f"{out}/{name}-refusal.png")
            browser.key("Home")
    browser.js("(() => { const s = document.getElementById('search'); s.focus(); s.value = '>64KiB'; s.dispatchEvent(new Event('input')); })()")
    browser.drawn()
    check(browser.js("document.getElementById('found').textContent.startsWith('Found: ')"), "a search finds")
    browser.screenshot(f"{out}/{name}-search.png")
    browser.js("(() => { const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); })()")
    browser.click(*centre(browser, "#theme"))
    check(browser.js("document.documentElement.dataset.theme") == "dark", "the button makes it dark")
    browser.js("scrollTo(0, 0)")
    browser.screenshot(f"{out}/{name}-dark.png")
    hash_now = browser.js("location.hash.slice(1)")
    browser.open(page, hash_now)
    check(browser.js("document.documentElement.dataset.theme") == "dark", "the address keeps the view")
    reached = browser.js("[...document.querySelectorAll('canvas, button, input, select')].every(e => e.tabIndex >= 0)")
    check(reached, "everything is reached by Tab")
    check(browser.complaints() == [], f"no error and no request over the network {browser.complaints()}")


def main():
    tool, out, *snapshots = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        large = os.path.join(folder, "large.pickle")
        large_snapshot(large)
        browser = Browser(folder)
        try:
            for snapshot in [*snapshots, large]:
                name = os.path.splitext(os.path.basename(snapshot))[0]
                page = os.path.join(folder, name + ".html")
                subprocess.run([tool, "inspect", "--html", page, snapshot], check=True)
                drive(browser, page, out, name)
        finally:
            browser.close()


main()
