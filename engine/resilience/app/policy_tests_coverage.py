"""Which parts of the policies some test has looked at.

A part counts when an expectation looked at an instance that was there: firing, in a stage of the
escalation, recovering, probed, let go after a firing, undone by a guard, after a verify that was
met and after one that failed, and without data where `on_no_data` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from resilience.app.policy_tests_compare import View
from resilience.model import Guard, Policy, Reason, State, Truth, Verify
from resilience.policy.action_build import stage_of
from resilience.policy.checks import failed_note, guard_note
from resilience.policy.state import Instance
from resilience.promql.truth import Branch, Leaf, compile_trigger


@dataclass(frozen=True, slots=True)
class Seen:
    """An instance of a policy that an expectation looked at."""

    policy: str
    view: View


@dataclass(frozen=True, slots=True)
class PolicyCoverage:
    """The parts of one policy, and those that no test looked at."""

    policy: str
    file: str
    line: int
    parts: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was looked at, over all policies."""

    policies: tuple[PolicyCoverage, ...]

    @property
    def parts(self) -> int:
        return sum(len(p.parts) for p in self.policies)

    @property
    def covered(self) -> int:
        return self.parts - sum(len(p.missing) for p in self.policies)

    @property
    def percent(self) -> float:
        """Return the share of parts looked at, 0..100, rounded down to a tenth; none is all."""
        return (1000 * self.covered // self.parts) / 10 if self.parts else 100.0


def coverage(policies: Sequence[Policy], seen: Iterable[Seen]) -> Coverage:
    """Return how much of `policies` was looked at; those that are off have nothing to test."""
    found: dict[str, set[str]] = {}
    by_name: Mapping[str, Policy] = {p.name: p for p in policies}
    for item in seen:
        policy = by_name.get(item.policy)
        if policy is not None:
            found.setdefault(policy.name, set()).update(_looked_at(policy, item.view))
    covered: list[PolicyCoverage] = []
    for policy in sorted(policies, key=lambda p: p.name):
        parts = tuple(_parts(policy)) if policy.mode != "off" else ()
        missing = tuple(p for p in parts if p not in found.get(policy.name, ()))
        covered.append(PolicyCoverage(policy.name, policy.file, policy.line, parts, missing))
    return Coverage(tuple(covered))


def _parts(policy: Policy) -> Iterator[str]:
    yield "fires"
    for index in range(len(policy.escalation)):
        yield f"escalation[{index}]"
    if _ramps(policy):
        yield "recovery"
    if policy.probe is not None:
        yield "probe"
    for where, _, check in _checks(policy):
        yield from (f"{where}{end}" for end in ("verify: met", "verify: failed")
                    if isinstance(check, Verify))
        if isinstance(check, Guard):
            yield f"{where}guard"
    yield "undo"
    if can_be_blind(policy):
        yield f"on_no_data: {policy.trigger.on_no_data}"


def _ramps(policy: Policy) -> bool:
    return policy.recovery is not None and policy.recovery.steps[0] < 1


def _checks(policy: Policy) -> Iterator[tuple[str, str, Verify | Guard]]:
    """Yield where each verify and guard stands, the key of its action, and the check."""
    for key, check in policy.checks():
        stage = stage_of(key)
        action = f"actions[{key.rpartition('.')[2]}]." if key else ""
        yield (action if stage is None else f"escalation[{stage}].{action}"), key, check


def told(policy: Policy, note: str | None) -> Iterator[str]:
    """Yield the parts that a decision's note tells of: guards, and verifies that failed."""
    for where, key, check in _checks(policy) if note else ():
        if isinstance(check, Guard):
            if guard_note(key, check) in str(note):
                yield f"{where}guard"
        elif failed_note(key, check) in str(note):
            yield f"{where}verify: failed"


def met(policy: Policy, instance: Instance) -> Iterator[str]:
    """Yield the parts that stand for the verifies that an instance has met."""
    done = {v.key for v in instance.verify if v.done and v.met_ms is not None}
    for where, key, check in _checks(policy) if done else ():
        if key in done and isinstance(check, Verify):
            yield f"{where}verify: met"


def can_be_blind(policy: Policy) -> bool:
    """Return whether the trigger can be unknown: `absent()` and constants never are."""
    return _reads_series(compile_trigger(policy.trigger.expr).root)


def _reads_series(part: Branch | Leaf) -> bool:
    if isinstance(part, Branch):
        return _reads_series(part.left) or _reads_series(part.right)
    return bool(part.freshness)


def _looked_at(policy: Policy, view: View) -> Iterator[str]:
    if view.state is State.FIRING:
        yield "fires"
        yield from (f"escalation[{index}]" for index in range(view.stages))
    if view.state is State.RECOVERING:
        yield "probe" if view.probing else "recovery"
    yield from view.checked
    if view.state is State.INACTIVE and view.fired and not view.claims:
        yield "undo"
    if _on_no_data(policy, view):
        yield f"on_no_data: {policy.trigger.on_no_data}"


def _on_no_data(policy: Policy, view: View) -> bool:
    """Whether `on_no_data` made the difference that the test looked at."""
    if policy.trigger.on_no_data == "hold":
        return view.state is State.HELD
    if view.truth is not Truth.UNKNOWN or view.reason is Reason.IDLE:
        return False
    if policy.trigger.on_no_data == "fire":
        return view.state is State.FIRING
    return view.fired and view.state in (State.INACTIVE, State.RECOVERING)
