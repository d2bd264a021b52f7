"""The ladder on the request path: rung after rung until the first byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings, Json
from tests.unit.gate.failing_servers import config_of
from tests.unit.gate.ladder_rig import (
    CACHED,
    CHAT,
    ROUTE,
    SMALL,
    SORRY,
    TINY,
    ask,
    fallbacks,
    scripted,
)

MakeClaim = Callable[..., Json]


def test_the_first_rung_serves_and_says_so(laddered: Any) -> None:
    bench = laddered(SMALL, SORRY)
    answer = ask(bench)
    assert answer.json() == {"model": "s", "prompt": "hello"}
    assert {k: v for k, v in answer.headers.items() if k.startswith("x-resilience")} == {
        "x-resilience-model": "s", "x-resilience-policy": "burn",
        "x-resilience-reason": "slo_burn", "x-resilience-rung": "small",
    }
    assert fallbacks(bench, "policy") == 1
    assert bench.value("resilience_gate_rungs_total", rung="small", outcome="served") == 1
    headers, body = bench.seen[-1]
    assert (b"content-length", str(len(body)).encode()) in headers["headers"]


@pytest.mark.parametrize("broken", ["send", "counter"])
def test_an_answer_of_the_gate_that_has_begun_gets_no_second_one(
    laddered: Any, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    bench = laddered(SORRY)
    sent: list[str] = []

    async def receive() -> Any:
        body = b'{"model": "big", "prompt": "hello"}'
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if broken == "send" and len(sent) == 2:
            raise OSError("the client has left")

    def fails(*_: Any) -> None:
        raise RuntimeError("the registry is broken")

    if broken == "counter":
        monkeypatch.setattr(bench.state.metrics, "stood_in", fails)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
             "client": ("127.0.0.1", 1)}
    asyncio.run(bench.gate(scope, receive, send))
    assert sent == ["http.response.start", "http.response.body"] and bench.seen == []
    assert bench.value("resilience_gate_failed_open_total", stage="observe") == 1


def test_one_rung_can_be_named_and_other_names_are_served_models(laddered: Any) -> None:
    assert ask(laddered(SMALL, TINY, to="tiny")).json()["model"] == "t"
    assert ask(laddered(SMALL, TINY, to="huge")).json()["model"] == "huge"


def test_only_the_tier_of_the_route_goes_down(laddered: Any) -> None:
    bench = laddered(SMALL, tier="core")
    assert ask(bench).json()["model"] == "big"
    assert ask(bench, x_slo_tier="core").json()["model"] == "s"


def test_what_does_not_fit_skips_a_rung(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    long = {"model": "big", "prompt": "x" * 4_000, "max_tokens": 10}
    assert ask(bench, long).json()["model"] == "t"
    tools = {"model": "big", "messages": [], "tools": [{"type": "function"}]}
    assert ask(bench, tools, path=CHAT).json()["model"] == "t"
    assert ask(bench, {"model": "s", "prompt": ""}).json()["model"] == "t"
    for why in ("context", "tools", "same_model"):
        assert bench.value("resilience_gate_rungs_total", rung="small", outcome=why) == 1


def test_without_a_rung_that_fits_a_request_keeps_its_model(laddered: Any) -> None:
    bench = laddered(replace(SMALL, context=1), CACHED)
    answer = ask(bench)
    assert answer.json()["model"] == "big" and "x-resilience-model" not in answer.headers
    assert bench.value("resilience_gate_reroute_skipped_total", reason="no_rung") == 1
    asyncio.run(bench.ask(b"not json"))
    assert bench.value("resilience_gate_reroute_skipped_total", reason="not_json") == 1


def test_a_ladder_that_was_taken_away_changes_no_model(laddered: Any) -> None:
    bench = laddered()
    assert ask(bench).json()["model"] == "big"
    assert bench.value("resilience_gate_reroute_skipped_total", reason="no_rung") == 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "exception"), (500, "exception"), (504, "timeout"), ("late", "exception"),
     ("hang", "timeout")],
)
def test_a_rung_that_fails_before_its_first_byte_gives_way(
    laddered: Any, how: str | int, reason: str
) -> None:
    bench = laddered(replace(SMALL, timeout_ms=20), TINY)
    answer = ask(bench, gate=scripted(bench, s=how))
    assert (answer.status, answer.body) == (200, b"t")
    assert answer.headers["x-resilience-rung"] == "tiny"
    assert fallbacks(bench, reason) == 1 and fallbacks(bench, "policy") == 0
    assert bench.inside == 0
    again = ask(bench, gate=scripted(bench))
    assert again.body == b"t"  # a rung that failed rests
    bench.clock.now += 5_000
    assert ask(bench, gate=scripted(bench)).body == b"s"


@pytest.mark.parametrize(("others", "rests"), [(0, True), (1, False)])
def test_a_long_request_keeps_a_rung_from_nobody_else(
    laddered: Any, others: int, rests: bool
) -> None:
    """A rung that has answered others meanwhile is well, and does not rest after a time-out."""
    bench = laddered(replace(SMALL, timeout_ms=200), TINY)
    (rung, _) = bench.state.ladder.rungs

    async def scenario() -> None:
        asked = b'{"model": "big", "prompt": "hello"}'
        long = asyncio.ensure_future(bench.ask(asked, gate=scripted(bench, s="hang")))
        await asyncio.sleep(0.05)
        for _ in range(others):
            assert (await bench.ask(asked, gate=scripted(bench))).body == b"s"
        assert (await long).body == b"t"

    asyncio.run(scenario())
    assert bench.state.ladder.is_resting(rung, bench.clock()) is rests


def test_after_the_first_byte_there_is_no_other_rung(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    with pytest.raises(RuntimeError, match="in the middle"):
        ask(bench, gate=scripted(bench, s="break"))
    assert bench.value("resilience_gate_rungs_total", rung="tiny", outcome="served") == 0
    assert bench.inside == 0


def test_a_rungs_time_is_for_its_first_byte(laddered: Any) -> None:
    bench = laddered(replace(SMALL, timeout_ms=20), TINY)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.sleep(0.06)
        await send({"type": "http.response.body", "body": b"b"})

    answer = ask(bench, gate=bench.around(slow))
    assert (answer.status, answer.body) == (200, b"ab")
    assert answer.headers["x-resilience-rung"] == "small"


def test_the_last_rung_fails_as_the_server_does(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    assert ask(bench, gate=scripted(bench, s=500, t=503)).status == 503
    bench = laddered(SMALL)
    with pytest.raises(RuntimeError, match="no engine"):
        ask(bench, gate=scripted(bench, s="raise"))
    bench = laddered(replace(SMALL, timeout_ms=20))
    answer = ask(bench, gate=scripted(bench, s="hang"))
    assert answer.status == 504 and "no rung" in answer.json()["error"]["message"]
    assert answer.headers["x-resilience-policy"] == "burn"
    assert answer.headers["x-resilience-model"] == "none"
    assert "x-resilience-rung" not in answer.headers
    assert fallbacks(bench, "policy") == 0


def test_a_client_error_is_an_answer(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    assert ask(bench, gate=scripted(bench, s=400)).status == 400
    assert fallbacks(bench, "policy") == 0


def test_a_rung_whose_breaker_is_open_is_passed_over(laddered: Any, claim: MakeClaim) -> None:
    bench = laddered(SMALL, SORRY)
    rule = {
        "error_rate": None, "failures": None, "consecutive": 1, "p99_ms": None,
        "window_tokens": None, "window_ms": 60_000, "samples": 1, "evaluations": 1,
        "min_requests": 1, "min_rate": 0, "open_ms": 60_000, "probes": 1,
        "probe_timeout_ms": 1_000,
    }
    bench.hold(claim(ROUTE, {"to": "ladder", "share": 1.0}),
               claim("breaker.rule", rule, model="s"))
    with pytest.raises(RuntimeError):
        ask(bench, {"model": "s", "prompt": ["a", "b"]}, gate=scripted(bench, s="raise"))
    answer = ask(bench)
    assert answer.headers["x-resilience-rung"] == "sorry"
    assert fallbacks(bench, "circuit_break") == 1


@pytest.mark.parametrize("attempt_ms", [None, 200])
def test_a_rung_that_hangs_leaves_the_next_one_time_before_the_deadline(
    new_bench: Callable[[GateConfig], Any], claim: MakeClaim, attempt_ms: int | None
) -> None:
    """Its own time-out, as the 30 s of another server, is longer than the request's."""
    rungs = (replace(SMALL, timeout_ms=30_000), SORRY)
    budget = BudgetSettings(deadline_ms=400, attempts=1, attempt_ms=attempt_ms)
    bench = new_bench(replace(config_of(budget), ladder=rungs)).on_the_real_clock()
    bench.hold(claim(ROUTE, {"to": "ladder", "share": 1.0}))
    answer = ask(bench, gate=scripted(bench, s="hang"))
    assert answer.json()["choices"][0]["text"] == SORRY.text
    assert fallbacks(bench, "timeout") == 1


def test_who_comes_back_for_a_templates_text_gets_the_answer_itself(
    new_bench: Callable[[GateConfig], Any], claim: MakeClaim
) -> None:
    """A template is no result: it is not kept under the request's id."""
    bench = new_bench(replace(config_of(BudgetSettings(attempts=1)), ladder=(SMALL, SORRY)))
    bench.hold(claim(ROUTE, {"to": "ladder", "share": 1.0}))
    name = "0123456789abcdef"
    first = ask(bench, gate=scripted(bench, s=500), x_request_id=name)
    assert first.headers["x-resilience-rung"] == "sorry"
    bench.clock.now += 5_000  # the rung that failed has rested
    second = ask(bench, x_request_id=name)
    assert second.headers["x-resilience-rung"] == "small"
    assert "idempotent-replayed" not in second.headers
    assert ask(bench, x_request_id=name).headers["idempotent-replayed"] == "true"
