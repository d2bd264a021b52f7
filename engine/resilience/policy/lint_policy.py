"""Policies that are valid and still unwise: the rules that look at more than one field."""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience import knobs
from resilience.model import Action, ClaimSpec, Policy, format_duration
from resilience.policy import lint_decisions
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.lint_joins import labels_left
from resilience.policy.shape import locate
from resilience.policy.words import listed
from resilience.promql.parser import parse

_LABEL = re.compile(r"\{\{\s*\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)\s*\}\}")


def run(document: Document, policy: Policy, context: Context) -> None:
    """Add what these rules have to say about one policy."""
    if policy.mode == "enforce":
        _disruptive(document, policy, context)
    _max_age(document, policy, context)
    _weak_stages(document, policy, context)
    _template_labels(document, policy, context)
    lint_decisions.run(document, policy, context)


def _disruptive(document: Document, policy: Policy, context: Context) -> None:
    for index, action in enumerate(policy.actions):
        kind = context.actions.get(action.type)
        if kind is None or not kind.disruptive:
            continue
        place = locate(document, ("spec", "actions", index))[1]
        name = f"spec.actions[{index}]"
        if "runbook_url" not in dict(policy.annotations):
            context.add(document, place, "warning", "no-runbook",
                        f"{name}: `{action.type}` disrupts requests, and the policy has no runbook",
                        "add `metadata.annotations.runbook_url`")
        if policy.trigger.resolve is None:
            context.add(document, place, "warning", "no-resolve",
                        f"{name}: `{action.type}` disrupts requests, and only the end of the "
                        "trigger lets go", "add `spec.trigger.resolve`")
        if policy.trigger.on_no_data == "fire":
            at = locate(document, ("spec", "trigger", "on_no_data"))[1]
            context.add(document, at, "warning", "no-data-fires",
                        f"`on_no_data: fire` runs `{action.type}` on a server that nobody can see",
                        "write `on_no_data: hold`")
        return


def _max_age(document: Document, policy: Policy, context: Context) -> None:
    age_ms = policy.trigger.max_age_ms
    if age_ms is not None and age_ms < 2 * context.interval_ms:
        context.add(document, locate(document, ("spec", "trigger", "max_age"))[1], "warning",
                    "short-max-age",
                    f"spec.trigger.max_age is shorter than two scrapes of "
                    f"{format_duration(context.interval_ms)}: one late scrape makes it blind",
                    f"use at least `{format_duration(3 * context.interval_ms)}`")


def _weak_stages(document: Document, policy: Policy, context: Context) -> None:
    """A stage that claims less than what is claimed already does nothing."""
    held = {_key(claim): claim for claim in _claims(policy.actions)}
    for index, stage in enumerate(policy.escalation):
        for number, action in enumerate(stage.actions):
            for claim in action.claims:
                before = held.get(_key(claim))
                if before is not None and not _stronger(claim, before):
                    context.add(
                        document,
                        locate(document, ("spec", "escalation", index, "actions", number))[1],
                        "warning", "escalation-no-effect",
                        f"spec.escalation[{index}] claims `{claim.knob}` no stronger than what is "
                        "claimed before it", "escalate to a stronger value",
                    )
                held.setdefault(_key(claim), claim)


def _claims(actions: tuple[Action, ...]) -> Iterator[ClaimSpec]:
    for action in actions:
        yield from action.claims


def _key(claim: ClaimSpec) -> tuple[str, str]:
    return claim.knob, knobs.scope_text(claim.scope)


def _stronger(claim: ClaimSpec, before: ClaimSpec) -> bool:
    knob = knobs.knob(claim.knob)
    if knob is not None and knob.fold_name in ("min", "false wins"):
        return bool(claim.value < before.value)
    if knob is not None and knob.fold_name == "max":
        return bool(claim.value > before.value)
    return bool(claim.value != before.value)


def _template_labels(document: Document, policy: Policy, context: Context) -> None:
    """A label that the trigger's result cannot have is an empty text in every message."""
    kept = labels_left(parse(policy.trigger.expr))
    if kept is None:
        return
    annotations = document.data["metadata"].get("annotations", {})
    for key, text in annotations.items():
        lost = sorted(set(_LABEL.findall(text)) - kept)
        if lost:
            context.add(document, locate(document, ("metadata", "annotations", key))[1], "warning",
                        "template-label",
                        f"metadata.annotations.{key} uses {listed(lost)}, which the trigger has "
                        "aggregated away", f"keep it in `by (…)`; there are {listed(sorted(kept))}"
                        if kept else "keep it in `by (…)`")
