"""Prometheus alerting rules -> shadow policies, and what a human has to decide for each.

Reads rule files (`groups:`), PrometheusRule objects, lists of these, and bare lists of rules. An
alert that cannot become a policy is named with its place and the reason; the others go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resilience.app.importing_text import policy_text
from resilience.errors import PromQLError
from resilience.model import Finding, Json, format_duration, parse_duration
from resilience.policy.document import Document, Map, Place, Seq, parse_documents
from resilience.policy.words import listed, quoted
from resilience.promql.parser import parse
from resilience.promql.plan import Call, Plan, selectors, walk
from resilience.registry import catalogue

NAME_MAX = 63
TEXT_MAX = 4_000
PAIRS_MAX = 48
INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
_KNOWN = frozenset({
    "alert", "expr", "for", "keep_firing_for", "labels", "annotations",
})
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
    as info, alerts that could not be imported as errors."""

    policies: tuple[Imported, ...]
    skipped: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.skipped)


@dataclass(frozen=True, slots=True)
class _Group:
    document: Document
    name: str
    raw: Mapping[str, Json]
    rules: Seq


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
class _Reader:
    """Collects drafts and remarks over all files."""

    drafts: list[Draft] = field(default_factory=list[Draft])
    skipped: list[Finding] = field(default_factory=list[Finding])
    recorded: set[str] = field(default_factory=set[str])
    names: set[str] = field(default_factory=set[str])

    def skip(self, document: Document, place: Place, severity: Any, message: str,
             suggestion: str | None = None) -> None:
        self.skipped.append(
            document.finding(place, severity, "import", message, suggestion)
        )


def import_rules(files: Sequence[tuple[str, bytes]]) -> Import:
    """Return the policies made from rule files ((path, content) pairs)."""
    reader = _Reader()
    for file in files:
        documents, findings = parse_documents([file])
        reader.skipped += [
            _understood(f, file[1]) for f in findings
            if f.code != "yaml-ambiguous" and (f.code != "empty-file" or not documents)
        ]
        for document in documents:
            for group in _groups(document, document.data, document.place, reader):
                _read_group(group, reader)
    made = [_finished(draft, reader.recorded) for draft in reader.drafts]
    return _checked(made, reader.skipped)


def _understood(finding: Finding, content: bytes) -> Finding:
    """An empty file imports nothing; what is no YAML may be a template of Jinja."""
    if finding.code == "yaml-syntax" and (b"{%" in content or b"{#" in content):
        return replace(finding, suggestion="this looks like a Jinja template: render it first")
    return replace(finding, severity="error")


# --- finding rules -------------------------------------------------------------------------------


def _groups(
    document: Document, data: Any, place: Place, reader: _Reader
) -> Iterator[_Group]:
    """Yield the groups of one document, or say what it is instead."""
    if isinstance(data, Seq) and any(_is_rule(item) for item in data):
        yield _Group(document, "", {}, data)
        return
    if not isinstance(data, Map):
        reader.skip(document, place, "error", "not a Prometheus rule file",
                    "a rule file has `groups:`")
        return
    kind = str(data.get("kind", ""))
    if kind.endswith("List") and isinstance(data.get("items"), Seq):
        for index, item in enumerate(data["items"]):
            yield from _groups(document, item, data["items"].items_at[index], reader)
        return
    spec: Any = data.get("spec") if kind == "PrometheusRule" else data
    groups = spec.get("groups") if isinstance(spec, Map) else None
    if isinstance(groups, Seq):
        yield from _members(document, groups, reader)
    elif isinstance(spec, Map) and isinstance(spec.get("rules"), Seq) and "apiVersion" not in data:
        yield _Group(document, "", spec, spec["rules"])
    else:
        message, suggestion = _foreign(data, kind)
        reader.skip(document, place, "error", message, suggestion)


def _members(document: Document, groups: Seq, reader: _Reader) -> Iterator[_Group]:
    for index, raw in enumerate(groups):
        if isinstance(raw, Map) and isinstance(raw.get("rules"), Seq):
            yield _Group(document, str(raw.get("name", "")), raw, raw["rules"])
        elif not (isinstance(raw, Map) and raw.get("rules", 0) is None):
            reader.skip(document, groups.items_at[index], "error",
                        "a group without a list `rules`", "write `rules:` with its rules below")


def _is_rule(item: Any) -> bool:
    return isinstance(item, Map) and ("alert" in item or "record" in item)


def _foreign(data: Map, kind: str) -> tuple[str, str]:
    if kind == "ConfigMap" and isinstance(data.get("data"), Map):
        held = [k for k, v in data["data"].items() if isinstance(v, str) and "groups:" in v]
        if held:
            return (f"a ConfigMap holds rules as text in {listed(held)}",
                    "save that text as a file of its own and import it")
    if isinstance(data.get("tests"), Seq):
        return "unit tests of promtool, not rules", "import the files of its `rule_files`"
    if "scrape_configs" in data or "rule_files" in data:
        return "a configuration of Prometheus, not rules", "import the files of its `rule_files`"
    if "apiVersion" in data:
        version = quoted(str(data["apiVersion"]))
        return (f"kind {quoted(kind)} of {version} holds no alerting rules",
                "import a rule file (`groups:`) or a PrometheusRule")
    return "not a Prometheus rule file", "a rule file has `groups:`"


# --- one rule ------------------------------------------------------------------------------------


def _read_group(group: _Group, reader: _Reader) -> None:
    for index, raw in enumerate(group.rules):
        place = group.rules.items_at[index]
        if isinstance(raw, Map) and "record" in raw and "alert" not in raw:
            reader.recorded.add(str(raw["record"]))
            reader.skip(group.document, place, "info",
                        f"recording rule {quoted(str(raw['record']))} is left out",
                        "policies read series, they record none")
            continue
        why = _problem(raw)
        if why is not None:
            message, suggestion = why
            reader.skip(group.document, place, "error", message, suggestion)
            continue
        reader.drafts.append(_draft(group, raw, place, reader.names))


def _problem(raw: Any) -> tuple[str, str] | None:
    """Return why a rule cannot become a policy, and what to do."""
    if not isinstance(raw, Map):
        return "a rule is a mapping", "write `alert:` and `expr:`"
    if "alert" not in raw:
        return "a rule has neither `alert` nor `record`", "name it with `alert:`"
    alert = quoted(str(raw["alert"]))
    if raw.get("expr") in (None, ""):
        return f"alert {alert} has no `expr`", "write its expression"
    for key in ("for", "keep_firing_for"):
        if raw.get(key) is None:
            continue
        try:
            parse_duration(str(raw[key]))
        except ValueError as error:
            return f"alert {alert}: {key}: {error}", "write a Prometheus duration"
    try:
        plan = parse(_text(raw["expr"]))
    except PromQLError as error:
        return f"alert {alert}: PromQL: {error.message}", error.suggestion or "repair `expr`"
    if plan.type not in ("vector", "scalar"):
        return (f"alert {alert}: `expr` is a {plan.type}, not an instant vector", "repair `expr`")
    return None


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _draft(group: _Group, raw: Map, place: Place, names: set[str]) -> Draft:
    alert = _text(raw["alert"])
    notes: list[str] = []
    labels, moved = _labels({**_pairs(group.raw.get("labels")), **_pairs(raw.get("labels"))}, notes)
    annotations = {**_annotations(_pairs(raw.get("annotations")), notes), **moved}
    annotations["prometheus_alert"] = alert
    if group.name:
        annotations["prometheus_group"] = group.name
    left = [*(k for k in raw if k not in _KNOWN),
            *(k for k in ("limit", "query_offset") if group.raw.get(k))]
    if left:
        notes.append(f"{listed(left)} of the rule or its group has no counterpart and is left out")
    name = _unique(slug(alert), names)
    return Draft(
        name=name, alert=alert, group=group.name, file=group.document.file, place=place,
        expr=_text(raw["expr"]).strip(), wait=_duration(raw.get("for")),
        keep=_duration(raw.get("keep_firing_for")),
        interval=_interval(group.raw.get("interval"), notes), labels=labels,
        annotations=annotations, notes=tuple(notes),
    )


def _pairs(value: Json) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(k): _text(v) for k, v in value.items() if v not in (None, "")}


def _labels(raw: Mapping[str, str], notes: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels, and those that can only be annotations: templates and long texts."""
    kept: dict[str, str] = {}
    moved: dict[str, str] = {}
    for key, value in list(raw.items())[:PAIRS_MAX]:
        if "{{" in value or len(value) > 200 or not _LABEL_KEY.fullmatch(key):
            moved[f"label_{key}"] = value[:TEXT_MAX]
        else:
            kept[key] = value
    if moved:
        notes.append(f"labels hold no templates: {listed(moved)} stands in the annotations")
    return kept, moved


def _annotations(raw: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    odd = [k for k, v in raw.items() if "{{" in _PLAIN_TEMPLATE.sub("", v)]
    if odd:
        notes.append(f"templates in {listed(odd)} other than `{{{{ $labels.NAME }}}}` and "
                     "`{{ $value }}` stay plain text")
    cut = [k for k, v in raw.items() if len(v) > TEXT_MAX]
    if cut:
        notes.append(f"{listed(cut)} is cut to {TEXT_MAX} characters")
    return {k: v[:TEXT_MAX] for k, v in list(raw.items())[:PAIRS_MAX]}


def _duration(value: Json) -> str | None:
    return None if value is None else _text(value)


def _interval(value: Json, notes: list[str]) -> str | None:
    if value is None:
        return None
    try:
        ms = parse_duration(_text(value))
    except ValueError:
        notes.append(f"the group's interval {quoted(_text(value))} is no duration and is left out")
        return None
    if ms == 0:
        return None
    bounded = min(max(ms, INTERVAL_MIN_MS), INTERVAL_MAX_MS)
    if bounded != ms:
        notes.append(f"the group's interval {quoted(_text(value))} became "
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
    plan = parse(draft.expr)
    names = {s.metric_name for s in selectors(plan) if s.metric_name}
    own = sorted(names & recorded)
    if own:
        yield (f"{listed(own)} comes from a recording rule: evaluate with `--prometheus`, or write "
               "its expression here")
    if names & {"ALERTS", "ALERTS_FOR_STATE"}:
        yield "`ALERTS` is a series of Prometheus: evaluate with `--prometheus`"
    if _always_known(plan):
        yield "`absent()` and `vector()` are never unknown: on_no_data has no say there"
    if "runbook_url" not in draft.annotations:
        yield "runbook_url: say where an operator reads on"


def _always_known(plan: Plan) -> bool:
    return any(
        isinstance(n, Call) and n.function in ("absent", "absent_over_time", "vector")
        for n in walk(plan)
    )


def _checked(
    made: Sequence[tuple[Draft, str]], skipped: list[Finding]
) -> Import:
    """Check the result as `resilience check` does: what has an error is not handed out."""
    from resilience.policy.check import check

    files = [(f"{draft.name}.yaml", text) for draft, text in made]
    findings = check(files, {}, catalogue("actions")).findings if files else ()
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
