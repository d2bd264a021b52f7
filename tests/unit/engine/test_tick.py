"""The whole engine in memory: one tick at a time, no thread, no clock, no file."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resilience.app.engine import Engine
from resilience.app.impulses import Impulses
from resilience.errors import JournalError
from resilience.model import (
    Action,
    Bundle,
    Claim,
    ClaimSpec,
    Decision,
    Escalation,
    Execution,
    JournalEntry,
    Json,
    OperatorEvent,
    Policy,
    Recovery,
    Resolve,
    Trigger,
    UdfCall,
    UdfOutcome,
    UdfSpec,
    labels_of,
)
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

WAITING = "vllm:num_requests_waiting"
LABELS = labels_of({"__name__": WAITING, "model_name": "m", "job": "vllm", "instance": "a:1"})
T0 = 1_800_000_000_000


class MemoryJournal:
    """The port's contract on a dict; `broken` refuses as a full disk would."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Json] = {}
        self.broken = False

    def append(self, batch: Sequence[JournalEntry]) -> None:
        if self.broken:
            raise JournalError("the journal cannot be written: disk full")
        for entry in batch:
            if entry.body is None:
                self.rows.pop((entry.kind, entry.key), None)
            else:
                self.rows[entry.kind, entry.key] = entry.body

    def load(self, kind: str) -> Mapping[str, Json]:
        return {key: body for (k, key), body in self.rows.items() if k == kind}

    def compact(self, *, now_ms: int) -> None:
        del now_ms


class Bus:
    """Keeps what it was told to drive."""

    def __init__(self) -> None:
        self.claims: list[tuple[Claim, ...]] = []

    def drive(
        self, decisions: Sequence[Decision], claims: Sequence[Claim], t_ms: int
    ) -> Sequence[Execution]:
        del decisions, t_ms
        self.claims.append(tuple(claims))
        return ()


class Udfs:
    def __init__(self, outcome: str = "ok") -> None:
        self.outcome = outcome
        self.calls: list[UdfCall] = []

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        del deadline_ms
        self.calls.extend(calls)
        return [
            UdfOutcome(c.policy, c.instance, c.action, c.function, self.outcome, {"n": 3})
            for c in calls
        ]


def propose(result: Json, action: Action) -> tuple[Action, ...]:
    if result["n"] > 100:
        raise ValueError("too much")
    return (Action(f"{action.key}.0", "cache", (ClaimSpec("cache.max_running", result["n"]),)),)


class World:
    def __init__(self, *policies: Policy, udfs: Udfs | None = None) -> None:
        self.store = MemoryStore(retention_ms=600_000)
        self.source = EmbeddedSource(self.store, scrape_interval_ms=1_000)
        self.journal, self.bus, self.events = MemoryJournal(), Bus(), list[Json]()
        self.bundle = Bundle("sha256:one", policies)
        self.udfs = udfs
        self.engine = self.start()
        self.now_ms = T0

    def start(self) -> Engine:
        engine = Engine(
            self.bundle,
            source=self.source,
            journal=self.journal,
            propose=propose,
            bus=self.bus,
            udfs=self.udfs,
            events=self.events.append,
        )
        engine.restore()
        return engine

    def feed(self, *values: float | None) -> list[str]:
        """Scrape one value a second (None: nothing came) and tick; return the states."""
        seen = []
        for value in values:
            if value is not None:
                self.store.append(self.now_ms, [LABELS], np.array([value]))
            self.engine.tick(self.now_ms, 1_000)
            self.now_ms += 1_000
            states = [i.state.value for _, i in self.engine.state.items()]
            seen.append(states[0] if states else "")
        return seen


def policy(**kwargs: Any) -> Policy:
    trigger = Trigger(
        f"{WAITING} > 10", "hold", resolve=Resolve(f"{WAITING} < 5"), max_age_ms=2_500
    )
    action = Action("0", "throttle", (ClaimSpec("throttle.max_concurrency", 8),))
    fields: dict[str, Any] = {"trigger": trigger, "actions": (action,), "interval_ms": 1_000}
    return Policy("queue", **{**fields, **kwargs})


def test_breach_claim_undo() -> None:
    world = World(policy())
    assert world.feed(1, 20, 20, 7, 3) == ["", "firing", "firing", "firing", ""]
    assert [[c.value for c in claims] for claims in world.bus.claims] == [[], [8], [8], [8], []]
    kinds = [e["type"] for e in world.events]
    assert kinds.count("tick") == 5 and kinds.count("decision") == 2


def test_stale_samples_are_unknown_never_false() -> None:
    world = World(policy())
    assert world.feed(20, None, None, None, None, 3) == [
        "firing", "firing", "firing", "held", "held", "",
    ]  # fmt: skip
    reasons = [e["decision"]["reason"] for e in world.events if e["type"] == "decision"]
    assert reasons[1] == "blind_stale"


def test_a_restart_neither_refires_nor_forgets() -> None:
    world = World(policy())
    world.feed(20, 20)
    before = world.engine.state
    world.engine = world.start()
    assert world.engine.state == before
    assert world.feed(20, 3) == ["firing", ""]
    decisions = [e for e in world.events if e["type"] == "decision"]
    assert len(decisions) == 2


def test_a_full_disk_changes_nothing_and_says_so() -> None:
    world = World(policy())
    world.journal.broken = True
    world.store.append(world.now_ms, [LABELS], np.array([20.0]))
    report = world.engine.tick(world.now_ms, 1_000)
    assert report.error and not report.decisions and not world.engine.state.instances
    assert world.bus.claims == [()]
    world.journal.broken = False
    assert world.feed(20) == ["firing"]


@pytest.mark.parametrize("steps", [(), (0.5, 1.0)], ids=["at once", "in a ramp"])
def test_a_full_disk_keeps_nothing_degraded(steps: tuple[float, ...]) -> None:
    recovery = Recovery(steps, 1_000) if steps else None
    world = World(policy(recovery=recovery))
    assert world.feed(20) == ["firing"]
    world.journal.broken = True
    told = world.feed(3, 3, 3, 3)
    assert world.bus.claims[-1] == () and told[-1] == ""
    assert world.feed(20) == [""], "nothing begins that a restart would not know of"
    assert world.bus.claims[-1] == ()
    world.journal.broken = False
    assert world.feed(3, 20) == ["", "firing"]
    rows = {k: b for (kind, k), b in world.journal.rows.items() if kind == "decision"}
    told_of = [e["decision"]["id"] for e in world.events if e["type"] == "decision"]
    assert sorted(rows) == sorted(told_of), "what was done without the journal is owed to it"
    before = world.engine.state
    world.engine = world.start()
    assert world.engine.state == before


def test_who_may_not_give_way_on_a_full_disk_still_ends() -> None:
    """Another member of its group wants its place, and may not begin without the journal."""
    mine = policy(group="g", trigger=Trigger(
        f"{WAITING} > 10", "hold", resolve=Resolve(f"{WAITING} < 5", 2_000)))
    wants = Trigger(f"{WAITING} == 30 or {WAITING} == 3", "hold")
    other = replace(policy(group="g", priority=90, trigger=wants), name="other")
    world = World(mine, other)

    def holders() -> list[str]:
        return [c.policy for c in world.bus.claims[-1]]

    world.feed(20)
    world.journal.broken = True
    world.feed(30, 30)
    assert holders() == ["queue"]
    world.feed(3, 3, 3)
    assert holders() == []
    world.journal.broken = False
    world.feed(3)
    assert holders() == ["other"]


class Tightening(Udfs):
    """A function that asks for less at each call."""

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        asked = super().run(calls, deadline_ms=deadline_ms)
        return [replace(o, result={"n": 60 - len(self.calls)}) for o in asked]


LATER = Action("e0.0", "cache", (ClaimSpec("cache.max_running", 4),))
MORE: dict[str, dict[str, Any]] = {
    "a stage that is due": {"escalation": (Escalation(2_000, (LATER,)),)},
    "a function that asks for more": {"actions": (Action("0", "udf_call", udf=UdfSpec("f", 500)),)},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("resolve", [Resolve(f"{WAITING} < 5", 2_000), None], ids=["for", "false"])
def test_what_wants_more_than_a_full_disk_allows_still_ends(
    more: dict[str, Any], resolve: Resolve | None
) -> None:
    trigger = Trigger(
        f"{WAITING} > 10", "hold", resolve=resolve, keep_firing_for_ms=0 if resolve else 2_000)
    world = World(policy(trigger=trigger, **more), udfs=Tightening())
    assert world.feed(20) == ["firing"]
    (held,) = [c.value for c in world.bus.claims[-1]]
    world.journal.broken = True
    assert world.feed(20, 20, 20, 20) == ["firing"] * 4
    assert [c.value for c in world.bus.claims[-1]] == [held]
    assert world.feed(3, 3, 3)[-1] == "" and world.bus.claims[-1] == ()
    world.journal.broken = False
    assert world.feed(3, 20) == ["", "firing"]


@pytest.mark.parametrize(("kind", "body"), [
    ("state", {}), ("state", [1, 2]), ("state", 5), ("counters", 5), ("counters", [[]]),
])  # fmt: skip
def test_a_row_that_is_not_ours_is_a_clear_error(kind: str, body: Json) -> None:
    world = World(policy())
    world.feed(20)
    key = "firings" if kind == "counters" else "p/0"
    world.journal.rows[kind, key] = body
    with pytest.raises(JournalError, match=f"damaged .*`{kind}`.*move `journal.db` away"):
        world.start()


@pytest.mark.parametrize("body", [{}, 7, {"state": "started"}])
def test_an_impulse_row_that_is_not_ours_is_a_clear_error(body: Json) -> None:
    journal = MemoryJournal()
    journal.rows["impulse", "k"] = body
    with pytest.raises(JournalError, match="`impulse`"):
        Impulses(journal)


def test_an_operator_pauses_on_a_full_disk() -> None:
    world = World(policy())
    world.feed(20)
    world.journal.broken = True
    world.engine.operator(OperatorEvent("pause", None))
    assert world.feed(20) == ["suspended"] and world.bus.claims[-1] == ()
    world.engine.operator(OperatorEvent("resume", None))
    assert world.feed(20, 20) == ["", ""] and world.bus.claims[-1] == ()
    world.journal.broken = False
    assert world.feed(20) == ["firing"]


def test_only_the_due_interval_is_evaluated() -> None:
    world = World(policy(interval_ms=5_000))
    assert world.feed(20) == [""]
    world.engine.tick(world.now_ms, 5_000)
    assert [i.state.value for _, i in world.engine.state.items()] == ["firing"]


def test_a_udf_proposes_and_is_checked() -> None:
    call = Action("0", "udf_call", udf=UdfSpec("f", 500, (("waiting", f"max({WAITING})"),)))
    udfs = Udfs()
    world = World(policy(actions=(call,)), udfs=udfs)
    world.feed(20)
    assert [c.value for c in world.bus.claims[-1]] == [3]
    assert udfs.calls[0].context["metrics"] == {"waiting": 20.0}
    assert udfs.calls[0].context["labels"]["model_name"] == "m"
    udf_events = [e for e in world.events if e["type"] == "udf"]
    assert udf_events[0]["outcome"] == "ok" and udf_events[0]["t_ms"] == T0


def test_a_metric_of_several_series_fails_its_call_and_no_other() -> None:
    def call(key: str, expr: str) -> Action:
        return Action(key, "udf_call", udf=UdfSpec("f", 500, (("waiting", expr),)))

    udfs = Udfs()
    both = policy(actions=(call("0", WAITING), call("1", f"sum by (model_name) ({WAITING})")))
    world = World(both, udfs=udfs)
    other = labels_of({**dict(LABELS), "model_name": "n"})
    world.store.append(T0, [LABELS, other], np.array([1.0, 20.0]))
    world.feed(None)
    assert [c.action for c in udfs.calls] == ["1"]
    assert [s["value"] for s in udfs.calls[0].context["metrics"]["waiting"]] == [1.0, 20.0]
    failed, fine = (e for e in world.events if e["type"] == "udf")
    assert (failed["outcome"], fine["outcome"]) == ("RUNTIME_DENIED", "ok")
    assert "metric `waiting` has 2 series; aggregate it" in failed["detail"]
    (decision,) = (e["decision"] for e in world.events if e["type"] == "decision")
    assert decision["reason"] == "udf_error"
    assert [c["action"] for c in decision["claims_after"]] == ["1.0"]


def test_a_udf_is_called_with_an_infinite_value_as_json_can_hold_it() -> None:
    call = Action("0", "udf_call", udf=UdfSpec("f", 500, (("idle", "vector(0) / 0"),)))
    udfs = Udfs()
    World(policy(actions=(call,)), udfs=udfs).feed(float("inf"))
    context = json.loads(json.dumps(udfs.calls[0].context, allow_nan=False))
    assert context["value"] == sys.float_info.max
    assert context["metrics"] == {"idle": None}


def test_swap_ends_what_is_gone() -> None:
    world = World(policy())
    world.feed(20)
    decisions = world.engine.swap(Bundle("sha256:two", ()), world.now_ms)
    assert [d.reason.value for d in decisions] == ["revision"]
    assert world.feed(20) == [""]
    assert world.bus.claims[-1] == ()


def test_a_pause_counts_from_the_next_tick() -> None:
    world = World(policy())
    world.feed(20)
    world.engine.operator(OperatorEvent("pause", "queue", world.now_ms + 60_000, "drill"))
    assert world.feed(20) == ["suspended"]
    assert world.bus.claims[-1] == ()
    restarted = world.start()
    assert restarted.state.paused == {"queue": T0 + 61_000}


@pytest.mark.parametrize("expr", ["absent(nothing)", "vector(1)"])
def test_what_is_always_known(expr: str) -> None:
    world = World(policy(trigger=Trigger(expr, "hold")))
    assert world.feed(1) == ["firing"]


class _Meanwhile(deque[tuple[OperatorEvent, str]]):
    """Another thread speaks up right when the events are looked at."""

    def __init__(self, *late: OperatorEvent) -> None:
        super().__init__()
        self.late = [(event, "") for event in late]

    def __iter__(self) -> Iterator[tuple[OperatorEvent, str]]:
        yield from list(super().__iter__())
        self.extend(self.late)
        self.late.clear()

    def popleft(self) -> tuple[OperatorEvent, str]:
        event = super().popleft()
        self.extend(self.late)
        self.late.clear()
        return event


def test_what_an_operator_says_while_a_tick_takes_events_is_not_lost() -> None:
    world = World(policy())
    world.engine._operator = _Meanwhile(OperatorEvent("pause", "queue", None, "late"))
    world.engine.operator(OperatorEvent("pause", "other", None, "first"))
    world.feed(1, 1)
    heard = [e["reason"] for e in world.events if e["type"] == "operator"]
    assert heard == ["first", "late"]
