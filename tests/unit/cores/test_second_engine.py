"""A second engine of the server: real small processes, started, judged, ended and never left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cores.cpu import fast_dtype, is_vllm_for_cpus
from resilience.cores.health import Vitals
from resilience.cores.memory import Free
from resilience.cores.process import ServerProcess, spawn
from resilience.cores.second_engine import (
    SecondEngine,
    arguments,
    is_healthy,
    needed_bytes,
    start_process,
)
from resilience.cores.second_engines import SecondEngines
from resilience.cores.vllm import launch
from resilience.errors import UsageError
from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.model import EngineConfig, Rung, SecondEngineSettings

GIB = 1 << 30
RUNG = Rung("second", "engine", model="m", context=256, engine=SecondEngineSettings(start="ahead"))
SERVES = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
"""
HANGS = "import time; time.sleep(600)"
DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(f"{os.getpid()} ")
time.sleep(600)
"""
FAILS = "raise ValueError('no such weights')"


@pytest.fixture
def started() -> Iterator[list[ServerProcess]]:
    processes: list[ServerProcess] = []
    yield processes
    for process in processes:
        process.stop(20.0)


@pytest.fixture
def engine(tmp_path: Path, started: list[ServerProcess]) -> Callable[..., SecondEngine]:
    """Return a function that makes the engine of `rung` as a process that runs `program`."""

    def make(program: str, rung: Rung = RUNG, free: int = 8 * GIB) -> SecondEngine:
        def launch(_rung: Rung, folder: Path) -> ServerProcess:
            folder.mkdir(exist_ok=True)
            port = folder / "port"
            port.unlink(missing_ok=True)
            command = [sys.executable, "-c", program, str(port)]
            process = spawn(command, "", "token", folder, dict(os.environ), owned=True)
            started.append(process)
            if program is SERVES:
                wait(port.exists)
                wait(lambda: port.read_text() != "")
                process.url = f"http://127.0.0.1:{port.read_text()}"
            return process

        return SecondEngine(rung, tmp_path / "e", launch=launch, healthy=healthy,
                            memory=lambda: Free(free, free))

    return make


async def healthy(url: str) -> bool:
    """Ask as the product does, and again where a busy machine kept the page from its answer."""
    for _ in range(10 if url else 0):
        if await is_healthy(url):
            return True
    return False


def wait(holds: Callable[[], object], within_s: float = 60.0) -> None:
    ends_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def step(engine: SecondEngine, *times: int, claimed: bool = False) -> str:
    """Let it do the next thing at each of these times, in ms; returns its state."""
    for now_ms in times:
        asyncio.run(engine.step(now_ms, claimed))
    return engine.state


def ended(process: ServerProcess) -> None:
    wait(lambda: process.exit_code is not None)


def test_it_asks_for_no_key_that_its_server_has_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, str] = {}
    monkeypatch.setattr(launch, "start", lambda *_, env, **__: seen.update(env))
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    start_process(RUNG, tmp_path)
    assert "VLLM_API_KEY" not in seen and seen["VLLM_LOGGING_LEVEL"] == "ERROR"


def test_one_ahead_is_started_and_answers(engine: Any, started: Any) -> None:
    mine = engine(SERVES)
    assert mine.url is None and step(mine, 0) == "starting"
    assert step(mine, 1) == "ready" and mine.url == started[0].url
    assert mine.to_json() == {"state": "ready", "reason": "", "pid": started[0].pid}


def test_one_that_is_killed_is_said_to_have_failed_and_starts_again_later(
    engine: Any, started: Any
) -> None:
    mine = engine(SERVES)
    assert step(mine, 0, 1) == "ready"
    os.kill(child_of(started[0].pid), signal.SIGKILL)
    ended(started[0])
    assert mine.url is None                     # at once, before anybody has looked
    assert step(mine, 2) == "failed" and mine.reason == "it ended with signal SIGKILL"
    assert step(mine, 10_001) == "failed" and len(started) == 1
    assert step(mine, 10_002) == "starting" and step(mine, 10_003) == "ready"


def test_it_is_said_to_have_failed_before_what_is_left_of_it_is_ended(
    engine: Any, started: Any
) -> None:
    """That may take 20 s, and it starts again 10 s after the failure."""
    mine = engine(SERVES)
    seen: list[str] = []
    assert step(mine, 0, 1) == "ready"
    real = started[0].stop

    def stop(timeout_s: float) -> None:
        seen.append(mine.state)
        real(timeout_s)

    started[0].stop = stop
    os.kill(child_of(started[0].pid), signal.SIGKILL)
    ended(started[0])
    assert step(mine, 2) == "failed" and seen == ["failed"]


def child_of(pid: int) -> int:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    wait(lambda: path.read_text().split())
    return int(path.read_text().split()[0])


def test_one_that_never_serves_is_ended_in_time_and_tried_less_and_less(
    engine: Any, started: Any
) -> None:
    mine = engine(HANGS)
    assert step(mine, 0, 300_000) == "starting"
    assert step(mine, 300_001) == "failed" and mine.reason.startswith("it did not serve within 300")
    assert started[0].exit_code is not None
    assert step(mine, 310_001, 610_002) == "failed"
    assert step(mine, 630_001) == "failed" and step(mine, 630_002) == "starting"


def test_one_that_ends_at_once_says_why(engine: Any, started: Any) -> None:
    mine = engine(FAILS)
    step(mine, 0)
    ended(started[0])
    assert step(mine, 1) == "failed"
    assert mine.reason == "it ended with exit code 1: ValueError: no such weights"


def test_one_that_cannot_even_be_started_says_why(tmp_path: Path) -> None:
    def launch(_rung: Rung, _folder: Path) -> ServerProcess:
        raise UsageError("model path `m` does not exist")

    mine = SecondEngine(RUNG, tmp_path, launch=launch, memory=lambda: None)
    assert step(mine, 0) == "failed" and mine.reason == "model path `m` does not exist"


def test_a_model_whose_files_cannot_be_read_is_a_failure_like_any(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    mine = SecondEngine(replace(RUNG, model=str(tmp_path)), tmp_path, memory=lambda: None)
    assert step(mine, 0, 1) == "failed" and "No such file" in mine.reason


def test_memory_that_is_not_free_keeps_it_from_starting(engine: Any, started: Any) -> None:
    mine = engine(SERVES, free=GIB)
    assert step(mine, 0) == "failed" and started == []
    assert mine.reason.startswith("it needs 1792 MiB and 972 MiB are free")
    small = replace(RUNG, engine=SecondEngineSettings(start="ahead", memory_mebibytes=900))
    assert step(engine(SERVES, small, GIB), 0) == "starting"


def test_on_demand_it_lives_from_the_first_claim_until_a_while_after_the_last(
    engine: Any, started: Any
) -> None:
    mine = engine(SERVES, replace(RUNG, engine=SecondEngineSettings(stop_after_ms=1_000)))
    assert step(mine, 0, 1) == "stopped" and started == []
    assert step(mine, 2, 3, claimed=True) == "ready"
    assert step(mine, 1_003) == "ready"
    with mine.using():
        assert step(mine, 5_000) == "ready"     # a request is still under way
    assert step(mine, 6_001) == "stopped"
    assert started[0].exit_code is not None and mine.url is None
    assert step(mine, 9_000, claimed=True) == "starting"


def test_one_that_is_not_well_is_passed_over_and_at_last_replaced(
    engine: Any, started: Any
) -> None:
    mine = engine(SERVES)
    assert step(mine, 0, 1) == "ready"
    url, started[0].url = started[0].url, ""
    assert step(mine, 2) == "unwell" and mine.url is None
    started[0].url = url
    assert step(mine, 3) == "ready"
    started[0].url = ""
    assert step(mine, 4, 30_003) == "unwell"
    assert step(mine, 30_004) == "failed" and started[0].exit_code is not None


def test_nothing_is_left_of_one_whose_keeper_is_killed(
    engine: Any, started: Any, tmp_path: Path
) -> None:
    """It does not listen to the kernel's word that its keeper has gone, and lives in a group of
    its own."""
    mine, said = engine(DEAF), tmp_path / "e" / "port"
    step(mine, 0)
    wait(lambda: said.exists() and said.read_text().endswith(" "))
    inner = int(said.read_text())
    os.kill(started[0].pid, signal.SIGKILL)
    ended(started[0])
    assert lives(inner)
    assert step(mine, 1_000) == "failed" and mine.reason == "it ended with signal SIGKILL"
    wait(lambda: not lives(inner))


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    """The owner starts a command with a child of its own, and both end with it."""
    program = f"""
import os, sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from resilience.cores.process import spawn
inner = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {HANGS!r}]);" \
    " print(p.pid, flush=True); time.sleep(600)"
spawn([sys.executable, "-c", inner], "", "t", Path(sys.argv[1]), dict(os.environ), owned=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    log = tmp_path / "core.log"
    try:
        wait(lambda: log.exists() and log.read_text().endswith("\n"))
        inner = int(log.read_text())
        assert Path(f"/proc/{inner}").exists()
    finally:
        owner.kill()
        owner.wait()
    wait(lambda: not lives(inner))


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_its_arguments_and_the_memory_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1_000)
    rung = replace(RUNG, model=str(tmp_path))
    assert needed_bytes(rung) == 2_000 + (512 + 1_280) * 1024 * 1024
    dtype = fast_dtype("auto") if is_vllm_for_cpus() else "auto"
    assert arguments(rung, 7) == [
        str(tmp_path), "--host", "127.0.0.1", "--port", "7", "--served-model-name", "second",
        "--max-num-seqs", "4", "--dtype", dtype, "--max-model-len", "256", "--enforce-eager",
        "--kv-cache-memory-bytes", str(512 * 1024 * 1024),
    ]
    torch = replace(rung, engine=SecondEngineSettings(core="torch", seats=2))
    given = replace(rung, engine=SecondEngineSettings(dtype="bfloat16"))
    assert "bfloat16" in arguments(given, 7)
    assert arguments(torch, 7)[-4:] == ["--max-model-len", "256", "--kv-tokens", "512"]
    assert needed_bytes(torch) == 2_000 + 1_280 * 1024 * 1024


def test_the_engines_follow_the_ladder_and_the_health_page_names_them(
    engine: Any, tmp_path: Path, started: Any
) -> None:
    from prometheus_client import CollectorRegistry

    async def run() -> None:
        config = GateConfig.from_engine(EngineConfig(ladder=(RUNG,)))
        state, vitals = GateState(config, GateMetrics(CollectorRegistry())), Vitals(0)
        engines = SecondEngines(
            state, tmp_path, vitals, lambda rung, folder, memory: engine(SERVES, rung))
        running = asyncio.ensure_future(engines.run())
        while engines.url("second") is None:
            await asyncio.sleep(0.01)
        assert state.ladder.engine_skip(RUNG) is None
        state.configure(replace(config, ladder=(replace(RUNG, quality=0.5),)))
        engines.follow()
        assert engines.url("second") is not None        # its measured cost is no reason to restart
        mine = engines._engines["second"]
        with engines.using("second"):
            state.configure(replace(config, ladder=()))
            engines.follow()
            assert state.ladder.engine_skip(RUNG) == "not_running" and vitals.second == {}
            for _ in range(20):
                await asyncio.sleep(0)
            # It still answers somebody: nobody has begun to end it.
            assert mine.to_json()["pid"] == started[0].pid and started[0].exit_code is None
        while started[0].exit_code is None:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_two_that_start_at_once_do_not_count_on_the_same_memory(tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    held = threading.Event()

    def launch(_rung: Rung, _folder: Path) -> ServerProcess:
        held.wait()
        raise UsageError("enough")

    async def run() -> dict[str, Any]:
        rungs = tuple(replace(RUNG, name=name) for name in ("one", "two"))
        config = GateConfig.from_engine(EngineConfig(ladder=rungs))
        engines = SecondEngines(
            GateState(config, GateMetrics(CollectorRegistry())), tmp_path, Vitals(0),
            lambda rung, folder, memory: SecondEngine(rung, folder, launch=launch, memory=memory),
            lambda: Free(3 * GIB, 3 * GIB))
        running = asyncio.ensure_future(engines.run())
        while engines.states().get("two", {}).get("state") != "failed":
            await asyncio.sleep(0.01)
        seen = dict(engines.states())
        held.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return seen

    seen = asyncio.run(run())
    assert seen["one"]["state"] == "starting"
    assert seen["two"]["reason"].startswith("it needs 1792 MiB and 1126 MiB are free")


def test_a_failed_one_leaves_the_server_in_rotation_and_is_named() -> None:
    vitals = Vitals(0)
    vitals.second = {"second": ("failed", "it ended"), "other": ("ready", "")}
    assert vitals._complaints() == ["the engine of rung `second` is failed: it ended"]
