"""
`cudamempool serve-metrics`: scraped over HTTP, and each line held against the text format of Prometheus; dashboard and alert rules name only
metrics that there are. Usage: test_metrics.py BUILD SOURCE [unittest arguments].
"""
import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

import live
from live import MIB

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\d+(?:\.\d+)?)")
GRAFANA = os.path.join(live.SOURCE, "tools/grafana")


def parse(text):
    """{name: (type, {labels: value})}; raises where the text breaks the format."""
    metrics, helped, current = {}, set(), None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = re.fullmatch(rf"# HELP ({NAME}) [^\n]+", line).group(1)
            assert name not in helped, f"{name} twice"
            helped.add(name)
        elif line.startswith("# TYPE "):
            name, kind = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line).groups()
            assert name in helped and name not in metrics
            metrics[name] = (kind, {})
            current = name
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name == current, f"{name} among {current}"
            labels = tuple(re.findall(LABEL, labels or ""))
            assert labels not in metrics[name][1], line
            metrics[name][1][labels] = float(value)
    for name, (kind, _) in metrics.items():
        assert name.startswith("cudamempool_") and (kind == "counter") == name.endswith("_total"), name
    return metrics


def value(metrics, name, **labels):
    found = [sample for key, sample in metrics[name][1].items() if all(f'{label}="{text}"' in key for label, text in labels.items())]
    assert len(found) == 1, (name, labels, found)
    return found[0]


class Metrics(unittest.TestCase):
    def setUp(self):
        scratch = live.scratch()
        self.folder = scratch.name
        self.addCleanup(scratch.cleanup)

    def check(self, metrics, client):
        labels = {"pid": client.pid, "device": 0, "pool": 1}
        self.assertEqual(value(metrics, "cudamempool_processes"), 1)
        for counter in live.COUNTERS:
            ending = "_total" if live.KINDS[counter] == "COUNT" else ""
            value(metrics, f"cudamempool_{counter}{ending}", **labels)
        for verdict in live.VERDICTS:
            refused = value(metrics, "cudamempool_refusals_by_verdict_total", verdict=verdict, **labels)
            self.assertEqual(refused, verdict == "true_demand")
        self.assertEqual(value(metrics, "cudamempool_live_bytes", **labels), 12 * MIB)
        self.assertEqual(value(metrics, "cudamempool_allocations_total", **labels), 1)
        self.assertEqual(value(metrics, "cudamempool_refusals_total", **labels), 1)
        self.assertEqual(value(metrics, "cudamempool_limit_bytes", **labels), 16 * MIB)
        self.assertEqual(value(metrics, "cudamempool_pool_info", program="client", **labels), 1)
        self.assertGreater(value(metrics, "cudamempool_published_timestamp_seconds", **labels), 1e9)

    def client(self):
        client = live.Client(self.folder, conf="live:on,limit:16MiB")
        client.tell(f"alloc {12 * MIB}")
        client.tell(f"alloc {64 * MIB}")
        return client

    def test_once(self):
        with self.client() as client:
            result = live.tool(self.folder, "serve-metrics", "--once")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.check(parse(result.stdout), client)

    def test_bad_words(self):
        for words in ([], ["--once", "--listen", "127.0.0.1:0"], ["--listen"], ["--listen", "127.0.0.1"], ["--listen", "localhost:x"],
                      ["--listen", "[::1:0"], ["--port", "1"], ["--once", "file"]):
            self.assertNotIn(live.tool(self.folder, "serve-metrics", *words, timeout=60).returncode, (0, -15), words)

    @unittest.skipUnless(live.built_with("libmicrohttpd"), "built without libmicrohttpd")
    def test_scraped(self):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        server = subprocess.Popen([live.TOOL, "serve-metrics", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, CUDAMEMPOOL_LIVE_DIR=self.folder))
        with self.client() as client, server:
            address = server.stdout.readline().strip()
            self.assertRegex(address, r"http://127\.0\.0\.1:[1-9]\d*/metrics")
            with opener.open(address) as answer:
                self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                self.check(parse(answer.read().decode()), client)
            for path, method, code in (("/nothing", "GET", 404), ("/metrics", "POST", 405), ("/", "GET", 200), ("/metrics", "HEAD", 200)):
                request = urllib.request.Request(address.replace("/metrics", path), method=method, data=b"x" if method == "POST" else None)
                try:
                    with opener.open(request) as answer:
                        found = answer.status
                except urllib.error.HTTPError as error:
                    found = error.code
                    error.close()
                self.assertEqual(found, code, (path, method))
            client.end()
            with opener.open(address) as answer:
                metrics = parse(answer.read().decode())
            self.assertEqual(value(metrics, "cudamempool_processes"), 0)
            self.assertEqual(metrics["cudamempool_live_bytes"], ("gauge", {}))
            server.terminate()
            self.assertEqual(server.wait(), 0)

    def test_dashboard_and_rules_name_metrics(self):
        known = set(parse(live.tool(self.folder, "serve-metrics", "--once").stdout))
        with open(os.path.join(GRAFANA, "alerts.yml"), encoding="utf-8") as file:
            rules = file.read()
        with open(os.path.join(GRAFANA, "dashboard.json"), encoding="utf-8") as file:
            panels = json.load(file)["panels"]
        expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
        self.assertGreater(len(expressions), 5)
        named = set(re.findall(r"\bcudamempool_\w+", " ".join(expressions))) | set(re.findall(r"\bcudamempool_\w+", rules))
        self.assertGreater(len(named), 8)
        self.assertEqual(named - known, set())


unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
