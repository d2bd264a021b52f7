"""The report in a terminal: any width, ASCII where asked for, and nothing quiet that is blind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from resilience.model import (
    Action,
    Bundle,
    Claim,
    ClaimSpec,
    Decision,
    Policy,
    Reason,
    State,
    Trigger,
    Truth,
)
from resilience.report.bars import Terminal
from resilience.report.differ import DecisionChanges
from resilience.report.figures import Figures
from resilience.report.history import History
from resilience.report.page import page
from resilience.report.summary import Background, Compared, Report, report
from resilience.report.text import lines
from resilience.report.values import duration, share, stamp

NAMES = ("queue", "a-policy-with-a-name-that-is-longer-than-any-terminal-likes-it")


NOTHING = Background("run.parquet")


def _report(background: Background = NOTHING) -> Report:
    history = History()
    for second in range(100):
        history.ticked(second * 1_000, 1_000)
    for t_ms, before, after, fired in (
        (10_000, State.INACTIVE, State.FIRING, 10_000), (40_000, State.FIRING, State.INACTIVE, None)
    ):
        history.decided(Decision(
            t_ms, "sha256:1", NAMES[0], "h", "i", (("pod", "a"),), 12.5, Truth.TRUE, Reason.BREACH,
            before, after, (("firing_since_ms", fired),),
        ))
    history.close()
    policies = tuple(
        Policy(name, Trigger("x > 1", "hold"), (Action("0", "throttle"),)) for name in NAMES
    )
    return report(Bundle("sha256:1", policies), history, {}, background)


@pytest.mark.parametrize("width", [1, 40, 57, 80, 120, 500])
@pytest.mark.parametrize("unicode", [True, False])
def test_timelines_fit_any_terminal(width: int, unicode: bool) -> None:
    shown = lines(_report(), Terminal(width, unicode))
    room = min(max(width, 40), 160)
    bars = [line for line in shown if line.startswith(("queue ", "a-policy-w")) and (
        "#" in line or "█" in line or set(line[-12:]) <= {"-", "─"})]
    assert len(bars) >= 2
    assert all(len(line) <= room for line in bars)
    assert all(line.isascii() for line in shown) is not unicode


def test_the_bar_shows_when_it_fired() -> None:
    bar = next(x for x in lines(_report(), Terminal(80, False)) if x.startswith("queue"))
    cells = bar.split()[-1]
    assert cells.strip("-").strip("#") == ""
    first, last = cells.index("#") / len(cells), cells.rindex("#") / len(cells)
    assert first == pytest.approx(0.1, abs=0.03)
    assert last == pytest.approx(0.4, abs=0.03)


def test_figures_and_firings_are_told() -> None:
    text = "\n".join(lines(_report(), Terminal(80)))
    assert "queue" in text
    assert "30s (30.0%)" in text
    assert 'fired 1970-01-01 00:00:10Z for 30s, value 12.5 {pod="a"}' in text
    assert "conflicts: none" in text


def test_a_conflict_with_a_policy_in_shadow_is_said() -> None:
    held = [_limited("a", 8, "enforce"), _limited("b", 4, "shadow")]
    found = report(Bundle("sha256:1", tuple(p for p, _ in held)), _together(held), {}, NOTHING)
    text = "\n".join(lines(found, Terminal(80)))
    assert "none" not in text
    assert ("possible: `throttle.max_concurrency` for `tier=best-effort`: `a` 8, `b` 4: the "
            "smaller wins; that is `b`, were `b` in enforce") in text
    assert "4 of b would have been in force, were `b` in enforce, 1m in all" in text
    assert found.to_json()["conflicts"][0]["shadow"] == ["b"]
    assert "were `b` in enforce" in page(found, "", "") and "None:" not in page(found, "", "")


def _limited(name: str, value: int, mode: Literal["enforce", "shadow"]) -> tuple[Policy, Claim]:
    scope = (("tier", "best-effort"),)
    spec = ClaimSpec("throttle.max_concurrency", value, scope)
    action = Action("0", "throttle", (spec,))
    claim = Claim(
        name, "i", "0", spec.knob, scope, value, 30_000, False, 50, "sha256:1")
    return Policy(name, Trigger("x > 1", "hold"), (action,), mode=mode), claim


def _together(held: Sequence[tuple[Policy, Claim]]) -> History:
    """A minute and a half; all hold their claims from its half minute on."""
    history = History()
    for second in range(90):
        history.ticked(second * 1_000, 1_000)
    for policy, claim in held:
        history.decided(Decision(
            30_000, "sha256:1", policy.name, "h", "i", (), 2.0, Truth.TRUE, Reason.BREACH,
            State.INACTIVE, State.FIRING, (("firing_since_ms", 30_000),), (), (claim,),
            mode=policy.mode,
        ))
    history.close()
    return history


def test_a_resampled_recording_and_a_missing_metric_are_said() -> None:
    shown = lines(_report(Background(
        "run", True, ("this recording is resampled: rates over it may be far off",),
        {"queue": ("vllm:gone",)},
    )))
    assert shown[0] == "warning: this recording is resampled: rates over it may be far off"
    assert any("the recording has no `vllm:gone`" in line for line in shown)


def test_a_comparison_shows_both_sides_as_a_diff() -> None:
    now = _report()
    before = replace(now, policies=tuple(
        replace(p, states=(), figures=Figures()) for p in now.policies if p.name == NAMES[0]))
    both = replace(now, compared=Compared("old", (), DecisionChanges(0, 2, 0), before))
    shown = lines(both, Terminal(80, False))
    bars = [line for line in shown if line[2:].startswith("queue ") and line[0] in "+-"]
    assert [line[0] for line in bars] == ["-", "+"]
    assert ["#" in line for line in bars] == [False, True]
    row = next(line for line in shown if line.startswith("queue"))
    assert "0 -> 1" in row and "0 -> 30s (30.0%)" in row
    assert "absent -> 0" in next(x for x in shown if x.startswith(NAMES[1]))


def test_a_missing_metric_comes_with_the_nearest_one() -> None:
    shown = lines(_report(Background(
        "run", missing={"queue": ("vllm:gone",)}, near={"vllm:gone": "vllm:going"})))
    assert any("has no `vllm:gone`" in line and "it has `vllm:going`" in line for line in shown)


def test_colour_is_what_the_terminal_paints() -> None:
    shown = lines(_report(), Terminal(80, False, lambda text, shade: f"<{shade}>{text}"))
    assert any("<red>#" in line for line in shown)


@pytest.mark.parametrize(("ms", "text"), [
    (0, "0s"), (250, "250ms"), (61_500, "1m1s"), (3_661_000, "1h1m"), (90_061_000, "1d1h"),
])
def test_durations_keep_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_values_for_people() -> None:
    assert share(0, 100) == "0"
    assert share(15_000, 60_000) == "15s (25.0%)"
    assert stamp(0) == "1970-01-01 00:00:00Z"
    assert stamp(None) == "-"
