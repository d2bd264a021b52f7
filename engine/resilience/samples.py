"""Samples, label sets and answers: the values that PromQL speaks of, and their texts.

All of it is in `model` too; these have a module of their own because an evaluation needs no more,
and `model` with all its dataclasses takes longer to import than a small query to run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
Labels: TypeAlias = tuple[tuple[str, str], ...]

VERSION = 1
# Years 1 to 9999, as RFC 3339 has them: other times cannot be shown, and nobody means them.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


# Controls, ends of lines, directions of writing: what a terminal obeys, or nobody sees.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(text: str) -> str:
    """Return `text` without anything that a terminal would obey."""
    return UNSAFE.sub(lambda m: escaped(m.group()), text)


def escaped(character: str) -> str:
    """Return how one character is shown that is not."""
    code = ord(character)
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


# --- canonical forms ---------------------------------------------------------------------------


def labels_of(mapping: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """Return `mapping` as sorted (name, value) pairs; empty values are absent labels."""
    pairs: Any = mapping.items() if isinstance(mapping, Mapping) else mapping
    return tuple(sorted((k, v) for k, v in pairs if v != ""))


@lru_cache(maxsize=65_536)
def without_name(labels: Labels) -> Labels:
    """Drop the metric name, as Prometheus does for the labels of an alert."""
    return tuple(pair for pair in labels if pair[0] != "__name__")


def canonical_json(value: Json) -> str:
    """Return the one JSON text of `value`: sorted keys, no blanks, shortest floats.

    NaN and infinities become the strings `NaN`, `+Inf`, `-Inf`, as in Prometheus' HTTP API.
    """
    return _ENCODER.encode(_plain(value))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Json) -> Json:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value  # most values: the abstract classes below are asked slowly
    if isinstance(value, float) and not math.isfinite(value):
        return format_float(value)
    if isinstance(value, dict | Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def format_float(value: float) -> str:
    """Return Prometheus' text of a sample value."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def parse_float(value: Json) -> float | None:
    """Return a number that went through canonical JSON: `NaN`, `+Inf` and `-Inf` come back."""
    return None if value is None else float(value)


def digest16(value: Json) -> str:
    """Return the first 16 hex digits of SHA-256 over the canonical JSON of `value`."""
    import hashlib

    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


# --- durations ---------------------------------------------------------------------------------

_UNITS_MS = {
    "y": 31_536_000_000,
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_DURATION = re.compile(
    r"(?:([0-9]+)y)?(?:([0-9]+)w)?(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+)s)?(?:([0-9]+)ms)?"
)
DURATION_MAX_MS = 10 * _UNITS_MS["y"]


def parse_duration(text: str) -> int:
    """Return milliseconds of a Prometheus duration such as `1h30m`; `0` needs no unit.

    Raises ValueError with a one-line reason for anything else, also above ten years.
    """
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(
            f"`{text}` is not a duration: write units from large to small, as in `1h30m`"
        )
    total = sum(int(n) * ms for n, ms in zip(match.groups(), _UNITS_MS.values(), strict=True) if n)
    if total > DURATION_MAX_MS:
        raise ValueError(f"`{text}` is longer than ten years")
    return total


def format_duration(ms: int) -> str:
    """Return the shortest Prometheus duration of `ms`, for example `1m30s`; zero is `0s`."""
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector: labels (with `__name__` where it is kept) and value."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class RangeSample:
    """One element of a range vector: times in ms and values, oldest first."""

    labels: Labels
    times_ms: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer of a source to one instant query.

    `kind` is the PromQL type. A scalar is one Sample with no labels. `error` set means that there
    is no answer (the samples are empty); `warnings` set means that the answer may be partial.
    `failed` is the canonical text of the part of the expression that the error is about.
    """

    expr: str
    kind: Literal["vector", "scalar", "matrix", "string"] = "vector"
    samples: tuple[Sample, ...] = ()
    ranges: tuple[RangeSample, ...] = ()
    text: str | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()
    failed: str | None = None
