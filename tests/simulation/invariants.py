"""What must hold after every second of a simulated world, whatever went wrong in it."""

from __future__ import annotations

from collections import deque

from resilience.app.engine import TickReport
from resilience.model import Claim, Decision, Json, Reason, State, Truth, canonical_json
from resilience.policy.state import EngineState, live_claims
from tests.simulation.world import INTERVAL_MS, LEASE_MS, World

CALM_TICKS = 45
GRACE_MS = 3 * INTERVAL_MS
FRESH_MS = 3_500
LOOK_MS = 15_000


class Violation(AssertionError):
    """An invariant does not hold; the message names the seed, the tick and what was seen."""


def _content(claim: Claim) -> str:
    return canonical_json([claim.policy, claim.knob, dict(claim.scope), claim.value])


class Watch:
    """Follows one world and raises Violation at the first broken promise."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ticks = 0
        self.decisions = 0
        self._history: deque[tuple[int, frozenset[str]]] = deque(maxlen=600)

    def run(self, ticks: int) -> None:
        """A storm of `ticks` seconds, then calm: everything must have come home."""
        for _ in range(ticks):
            self.step()
        self.world.calm()
        for _ in range(CALM_TICKS):
            self.step()
        self._home()

    def step(self) -> None:
        world = self.world
        before = world.engine
        report = world.step()
        self.ticks += 1
        if report is None:
            self._restored(before.state, world.engine.state)
        else:
            self._judge(report)
        self._remember()
        self._no_dead_claims()
        self._impulses_once()
        if report is not None:
            self._in_sync_means_equal()

    # --- the promises ---

    def _restored(self, before: EngineState, after: EngineState) -> None:
        """State after a restart equals the state before, or the one that was just journalled."""
        if before != after and self.world.crashed != "after the write":
            self._fail("the restart forgot or invented state", before.to_json(), after.to_json())

    def _judge(self, report: TickReport) -> None:
        self.decisions += len(report.decisions)
        for decision in report.decisions:
            self._ends_by_evidence(decision)
            self._breach_is_seen(decision)
            self._blind_is_called_blind(decision)
        if report.error is None:
            self._floors_hold()

    def _ends_by_evidence(self, decision: Decision) -> None:
        """Resolve never on absence: a policy that holds ends only by what was seen, or by hand."""
        ended = decision.claims_before and not decision.claims_after
        if not ended or decision.policy != "queue":
            return
        if decision.reason in (Reason.OPERATOR, Reason.REVISION):
            return
        if not self.world.seen(decision.labels, lambda value: value < 10, FRESH_MS):
            self._fail("a firing ended without evidence", decision.to_json())

    def _breach_is_seen(self, decision: Decision) -> None:
        """Blind is never reported as overloaded."""
        fires = decision.to_state is State.FIRING and decision.from_state is not State.FIRING
        if not fires or decision.truth is not Truth.TRUE or decision.policy == "blind":
            return
        if not self.world.seen(decision.labels, lambda value: value > 10, FRESH_MS):
            self._fail("a breach that nobody measured", decision.to_json())

    def _blind_is_called_blind(self, decision: Decision) -> None:
        """What nobody can see is never given as a breach, whatever the policy makes of it."""
        seen = decision.reason in (Reason.BREACH, Reason.RELAPSE, Reason.PENDING_FOR)
        if decision.truth is Truth.UNKNOWN and seen and decision.to_state is not State.PENDING:
            self._fail("blind was reported as overloaded", decision.to_json())

    def _floors_hold(self) -> None:
        """The safety belts: no claim takes more of a knob's capacity than is allowed."""
        engine = self.world.engine
        if engine.capabilities is None:
            return
        allowed = 1 - engine.bundle.config.safety.capacity_removed
        for claim in live_claims(engine.state, engine.bundle):
            knob = engine.capabilities.knobs.get(claim.knob)
            if claim.scope or knob is None or knob.capacity is None:
                continue
            if claim.value < int(knob.capacity * allowed):
                self._fail("a claim is below the floor", claim.to_json())

    def _remember(self) -> None:
        engine = self.world.engine
        claims = live_claims(engine.state, engine.bundle)
        now_ms = self.world.clock.mono_ms
        self._history.append((now_ms, frozenset(_content(c) for c in claims)))

    def _no_dead_claims(self) -> None:
        """No claim outlives its policy beyond lease + tick."""
        since_ms = self.world.clock.mono_ms - LEASE_MS - GRACE_MS - INTERVAL_MS
        wanted = set[str]().union(*(c for t, c in self._history if t >= since_ms))
        for content in self.world.core_claims():
            if content not in wanted:
                self._fail("a claim outlived its policy", content)

    def _in_sync_means_equal(self) -> None:
        """When the bus says in sync, the core's values are the fold of the live claims."""
        world = self.world
        if not world.bus.view().in_sync or world.clock.mono_ms - world.core_lost_ms < LOOK_MS:
            return
        wanted = {_content(c) for c in live_claims(world.engine.state, world.engine.bundle)}
        if world.core_claims() != wanted:
            self._fail("in sync, but not equal", sorted(world.core_claims()), sorted(wanted))

    def _impulses_once(self) -> None:
        keys = [key for key, _, _ in self.world.core.done]
        if len(keys) != len(set(keys)):
            self._fail("an impulse was done twice", keys)

    def _home(self) -> None:
        """After the storm: no claim in the core or the engine, the bus in sync, nothing firing."""
        left = sorted(self.world.core_claims())
        firing = [k for k, i in self.world.engine.state.items() if i.claims]
        if left or firing:
            self._fail("something is still degraded after the storm", left, firing)
        if not self.world.bus.view().in_sync:
            self._fail("the bus never got in sync", self.world.bus.view().error)

    def _fail(self, what: str, *details: Json) -> None:
        seed, tick = self.world.seed, self.ticks
        shown = "; ".join(canonical_json(d)[:2_000] for d in details)
        raise Violation(
            f"{what}\nseed {seed}, tick {tick}: {shown}\n"
            f"replay: python tests/simulation/run.py --seed {seed} --seeds 1 --ticks {tick}"
        )
