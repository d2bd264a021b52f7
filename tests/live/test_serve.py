"""The whole product on a real vLLM: `serve` as users run it, its death, return and recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
READY_S = 300.0
LEASE_S = 8
SLOW_ANSWER_S = 10
POLICY = f"""
apiVersion: resilience/v1
kind: Policy
metadata: {{name: busy, annotations: {{runbook_url: "https://example.org/busy"}}}}
spec:
  interval: 1s
  trigger:
    expr: sum by (model_name) (vllm:num_requests_running) > 2
    on_no_data: hold
    resolve: {{expr: sum by (model_name) (vllm:num_requests_running) < 1}}
  actions:
    - {{type: throttle, tier: best-effort, max_concurrency: 1, lease: {LEASE_S}s}}
    - {{type: reset_prefix_cache}}
"""


def resilience(*args: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *map(str, args)], capture_output=True, text=True,
        timeout=120, check=False, **more,
    )


class EngineProcess:
    """One `resilience serve -o json`, read line by line."""

    def __init__(self, args: list[str | Path], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "cli.py"), "serve", *map(str, args), "-o", "json"]
            if "--" not in args else
            [sys.executable, str(ROOT / "cli.py"), "serve", "-o", "json", *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        self.seen: list[Any] = []
        self.told: list[Any] = []

    def wait(self, fits: Callable[[Any], bool]) -> Any:
        """Read events until one fits; the engine's end is a failure."""
        for event in self.seen:
            if fits(event):
                return event
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.seen.append(event)
            if fits(event):
                return event
        raise AssertionError(f"the engine ended: {self.process.stderr.read()}")

    def ready(self) -> Any:
        return self.wait(lambda e: e["event"] == "ready")

    def decided(self, to: str) -> Any:
        found = self.wait(
            lambda e: e["event"] == "decision" and e["decision"]["to"] == to
            and e not in self.told
        )
        self.told.append(found)
        return found["decision"]

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(90)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return self.process.returncode


@dataclass
class Live:
    """A server that `serve` started and that outlives its engines."""

    state: Path
    rules: Path
    url: str
    server_pid: int
    environment: dict[str, str]

    @property
    def token(self) -> str:
        return (self.state / "core.token").read_text().strip()

    def core(self, path: str, token: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.get(f"{self.url}/resilience/v1/{path}", headers=headers, trust_env=False)

    def effective(self) -> Any:
        return self.core("actual").json()["effective"]

    def attach(self, *args: str | Path) -> EngineProcess:
        return EngineProcess(
            [self.rules, "--state", self.state, "--attach", self.url, "--token-file",
             self.state / "core.token", *args], self.environment,
        )

    def complete(self, tokens: int) -> httpx.Response:
        body = {"model": "base", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60, trust_env=False)


class Load:
    """Streams that keep the server busy until they are ended, opened past the gate's limit."""

    def __init__(self, url: str, streams: int = 4) -> None:
        self._client = httpx.Client(timeout=120, trust_env=False)
        self._open = [self._begin(url) for _ in range(streams)]

    def _begin(self, url: str) -> httpx.Response:
        body = {"model": "base", "prompt": "x", "max_tokens": 4000, "ignore_eos": True,
                "stream": True}
        request = self._client.build_request(
            "POST", f"{url}/v1/completions", json=body, headers={"x-slo-tier": "core"}
        )
        return self._client.send(request, stream=True)

    def end(self) -> None:
        for response in self._open:
            response.close()
        self._client.close()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def first_run(tiny_model: Any, home: Path) -> Iterator[dict[str, Any]]:
    """One life of an engine that starts the server: overload, throttle, relief, ordered end."""
    import socket

    rules, state, recording = home / "rules", home / "state", home / "run.parquet"
    rules.mkdir()
    (rules / "busy.yaml").write_text(POLICY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    engine = EngineProcess(
        [rules, "--state", state, "--record", recording, "--listen", "127.0.0.1:0",
         "--keep-server", "--", *tiny_model.arguments(port)], tiny_model.environment,
    )
    ready = engine.ready()
    live = Live(state, rules, ready["url"], ready["server_pid"], tiny_model.environment)
    load = Load(live.url)
    fired = engine.decided("firing")
    refused = _refused(live)
    claims = resilience("get", "claims", "--state", state, "-o", "json")
    metrics = httpx.get(f"http://{ready['listen']}/metrics", trust_env=False).text
    is_ready = httpx.get(f"http://{ready['listen']}/-/ready", trust_env=False).status_code
    load.end()
    resolved = engine.decided("inactive")
    effective = live.effective()
    code = engine.end(signal.SIGTERM)
    yield {
        "live": live, "fired": fired, "refused": refused, "claims": claims, "metrics": metrics,
        "ready": is_ready, "resolved": resolved, "effective": effective, "code": code,
        "recording": recording, "first": ready,
    }
    with suppress(ProcessLookupError):
        os.killpg(live.server_pid, signal.SIGTERM)
    _gone(live.server_pid)


def _refused(live: Live) -> httpx.Response:
    """Return the first refusal of a best-effort request; one in flight is still allowed."""
    with httpx.Client(timeout=60, trust_env=False) as client:
        body = {"model": "base", "prompt": "x", "max_tokens": 3000, "ignore_eos": True,
                "stream": True}
        with client.stream("POST", f"{live.url}/v1/completions", json=body):
            return live.complete(1)


def _gone(pid: int) -> None:
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def live(first_run: dict[str, Any]) -> Live:
    server: Live = first_run["live"]
    return server


def test_overload_is_throttled_in_the_server_and_undone(first_run: dict[str, Any]) -> None:
    refused = first_run["refused"]
    assert refused.status_code == 429
    assert refused.headers["x-resilience-policy"] == "busy"
    (claim,) = json.loads(first_run["claims"].stdout)["claims"]
    assert (claim["effective"], claim["rules"]) == (1, True)
    assert first_run["resolved"]["claims_after"] == []
    assert first_run["effective"] == {}


def test_the_engine_shows_its_health_and_metrics(first_run: dict[str, Any]) -> None:
    assert first_run["ready"] == 200
    line = 'resilience_claim_active{knob="throttle.max_concurrency",policy="busy"} 1.0'
    assert line in first_run["metrics"].splitlines()


def test_an_ordered_end_leaves_the_kept_server_at_its_baseline(first_run: dict[str, Any]) -> None:
    assert first_run["code"] == 0
    assert first_run["live"].effective() == {}
    assert not (first_run["live"].state / "engine.sock").exists()


def test_a_dry_run_in_a_fresh_process_decides_the_same_byte_for_byte(
    first_run: dict[str, Any]
) -> None:
    live = first_run["live"]
    done = resilience(
        "apply", live.rules, "--dry-run", "--recording", first_run["recording"], "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    *decisions, summary = done.stdout.splitlines()
    assert decisions == (live.state / "decisions.jsonl").read_text().splitlines()
    assert json.loads(summary)["summary"]["differ"] == 0
    assert len(decisions) >= 2


def test_one_sample_moved_below_the_threshold_decides_otherwise(
    first_run: dict[str, Any], home: Path
) -> None:
    from resilience.sources.recording import read, write

    recording = read(first_run["recording"])
    for group in recording.store.groups():
        for labels, values in zip(group.labels, group.values, strict=True):
            if dict(labels)["__name__"] == "vllm:num_requests_running":
                values[next(i for i, v in enumerate(values) if v > 2)] = 0
    moved = home / "moved.parquet"
    write(moved, recording.store, recording.events, recording.meta)
    done = resilience(
        "apply", first_run["live"].rules, "--dry-run", "--recording", moved, "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["differ"] >= 1


def test_a_killed_engine_leaves_the_core_at_its_baseline_within_the_lease(
    live: Live, eventually: Callable[..., None]
) -> None:
    engine = live.attach()
    engine.ready()
    load = Load(live.url)
    try:
        engine.decided("firing")
        eventually(lambda: "throttle.max_concurrency" in live.effective())
        engine.end(signal.SIGKILL)
        scopes = live.effective()["throttle.max_concurrency"].values()
        # The server's own word for what is left: an answer may take seconds on a starved machine.
        assert all(0 < claim["remaining_ms"] <= LEASE_S * 1_000 for claim in scopes)
        eventually(lambda: live.effective() == {}, LEASE_S + SLOW_ANSWER_S)
    finally:
        load.end()


def test_the_next_engine_forgets_no_claim_and_repeats_no_impulse(
    live: Live, eventually: Callable[..., None]
) -> None:
    before = _firings(live)
    load = Load(live.url)
    try:
        first = live.attach()
        epoch = live.core("actual").json()["epoch"]
        first.ready()
        eventually(lambda: "throttle.max_concurrency" in live.effective())
        first.end(signal.SIGKILL)
        impulses = _impulses(live)
        second = live.attach()
        second.ready()
        eventually(lambda: live.core("actual").json()["epoch"] > epoch + 1)
        eventually(lambda: "throttle.max_concurrency" in live.effective())
        assert _impulses(live) == impulses
        older = {"version": 1, "epoch": epoch, "generation": 99, "claims": []}
        answer = httpx.put(
            f"{live.url}/resilience/v1/desired", json=older, trust_env=False,
            headers={"authorization": f"Bearer {live.token}"},
        )
        assert answer.status_code == 409
    finally:
        load.end()
    second.decided("inactive")
    assert live.effective() == {}
    assert second.end(signal.SIGINT) == 0
    assert _firings(live) <= before + 1


def _rows(live: Live, kind: str) -> dict[str, Any]:
    from resilience.app.journal import SqliteJournal

    journal = SqliteJournal(live.state / "journal.db")
    try:
        return dict(journal.load(kind))
    finally:
        journal.close()


def _impulses(live: Live) -> dict[str, str]:
    return {key: row["state"] for key, row in _rows(live, "impulse").items()}


def _firings(live: Live) -> int:
    return sum(d["to"] == "firing" for d in _rows(live, "decision").values())


def test_a_wrong_token_is_refused_in_one_line(live: Live, home: Path) -> None:
    (home / "wrong").write_text("w" * 32)
    done = resilience(
        "serve", live.rules, "--state", home / "other", "--attach", live.url, "--token-file",
        home / "wrong",
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "token" in done.stderr
    assert live.core("actual", "w" * 32).status_code == 401


def test_a_second_engine_on_the_same_state_is_refused_and_release_stops_the_first_until_resumed(
    live: Live, eventually: Callable[..., None]
) -> None:
    engine = live.attach()
    engine.ready()
    second = resilience("serve", live.rules, "--state", live.state, "--attach", live.url)
    assert second.returncode == 2
    assert "another engine" in second.stderr
    released = resilience(
        "release", "--attach", live.url, "--state", live.state, "--reason", "3 am"
    )
    assert released.returncode == 0, released.stderr
    engine.wait(lambda e: e["event"] == "log" and "operator released the core" in e["text"])
    status = json.loads(
        resilience("get", "status", "--state", live.state, "-o", "json").stdout
    )
    assert status["ready"] is False
    assert status["bus"]["released"]["reason"] == "3 am"
    load = Load(live.url)
    try:
        engine.decided("firing")
        assert live.effective() == {}
        resumed = resilience("resume", "--attach", live.url, "--state", live.state)
        assert resumed.returncode == 0, resumed.stderr
        eventually(lambda: "throttle.max_concurrency" in live.effective())
    finally:
        load.end()
    engine.decided("inactive")
    assert engine.end(signal.SIGTERM) == 0


def test_a_lever_that_the_server_lacks_refuses_the_start(live: Live, home: Path) -> None:
    rules = home / "lacking"
    rules.mkdir()
    text = POLICY.replace("vllm:num_requests_running", "vllm:num_requests_swimming")
    (rules / "p.yaml").write_text(text)
    done = resilience("serve", rules, "--state", home / "third", "--attach", live.url,
                      "--token-file", live.state / "core.token")
    assert done.returncode == 3
    assert "vllm:num_requests_swimming" in done.stderr
    assert live.effective() == {}
