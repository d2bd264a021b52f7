"""What an instance whose trigger is true still waits for, in words. Pure; decides nothing.

machine.py decides whether it fires; what is said here stands in the note of the decision that makes
it pending, and beside it in `resilience get policies`.
"""

from __future__ import annotations

from collections.abc import Iterator

from resilience.model import Policy, State, format_duration
from resilience.policy.state import Instance, fired_within
from resilience.policy.words import moment


def waits_for(policy: Policy, instance: Instance, now_ms: int, *, full: bool) -> tuple[str, ...]:
    """Return what has to pass before a pending instance fires; `full`: no more of the policy may.

    Empty for other states, and where only `for` has to pass: that is what pending says.
    """
    if instance.active is not State.PENDING:
        return ()
    return tuple(_limits(policy, instance, now_ms, full=full))


def _limits(policy: Policy, instance: Instance, now_ms: int, *, full: bool) -> Iterator[str]:
    limits = policy.limits
    if (until_ms := instance.quarantine_until_ms) is not None and now_ms < until_ms:
        yield f"quarantine until {moment(until_ms)}"
    if (until_ms := _cooldown_ms(policy, instance)) > now_ms:
        yield f"cooldown until {moment(until_ms)}"
    for rate in limits.rate:
        if fired_within(instance.fired_ms, now_ms, rate.per_ms) >= rate.max:
            yield f"it has fired {rate.max} times within {format_duration(rate.per_ms)}"
    if instance.samples < limits.min_samples and limits.min_samples > 1:
        yield f"{instance.samples} of {limits.min_samples} samples have shown it"
    if full:
        yield f"{limits.max_active} instances are at work, which is `max_active`"


def _cooldown_ms(policy: Policy, instance: Instance) -> int:
    asked_ms = 0 if instance.ended_ms is None else instance.ended_ms + policy.limits.cooldown_ms
    return max(instance.cooldown_until_ms or 0, asked_ms)
