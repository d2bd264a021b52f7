"""A report for people in a terminal: any width, with or without Unicode and colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from resilience.policy.conflicts import Conflict
from resilience.policy.words import counted, listed
from resilience.report.bars import MARK_SHADES, MARKS, Terminal, timelines
from resilience.report.contention import Meeting
from resilience.report.figures import Taken
from resilience.report.lines import label_text
from resilience.report.shed import Shed
from resilience.report.summary import PolicyReport, Report
from resilience.report.values import (
    claim_text,
    duration,
    knob_text,
    named,
    number,
    share,
    stamp,
    times,
    value_text,
)
from resilience.samples import plain

LISTED = 8
ELSEWHERE = "; `-o json` and `--html` have them"
PLAIN = Terminal()
COLUMNS = ("POLICY", "FIRINGS", "ACTIVE", "FLAPS", "BLIND", "FIRST FIRING")


def lines(report: Report, terminal: Terminal = PLAIN) -> list[str]:
    """Return the report, line by line, without a line end.

    Of a comparison every part shows both sides where they differ: figures as `old -> new`, bars
    and bounds as the lines of a diff.
    """
    if not report.policies and not report.policies_before:
        return ["there is no policy to evaluate"]
    return [
        *(f"warning: {text}" for text in warning_lines(report, LISTED, ELSEWHERE)),
        *timelines(report, terminal),
        "",
        *_table(report),
        *_details(report),
        *_conflicts(report),
        *_shed(report, terminal),
    ]


# --- figures ---


def _table(report: Report) -> list[str]:
    rows = [COLUMNS, *figure_rows(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def figure_rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield name and figures of each policy in order of name, as COLUMNS says."""
    old, now = report.policies_before, {p.name: p for p in report.policies}
    for name in sorted(now.keys() | old.keys()):
        after = _figures(now.get(name), report)
        if report.before is None:
            yield (name, *after)
            continue
        before = _figures(old.get(name), report)
        pairs = zip(before, after, strict=True)
        yield (name, *(a if a == b else f"{b} -> {a}" for b, a in pairs))


def _figures(policy: PolicyReport | None, report: Report) -> tuple[str, ...]:
    if policy is None:
        return ("absent",) * (len(COLUMNS) - 1)
    found = policy.figures
    return (
        str(found.firings), share(found.active_ms, report.span_ms), str(found.flaps),
        share(found.blind_ms, report.span_ms), stamp(found.first_firing_ms),
    )


def _details(report: Report) -> Iterator[str]:
    for policy in report.policies:
        rows = list(facts(policy, LISTED, ELSEWHERE))
        if rows:
            yield ""
            mode = "" if policy.policy.mode == "enforce" else f" [{policy.policy.mode}]"
            yield f"{policy.name}{mode}"
            yield from (f"  {row}" for row in rows)


def facts(policy: PolicyReport, most: int, elsewhere: str = "") -> Iterator[str]:
    """Yield what a policy did, a sentence each, of claims and of firings `most`."""
    if policy.missing:
        yield missing_text(policy)
    if policy.failure:
        yield f"no answer: {policy.failure}"
    yield from (taken_text(taken) for taken in policy.taken[:most])
    yield from _more(len(policy.taken), most, "claims", elsewhere)
    for impulse, count in policy.impulses.items():
        yield f"impulse {impulse}, {times(count)}"
    for outcome, count in policy.udf.items():
        yield f"udf {outcome}: {counted(count, 'decision')}"
    for note, count in policy.notes.items():
        yield f"note: {plain(note)} ({counted(count, 'decision')})"
    for firing in policy.firings[:most]:
        end = "still on at the end" if firing.end_ms is None else (
            f"for {duration(firing.end_ms - firing.start_ms)}")
        labels = f" {label_text(firing.labels)}" if firing.labels else ""
        yield f"fired {stamp(firing.start_ms)} {end}, value {number(firing.value)}{labels}"
    yield from _more(len(policy.firings), most, "firings", elsewhere)
    if policy.figures.near_misses:
        yield f"pending without firing, {times(policy.figures.near_misses)}"


def missing_text(policy: PolicyReport) -> str:
    """Say what metrics that are not there mean: blindness, or that another one was enough."""
    metrics = listed(policy.missing)
    near = listed(dict.fromkeys(policy.near[m] for m in policy.missing if m in policy.near))
    hint = f"; it has {near}" if near else ""
    if policy.figures.blind_ms:
        return f"blind: the recording has no {metrics}: renamed, or not recorded{hint}"
    return f"the recording has no {metrics}; the trigger has an answer without{hint}"


def _more(count: int, most: int, what: str, elsewhere: str = "") -> Iterator[str]:
    if count > most:
        yield f"and {count - most} more {what}{elsewhere}"


def taken_text(taken: Taken) -> str:
    where = " (shadow: never sent)" if taken.shadow else ""
    return (f"claimed {claim_text(taken.knob, taken.scope, taken.value)}, {times(taken.times)}, "
            f"{duration(taken.ms)} in all{where}")


# --- conflicts and shedding ---


def _conflicts(report: Report) -> Iterator[str]:
    yield ""
    if not report.conflicts and not report.meetings:
        yield f"conflicts: none: {no_conflict(report)}"
        return
    yield "conflicts"
    yield from (f"  {text}" for text in conflict_lines(report, LISTED, ELSEWHERE))


def no_conflict(report: Report) -> str:
    """Say what no conflict means; what UDFs propose is known of those alone that ran."""
    proposing = any(action.type == "udf_call" for policy in report.policies
                    for action in policy.policy.every_action())
    rest = "; what UDFs propose is known only when they run" if proposing else ""
    return f"no two policies want different values for one knob at a time{rest}"


def warning_lines(report: Report, most: int, elsewhere: str = "") -> Iterator[str]:
    """Yield what makes the run weaker than it looks."""
    yield from report.warnings[:most]
    yield from _more(len(report.warnings), most, "warnings", elsewhere)


def conflict_lines(report: Report, most: int, elsewhere: str = "") -> Iterator[str]:
    """Yield which policies could meet and which did."""
    yield from (f"possible: {conflict_text(c)}" for c in report.conflicts[:most])
    yield from _more(len(report.conflicts), most, "conflicts", elsewhere)
    yield from (f"{'would have met' if m.shadow else 'met'}: {meeting_text(m)}"
                for m in report.meetings[:most])
    yield from _more(len(report.meetings), most, "meetings", elsewhere)
    if not report.meetings:
        yield "none of them met in this recording"


def conflict_text(conflict: Conflict) -> str:
    """Return which policies could meet; of many only the first ones are named."""
    if len(conflict.rivals) <= LISTED:
        return str(conflict)
    wanted = named([(r.policy, r.value) for r in conflict.rivals], LISTED)
    best = f"; that is {conflict.winner}" if conflict.winner else ""
    return (f"{knob_text(conflict.knob, conflict.scope)}: {wanted}: {conflict.rule}{best}"
            f"{_were(conflict.shadow)}")


def meeting_text(met: Meeting) -> str:
    """Return which policies met, whose value was in force, and for how long."""
    would = "would have been " if met.shadow else ""
    return (f"{knob_text(met.knob, met.scope)}: {named(met.values, LISTED)}: "
            f"{value_text(met.in_force)} of {met.winner} {would}in force{_were(met.shadow)}, "
            f"{duration(met.ms)} in all, first at {stamp(met.first_ms)}")


def _shed(report: Report, terminal: Terminal) -> Iterator[str]:
    rows = shed_lines(report)
    if not rows:
        return
    yield ""
    yield "would have shed (a bound, from recorded metrics alone)"
    for side, text in rows:
        mark = terminal.paint(MARKS[side], MARK_SHADES[side])
        yield f"{mark if side else ' '} {text}"
    yield from (f"  note: {caveat}" for caveat in caveats(report))


def shed_lines(report: Report) -> list[tuple[str, str]]:
    """Return (side, sentence) of each bound; side is empty where both sides say the same."""
    now = [shed_text(shed) for shed in report.shed]
    if report.before is None:
        return [("", text) for text in now]
    old = [shed_text(shed) for shed in report.before.shed]
    return [
        *(("before", text) for text in old if text not in now),
        *(("" if text in old else "after", text) for text in now),
    ]


def caveats(report: Report) -> Iterable[str]:
    """Return what limits the bounds, each once."""
    before = report.before.shed if report.before is not None else ()
    return dict.fromkeys(c for shed in (*report.shed, *before) for c in shed.caveats)


def shed_text(shed: Shed) -> str:
    """Return one bound as a sentence."""
    who = shed_scope(shed)
    verb = "would be limited" if shed.shadow else "limited"
    limited = f"{who}: {verb} for {duration(shed.limited_ms)}"
    if shed.shadow:
        limited += _were(shed.shadow)
    if shed.refused_max is None or shed.arrived is None:
        return f"{limited}; no estimate: {shed.why}"
    whose = "its own" if shed.exact_tier else "the server's"
    blind = f"; for {duration(shed.unknown_ms)} of it nothing is known" if shed.unknown_ms else ""
    return (f"{limited}; at most {shed.refused_max} of {whose} {shed.arrived} requests of that "
            f"time refused{blind}")


def shed_scope(shed: Shed) -> str:
    """Return whom a limit is for, and which limit, such as `best-effort, max_concurrency`."""
    scope = dict(shed.scope)
    who = scope["tier"] if list(scope) == ["tier"] else (
        label_text(shed.scope) if scope else "all requests")
    return f"{who}, {shed.knob.removeprefix('throttle.')}"


def _were(names: Sequence[str]) -> str:
    """Return under which condition a thing of policies in shadow would be; "" without any."""
    if not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f", were {listed(names[:LISTED])}{more} in enforce"
