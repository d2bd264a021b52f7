"""What a UDF's outcome does to the claims of its action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import (
    Action,
    ClaimSpec,
    Escalation,
    QueryResult,
    RangeSample,
    Reason,
    Sample,
    UdfOutcome,
    UdfSpec,
)
from resilience.policy.udf_values import LARGEST, ambiguous, in_json, metric_value

MORE = Action("e0.0", "cache_degrade", (ClaimSpec("cache.max_running", 4),))


def outcomes(script: str) -> Callable[[str], UdfOutcome]:
    """Return a UDF that follows a script: a digit claims that many sequences, `x` fails."""
    letters = iter(script)

    def run(instance: str) -> UdfOutcome:
        letter = next(letters)
        if letter == "x":
            return UdfOutcome("p", instance, "0", "f", "TIMEOUT")
        made = Action("0.0", "cache_degrade", (ClaimSpec("cache.max_running", int(letter)),))
        return UdfOutcome("p", instance, "0", "f", "ok", {"n": int(letter)}, actions=(made,))

    return run


@pytest.mark.parametrize(
    ("on_error", "script", "values"),
    [
        ("skip", "85x6", [[8], [5], [], [6]]),
        ("hold", "85x6", [[8], [5], [5], [6]]),
        ("hold", "x6", [[], [6]]),
        ("escalate", "8x7", [[8], [4], [7, 4]]),
    ],
)
def test_on_error(
    timeline: Callable[..., Any], on_error: Any, script: str, values: list[list[int]]
) -> None:
    call = Action("0", "udf_call", udf=UdfSpec("f", 1_000, on_error=on_error))
    line = timeline(actions=(call,), escalation=(Escalation(60_000, (MORE,)),))
    line.udf = outcomes(script)
    seen = []
    for _ in script:
        line.feed("T")
        seen.append(sorted(line.values(), reverse=True))
    assert seen == [sorted(v, reverse=True) for v in values]


def test_a_failure_is_the_reason(timeline: Callable[..., Any]) -> None:
    call = Action("0", "udf_call", udf=UdfSpec("f", 1_000))
    line = timeline(actions=(call,))
    line.udf = outcomes("8x")
    line.feed("TT")
    assert [d.reason for d in line.decisions] == [Reason.BREACH, Reason.UDF_ERROR]
    assert line.decisions[-1].udf == ({"function": "f", "outcome": "TIMEOUT", "result": None},)


def test_it_is_called_only_while_firing(timeline: Callable[..., Any]) -> None:
    call = Action("0", "udf_call", udf=UdfSpec("f", 1_000))
    line = timeline(actions=(call,), for_ms=1_000)
    line.udf = outcomes("12345")
    line.feed("FTTTUF")
    assert line.calls == ["f", "f"]


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (None, None),
        (QueryResult("x"), None),
        (QueryResult("x", error="boom"), None),
        (QueryResult("x", samples=(Sample((), 2.0),)), 2.0),
        (QueryResult("x", "matrix", ranges=(RangeSample((), (1, 2), (3.0, 4.0)),)), [3.0, 4.0]),
        (QueryResult("x", "matrix"), None),
    ],
)
def test_a_metric_as_a_udf_sees_it(result: QueryResult | None, value: object) -> None:
    assert metric_value(result) == value


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (NAN, None), (INF, LARGEST), (-INF, -LARGEST), (None, None), (2, 2), ("x", "x"),
        ([1.0, NAN, INF], [1.0, LARGEST]), ([[NAN], [2.0]], [[], [2.0]]),
        ([{"labels": {"a": "b"}, "value": NAN}], [{"labels": {"a": "b"}, "value": None}]),
    ],
)
def test_a_udf_gets_numbers_that_json_has(value: object, shown: object) -> None:
    assert in_json(value) == shown


ONE, TWO = (Sample((("a", "1"),), 1.0),), (Sample((("a", "1"),), 1.0), Sample((), 2.0))
RANGES = (RangeSample((("a", "1"),), (1,), (3.0,)), RangeSample((), (1,), (4.0,)))


@pytest.mark.parametrize(
    ("expr", "result", "clear"),
    [
        ("x", QueryResult("x"), True),
        ("x", QueryResult("x", samples=ONE), True),
        ("x", QueryResult("x", samples=TWO), False),
        ("rate(x[1m]) / y", QueryResult("x", samples=TWO), False),
        ("max by (a) (x)", QueryResult("x", samples=TWO), True),
        ("rate(x[1m]) / on (a) sum by (a) (y)", QueryResult("x", samples=TWO), True),
        ("x[1m]", QueryResult("x", "matrix", ranges=RANGES), False),
        ("x[1m]", QueryResult("x", "matrix", ranges=RANGES[:1]), True),
        ("sum by (a) (x)[5m:1m]", QueryResult("x", "matrix", ranges=RANGES), True),
    ],
)
def test_several_series_need_an_aggregation(expr: str, result: QueryResult, clear: bool) -> None:
    why = ambiguous(UdfSpec("f", 1_000, (("m", expr),)), {expr: result})
    assert (why is None) is clear
    assert why is None or f"metric `m` has 2 series; aggregate it, as in `max({expr})`" == why
