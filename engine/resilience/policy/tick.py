"""The course of one tick: move each instance, fire, arbitrate, record. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from resilience.model import (
    Bundle,
    Claim,
    Decision,
    EngineConfig,
    Json,
    Observations,
    Policy,
    Reason,
    State,
    UdfOutcome,
    instance_id,
)
from resilience.policy.arbitration import (
    Budget,
    clip,
    group_key,
    holders,
    is_withheld,
)
from resilience.policy.checks import Judged, guard_truth, judge, outcomes, rests
from resilience.policy.claims import Permit, active_actions, fire, in_force, levers
from resilience.policy.crowd import Crowd
from resilience.policy.letting_go import Evidence
from resilience.policy.levers import floors, lever
from resilience.policy.machine import advance
from resilience.policy.records import Move, decision
from resilience.policy.state import EngineState, Instance, Key, Ledger, changed, idle
from resilience.policy.views import EVERYONE, INSTANCES_MAX, View, concerned, pauses, warmth
from resilience.policy.waiting import waits_for

_SILENT = (State.INACTIVE, State.SUSPENDED)


def completed(
    policy: Policy, instance: Instance, evidence: Evidence, observations: Observations,
    *, number: int = 0, room: bool = True, warm: bool = True,
) -> Evidence:
    """Add to the evidence what only an instance that does not stand still needs."""
    guard = guard_truth(policy, instance, observations.checks)
    e = evidence
    return Evidence(e.trigger, e.resolve, e.paused, number, e.now_ms, e.sample_ms, guard, room,
                    warm)


def judged(
    policy: Policy, moved: Instance, observations: Observations, shut: Mapping[str, int],
    now_ms: int, *, withheld: bool,
) -> Judged:
    """Let `verify` and `guard` judge an instance that the state machine has moved.

    An action whose levers are all in quarantine has been judged. `withheld`: what it does has been
    held back by its group.
    """
    if not policy.is_checked:
        return Judged(moved, {})
    actions = active_actions(policy, moved)
    if shut:
        actions = [a for a in actions if not levers(a, moved) or levers(a, moved) - shut.keys()]
    return judge(policy, moved, actions, observations.checks, now_ms, withheld=withheld)


def was_withheld(policy: Policy, before: Instance, ledger: Ledger) -> bool:
    """Whether what an instance does was held back by its group until this tick."""
    return before.holds and is_withheld(policy, ledger.holders)


class Tick:
    """What one call of `decide` gathers; nothing of it outlives the call."""

    def __init__(
        self, policies: Sequence[Policy], bundle: Bundle | None, state: EngineState,
        observations: Observations, now_ms: int, revision: str,
    ) -> None:
        ledger = state.ledger
        config = EngineConfig() if bundle is None else bundle.config
        self._everyone = policies if bundle is None else bundle.policies
        self._state, self._ledger, self._config = state, ledger, config
        self._seen, self._now_ms, self._revision = observations, now_ms, revision
        self.paused = pauses(state, observations.operator, now_ms)
        self._firings = dict(ledger.firings)
        self._warming = dict(ledger.warming)
        self._quarantine = _still_shut(ledger.quarantine, now_ms)
        self._budget = Budget(config, ledger.disruptive_ms, now_ms)
        self._floors = floors(config, observations.capacities)
        self._holders: dict[str, str] = {}
        self._crowded = ledger.crowded
        self._instances_max = None if bundle is None else config.max_instances
        self._instances = state.left_away + sum(map(len, state.instances.values()))
        self._left_out = dict(ledger.left_out)
        self._moves: dict[Key, Move] = {}
        self._changed: dict[Key, Instance | None] = {}
        self._warm, self._active = True, 0
        self._concerned = concerned(ledger, self.paused)

    # --- states ---

    def concerns(self, policy: Policy) -> bool:
        """Whether something beside the series may change the policy, or is to be forgotten of it:
        a pause, a lever in quarantine, a warm-up, series that were left out."""
        return bool(self._concerned) and (
            policy.name in self._concerned or EVERYONE in self._concerned)

    def begin(self, view: View) -> None:
        """Take up a policy: what holds for all its instances."""
        policy = view.policy
        found = warmth(view, self._ledger)
        self._warm = found is None
        if found is not None:
            self._warming[policy.name] = found
        elif self._warming:
            self._warming.pop(policy.name, None)
        if policy.limits.max_active is not None:
            self._active = sum(i.holds for i in view.known.values())

    def room(self, view: View) -> int:
        """Return how many instances the policy may have."""
        if self._instances_max is None:
            return INSTANCES_MAX
        spare = max(0, self._instances_max - self._instances)
        return min(INSTANCES_MAX, len(view.known) + spare)

    def leave_out(self, policy: Policy, series: int) -> None:
        """Remember how many series of a policy get no instance; a bundle has to know of it."""
        if series:
            self._left_out[policy.name] = series
        elif self._left_out:
            self._left_out.pop(policy.name, None)

    def rests(self, policy: Policy, before: Instance) -> bool:
        """Whether the checks would leave an instance that stands still as it is."""
        return rests(policy, before, self._seen.checks, self._now_ms,
                     withheld=was_withheld(policy, before, self._ledger))

    def is_shut(self, policy: Policy) -> bool:
        """Whether a lever of the policy is, or was until now, in quarantine."""
        return policy.name in self._ledger.quarantine

    def forget(self, policy: Policy, name: str) -> None:
        self._changed[policy.name, name] = None

    def move(self, policy: Policy, name: str, before: Instance, evidence: Evidence) -> None:
        """Move one instance on, and let its checks judge it."""
        number = self._firings.get(policy.name, 0) + 1
        most = policy.limits.max_active
        room = most is None or self._active < most
        full = completed(policy, before, evidence, self._seen, number=number, warm=self._warm,
                         room=room)
        moved = _escalated(policy, advance(policy, before, full), self._seen.udfs)
        shut = self._quarantine.get(policy.name, {})
        found = judged(policy, moved, self._seen, shut, self._now_ms,
                       withheld=was_withheld(policy, before, self._ledger))
        self._shut(policy, before, found)
        after = found.instance
        key = (policy.name, name)
        notes = list(found.notes)
        if before.verify and not after.holds and found.reason is not Reason.VERIFY_FAILED:
            notes.extend(outcomes(policy, before))
        if after.state is State.PENDING and before.state is not State.PENDING:
            notes.extend(waits_for(policy, after, self._now_ms, full=not room))
        self._moves[key] = Move(policy, key, before, after, reason=found.reason, notes=notes)
        self._active += after.holds - before.holds
        self._instances += name not in self._state.of(policy.name)
        if after.firing == number:
            self._firings[policy.name] = number

    def _shut(self, policy: Policy, before: Instance, found: Judged) -> None:
        """Put the levers of the actions that were lifted into quarantine."""
        for action in policy.every_action() if found.lifted else ():
            until_ms = found.lifted.get(action.key)
            if until_ms is None:
                continue
            shut = self._quarantine.setdefault(policy.name, {})
            for name in levers(action, replace(before, fired_value=found.instance.fired_value)):
                shut[name] = max(shut.get(name, 0), until_ms)

    # --- wishes, and what may be of them ---

    def end(self) -> tuple[EngineState, tuple[Decision, ...]]:
        """Fire and arbitrate, then return the next state and what changed."""
        self._hold_groups()
        for move in sorted(self._moves.values(), key=lambda m: (-m.policy.priority, m.key)):
            if move.after.state is State.FIRING:
                self._fire(move)
        for move in self._moves.values():
            self._claim(move)
        self._add_concerned()
        self._cut_for_number()
        return self._next_state(), tuple(
            decision(move, self._seen, self._now_ms, self._revision)
            for move in self._moves.values() if move.differs
        )  # fmt: skip

    def _hold_groups(self) -> None:
        if not any(p.group is not None for p in self._everyone):
            return
        moved = {key: move.after for key, move in self._moves.items()}
        self._holders = holders(self._everyone, self._state, moved)

    def _withheld(self, policy: Policy) -> bool:
        return is_withheld(policy, self._holders)

    def _fire(self, move: Move) -> None:
        policy = move.policy
        move.withheld = self._withheld(policy)
        allowance = self._budget if policy.mode != "shadow" else self._budget.look()
        permit = Permit(self._quarantine.get(policy.name, {}), move.withheld, allowance)
        fired = fire(policy, move.after, self._seen.udfs, self._revision, permit)
        move.fired = fired
        move.notes.extend(fired.notes)
        move.after = changed(
            move.after,
            base=fired.claims,
            impulses=(*move.after.impulses, *(i.key for i in fired.impulses)),
            previous=_previous(policy, move.after, self._seen.udfs),
            granted=fired.granted,
            refused=fired.refused,
        )

    def _claim(self, move: Move) -> None:
        """Give the instance the claims of its state, as far as group and belts allow."""
        after, policy = move.after, move.policy
        move.withheld = self._withheld(policy)
        claims = self._allowed(policy, after, move.notes)
        base = () if after.state in _SILENT else after.base
        if (claims, base) != (after.claims, after.base):
            move.after = changed(after, claims=claims, base=base)
        if move.reason is None and move.before.state is after.state:
            move.reason = self._why(move, claims)

    def _allowed(
        self, policy: Policy, instance: Instance, notes: list[str]
    ) -> tuple[Claim, ...]:
        """Return the claims of an instance's state that quarantine, group and belts leave."""
        claims = in_force(policy, instance, self._seen.capacities)
        shut = self._quarantine.get(policy.name)
        if shut and claims:
            claims = tuple(c for c in claims if lever(c.knob, c.scope) not in shut)
        if claims and self._withheld(policy):
            notes.append(
                f"group `{policy.group}` is held by `{self._holders[group_key(policy)]}`")
            return ()
        return clip(claims, self._floors, notes) if claims else claims

    def _why(self, move: Move, claims: tuple[Claim, ...]) -> Reason | None:
        """Return the reason where not the trigger changed the claims."""
        if claims == move.before.claims:
            return None
        if move.withheld:
            return Reason.SUPERSEDED
        shut = self._quarantine.get(move.policy.name, {})
        if any(lever(c.knob, c.scope) in shut for c in move.before.claims):
            return Reason.QUARANTINE
        return Reason.SAFETY if any(n.startswith("safety:") for n in move.notes) else None

    def _add_concerned(self) -> None:
        """Look again at instances that did not move, where a group, a belt or a quarantine has
        changed: a lever that one instance's guard shuts, another may still pull."""
        ledger = self._ledger
        if (self._holders, self._floors, self._quarantine) == (
            ledger.holders, ledger.floors, ledger.quarantine,
        ):
            return
        for policy, key, instance in self._at_work():
            if key not in self._moves:
                move = Move(policy, key, instance, instance)
                self._claim(move)
                self._moves[key] = move

    def _at_work(self) -> Iterator[tuple[Policy, Key, Instance]]:
        for policy in self._everyone:
            for name, instance in self._state.of(policy.name).items():
                if instance.base:
                    yield policy, (policy.name, name), instance

    def _cut_for_number(self) -> None:
        """Keep within the number of claims that a core takes: the lowest priorities give way."""
        moves = [m for m in self._moves.values() if m.policy.mode == "enforce"]
        if self._crowded:
            needed = any(m.after.claims != m.before.claims for m in moves)
        else:
            needed = any(len(m.after.claims) > len(m.before.claims) for m in moves)
        if not needed:
            return
        crowd = Crowd(
            [p for p in self._everyone if p.mode == "enforce"], self._state, self._moves,
            self._config.max_claims, self._unlimited if self._crowded else _as_it_is,
        )
        fit = crowd.fitting()
        if fit is not None or self._crowded:
            crowd.make_room(fit)
        self._crowded = fit is not None

    def _unlimited(self, policy: Policy, instance: Instance) -> tuple[Claim, ...]:
        return self._allowed(policy, instance, [])

    # --- the end ---

    def _next_state(self) -> EngineState:
        changed = self._changed
        for key, move in self._moves.items():
            settled = move.settled
            if idle(move.policy, move.after, self._now_ms):
                if key[1] in self._state.of(key[0]):
                    changed[key] = None
            elif settled is not move.before:
                changed[key] = settled
        return self._state.with_changes(changed, self._next_ledger())

    def _next_ledger(self) -> Ledger:
        before = self._ledger
        after = Ledger(
            firings=self._firings, paused=self.paused, warming=self._warming,
            quarantine=self._quarantine, disruptive_ms=self._budget.begun_ms,
            holders=self._holders, floors=self._floors, crowded=self._crowded,
            left_out=self._kept_left_out(),
        )  # fmt: skip
        return before if before == after else after

    def _kept_left_out(self) -> dict[str, int]:
        """Forget what was said of policies that are gone."""
        if not self._left_out:
            return {}
        there = {p.name for p in self._everyone if p.mode != "off"}
        return {name: n for name, n in self._left_out.items() if name in there}


def _as_it_is(policy: Policy, instance: Instance) -> tuple[Claim, ...]:
    del policy
    return instance.claims


def _still_shut(
    quarantine: Mapping[str, Mapping[str, int]], now_ms: int
) -> dict[str, dict[str, int]]:
    """Return the quarantines that have not ended."""
    left = {
        policy: {name: until for name, until in shut.items() if until > now_ms}
        for policy, shut in quarantine.items()
    }
    return {policy: shut for policy, shut in left.items() if shut}


def _escalated(
    policy: Policy, instance: Instance, outcomes: Mapping[tuple[str, str, str], UdfOutcome]
) -> Instance:
    """Take the next escalation stage at once when a UDF with `on_error: escalate` failed."""
    if instance.state is not State.FIRING or instance.stages >= len(policy.escalation):
        return instance
    for action in active_actions(policy, instance):
        if action.udf is None or action.udf.on_error != "escalate":
            continue
        outcome = outcomes.get((policy.name, instance_id(instance.labels), action.key))
        if outcome is not None and outcome.outcome != "ok":
            return changed(instance, stages=instance.stages + 1)
    return instance


def _previous(
    policy: Policy,
    instance: Instance,
    outcomes: Mapping[tuple[str, str, str], UdfOutcome],
) -> tuple[tuple[str, Json], ...]:
    """Return what each UDF of this firing returned last."""
    previous = dict(instance.previous)
    for action in active_actions(policy, instance):
        outcome = outcomes.get((policy.name, instance_id(instance.labels), action.key))
        if outcome is not None and outcome.outcome == "ok":
            previous[action.key] = outcome.result
    return tuple(sorted(previous.items()))
