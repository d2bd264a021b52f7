"""A report for people in a terminal: any width, with or without Unicode and colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from resilience.model import Json, Labels, format_duration, format_float
from resilience.policy.conflicts import Conflict
from resilience.report.contention import Meeting
from resilience.report.figures import Taken
from resilience.report.history import BLIND
from resilience.report.lines import label_text
from resilience.report.shed import Shed
from resilience.report.spans import Span
from resilience.report.summary import PolicyReport, Report

WIDTH_MIN = 40
WIDTH_MAX = 160
BAR_MIN = 12
NAME_MAX = 32
LISTED = 8

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


def lines(report: Report, terminal: Terminal = Terminal()) -> list[str]:
    """Return the report, line by line, without a line end."""
    return [
        *(f"warning: {text}" for text in report.warnings),
        *_timelines(report, terminal),
        "",
        *_table(report),
        *_details(report),
        *_conflicts(report),
        *_shed(report),
    ]


# --- timelines ---


def _timelines(report: Report, terminal: Terminal) -> Iterator[str]:
    longest = max((len(p.name) for p in report.policies), default=0)
    room = terminal.fitted()
    name = min(longest, NAME_MAX, room - BAR_MIN - 2)
    bar = max(BAR_MIN, room - name - 2)
    marks = UNICODE if terminal.unicode else ASCII
    yield " " * name + "  " + _axis(report, bar)
    used: set[str] = set()
    for policy in report.policies:
        cells = _cells(policy, report, bar)
        used.update(cells)
        drawn = "".join(
            terminal.paint(marks[word] * count, SHADES.get(word, ""))
            for word, count in _grouped(cells)
        )
        yield f"{_short(policy.name, name, terminal).ljust(name)}  {drawn}"
    legend = "  ".join(f"{marks[word]} {word}" for word in RANK if word in used)
    yield from _wrapped(legend, room)
    yield f"one column is {duration(max(1, report.span_ms // bar))}"


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


# --- figures ---


def _table(report: Report) -> list[str]:
    header = ("POLICY", "FIRINGS", "ACTIVE", "FLAPS", "BLIND", "FIRST FIRING")
    rows = [header, *(_row(p, report) for p in report.policies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(policy: PolicyReport, report: Report) -> tuple[str, ...]:
    found = policy.figures
    return (
        policy.name, str(found.firings), share(found.active_ms, report.span_ms),
        str(found.flaps), share(found.blind_ms, report.span_ms),
        stamp(found.first_firing_ms) if found.first_firing_ms is not None else "-",
    )


def share(ms: int, of_ms: int) -> str:
    """Return a time and its share of the run, such as `12m (3.4%)`."""
    if not ms:
        return "0"
    return f"{duration(ms)} ({ms / max(1, of_ms):.1%})"


def _details(report: Report) -> Iterator[str]:
    for policy in report.policies:
        rows = list(_detail(policy, report))
        if rows:
            yield ""
            mode = "" if policy.policy.mode == "enforce" else f" [{policy.policy.mode}]"
            yield f"{policy.name}{mode}"
            yield from (f"  {row}" for row in rows)


def _detail(policy: PolicyReport, report: Report) -> Iterator[str]:
    if policy.missing:
        yield missing_text(policy)
    if policy.failure:
        yield f"no answer: {policy.failure}"
    for taken in policy.taken[:LISTED]:
        yield taken_text(taken)
    yield from _more(len(policy.taken), "claims")
    for impulse, count in policy.impulses.items():
        yield f"impulse {impulse}, {times(count)}"
    for outcome, count in policy.udf.items():
        yield f"udf {outcome}: {count} decisions"
    for note, count in policy.notes.items():
        yield f"note: {note} ({count} decisions)"
    for firing in policy.firings[:LISTED]:
        end = "still on at the end" if firing.end_ms is None else (
            f"for {duration(firing.end_ms - firing.start_ms)}")
        labels = f" {label_text(firing.labels)}" if firing.labels else ""
        yield f"fired {stamp(firing.start_ms)} {end}, value {number(firing.value)}{labels}"
    yield from _more(len(policy.firings), "firings")
    if policy.figures.near_misses:
        yield f"pending without firing, {times(policy.figures.near_misses)}"


def missing_text(policy: PolicyReport) -> str:
    """Say what metrics that are not there mean: blindness, or that another one was enough."""
    names = ", ".join(f"`{metric}`" for metric in policy.missing)
    if policy.figures.blind_ms:
        return f"blind: the recording has no {names}: renamed, or not recorded"
    return f"the recording has no {names}; the trigger has an answer without"


def _more(count: int, what: str) -> Iterator[str]:
    if count > LISTED:
        yield f"and {count - LISTED} more {what}; `-o json` and `--html` have them"


def taken_text(taken: Taken) -> str:
    where = " (shadow: never sent)" if taken.shadow else ""
    return (f"claimed {claim_text(taken.knob, taken.scope, taken.value)}, {times(taken.times)}, "
            f"{duration(taken.ms)} in all{where}")


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def claim_text(knob: str, scope: Labels, value: Json) -> str:
    """Return `knob{scope} = value`."""
    return f"{_knob(knob, scope)} = {value_text(value)}"


def value_text(value: Json) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{k}={value_text(v)}" for k, v in sorted(value.items()))
    return number(value) if isinstance(value, float) else str(value)


# --- conflicts and shedding ---


def _conflicts(report: Report) -> Iterator[str]:
    yield ""
    if not report.conflicts and not report.meetings:
        yield "conflicts: none: no two policies want different values for one knob"
        return
    yield "conflicts"
    yield from (f"  possible: {conflict_text(c)}" for c in report.conflicts[:LISTED])
    yield from (f"  {row}" for row in _more(len(report.conflicts), "conflicts"))
    yield from (f"  met: {meeting_text(m)}" for m in report.meetings[:LISTED])
    yield from (f"  {row}" for row in _more(len(report.meetings), "meetings"))
    if not report.meetings:
        yield "  none of them met in this recording"


def conflict_text(conflict: Conflict) -> str:
    """Return which policies could meet; of many only the first ones are named."""
    if len(conflict.rivals) <= LISTED:
        return str(conflict)
    wanted = _named([(r.policy, r.value) for r in conflict.rivals])
    best = f"; that is {conflict.winner}" if conflict.winner else ""
    return f"{_knob(conflict.knob, conflict.scope)}: {wanted}: {conflict.rule}{best}"


def meeting_text(met: Meeting) -> str:
    """Return which policies met, whose value was in force, and for how long."""
    return (f"{_knob(met.knob, met.scope)}: {_named(met.values)}: {value_text(met.in_force)} of "
            f"{met.winner} in force, {duration(met.ms)} in all, first at {stamp(met.first_ms)}")


def _knob(knob: str, scope: Labels) -> str:
    return label_text((("__name__", knob), *scope))


def _named(values: Sequence[tuple[str, Json]]) -> str:
    shown = ", ".join(f"{policy} {value_text(value)}" for policy, value in values[:LISTED])
    rest = len(values) - LISTED
    return f"{shown} and {rest} more" if rest > 0 else shown


def _shed(report: Report) -> Iterator[str]:
    if not report.shed:
        return
    yield ""
    yield "would have shed (a bound, from recorded metrics alone)"
    for shed in report.shed:
        yield f"  {shed_text(shed)}"
    for caveat in dict.fromkeys(c for shed in report.shed for c in shed.caveats):
        yield f"  note: {caveat}"


def shed_text(shed: Shed) -> str:
    """Return the bound of one tier as a sentence."""
    who = dict(shed.scope).get("tier", "all requests")
    limited = f"{who}: limited for {duration(shed.limited_ms)}"
    if shed.refused_max is None or shed.arrived is None:
        return f"{limited}; no estimate: {shed.why}"
    whose = "its own" if shed.exact_tier else "the server's"
    blind = f"; for {duration(shed.unknown_ms)} of it nothing is known" if shed.unknown_ms else ""
    return (f"{limited}; at most {shed.refused_max} of {whose} {shed.arrived} requests of that "
            f"time refused{blind}")


# --- values ---


def stamp(t_ms: int | None) -> str:
    """Return UTC date and time to the second."""
    if t_ms is None:
        return "-"
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(ms: int) -> str:
    """Return at most the two largest units of a length of time."""
    text = format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)
    if ms >= 86_400_000:
        return format_duration(ms // 3_600_000 * 3_600_000)
    if ms >= 3_600_000:
        return format_duration(ms // 60_000 * 60_000)
    return text


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if value == value and abs(value) < 1e300 else format_float(value)
