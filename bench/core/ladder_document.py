"""A measured ladder as the lines of `spec.ladder` in a `kind: Engine` document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilience.model import Json, Rung, SecondEngineSettings, format_duration

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Cost:
    """What one rung did: answers and output tokens a second, seconds to the first token,
    likeness 0..1."""

    rate: float
    tokens_s: float
    p50_s: float
    p99_s: float
    quality: float


def lines(rungs: Sequence[Rung], costs: Mapping[str, Cost]) -> list[str]:
    """Return the ladder with its costs, ready to stand under `spec:`."""
    return ["  ladder:", *(f"    - {_text(dict(_rung(rung, costs)))}" for rung in rungs)]


def _rung(rung: Rung, costs: Mapping[str, Cost]) -> Iterator[tuple[str, Json]]:
    yield from (("name", rung.name), ("kind", rung.kind))
    for key in ("model", "url", "text", "context"):
        if getattr(rung, key) is not None:
            yield key, getattr(rung, key)
    if rung.tools:
        yield "tools", True
    if rung.timeout_ms is not None:
        yield "timeout", format_duration(rung.timeout_ms)
    if rung.kind == "cached":
        yield "max_age", format_duration(rung.max_age_ms)
        yield "max_mebibytes", rung.max_bytes // MEBIBYTE
    if rung.engine is not None:
        yield "engine", dict(_engine(rung.engine))
    if rung.name in costs:
        yield from _cost(costs[rung.name])


def _engine(settings: SecondEngineSettings) -> Iterator[tuple[str, Json]]:
    """Say what differs from what is so anyway."""
    usual = SecondEngineSettings()
    for key in ("core", "start", "seats", "dtype", "kv_mebibytes", "memory_mebibytes"):
        if getattr(settings, key) != getattr(usual, key):
            yield key, getattr(settings, key)
    for key in ("start_timeout", "stop_after"):
        value = getattr(settings, f"{key}_ms")
        if value != getattr(usual, f"{key}_ms"):
            yield key, format_duration(value)


def _cost(cost: Cost) -> Iterator[tuple[str, Json]]:
    yield "throughput", round(cost.tokens_s)
    yield "p99", format_duration(max(1, round(cost.p99_s * 1000)))
    yield "quality", round(cost.quality, 2)


def _text(value: Any) -> str:
    """Write a value as YAML in one line: keys bare, all else as JSON."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
