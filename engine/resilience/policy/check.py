"""Documents and UDFs -> a checked bundle, or findings. Pure: reads no file, knows no time.

`check` is what `resilience check`, `apply`, the dry run and the tests all call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from resilience import registry
from resilience.model import (
    Action,
    Bundle,
    Capabilities,
    EngineConfig,
    Finding,
    Json,
    Policy,
    revision_of,
)
from resilience.policy import compact, conflicts, foreign, lint_routes, suppress, syntax
from resilience.policy.action_build import check_actions
from resilience.policy.catalogue import Target
from resilience.policy.context import Context, Udfs, index_functions
from resilience.policy.document import Document, Map, Seq, parse_documents
from resilience.policy.judges import shown
from resilience.policy.kinds import Actions
from resilience.policy.policies import check_expressions
from resilience.policy.proposals import proposed_actions
from resilience.policy.shape import Shaper, compact_form, envelope_form
from resilience.policy.words import did_you_mean, listed, quoted

_ENGINE = re.compile(r"""^["'{ ]*kind["']?:[ ]*["']?Engine""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`bundle` is None when there is an error; `policies` are those that are fine on their own."""

    bundle: Bundle | None
    findings: tuple[Finding, ...]
    policies: tuple[Policy, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")


def check(
    files: Sequence[tuple[str, str | bytes]],
    udfs: Udfs,
    catalogue: Actions,
    *,
    metric_names: Collection[str] | None = None,
    metric_labels: Mapping[str, frozenset[str]] | None = None,
    target: Target | None = None,
    capabilities: Capabilities | None = None,
    require_metrics: bool = False,
    scrape_interval_ms: int | None = None,
    remote: bool = False,
    git_commit: str | None = None,
    today: date | None = None,
    enable_features: Collection[str] = (),
) -> CheckResult:
    """Check documents ((path, content) pairs) with the UDF sources that they may call.

    `udfs` maps file -> text, or is one such mapping for each root in order of lookup.
    `metric_names` are those of a target: a live server, a Prometheus, a recording; with
    `require_metrics` a name that it lacks is an error unless the policy says `warn`.
    `metric_labels` are its labels by metric, `target` is the server's kind and version. `remote`:
    a Prometheus keeps the samples, also where the Engine document names none.
    `today` ends comments that silence a warning until a date. `enable_features` are switched on
    besides those of the Engine document.
    """
    documents, findings = parse_documents(files)
    context = Context(
        catalogue, index_functions(udfs),
        metric_names=None if metric_names is None else frozenset(metric_names),
        metric_labels=metric_labels, target=target,
        capabilities=capabilities, require_metrics=require_metrics,
        scrape_interval_ms=scrape_interval_ms, remote=remote,
        enable_features=frozenset(enable_features),
        findings=list(findings),
    )
    unread = {f.file for f in findings if f.severity == "error"}
    hidden = any(file in unread and _may_hold_engine(content) for file, content in files)
    policies = _build(documents, context, hidden)
    if not documents and not any(f.severity == "error" for f in context.findings):
        context.findings = [*_no_policy(files)]
    left = suppress.apply(context.findings, documents, today)
    ordered = _ordered(left, [file for file, _ in files])
    bundle = None
    if not any(f.severity == "error" for f in ordered):
        bundle = _bundle(files, udfs, policies, context, git_commit)
    return CheckResult(bundle, ordered, policies)


def _may_hold_engine(content: str | bytes) -> bool:
    """Return whether a file that has errors of YAML may be where the Engine document stands."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    return _ENGINE.search(text) is not None


def _build(
    documents: Sequence[Document], context: Context, hidden: bool
) -> tuple[Policy, ...]:
    """Build the engine's configuration first: policies name its tiers, and what it enables decides
    which expressions are right. `hidden`: it may be in a file that cannot be read."""
    _build_engine([d for d in documents if _is_engine(d)], context, hidden)
    rest = (_shaped(document, context) for document in documents if not _is_engine(document))
    shaped = [document for document in rest if document is not None]
    kinds = registry.catalogue("kinds")
    built: list[tuple[Document, Policy]] = []
    for document in shaped:
        value = kinds[document.data["kind"]].build(document, context)
        if isinstance(value, Policy):
            built.append((document, value))
        elif isinstance(value, tuple):
            built += value
    made = [d for d, p in built if p.slo is not None]
    conflicts.check_names([*shaped, *made], context)
    conflicts.check_claims(built, context)
    lint_routes.run(built, context)
    return tuple(policy for _, policy in built)


def _is_engine(document: Document) -> bool:
    return isinstance(document.data, Map) and document.data.get("kind") == "Engine"


def _build_engine(meant: Sequence[Document], context: Context, hidden: bool) -> None:
    """Build the first of the documents `meant` as one of the engine whose shape is right."""
    engines = [d for d in (_shaped(document, context) for document in meant) if d is not None]
    for extra in engines[1:]:
        context.add(extra, extra.place, "error", "duplicate-engine",
                    f"a second `kind: Engine`, the first is at {engines[0].file}:"
                    f"{engines[0].place.line}", "keep one")
    config = None
    for document in engines[:1]:
        config = registry.catalogue("kinds")["Engine"].build(document, context)
        context.config = config or context.config
    context.engine_unknown = config is None and (hidden or bool(meant))


def _no_policy(files: Sequence[tuple[str, Any]]) -> Iterable[Finding]:
    file = files[0][0] if files else "."
    yield Finding(file, 1, 1, "error", "no-policy", "no policy found",
                  "write a document with `apiVersion: resilience/v1` and `kind: Policy`")


def _ordered(findings: Iterable[Finding], files: Sequence[str]) -> tuple[Finding, ...]:
    order = {file: index for index, file in enumerate(files)}
    unique = dict.fromkeys(findings)
    return tuple(
        sorted(unique, key=lambda f: (order.get(f.file, len(order)), f.line, f.column, f.code))
    )


def _bundle(
    files: Sequence[tuple[str, str | bytes]], udfs: Udfs, policies: tuple[Policy, ...],
    context: Context, git_commit: str | None,
) -> Bundle:
    documents = tuple(sorted((file, _text(content)) for file, content in files))
    sources = _used_udfs(udfs, policies, context)
    config: EngineConfig = context.config
    return Bundle(revision_of(documents, sources), policies, config, documents, sources, git_commit)


def _text(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode("utf-8-sig")


def _used_udfs(
    udfs: Udfs, policies: Iterable[Policy], context: Context
) -> tuple[tuple[str, str], ...]:
    """Return the UDF files that the policies need, sorted by path."""
    roots = [udfs] if isinstance(udfs, Mapping) else list(udfs)
    used: dict[str, str] = {}
    for name in {a.udf.function for p in policies for a in _all_actions(p) if a.udf is not None}:
        for file in context.functions.files(name):
            used[file] = next(root[file] for root in roots if file in root)
    return tuple(sorted(used.items()))


def _all_actions(policy: Policy) -> Iterable[Action]:
    yield from policy.actions
    for stage in policy.escalation:
        yield from stage.actions


# --- one document ------------------------------------------------------------------------------


def _shaped(document: Document, context: Context) -> Document | None:
    """Return the full form of a document whose shape is right, or None after an error."""
    data = document.data
    if not isinstance(data, Map):
        _not_a_mapping(document, context)
        return None
    if compact.is_compact(data):
        return _checked_compact(document, context)
    kind = _kind(document, context)
    if kind is None:
        return None
    shaper = Shaper(document, context.actions)
    fine = shaper.check(envelope_form(kind), data, (), "")
    if kind in ("Policy", "SLO"):
        fine &= check_actions(document, shaper, context)
    return _verdict(document, document, shaper, context, fine)


def _checked_compact(document: Document, context: Context) -> Document | None:
    shaper = Shaper(document, context.actions)
    fine = shaper.check(compact_form(), document.data, (), "")
    full = compact.expand(document) if fine else document
    if fine:
        shaper.document = full
        fine &= check_actions(full, shaper, context)
    return _verdict(document, full, shaper, context, fine)


def _verdict(
    document: Document, full: Document, shaper: Shaper, context: Context, fine: bool
) -> Document | None:
    context.findings += shaper.findings
    if fine and not shaper.findings and not document.spoiled:
        return full
    if isinstance(full.data.get("spec"), Map):
        check_expressions(full, context)
    return None


def _kind(document: Document, context: Context) -> str | None:
    """Return the kind of a document of ours; say what it is instead if it is not."""
    data: Map = document.data
    found = foreign.recognised(data)
    if found is not None:
        context.add(document, found.place, "error", "not-a-policy", found.message, found.suggestion)
        return None
    kind = data.get("kind", "Policy")
    if isinstance(kind, str) and kind in registry.catalogue("kinds"):
        return kind
    place = data.values_at.get("kind", document.place)
    known = list(registry.catalogue("kinds"))
    hint = (foreign.hint_of_kind(kind) or did_you_mean(kind, known)
            if isinstance(kind, str) else None) or f"known are {listed(known)}"
    context.add(document, place, "error", "unknown-kind", f"unsupported kind {_named(kind)}", hint)
    return None


def _named(value: Json) -> str:
    return quoted(value) if isinstance(value, str) else shown(value)


def _not_a_mapping(document: Document, context: Context) -> None:
    data = document.data
    if isinstance(data, str) and syntax.is_prometheus_1_rule(data):
        context.add(document, document.place, "error", "not-a-policy",
                    "this is an alerting rule of Prometheus 1 (ALERT … IF …), not a YAML policy",
                    "write its expression as `trigger: {expr: …}` of a policy")
        return
    if isinstance(data, str) and data.startswith("version https://git-lfs.github.com/"):
        context.add(document, document.place, "error", "not-a-policy",
                    "this is a pointer of Git LFS, not the file", "fetch it: `git lfs pull`")
        return
    what = "a list" if isinstance(data, Seq) else shown(data)
    context.add(document, document.place, "error", "type", f"document is {what}, need a mapping",
                foreign.IMPORT if foreign.is_list_of_rules(data)
                else "begin with `apiVersion: resilience/v1`")


__all__ = ["CheckResult", "check", "proposed_actions"]
