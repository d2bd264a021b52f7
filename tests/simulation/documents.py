"""What the simulated engines run: three policies over ten series, in several kinds.

The kind is drawn from the seed, so that every mechanism of the decision core meets every fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    EngineConfig,
    Escalation,
    Guard,
    ImpulseSpec,
    Json,
    Labels,
    Limits,
    Policy,
    Probe,
    RateLimit,
    Recovery,
    Resolve,
    Safety,
    Trigger,
    UdfSpec,
    Verify,
    labels_of,
)

INTERVAL_MS = 1_000
LEASE_MS = 6_000
VERIFY_MS = 4_000
QUARANTINE_MS = 6_000
BREACH, CLEAR, GUARD = 10.0, 5.0, 18.0
DISRUPTIVE_MAX = 2
COOLDOWN_MS = 5_000
RATE = RateLimit(5, 60_000)
GROUP = "admission"
CANDIDATE = 3  # the limit that only a candidate asks for
# The UDF of policy `cache` asks for less than these belts leave: 6 of the core's 32.
CONFIG = EngineConfig(
    safety=Safety(capacity_removed=0.8, disruptive_per_hour=DISRUPTIVE_MAX)
)

Kind = Callable[[Policy], Policy]


def propose(result: Json, action: Action) -> tuple[Action, ...]:
    spec = ClaimSpec("cache.max_running", result["max_running"])
    return (Action(f"{action.key}.0", "cache_degrade", (spec,), lease_ms=LEASE_MS),)


def series(name: str, engine: int) -> Labels:
    return labels_of({"__name__": name, "engine": str(engine), "job": "vllm"})


def throttle(limit: int, key: str = "0") -> Action:
    spec = ClaimSpec("throttle.max_concurrency", limit, (("tier", "best-effort"),))
    return Action(key, "throttle", (spec,), lease_ms=LEASE_MS)


RESET = Action(
    "1", "reset_prefix_cache", impulses=(ImpulseSpec("reset_prefix_cache"),), lease_ms=LEASE_MS,
)  # fmt: skip
CALL = Action("0", "udf_call", udf=UdfSpec("adapt", 500, on_error="hold"), lease_ms=LEASE_MS)
QUEUE = Policy(
    "queue",
    Trigger(f"load > {BREACH:g}", "hold", for_ms=4_000,
            resolve=Resolve(f"load < {CLEAR:g}", 2_000), max_age_ms=3_500),
    (throttle(8), RESET), interval_ms=INTERVAL_MS, priority=60,
)  # fmt: skip
CACHE = Policy(
    "cache",
    Trigger(f"usage > {BREACH:g}", "resolve", keep_firing_for_ms=3_000, max_age_ms=3_500),
    (CALL,), interval_ms=INTERVAL_MS, recovery=Recovery((0.5, 1.0), 2_000),
)  # fmt: skip
BLIND = Policy(
    "blind", Trigger("sum(load) > 60", "fire", for_ms=3_000, max_age_ms=3_500), (throttle(4),),
    interval_ms=INTERVAL_MS, limits=Limits(COOLDOWN_MS, (RATE,)),
)  # fmt: skip


def _plain(policy: Policy) -> Policy:
    return policy


def _checked(policy: Policy) -> Policy:
    """A verify, a guard that undoes all, and a guard of one action."""
    if policy.name == "queue":
        guarded = replace(throttle(8), guard=Guard(f"load > {GUARD:g}", QUARANTINE_MS))
        return replace(
            policy, actions=(guarded, RESET),
            verify=Verify("load < 9", VERIFY_MS, quarantine_ms=QUARANTINE_MS),
        )
    if policy.name == "cache":
        return replace(policy, guard=Guard(f"usage > {GUARD:g}", QUARANTINE_MS))
    return policy


def _grouped(policy: Policy) -> Policy:
    """A group, an escalation, and disruptive actions that the belts count."""
    if policy.name == "queue":
        stage = Escalation(5_000, (throttle(2, "e0.0"),))
        disruptive = replace(RESET, disruptive=True)
        return replace(
            policy, group=GROUP, actions=(throttle(8), disruptive), escalation=(stage,),
            limits=Limits(max_active=3),
        )
    return replace(policy, group=GROUP) if policy.name == "blind" else policy


def _probing(policy: Policy) -> Policy:
    """Half-open probes, warm-up after blindness, several samples before a firing, and a firing
    for want of series beside those of the series."""
    if policy.name == "blind":
        resolve = Resolve(f"load < {CLEAR:g}", 2_000)
        trigger = replace(policy.trigger, expr=f"load > {BREACH:g}", resolve=resolve)
        return replace(policy, trigger=trigger)
    if policy.name != "queue":
        return policy
    return replace(
        policy, probe=Probe(4_000, share=0.5, for_ms=2_000, max=3), limits=Limits(min_samples=2),
        trigger=replace(policy.trigger, warm_up=2), recovery=Recovery((0.5, 1.0), 2_000),
    )


KINDS: tuple[Kind, ...] = (_plain, _checked, _grouped, _probing)


def bundle(kind: int, revision: str, *, limit: int = 8, without: frozenset[str] = frozenset(),
           ) -> Bundle:
    """Return the policies of a kind; `limit` is what `queue` throttles to."""
    found = [KINDS[kind](p) for p in (QUEUE, CACHE, BLIND) if p.name not in without]
    changed = tuple(_throttled(p, limit) if p.name == "queue" else p for p in found)
    return Bundle(revision, changed, CONFIG)


def _throttled(policy: Policy, limit: int) -> Policy:
    first = replace(policy.actions[0], claims=throttle(limit).claims)
    return replace(policy, actions=(first, *policy.actions[1:]))
