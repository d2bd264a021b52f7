"""Prometheus alerting rules -> shadow policies, and what a human has to decide for each.

Reads rule files (`groups:`), PrometheusRule objects, lists of these, and bare lists of rules. An
alert that cannot become a policy is named with its place and the reason; the others go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from resilience.app.importing_groups import Group, Remarks, groups_of, is_broken
from resilience.app.importing_rules import (
    cut_expression,
    kind_of_rule,
    problem_of_rule,
    text_at,
    texts_at,
)
from resilience.app.importing_text import policy_text
from resilience.model import (
    EXPERIMENTAL_FUNCTIONS,
    FEATURES,
    Finding,
    format_duration,
    parse_duration,
)
from resilience.policy.comments import KEEP_LINES
from resilience.policy.document import Map, Place, parse_documents
from resilience.policy.words import listed, quoted
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Call, Plan, selectors, walk
from resilience.promql.signatures import EXPERIMENTAL
from resilience.registry import catalogue

NAME_MAX = 63
TEXT_MAX = 4_000
PAIRS_MAX = 48
INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
_KNOWN = frozenset({
    "alert", "expr", "for", "keep_firing_for", "labels", "annotations",
})
_KNOWN_OF_GROUP = frozenset({"name", "interval", "labels", "rules"})
# Scalars that a policy may not hold unquoted; Prometheus takes them as the text that they are.
_TEXT_TO_PROMETHEUS = frozenset({"yaml-ambiguous", "number-too-large", "number-not-finite"})
_LABEL_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PLAIN_TEMPLATE = re.compile(r"\{\{\s*\$(?:labels\.[a-zA-Z_]\w*|value)\s*\}\}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Imported:
    """One policy made from an alert. `text` is a whole YAML document with its notes as comments."""

    name: str
    alert: str
    group: str
    file: str
    line: int
    notes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Import:
    """What came of some rule files. `skipped` are remarks: recording rules and foreign documents
    as info, expressions that a comment cuts as warnings, what could not be imported as errors."""

    policies: tuple[Imported, ...]
    skipped: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.skipped)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a policy will say. Durations as they were written; None: not there."""

    name: str
    alert: str
    group: str
    file: str
    place: Place
    expr: str
    wait: str | None
    keep: str | None
    interval: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass
class _Reader(Remarks):
    """Collects drafts and remarks over all files."""

    drafts: list[Draft] = field(default_factory=list[Draft])
    recorded: set[str] = field(default_factory=set[str])
    names: set[str] = field(default_factory=set[str])
    broken: frozenset[tuple[int, int]] = frozenset()    # places of control characters, of one file


def import_rules(files: Sequence[tuple[str, bytes]]) -> Import:
    """Return the policies made from rule files ((path, content) pairs)."""
    reader = _Reader()
    for file in files:
        documents, findings = parse_documents([file])
        reader.skipped += [
            _understood(f, file[1]) for f in findings
            if f.code not in _TEXT_TO_PROMETHEUS and (f.code != "empty-file" or not documents)
        ]
        reader.broken = frozenset(
            (f.line, f.column) for f in findings if f.code == "control-character"
        )
        for document in documents:
            if is_broken(document.data, document.place, reader.broken, 1):
                continue
            for group in groups_of(document, document.data, document.place, reader):
                _read_group(group, reader)
    made = [_finished(draft, reader.recorded) for draft in reader.drafts]
    return _checked(made, reader.skipped)


def _understood(finding: Finding, content: bytes) -> Finding:
    """An empty file imports nothing; what is no YAML may be a template of Jinja."""
    if finding.code == "yaml-syntax" and (b"{%" in content or b"{#" in content):
        return replace(finding, suggestion="this looks like a Jinja template: render it first")
    if finding.code == "empty-file":
        return replace(finding, severity="error", message="no rules in the file",
                       suggestion="a rule file has `groups:`")
    return replace(finding, severity="error")


# --- one rule ------------------------------------------------------------------------------------


def _read_group(group: Group, reader: _Reader) -> None:
    if is_broken(group.raw, group.raw.place, reader.broken, 1):
        return
    for index, raw in enumerate(group.rules):
        place = group.rules.items_at[index]
        if is_broken(raw, place, reader.broken):
            continue
        why = problem_of_rule(group.document, raw, place)
        if why is not None:
            reader.refuse(group.document, why)
        elif kind_of_rule(group.document, raw) == "alert":
            draft = _draft(group, raw, place, reader.names)
            cut = cut_expression(group.document, raw)
            reader.drafts.append(draft if cut is None else _note_cut(draft, group, cut, reader))
        else:
            name = text_at(group.document, raw, "record") or ""
            reader.recorded.add(name)
            reader.skip(group.document, place, "info",
                        f"recording rule {quoted(name)} is left out",
                        "policies read series, they record none")


def _note_cut(draft: Draft, group: Group, cut: Place, reader: _Reader) -> Draft:
    """Warn of an expression that was cut at `cut`, and return the draft with a note of it."""
    reader.skip(group.document, cut, "warning",
                f"alert {quoted(draft.alert)}: `#` begins a comment that swallows the lines of "
                "`expr` after it, in Prometheus too, because this text is folded into one line",
                KEEP_LINES)
    note = (f"expr: `#` at line {cut.line} made a comment of the lines after it; what Prometheus "
            "evaluated is kept")
    return replace(draft, notes=(*draft.notes, note))


def _draft(group: Group, raw: Map, place: Place, names: set[str]) -> Draft:
    document = group.document
    alert = text_at(document, raw, "alert") or ""
    notes: list[str] = []
    labels, moved = _labels({**group.labels, **texts_at(document, raw, "labels")}, notes)
    annotations = {**_annotations(texts_at(document, raw, "annotations"), notes), **moved}
    annotations["prometheus_alert"] = alert
    if group.name:
        annotations["prometheus_group"] = group.name
    left = [*(k for k in raw if k not in _KNOWN),
            *(k for k, v in group.raw.items() if k not in _KNOWN_OF_GROUP and v)]
    if left:
        notes.append(f"nothing here corresponds to {listed(left)} of the rule or its group")
    name = _unique(slug(alert), names)
    return Draft(
        name=name, alert=alert, group=group.name, file=document.file, place=place,
        expr=(text_at(document, raw, "expr") or "").strip(), wait=text_at(document, raw, "for"),
        keep=text_at(document, raw, "keep_firing_for"),
        interval=_interval(group.interval, notes), labels=labels,
        annotations=annotations, notes=tuple(notes),
    )


def _labels(raw: Mapping[str, str], notes: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels, and those that can only be annotations: templates, long texts, odd names."""
    kept: dict[str, str] = {}
    moved: dict[str, str] = {}
    for key, value in list(raw.items())[:PAIRS_MAX]:
        if "{{" in value or len(value) > 200 or not _LABEL_KEY.fullmatch(key):
            moved[f"label_{key}"] = value[:TEXT_MAX]
        else:
            kept[key] = value
    _note_rest("labels", raw, notes)
    if moved:
        notes.append(f"{listed(moved)} among the annotations: labels have plain names and short "
                     "texts without templates")
    return kept, moved


def _annotations(raw: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    odd = [k for k, v in raw.items() if "{{" in _PLAIN_TEMPLATE.sub("", v)]
    if odd:
        notes.append(f"templates in {listed(odd)} other than `{{{{ $labels.NAME }}}}` and "
                     "`{{ $value }}` stay plain text")
    _note_rest("annotations", raw, notes)
    cut = [k for k, v in raw.items() if len(v) > TEXT_MAX]
    if cut:
        notes.append(f"{listed(cut)} is cut to {TEXT_MAX} characters")
    return {k: v[:TEXT_MAX] for k, v in list(raw.items())[:PAIRS_MAX]}


def _note_rest(what: str, raw: Mapping[str, str], notes: list[str]) -> None:
    if len(raw) > PAIRS_MAX:
        notes.append(f"{what}: the {len(raw) - PAIRS_MAX} after the first {PAIRS_MAX} are left out")


def _interval(value: str | None, notes: list[str]) -> str | None:
    if value is None:
        return None
    try:
        ms = parse_duration(value)
    except ValueError:
        notes.append(f"the group's interval {quoted(value)} is no duration and is left out")
        return None
    if ms == 0:
        return None
    bounded = min(max(ms, INTERVAL_MIN_MS), INTERVAL_MAX_MS)
    if bounded != ms:
        notes.append(f"the group's interval {quoted(value)} became "
                     f"`{format_duration(bounded)}`")
    return format_duration(bounded)


def slug(alert: str) -> str:
    """Return the name of a policy: `GPUHighUtilization` becomes `gpu-high-utilization`."""
    words = _CAMEL.sub("-", alert).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:NAME_MAX].strip("-") or "alert"


def _unique(name: str, names: set[str]) -> str:
    made, number = name, 1
    while made in names:
        number += 1
        made = f"{name[: NAME_MAX - 4]}-{number}"
    names.add(made)
    return made


# --- notes and text ------------------------------------------------------------------------------


def _finished(draft: Draft, recorded: set[str]) -> tuple[Draft, str]:
    """Return the draft with all its notes, and its text."""
    full = replace(draft, notes=(*_decisions(draft), *draft.notes, *_remarks(draft, recorded)))
    return full, policy_text(full)


def _decisions(draft: Draft) -> Iterator[str]:
    """Yield what nobody but a human can know."""
    yield "actions: what to do while it fires; the one here only exports a gauge"
    ends = (f"ends once `expr` was false for {draft.keep}" if draft.keep
            else "ends as soon as `expr` is false")
    yield f"resolve: what proves that it is over; without it the firing {ends}"
    yield ("on_no_data: `hold` stays as it is when the metrics are gone; an alert of Prometheus "
           "would resolve")


def _remarks(draft: Draft, recorded: set[str]) -> Iterator[str]:
    plan = parse_checked(draft.expr)
    names = {s.metric_name for s in selectors(plan) if s.metric_name}
    own = sorted(names & recorded)
    if own:
        yield (f"{listed(own)} comes from a recording rule: evaluate with `--prometheus`, or write "
               "its expression here")
    if names & {"ALERTS", "ALERTS_FOR_STATE"}:
        yield "`ALERTS` is a series of Prometheus: evaluate with `--prometheus`"
    if _always_known(plan):
        yield "`absent()` and `vector()` are never unknown: on_no_data has no say there"
    if experimental := sorted(_functions(plan) & EXPERIMENTAL):
        yield (f"{listed(experimental)} is experimental: it needs `enable_features: "
               f"[{EXPERIMENTAL_FUNCTIONS}]` in the Engine document")
    if "runbook_url" not in draft.annotations:
        yield "runbook_url: say where an operator reads on"


def _always_known(plan: Plan) -> bool:
    return not _functions(plan).isdisjoint({"absent", "absent_over_time", "vector"})


def _functions(plan: Plan) -> set[str]:
    return {n.function for n in walk(plan) if isinstance(n, Call)}


def _checked(
    made: Sequence[tuple[Draft, str]], skipped: list[Finding]
) -> Import:
    """Check the result as `resilience check` does: what has an error is not handed out."""
    from resilience.policy.check import check

    if not made:
        return Import((), tuple(skipped))
    files = [(f"{draft.name}.yaml", text) for draft, text in made]
    findings = check(files, {}, catalogue("actions"), enable_features=FEATURES).findings
    policies: list[Imported] = []
    for draft, text in made:
        own = [f for f in findings if f.file == f"{draft.name}.yaml"]
        errors = [f for f in own if f.severity == "error"]
        if errors:
            skipped.append(Finding(
                draft.file, draft.place.line, draft.place.column, "error", "import",
                f"alert {quoted(draft.alert)}: {errors[0].message}", errors[0].suggestion))
            continue
        warned = tuple(f"check: {f.message}" + (f"; {f.suggestion}" if f.suggestion else "")
                       for f in own if f.severity == "warning")
        policies.append(Imported(draft.name, draft.alert, draft.group, draft.file,
                                 draft.place.line, (*draft.notes, *warned), text))
    return Import(tuple(policies), tuple(skipped))
