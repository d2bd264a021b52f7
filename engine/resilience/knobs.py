"""Typed knobs and the folds by which concurrent claims on them become one value.

Pure standard library: this file also runs inside the serving processes. The engine, the gate, the
scheduler and the simulated core fold with the same `fold`, so that when one lease ends in the core
the other claims stand exactly as the engine believes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from resilience.model import Json, Labels, labels_of


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """A claim as the core keeps it: `deadline_ms` on the receiver's own monotonic clock."""

    knob: str
    scope: Labels
    value: Json
    policy: str
    priority: int
    deadline_ms: int
    keep: bool = False
    reason: str = ""


Fold = Callable[[Sequence[LiveClaim]], LiveClaim]


def _smallest(claims: Sequence[LiveClaim]) -> LiveClaim:
    return min(claims, key=lambda c: (c.value, -c.priority, c.policy))


def _largest(claims: Sequence[LiveClaim]) -> LiveClaim:
    return max(claims, key=lambda c: (c.value, c.priority, c.policy))


def _highest_priority(claims: Sequence[LiveClaim]) -> LiveClaim:
    return min(claims, key=lambda c: (-c.priority, c.policy, json.dumps(c.value, sort_keys=True)))


def _severest(claims: Sequence[LiveClaim]) -> LiveClaim:
    order = _BY_NAME[claims[0].knob].choices
    return min(claims, key=lambda c: (-order.index(c.value), -c.priority, c.policy))


def _lowest_rate(claims: Sequence[LiveClaim]) -> LiveClaim:
    return min(
        claims,
        key=lambda c: (c.value["tokens"] / c.value["window_ms"], -c.priority, c.policy,
                       json.dumps(c.value, sort_keys=True)),
    )


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing of the core that claims may set.

    `type` is int, float, bool, enum or map; `axes` are the scope labels it allows; `fold` names
    the rule by which concurrent claims become one value; `enforced_by` gate, scheduler or engine.
    An enum has its `choices` in order, the severest last.
    """

    name: str
    type: str
    unit: str
    axes: tuple[str, ...]
    fold_name: str
    enforced_by: str
    doc: str
    baseline: Json = None
    minimum: float = 0
    maximum: float = 1_000_000_000
    choices: tuple[str, ...] = ()

    def check(self, value: Json, scope: Mapping[str, str]) -> str | None:
        """Return why (value, scope) is nonsense, or None."""
        for axis in scope:
            if axis not in self.axes:
                allowed = ", ".join(f"`{a}`" for a in self.axes) or "no scope"
                return f"knob `{self.name}` has no scope `{axis}`; it takes {allowed}"
            if not scope[axis]:
                return f"knob `{self.name}` has an empty scope `{axis}`: it would cover nobody"
        return _CHECKS[self.type](self, value)


def _check_number(knob: Knob, value: Json) -> str | None:
    if not _is_number(value, knob.type):
        what = "a whole number" if knob.type == "int" else "a finite number"
        return f"knob `{knob.name}` takes {what}, not `{value}`"
    if not knob.minimum <= value <= knob.maximum:
        return f"knob `{knob.name}` takes {knob.minimum:.12g} to {knob.maximum:.12g}, not `{value}`"
    return None


def _is_number(value: Json, kind: str) -> TypeGuard[float]:
    """Whether `value` is a number of this kind: int, or a float that is finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "int":
        return isinstance(value, int)
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON's whole numbers have no end, those of a float do
        return False


def _check_bool(knob: Knob, value: Json) -> str | None:
    return (
        None
        if isinstance(value, bool)
        else f"knob `{knob.name}` takes true or false, not `{value}`"
    )


def _check_enum(knob: Knob, value: Json) -> str | None:
    if isinstance(value, str) and value in knob.choices:
        return None
    return f"knob `{knob.name}` takes {_listed(knob.choices)}, not `{value}`"


def _listed(words: Sequence[str]) -> str:
    return " or ".join([", ".join(f"`{w}`" for w in words[:-1]), f"`{words[-1]}`"])


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a map: int, float or str, within its bounds; `optional`: null means unset."""

    name: str
    type: str
    minimum: float = 0
    maximum: float = 1_000_000_000
    optional: bool = False


MAPS: dict[str, tuple[Field, ...]] = {
    "throttle.token_quota": (
        Field("tokens", "int", 1), Field("window_ms", "int", 100, 3_600_000),
    ),
    "limiter.rule": (
        Field("queue_time_ms", "int", 1, optional=True),
        Field("time_per_token_ms", "int", 1, optional=True),
        Field("kv_usage", "float", 0.01, 1, optional=True),
        Field("increase", "float", 0.001, 1), Field("decrease", "float", 0.001, 0.9),
        Field("minimum", "int", 1), Field("maximum", "int", 1),
        Field("headroom", "float", 0.001, 0.9, optional=True),
    ),
    "breaker.rule": (
        Field("error_rate", "float", 0, 1, optional=True),
        Field("failures", "int", 0, optional=True), Field("consecutive", "int", 1, optional=True),
        Field("p99_ms", "int", 1, optional=True), Field("window_tokens", "int", 1, optional=True),
        Field("window_ms", "int", 1_000, 3_600_000), Field("samples", "int", 1, 10_000),
        Field("evaluations", "int", 1, 1_000), Field("min_requests", "int", 1),
        Field("min_rate", "float", 0), Field("open_ms", "int", 100, 3_600_000),
        Field("probes", "int", 1, 1_000), Field("probe_timeout_ms", "int", 100, 3_600_000),
    ),
}


def _check_map(knob: Knob, value: Json) -> str | None:
    if knob.name not in MAPS:
        return _check_route(knob, value)
    wanted = MAPS[knob.name]
    if not isinstance(value, Mapping) or set(value) != {f.name for f in wanted}:
        return f"knob `{knob.name}` takes a map of " + ", ".join(f"`{f.name}`" for f in wanted)
    for f in wanted:
        why = _check_field(f, value[f.name])
        if why:
            return f"knob `{knob.name}`: `{f.name}` {why}"
    return None


def _check_field(f: Field, value: Json) -> str | None:
    if value is None and f.optional:
        return None
    if not _is_number(value, f.type):
        return f"is a {'whole' if f.type == 'int' else 'finite'} number, not `{value}`"
    if not f.minimum <= value <= f.maximum:
        return f"is from {f.minimum:g} to {f.maximum:g}, not `{value}`"
    return None


def _check_route(knob: Knob, value: Json) -> str | None:
    if not isinstance(value, Mapping) or set(value) != {"to", "share"}:
        return f"knob `{knob.name}` takes a map of `to` and `share`"
    to, share = value["to"], value["share"]
    if not isinstance(to, str) or not to:
        return f"knob `{knob.name}` needs a model name in `to`"
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        return f"knob `{knob.name}` takes a `share` above 0 and up to 1, not `{share}`"
    return None


def _check_notice(knob: Knob, value: Json) -> str | None:
    if (
        not isinstance(value, Mapping) or set(value) != {"severity"}
        or not isinstance(value["severity"], str) or not value["severity"]
    ):
        return f"knob `{knob.name}` takes a map of `severity`"
    return None


_CHECKS: dict[str, Callable[[Knob, Json], str | None]] = {
    "int": _check_number,
    "float": _check_number,
    "bool": _check_bool,
    "enum": _check_enum,
    "map": _check_map,
    "notice": _check_notice,
}
FOLDS: dict[str, Fold] = {
    "min": _smallest,
    "max": _largest,
    "false wins": _smallest,
    "severest": _severest,
    "highest priority": _highest_priority,
    "lowest rate": _lowest_rate,
}
REQUEST_AXES = ("tier", "tenant", "model")

KNOBS: tuple[Knob, ...] = (
    Knob(
        "throttle.max_concurrency",
        "int",
        "requests",
        REQUEST_AXES,
        "min",
        "gate",
        "requests in flight; without a scope, of the whole server",
    ),
    Knob(
        "throttle.max_requests_per_second",
        "float",
        "requests/s",
        REQUEST_AXES,
        "min",
        "gate",
        "requests let in a second, with a second's worth of burst",
    ),
    Knob(
        "throttle.max_prompt_tokens_per_second",
        "float",
        "tokens/s",
        REQUEST_AXES,
        "min",
        "gate",
        "prompt tokens let in a second, with a second's worth of burst",
    ),
    Knob(
        "throttle.max_outstanding_tokens",
        "int",
        "tokens",
        REQUEST_AXES,
        "min",
        "gate",
        "prompt and output tokens reserved for requests in flight",
    ),
    Knob(
        "throttle.max_context_tokens",
        "int",
        "tokens",
        REQUEST_AXES,
        "min",
        "gate",
        "prompt and asked-for output tokens of one request; larger ones are refused",
        minimum=1,
    ),
    Knob(
        "throttle.max_output_tokens",
        "int",
        "tokens",
        REQUEST_AXES,
        "min",
        "gate",
        "output tokens of one request; larger ones are cut to it",
        minimum=1,
    ),
    Knob(
        "throttle.token_quota",
        "map",
        "tokens/window",
        REQUEST_AXES,
        "lowest rate",
        "gate",
        "tokens that a sliding window could hold; the quota is 80 % of it, or less",
    ),
    Knob(
        "limiter.rule",
        "map",
        "",
        (),
        "highest priority",
        "gate",
        "targets by which the limit on requests in flight moves by itself",
    ),
    Knob(
        "breaker.rule",
        "map",
        "",
        REQUEST_AXES,
        "highest priority",
        "gate",
        "when requests are refused because the server fails, and how it is tried again",
    ),
    Knob(
        "cache.prefix_enabled",
        "bool",
        "",
        (),
        "false wins",
        "scheduler",
        "whether new requests may read the prefix cache",
        baseline=True,
    ),
    Knob(
        "cache.max_running",
        "int",
        "sequences",
        (),
        "min",
        "scheduler",
        "running sequences; the excess is preempted at the next step and recomputed later",
        minimum=1,
    ),
    Knob(
        "cache.step_tokens",
        "int",
        "tokens",
        (),
        "min",
        "scheduler",
        "tokens scheduled in one step",
        minimum=1,
    ),
    Knob(
        "cache.admit_running",
        "int",
        "sequences",
        (),
        "min",
        "scheduler",
        "running sequences from which none is admitted any more; those that run finish",
        minimum=1,
    ),
    Knob(
        "cache.kv_blocks",
        "int",
        "blocks",
        (),
        "min",
        "scheduler",
        "usable KV blocks; the others are taken out of the pool at the next step, and what does "
        "not fit is preempted and recomputed later",
        minimum=1,
    ),
    Knob(
        "cache.kv_blocks_soft",
        "int",
        "blocks",
        (),
        "min",
        "scheduler",
        "KV blocks that admission may fill beside what runs; running sequences still grow",
        minimum=1,
    ),
    Knob(
        "cache.batching",
        "enum",
        "",
        (),
        "severest",
        "scheduler",
        "dynamic: a sequence joins the running batch at any step; static: only when none runs",
        baseline="dynamic",
        choices=("dynamic", "static"),
    ),
    Knob(
        "cache.mode",
        "enum",
        "",
        (),
        "severest",
        "scheduler",
        "whose requests are admitted. batch: first come, first served; hybrid: those that do not "
        "stream take at most 70 % of seats and KV blocks; stream: only those that stream",
        baseline="batch",
        choices=("batch", "hybrid", "stream"),
    ),
    Knob(
        "route.model",
        "map",
        "",
        ("tier",),
        "highest priority",
        "gate",
        "share of new requests that goes to another served model",
    ),
)
METRIC_KNOB = Knob(
    "metric.<name>",
    "float",
    "",
    (),
    "max",
    "engine",
    "a gauge that the engine exports while the claim lives",
    minimum=-math.inf,
    maximum=math.inf,
)
NOTIFY_PREFIX = "notify."
NOTIFY_KNOB = Knob(
    "notify.<receiver>",
    "notice",
    "",
    (),
    "highest priority",
    "engine",
    "an alert that the engine keeps firing at a receiver while the claim lives",
)
_NOTIFY_NAME = re.compile(r"notify\.[a-z0-9][a-z0-9._-]{0,62}")
_METRIC_NAME = re.compile(r"metric\.[a-zA-Z_:][a-zA-Z0-9_:]*")
_BY_NAME = {knob.name: knob for knob in KNOBS}


def knob(name: str) -> Knob | None:
    """Return the knob of that name, or None; any `metric.NAME` is the metric knob, any
    `notify.RECEIVER` the notify knob."""
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    if _METRIC_NAME.fullmatch(name):
        return METRIC_KNOB
    return NOTIFY_KNOB if _NOTIFY_NAME.fullmatch(name) else None


def is_engines(name: str) -> bool:
    """Return whether the engine itself enforces the knob, so that no core needs to have it."""
    found = knob(name)
    return found is not None and found.enforced_by == "engine"


def scope_text(scope: Labels | Mapping[str, str]) -> str:
    """Return `tier=core`, several joined by `,` in order of name; everywhere is ""."""
    return ",".join(f"{k}={v}" for k, v in labels_of(scope))


def fold(claims: Iterable[LiveClaim]) -> dict[str, dict[str, LiveClaim]]:
    """Fold live claims to the one that rules each (knob, scope). Unclaimed knobs are absent.

    The result does not depend on the order of `claims`.
    """
    groups: dict[tuple[str, str], list[LiveClaim]] = {}
    for claim in claims:
        groups.setdefault((claim.knob, scope_text(claim.scope)), []).append(claim)
    folded: dict[str, dict[str, LiveClaim]] = {}
    for (name, scope), group in groups.items():
        definition = knob(name)
        if definition is None:
            continue
        folded.setdefault(name, {})[scope] = FOLDS[definition.fold_name](group)
    return folded
