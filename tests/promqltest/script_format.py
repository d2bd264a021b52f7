"""Reads Prometheus' promqltest scripts: `load`, `clear` and `eval` blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from resilience.errors import PromQLError
from resilience.model import Labels, parse_duration
from resilience.promql.parser import parse
from resilience.promql.plan import Selector, String
from resilience.promql.storage import STALE

HISTOGRAM = "histogram"
NEWER = "newer"  # a kind of point that we cannot read
_EVAL = re.compile(
    r"eval(?:_(?P<mode>fail|warn|info|ordered))?\s+"
    r"(?:instant\s+at\s+(?P<at>\S+)|range\s+from\s+(?P<start>\S+)\s+to\s+(?P<end>\S+)"
    r"\s+step\s+(?P<step>\S+))\s+(?P<expr>.+)"
)
_POINTS = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x\d+)?|\S+")
_VALUE_LIKE = re.compile(r"[+-]?(?:[0-9.{_]|stale|nan|inf)", re.IGNORECASE)
_REPEAT = re.compile(
    r"(?P<first>.+?)(?:(?P<sign>[+-])(?P<step>[^+\-x]+(?:e[+-]?\d+)?))?x(?P<n>\d+)"
)


class ScriptError(Exception):
    """A script that cannot be read; the message has the line."""


# A point: a value, None for no sample, HISTOGRAM or NEWER.
Point = float | None | str


@dataclass
class Load:
    """Series with points from time 0, one each `step_ms`."""

    line: int
    step_ms: int
    series: list[tuple[Labels, list[Point]]]
    with_nhcb: bool = False


@dataclass
class Clear:
    line: int


@dataclass
class Expected:
    """What the lines below an eval demand."""

    fail: bool = False
    fail_message: str | None = None
    fail_regex: str | None = None
    ordered: bool = False
    text: str | None = None
    range_vector: tuple[int, int, int] | None = None
    scalar: float | None = None
    series: list[tuple[Labels, list[Point]]] = field(default_factory=list)
    annotations: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass
class Eval:
    """One eval: instant if `step_ms` is 0."""

    line: int
    expr: str
    start_ms: int
    end_ms: int
    step_ms: int
    expected: Expected


Command = Load | Clear | Eval


def milliseconds(text: str) -> int:
    """Return a duration or a number of seconds in ms; negative ones too."""
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text)
    try:
        return sign * parse_duration(body)
    except ValueError:
        return sign * round(float(body) * 1000)


def read(text: str) -> Iterator[Command]:
    """Yield the commands of a script. Raises ScriptError."""
    lines = [line.strip() for line in text.splitlines()]
    lines = ["" if line.startswith("#") else line for line in lines]
    at = 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        stop = at + 1
        while stop < len(lines) and lines[stop]:
            stop += 1
        word = lines[at].split()[0]
        if word == "clear":
            yield Clear(at + 1)
            at += 1
            continue
        try:
            if word in ("load", "load_with_nhcb"):
                yield _load(at + 1, lines[at], lines[at + 1 : stop])
            elif word.startswith("eval"):
                yield _eval(at + 1, lines[at], lines[at + 1 : stop])
            else:
                raise ScriptError(f"unknown command `{word}`")
        except (ValueError, IndexError, PromQLError, ScriptError) as error:
            raise ScriptError(f"line {at + 1}: {error}") from None
        at = stop


def _load(line: int, head: str, body: list[str]) -> Load:
    word, step = head.split()[:2]
    series = [_series(text) for text in body]
    return Load(line, milliseconds(step), series, word == "load_with_nhcb")


def _series(text: str) -> tuple[Labels, list[Point]]:
    """Read `metric{a="b"} 1 2+3x4`. The series may hold blanks inside quotes."""
    end = _series_end(text)
    return series_labels(text[:end]), points(text[end:])


def _series_end(text: str) -> int:
    quote = ""
    depth = 0
    escaped = False
    for i, char in enumerate(text):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped and quote != "`"
        elif char in "\"'`":
            quote = char
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return i + 1
        elif char.isspace() and depth == 0:
            return _brace_after(text, i)
    return len(text)


def _brace_after(text: str, i: int) -> int:
    """A blank may stand between name and braces, but `{{` starts a point."""
    rest = text[i:].lstrip()
    if rest.startswith("{") and not rest.startswith("{{"):
        skipped = len(text) - len(rest)
        return skipped + _series_end(rest)
    return i


def series_labels(text: str) -> Labels:
    """Return the labels of a series description."""
    text = text.strip()
    if text == "{}":
        return ()
    selector = parse(text)
    if not isinstance(selector, Selector):
        raise ScriptError(f"`{text}` is not a series")
    return tuple(sorted((m.name, m.value) for m in selector.matchers if m.value))


def points(text: str) -> list[Point]:
    """Expand `1 2+3x4 _x2 stale`; a native histogram is HISTOGRAM."""
    found: list[Point] = []
    for word in _POINTS.findall(text):
        if word.startswith("{{"):
            count = re.search(r"\}\}x(\d+)$", word)
            found += [HISTOGRAM] * (int(count.group(1)) + 1 if count else 1)
        elif match := _REPEAT.fullmatch(word):
            found += _repeated(match)
        else:
            found.append(_point(word))
    return found


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _repeated(match: re.Match[str]) -> list[Point]:
    n = int(match.group("n"))
    first = _point(match.group("first"))
    if first is None:
        return [None] * n
    step = _number(match.group("step") or "0")
    if not isinstance(first, float) or step is None:
        return [NEWER] * (n + 1)
    step = -step if match.group("sign") == "-" else step
    values: list[Point] = [first]
    for _ in range(n):
        first += step
        values.append(first)
    return values


def _point(word: str) -> Point:
    if word == "_":
        return None
    if word == "stale":
        return float(STALE)
    value = _number(word)
    if value is None and not _VALUE_LIKE.match(word):
        raise ScriptError(f"`{word}` is no value: is an empty line missing before a command?")
    return NEWER if value is None else value


def _eval(line: int, head: str, body: list[str]) -> Eval:
    match = _EVAL.fullmatch(head)
    if match is None:
        raise ScriptError(f"cannot read `{head}`")
    expected = Expected(fail=match["mode"] == "fail", ordered=match["mode"] == "ordered")
    for text in body:
        _expect(expected, text)
    if match["at"]:
        at = milliseconds(match["at"])
        return Eval(line, match["expr"], at, at, 0, expected)
    return Eval(
        line, match["expr"], milliseconds(match["start"]), milliseconds(match["end"]),
        milliseconds(match["step"]), expected,
    )


def _expect(expected: Expected, text: str) -> None:
    word, _, rest = text.partition(" ")
    if word == "expect":
        _expect_line(expected, rest.strip())
    elif word in ("expected_fail_message", "expected_fail_regexp"):
        expected.fail = True
        if word.endswith("message"):
            expected.fail_message = rest.strip()
        else:
            expected.fail_regex = rest.strip()
    elif (scalar := _scalar(text)) is not None:
        if expected.series or expected.scalar is not None:
            raise ScriptError(f"`{text}` after other results: a scalar stands alone")
        expected.scalar = scalar
    elif expected.scalar is not None:
        raise ScriptError(f"`{text}` after a scalar: it stands alone")
    else:
        expected.series.append(_series(text))


def _expect_line(expected: Expected, rest: str) -> None:
    kind, _, more = rest.partition(" ")
    if kind == "string":
        plan = parse(more.strip())
        if not isinstance(plan, String):
            raise ScriptError(f"`{more}` is not a string")
        expected.text = plan.value
    elif kind == "range":
        words = more.split()
        start, end, step = (milliseconds(words[i]) for i in (2, 4, 6))
        expected.range_vector = (start, end, step)
    elif kind == "ordered":
        expected.ordered = True
    elif kind == "fail":
        expected.fail = True
        how, _, message = more.partition(":")
        if how == "msg":
            expected.fail_message = message.strip()
        elif how == "regex":
            expected.fail_regex = message.strip()
    elif kind in ("info", "warn", "no_info", "no_warn"):
        how, _, message = more.partition(":")
        expected.annotations.append((kind, how.strip(), message.strip()))
    else:
        raise ScriptError(f"unknown expectation `{rest}`")


def _scalar(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def same(wanted: float, got: float) -> bool:
    """Compare as upstream does: NaN is NaN, else a relative difference of 1e-6."""
    if math.isnan(wanted) or math.isnan(got):
        return math.isnan(wanted) and math.isnan(got)
    if wanted == got:
        return True
    if math.isinf(wanted) or math.isinf(got):
        return False
    size = abs(wanted) + abs(got)
    if wanted == 0 or got == 0 or size < 2.2250738585072014e-308:
        return abs(wanted - got) < 1e-6 * 2.2250738585072014e-308
    return abs(wanted - got) / min(size, 1.7976931348623157e308) < 1e-6
