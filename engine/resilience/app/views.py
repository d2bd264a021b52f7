"""What the control API shows: pure functions from the engine's and the bus's pictures to JSON."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from resilience.app.bus import BusView
from resilience.app.engine import Snapshot
from resilience.knobs import is_engines, scope_text
from resilience.model import (
    LADDER,
    Actual,
    Bundle,
    Claim,
    Json,
    Policy,
    Rung,
    State,
    TriggerObservation,
)
from resilience.policy.arbitration import HOUR_MS, group_key
from resilience.policy.failures import in_file
from resilience.policy.state import EngineState, Instance
from resilience.policy.views import INSTANCES_MAX
from resilience.policy.waiting import waits_for
from resilience.policy.words import listed

# The state that a policy with several instances is shown with: the first of these that occurs.
WORST = (
    State.FIRING, State.HELD, State.RECOVERING, State.SUSPENDED, State.PENDING, State.INACTIVE,
)
ALL_POLICIES = "*"
NAMED_MAX = 5


def policies(
    bundle: Bundle, snapshot: Snapshot, evaluated_ms: Mapping[int, int], now_ms: int
) -> list[Json]:
    """Return one object a policy, in order of name."""
    return [
        _policy(p, bundle, snapshot, evaluated_ms.get(p.interval_ms), now_ms)
        for p in sorted(bundle.policies, key=lambda p: p.name)
    ]


def belts(bundle: Bundle, snapshot: Snapshot, now_ms: int) -> Json:
    """Return the safety belts in force: the least value of each lever, by knob and scope, and the
    disruptive actions of the sliding hour beside their limit (None: no limit)."""
    safety, ledger = bundle.config.safety, snapshot.state.ledger
    return {
        "enabled": safety.enabled, "floors": dict(sorted(ledger.floors.items())),
        "disruptive": sum(now_ms - HOUR_MS < t <= now_ms for t in ledger.disruptive_ms),
        "disruptive_per_hour": safety.disruptive_per_hour if safety.enabled else None,
        "claims_cut": ledger.crowded,
    }


def quarantine(policy: str, snapshot: Snapshot, now_ms: int) -> list[Json]:
    """Return the levers of a policy that a check has shut, and until when."""
    shut = snapshot.state.ledger.quarantine.get(policy, {})
    return [{"lever": name, "until_ms": t} for name, t in sorted(shut.items()) if t > now_ms]


def _policy(
    policy: Policy, bundle: Bundle, snapshot: Snapshot, evaluated_ms: int | None, now_ms: int
) -> Json:
    group, ledger = snapshot.state.of(policy.name), snapshot.state.ledger
    observation = snapshot.observations.get(policy.name)
    full = is_full(policy, group)
    instances = [
        _instance(policy, name, body, now_ms, full) for name, body in sorted(group.items())
    ]
    states = {body.state for body in group.values()}
    series = observation.series if observation else ()
    truths = Counter(s.truth.value for s in series)
    return {
        "name": policy.name, "mode": policy.mode, "interval_ms": policy.interval_ms,
        "priority": policy.priority, "file": policy.file, "line": policy.line,
        "slo": policy.slo.to_json() if policy.slo else None,
        "spec_hash": policy.spec_hash, "annotations": dict(policy.annotations),
        "state": next((s.value for s in WORST if s in states), State.INACTIVE.value),
        "instances": instances, "series": dict(truths),
        "blind": observation is not None and not series,
        "reason": observation.missing.value if observation and not series else None,
        "error": _error(observation, policy, bundle),
        "evaluated_ms": evaluated_ms, "group": policy.group,
        "group_holder": ledger.holders.get(group_key(policy)) if policy.group else None,
        "quarantine": quarantine(policy.name, snapshot, now_ms),
        "series_left_out": ledger.left_out.get(policy.name, 0),
        "paused": is_paused(policy.name, snapshot.state.paused),
        "paused_until_ms": paused_until(policy.name, snapshot.state.paused),
    }


def _error(
    observation: TriggerObservation | None, policy: Policy, bundle: Bundle
) -> str | None:
    if observation is None or observation.detail is None:
        return None
    return in_file(observation.detail, policy, bundle)


def is_paused(name: str, paused: Mapping[str, int | None]) -> bool:
    return name in paused or ALL_POLICIES in paused


def paused_until(name: str, paused: Mapping[str, int | None]) -> int | None:
    """Return when the pause of a policy ends; None while it has no end, or there is none."""
    ends = [paused[key] for key in (name, ALL_POLICIES) if key in paused]
    return max((e for e in ends if e is not None), default=None) if None not in ends else None


def is_full(policy: Policy, group: Mapping[str, Instance]) -> bool:
    """Return whether as many instances are at work as the policy allows."""
    most = policy.limits.max_active
    return most is not None and sum(i.holds for i in group.values()) >= most


def _instance(policy: Policy, name: str, body: Instance, now_ms: int, full: bool) -> Json:
    return {
        "instance": name, "labels": dict(body.labels), "state": body.state.value,
        "held_from": body.held_from.value if body.held_from else None,
        "since_ms": body.since_ms, "value": body.value, "truth": body.truth.value,
        "reason": body.reason.value, "claims": [c.to_json() for c in body.claims],
        "waits": list(waits_for(policy, body, now_ms, full=full)),
        "quarantine_until_ms": ahead(body.quarantine_until_ms, now_ms),
        "cooldown_until_ms": ahead(body.cooldown_until_ms, now_ms),
    }


def left_out(bundle: Bundle, state: EngineState) -> str | None:
    """Return that series got no instance, and of which policies; None: each has one.

    How many there are is a metric: the text stays the same while they come and go.
    """
    names = sorted(state.ledger.left_out)
    if not names:
        return None
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return (
        f"series of {listed(names[:NAMED_MAX])}{more} get no instance, so they cannot fire: there "
        f"is room for {bundle.config.max_instances} instances in all and {INSTANCES_MAX} of a "
        "policy; raise `limits.instances`, or aggregate in the trigger"
    )


def ahead(t_ms: int | None, now_ms: int) -> int | None:
    """Return a time that is still to come, or None."""
    return t_ms if t_ms is not None and t_ms > now_ms else None


def claims(snapshot: Snapshot, bus: BusView) -> list[Json]:
    """Return the live claims with what the core holds for each."""
    return [_claim(c, bus.actual, bus) for c in snapshot.claims]


def _claim(claim: Claim, actual: Actual | None, bus: BusView) -> Json:
    if is_engines(claim.knob):
        return {**claim.to_json(), "effective": claim.value, "rules": True, "remaining_ms": None,
                "refused": None}
    scope = scope_text(claim.scope)
    effective = (
        actual.effective.get(claim.knob, {}).get(scope) if actual is not None else None
    )
    refused = next(
        (why for policy, knob, why in bus.refused if (policy, knob) == (claim.policy, claim.knob)),
        None,
    )
    return {
        **claim.to_json(),
        "effective": effective.value if effective else None,
        "rules": effective is not None and effective.policy == claim.policy,
        "remaining_ms": effective.remaining_ms if effective else None,
        "refused": refused,
    }


def ladder(
    rungs: Sequence[Rung], claims: Sequence[Json], served: Sequence[str] | None,
    engines: Mapping[str, Json] | None = None,
) -> list[Json]:
    """Return the rungs in order. `available` None: not known here (no core, or another server's);
    `running` is {state, reason, pid} of a second engine, None for other kinds.
    `claimed_by`: the policies whose claim on `route.model` is in force and leads there."""
    return [_rung(rung, claims, served, (engines or {}).get(rung.name)) for rung in rungs]


def _rung(
    rung: Rung, claims: Sequence[Json], served: Sequence[str] | None, running: Json
) -> Json:
    available: bool | None = None
    if rung.kind == "engine":
        available = None if running is None else running["state"] == "ready"
    elif rung.kind in ("cached", "template"):
        available = True
    elif rung.kind != "url" and served is not None:
        available = rung.model in served
    users = {
        c["policy"] for c in claims
        if c["knob"] == "route.model" and c["rules"] and c["value"]["to"] in (LADDER, rung.name)
    }
    return {**asdict(rung), "available": available, "running": running,
            "claimed_by": sorted(users)}


def bus_json(bus: BusView) -> Json:
    return {
        "attached": bus.attached, "epoch": bus.epoch, "generation": bus.generation,
        "fenced": bus.fenced, "in_sync": bus.in_sync, "claims": len(bus.claims),
        "lease_remaining_ms": bus.lease_remaining_ms, "drifts": bus.drifts,
        "drifts_left": bus.drifts_left, "drift": bus.drift,
        "released": dict(bus.released) if bus.released is not None else None,
        "impulses_pending": bus.impulses_pending,
        "impulses_dropped": bus.impulses_dropped, "error": bus.error,
        "refused": [{"policy": p, "knob": k, "why": w} for p, k, w in bus.refused],
        "actual": bus.actual.to_json() if bus.actual else None, "metrics": dict(bus.metrics),
    }


def state_counts(bundle: Bundle, snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return (policy, state) -> number of instances, with 0 for the states nobody is in."""
    counts = {(p.name, s.value): 0 for p in bundle.policies for s in State}
    for (policy, _), body in snapshot.state.items():
        if (policy, body.state.value) in counts:
            counts[policy, body.state.value] += 1
    return counts


def udfs(bundle: Bundle, quarantined: Mapping[str, str]) -> list[Json]:
    """Return the functions of the bundle's UDF files, who calls them, and why one is not run."""
    callers: dict[str, list[str]] = {}
    for policy in bundle.policies:
        actions = [*policy.actions, *(a for e in policy.escalation for a in e.actions)]
        for action in actions:
            if action.udf is not None:
                callers.setdefault(action.udf.function, []).append(policy.name)
    return [
        {"function": name, "file": file, "doc": doc,
         "called_by": sorted(set(callers.get(name, []))), "quarantined": quarantined.get(name)}
        for file, text in bundle.udfs
        for name, doc in _functions(text)
    ]


def _functions(text: str) -> Sequence[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return [
        (node.name, (ast.get_docstring(node) or "").partition("\n")[0])
        for node in tree.body if isinstance(node, ast.FunctionDef)
    ]
