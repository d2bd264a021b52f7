"""Functions of single values: mathematics, trigonometry, clamping, and the calendar in UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql.storage import Bools, Floats, Ints

Elementwise: TypeAlias = Callable[[Floats], Floats]

_DAY_S = 86_400
_ODD_S = 2**63 - 12_622_780_800
_BEFORE_MONTH = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365])


def _sinh(values: Floats) -> Floats:
    """Beyond 21 Go halves the exponential, which overflows earlier than the C library."""
    size = np.abs(values)
    return np.where(size > 21, np.copysign(np.exp(size) * 0.5, values), np.sinh(values))


def _cosh(values: Floats) -> Floats:
    size = np.abs(values)
    return np.where(size > 21, np.exp(size) * 0.5, np.cosh(values))


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
    "atan": np.arctan, "sinh": _sinh, "cosh": _cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh,
}


def rounded(values: Floats, nearest: Floats) -> Floats:
    """Round half up to a multiple of nearest[K]; the inverse first, as Prometheus does."""
    inverse = 1.0 / nearest
    return np.floor(values * inverse + 0.5) / inverse


def clamped(values: Floats, low: Floats | None, high: Floats | None) -> Floats:
    """Bound the values as Go's Min and Max do: NaN gives NaN, but not beside the infinity that
    decides; of two zeros the negative one is less."""
    if high is not None:
        values = -_greatest(-high, -values)
    return values if low is None else _greatest(low, values)


def _greatest(a: Floats, b: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        found = np.maximum(a, b)
        found = np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), found)
        return np.where((a == np.inf) | (b == np.inf), np.inf, found)


# --- calendar: whole seconds since the epoch, proleptic Gregorian, UTC ---


def _seconds(values: Floats) -> tuple[Ints, Bools]:
    """Return whole seconds, and where the value is no int64.

    There Go's conversion gives the same odd instant for all (in the year 292277026596); it is
    shown here 400 years earlier, where everything but the year is equal.
    """
    odd = ~(np.abs(values) < 2.0**63)
    return np.where(odd, _ODD_S, np.where(odd, 0.0, values).astype(np.int64)), odd


def _civil(values: Floats) -> tuple[Ints, Ints, Ints]:
    """Return (year, month, day). Years are counted from March, so that leap days come last."""
    seconds, odd = _seconds(values)
    days = seconds // _DAY_S + 719_468
    era, day_of_era = np.divmod(days, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = np.where(month_from_march < 10, month_from_march + 3, month_from_march - 9)
    year = year_of_era + era * 400 + (month <= 2)
    return np.where(odd, year + 400, year), month, day


def _leap(year: Ints) -> Bools:
    return np.asarray((year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0)))


def _day_of_year(values: Floats) -> Ints:
    year, month, day = _civil(values)
    return _BEFORE_MONTH[month] + day + (_leap(year) & (month > 2))


def _days_in_month(values: Floats) -> Ints:
    year, month, _ = _civil(values)
    length = _BEFORE_MONTH[month + 1] - _BEFORE_MONTH[month]
    return np.asarray(length + (_leap(year) & (month == 2)))


_CALENDAR: dict[str, Callable[[Floats], Ints]] = {
    "minute": lambda v: _seconds(v)[0] // 60 % 60,
    "hour": lambda v: _seconds(v)[0] // 3600 % 24,
    "day_of_week": lambda v: (_seconds(v)[0] // _DAY_S + 4) % 7,
    "day_of_month": lambda v: _civil(v)[2],
    "day_of_year": _day_of_year,
    "days_in_month": _days_in_month,
    "month": lambda v: _civil(v)[1],
    "year": lambda v: _civil(v)[0],
}
CALENDAR_NAMES = frozenset(_CALENDAR)


def calendar(name: str, values: Floats) -> Floats:
    """Return the part of the date that `name` asks for, of seconds since the epoch."""
    return _CALENDAR[name](values).astype(np.float64)
