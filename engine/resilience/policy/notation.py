"""promtool's notation for test series: text -> samples. Pure.

    1 2 3          three values                 _        no sample        stale   a stale marker
    1x4            1, and 4 times again         _x3      3 times none     NaN Inf -Inf
    0+10x4         0 10 20 30 40                5-1x2    5 4 3
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from resilience.errors import PromQLError
from resilience.model import Labels, labels_of
from resilience.policy.words import quoted
from resilience.promql.parser import parse
from resilience.promql.plan import Selector

VALUES_MAX = 100_000
STALE: float = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]

TIMES_DIGITS_MAX = 9
_DIGITS = "[0-9]+(?:_[0-9]+)*"
_NUMBER = (
    rf"(?:{_DIGITS}\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?i:inf|nan))"
)
_ITEM = re.compile(
    rf"(?:(?P<none>_)|(?P<stale>stale)|(?P<start>[+-]?{_NUMBER})(?P<step>[+-]{_NUMBER})?)"
    r"(?:x(?P<times>[0-9]+))?"
)
_WORD = re.compile(r"\S+")


class NotationError(ValueError):
    """The text is not a series. `offset` is where in it, from 0; `hint` says what to write."""

    def __init__(self, message: str, offset: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        self.hint = hint


@dataclass(frozen=True, slots=True)
class InputSeries:
    """One series of a test. `values[i]` is the sample at `i * interval`; None: no sample."""

    labels: Labels
    values: tuple[float | None, ...]

    @property
    def name(self) -> str:
        """Return the metric name."""
        return dict(self.labels)["__name__"]


def parse_labels(text: str) -> Labels:
    """Return the labels of `metric{name="value", …}`, the metric name as `__name__`.

    Raises NotationError.
    """
    try:
        plan = parse(text)
    except PromQLError as error:
        raise NotationError(error.message, _offset(text, error), error.suggestion) from None
    if not isinstance(plan, Selector) or plan.range_ms or plan.offset_ms or plan.at is not None:
        raise NotationError(
            f"{quoted(text)} is not one series", 0, 'write it as `metric{label="value"}`'
        )
    for matcher in plan.matchers:
        if matcher.op != "=":
            raise NotationError(
                f"a series has its labels by `=`, not by `{matcher.op}`",
                max(text.find(matcher.op), 0), f'write `{matcher.name}="value"`',
            )
    if not plan.metric_name:
        raise NotationError(
            f"{quoted(text)} has no metric name", 0, 'write it as `metric{label="value"}`'
        )
    return labels_of({"__name__": plan.metric_name, **{m.name: m.value for m in plan.matchers}})


def _offset(text: str, error: PromQLError) -> int:
    lines = text.split("\n")[: error.line - 1]
    return min(sum(len(line) + 1 for line in lines) + error.column - 1, len(text))


def parse_values(text: str) -> tuple[float | None, ...]:
    """Return one value for each step; None is no sample. Raises NotationError."""
    values: list[float | None] = []
    for word in _WORD.finditer(text):
        item = _ITEM.fullmatch(word.group())
        if item is None:
            raise _strange(word.group(), word.start())
        if item["step"] and not item["times"]:
            raise NotationError(
                f"{quoted(word.group())} says how to go on, but not how often", word.start(),
                f"write `{word.group()}x10` for ten more values",
            )
        times = item["times"] or "0"
        count = int(times[:TIMES_DIGITS_MAX]) + (not (item["none"] and item["times"]))
        if len(times) > TIMES_DIGITS_MAX or len(values) + count > VALUES_MAX:
            raise NotationError(
                f"more than {VALUES_MAX} values in a series", word.start(), "use a longer interval"
            )
        if any(_too_large(item[part]) for part in ("start", "step")):
            raise NotationError(f"{quoted(word.group())} is larger than any float", word.start(),
                                "write `Inf` for infinity")
        values += _expanded(item, count)
    if not values:
        raise NotationError("no values", 0, "write for example `0+1x10`")
    return tuple(values)


def _too_large(number: str | None) -> bool:
    return number is not None and math.isinf(float(number)) and number.strip("+-").lower() != "inf"


def _expanded(item: re.Match[str], count: int) -> list[float | None]:
    if item["none"]:
        return [None] * count
    if item["stale"]:
        return [STALE] * count
    value = float(item["start"])
    if not item["step"]:
        return [value] * count
    step = float(item["step"])
    made: list[float | None] = []
    for _ in range(count):               # by addition, as promtool does: the same rounding
        made.append(value)
        value += step
    return made


def _strange(word: str, at: int) -> NotationError:
    message = f"{quoted(word)} is not a value"
    if word.startswith("{{"):
        return NotationError(
            "native histograms (`{{…}}`) are not supported", at, "write `_bucket` series"
        )
    if "," in word:
        return NotationError(message, at, "separate values by blanks")
    if "*" in word or "X" in word:
        return NotationError(message, at, "write `x` and a number to repeat, as in `1x10`")
    return NotationError(
        message, at, "write a number, `1x10`, `0+5x10`, `5-1x4`, `_`, `_x3` or `stale`"
    )


def is_stale(value: float | None) -> bool:
    """Return whether `value` is the stale marker, not any other NaN."""
    if value is None or not math.isnan(value):
        return False
    return struct.pack("<d", value) == struct.pack("<d", STALE)
