"""The whole product on a real vLLM: `serve` as users run it, its death, return and recording."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import serving as kit
from tools.ports import free_port

pytestmark = pytest.mark.live
resilience, EngineProcess, Load = kit.resilience, kit.EngineProcess, kit.Load
Live = Any
LEASE_S = 8
SLOW_ANSWER_S = 60
CLAIMED = 'resilience_claim_active{knob="throttle.max_concurrency",policy="busy"} 1.0'
POLICY = kit.busy_policy(kit.throttle(LEASE_S), "{type: reset_prefix_cache}")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def first_run(tiny_model: Any, home: Path) -> Iterator[dict[str, Any]]:
    """One life of an engine that starts the server: overload, throttle, relief, ordered end."""
    rules, state, recording = home / "rules", home / "state", home / "run.parquet"
    rules.mkdir()
    (rules / "busy.yaml").write_text(POLICY)
    engine = EngineProcess(
        [rules, "--state", state, "--record", recording, "--listen", "127.0.0.1:0",
         "--keep-server", "--", *tiny_model.arguments(free_port())], tiny_model.environment,
    )
    with ExitStack() as ends:                  # also where this fails, so that nothing stays behind
        ends.callback(engine.end, signal.SIGKILL)
        ready = engine.ready()
        ends.callback(_end_server, ready["server_pid"])
        live = kit.Live(state, rules, ready["url"], ready["server_pid"], tiny_model.environment)
        yield {**_overload_and_relief(engine, live, ready), "recording": recording, "first": ready}


def _overload_and_relief(engine: Any, live: Live, ready: Any) -> dict[str, Any]:
    load = Load(live.url)
    try:
        fired = engine.decided("firing")
        refused = kit.eventually(lambda: _refused(live))
        claim = kit.eventually(lambda: _enforced(live))
        kit.eventually(lambda: CLAIMED in _page(ready, "metrics").text.splitlines())
        kit.eventually(lambda: _page(ready, "-/ready").status_code == 200)
    finally:
        load.end()
    resolved = engine.decided("inactive")
    kit.eventually(lambda: live.effective() == {})
    code = engine.end(signal.SIGTERM)
    return {"live": live, "fired": fired, "refused": refused, "claim": claim,
            "resolved": resolved, "code": code}


def _end_server(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    _gone(pid)


def _refused(live: Live) -> Any:
    """Return the refusal of a best-effort request beside another, or None; one is still allowed."""
    with httpx.Client(timeout=120, trust_env=False) as client:
        body = {"model": "base", "prompt": "x", "max_tokens": 3000, "ignore_eos": True,
                "stream": True}
        with client.stream("POST", f"{live.url}/v1/completions", json=body):
            answer = live.complete(1)
    return None if answer.status_code == 200 else answer


def _enforced(live: Live) -> Any:
    """Return the one claim as `get claims` shows it, once the core enforces it."""
    shown = resilience("get", "claims", "--state", live.state, "-o", "json")
    assert shown.returncode == 0, shown.stderr
    (claim,) = json.loads(shown.stdout)["claims"]
    return claim if claim["effective"] is not None else None


def _page(ready: Any, path: str) -> httpx.Response:
    return httpx.get(f"http://{ready['listen']}/{path}", timeout=60, trust_env=False)


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
def live(first_run: dict[str, Any]) -> Iterator[Live]:
    """The server; an engine that a failed test leaves attached is none of the next test's."""
    server: Live = first_run["live"]
    yield server
    server.end_engines()


def test_overload_is_throttled_in_the_server_and_undone(first_run: dict[str, Any]) -> None:
    refused = first_run["refused"]
    assert refused.status_code == 429
    assert refused.headers["x-resilience-policy"] == "busy"
    assert (first_run["claim"]["effective"], first_run["claim"]["rules"]) == (1, True)
    assert first_run["resolved"]["claims_after"] == []


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
    seen_ms = max(i["sample_ms"] for i in first_run["fired"]["inputs"])
    for group in recording.store.groups():
        for labels, values in zip(group.labels, group.values, strict=True):
            if dict(labels)["__name__"] == "vllm:num_requests_running":
                (seen,) = (group.times == seen_ms).nonzero()[0]
                assert values[seen] > 2
                values[seen] = 0  # the one that the firing saw
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
        scopes = live.effective().get("throttle.max_concurrency", {}).values()
        # The server's own word for what is left: an answer may take seconds on a starved machine.
        assert all(0 <= claim["remaining_ms"] <= LEASE_S * 1_000 for claim in scopes)
        eventually(lambda: live.effective() == {}, LEASE_S + SLOW_ANSWER_S)
    finally:
        load.end()


def test_the_next_engine_forgets_no_claim_and_repeats_no_impulse(
    live: Live, eventually: Callable[..., None]
) -> None:
    before = _firings(live)
    load = Load(live.url)
    try:
        epoch = live.core("actual").json()["epoch"]     # before the first engine takes its own
        first = live.attach()
        first.ready()
        eventually(lambda: "throttle.max_concurrency" in live.effective() and _all_done(live))
        first.end(signal.SIGKILL)
        impulses = _impulses(live)
        second = live.attach()
        second.ready()
        eventually(lambda: live.core("actual").json()["epoch"] > epoch + 1)
        eventually(lambda: "throttle.max_concurrency" in live.effective())
        assert _impulses(live) == impulses
        older = {"version": 1, "epoch": epoch, "generation": 99, "claims": []}
        answer = httpx.put(
            f"{live.url}/resilience/v1/desired", json=older, timeout=60, trust_env=False,
            headers={"authorization": f"Bearer {live.token}"},
        )
        assert answer.status_code == 409
    finally:
        load.end()
    second.decided("inactive")
    eventually(lambda: live.effective() == {})
    assert second.end(signal.SIGINT) == 0
    assert _firings(live) <= before + 1


def _impulses(live: Live) -> dict[str, str]:
    return {key: row["state"] for key, row in kit.rows(live.state, "impulse").items()}


def _all_done(live: Live) -> bool:
    """Say whether each firing has given its impulse, and none is under way."""
    states = _impulses(live).values()
    return len(states) >= _firings(live) and "started" not in states


def _firings(live: Live) -> int:
    """Count the firings begun; back from `held`, without samples for a moment, is none."""
    found = kit.rows(live.state, "decision").values()
    return sum(d["to"] == "firing" and d["from"] != "held" for d in found)


def test_a_wrong_token_is_refused_in_one_line(live: Live, home: Path) -> None:
    (home / "wrong").write_text("w" * 32)
    done = resilience(
        "serve", live.rules, "--state", home / "other", "--attach", live.url, "--token-file",
        home / "wrong", "--wait", "60s",
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
    _do("release", "--attach", live.url, "--state", live.state, "--reason", "3 am")
    engine.wait(lambda e: e["event"] == "log" and "operator released the core" in e["text"])
    eventually(lambda: (_status(live)["bus"]["released"] or {}).get("reason") == "3 am")
    assert _status(live)["ready"] is False
    load = Load(live.url)
    try:
        engine.decided("firing")
        assert live.effective() == {}
        _do("resume", "--attach", live.url, "--state", live.state)
        eventually(lambda: "throttle.max_concurrency" in live.effective())
    finally:
        load.end()
    engine.decided("inactive")
    assert engine.end(signal.SIGTERM) == 0


def _do(*args: str | Path) -> None:
    """Give a command to the server, again when its own deadline of 5 s was too short: a repeat
    does no harm."""
    def done() -> bool:
        found = resilience(*args)
        assert found.returncode in (0, 1), found.stderr
        return found.returncode == 0

    kit.eventually(done)


def _status(live: Live) -> Any:
    return json.loads(resilience("get", "status", "--state", live.state, "-o", "json").stdout)


def test_a_lever_that_the_server_lacks_refuses_the_start(live: Live, home: Path) -> None:
    rules = home / "lacking"
    rules.mkdir()
    text = POLICY.replace("vllm:num_requests_running", "vllm:num_requests_swimming")
    (rules / "p.yaml").write_text(text)
    done = resilience("serve", rules, "--state", home / "third", "--attach", live.url,
                      "--token-file", live.state / "core.token", "--wait", "60s")
    assert done.returncode == 3
    assert "vllm:num_requests_swimming" in done.stderr
    assert live.effective() == {}
