"""A document of `kind: SLO` -> one ordinary policy for each of its alerts.

The policy of alert `fast` of SLO `core-answers` is `core-answers-fast`. It is built as if somebody
had written it: the same checks, and findings at the places of the SLO's own file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from resilience.model import Json, Policy, SloOrigin, format_duration, parse_duration
from resilience.policy.comments import swallowed_lines
from resilience.policy.context import Context
from resilience.policy.document import Document, Map, Place
from resilience.policy.expressions import Expression, check_expression
from resilience.policy.fragments import NAME_PATTERN
from resilience.policy.policies import build_policy
from resilience.policy.schema import API_VERSION
from resilience.policy.shape import locate
from resilience.policy.slo_burn import Burn, interval_ms_of
from resilience.policy.slo_check import Objective, complaints
from resilience.policy.slo_expr import Indicator, Terms, latency, ratio, resolve, trigger

Built = tuple[tuple[Document, Policy], ...]
_PACE = frozenset({"budget", "burn", "long", "short"})
_PASSED = ("mode", "on_missing_metric")


def build_slo(document: Document, context: Context) -> Built | None:
    """Return the policies of an SLO that fits its schema, each with the document that it would
    be, or None after an error."""
    before = context.errors
    objective = Objective(document.data["spec"], context)
    for found in complaints(objective):
        place = locate(document, ("spec", *found.path))[0 if not found.path else 1]
        context.add(document, place, found.severity, found.code, found.message, found.suggestion)
    _check_exclusions(document, context)
    _check_comments(document, objective, context)
    if context.errors > before:
        return None
    terms, burns = _terms(objective), list(objective.burns())
    built = [_policy(document, context, terms, name, burn)
             for name, burn in burns if isinstance(burn, Burn)]
    return None if context.errors > before else tuple(pair for pair in built if pair is not None)


def _check_exclusions(document: Document, context: Context) -> None:
    for index, raw in enumerate(document.data["spec"].get("exclusions", ())):
        if "expr" in raw:
            place = locate(document, ("spec", "exclusions", index, "expr"))[1]
            name = f"spec.exclusions[{index}].expr"
            check_expression(Expression(document, place, name, raw["expr"], "trigger"), context)


def _check_comments(document: Document, objective: Objective, context: Context) -> None:
    """The counters of a ratio stand in no expression of their own."""
    for key, text in (objective.ratio or {}).items():
        if isinstance(text, str):
            place = locate(document, ("spec", "indicator", "ratio", key))[1]
            swallowed_lines(document, place, f"spec.indicator.ratio.{key}", text, context)


def _terms(objective: Objective) -> Terms:
    spec = objective.spec
    assert objective.share is not None
    return Terms(_indicator(objective), round(1 - objective.share, 12), spec.get("load", {}),
                 tuple(spec.get("exclusions", ())))


def _indicator(objective: Objective) -> Indicator:
    spec = objective.spec
    tier = spec.get("tier")
    by = tuple(spec["by"]) if "by" in spec else ("instance", *(["tier"] if tier else []))
    if objective.ratio is not None:
        return ratio(objective.ratio, tier, by)
    assert objective.latency is not None
    bound_s = parse_duration(str(objective.latency["threshold"])) / 1_000
    return latency(objective.latency, bound_s, tier, by)


# --- one alert -----------------------------------------------------------------------------------


def _policy(
    document: Document, context: Context, terms: Terms, severity: str, burn: Burn
) -> tuple[Document, Policy] | None:
    origin = _origin(document, severity, burn)
    place = locate(document, ("spec", "alerts", severity))[0]
    full = _expanded(document, terms, origin, place)
    name = full.data["metadata"]["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        context.add(document, place, "error", "name", f"the policy's name `{name}` is too long",
                    "shorten `metadata.name`")
        return None
    made = build_policy(full, context)
    if made is None:
        return None
    context.add(
        document, place, "info", "slo-policy",
        f"spec.alerts.{severity} is policy `{name}`: it fires when the error budget burns "
        f"{burn.factor:g} times too fast over {format_duration(burn.long_ms)} and over "
        f"{format_duration(burn.short_ms)}",
    )
    return full, dataclasses.replace(made, slo=origin, line=place.line)


def _origin(document: Document, severity: str, burn: Burn) -> SloOrigin:
    spec = document.data["spec"]
    return SloOrigin(
        document.data["metadata"]["name"], str(spec["objective"]),
        parse_duration(str(spec["window"])), severity, burn.factor, burn.long_ms, burn.short_ms,
    )


def _expanded(document: Document, terms: Terms, origin: SloOrigin, place: Place) -> Document:
    """Return the policy's document: what was written keeps its place, what is derived has that
    of the alert; expressions have that of the indicator."""
    spec: Map = document.data["spec"]
    alert: Map = spec["alerts"][origin.severity]
    burn = Burn(origin.burn, origin.long_ms, origin.short_ms)
    at = locate(document, ("spec", "indicator"))[0]
    ending = _map(place, {"expr": resolve(terms, burn),
                          "for": format_duration(burn.short_ms)}, {"expr": at})
    fires = _map(place, {"expr": trigger(terms, burn), "resolve": ending,
                         "on_no_data": spec.get("on_no_data", "hold")}, {"expr": at})
    interval = spec.get("interval", format_duration(interval_ms_of(burn.short_ms)))
    body = _map(place, {"interval": interval, "trigger": fires})
    _copy(alert, body, [key for key in alert if key not in _PACE])
    _copy(spec, body, [key for key in _PASSED if key in spec and key not in body])
    data = _map(place, {"apiVersion": API_VERSION, "kind": "Policy",
                        "metadata": _metadata(document, origin, place), "spec": body})
    return dataclasses.replace(document, place=place, data=data, expression="spec.indicator")


def _metadata(document: Document, origin: SloOrigin, place: Place) -> Map:
    source: Map = document.data["metadata"]
    made = _map(place, {"name": f"{origin.name}-{origin.severity}"})
    _copy(source, made, [key for key in ("labels", "annotations") if key in source])
    annotations = made.setdefault("annotations", _map(place, {}))
    if "summary" not in annotations:
        shown = _map(annotations.place, {"summary": f"SLO {origin.name}: {{{{ $value }}}} of the "
                                         f"requests are bad, {origin.burn:g} times too many"})
        _copy(annotations, shown, list(annotations))
        made["annotations"] = shown
    return made


def _map(
    place: Place, values: Mapping[str, Json], places: Mapping[str, Place] | None = None
) -> Map:
    """Return a mapping whose parts stand where `places` says, or else all at `place`.

    Without a style, so that nobody looks for a position inside a text that is not in the file."""
    bare = Place(place.line, place.column, place.start, place.end)
    made = Map(bare)
    for key, value in values.items():
        at: Any = (places or {}).get(key, bare)
        made[key] = value
        made.keys_at[key] = made.values_at[key] = Place(at.line, at.column, at.start, at.end)
    return made


def _copy(source: Map, target: Map, keys: list[str]) -> None:
    for key in keys:
        target[key] = source[key]
        target.keys_at[key] = source.keys_at[key]
        target.values_at[key] = source.values_at[key]
