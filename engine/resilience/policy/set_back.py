"""A wall clock that was set back: the clocks in the state go back with it. Pure.

What has elapsed stays elapsed and what is left stays left: no `for`, cooldown, ramp or quarantine
becomes longer by the hour that the clock lost. A pause names a time of day and keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from resilience.model import Policy
from resilience.policy.state import EngineState, Instance, Ledger, Verification, changed

_PAST = (
    "since_ms", "true_since_ms", "firing_since_ms", "false_since_ms", "resolve_since_ms",
    "step_since_ms", "ended_ms", "probe_since_ms", "probed_ms",
)  # fmt: skip
_FUTURE = ("cooldown_until_ms", "quarantine_until_ms")


def in_time(
    state: EngineState, policies: Sequence[Policy], now_ms: int, interval_ms: int,
    last_ms: int | None,
) -> EngineState:
    """Return the state to decide from at `now_ms`: as it is, unless the last tick of this interval
    was later; then its clocks go back, and this tick counts as the one after the last.

    `last_ms` None, after a restart: the newest time that the state remembers stands for it.
    """
    if last_ms is not None and last_ms <= now_ms:
        return state
    names = {p.name for p in policies}
    due_ms = newest_clock(state, names) if last_ms is None else last_ms + interval_ms
    return state if due_ms <= now_ms else set_back(state, names, due_ms - now_ms, now_ms)


def newest_clock(state: EngineState, policies: Collection[str]) -> int:
    """Return the newest time that the instances of `policies` remember as past; 0 for none."""
    newest = 0
    for policy in policies:
        for instance in state.of(policy).values():
            past = (getattr(instance, name) for name in _PAST)
            newest = max([newest, *(t for t in past if t is not None), *instance.fired_ms])
    return newest


def set_back(
    state: EngineState, policies: Collection[str], by_ms: int, now_ms: int
) -> EngineState:
    """Return the state with every clock of `policies` moved back by `by_ms`."""
    moved = {
        (policy, name): _moved(instance, by_ms)
        for policy in policies for name, instance in state.of(policy).items()
    }
    return state.with_changes(moved, _ledger(state.ledger, policies, by_ms, now_ms))


def _moved(instance: Instance, by_ms: int) -> Instance:
    values: dict[str, Any] = {
        name: t_ms - by_ms
        for name in (*_PAST, *_FUTURE) if (t_ms := getattr(instance, name)) is not None
    }
    values["fired_ms"] = tuple(t - by_ms for t in instance.fired_ms)
    values["verify"] = tuple(_verification(v, by_ms) for v in instance.verify)
    return changed(instance, **values)


def _verification(v: Verification, by_ms: int) -> Verification:
    return replace(
        v, since_ms=v.since_ms - by_ms,
        blind_ms=None if v.blind_ms is None else v.blind_ms - by_ms,
        met_ms=None if v.met_ms is None else v.met_ms - by_ms,
    )


def _ledger(ledger: Ledger, policies: Collection[str], by_ms: int, now_ms: int) -> Ledger:
    return replace(
        ledger,
        quarantine={
            policy: {x: t - by_ms for x, t in levers.items()} if policy in policies else levers
            for policy, levers in ledger.quarantine.items()
        },
        disruptive_ms=tuple(min(t, now_ms) for t in ledger.disruptive_ms),
    )
