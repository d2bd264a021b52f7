"""The breaker on a simulated clock: its transitions as a table, and both published rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.breaker import Breaker, BreakerRule, Change, Outcome, Pass
from resilience.gate.breakers import BreakerClaim, BreakerSet, enter_all, leave_all
from resilience.gate.ticket import Ticket

COUNTING = BreakerRule(failures=1, open_ms=1_000, probes=2, probe_timeout_ms=500)


class Rig:
    """A breaker, its clock, and the requests under way."""

    def __init__(self, rule: BreakerRule) -> None:
        self.now = 0
        self.changes: list[Change] = []
        self.breaker = Breaker("all", rule, self.changes.append)
        self.inside: list[Pass] = []

    def do(self, step: str) -> None:
        """Run one word: `enter`, an outcome for the oldest inside, `heard` from it, or `+MS`."""
        if step.startswith("+"):
            self.now += int(step)
        elif step == "enter":
            given = self.breaker.enter(self.now)
            assert given is not None
            self.inside.append(given)
        elif step == "heard":
            self.breaker.hear(self.inside[0], self.now)
        elif step == "refused":
            assert self.breaker.enter(self.now) is None
        else:
            self.end(self.inside.pop(0), step)

    @property
    def state(self) -> str:
        return self.breaker.state

    def end(self, given: Pass, outcome: Any, took_ms: float = 10.0, tokens: int = 0) -> None:
        self.breaker.leave(given, outcome, took_ms, tokens, self.now)

    def request(self, outcome: Outcome, took_ms: float = 10.0, tokens: int = 0) -> None:
        given = self.breaker.enter(self.now)
        if given is not None:
            self.end(given, outcome, took_ms, tokens)


OPENED = "enter failure enter failure "
TABLE = [
    ("closed", "closed", "enter success enter success"),
    ("one failure is not more than one", "closed", "enter failure"),
    ("more than one failure", "open", OPENED),
    ("neutral ends do not count", "closed", "enter neutral enter neutral enter failure"),
    ("open refuses", "open", OPENED + "refused +999 refused"),
    ("time opens half", "half_open", OPENED + "+1000 enter"),
    ("as many probes as the rule says", "half_open", OPENED + "+1000 enter enter refused"),
    ("all probes succeed", "closed", OPENED + "+1000 enter enter success success"),
    ("one success is not enough", "half_open", OPENED + "+1000 enter success"),
    ("probes one after the other", "closed", OPENED + "+1000 enter success enter success"),
    ("a probe fails", "open", OPENED + "+1000 enter enter success failure"),
    ("a neutral probe gives its place back", "half_open",
     OPENED + "+1000 enter enter refused neutral enter"),
    ("a probe that does not end fails", "open", OPENED + "+1000 enter +500 refused"),
    ("and is tried again", "half_open", OPENED + "+1000 enter +500 refused +1000 enter"),
    ("it opens when that is due, whoever asks and when", "half_open",
     OPENED + "+1000 enter +1500 enter"),
    ("and not later", "open", OPENED + "+1000 enter +1499 refused"),
    ("its late success closes nothing", "half_open", OPENED + "+1000 enter +9000 success"),
    ("a probe that streams has time from token to token", "half_open",
     OPENED + "+1000 enter enter +400 heard success +400"),
    ("one whose stream goes on has succeeded", "half_open",
     OPENED + "+1000 enter +400 heard +400 heard failure"),
    ("so long answers let it close", "closed",
     OPENED + "+1000 enter +400 heard +400 heard success enter success"),
    ("a stream that stalls fails", "open",
     OPENED + "+1000 enter +400 heard +500 refused heard"),
    ("who is no probe is not heard", "closed", "enter heard success"),
    ("what began before the change says nothing", "half_open",
     "enter " + OPENED.replace("enter failure", "enter") + "failure failure +1000 enter success"),
    ("a success from before closes nothing", "open",
     "enter enter enter failure failure success"),
]


@pytest.mark.parametrize(("what", "state", "steps"), TABLE, ids=[row[0] for row in TABLE])
def test_transitions(what: str, state: str, steps: str) -> None:
    rig = Rig(COUNTING)
    for step in steps.split():
        rig.do(step)
    assert rig.state == state, what


def test_every_change_is_one_event_with_its_name() -> None:
    rig = Rig(COUNTING)
    for step in (OPENED + "+1000 enter failure +1000 enter enter success success").split():
        rig.do(step)
    seen = [(c.name, c.from_state, c.to_state, c.at_ms) for c in rig.changes]
    assert seen == [
        ("all", "closed", "open", 0), ("all", "open", "half_open", 1_000),
        ("all", "half_open", "open", 1_000), ("all", "open", "half_open", 2_000),
        ("all", "half_open", "closed", 2_000),
    ]


def test_what_time_has_changed_is_told_as_of_when_it_was_due() -> None:
    """Nobody has asked for an hour: its state is what a request would meet, and so are its events.
    """
    rig = Rig(COUNTING)
    for step in (OPENED + "+1000 enter +3600000").split():
        rig.do(step)
    assert rig.breaker.look(rig.now) == "half_open"
    assert [(c.from_state, c.to_state, c.at_ms) for c in rig.changes] == [
        ("closed", "open", 0), ("open", "half_open", 1_000), ("half_open", "open", 1_500),
        ("open", "half_open", 2_500)]


def test_a_rule_that_is_new_changes_nothing_before_it_came() -> None:
    rig = Rig(COUNTING)
    for step in (OPENED + "+900").split():
        rig.do(step)
    rig.breaker.adopt(replace(COUNTING, open_ms=100), rig.now)
    rig.do("+50")
    assert rig.breaker.look(rig.now) == "half_open"
    assert [c.at_ms for c in rig.changes] == [0, 900]


@pytest.mark.parametrize("percent", range(1, 100))
def test_a_share_as_large_as_the_threshold_is_not_above_it(percent: int) -> None:
    rig = Rig(BreakerRule(error_rate=percent / 100, min_requests=100))
    for n in range(100):
        rig.request("failure" if n < percent else "success")
    assert rig.state == "closed"
    rig.request("failure")
    assert rig.state == "open"


def test_failures_age_out_of_the_window() -> None:
    rig = Rig(replace(COUNTING, window_ms=10_000))
    rig.request("failure")
    rig.now += 10_500
    rig.request("failure")
    assert rig.state == "closed"
    rig.request("failure")
    assert rig.state == "open"


def test_a_small_sample_proves_nothing() -> None:
    rig = Rig(BreakerRule(error_rate=0.5, min_requests=10))
    for _ in range(9):
        rig.request("failure")
    assert rig.state == "closed"
    rig.request("failure")
    assert rig.state == "open"


def test_thin_traffic_never_trips_the_rule_of_w7() -> None:
    rule = BreakerRule(error_rate=0.5, window_ms=60_000, min_rate=100.0)
    thin = Rig(rule)
    for _ in range(6_000):
        thin.request("failure")
        thin.now += 10
    assert thin.state == "closed"
    dense = Rig(rule)
    for n in range(6_100):
        dense.request("failure" if n % 2 else "success")
        dense.now += 9
    assert dense.state == "closed"
    for _ in range(600):
        dense.request("failure")
    assert dense.state == "open"


def test_the_adaptive_rule_wants_five_evaluations_in_a_row() -> None:
    rule = BreakerRule(error_rate=0.15, p99_ms=8_000, evaluations=5, min_requests=20)
    rig = Rig(rule)
    for _ in range(100):
        rig.request("success")
    for _ in range(4):
        rig.request("success", took_ms=9_000)
    assert rig.state == "closed"
    rig.request("success", took_ms=9_000)
    rig.request("success", took_ms=9_000)
    assert rig.state == "open"  # the first of the six was still one in a hundred


def test_only_the_last_hundred_durations_count() -> None:
    rig = Rig(BreakerRule(p99_ms=8_000, evaluations=105, samples=100))
    for _ in range(4):
        rig.request("success", took_ms=9_000)
    for _ in range(300):
        rig.request("success")
    assert rig.state == "closed"  # slow for 102 evaluations, until the four were forgotten


def test_the_counting_rule_of_p16_wants_number_and_share() -> None:
    rule = BreakerRule(error_rate=0.3, failures=50, open_ms=5_000)
    rig = Rig(rule)
    for n in range(400):
        rig.request("failure" if n % 4 == 0 else "success")
    assert rig.state == "closed"      # a hundred failures, but a quarter only
    few = Rig(rule)
    for _ in range(50):
        few.request("failure")
    assert few.state == "closed"      # all of them, but not more than fifty
    few.request("failure")
    assert few.state == "open"


def test_failures_in_a_row() -> None:
    rig = Rig(BreakerRule(consecutive=3))
    for outcome in ("failure", "failure", "success", "failure", "neutral", "failure"):
        rig.request(outcome)
    assert rig.state == "closed"
    rig.request("failure")
    assert rig.state == "open"


def test_latency_is_judged_under_a_load_of_tokens_only() -> None:
    rule = BreakerRule(p99_ms=500, window_tokens=1_000, window_ms=10_000)
    idle, loaded = Rig(rule), Rig(rule)
    for _ in range(20):
        idle.request("success", took_ms=900, tokens=10)
        loaded.request("success", took_ms=900, tokens=100)
    assert (idle.state, loaded.state) == ("closed", "open")


def test_another_rule_takes_effect_in_the_state_it_finds() -> None:
    rig = Rig(COUNTING)
    for step in OPENED.split():
        rig.do(step)
    rig.breaker.adopt(replace(COUNTING, open_ms=100), rig.now)
    rig.now += 100
    assert rig.breaker.allows(rig.now)
    assert rig.breaker.retry_after_ms(rig.now) == 100


@pytest.mark.parametrize(("change", "state"), [
    ({"open_ms": 100}, "open"), ({"window_ms": 9_000}, "closed"), ({"p99_ms": 9_000}, "closed"),
    ({"samples": 9}, "closed"),
])
def test_what_was_counted_holds_unless_it_is_to_be_counted_otherwise(
    change: dict[str, int], state: str
) -> None:
    rig = Rig(COUNTING)
    rig.request("failure")
    rig.breaker.adopt(replace(COUNTING, **change), rig.now)
    rig.request("failure")
    assert rig.state == state


def test_who_is_refused_by_one_breaker_is_no_probe_of_another() -> None:
    breakers = BreakerSet(lambda _: None)
    wide, narrow = replace(COUNTING, probes=1), replace(COUNTING, open_ms=60_000)
    breakers.adopt({("", "", ""): BreakerClaim(wide, "wide", "why"),
                    ("core", "", ""): BreakerClaim(narrow, "narrow", "why")}, 0)

    def refused_by(tier: str, now_ms: int) -> tuple[Ticket, str]:
        ticket = Ticket((tier, "a", ""), "/v1/completions", now_ms)
        shut = enter_all(breakers.of(ticket.lane), ticket, now_ms)
        return ticket, "" if shut is None else shut[1].policy

    for _ in range(2):
        leave_all(refused_by("core", 0)[0], "failure", 1.0, 0)
    assert [refused_by("core", 1_000)[1] for _ in range(2)] == ["narrow", "narrow"]
    probe, why = refused_by("elastic", 1_000)
    assert (why, probe.is_probe) == ("", True)
    assert refused_by("elastic", 1_000)[1] == "wide"


def test_one_that_nobody_claims_any_more_closes_now_and_judges_nobody() -> None:
    changes: list[Change] = []
    breakers = BreakerSet(changes.append)
    scope = ("core", "", "")
    claim = BreakerClaim(COUNTING, "p", "why")
    breakers.adopt({scope: claim}, 1_000)
    (breaker, _), = breakers.of(scope)
    late = [breaker.enter(1_000) for _ in range(4)]
    for given in late[:2]:
        breaker.leave(given or Pass(0), "failure", 1.0, 0, 1_100)
    breakers.adopt({}, 1_500)
    for given in late[2:]:
        breaker.leave(given or Pass(0), "failure", 1.0, 0, 1_600)
    assert [(c.from_state, c.to_state, c.at_ms) for c in breakers.events] == [
        ("closed", "open", 1_100), ("open", "closed", 1_500)]
    breakers.adopt({scope: claim}, 2_000)
    (other, _), = breakers.of(scope)
    still = [other.enter(2_000) for _ in range(2)]
    breakers.adopt({}, 2_100)
    for given in still:
        other.leave(given or Pass(0), "failure", 1.0, 0, 2_200)
    assert len(breakers.events) == len(changes) == 2 and breakers.states(2_200) == {}
