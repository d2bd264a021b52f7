"""What the UDF sandbox costs: `python bench/udf/run.py [--calls 200] [--json]`.

Compile: text to code, with all checks. Ready: a call while a locked worker waits. None ready: the
fork is on the call's path. Refill: fork, lock and warm one worker. Paced: 100 calls, one each
10 ms. Times are of the engine's side, in milliseconds, all layers on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "engine"))

from resilience.model import EngineConfig, UdfCall  # noqa: E402
from resilience.sandbox.process import Zygote  # noqa: E402
from resilience.sandbox.program import load  # noqa: E402
from resilience.sandbox.runner import SandboxRunner, Settings  # noqa: E402

FILE = ROOT / "udfs" / "adaptive_throttle.py"
CONTEXT = {
    "policy": "kv-pressure", "labels": {"model_name": "m"}, "value": 0.95, "now": 1767225600.0,
    "params": None, "metrics": {"queue": 80, "kv": [0.7, 0.75, 0.8, 0.85]}, "claims": [],
    "previous": {"actions": [], "state": {"limit": 16}},
}
GOAL_READY_MS, GOAL_PACED_MS = 1.0, 2.0


def timed(action: Callable[[], object]) -> float:
    """Return how long `action` takes, in milliseconds."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def call_once(runner: SandboxRunner) -> None:
    """Run one call and insist that it works."""
    call = UdfCall("bench", "i", "0", "adaptive_throttle", 3_000, CONTEXT)
    outcome = runner.run([call], deadline_ms=5_000)[0]
    if outcome.outcome != "ok":
        raise SystemExit(f"{outcome.outcome}: {outcome.detail}")


def runner_with(spares: int) -> SandboxRunner:
    return SandboxRunner({"u.py": FILE.read_text()}, EngineConfig(), Settings(spares=spares))


def compile_ms(count: int) -> list[float]:
    text = FILE.read_text()
    return [timed(lambda: load("u.py", text)) for _ in range(count)]


def ready_ms(count: int) -> list[float]:
    """One call at a time, each when the spares are full again."""
    runner = runner_with(4)
    times: list[float] = []
    for _ in range(count):
        while runner.spares_ready() < 4:
            time.sleep(0.001)
        times.append(timed(lambda: call_once(runner)))
    runner.close()
    return times


def none_ready_ms(count: int) -> list[float]:
    runner = runner_with(0)
    times = [timed(lambda: call_once(runner)) for _ in range(count)]
    runner.close()
    return times


def refill_ms(count: int) -> list[float]:
    zygote = Zygote({"u.py": FILE.read_text()})
    times: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        worker = zygote.spawn()
        while not worker.ready():
            time.sleep(0.0001)
        times.append((time.perf_counter() - start) * 1000)
        worker.end()
    zygote.close()
    return times


def paced_ms(count: int) -> list[float]:
    """One call each 10 ms, whether or not the spares are full."""
    runner = runner_with(4)
    time.sleep(0.1)
    times: list[float] = []
    start = time.perf_counter()
    for index in range(count):
        time.sleep(max(0.0, start + index * 0.01 - time.perf_counter()))
        times.append(timed(lambda: call_once(runner)))
    runner.close()
    return times


def start_ms(count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        zygote = Zygote({"u.py": FILE.read_text()})
        times.append((time.perf_counter() - start) * 1000)
        zygote.close()
    return times


def main() -> None:
    """Measure and print; see the module's text."""
    parser = argparse.ArgumentParser(description="measure the UDF sandbox")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    count = arguments.calls
    measured = {
        "compile": compile_ms(count), "call, worker ready": ready_ms(count),
        "call, none ready": none_ready_ms(count), "refill of one worker": refill_ms(count),
        "call, 100 a second": paced_ms(100), "start of the zygote": start_ms(5),
    }
    table = {name: summary(times) for name, times in measured.items()}
    if arguments.json:
        print(json.dumps(table, indent=2))
        return
    print(f"{'':24}{'median ms':>12}{'p99 ms':>12}")
    for name, row in table.items():
        print(f"{name:24}{row['median_ms']:>12.2f}{row['p99_ms']:>12.2f}")
    ready, paced = (table[n]["median_ms"] for n in ("call, worker ready", "call, 100 a second"))
    for name, median, goal in (("worker ready", ready, GOAL_READY_MS),
                               ("100 a second", paced, GOAL_PACED_MS)):
        print(f"goal: {name}, median under {goal:g} ms: {'met' if median < goal else 'missed'}")


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_ms": round(statistics.median(ordered), 3), "p99_ms": round(p99, 3)}


if __name__ == "__main__":
    main()
