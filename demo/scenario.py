"""The main job, step by step: overload vLLM alone, then under `rules/`; recover, replay.

vLLM alone comes first: what it can do there is the measure of the load for both.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.bare import BareServer
from demo.engine import COMMAND, CoreWatch, DemoError, EngineProcess, Moment
from demo.load import Arrival, Outcome, Shape, measure_capacity, plan, run_open, warm_up
from resilience.cores.cpu import fast_dtype
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
SERVED_NAME = "smollm2"
SEATS = 8
LOAD_S = 25.0
OVERLOAD = 3.0
CORE_SHARE = 0.2
CALIBRATE_S = 6.0
# A shipped breaker stays armed until 50 seconds have passed without a failed request.
UNDO_S = 240.0
DRY_RUN_S = 120.0
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
SHAPE = Shape(SERVED_NAME, output_tokens=32, prompt_words=30, patience_s=12.0)
_VERDICT = re.compile(r"(\d+) decisions, (\d+) differ")


@dataclass
class Result:
    """What the demo has found so far; `None` and empty where it did not get."""

    capacity_per_s: float = 0.0
    zero_ms: int = 0
    runs: dict[str, list[Outcome]] = field(default_factory=dict[str, list[Outcome]])
    decisions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    moments: list[Moment] = field(default_factory=list[Moment])
    enforced: frozenset[str] = frozenset()
    left_in_force: frozenset[str] = frozenset()
    replayed: int = 0
    differ: int | None = None

    def verdict(self) -> list[tuple[bool, str]]:
        """Return each promise of the demo with whether it was kept."""
        fired = {d["policy"] for d in self.decisions if d["to"] == "firing" and _acts(d)}
        active = _active(self.decisions)
        names = ", ".join(sorted(fired)) or "none"
        return [
            (bool(fired), f"a policy fired: {names}"),
            (bool(self.enforced), f"the core enforced it: {', '.join(sorted(self.enforced))}"),
            (bool(fired) and not self.left_in_force and not active,
             "everything was undone: no policy is active and the core is at its baseline"),
            (self.replayed > 0 and self.differ == 0,
             f"the dry run agrees: {self.replayed} decisions, {self.differ} differ"),
        ]


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a demo leaves its things: the recording, logs and state; and the rules it runs."""

    path: Path
    rules: Path = ROOT / "rules"

    @property
    def recording(self) -> Path:
        return self.path / "recording.parquet"

    @property
    def log(self) -> Path:
        return self.path / "engine.log"

    @property
    def bare_log(self) -> Path:
        return self.path / "bare.log"

    @property
    def state(self) -> Path:
        return self.path / "state"


def run(model: Path, folder: Folder, result: Result, say: Callable[[str], None]) -> None:
    """Fill `result`; raises DemoError where something does not work at all."""
    arrivals = _alone(model, folder, result, say)
    say(f"starting vLLM with the engine beside it (log: {folder.log})")
    serve = [str(folder.rules), "--state", str(folder.state), "--record", str(folder.recording),
             "--keep-server", "-o", "json", "--", *_vllm_arguments(model),
             "--host", "127.0.0.1", "--port", str(free_port())]
    engine = EngineProcess.start(serve, folder.log, VARIABLES)
    ready = engine.wait_ready(_every(10.0, lambda s: say(f"  … {s:.0f} s")))
    url = str(ready["url"])
    say(f"serving at {url} under {ready['policies']} policies, revision {ready['revision']}")
    asyncio.run(warm_up(url, SHAPE))
    token = Path(ready["token_file"]).read_text().strip()
    with CoreWatch(url, token) as core:
        _protected(url, arrivals, engine, core, result, say)
    engine.stop()
    result.decisions = engine.decisions()


def _alone(
    model: Path, folder: Folder, result: Result, say: Callable[[str], None]
) -> Sequence[Arrival]:
    """Measure vLLM alone, overload it, end it; return the arrivals for the other run."""
    say(f"starting vLLM alone on the CPU (log: {folder.bare_log})")
    with BareServer(_vllm_arguments(model), free_port(), folder.bare_log, VARIABLES) as server:
        server.wait_ready(_every(10.0, lambda s: say(f"  … {s:.0f} s")))
        result.capacity_per_s = _calibrate(server.url, say)
        arrivals = plan(OVERLOAD * result.capacity_per_s, LOAD_S, CORE_SHARE, 7, SHAPE)
        say(f"bare: {len(arrivals)} requests")
        result.runs["bare"] = _load(server.url, arrivals, say)
    return arrivals


def _vllm_arguments(model: Path) -> list[str]:
    return [
        str(model), "--served-model-name", SERVED_NAME, "--enforce-eager",
        "--max-model-len", "1024", "--max-num-seqs", str(SEATS),
        "--dtype", fast_dtype("auto"),
    ]


def _every(interval_s: float, show: Callable[[float], None]) -> Callable[[float], None]:
    """Return a progress function that shows at most once an interval."""
    next_s = interval_s

    def progress(since_s: float) -> None:
        nonlocal next_s
        if since_s >= next_s:
            next_s = since_s + interval_s
            show(since_s)

    return progress


def _calibrate(url: str, say: Callable[[str], None]) -> float:
    """Measure what the server can do, so that the overload is threefold on any machine."""
    capacity = asyncio.run(measure_capacity(url, SHAPE, SEATS, CALIBRATE_S))
    if not capacity:
        raise DemoError("the server answered no request while its capacity was measured")
    tokens = capacity * SHAPE.output_tokens
    say(f"capacity: {capacity:.2f} requests/s ({tokens:.0f} tokens/s); the load is "
        f"{OVERLOAD:g} times that for {LOAD_S:g} s")
    return capacity


def _load(url: str, arrivals: Sequence[Arrival], say: Callable[[str], None]) -> list[Outcome]:
    start_s = time.monotonic()
    show = _every(5.0, lambda s: say(f"  … {s:.0f} s: {done[0]} of {len(arrivals)} ended"))
    done = [0]

    def progress(ended: int, total: int) -> None:
        done[0] = ended
        show(time.monotonic() - start_s)

    return asyncio.run(run_open(url, SHAPE, arrivals, progress))


def _protected(
    url: str, arrivals: Sequence[Arrival], engine: EngineProcess, core: CoreWatch, result: Result,
    say: Callable[[str], None],
) -> None:
    say(f"protected: {len(arrivals)} requests")
    result.zero_ms = _now_ms()
    result.runs["protected"] = _load(url, arrivals, say)
    result.moments.append(Moment(result.zero_ms, "load", "starts"))
    end_ms = result.zero_ms + int(1000 * max(a.at_s for a in arrivals))
    result.moments.append(Moment(end_ms, "load", "ends"))
    say("the load is over; waiting until every action is undone")
    _wait_undone(url, engine, core, say)
    result.moments += core.moments
    result.enforced = frozenset(core.enforced)
    result.left_in_force = frozenset(core.in_force)


def _wait_undone(
    url: str, engine: EngineProcess, core: CoreWatch, say: Callable[[str], None]
) -> None:
    start_s = time.monotonic()
    show = _every(10.0, lambda s: say(f"  … {s:.0f} s: {_active(engine.decisions())}"))
    while time.monotonic() - start_s < UNDO_S:
        if engine.process.poll() is not None:
            raise DemoError("the engine ended during the run")
        if not _active(engine.decisions()) and not core.in_force:
            return
        show(time.monotonic() - start_s)
        time.sleep(0.5)


def _active(decisions: Iterable[Mapping[str, Any]]) -> str:
    """Name the policies that act, for people; empty when none does."""
    last = {(d["policy"], d["instance"]): d["to"] for d in decisions if _acts(d)}
    return ", ".join(sorted({f"{p} {to}" for (p, _), to in last.items() if to != "inactive"}))


def _acts(decision: Mapping[str, Any]) -> bool:
    """Say whether a policy in enforce decided; one in shadow holds nothing that could be undone."""
    return bool(decision["mode"] == "enforce")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def dry_run(folder: Folder, result: Result) -> list[str]:
    """Evaluate the rules over the recording alone, in a fresh process; returns its last lines."""
    command = [COMMAND, "apply", str(folder.rules), "--dry-run"]
    command += ["--recording", str(folder.recording)]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=DRY_RUN_S, check=False,
        stdin=subprocess.DEVNULL, cwd=folder.path,
    )
    lines = answer.stdout.splitlines()
    found = _VERDICT.fullmatch(lines[-1]) if lines else None
    if answer.returncode not in (0, 1) or found is None:  # 1: decisions differ
        raise DemoError(f"the dry run failed: {(answer.stderr or answer.stdout).strip()[-500:]}")
    result.replayed, result.differ = int(found[1]), int(found[2])
    return lines[-1:]
