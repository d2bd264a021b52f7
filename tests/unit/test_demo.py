"""The demo's arithmetic and its judgement; the demo itself is the proof of the rest."""

from __future__ import annotations

import math
from typing import Any

import pytest

from demo.engine import Moment
from demo.load import TIERS, Outcome, Shape, plan
from demo.report import moments, quantile, summarize, table, timeline
from demo.scenario import Result

SHAPE = Shape("m")


def test_same_seed_same_plan() -> None:
    first = plan(20.0, 30.0, 0.2, 7, SHAPE)
    assert first == plan(20.0, 30.0, 0.2, 7, SHAPE)
    assert first != plan(20.0, 30.0, 0.2, 8, SHAPE)
    assert all(0 <= a.at_s < 30.0 for a in first)
    assert len(first) == pytest.approx(600, rel=0.15)
    core = sum(a.tier == TIERS[0] for a in first)
    assert core == pytest.approx(120, rel=0.3)


def test_plan_is_bounded() -> None:
    assert len(plan(1e6, 30.0, 0.2, 7, SHAPE)) == 2_000


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0], 0.99, 1.0), ([1.0, 2.0], 0.5, 1.0),
     ([float(n) for n in range(1, 101)], 0.99, 99.0)],
)
def test_quantile(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


def _outcome(ending: Any, ttft_s: float | None, tokens: int = 0) -> Outcome:
    return Outcome("core", 0.0, ending, 200, ttft_s, 10.0, tokens)


def test_who_left_without_a_token_waited_longer_than_anyone_served() -> None:
    outcomes = [_outcome("ok", 1.0, 30), _outcome("gave_up", None), _outcome("refused", None)]
    summary = summarize(outcomes, "core")
    assert (summary.requests, summary.ok, summary.refused, summary.gave_up) == (3, 1, 1, 1)
    assert summary.ttft_p50_s == 1.0
    assert math.isinf(summary.ttft_p99_s)
    assert summary.tokens_per_s == 3.0


def test_table_puts_bare_beside_protected() -> None:
    lines = table({"bare": [_outcome("gave_up", None)], "protected": [_outcome("ok", 0.5, 5)]}, 15)
    assert lines[0].split() == ["bare", "protected"]
    row = next(line for line in lines if "TTFT p99" in line)
    assert row.split("p99")[1].split() == [">", "15", "s", "0.50", "s"]


def _decision(
    before: str, after: str, t_ms: int, *claims: str, mode: str = "enforce"
) -> dict[str, Any]:
    held = [{"knob": knob, "scope": {"tier": "x"}, "value": 1} for knob in claims]
    return {
        "t_ms": t_ms, "policy": "p", "instance": "i", "from": before, "to": after, "reason": "r",
        "claims_before": [], "claims_after": held, "mode": mode,
    }


def test_timeline_is_in_order_from_the_start_of_the_load() -> None:
    lines = timeline(
        [*moments([_decision("pending", "firing", 5_000, "k")]), Moment(1_000, "load", "starts")],
        zero_ms=1_000,
    )
    assert [line.split() for line in lines] == [
        ["0.0", "s", "load", "starts"],
        ["4.0", "s", "p", "pending", "->", "firing", "(r)", "claims", "k{tier=x}", "=", "1"],
    ]


def _kept(**changes: Any) -> list[bool]:
    whole: dict[str, Any] = {
        "decisions": [_decision("pending", "firing", 1), _decision("firing", "inactive", 2)],
        "enforced": frozenset({"k"}), "replayed": 2, "differ": 0,
    }
    return [kept for kept, _ in Result(**{**whole, **changes}).verdict()]


def test_every_promise_must_be_kept() -> None:
    assert _kept() == [True, True, True, True]
    assert _kept(decisions=[]) == [False, True, False, True]
    assert _kept(enforced=frozenset()) == [True, False, True, True]
    assert _kept(decisions=[_decision("pending", "firing", 1)]) == [True, True, False, True]
    shadow = _decision("pending", "firing", 3, mode="shadow") | {"policy": "s"}
    assert _kept(decisions=[shadow]) == [False, True, False, True]
    assert _kept(decisions=[
        _decision("pending", "firing", 1), shadow, _decision("firing", "inactive", 4)
    ]) == [True, True, True, True]
    assert _kept(left_in_force=frozenset({"k"})) == [True, True, False, True]
    assert _kept(differ=1) == [True, True, True, False]
    assert _kept(replayed=0) == [True, True, True, False]
    assert _kept(differ=None) == [True, True, True, False]
