"""What `explain` tells beside a recorded decision: how its policy stands now. Pure.

A record says what was decided and why. What came of a `verify`, which levers are shut, who holds
the group and who else claims the same knob is only known later, so it is read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from resilience import knobs
from resilience.app import views
from resilience.app.engine import Snapshot
from resilience.model import Bundle, Claim, Guard, Json, Labels, Policy, Verify, labels_of
from resilience.policy.arbitration import group_key
from resilience.policy.claims import active_actions, levers
from resilience.policy.conflicts import conflicts, rule_text
from resilience.policy.levers import lever
from resilience.policy.state import Instance, Verification
from resilience.policy.waiting import waits_for

Place = tuple[str, Labels]


def standing(decision: Json, bundle: Bundle, snapshot: Snapshot, now_ms: int) -> Json:
    """Return how the policy and the instance of a decision stand; None: the policy is gone."""
    policy = next((p for p in bundle.policies if p.name == decision["policy"]), None)
    if policy is None:
        return None
    state = snapshot.state
    group = state.of(policy.name)
    instance = group.get(decision["instance"])
    return {
        "t_ms": now_ms, "changed": policy.spec_hash != decision["spec_hash"],
        "state": instance.state.value if instance else "inactive",
        "same_firing": _is_same_firing(decision, instance),
        "waits": list(waits_for(policy, instance, now_ms, full=views.is_full(policy, group)))
        if instance else [],
        "checks": list(_checks(policy, instance, now_ms)),
        "quarantine": views.quarantine(policy.name, snapshot, now_ms),
        "quarantine_until_ms": views.ahead(instance.quarantine_until_ms, now_ms)
        if instance else None,
        "probe": _probe(policy, instance),
        "group": None if policy.group is None else {
            "name": policy.group, "holder": state.ledger.holders.get(group_key(policy))},
        "limits": _limits(policy),
        "belts": _belts(policy, instance, bundle, snapshot, now_ms),
        "rivals": list(_rivals(decision, bundle, snapshot)),
    }


def _is_same_firing(decision: Json, instance: Instance | None) -> bool:
    began_ms = decision["clocks"].get("firing_since_ms")
    return instance is not None and began_ms is not None and instance.firing_since_ms == began_ms


# --- verify, guard, probe ---


def _checks(policy: Policy, instance: Instance | None, now_ms: int) -> Iterator[Json]:
    """Yield each verify and guard of the actions in force, `action` empty for the policy's own."""
    reached = {a.key for a in active_actions(policy, instance)} if instance else set[str]()
    known = {v.key: v for v in instance.verify} if instance else {}
    for key, check in policy.checks():
        if key and key not in reached:
            continue
        if isinstance(check, Guard):
            yield {"kind": "guard", "action": key, "expr": check.expr,
                   "quarantine_ms": check.quarantine_ms}
        elif key in known:
            yield {"kind": "verify", "action": key, "expr": check.expr,
                   "on_failure": check.on_failure, **_progress(known[key], check)}


def _progress(v: Verification, verify: Verify) -> Json:
    """Return where a verify is: `met`, `failed`, `holding`, `unknown` or `waiting`; `at_ms` is
    since when, and for `waiting` until when."""
    if v.done:
        return {"outcome": "failed" if v.met_ms is None else "met", "at_ms": v.met_ms}
    if v.blind_ms is not None:
        return {"outcome": "unknown", "at_ms": v.blind_ms}
    if v.met_ms is not None:
        return {"outcome": "holding", "at_ms": v.met_ms}
    return {"outcome": "waiting", "at_ms": v.since_ms + verify.within_ms}


def _probe(policy: Policy, instance: Instance | None) -> Json:
    if policy.probe is None:
        return None
    done, since_ms = (instance.probes, instance.probe_since_ms) if instance else (0, None)
    return {"done": done, "max": policy.probe.max, "since_ms": since_ms,
            "share": policy.probe.share}


# --- limits and belts ---


def _limits(policy: Policy) -> Json:
    limits = policy.limits
    return {
        "cooldown_ms": limits.cooldown_ms, "min_samples": limits.min_samples,
        "rate": [{"max": r.max, "per_ms": r.per_ms} for r in limits.rate],
        "max_active": limits.max_active,
    }


def _belts(
    policy: Policy, instance: Instance | None, bundle: Bundle, snapshot: Snapshot, now_ms: int
) -> Json:
    """Return the floors of the levers that the policy pulls, and the disruptive actions."""
    body = views.belts(bundle, snapshot, now_ms)
    seen = instance or Instance(())
    pulled = {name for a in policy.every_action() for name in levers(a, seen)}
    disruptive = any(a.disruptive for a in policy.every_action())
    return {
        "floors": {name: least for name, least in body["floors"].items() if name in pulled},
        "disruptive": body["disruptive"] if disruptive else None,
        "disruptive_per_hour": body["disruptive_per_hour"],
        "refused": list(instance.refused) if instance else [],
    }


# --- who else claims the knob ---


def _rivals(decision: Json, bundle: Bundle, snapshot: Snapshot) -> Iterator[Json]:
    """Yield each lever of the decision that others claim now, or may: who does, and who wins."""
    wanted: dict[Place, None] = {}
    for claim in (*decision["claims_after"], *decision["claims_before"]):
        wanted[claim["knob"], labels_of(claim["scope"])] = None
    possible = {(c.knob, c.scope): c.rivals for c in conflicts(bundle) if not c.shadow}
    mine = decision["policy"], decision["instance"]
    for place in wanted:
        if knobs.is_engines(place[0]):
            continue
        live = [c for c in snapshot.claims if (c.knob, c.scope) == place]
        names = {c.policy for c in live} | {decision["policy"]}
        others = [r.to_json() for r in possible.get(place, ()) if r.policy not in names]
        if others or any((c.policy, c.instance) != mine for c in live):
            yield _contest(place, live, others, snapshot)


def _contest(
    place: Place, live: Iterable[Claim], others: list[Json], snapshot: Snapshot
) -> Json:
    claims = list(live)
    return {
        "lever": lever(*place), "rule": rule_text(place[0]),
        "winner": _winner(place, claims),
        "claims": [
            {"policy": c.policy, "labels": _labels(snapshot, c), "value": c.value,
             "priority": c.priority}
            for c in claims
        ],
        "may_claim": others,
    }


def _labels(snapshot: Snapshot, claim: Claim) -> Mapping[str, str]:
    instance = snapshot.state.of(claim.policy).get(claim.instance)
    return dict(instance.labels) if instance is not None else {}


def _winner(place: Place, claims: Iterable[Claim]) -> Json:
    """Return the claim that is in force of these, by the knob's own fold; None without any."""
    live = [
        knobs.LiveClaim(c.knob, c.scope, c.value, c.policy, c.priority, 0) for c in claims
    ]
    ruling = knobs.fold(live).get(place[0], {}).get(knobs.scope_text(place[1]))
    return None if ruling is None else {"policy": ruling.policy, "value": ruling.value}
