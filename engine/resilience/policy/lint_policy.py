"""Policies that are valid and still unwise: the rules that look at more than one field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from resilience import knobs
from resilience.model import Action, ClaimSpec, Policy, format_duration
from resilience.policy import lint_conditions, lint_decisions
from resilience.policy.action_build import Path, path_text, placed_actions
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.lint_label_sets import labels_left
from resilience.policy.shape import locate
from resilience.policy.words import listed
from resilience.promql.parser import parse_checked

_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_ADDRESS = re.compile(r"[^\s./]*[./]\S*")  # or a path of the repository
_LABEL = re.compile(r"\{\{\s*\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)\s*\}\}")


def run(document: Document, policy: Policy, context: Context) -> None:
    """Add what these rules have to say about one policy."""
    if policy.mode == "enforce":
        _disruptive(document, policy, context)
    _max_age(document, policy, context)
    lint_conditions.run(document, policy, context)
    _nothing_to_escalate_to(document, policy, context)
    _weak_stages(document, policy, context)
    _template_labels(document, policy, context)
    _undone(document, policy, context)
    _nothing_to_give_back(document, policy, context)
    lint_decisions.run(document, policy, context)


def _disruptive(document: Document, policy: Policy, context: Context) -> None:
    """Look at the actions that requests under way feel; what the policy lacks is said once."""
    kinds = context.actions
    found = [(path, action) for path, action in placed_actions(policy)
             if action.type in kinds and kinds[action.type].disruptive]
    for path, action in found[:1]:
        _unprepared(document, policy, context, path, action)
    for path, action in found:
        owner, place = locate(document, path)
        if kinds[action.type].holds and locate(document, (*path, "lease")) == (owner, place):
            context.add(document, place, "warning", "no-lease",
                        f"{path_text(path)}: `{action.type}` disrupts requests, and nothing says "
                        "how long it lasts without the engine", "add `lease: 30s`, the default, "
                        "or less")
    _wrong_without_data(document, policy, context, [action for _, action in found])


def _unprepared(
    document: Document, policy: Policy, context: Context, path: Path, action: Action
) -> None:
    place = locate(document, path)[1]
    name = path_text(path)
    runbook = _TEMPLATE.sub("x", dict(policy.annotations).get("runbook_url", ""))
    if not _ADDRESS.fullmatch(runbook):
        context.add(document, place, "warning", "no-runbook",
                    f"{name}: `{action.type}` disrupts requests, and the policy has no runbook",
                    "add `metadata.annotations.runbook_url`, an address or a path")
    if policy.trigger.resolve is None:
        context.add(document, place, "warning", "no-resolve",
                    f"{name}: `{action.type}` disrupts requests, and only the end of the "
                    "trigger lets go", "add `spec.trigger.resolve`")


def _wrong_without_data(
    document: Document, policy: Policy, context: Context, disruptive: Sequence[Action]
) -> None:
    at = locate(document, ("spec", "trigger", "on_no_data"))[1]
    routed = [a for a in disruptive if any(c.knob.startswith("route.") for c in a.claims)]
    if policy.trigger.on_no_data == "fire":
        for action in disruptive[:1]:
            context.add(document, at, "warning", "no-data-fires",
                        f"`on_no_data: fire` runs `{action.type}` on a server that nobody can see",
                        "write `on_no_data: hold`")
    elif policy.trigger.on_no_data == "resolve" and routed:
        context.add(document, at, "warning", "no-data-resolves",
                    f"`on_no_data: resolve` ends `{routed[0].type}` when the server stops "
                    "answering, and sends its requests back", "write `on_no_data: hold`")


def _max_age(document: Document, policy: Policy, context: Context) -> None:
    age_ms = policy.trigger.max_age_ms
    if age_ms is not None and age_ms < 2 * context.interval_ms:
        context.add(document, locate(document, ("spec", "trigger", "max_age"))[1], "warning",
                    "short-max-age",
                    f"spec.trigger.max_age is shorter than two scrapes of "
                    f"{format_duration(context.interval_ms)}: one late scrape makes it blind",
                    f"use at least `{format_duration(3 * context.interval_ms)}`")


def _nothing_to_escalate_to(document: Document, policy: Policy, context: Context) -> None:
    if policy.escalation:
        return
    for index, action in enumerate(policy.actions):
        if action.udf is not None and action.udf.on_error == "escalate":
            context.add(
                document, locate(document, ("spec", "actions", index, "on_error"))[1], "warning",
                "escalation-missing", f"spec.actions[{index}].on_error is `escalate`, and the "
                "policy has no escalation", "add `spec.escalation`, or write `skip` or `hold`",
            )


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
                if before is None or _stronger(claim, before):
                    held[_key(claim)] = claim


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
    """A label that the trigger's result cannot have is an empty text wherever it is used."""
    kept = labels_left(parse_checked(policy.trigger.expr))
    if kept is None:
        return
    for path, text in _templates(document, policy):
        lost = sorted(set(_LABEL.findall(text)) - kept)
        if lost:
            context.add(document, locate(document, path)[1], "warning", "template-label",
                        f"{path_text(path)} uses {listed(lost)}, which the trigger has "
                        "aggregated away", f"keep it in `by (…)`; there are {listed(sorted(kept))}"
                        if kept else "keep it in `by (…)`")


def _templates(document: Document, policy: Policy) -> Iterator[tuple[Path, str]]:
    """Yield the texts in which `{{ $labels.NAME }}` means something, with their places."""
    for key, text in document.data["metadata"].get("annotations", {}).items():
        yield ("metadata", "annotations", key), text
    for path, _ in placed_actions(policy):
        raw = document.data
        for step in path:
            raw = raw[step]
        yield from (((*path, key), text) for key, text in raw.items() if isinstance(text, str))


def _undone(document: Document, policy: Policy, context: Context) -> None:
    """`resume` in the list that pauses or drains ends it at once."""
    for path, actions in _lists(policy):
        types = [action.type for action in actions]
        for stop in ("pause", "drain"):
            if stop in types and "resume" in types:
                at = (*path, types.index("resume"))
                context.add(document, locate(document, at)[1], "warning", "conflicting-claims",
                            f"{path_text(at)} undoes `{stop}` of the same list at once",
                            "leave `resume` out: the server resumes by itself")


def _lists(policy: Policy) -> Iterator[tuple[Path, tuple[Action, ...]]]:
    yield ("spec", "actions"), policy.actions
    for number, stage in enumerate(policy.escalation):
        yield ("spec", "escalation", number, "actions"), stage.actions


def _nothing_to_give_back(document: Document, policy: Policy, context: Context) -> None:
    """Steps of recovery give claims back, and what happens once is no claim."""
    if policy.recovery is not None and not any(
            a.claims or a.udf is not None for a in policy.every_action()):
        context.add(document, locate(document, ("spec", "recovery"))[0], "info", "no-effect",
                    "spec.recovery has no effect: no action of the policy holds anything",
                    "remove it")
