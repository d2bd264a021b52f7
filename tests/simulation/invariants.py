"""What must hold after every second of a simulated world, whatever went wrong in it."""

from __future__ import annotations

from collections import Counter, deque

from resilience.app.engine import TickReport
from resilience.model import Claim, Decision, Json, Reason, State, Truth, canonical_json, labels_of
from resilience.policy.state import EngineState, live_claims
from tests.simulation.accounts import Accounts
from tests.simulation.documents import (
    BREACH,
    DISRUPTIVE_MAX,
    GROUP,
    GUARD,
    INTERVAL_MS,
    KINDS,
    LEASE_MS,
    QUARANTINE_MS,
    VERIFY_MS,
)
from tests.simulation.world import World

CALM_TICKS = 45
GRACE_MS = 3 * INTERVAL_MS
FRESH_MS = 3_500
LOOK_MS = 15_000
OVERTAKEN_MS = 20_000
TEMPORARY = frozenset({Reason.OPERATOR, Reason.REVISION, Reason.SUPERSEDED, Reason.SAFETY,
                       Reason.QUARANTINE})


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
        self.expired = 0
        self._history: deque[tuple[int, frozenset[str]]] = deque(maxlen=64)
        self._contents: dict[Claim, str] = {}
        self._shut: dict[tuple[str, str], int] = {}
        self._firing: dict[tuple[str, str], int] = {}
        self._accounts = Accounts(world, self._fail)

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
        reloads = world.reloads
        world.worker.failed.clear()
        report = world.step()
        self.ticks += 1
        if reloads != world.reloads:
            self._shut.clear()
        if report is None:
            self._restored_both()
        else:
            self._judge(report)
        self._remember(died=report is None)
        self._no_dead_claims()
        self._impulses_once()
        self._one_engine_acts()
        self._released_means_bare()
        self._accounts.look(report)
        if report is not None:
            self._in_sync_means_equal()

    # --- the promises ---

    def _restored_both(self) -> None:
        engine, canary = self.world.dead or (self.world.engine, None)
        if engine.saved != engine.state:
            self._shut.clear()  # what was undone on a full disk is not known after a crash
        self._restored(engine.saved, self.world.engine.state)
        if canary is not None and self.world.canary is not None:
            self._restored(canary.engine.saved, self.world.canary.engine.state)

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
            self._guard_is_seen(decision)
            self._verify_waits(decision)
            self._failed_udf_asks_nothing(decision)
        if report.error is None:
            self._floors_hold()
            self._shut_stays_shut()
            self._one_of_the_group()

    def _seen(self, decision: Decision, *, above: float = -1.0, below: float = 1e9) -> bool:
        """Whether a value between the two was measured for the decision's series lately."""
        return self.world.seen(decision.labels, lambda v: above < v < below, FRESH_MS)

    def _ends_by_evidence(self, decision: Decision) -> None:
        """Resolve never on absence: a policy that holds ends only by what was seen, or by hand."""
        ended = decision.claims_before and not decision.claims_after
        if not ended or decision.policy != "queue" or decision.reason in TEMPORARY:
            return
        if decision.reason in (Reason.GUARD, Reason.VERIFY_FAILED):
            return  # judged by themselves
        shut = self.world.engine.state.ledger.quarantine
        if decision.to_state in (State.FIRING, State.HELD) and decision.policy in shut:
            return  # it goes on, without the lever that another instance's guard has shut
        if not self._seen(decision, below=BREACH):
            self._fail("a firing ended without evidence", decision.to_json())

    def _breach_is_seen(self, decision: Decision) -> None:
        """Blind is never reported as overloaded."""
        fires = decision.to_state is State.FIRING and decision.from_state is not State.FIRING
        if not fires or decision.truth is not Truth.TRUE or decision.policy == "blind":
            return
        if not self._seen(decision, above=BREACH):
            self._fail("a breach that nobody measured", decision.to_json())

    def _blind_is_called_blind(self, decision: Decision) -> None:
        """What nobody can see is never given as a breach, whatever the policy makes of it."""
        seen = decision.reason in (Reason.BREACH, Reason.RELAPSE, Reason.PENDING_FOR)
        if decision.truth is Truth.UNKNOWN and seen and decision.to_state is not State.PENDING:
            self._fail("blind was reported as overloaded", decision.to_json())

    def _guard_is_seen(self, decision: Decision) -> None:
        """A guard undoes only what was measured, and what it shut stays shut for its time."""
        if decision.reason is not Reason.GUARD or decision.to_state is State.PENDING:
            return
        if not self._seen(decision, above=GUARD):
            self._fail("a guard undid without evidence", decision.to_json())
        whole = decision.to_state is State.INACTIVE
        key = (decision.policy, decision.instance if whole else "")
        self._shut[key] = decision.t_ms + QUARANTINE_MS

    def _verify_waits(self, decision: Decision) -> None:
        """A verify fails only after its time, and keeps the instance from firing for a while."""
        key = (decision.policy, decision.instance)
        if decision.to_state is State.FIRING and decision.from_state is State.PENDING:
            self._firing[key] = decision.t_ms
        if decision.reason is not Reason.VERIFY_FAILED:
            return
        since_ms = self._firing.get(key, decision.t_ms - VERIFY_MS)
        at_once = decision.from_state is State.PENDING
        if at_once or 0 <= decision.t_ms - since_ms < VERIFY_MS:
            self._fail("a verify failed before its time", decision.to_json())
        self._shut[key] = decision.t_ms + QUARANTINE_MS

    def _failed_udf_asks_nothing(self, decision: Decision) -> None:
        """A function that fails when the firing begins claims nothing; later what it asked for
        before stands, as far as the belts allow it by then."""
        begins = decision.from_state in (State.INACTIVE, State.PENDING)
        failed = (decision.policy, decision.instance) in self.world.worker.failed
        if begins and failed and decision.claims_after:
            self._fail("a function that failed asked for something", decision.to_json())

    def _shut_stays_shut(self) -> None:
        now_ms = self.world.t_ms
        self._shut = {k: t for k, t in self._shut.items() if now_ms < t <= now_ms + QUARANTINE_MS}
        if not self._shut:
            return
        for claim in self.world.engine.snapshot().claims:
            if (claim.policy, claim.instance) in self._shut or (claim.policy, "") in self._shut:
                self._fail("a claim on a lever in quarantine", claim.to_json())

    def _one_of_the_group(self) -> None:
        """At most one member of a group holds claims."""
        engine = self.world.engine
        members = {p.name for p in engine.bundle.policies if p.group == GROUP}
        holding = {c.policy for c in live_claims(engine.state, engine.bundle)} & members
        if len(holding) > 1:
            self._fail("two members of a group hold", sorted(holding))

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

    def _remember(self, died: bool) -> None:
        """Note which claims engines want: also one that has just died, whose last word reached the
        core and, on a full disk, nothing else."""
        world = self.world
        engines = [world.engine, *([world.elder[0]] if world.elder else [])]
        if died and world.dead is not None:
            engines.append(world.dead[0])
        claims = [c for e in engines for c in live_claims(e.state, e.bundle)]
        if len(self._contents) > 256:
            self._contents.clear()
        for claim in claims:
            if claim not in self._contents:
                self._contents[claim] = _content(claim)
        found = frozenset(self._contents[c] for c in claims)
        self._history.append((world.clock.mono_ms, found))

    def _no_dead_claims(self) -> None:
        """No claim outlives its policy beyond lease + tick, and no candidate has one at all."""
        since_ms = self.world.clock.mono_ms - LEASE_MS - GRACE_MS - INTERVAL_MS
        now = self.world.clock.mono_ms
        for claim in self.world.core._table.live(now):
            if claim.deadline_ms <= now and not claim.keep:
                self._fail("a claim outlived its lease", claim.policy)
        held = self.world.core_claims()
        if not held:
            self.expired += bool(self.world.core._table.claims)
            return
        wanted = set[str]().union(*(c for t, c in self._history if t >= since_ms))
        for content in held - wanted:
            self._fail("a claim outlived its policy", content)

    def _in_sync_means_equal(self) -> None:
        """When the bus says in sync, the core's values are the fold of the live claims."""
        world = self.world
        unsettled = max(world.core_lost_ms, world.contested_ms)
        if not world.bus.view().in_sync or world.clock.mono_ms - unsettled < LOOK_MS:
            return
        if world.core.actual(deadline_ms=1).released:
            return
        live = live_claims(world.engine.state, world.engine.bundle)
        wanted = {self._contents.get(c) or _content(c) for c in live}
        if world.core_claims() != wanted:
            self._fail("in sync, but not equal", sorted(world.core_claims()), sorted(wanted))
        if world.core_values() != (least := _least(live)):
            self._fail("a value is not the fold of the claims", str(world.core_values()),
                       str(least))

    def _impulses_once(self) -> None:
        """No key is done twice by a core, and none by one engine at all; nor more than allowed."""
        keys = [key for key, _, _ in self.world.core.done]
        twice = [key for key, n in Counter(keys).items() if n > 1]
        rivals = self.world.dice.faults["second engine"]
        if twice and not (rivals and self.world.incarnation):
            self._fail("an impulse was done twice", twice)
        counted = KINDS[self.world.kind].__name__ == "_grouped" and not rivals
        if counted and len(keys) > DISRUPTIVE_MAX:
            self._fail("more disruptive actions than the belts allow", keys)

    def _one_engine_acts(self) -> None:
        """Fencing: an engine that was overtaken is refused, learns of it, and stops."""
        world = self.world
        if world.wire.wrongs:
            self._fail("the core let something happen that must not", world.wire.wrongs)
        if world.elder is None:
            return
        _, bus, number = world.elder
        since_ms = world.wire.overtaken_ms.get(number, world.clock.mono_ms)
        if not bus.fenced and world.clock.mono_ms - since_ms > OVERTAKEN_MS:
            self._fail("an overtaken engine never stopped", number)

    def _released_means_bare(self) -> None:
        """A core that an operator released holds nothing."""
        held = self.world.core_claims()
        if held and self.world.core.actual(deadline_ms=1).released:
            self._fail("a released core took claims", sorted(held))

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


def _least(claims: tuple[Claim, ...]) -> dict[tuple[str, str], Json]:
    """Fold the world's claims anew: all of its knobs are limits, so the least value rules."""
    found: dict[tuple[str, str], Json] = {}
    for claim in claims:
        key = (claim.knob, ",".join(f"{k}={v}" for k, v in labels_of(claim.scope)))
        found[key] = min(claim.value, found.get(key, claim.value))
    return found
