"""The JSON of Prometheus' HTTP API, read and written.

Values travel as strings there (`NaN`, `+Inf`, `1e-09`), times as seconds with a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from resilience.samples import (
    FIRST_MS,
    LAST_MS,
    Json,
    Labels,
    QueryResult,
    RangeSample,
    Sample,
    format_float,
    labels_of,
)

TYPES = ("vector", "matrix", "scalar", "string")
INFO = "PromQL info:"


class ApiError(ValueError):
    """An answer does not have the shape of the API, or holds what is not supported."""


def data_of(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the `data` object of a successful query; raises ApiError."""
    if body.get("status") == "error":
        kind = body.get("errorType") or "error"
        raise ApiError(f"{kind}: {body.get('error') or 'no reason given'}")
    data = body.get("data")
    if not isinstance(data, dict) or data.get("resultType") not in TYPES:
        raise ApiError(f"the answer has no `data.resultType` of {', '.join(TYPES)}")
    if not isinstance(data.get("result"), list):
        raise ApiError("the answer has no list `data.result`")
    return data


def warnings_of(body: Mapping[str, Json]) -> tuple[str, ...]:
    """Return what makes the answer doubtful; mere PromQL remarks are left out."""
    found = body.get("warnings")
    texts = [str(w) for w in found] if isinstance(found, list) else []
    if body.get("isPartial") is True:
        texts.append("the answer is partial: a storage node did not respond")
    return tuple(text for text in texts if not text.startswith(INFO))


def query_result(expr: str, body: Mapping[str, Json]) -> QueryResult:
    """Return the answer to an instant query as a value; raises ApiError."""
    data = data_of(body)
    kind, result, warnings = data["resultType"], data["result"], warnings_of(body)
    try:
        if kind == "vector":
            samples = tuple(Sample(_labels(s), number(_value(s)[1])) for s in result)
            if len({s.labels for s in samples}) < len(samples):
                raise ApiError("the answer holds a series twice")
            return QueryResult(expr, "vector", samples, warnings=warnings)
        if kind == "matrix":
            ranges = tuple(_range(series) for series in result)
            return QueryResult(expr, "matrix", ranges=ranges, warnings=warnings)
        if kind == "scalar":
            sample = Sample((), number(result[1]))
            return QueryResult(expr, "scalar", (sample,), warnings=warnings)
        return QueryResult(expr, "string", text=str(result[1]), warnings=warnings)
    except (LookupError, TypeError, AttributeError, OverflowError):
        raise ApiError(f"the answer's {kind} is malformed") from None


def _labels(series: Mapping[str, Any]) -> Labels:
    return labels_of({str(k): str(v) for k, v in series.get("metric", {}).items()})


def _value(series: Mapping[str, Any]) -> Any:
    if "value" not in series and "histogram" in series:
        raise ApiError("the answer holds a native histogram, which is not supported")
    return series["value"]


def _range(series: Mapping[str, Any]) -> RangeSample:
    if series.get("histograms"):
        raise ApiError("the answer holds native histograms, which are not supported")
    points = [(milliseconds(t), number(v)) for t, v in series["values"]]
    return RangeSample(_labels(series), tuple(t for t, _ in points), tuple(v for _, v in points))


def milliseconds(seconds: Any) -> int:
    """Return epoch ms of the API's seconds; raises ApiError."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ApiError(f"`{str(seconds)[:40]}` is not a time in seconds")
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise ApiError("a time is not finite")
    if not FIRST_MS <= seconds * 1000 <= LAST_MS:
        said = str(seconds)[:40]
        raise ApiError(f"`{said}` is a time beyond the years 1 to 9999: seconds are meant")
    return round(seconds * 1000)


def number(text: Any) -> float:
    """Return the value of a sample, as Go writes floats (hexadecimal too); raises ApiError."""
    try:
        if not isinstance(text, str) or "_" in text or not text.isascii():
            raise ValueError
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise ApiError(f"`{str(text)[:40]}` is not the value of a sample") from None


# --- the other direction -----------------------------------------------------------------------


def seconds(t_ms: int) -> Json:
    """Return a time as the API writes it: whole seconds without a fraction."""
    return t_ms // 1000 if t_ms % 1000 == 0 else t_ms / 1000


def value_text(value: float) -> str:
    """Return a value as the API writes it: positional from 1e-6 up to 1e21, else with exponent."""
    if not math.isfinite(value):
        return format_float(value)
    if value and not 1e-6 <= abs(value) < 1e21:
        return repr(value)
    return _positional(value)


def scalar_text(value: float) -> str:
    """Return a scalar as the API writes it: without an exponent, however long."""
    return _positional(value) if math.isfinite(value) else format_float(value)


def _positional(value: float) -> str:
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def result_data(result: QueryResult, t_ms: int) -> dict[str, Json]:
    """Return exactly the API's `data` object of an instant query evaluated at `t_ms`."""
    if result.kind == "vector":
        found: Json = [
            {"metric": dict(s.labels), "value": [seconds(t_ms), value_text(s.value)]}
            for s in result.samples
        ]
    elif result.kind == "matrix":
        found = matrix_json((r.labels, r.times_ms, r.values) for r in result.ranges)
    elif result.kind == "scalar":
        found = [seconds(t_ms), scalar_text(result.samples[0].value)]
    else:
        found = [seconds(t_ms), result.text or ""]
    return {"resultType": result.kind, "result": found}


def matrix_json(series: Iterable[tuple[Labels, Iterable[int], Iterable[float]]]) -> list[Json]:
    """Return the API's `result` list of a matrix."""
    return [
        {
            "metric": dict(labels),
            "values": [
                [seconds(t), value_text(v)] for t, v in zip(times, values, strict=True)
            ],
        }
        for labels, times, values in series
    ]
