"""A report as one self-contained page: no network, no other file, and a policy that forbids both.

Everything that comes from rules or metrics is escaped: as text in HTML, and in the data that the
script reads, where no `<` is left to end it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Sequence

from resilience.model import Json, canonical_json
from resilience.policy.words import counted
from resilience.report.contention import by_knob, in_force, stretches
from resilience.report.history import BLIND, STATES
from resilience.report.lines import label_text
from resilience.report.page_changes import changes
from resilience.report.spans import Span, thinned
from resilience.report.summary import PolicyReport, Report
from resilience.report.text import (
    caveats,
    conflict_lines,
    facts,
    figure_rows,
    no_conflict,
    shed_lines,
    warning_lines,
)
from resilience.report.values import duration, number, share, stamp, value_text

SPANS_MAX = 1_000
LANES_MAX = 6
LISTED = 20
TEXT_MAX = 2_000
COLUMNS = ("Policy", "Firings", "Active", "Flaps", "Blind", "First firing")


def page(report: Report, css: str, script: str) -> str:
    """Return the page; `css` and `script` are its style and program."""
    what = "Dry run" if report.compared is None else "Plan"
    title = f"{what} over {report.recording}"
    return "\n".join([
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(css, script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title>",
        f"<style>{css}</style>",
        "</head>",
        "<body>",
        *_head(report, title),
        "<main>",
        *changes(report, _text),
        *_table(report),
        *_conflicts(report),
        *_shed(report),
        *_articles(report),
        "</main>",
        '<p id="readout" class="unseen" role="status" aria-live="polite"></p>',
        '<div id="tip" class="tip" hidden></div>',
        f'<script type="application/json" id="data">{_data(report)}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
        "",
    ])


def _policy(css: str, script: str) -> str:
    return (
        "default-src 'none'; "
        f"style-src 'sha256-{_digest(css)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(text: str) -> str:
    """Escape for HTML; very long texts are cut, control characters shown as such."""
    if len(text) > TEXT_MAX:
        text = text[: TEXT_MAX - 1] + "…"
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    return html.escape(clean, quote=True)


# --- what is readable without the script ---


def _head(report: Report, title: str) -> Iterator[str]:
    yield "<header>"
    yield f"<h1>{_text(title)}</h1>"
    yield (f'<p class="faint">{_text(stamp(report.start_ms))} to {_text(stamp(report.end_ms))} '
           f"({_text(duration(report.span_ms))}), {counted(report.ticks, 'tick')}, "
           f"{counted(report.decisions, 'decision')}, rules "
           f"<code>{_text(report.revision)}</code>. All times are UTC.</p>")
    for warning in _warnings(report):
        yield f'<p class="warning">{_text(warning)}</p>'
    yield "<noscript><p>Plots need JavaScript; all figures are below.</p></noscript>"
    yield '<div id="controls" class="controls" hidden>'
    for name, label in (("in", "Zoom in"), ("out", "Zoom out"), ("all", "Whole time")):
        yield f'<button type="button" id="{name}">{label}</button>'
    yield '<button type="button" id="theme">Dark</button>'
    yield '<label><input type="checkbox" id="quiet"> hide policies that did nothing</label>'
    yield '<output id="range" class="faint"></output>'
    yield ('<span class="faint">Drag or wheel: zoom. Keys on a plot: arrows, shift and arrows, '
           "+, -, 0.</span>")
    yield "</div></header>"


def _warnings(report: Report) -> Iterator[str]:
    yield from warning_lines(report, LISTED, "; `-o json` has them")
    if any(plot.thinned for plots in report.plots.values() for plot in plots):
        buckets = max(p.bucket_ms for plots in report.plots.values() for p in plots)
        yield (f"plots are thinned: of each {duration(buckets)} or less the least and the largest "
               "value are kept, so no peak is lost; the figures are from all samples")
    if any(len(p.states) > SPANS_MAX for p in report.policies):
        yield f"more than {SPANS_MAX} changes of state: short ones are drawn together"


def _table(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="summary"><h2 id="summary">Policies</h2>'
    yield '<div class="scroll"><table><caption>What each policy did over the recording</caption>'
    heads = "".join(
        f'<th scope="col"{"" if c in ("Policy", "First firing") else _NUMBER}>{c}</th>'
        for c in COLUMNS
    )
    yield f"<thead><tr>{heads}</tr></thead><tbody>"
    places = {policy.name: place for place, policy in enumerate(report.policies)}
    for name, *cells, first in figure_rows(report):
        link = f'<a href="#policy-{places[name]}">{_text(name)}</a>' if name in places \
            else _text(name)
        numbers = "".join(f"<td{_NUMBER}>{_text(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row">{link}</th>{numbers}<td>{_text(first)}</td></tr>'
    yield "</tbody></table></div></section>"


_NUMBER = ' class="number"'


def _list(items: Iterable[str]) -> Iterator[str]:
    rows = [f"<li>{_text(item)}</li>" for item in items]
    if rows:
        yield f"<ul>{''.join(rows)}</ul>"


def _conflicts(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="conflicts"><h2 id="conflicts">Conflicts</h2>'
    if not report.conflicts and not report.meetings:
        yield f"<p>None: {no_conflict(report)}.</p></section>"
        return
    yield from _list(conflict_lines(report, LISTED))
    yield "</section>"


def _shed(report: Report) -> Iterator[str]:
    rows = shed_lines(report)
    if not rows:
        return
    yield '<section aria-labelledby="shed"><h2 id="shed">Would have shed</h2>'
    yield "<p>A bound, from recorded metrics alone.</p>"
    yield from _list([
        *(f"{side}: {text}" if side else text for side, text in rows),
        *(f"note: {caveat}" for caveat in caveats(report)),
    ])
    yield "</section>"


def _articles(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="details"><h2 id="details">Over time</h2>'
    for place, policy in enumerate(report.policies):
        quiet = not (policy.figures.decisions or policy.figures.blind_ms)
        mark = " data-quiet" if quiet else ""
        yield f'<article id="policy-{place}" aria-labelledby="name-{place}"{mark}>'
        yield f'<h3 id="name-{place}">{_text(policy.name)}</h3>'
        about = dict(policy.policy.annotations).get("summary", "")
        mode = "" if policy.policy.mode == "enforce" else f"mode {policy.policy.mode}. "
        if about or mode:
            yield f'<p class="faint">{_text(mode + about)}</p>'
        yield f"<pre><code>{_text(_expression(policy))}</code></pre>"
        yield from _list(facts(policy, LISTED))
        label = _text(_label(policy, report))
        yield (f'<div class="chart" data-policy="{place}"><canvas tabindex="0" role="img" '
               f'aria-label="{label}"></canvas></div>')
        yield from _legend(policy, report)
        yield "</article>"
    yield "</section>"


def _expression(policy: PolicyReport) -> str:
    trigger = policy.policy.trigger
    lines = [trigger.expr.strip(), f"for {duration(trigger.for_ms)}, "
             f"no data: {trigger.on_no_data}"]
    if trigger.resolve is not None:
        lines.append(f"resolve: {trigger.resolve.expr.strip()} for "
                     f"{duration(trigger.resolve.for_ms)}")
    return "\n".join(lines)


def _label(policy: PolicyReport, report: Report) -> str:
    found = policy.figures
    return (f"Plot of {policy.name} over time: {counted(found.firings, 'firing')}, active for "
            f"{share(found.active_ms, report.span_ms)}, blind for "
            f"{share(found.blind_ms, report.span_ms)}")


def _legend(policy: PolicyReport, report: Report) -> Iterator[str]:
    items = [
        f"{'value' if plot.op else 'true where there is a value'}: {plot.expr}"
        + (f" {plot.op} {number(plot.threshold)}" if plot.threshold is not None else "")
        + (f" ({plot.more} more series are not drawn)" if plot.more else "")
        for plot in report.plots.get(policy.name, ())
    ]
    lanes = [label for label, _ in _claims(policy)]
    items += [f"claim: {label}" for label in lanes]
    rows = "".join(f'<li class="mono">{_text(item)}</li>' for item in items)
    if rows:
        yield f'<ul class="legend">{rows}</ul>'


# --- what the script reads ---


def _data(report: Report) -> str:
    old = report.policies_before
    body = {
        "start_ms": report.start_ms, "end_ms": report.end_ms,
        "policies": [
            _drawn(policy, report, old.get(policy.name)) for policy in report.policies
        ],
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _drawn(policy: PolicyReport, report: Report, before: PolicyReport | None) -> Json:
    sight = [
        Span(s.start_ms, s.end_ms, s.what) for s in policy.truths if s.what in (*BLIND, "idle")
    ]
    return {
        "plots": [_shortened(plot.to_json()) for plot in report.plots.get(policy.name, ())],
        "states": _spans(thinned(policy.states, SPANS_MAX, STATES), report),
        "before": None if before is None or before.states == policy.states else _spans(
            thinned(before.states, SPANS_MAX, STATES), report),
        "sight": _spans(_few(sight), report),
        "claims": [
            {"label": label, "spans": _spans(_few(spans), report)}
            for label, spans in _claims(policy)
        ],
    }


def _shortened(plot: Json) -> Json:
    for line in (*plot["lines"], *plot["threshold_lines"]):
        line["label"] = line["label"][:TEXT_MAX]
    plot.pop("expr")
    return plot


def _few(spans: Sequence[Span]) -> Sequence[Span]:
    """Return the longest ones where there are too many to draw."""
    if len(spans) <= SPANS_MAX:
        return spans
    longest = sorted(spans, key=lambda s: -s.ms)[:SPANS_MAX]
    return sorted(longest, key=lambda s: s.start_ms)


def _spans(spans: Iterable[Span], report: Report) -> list[Json]:
    return [[s.start_ms - report.start_ms, s.end_ms - report.start_ms, s.what] for s in spans]


def _claims(policy: PolicyReport) -> list[tuple[str, list[Span]]]:
    """Return by knob what the policy itself claimed, folded over its instances."""
    found: list[tuple[str, list[Span]]] = []
    for (knob, scope), group in by_knob(policy.holdings).items():
        spans: list[Span] = []
        for stretch in stretches(group, shadow=True):
            best = in_force(stretch.holdings)
            text = value_text(best.value) if best else canonical_json(stretch.holdings[0].value)
            if spans and spans[-1].end_ms == stretch.start_ms and spans[-1].what == text:
                spans[-1] = Span(spans[-1].start_ms, stretch.end_ms, text)
            else:
                spans.append(Span(stretch.start_ms, stretch.end_ms, text))
        found.append((label_text((("__name__", knob), *scope)), spans))
    return found[:LANES_MAX]
