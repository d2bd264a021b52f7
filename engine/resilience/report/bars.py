"""Timelines in a terminal: one bar a policy, at any width, with or without Unicode and colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from resilience.report.history import BLIND
from resilience.report.spans import Span
from resilience.report.summary import PolicyReport, Report
from resilience.report.values import duration, stamp

WIDTH_MIN = 40
WIDTH_MAX = 160
BAR_MIN = 12
NAME_MAX = 32
MARKS = {"before": "-", "after": "+", "": " "}
MARK_SHADES = {"before": "red", "after": "green", "": ""}

# Stronger first: a cell shows the strongest that fell into its stretch of time.
RANK = ("firing", "held", "recovering", "suspended", "pending", "blind", "idle", "inactive")
UNICODE = {"firing": "█", "held": "▒", "recovering": "▓", "suspended": "s", "pending": "▄",
           "blind": "?", "idle": "·", "inactive": "─"}
ASCII = {"firing": "#", "held": "h", "recovering": "r", "suspended": "s", "pending": "p",
         "blind": "?", "idle": ".", "inactive": "-"}
SHADES = {"firing": "red", "held": "magenta", "recovering": "cyan", "suspended": "blue",
          "pending": "yellow", "blind": "magenta"}

Paint = Callable[[str, str], str]


def _plain(text: str, shade: str) -> str:
    del shade
    return text


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the output can take: `width` in columns, Unicode or not, and how to colour."""

    width: int = 80
    unicode: bool = True
    paint: Paint = _plain

    def fitted(self) -> int:
        return min(max(self.width, WIDTH_MIN), WIDTH_MAX)


def timelines(report: Report, terminal: Terminal) -> Iterator[str]:
    """Yield the axis, a bar for each policy, and the legend. Of a comparison, a policy that did
    something else before has two bars, marked as a diff marks lines."""
    compared = report.before is not None
    names = {p.name for p in report.policies} | report.policies_before.keys()
    room = terminal.fitted() - (2 if compared else 0)
    name = min(max(map(len, names), default=0), NAME_MAX, room - BAR_MIN - 2)
    bar = max(BAR_MIN, room - name - 2)
    marks = UNICODE if terminal.unicode else ASCII
    yield " " * (name + (2 if compared else 0)) + "  " + _axis(report, bar)
    used: set[str] = set()
    for side, policy, cells in _bars(report, bar):
        used.update(cells)
        drawn = "".join(
            terminal.paint(marks[word] * count, SHADES.get(word, ""))
            for word, count in _grouped(cells)
        )
        mark = terminal.paint(MARKS[side], MARK_SHADES[side]) + " " if compared else ""
        yield f"{mark}{_short(policy, name, terminal).ljust(name)}  {drawn}"
    legend = "  ".join(f"{marks[word]} {word}" for word in RANK if word in used)
    yield from _wrapped(legend, room)
    yield f"one column is {duration(max(1, report.span_ms // bar))}"


def _bars(report: Report, bar: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (side, policy, cells) in order of name; side is empty where both are the same."""
    old = report.policies_before
    now = {policy.name: policy for policy in report.policies}
    for name in sorted(now.keys() | old.keys()):
        before = _cells(old[name], report, bar) if name in old else None
        after = _cells(now[name], report, bar) if name in now else None
        if before is not None and before != after:
            yield "before", name, before
        if after is not None:
            yield "" if report.before is None or before == after else "after", name, after


def _axis(report: Report, bar: int) -> str:
    first, last = stamp(report.start_ms), stamp(report.end_ms)
    if len(first) + len(last) + 1 > bar:
        first, last = first[11:16], last[11:16]
    return first + " " * max(1, bar - len(first) - len(last)) + last


def _short(name: str, width: int, terminal: Terminal) -> str:
    if len(name) <= width:
        return name
    end = "…" if terminal.unicode else "~"
    return name[: max(0, width - 1)] + end


def _cells(policy: PolicyReport, report: Report, bar: int) -> list[str]:
    """Return one word for each column: the strongest state in its time, and blindness below."""
    order = {word: place for place, word in enumerate(RANK)}
    cells = ["inactive"] * bar
    span_ms = max(1, report.span_ms)
    for span in (*_sight(policy.truths), *policy.states):
        first = (span.start_ms - report.start_ms) * bar // span_ms
        last = (span.end_ms - 1 - report.start_ms) * bar // span_ms
        for place in range(max(0, first), min(bar - 1, last) + 1):
            if order[span.what] < order[cells[place]]:
                cells[place] = span.what
    return cells


def _sight(truths: Sequence[Span]) -> Iterator[Span]:
    for span in truths:
        if span.what in BLIND:
            yield Span(span.start_ms, span.end_ms, "blind")
        elif span.what == "idle":
            yield span


def _grouped(cells: Sequence[str]) -> Iterator[tuple[str, int]]:
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end] != cells[start]:
            yield cells[start], end - start
            start = end


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for part in text.split("  "):
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = part
        else:
            line = f"{line}  {part}" if line else part
    if line:
        yield line
