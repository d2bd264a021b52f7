"""Functions of single values: mathematics, trigonometry, clamping, and the calendar in UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from resilience.promql.storage import Floats, Ints

Elementwise: TypeAlias = Callable[[Floats], Floats]

_DAY_S = 86_400


def _sgn(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


def _deg(values: Floats) -> Floats:
    return values * 180 / np.pi


def _rad(values: Floats) -> Floats:
    return values * np.pi / 180


MATHEMATICS: dict[str, Elementwise] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "ln": np.log,
    "log10": np.log10, "log2": np.log2, "sqrt": np.sqrt, "sgn": _sgn, "deg": _deg, "rad": _rad,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh,
}


def rounded(values: Floats, nearest: Floats) -> Floats:
    """Round half up to a multiple of nearest[K]; the inverse first, as Prometheus does."""
    inverse = 1.0 / nearest
    return np.floor(values * inverse + 0.5) / inverse


def clamped(values: Floats, low: Floats | None, high: Floats | None) -> Floats:
    """Bound the values; NaN in a value or a bound gives NaN."""
    if high is not None:
        values = np.minimum(high, values)
    return values if low is None else np.maximum(low, values)


# --- calendar: seconds since the epoch, cut to whole ones ---


def _seconds(values: Floats) -> Ints:
    return np.clip(np.nan_to_num(values), -(2.0**53), 2.0**53).astype(np.int64)


def _date(values: Floats) -> np.ndarray:
    return _seconds(values).astype("datetime64[s]")


def _month(values: Floats) -> Floats:
    return (_date(values).astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(np.float64)


def _year(values: Floats) -> Floats:
    return (_date(values).astype("datetime64[Y]").astype(np.int64) + 1970).astype(np.float64)


def _since(values: Floats, unit: str) -> Floats:
    """Return whole days since the start of the month or year, from 1."""
    days = _date(values).astype("datetime64[D]")
    start = days.astype(f"datetime64[{unit}]").astype("datetime64[D]")
    return (days - start).astype(np.int64).astype(np.float64) + 1


def _days_in_month(values: Floats) -> Floats:
    month = _date(values).astype("datetime64[M]")
    length = (month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")
    return length.astype(np.int64).astype(np.float64)


CALENDAR: dict[str, Elementwise] = {
    "minute": lambda v: (_seconds(v) // 60 % 60).astype(np.float64),
    "hour": lambda v: (_seconds(v) // 3600 % 24).astype(np.float64),
    "day_of_week": lambda v: ((_seconds(v) // _DAY_S + 4) % 7).astype(np.float64),
    "day_of_month": lambda v: _since(v, "M"),
    "day_of_year": lambda v: _since(v, "Y"),
    "days_in_month": _days_in_month,
    "month": _month,
    "year": _year,
}
