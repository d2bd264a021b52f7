"""Warm-up, minimum samples, windows, cooldown, most active, half-open probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.model import (
    Action,
    ClaimSpec,
    Limits,
    Observations,
    Probe,
    RateLimit,
    Reason,
    Recovery,
    Resolve,
    SeriesTruth,
    TriggerObservation,
    Truth,
)
from resilience.policy.decide import decide
from resilience.policy.state import EngineState

P, F, H, R, X, N = "pending", "firing", "held", "recovering", "inactive", ""
Line = Callable[..., Any]

TABLE: list[tuple[str, dict[str, Any], str, str | None, list[str]]] = [
    ("data counts again after three good samples", {"warm_up": 3}, "TUUFFFF", None,
     [F, H, H, H, H, N, N]),
    ("blindness in the warm-up starts it anew", {"warm_up": 2}, "TUFUFF", None,
     [F, H, H, H, H, N]),
    ("idle is not blind and needs no warm-up", {"warm_up": 3}, "TIF", None, [F, H, N]),
    ("a resolve in the warm-up does not end", {"warm_up": 3, "resolve": Resolve("y")}, "TUFFF",
     "FUTTT", [F, H, H, H, N]),
    ("a policy that was blind fires after its warm-up", {"warm_up": 3}, "UTTT", None,
     [N, P, P, F]),
    ("a policy that was never blind fires at once", {"warm_up": 3}, "FT", None, [N, F]),
    ("fire on silence goes on in the warm-up", {"warm_up": 2, "on_no_data": "fire"}, "UFFF", None,
     [F, F, N, N]),
    ("several samples must show it", {"limits": Limits(min_samples=3)}, "TTTT", None,
     [P, P, F, F]),
    ("one sample that does not starts anew", {"limits": Limits(min_samples=3)}, "TTFTTT", None,
     [P, P, N, P, P, F]),
    ("every window counts", {"limits": Limits(rate=(RateLimit(1, 2_000), RateLimit(2, 60_000)))},
     "TFTTFTTT", None, [F, X, F, F, X, P, P, P]),
]  # fmt: skip


@pytest.mark.parametrize(("kwargs", "letters", "resolve", "states"), [r[1:] for r in TABLE],
                         ids=[r[0] for r in TABLE])
def test_table(
    timeline: Line, kwargs: dict[str, Any], letters: str, resolve: str | None, states: list[str]
) -> None:
    assert timeline(**kwargs).feed(letters, resolve) == states


def test_a_sample_counts_once(timeline: Line) -> None:
    line = timeline(limits=Limits(min_samples=2))
    line.sample_ms = 5_000
    assert line.feed("TTT") == [P, P, P]
    line.sample_ms = 6_000
    assert line.feed("T") == [F]


def test_the_warm_up_is_why(timeline: Line) -> None:
    line = timeline(warm_up=3)
    line.feed("TUF")
    assert line.instance().reason is Reason.WARM_UP
    line.feed("U")
    assert line.instance().reason is Reason.BLIND_STALE
    line.feed("F")
    assert line.instance().reason is Reason.WARM_UP
    assert EngineState.from_json(line.state.to_json()) == line.state


def test_more_firings_than_any_buffer(timeline: Line) -> None:
    line = timeline(limits=Limits(rate=(RateLimit(100, 3_600_000),)))
    line.feed("TF" * 110)
    assert line.feed("T") == [P]
    assert sum(d.to_state == F for d in line.decisions) == 100


def test_the_longer_cooldown_counts(timeline: Line) -> None:
    line = timeline(limits=Limits(cooldown_ms=10_000))
    line.feed("TF")
    line.policy = replace(line.policy, limits=Limits(cooldown_ms=1_000))
    assert line.feed("T" * 9) == [P] * 9     # what was promised when it ended
    assert line.feed("T") == [F]
    line.feed("F")
    line.policy = replace(line.policy, limits=Limits(cooldown_ms=20_000))
    assert line.feed("T" * 19) == [P] * 19   # and what is asked for now
    assert line.feed("T") == [F]


def test_most_active(timeline: Line) -> None:
    policy = timeline(limits=Limits(max_active=2)).policy
    state = EngineState()
    labels = [(("engine", str(n)),) for n in range(4)]
    for now_ms in (0, 1_000):
        series = tuple(SeriesTruth(lab, Truth.TRUE, Reason.BREACH, 1.0) for lab in labels)
        seen = Observations(triggers={"p": TriggerObservation(series)})
        state, decisions = decide([policy], state, seen, now_ms, "r")
        assert sorted(str(i.state) for _, i in state.items()) == [F, F, P, P]
    assert not decisions
    firing = next(i for _, i in state.items() if i.state == F)
    series = tuple(
        SeriesTruth(lab, *((Truth.FALSE, Reason.CLEAR) if lab == firing.labels
                           else (Truth.TRUE, Reason.BREACH))) for lab in labels)
    for now_ms in (2_000, 3_000):
        seen = Observations(triggers={"p": TriggerObservation(series)})
        state, _ = decide([policy], state, seen, now_ms, "r")
    assert sorted(str(i.state) for _, i in state.items()) == [F, F, P]


# --- half-open probes ---

PROBE = Probe(after_ms=3_000, share=0.25, for_ms=2_000, max=2)
PROBES: list[tuple[str, dict[str, Any], str, str | None, list[str]]] = [
    ("idle behind a throttle: look, and let go", {}, "TIIIIFF", None, [F, H, H, R, R, N, N]),
    ("a breach ends the probe at once", {}, "TIIITI", None, [F, H, H, R, F, H]),
    ("no evidence in its time ends it too", {}, "TIIIIII", None, [F, H, H, R, R, F, H]),
    ("never into a breach", {}, "TTTTTT", None, [F] * 6),
    ("never blind", {}, "TUUUUUU", None, [F, H, H, H, H, H, H]),
    ("blindness ends the probe", {}, "TIIIUU", None, [F, H, H, R, H, H]),
    ("with a resolve that is the evidence", {"resolve": Resolve("y", 60_000)}, "TFFFFF", "FFFFFT",
     [F, F, F, R, R, N]),
    ("after the probe comes the ramp", {"recovery": Recovery((0.5, 1.0), 2_000)}, "TIIIIFFF", None,
     [F, H, H, R, R, R, R, N]),
]  # fmt: skip


@pytest.mark.parametrize(("kwargs", "letters", "resolve", "states"), [r[1:] for r in PROBES],
                         ids=[r[0] for r in PROBES])
def test_probes(
    timeline: Line, kwargs: dict[str, Any], letters: str, resolve: str | None, states: list[str]
) -> None:
    assert timeline(probe=PROBE, **kwargs).feed(letters, resolve) == states


def test_a_probe_eases_and_probes_end(timeline: Line) -> None:
    line = timeline(probe=PROBE)
    line.capacities = {"throttle.max_concurrency": 32}
    seen = []
    for letter in "T" + "I" * 30:
        line.feed(letter)
        seen.append(line.values())
    assert seen[0] == [8] and [14] in seen
    starts = [d for d in line.decisions if d.to_state == R]
    assert [d.reason for d in starts] == [Reason.PROBE] * 2
    assert EngineState.from_json(line.state.to_json()) == line.state


def test_a_route_is_eased_by_its_share(timeline: Line) -> None:
    route = ClaimSpec("route.model", {"to": "small", "share": 0.8})
    line = timeline(actions=(Action("0", "x", (route,)),), recovery=Recovery((0.5, 1.0), 1_000))
    line.feed("TF")
    assert line.values() == [{"to": "small", "share": 0.4}]
