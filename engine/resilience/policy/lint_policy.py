"""Policies that are valid and still unwise: the rules that look at more than one field."""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience import knobs
from resilience.model import Action, ClaimSpec, Policy, format_duration
from resilience.policy import lint_decisions
from resilience.policy.action_build import Path, path_text
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.lint_label_sets import labels_left
from resilience.policy.lint_units import number_of
from resilience.policy.shape import locate
from resilience.policy.words import listed
from resilience.promql.parser import parse
from resilience.promql.plan import Binary, Plan

_LABEL = re.compile(r"\{\{\s*\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)\s*\}\}")


def run(document: Document, policy: Policy, context: Context) -> None:
    """Add what these rules have to say about one policy."""
    if policy.mode == "enforce":
        _disruptive(document, policy, context)
    _max_age(document, policy, context)
    _resolve_overlaps(document, policy, context)
    _nothing_to_escalate_to(document, policy, context)
    _weak_stages(document, policy, context)
    _template_labels(document, policy, context)
    lint_decisions.run(document, policy, context)


def _disruptive(document: Document, policy: Policy, context: Context) -> None:
    """Look at the first action that requests under way feel."""
    for path, action in _all_actions(policy):
        kind = context.actions.get(action.type)
        if kind is not None and kind.disruptive:
            _unprepared(document, policy, context, path, action, kind.holds)
            return


def _all_actions(policy: Policy) -> Iterator[tuple[Path, Action]]:
    for index, action in enumerate(policy.actions):
        yield ("spec", "actions", index), action
    for number, stage in enumerate(policy.escalation):
        for index, action in enumerate(stage.actions):
            yield ("spec", "escalation", number, "actions", index), action


def _unprepared(
    document: Document, policy: Policy, context: Context, path: Path, action: Action, holds: bool
) -> None:
    owner, place = locate(document, path)
    name = path_text(path)
    if "runbook_url" not in dict(policy.annotations):
        context.add(document, place, "warning", "no-runbook",
                    f"{name}: `{action.type}` disrupts requests, and the policy has no runbook",
                    "add `metadata.annotations.runbook_url`")
    if policy.trigger.resolve is None:
        context.add(document, place, "warning", "no-resolve",
                    f"{name}: `{action.type}` disrupts requests, and only the end of the "
                    "trigger lets go", "add `spec.trigger.resolve`")
    if holds and locate(document, (*path, "lease")) == (owner, place):
        context.add(document, place, "warning", "no-lease",
                    f"{name}: `{action.type}` disrupts requests, and nothing says how long it "
                    "lasts without the engine", "add `lease: 30s`, the default, or less")
    _wrong_without_data(document, policy, context, action)


def _wrong_without_data(
    document: Document, policy: Policy, context: Context, action: Action
) -> None:
    at = locate(document, ("spec", "trigger", "on_no_data"))[1]
    if policy.trigger.on_no_data == "fire":
        context.add(document, at, "warning", "no-data-fires",
                    f"`on_no_data: fire` runs `{action.type}` on a server that nobody can see",
                    "write `on_no_data: hold`")
    elif policy.trigger.on_no_data == "resolve" and any(
        claim.knob.startswith("route.") for claim in action.claims
    ):
        context.add(document, at, "warning", "no-data-resolves",
                    f"`on_no_data: resolve` ends `{action.type}` when the server stops answering, "
                    "and sends its requests back", "write `on_no_data: hold`")


def _max_age(document: Document, policy: Policy, context: Context) -> None:
    age_ms = policy.trigger.max_age_ms
    if age_ms is not None and age_ms < 2 * context.interval_ms:
        context.add(document, locate(document, ("spec", "trigger", "max_age"))[1], "warning",
                    "short-max-age",
                    f"spec.trigger.max_age is shorter than two scrapes of "
                    f"{format_duration(context.interval_ms)}: one late scrape makes it blind",
                    f"use at least `{format_duration(3 * context.interval_ms)}`")


def _resolve_overlaps(document: Document, policy: Policy, context: Context) -> None:
    """`x > 5` that resolves at `x < 10` is both at 7: it fires and resolves for ever."""
    resolve = policy.trigger.resolve
    if resolve is None:
        return
    fire, end = threshold(parse(policy.trigger.expr)), threshold(parse(resolve.expr))
    if fire is None or end is None or fire[0] != end[0]:
        return
    (_, above, low), (_, end_above, high) = fire, end
    if above == end_above or (high > low if above else high < low):
        late = [s for s in policy.escalation if s.after_ms > resolve.for_ms]
        stages = "; no escalation is reached" if late and above == end_above else ""
        context.add(
            document, locate(document, ("spec", "trigger", "resolve", "expr"))[1], "warning",
            "resolve-overlaps", "spec.trigger.resolve.expr can be true while the trigger is: the "
            f"policy fires and resolves again and again{stages}",
            f"resolve {'below' if above else 'above'} {low:g}",
        )


def threshold(plan: Plan) -> tuple[str, bool, float] | None:
    """Return (what is compared, whether above, the number) of `x > 5` and its like."""
    if not isinstance(plan, Binary) or plan.op not in (">", ">=", "<", "<="):
        return None
    right, left = number_of(plan.rhs), number_of(plan.lhs)
    if right is not None:
        return plan.lhs.text, plan.op in (">", ">="), right
    if left is not None:
        return plan.rhs.text, plan.op in ("<", "<="), left
    return None


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
