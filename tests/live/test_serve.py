"""The whole product on a real vLLM: `serve` as users run it, its death, return and recording."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.live

kit = sys.modules["live_serving"]  # loaded by conftest.py
resilience, EngineProcess, Load = kit.resilience, kit.EngineProcess, kit.Load
Live = Any
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
    live = kit.Live(state, rules, ready["url"], ready["server_pid"], tiny_model.environment)
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


def _refused(live: Live) -> Any:
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
    assert done.returncode == 1, done.stderr      # decisions differ from the recorded ones
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
    eventually(lambda: live.effective() == {})
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
    """Count the firings begun; back from `held`, without samples for a moment, is none."""
    found = _rows(live, "decision").values()
    return sum(d["to"] == "firing" and d["from"] != "held" for d in found)


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
