"""What documents do to each other: names used twice, claims on the same knob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from resilience import knobs
from resilience.model import Action, ClaimSpec, Policy
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.shape import locate
from resilience.policy.words import quoted


def check_names(documents: Iterable[Document], context: Context) -> None:
    """Report every policy whose name another document has used before."""
    first: dict[str, Document] = {}
    for document in documents:
        if document.data["kind"] != "Policy":
            continue
        name = document.data["metadata"]["name"]
        other = first.setdefault(name, document)
        if other is document:
            continue
        path = ("metadata", "name")
        at = locate(other, path)[1]
        context.add(
            document, locate(document, path)[1], "error", "duplicate-name",
            f"policy name {quoted(name)} is used twice, first at {other.file}:{at.line} "
            f"(document {other.index})", "rename one of them",
        )


def check_claims(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Warn of two values for one knob: within a policy, and in policies with one trigger."""
    by_trigger: dict[str, list[tuple[Document, Policy]]] = {}
    for document, policy in built:
        _within(document, policy, context)
        by_trigger.setdefault(policy.trigger.expr, []).append((document, policy))
    for group in by_trigger.values():
        if len(group) > 1:
            _between(group, context)


def _within(document: Document, policy: Policy, context: Context) -> None:
    seen: dict[tuple[str, str], int] = {}
    for index, action in enumerate(policy.actions):
        for claim in action.claims:
            key = (claim.knob, knobs.scope_text(claim.scope))
            if key in seen:
                context.add(
                    document, locate(document, ("spec", "actions", index))[1], "warning",
                    "conflicting-claims",
                    f"spec.actions[{index}] and [{seen[key]}] both claim {_knob(claim)}: "
                    f"{_rule(claim)}", "keep one of them",
                )
            seen.setdefault(key, index)


def _between(group: Sequence[tuple[Document, Policy]], context: Context) -> None:
    seen: dict[tuple[str, str], tuple[str, ClaimSpec]] = {}
    for document, policy in group:
        for index, claim in _claims(policy.actions):
            key = (claim.knob, knobs.scope_text(claim.scope))
            name, other = seen.setdefault(key, (policy.name, claim))
            if name != policy.name and other.value != claim.value:
                context.add(
                    document, locate(document, ("spec", "actions", index))[1], "warning",
                    "conflicting-claims",
                    f"policy {quoted(policy.name)} and policy {quoted(name)} have the same trigger "
                    f"and claim {_knob(claim)} with different values: {_rule(claim)}",
                    "merge them, or give them different triggers",
                )


def _claims(actions: Iterable[Action]) -> Iterable[tuple[int, ClaimSpec]]:
    for index, action in enumerate(actions):
        for claim in action.claims:
            yield index, claim


def _knob(claim: ClaimSpec) -> str:
    scope = knobs.scope_text(claim.scope)
    return f"`{claim.knob}`" + (f" for `{scope}`" if scope else "")


def _rule(claim: ClaimSpec) -> str:
    knob = knobs.knob(claim.knob)
    rules = {"min": "the smaller wins", "max": "the larger wins", "false wins": "false wins",
             "highest priority": "the higher priority wins"}
    return rules.get(knob.fold_name, "one wins") if knob else "one wins"
