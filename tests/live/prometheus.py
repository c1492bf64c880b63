#!/usr/bin/env python3
"""
A real Prometheus reads the figures of a running program: it scrapes, answers each expression of the dashboard, and its alert about refusals
fires. By command, since it takes a minute and needs Prometheus and promtool (Debian: prometheus).

    python3 tests/live/prometheus.py BUILD SOURCE
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import live
from live import MIB

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
RULES = os.path.join(live.SOURCE, "tools/grafana/alerts.yml")
CONFIG = """
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: ["{rules}"]
scrape_configs:
  - job_name: cudamempool
    static_configs:
      - targets: ["{target}"]
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    def __init__(self, folder, target):
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(rules=RULES, target=target))
        subprocess.run(["promtool", "check", "config", config], check=True, stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{free_port()}"
        with open(os.path.join(folder, "prometheus.log"), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                             f"--web.listen-address={self.url[7:]}"], stdout=log, stderr=log)

    def ask(self, path, **parameters):
        with OPENER.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            answer = json.load(answer)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def wait(self, what, seconds=60):
        """The first true answer of what()."""
        for _ in range(seconds * 5):
            try:
                found = what()
                if found:
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        everything = self.query('{__name__=~"cudamempool_.*"}')
        sys.exit(f"waited in vain; Prometheus has {json.dumps(everything)}")


def expressions():
    """Those of the dashboard, with its variables filled in."""
    with open(os.path.join(live.SOURCE, "tools/grafana/dashboard.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel["targets"]:
            yield panel["title"], re.sub(r"\$(instance|device|pid)\b", ".*", target["expr"].replace("$__rate_interval", "5s"))


def check(prometheus, client):
    of_client = f'{{pid="{client.pid}",device="0",pool="1"}}'

    def value(name):
        found = prometheus.query(name + of_client)
        return float(found[0]["value"][1]) if found else None

    prometheus.wait(lambda: value("cudamempool_live_bytes") == 12 * MIB)
    print("scraped: 12 MiB live")
    for _ in range(8):
        client.tell(f"alloc {MIB // 4}")
        client.tell("free")
        time.sleep(1)
    rate = prometheus.wait(lambda: float((prometheus.query(f"rate(cudamempool_allocations_total{of_client}[5s])") or
                                          [{"value": [0, 0]}])[0]["value"][1]))
    print(f"rate of allocations: {rate:.2f}/s")
    assert prometheus.ask("alerts")["alerts"] == []
    client.tell(f"alloc {64 * MIB}")
    prometheus.wait(lambda: value("cudamempool_refusals_total") == 1)
    alerts = prometheus.wait(lambda: [alert for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"])
    (alert,) = [alert for alert in alerts if alert["labels"]["alertname"] == "CudamempoolRefusals"]
    assert alert["labels"]["pid"] == str(client.pid), alert
    print("fired:", alert["annotations"]["summary"])
    count = 0
    for title, expression in expressions():
        assert prometheus.query(expression), f"{title}: nothing for {expression}"
        count += 1
    print(f"{count} expressions of the dashboard have answers")


def main():
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    subprocess.run(["promtool", "check", "rules", RULES], check=True, stdout=subprocess.DEVNULL)
    os.environ.setdefault("CUDAMEMPOOL_DRIVER", os.path.join(live.BUILD, "simcuda/libcuda.so.1"))
    metrics = live.tool(live.scratch().name, "serve-metrics", "--once").stdout
    subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True, check=True)
    with live.scratch() as folder:
        server = subprocess.Popen([live.TOOL, "serve-metrics", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, CUDAMEMPOOL_LIVE_DIR=folder))
        prometheus = None
        try:
            target = re.search(r"//(.*)/", server.stdout.readline()).group(1)
            with live.Client(folder, conf="live:on,limit:16MiB") as client:
                client.tell(f"alloc {12 * MIB}")
                prometheus = Prometheus(folder, target)
                check(prometheus, client)
        finally:
            for process in (server, prometheus and prometheus.process):
                if process:
                    process.terminate()
                    process.wait()


main()
