"""What a document and an action may be. An action is one file that says all about itself.

An ActionKind carries its parameters (a frozen dataclass whose fields are made with `param`), its
documentation, an example that a test runs, and `plan`: what these parameters ask for. It never
acts. Third parties add kinds through the entry points `resilience.actions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from resilience.model import ClaimSpec, ImpulseSpec, Json, UdfSpec, format_duration, parse_duration
from resilience.policy import check_fields, fragments

P = TypeVar("P")
LEASE_MIN_MS, LEASE_MAX_MS = 1_000, 3_600_000


@dataclass(frozen=True, slots=True)
class Planned:
    """What an action asks for when it fires."""

    claims: tuple[ClaimSpec, ...] = ()
    impulses: tuple[ImpulseSpec, ...] = ()
    udf: UdfSpec | None = None


@dataclass(frozen=True, slots=True)
class ActionKind(Generic[P]):
    """One type of action. `plan` raises ValueError with the reason for nonsense that a schema
    cannot express. `holds`: it makes claims, so the common parameters mean something.
    `disruptive`: requests under way feel it, so a policy with it wants a runbook and a `resolve`.
    """

    name: str
    doc: str
    params: type[P]
    plan: Callable[[P], Planned]
    example: str
    holds: bool = True
    knobs: tuple[str, ...] = ()
    disruptive: bool = False

    def schema(self) -> Json:
        """Return the JSON Schema of one such action, common parameters included."""
        return _schema_of(self)

    def build(self, raw: Mapping[str, Json]) -> P:
        """Return the parameters from a mapping that the schema has accepted."""
        values = {
            f.name: converted(raw[key], fragment)
            for key, f, fragment in _fields(self.params) if key in raw
        }
        return self.params(**values)


def param(fragment: Json, doc: str, *, key: str | None = None, default: Any = None,
          required: bool = False) -> Any:
    """Make a dataclass field that is a parameter; `key` is its name in YAML if it differs."""
    shown = default if isinstance(default, bool | int | float | str) else None
    metadata = {"key": key, "fragment": fragments.said(fragment, doc, shown)}
    if required:
        return dataclasses.field(metadata=metadata)
    if fragment.get("x-type") == "duration" and isinstance(default, str):
        return dataclasses.field(default=parse_duration(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@cache
def _schema_of(kind: ActionKind[Any]) -> Json:
    own = {key: fragment for key, _, fragment in _fields(kind.params)}
    required = [key for key, f, _ in _fields(kind.params) if _is_required(f)]
    name = {"const": kind.name, "description": kind.doc}
    common = COMMON if kind.holds else {}
    every = {"type": name, **own, **common, **JUDGED}
    return fragments.record(every, ("type", *required), kind.doc)


def _read_fields(params: Any) -> list[tuple[str, Any, Json]]:
    return [
        (f.metadata["key"] or f.name, f, f.metadata["fragment"])
        for f in dataclasses.fields(params)
    ]


_fields: Callable[[Any], list[tuple[str, Any, Json]]] = cache(_read_fields)


def _is_required(f: Any) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def converted(value: Json, fragment: Json) -> Json:
    """Return the value as the engine keeps it: milliseconds, shares, whole numbers."""
    kind = fragment.get("x-type")
    if kind == "duration":
        return duration_ms(value, fragment)
    if kind == "share":
        return fragments.share_of(value)
    if fragment.get("type") == "integer":
        return int(value)
    if fragment.get("type") == "number":
        return float(value)
    return value


def duration_ms(value: Json, fragment: Json) -> int:
    """Return milliseconds; raises ValueError outside the fragment's bounds."""
    ms = parse_duration(str(value))
    low, high = fragment.get("x-minimum-ms", 0), fragment.get("x-maximum-ms")
    if ms < low or (high is not None and ms > high):
        raise ValueError(bounds_text(value, low, high))
    return ms


def bounds_text(value: Json, low: int, high: int | None) -> str:
    """Return why a duration is outside its bounds."""
    upper = f" and at most `{format_duration(high)}`" if high is not None else ""
    return f"must be at least `{format_duration(low)}`{upper}, got `{value}`"


COMMON: dict[str, Json] = {
    "lease": fragments.said(
        fragments.duration(LEASE_MIN_MS, LEASE_MAX_MS),
        "How long the core keeps the claim without hearing from the engine.", "30s",
    ),
    "on_core_loss": fragments.said(
        fragments.choice("baseline", "keep"),
        "What the core does when the lease ends: back to its baseline, or keep the claim.",
        "baseline",
    ),
    "message": fragments.said(
        fragments.template(),
        "Why, for people: shown with the claim and on the responses that it alters. "
        "The default is the policy's summary.",
    ),
}

# What every action may carry, also one that only gives an impulse.
JUDGED: dict[str, Json] = {
    "verify": fragments.said(
        check_fields.verify_schema(), "What must come true after this action, or it is taken back."
    ),
    "guard": fragments.said(
        check_fields.guard_schema(), "What must not be: true takes this action back at once."
    ),
}

Actions: TypeAlias = Mapping[str, ActionKind[Any]]


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """One `kind:` of document. `build(document, context)` turns a document that the schema
    accepted into its value, and reports what a schema cannot see through the context. The value
    is a policy, a configuration, or several policies, each with the document that it would be."""

    name: str
    doc: str
    schema: Callable[[Actions], Json]
    build: Callable[[Any, Any], Any]


def _policy_schema(actions: Actions) -> Json:
    from resilience.policy.schema import policy_schema

    return policy_schema(actions)


def _policy(document: Any, context: Any) -> Any:
    from resilience.policy.policies import build_policy

    return build_policy(document, context)


def _engine_schema(actions: Actions) -> Json:
    from resilience.policy.engine_schema import engine_schema

    return engine_schema()


def _engine(document: Any, context: Any) -> Any:
    from resilience.policy.engines import build_engine

    return build_engine(document, context)


def _slo_schema(actions: Actions) -> Json:
    from resilience.policy.slo_schema import slo_schema

    return slo_schema(actions)


def _slo(document: Any, context: Any) -> Any:
    from resilience.policy.slos import build_slo

    return build_slo(document, context)


POLICY = DocumentKind(
    "Policy", "When something is wrong, what to claim, and when to let go.",
    _policy_schema, _policy,
)
ENGINE = DocumentKind(
    "Engine", "Everything that is not a policy: tiers, sources, sandbox, limits.",
    _engine_schema, _engine,
)
SLO = DocumentKind(
    "SLO", "An objective: what is promised, how it is measured, what to do before it is missed.",
    _slo_schema, _slo,
)
