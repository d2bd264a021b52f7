"""What the plug-in costs while no lever is claimed: `python bench/core/idle.py [--seconds 20]`.

Bare vLLM and one with the gate, the endpoint, the scheduler and the watch, the same load on each
in turn: tokens a second, and CPU time of all its processes per token. Beside it the time of one
step of the scheduler alone, vLLM's against ours, without a model. Interleaved runs, medians.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from servers import (  # noqa: E402
    ROOT,
    Clients,
    bare,
    closed_loop,
    cpu_s,
    end_with_sigterm,
    generated,
    protected,
)

SEATS, PORT = 16, 18_471
LOAD = [Clients(8, 16, stream=True, prompt="Tell me about the sea.")]
WARM_S = 5.0
STEP_ROUNDS = 5
STEPS = 1_500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-only", action="store_true", help="leave the servers out")
    options = parser.parse_args()
    end_with_sigterm()
    if not options.steps_only:
        servers(options.rounds, options.seconds)
    steps()
    return 0


def servers(rounds: int, seconds: float) -> None:
    rows: dict[str, list[tuple[float, float]]] = {"bare vLLM": [], "with the plug-in": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = bare(PORT, SEATS, folder)
        try:
            compare(rows, plain.pid, rounds, seconds, folder / "state")
        finally:
            os.killpg(plain.pid, signal.SIGKILL)
            plain.wait()
    print("| server | tokens/s | CPU ms per token | runs |")
    print("|---|---|---|---|")
    for label, found in rows.items():
        rate, cost = (statistics.median(column) for column in zip(*found, strict=True))
        runs = ", ".join(f"{c:.2f}" for _, c in found)
        print(f"| {label} | {rate:.0f} | {cost:.2f} | {runs} |")


def compare(
    rows: dict[str, list[tuple[float, float]]], plain: int, rounds: int, seconds: float,
    state: Path,
) -> None:
    """Start ours beside the bare server `plain` and load them in turn."""
    ours = protected(PORT + 1, SEATS, state)
    try:
        for _ in range(rounds):
            rows["bare vLLM"].append(load(PORT, plain, seconds))
            rows["with the plug-in"].append(load(PORT + 1, ours.pgid, seconds))
    finally:
        ours.stop(20.0)


def load(port: int, group: int, seconds: float) -> tuple[float, float]:
    """Return (tokens a second, CPU milliseconds of the server per token)."""
    url = f"http://127.0.0.1:{port}"
    asyncio.run(closed_loop(url, LOAD, WARM_S))
    before, spent = generated(url), cpu_s(group)
    asyncio.run(closed_loop(url, LOAD, seconds))
    tokens = generated(url) - before
    return tokens / seconds, (cpu_s(group) - spent) * 1000 / max(1.0, tokens)


def steps() -> None:
    """Time the scheduler alone: eight sequences that decode, process CPU time of `schedule()`.

    vLLM's and ours take one step each in turn, so that what disturbs one disturbs the other.
    """
    rig = scheduler_rig()
    with tempfile.TemporaryDirectory() as folder:
        model = rig.write_model(Path(folder))
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(STEP_ROUNDS):
            rigs = {ours: begun(rig.Rig(model, asynchronous=False, ours=ours)) for ours in times}
            for number in range(STEPS):
                for ours in ((False, True), (True, False))[number % 2]:
                    times[ours].append(step_us(rigs[ours]))
        hooks = hooks_us(rig.Rig(model, asynchronous=False))
    bare_us, ours_us = statistics.median(times[False]), statistics.median(times[True])
    print(f"\nscheduler step: vLLM's {bare_us:.1f} us, ours idle {ours_us:.1f} us "
          f"(medians of {STEP_ROUNDS * STEPS} steps in turn); the hooks alone take {hooks:.2f} us")


def begun(rig: Any) -> Any:
    """Return a rig with eight sequences in it."""
    for index in range(8):
        rig.add(f"r{index}", 20, 2_000, salt=100 * index)
    return rig


def step_us(rig: Any) -> float:
    """Return the CPU microseconds of one `schedule()`."""
    since_ns = time.process_time_ns()
    output = rig.scheduler.schedule()
    spent_ns = time.process_time_ns() - since_ns
    rig.steps.append((output, rig._model(output)))
    rig._finish_one()
    return spent_ns / 1000


def hooks_us(rig: Any) -> float:
    """Return the CPU microseconds of what the plug-in adds to one step."""
    begun(rig).step()
    output = rig.scheduler.schedule()
    since_ns = time.process_time_ns()
    for _ in range(STEPS * 10):
        rig.levers.before_step()
        rig.levers.after_step(output)
    return (time.process_time_ns() - since_ns) / STEPS / 10 / 1000


def scheduler_rig() -> Any:
    path = ROOT / "tests" / "unit" / "cores" / "scheduler_rig.py"
    spec = importlib.util.spec_from_file_location("scheduler_rig", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
