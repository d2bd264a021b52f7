"""Pieces of JSON Schema with the meaning that a plain schema cannot carry.

`x-type` names that meaning (duration, share, expr, template…); the messages of shape.py and the
conversion of kinds.py follow it, and other validators ignore it.
"""

from __future__ import annotations

from typing import Any

from resilience.model import Json, format_duration

DURATION_PATTERN = (
    r"^(?=[0-9])(?:(?:[0-9]+y)?(?:[0-9]+w)?(?:[0-9]+d)?(?:[0-9]+h)?(?:[0-9]+m(?!s))?(?:[0-9]+s)?(?:[0-9]+ms)?|0)$"
)
NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$"
METRIC_PATTERN = r"^[a-zA-Z_:][a-zA-Z0-9_:]*$"
LABEL_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
TEXT_MAX = 4_000
LIST_MAX = 100


def integer(minimum: int = 0, maximum: int = 1_000_000_000) -> Json:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def number(minimum: float | None = None, maximum: float | None = None) -> Json:
    bounds = {"minimum": minimum, "maximum": maximum}
    return {"type": "number", **{k: v for k, v in bounds.items() if v is not None}}


def boolean() -> Json:
    return {"type": "boolean"}


def string(pattern: str | None = None, kind: str | None = None, longest: int = TEXT_MAX) -> Json:
    made: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": longest}
    if pattern:
        made["pattern"] = pattern
    if kind:
        made["x-type"] = kind
    return made


def template() -> Json:
    """Return a string that may hold `{{ $labels.NAME }}` and `{{ $value }}`."""
    return string(kind="template", longest=500)


def expression() -> Json:
    """Return an instant-vector or scalar PromQL expression."""
    return string(kind="expr", longest=64 * 1024)


def choice(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


def duration(minimum_ms: int = 0, maximum_ms: int | None = None) -> Json:
    """Return a Prometheus duration; the bare number 0 is the one that needs no unit."""
    made: dict[str, Any] = {
        "type": ["string", "integer"], "pattern": DURATION_PATTERN, "minimum": 0, "maximum": 0,
        "x-type": "duration", "x-minimum-ms": minimum_ms,
        "examples": [format_duration(max(minimum_ms, 30_000))],
    }
    if maximum_ms is not None:
        made["x-maximum-ms"] = maximum_ms
    return made


def share() -> Json:
    """Return a share above 0 and up to 1, as `0.25` or `25%`."""
    return {
        "type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 1,
        "pattern": r"^(?:100(?:\.0+)?|[0-9]{1,2}(?:\.[0-9]+)?)%$", "x-type": "share",
    }


def listing(item: Json, shortest: int = 0, longest: int = LIST_MAX) -> Json:
    return {"type": "array", "items": item, "minItems": shortest, "maxItems": longest}


def mapping(value: Json, key_pattern: str | None = None, longest: int = 50) -> Json:
    made: dict[str, Any] = {
        "type": "object", "additionalProperties": value, "maxProperties": longest,
    }
    if key_pattern:
        made["propertyNames"] = {"pattern": key_pattern}
    return made


def record(
    properties: dict[str, Json], required: tuple[str, ...] = (), doc: str | None = None
) -> Json:
    """Return an object with exactly these properties."""
    made: dict[str, Any] = {"type": "object"}
    if doc:
        made["description"] = doc
    made.update(properties=properties, additionalProperties=False)
    if required:
        made["required"] = list(required)
    return made


def said(fragment: Json, doc: str, default: Json = None) -> Json:
    """Return `fragment` with its description and, if there is one, its default."""
    made = {"description": doc, **fragment}
    if default is not None:
        made["default"] = default
    return made


def share_of(value: str | int | float) -> float:
    """Return the number of a checked share."""
    if not isinstance(value, str):
        return float(value)
    from decimal import Decimal

    return float(Decimal(value.rstrip("%")) / 100)
