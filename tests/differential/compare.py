"""Compares our answer with Prometheus': every point, every series, relative 1e-12."""

from __future__ import annotations

import math
from typing import Any

from resilience.errors import PromQLError
from resilience.model import Labels, QueryResult, labels_of
from resilience.promql.evaluate import RangeResult, range_query
from resilience.promql.evaluation import Options
from resilience.promql.parser import parse
from resilience.promql.storage import Storage

TOLERANCE = 1e-12
Points = dict[Labels, dict[int, float]]


def ours(expr: str, storage: Storage, start_ms: int, end_ms: int, step_ms: int) -> Points | str:
    """Return our points, or the error text."""
    try:
        plan = parse(expr, experimental=True)
        found = range_query(plan, storage, start_ms, end_ms, step_ms, options=Options())
    except PromQLError as error:
        return error.message
    return points(found)


def points(found: RangeResult) -> Points:
    return {s.labels: dict(zip(s.times_ms, s.values, strict=True)) for s in found.series()}


def theirs(data: Any) -> Points | str:
    """Return the points of an API data object; an error stays a text."""
    if isinstance(data, str):
        return data
    if data["resultType"] == "scalar":
        t, v = data["result"]
        return {(): {round(t * 1000): float(v)}}
    return {
        labels_of(s["metric"]): {
            round(t * 1000): float(v) for t, v in s.get("values") or [s["value"]]
        }
        for s in data["result"]
    }


def difference(got: Points | str, wanted: Points | str, tolerance: float = TOLERANCE) -> str | None:
    """Return the first difference in words, or None. Two errors are the same."""
    if isinstance(got, str) or isinstance(wanted, str):
        if isinstance(got, str) and isinstance(wanted, str):
            return None
        return f"ours: {_short(got)}; theirs: {_short(wanted)}"
    if set(got) != set(wanted):
        only, missing = set(got) - set(wanted), set(wanted) - set(got)
        return f"extra series {sorted(only)[:2]}, missing {sorted(missing)[:2]}"
    for labels, line in wanted.items():
        have = got[labels]
        if have.keys() != line.keys():
            extra, gone = sorted(have.keys() - line.keys()), sorted(line.keys() - have.keys())
            return f"{labels}: extra points {extra[:3]}, missing points {gone[:3]}"
        for t, value in line.items():
            if not close(have[t], value, tolerance):
                return f"{labels} at {t}: ours {have[t]!r}, theirs {value!r}"
    return None


def _short(answer: Points | str) -> str:
    return answer if isinstance(answer, str) else f"{len(answer)} series"


def close(a: float, b: float, tolerance: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def theirs_instant(data: Any) -> Any:
    """Return {labels: value} of an instant answer, an error as a text."""
    if isinstance(data, str):
        return data
    if data["resultType"] == "string":
        return {"text": data["result"][1]}
    if data["resultType"] == "scalar":
        return {(): float(data["result"][1])}
    return {labels_of(s["metric"]): float(s["value"][1]) for s in data["result"]}


def as_points(got: QueryResult, wanted: Any, t_ms: int) -> tuple[Points | str, Points | str]:
    """Return two instant answers as those of a range of one step."""
    mine: Points | str = got.error or {s.labels: {t_ms: s.value} for s in got.samples}
    return mine, wanted if isinstance(wanted, str) else {k: {t_ms: v} for k, v in wanted.items()}


def failed(message: str) -> QueryResult:
    return QueryResult("", error=message)


def instant_difference(got: QueryResult, wanted: Any) -> str | None:
    """Return how an instant answer differs, or None."""
    if isinstance(wanted, str) or got.error is not None:
        both = isinstance(wanted, str) and got.error is not None
        other = wanted if isinstance(wanted, str) else "a result"
        return None if both else f"ours: {got.error}; theirs: {other}"
    if got.kind == "string":
        return None if wanted == {"text": got.text} else f"{got.text!r} is not {wanted}"
    have = {s.labels: s.value for s in got.samples}
    if set(have) != set(wanted):
        return f"series differ: {sorted(set(have) ^ set(wanted))[:3]}"
    for labels, value in wanted.items():
        if not close(have[labels], value, TOLERANCE):
            return f"{labels}: ours {have[labels]!r}, theirs {value!r}"
    return None
