"""How long from a breach to its enforcement, beside Prometheus + Alertmanager + webhook.

`python bench/reaction/run.py [--rounds 60] [--starts 6] [--json]`. One target is scraped by both
sides each second and breaches at a random moment. Ours: `resilience serve --attach` with
`interval: 1s`; enforced is the core's read-back. The chain: scrape and evaluation each second, no
`for`, `group_wait: 0s`; its webhook's arrival counts as enforced. All times are the target's own
clock. Without the reference servers (tools/reference_servers.py) only ours is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.ports import free_port  # noqa: E402

HERE = Path(__file__).parent
SERVERS = Path(os.environ.get("RESILIENCE_REFERENCE_SERVERS", ROOT / ".cache/reference-servers"))
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ROUND_S = 30.0
GOAL_MS = 500
EXPR = "max by (model_name) (vllm:num_requests_waiting) > 10"
POLICY = f"""
apiVersion: resilience/v1
kind: Policy
metadata: {{name: queue}}
spec:
  interval: 1s
  trigger: {{expr: '{EXPR}', on_no_data: hold}}
  actions: [{{type: throttle, tier: best-effort, max_concurrency: 4}}]
"""
STAGES = (
    ("breach -> visible", "breach", "visible"), ("visible -> decided", "visible", "asked"),
    ("decided -> enforced", "asked", "enforced"), ("visible -> enforced", "visible", "enforced"),
    ("breach -> enforced", "breach", "enforced"),
)


def _static(port: int) -> str:
    return f"{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}"


class Bench:
    """The target, what watches it, and the events that it tells."""

    def __init__(self, stack: ExitStack, home: Path) -> None:
        self.stack, self.home = stack, home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        (home / "token").write_text("t" * 32)
        self.events: queue.Queue[Any] = queue.Queue()
        target = self.run([sys.executable, HERE / "target.py", self.port, home / "token"],
                          stdout=subprocess.PIPE)
        threading.Thread(target=self._read, args=(target.stdout,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            self.events.put(json.loads(line))

    def run(self, command: Sequence[Any], **more: Any) -> subprocess.Popen[bytes]:
        log = self.stack.enter_context((self.home / f"{Path(command[0]).name}.log").open("ab"))
        more.setdefault("stdout", log)
        process = subprocess.Popen([str(c) for c in command], stderr=log, **more)
        self.stack.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    def start_engine(self) -> None:
        (self.home / "queue.yaml").write_text(POLICY)
        self.run([sys.executable, ROOT / "cli.py", "serve", self.home / "queue.yaml", "--attach",
                  self.url, "--token-file", self.home / "token", "--state", self.home / "state",
                  "--wait", "30s", "--allow-missing-metrics"])

    def start_chain(self) -> bool:
        """Start Prometheus and Alertmanager; return whether they are there."""
        prometheus, manager = (SERVERS / "bin" / n for n in ("prometheus",
                                                             "prometheus-alertmanager"))
        if not prometheus.is_file() or not manager.is_file():
            return False
        ports = free_port(), free_port()
        (self.home / "am.yml").write_text(
            "route: {receiver: hook, group_wait: 0s, group_interval: 1s}\n"
            f"receivers: [{{name: hook, webhook_configs: [{{url: '{self.url}/webhook'}}]}}]\n")
        (self.home / "rules.yml").write_text(
            f"groups: [{{name: g, interval: 1s, rules: [{{alert: Queue, expr: '{EXPR}'}}]}}]\n")
        (self.home / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{self.home / 'rules.yml'}']\n"
            f"alerting: {{alertmanagers: [{_static(ports[0])}]}}\n"
            f"scrape_configs: [{{job_name: t, {_static(self.port)[1:]}]\n")
        self.run([manager, f"--config.file={self.home / 'am.yml'}",
                  f"--storage.path={self.home}/am",
                  f"--web.listen-address=127.0.0.1:{ports[0]}", "--cluster.listen-address="])
        self.run([prometheus, f"--config.file={self.home / 'prometheus.yml'}",
                  f"--storage.tsdb.path={self.home}/tsdb",
                  f"--web.listen-address=127.0.0.1:{ports[1]}"])
        return True

    def set(self, value: int) -> None:
        ends_s = time.monotonic() + ROUND_S
        while True:
            try:
                request = urllib.request.Request(f"{self.url}/set", str(value).encode())
                DIRECT.open(request, timeout=5)
                return
            except OSError:
                if time.monotonic() > ends_s:
                    raise
                time.sleep(0.1)

    def until(self, done: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Collect the first time of each event until `done`."""
        found: dict[str, float] = {}
        ends_s = time.monotonic() + ROUND_S
        while not done(found):
            left = ends_s - time.monotonic()
            try:
                event = self.events.get(timeout=max(0.01, left))
            except queue.Empty:
                raise SystemExit(f"bench: no answer in {ROUND_S:g} s, seen {found}") from None
            name = event["event"]
            if name == "visible":
                name = "visible" if event["by"] == "engine" else "visible_chain"
            if name == "webhook":
                name = f"webhook_{event['status']}"
            found.setdefault(name, event["at"])
        return found


def measure(rounds: int, starts: int) -> tuple[list[dict[str, float]], bool]:
    """Start everything anew several times: Prometheus draws its moments within the second then."""
    found: list[dict[str, float]] = []
    for _ in range(starts):
        some, chain = measure_one(max(1, rounds // starts))
        found += some
    return found, chain


def measure_one(rounds: int) -> tuple[list[dict[str, float]], bool]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp")))
        bench = Bench(stack, home)
        bench.set(0)
        chain = bench.start_chain()
        bench.start_engine()
        found = [one_round(bench, chain) for _ in range(rounds + 1)]
    return found[1:], chain                       # the first warms connections and caches


def one_round(bench: Bench, chain: bool) -> dict[str, float]:
    time.sleep(random.random())
    bench.set(20)
    seen = bench.until(lambda f: "enforced" in f and (not chain or "webhook_firing" in f))
    bench.set(0)
    bench.until(lambda f: "undone" in f and (not chain or "webhook_resolved" in f))
    return seen


def table(rounds: Sequence[dict[str, float]], chain: bool) -> list[tuple[str, float, float, float]]:
    """Return (stage, p50, p99, max) in ms."""
    stages = [*STAGES, *((("chain: breach -> visible", "breach", "visible_chain"),
                          ("chain: visible -> webhook", "visible_chain", "webhook_firing"),
                          ("chain: breach -> webhook", "breach", "webhook_firing"))
                         if chain else ())]
    return [(name, *_quantiles([(r[to] - r[since]) * 1000 for r in rounds]))
            for name, since, to in stages]


def _quantiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[round(last * 0.99)], ordered[last]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rounds, chain = measure(given.rounds, max(1, given.starts))
    rows = table(rounds, chain)
    if given.json:
        print(json.dumps({"rounds": len(rounds), "stages": [
            {"stage": name, "p50_ms": p50, "p99_ms": p99, "max_ms": most}
            for name, p50, p99, most in rows]}))
    else:
        print(f"{len(rounds)} rounds, ms{'':<14}{'p50':>8}{'p99':>8}{'max':>8}")
        for name, p50, p99, most in rows:
            print(f"{name:<26}{p50:8.0f}{p99:8.0f}{most:8.0f}")
    p99 = next(row[2] for row in rows if row[0] == "visible -> enforced")
    return 0 if p99 < GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
