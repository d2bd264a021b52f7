"""What a query's answer becomes on its way into a UDF: JSON, and never a guess among series."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import lru_cache

from resilience.model import Json, QueryResult, UdfSpec
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Aggregate, walk

LARGEST = sys.float_info.max


def metric_value(result: QueryResult | None) -> Json:
    """Return a query's answer: a number, a list for a range, None for nothing.

    The several series of an aggregation become a list of {labels, value}.
    """
    if result is None or result.error is not None:
        return None
    if result.kind == "matrix":
        series = [list(r.values) for r in result.ranges]
        return series[0] if len(series) == 1 else (series or None)
    if result.kind == "string":
        return result.text
    if len(result.samples) == 1:
        return result.samples[0].value
    return [{"labels": dict(s.labels), "value": s.value} for s in result.samples] or None


def in_json(value: Json) -> Json:
    """Return `value` in numbers that JSON has: NaN says nothing and becomes None (in a list it is
    left out), an infinite number becomes the largest, so that comparisons still hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(LARGEST, value)
    if isinstance(value, Mapping):
        return {k: in_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [in_json(v) for v in value if not (isinstance(v, float) and math.isnan(v))]
    return value


def ambiguous(spec: UdfSpec, results: Mapping[str, QueryResult]) -> str | None:
    """Return why a call cannot be made: a metric of several series whose expression does not say
    by an aggregation that it wants them."""
    for name, expr in spec.metrics:
        result = results.get(expr)
        count = 0 if result is None else len(result.samples) + len(result.ranges)
        if count > 1 and not _aggregates(expr):
            return f"metric `{name}` has {count} series; aggregate it, as in `max({expr})`"
    return None


@lru_cache(maxsize=4_096)
def _aggregates(expr: str) -> bool:
    return any(isinstance(node, Aggregate) for node in walk(parse_checked(expr)))
