"""Documents and UDFs -> a checked bundle, or findings. Pure: reads no file, knows no time.

`check` is what `resilience check`, `apply`, the dry run and the tests all call.
"""

from __future__ import annotations

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
from resilience.policy import compact, conflicts, lint_routes, schema, suppress, syntax
from resilience.policy.action_build import check_actions
from resilience.policy.catalogue import Target
from resilience.policy.context import Context, Udfs, index_functions
from resilience.policy.document import Document, Map, Place, Seq, parse_documents
from resilience.policy.judges import shown
from resilience.policy.kinds import Actions
from resilience.policy.policies import check_expressions
from resilience.policy.proposals import proposed_actions
from resilience.policy.shape import Shaper, compact_form, envelope_form
from resilience.policy.words import did_you_mean, listed, quoted


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
    git_commit: str | None = None,
    today: date | None = None,
) -> CheckResult:
    """Check documents ((path, content) pairs) with the UDF sources that they may call.

    `udfs` maps file -> text, or is one such mapping for each root in order of lookup.
    `metric_names` are those of a target: a live server, a Prometheus, a recording; with
    `require_metrics` a name that it lacks is an error unless the policy says `warn`.
    `metric_labels` are its labels by metric, `target` is the server's kind and version.
    `today` ends comments that silence a warning until a date.
    """
    documents, findings = parse_documents(files)
    context = Context(
        catalogue, index_functions(udfs),
        metric_names=None if metric_names is None else frozenset(metric_names),
        metric_labels=metric_labels, target=target,
        capabilities=capabilities, require_metrics=require_metrics,
        scrape_interval_ms=scrape_interval_ms, findings=list(findings),
    )
    policies = _build(documents, context)
    if not documents and not any(f.severity == "error" for f in context.findings):
        context.findings = [*_no_policy(files)]
    texts = {document.file: document.text for document in documents}
    left = suppress.apply(context.findings, texts, today)
    ordered = _ordered(left, [file for file, _ in files])
    bundle = None
    if not any(f.severity == "error" for f in ordered):
        bundle = _bundle(files, udfs, policies, context, git_commit)
    return CheckResult(bundle, ordered, policies)


def _build(documents: Sequence[Document], context: Context) -> tuple[Policy, ...]:
    """Build the engine's configuration first: policies name its tiers."""
    shaped = [d for d in (_shaped(document, context) for document in documents) if d is not None]
    engines = [d for d in shaped if d.data["kind"] == "Engine"]
    for extra in engines[1:]:
        context.add(extra, extra.place, "error", "duplicate-engine",
                    f"a second `kind: Engine`, the first is at {engines[0].file}:"
                    f"{engines[0].place.line}", "keep one")
    kinds = registry.catalogue("kinds")
    for document in engines[:1]:
        context.config = kinds["Engine"].build(document, context) or context.config
    built: list[tuple[Document, Policy]] = []
    for document in shaped:
        if document.data["kind"] == "Engine":
            continue
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
    foreign = _foreign(data)
    if foreign is not None:
        place, message, suggestion = foreign
        context.add(document, place, "error", "not-a-policy", message, suggestion)
        return None
    kind = data.get("kind", "Policy")
    if isinstance(kind, str) and kind in registry.catalogue("kinds"):
        return kind
    place = data.values_at.get("kind", document.place)
    known = list(registry.catalogue("kinds"))
    if kind == "List":
        hint = "items are not read: write each as a document of its own, separated by `---`"
    else:
        hint = (did_you_mean(kind, known) if isinstance(kind, str) else None) \
            or f"known are {listed(known)}"
    context.add(document, place, "error", "unknown-kind", f"unsupported kind {_named(kind)}", hint)
    return None


def _named(value: Json) -> str:
    return quoted(value) if isinstance(value, str) else shown(value)


_FOREIGN_KEYS = {
    "scrape_configs": "a Prometheus configuration",
    "receivers": "an Alertmanager configuration",
    "tests": "a test file; its name ends in `.test.yaml`",
    "services": "a Compose file",
}


def _foreign(data: Map) -> tuple[Place, str, str] | None:
    """Recognise documents of other systems."""
    if "apiVersion" not in data and "groups" in data:
        return (data.keys_at["groups"], "this is a Prometheus rule file (`groups:`), not a policy",
                "`resilience import FILE` makes a shadow policy of each alert")
    other = next((key for key in _FOREIGN_KEYS if key in data and "kind" not in data), None)
    if other is not None:
        return (data.keys_at[other], f"this is {_FOREIGN_KEYS[other]} (`{other}:`), not a policy",
                "name the folder that holds the policies")
    version = data.get("apiVersion")
    if not isinstance(version, str) or version == schema.API_VERSION:
        return None
    if version.startswith("resilience/"):
        return (data.values_at["apiVersion"], f"apiVersion {quoted(version)} is not known",
                f"write `apiVersion: {schema.API_VERSION}`")
    kind = data.get("kind")
    what = f" (kind {quoted(kind)})" if isinstance(kind, str) else ""
    return (data.values_at["apiVersion"],
            f"apiVersion {quoted(version)}{what} is not a resilience policy",
            f"a policy has `apiVersion: {schema.API_VERSION}`")


def _not_a_mapping(document: Document, context: Context) -> None:
    data = document.data
    if isinstance(data, str) and syntax.is_prometheus_1_rule(data):
        context.add(document, document.place, "error", "not-a-policy",
                    "this is an alerting rule of Prometheus 1 (ALERT … IF …), not a YAML policy",
                    "write its expression as `trigger: {expr: …}` of a policy")
        return
    what = "a list" if isinstance(data, Seq) else shown(data)
    context.add(document, document.place, "error", "type",
                f"document is {what}, need a mapping", "begin with `apiVersion: resilience/v1`")


__all__ = ["CheckResult", "check", "proposed_actions"]
