"""What the breakers in the core did is kept by the engine, each change once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.app.breaker_events import BreakerEvents
from resilience.app.mask import Mask
from resilience.errors import CoreUnreachableError, JournalError
from resilience.model import Claim, Json

RULE = {"consecutive": 1}


class Gate:
    """What a core tells of its breakers; `fail`: it does not answer."""

    def __init__(self) -> None:
        self.life = "a"
        self.events: list[Json] = []
        self.asked = 0
        self.fail = False

    def __call__(self) -> Json:
        self.asked += 1
        if self.fail:
            raise CoreUnreachableError("gone")
        return {"life": self.life, "breakers": {}, "events": list(self.events)}

    def change(self, before: str, after: str, age_ms: int = 100, **scope: str) -> None:
        self.events.append({
            "number": 1 + len(self.events), "name": "x", "scope": scope, "from": before,
            "to": after, "policy": "fuse", "age_ms": age_ms,
        })


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def armed(claim: Callable[..., Claim]) -> list[Claim]:
    return [claim("fuse", "breaker.rule", RULE)]


@pytest.fixture
def watch(rig: Any, gate: Gate) -> BreakerEvents:
    parts = rig.runtime.parts
    parts.breakers = BreakerEvents(gate, rig.journal, parts.files, rig.clock)
    return parts.breakers  # type: ignore[no-any-return]


def kept(rig: Any) -> list[tuple[str, str]]:
    return [(e["from"], e["to"]) for e in rig.journal.recent("breaker", limit=100)]


def test_each_change_is_kept_once(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    gate.change("closed", "open", age_ms=700, tier="core")
    watch.look(armed, Mask())
    gate.change("open", "half_open")
    watch.look(armed, Mask())
    watch.look(armed, Mask())
    assert kept(rig) == [("closed", "open"), ("open", "half_open")]
    told = [e for e in rig.ask("GET", "history")["events"] if e["action"] == "breaker"]
    assert told[0] == {
        "action": "breaker", "t_ms": rig.clock.now_ms() - 700, "scope": {"tier": "core"},
        "from": "closed", "to": "open", "policy": "fuse",
    }
    lines = (Path(rig.journal.path).parent / "breakers.jsonl").read_text().splitlines()
    assert [json.loads(line)["to"] for line in lines] == ["open", "half_open"]


def test_an_engine_that_starts_again_keeps_nothing_twice(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    gate.change("closed", "open")
    watch.look(armed, Mask())
    gate.change("open", "half_open")
    again = BreakerEvents(gate, rig.journal, rig.runtime.parts.files, rig.clock)
    again.look([], Mask())  # a claim may have ended while no engine ran
    assert kept(rig) == [("closed", "open"), ("open", "half_open")]


def test_a_server_that_starts_again_counts_anew(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    for _ in range(3):
        gate.change("closed", "open")
    watch.look(armed, Mask())
    gate.life, gate.events = "b", []
    gate.change("closed", "open")
    watch.look(armed, Mask())
    assert len(kept(rig)) == 4


def test_nobody_asks_while_no_breaker_is_armed(
    gate: Gate, watch: BreakerEvents, armed: list[Claim], claim: Callable[..., Claim]
) -> None:
    other = [claim("queue", "throttle.max_concurrency", 4, tier="best-effort")]
    asked: list[int] = []
    for claims in (other, other, armed, armed, other, other, []):
        watch.look(claims, Mask())
        asked.append(gate.asked)
    assert asked == [1, 1, 2, 3, 4, 4, 4], "once at the start, and once after the last claim"


def test_what_a_silent_core_did_is_taken_in_later(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    gate.change("closed", "open")
    gate.fail = True
    watch.look(armed, Mask())
    assert kept(rig) == []
    gate.fail = False
    watch.look([], Mask())
    assert kept(rig) == [("closed", "open")]


@pytest.mark.parametrize("later", ["armed", "disarmed"])
def test_a_full_disk_loses_nothing(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim],
    monkeypatch: pytest.MonkeyPatch, later: str,
) -> None:
    watch.look(armed, Mask())
    gate.change("closed", "open")

    def full(batch: Any) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.journal, "append", full)
        rig.runtime.look_at_breakers()
    assert rig.runtime.overview.status()["errors"] == {"journal": "the disk is full"}
    watch.look(armed if later == "armed" else [], Mask())
    assert kept(rig) == [("closed", "open")]


def test_masked_labels_are_masked_here_too(
    rig: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    gate.change("closed", "open", tenant="acme")
    watch.look(armed, Mask(labels=("tenant",)))
    line = (Path(rig.journal.path).parent / "breakers.jsonl").read_text()
    assert "acme" not in line and json.loads(line)["scope"] == {"tenant": "***"}


def test_explain_tells_what_the_breaker_did_that_a_decision_armed(
    rig: Any, kit: Any, gate: Gate, watch: BreakerEvents, armed: list[Claim]
) -> None:
    def decide(t_ms: int, *claims: Claim) -> str:
        from resilience.app.state_rows import decision_row

        decision = kit.decision((), claims, t_ms=t_ms, policy="fuse")
        rig.journal.append([decision_row(decision)])
        return str(decision.id)

    now = rig.clock.now_ms()
    arming, ending = decide(now - 1_000, *armed), decide(now - 300)
    for age_ms in (1_100, 900, 400, 200):
        gate.change("closed", "open", age_ms=age_ms)
        gate.change("closed", "open", age_ms=age_ms + 1, tier="bulk")
    for _ in range(150):                # of the newest hundred none is from this decision's time
        gate.change("closed", "open", age_ms=100)
    watch.look(armed, Mask())
    told = rig.ask("GET", f"decisions/{arming}")["breakers"]
    assert [now - e["t_ms"] for e in told] == [900, 400]
    assert rig.ask("GET", f"decisions/{ending}")["breakers"] == []
