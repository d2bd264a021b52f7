"""What a plan changes, as a part of the page: documents field by field, and decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resilience.model import Json
from resilience.report.differ import DecisionChanges, DocumentChange, FieldChange, value_line
from resilience.report.summary import Compared, Report
from resilience.report.values import claim_text, number, stamp

DECISIONS_MAX = 200
CHANGES_MAX = 200
WORDS = {"added": "new", "removed": "gone", "changed": "changed"}

Escape = Callable[[str], str]


def changes(report: Report, text: Escape) -> Iterator[str]:
    """Yield the section of a plan; nothing for a dry run. `text` escapes for HTML."""
    compared = report.compared
    if compared is None:
        return
    yield '<section aria-labelledby="changes"><h2 id="changes">Changes</h2>'
    yield f"<p>Against {text(compared.against)}.</p>"
    if not compared.changes:
        yield "<p>No document differs.</p>"
    for change in compared.changes[:CHANGES_MAX]:
        yield f"<p>{text(_title(change))}</p>"
        fields = "".join(f'<li class="mono">{text(_field(f))}</li>' for f in change.fields)
        yield f"<ul>{fields}</ul>" if fields else ""
    if len(compared.changes) > CHANGES_MAX:
        yield f"<p>And {len(compared.changes) - CHANGES_MAX} more documents.</p>"
    yield from _decisions(compared, text)
    yield "</section>"


def _title(change: DocumentChange) -> str:
    return f"{WORDS[change.kind]}: {change.document} {change.name}".rstrip()


def _field(change: FieldChange) -> str:
    if change.kind == "added":
        return f"{change.path}: {value_line(change.after)} (new)"
    if change.kind == "removed":
        return f"{change.path}: {value_line(change.before)} (gone)"
    return f"{change.path}: {value_line(change.before)} -> {value_line(change.after)}"


def _decisions(compared: Compared, text: Escape) -> Iterator[str]:
    found = compared.decisions
    yield f"<p>Decisions: {found.counted('now')}.</p>"
    rows = _rows(found)
    if not rows:
        return
    yield "<details><summary>The decisions that differ</summary>"
    yield '<div class="scroll"><table><thead><tr>'
    heads = ("", "Time", "Policy", "Becomes", "Reason", "Value", "Claims")
    yield "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for side, decision in rows[:DECISIONS_MAX]:
        cells = "".join(f"<td>{text(cell)}</td>" for cell in (side, *_cells(decision)))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    if len(rows) > DECISIONS_MAX:
        yield f"<p>And {len(rows) - DECISIONS_MAX} more; `-o json` has them.</p>"
    yield "</details>"


def _rows(found: DecisionChanges) -> list[tuple[str, Json]]:
    """Return (side, decision) in order of time; of a changed one both sides."""
    rows = [
        *(("before", d) for d in found.only_before), *(("now", d) for d in found.only_after),
        *((side, d) for pair in found.changed
          for side, d in zip(("before", "now"), pair, strict=True)),
    ]
    return sorted(rows, key=lambda row: (row[1]["t_ms"], row[1]["policy"], row[0]))


def _cells(decision: Json) -> Iterator[str]:
    yield stamp(decision["t_ms"])
    yield decision["policy"]
    yield f"{decision['from']} -> {decision['to']}"
    yield decision["reason"]
    value = decision["value"]
    yield number(value) if isinstance(value, float | int) else "-"
    yield ", ".join(
        claim_text(c["knob"], tuple(sorted(c["scope"].items())), c["value"])
        for c in decision["claims_after"]
    )
