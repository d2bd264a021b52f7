"""The report in a terminal: any width, ASCII where asked for, and nothing quiet that is blind."""

from __future__ import annotations

import pytest

from resilience.model import Action, Bundle, Decision, Policy, Reason, State, Trigger, Truth
from resilience.report.history import History
from resilience.report.summary import Background, Report, report
from resilience.report.text import Terminal, duration, lines, share, stamp

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


def test_a_resampled_recording_and_a_missing_metric_are_said() -> None:
    shown = lines(_report(Background(
        "run", True, ("this recording is resampled: rates over it may be far off",),
        {"queue": ("vllm:gone",)},
    )))
    assert shown[0] == "warning: this recording is resampled: rates over it may be far off"
    assert any("the recording has no `vllm:gone`" in line for line in shown)


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
