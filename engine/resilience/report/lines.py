"""Curves of a trigger for a plot: what is compared with what, thinned without losing extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from resilience.arrays import NDArray, np
from resilience.model import Json, Labels
from resilience.promql.plan import COMPARISONS, SET_OPERATORS, Binary, Plan
from resilience.promql.text import quote

SERIES_MAX = 12
DIGITS = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a trigger: the plan of the value, `op`, and the plan of the threshold.

    `op` None: the expression is no comparison, every value of it is true.
    """

    value: Plan
    op: str | None = None
    threshold: Plan | None = None


_MIRRORED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "==": "==", "!=": "!="}


def comparisons(plan: Plan) -> Iterator[Comparison]:
    """Yield the comparisons of a trigger from left to right; the scalar side is the threshold."""
    if isinstance(plan, Binary) and plan.op in SET_OPERATORS:
        yield from comparisons(plan.lhs)
        yield from comparisons(plan.rhs)
    elif isinstance(plan, Binary) and plan.op in COMPARISONS:
        if plan.lhs.type == "scalar" and plan.rhs.type != "scalar":
            yield Comparison(plan.rhs, _MIRRORED[plan.op], plan.lhs)
        else:
            yield Comparison(plan.lhs, plan.op, plan.rhs)
    else:
        yield Comparison(plan)


@dataclass(frozen=True, slots=True)
class Line:
    """One series: the least and the largest value of each bucket, NaN where there is none."""

    label: str
    low: Floats
    high: Floats

    def to_json(self) -> Json:
        low, high = _numbers(self.low), _numbers(self.high)
        return {"label": self.label, "low": low, "high": None if low == high else high}


@dataclass(frozen=True, slots=True)
class Plot:
    """What one comparison looked like. Bucket i begins at `start_ms + i * bucket_ms`.

    `threshold` is a number where it is one all the time, else the lines of the other side.
    `resolve` is a second threshold, of the resolve expression on the same value.
    """

    expr: str
    op: str | None
    start_ms: int
    bucket_ms: int
    lines: tuple[Line, ...] = ()
    more: int = 0
    threshold: float | None = None
    threshold_lines: tuple[Line, ...] = ()
    resolve: tuple[str, float] | None = None
    thinned: bool = False
    error: str | None = None

    def to_json(self) -> Json:
        return {
            "expr": self.expr, "op": self.op, "start_ms": self.start_ms,
            "bucket_ms": self.bucket_ms, "lines": [line.to_json() for line in self.lines],
            "more": self.more, "threshold": self.threshold,
            "threshold_lines": [line.to_json() for line in self.threshold_lines],
            "resolve": list(self.resolve) if self.resolve else None,
            "thinned": self.thinned, "error": self.error,
        }


def _numbers(values: Floats) -> list[float | None]:
    """Return numbers of few digits; a browser's JSON knows neither NaN nor infinity."""
    return [
        float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in values.tolist()
    ]


def label_text(labels: Labels) -> str:
    """Return labels as PromQL writes them; `value` for none."""
    pairs = dict(labels)
    name = pairs.pop("__name__", "")
    inner = ", ".join(f"{k}={quote(v)}" for k, v in sorted(pairs.items()))
    return f"{name}{{{inner}}}" if inner else name or "value"


@dataclass(slots=True)
class Thinner:
    """Collects rows block by block and keeps the least and largest value of every `per` steps.

    At most `SERIES_MAX` series are kept, in the order in which they are seen; `more` counts the
    others.
    """

    per: int
    buckets: int
    rows: dict[Labels, tuple[Floats, Floats]] = field(
        default_factory=dict[Labels, tuple[Floats, Floats]]
    )
    others: set[Labels] = field(default_factory=set[Labels])

    def add(
        self, first: int, labels: Sequence[Labels], values: Floats,
        present: NDArray[np.bool_] | None,
    ) -> None:
        """Take `values` [S, K] of the steps from `first` on; `first` is a multiple of `per`."""
        for number, one in enumerate(labels):
            row = values[number].astype(np.float64)
            if present is not None:
                row = np.where(present[number], row, np.nan)
            if one not in self.rows:
                if len(self.rows) >= SERIES_MAX:
                    self.others.add(one)
                    continue
                self.rows[one] = (
                    np.full(self.buckets, np.nan), np.full(self.buckets, np.nan)
                )
            low, high = self.rows[one]
            least, largest = extremes(row, self.per)
            at = first // self.per
            low[at : at + len(least)] = least
            high[at : at + len(largest)] = largest

    def lines(self, show: Callable[[Labels], Labels]) -> tuple[Line, ...]:
        """Return what was collected; `show` masks labels."""
        return tuple(Line(label_text(show(x)), *pair) for x, pair in sorted(self.rows.items()))

    def constant(self) -> float | None:
        """Return the one number that a single series without labels is all the time."""
        if len(self.rows) != 1 or self.others:
            return None
        low, high = next(iter(self.rows.values()))
        known = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
        if not len(known) or (known != known[0]).any():
            return None
        return float(known[0])


def extremes(row: Floats, per: int) -> tuple[Floats, Floats]:
    """Return the least and the largest value of every `per` steps; NaN where there is none."""
    short = -len(row) % per
    padded = np.concatenate([row, np.full(short, np.nan)]).reshape(-1, per)
    there = ~np.isnan(padded)
    least = np.where(there, padded, np.inf).min(axis=1)
    largest = np.where(there, padded, -np.inf).max(axis=1)
    empty = ~there.any(axis=1)
    least[empty], largest[empty] = np.nan, np.nan
    return least, largest
