"""What one engine's life must add up to: its records, its pauses, its limits, its intents.

A crash or a second engine begins another life: what was only in memory is nobody's promise then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from resilience.app.engine import TickReport
from resilience.model import Decision, State, canonical_json, labels_of
from resilience.policy.state import live_claims
from tests.simulation.documents import COOLDOWN_MS, RATE
from tests.simulation.world import World, content

Fail = Callable[..., None]
_ENDS = frozenset({State.INACTIVE, State.PENDING, State.SUSPENDED})


class Accounts:
    """Follows the engine that acts; `fail` says what broke."""

    def __init__(self, world: World, fail: Fail) -> None:
        self._world, self._fail = world, fail
        self._begin()

    def _begin(self) -> None:
        world = self._world
        self._life = world.engines
        self._held = self._claims()
        self._fired: dict[str, deque[int]] = {}
        self._ended: dict[str, int] = {}
        self._at_work: set[str] = set()
        self._clock = world.clock.offset_ms
        for (policy, name), instance in world.engine.state.items():
            if policy == "blind" and instance.holds:
                self._at_work.add(name)

    def look(self, report: TickReport | None) -> None:
        """Look after one second; None: the engine crashed."""
        world = self._world
        for name in [n for n, until_ms in world.pauses.items() if until_ms <= world.t_ms]:
            del world.pauses[name]  # it is over, also when the clock is set back later
        if report is None or self._life != world.engines or self._clock != world.clock.offset_ms:
            self._begin()
            return
        self._paused()
        self._recorded(report)
        for decision in report.decisions:
            self._within_limits(decision)
        if all(p.name != "blind" for p in world.engine.bundle.policies):
            self._fired.clear()  # a policy that is gone is forgotten, with what it had promised
            self._ended.clear()
            self._at_work.clear()
        self._intended()

    # --- the promises ---

    def _paused(self) -> None:
        """What an operator has paused holds nothing, from the same tick on."""
        world = self._world
        holding = {c.policy for c in live_claims(world.engine.state, world.engine.bundle)}
        for name, until_ms in world.pauses.items():
            if world.t_ms < until_ms and (name in holding or (name == "*" and holding)):
                self._fail("a paused policy holds claims", name)

    def _recorded(self, report: TickReport) -> None:
        """No claim comes, changes or goes without a decision that says so."""
        now = self._claims()
        said = {(d.policy, d.instance): d for d in report.decisions}
        for key in self._held.keys() | now.keys():
            before, after = self._held.get(key, ()), now.get(key, ())
            if before != after and key not in said and self._world.reloaded_ms != report.t_ms:
                self._fail("claims changed without a record", list(key), list(before), list(after))
        self._held = now

    def _claims(self) -> dict[tuple[str, str], tuple[str, ...]]:
        found: dict[tuple[str, str], list[str]] = {}
        for (policy, name), instance in self._world.engine.state.items():
            if instance.claims:
                found[policy, name] = [canonical_json(c.to_json()) for c in instance.claims]
        return {key: tuple(claims) for key, claims in found.items()}

    def _within_limits(self, decision: Decision) -> None:
        """No firing within the cooldown, nor more than the rate allows."""
        if decision.policy != "blind":
            return
        name, t_ms = decision.instance, decision.t_ms
        fired = self._fired.setdefault(name, deque(maxlen=RATE.max + 1))
        if decision.to_state is State.FIRING and name not in self._at_work:
            self._at_work.add(name)
            fired.append(t_ms)
            ended_ms = self._ended.get(name)
            if ended_ms is not None and t_ms - ended_ms < COOLDOWN_MS:
                self._fail("a firing within the cooldown", decision.to_json())
            if len(fired) > RATE.max and t_ms - fired[0] < RATE.per_ms:
                self._fail("more firings than the rate allows", list(fired))
        elif decision.to_state in _ENDS and name in self._at_work:
            self._at_work.remove(name)
            self._ended[name] = t_ms

    def _intended(self) -> None:
        """What the core holds in the engine's own epoch was on disk before."""
        world = self._world
        if world.elder is not None or world.journal.refused or world.bus.fenced:
            return
        intent = world.journal.load("intent").get("desired")
        written = {
            content(c["policy"], c["knob"], labels_of(c["scope"]), c["value"])
            for c in (intent or {}).get("claims", ())
        }
        if world.bus.view().in_sync and not world.core_claims() <= written:
            self._fail("the core holds what was never written", sorted(world.core_claims()),
                       sorted(written))
