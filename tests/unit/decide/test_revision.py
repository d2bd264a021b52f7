"""A policy that comes with another trigger: what it may not forget, and what it starts anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.model import Guard, Limits, RateLimit, Trigger
from resilience.policy.records import revise

P, F, X, N = "pending", "firing", "inactive", ""
Line = Callable[..., Any]


def another_trigger(line: Any, **more: Any) -> list[Any]:
    """Apply the policy with another trigger between two ticks; returns the decisions."""
    after = replace(line.policy, trigger=Trigger("other", "hold"), **more)
    line.state, decisions = revise([line.policy], [after], line.state, line.now_ms, "sha256:next")
    line.policy = after
    return list(decisions)


@pytest.mark.parametrize(("limits", "again"), [
    (Limits(), [F, F]),
    (Limits(cooldown_ms=3_000), [P, P, P, F]),
    (Limits(rate=(RateLimit(1, 5_000),)), [P, P, P, F]),
    (Limits(rate=(RateLimit(2, 5_000),)), [F, F]),
])
def test_limits_count_what_the_former_trigger_fired(
    timeline: Line, limits: Limits, again: list[str]
) -> None:
    line = timeline(limits=limits)
    assert line.feed("TT") == [F, F]
    (ended,) = another_trigger(line)
    assert (ended.from_state.value, ended.to_state.value, ended.reason.value) == (F, X, "revision")
    assert line.values() == []
    assert line.feed("T" * len(again)) == again


def test_a_cooldown_that_runs_is_not_cut_short(timeline: Line) -> None:
    line = timeline(limits=Limits(cooldown_ms=5_000))
    assert line.feed("TF") == [F, X]
    assert another_trigger(line, limits=Limits()) == []
    assert line.feed("TTTTT") == [P, P, P, P, F]


def test_a_quarantine_goes_on(timeline: Line) -> None:
    line = timeline(guard=Guard("g", quarantine_ms=4_000))
    assert line.feed("TT", checks={"g": "FT"}) == [F, X]
    another_trigger(line)
    assert line.feed("TTTT", checks={"g": "FFFF"}) == [P, P, P, F]


def test_what_was_on_its_way_begins_anew(timeline: Line) -> None:
    line = timeline(limits=Limits(min_samples=3))
    assert line.feed("TT") == [P, P]
    another_trigger(line)
    assert not line.state.of(line.policy.name)
    assert line.feed("TTT") == [P, P, F]


def test_what_has_passed_is_forgotten(timeline: Line) -> None:
    line = timeline(limits=Limits(cooldown_ms=2_000))
    assert line.feed("TF") == [F, X]
    line.now_ms += 60_000
    another_trigger(line)
    assert not line.state.of(line.policy.name)
