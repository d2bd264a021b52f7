"""Conditions beside the trigger: whether `resolve`, `verify` and `guard` speak of what fires."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.model import Policy
from resilience.policy.action_build import Path, path_text
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.lint_label_sets import KEEP_SERIES, kept_whole, labels_always, labels_left
from resilience.policy.lint_numbers import against_number
from resilience.policy.shape import locate
from resilience.policy.words import listed
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Aggregate, Binary, Node, Plan


def run(document: Document, policy: Policy, context: Context) -> None:
    """Add what these rules have to say about one policy."""
    _overlap(document, policy, context)
    fired = labels_left(parse_checked(policy.trigger.expr))
    for path, expr in _conditions(policy) if fired is not None else ():
        odd = sorted(_own_labels(parse_checked(expr)) - (fired or frozenset()))
        if odd:
            context.add(
                document, locate(document, path)[1], "warning", "condition-cannot-match",
                f"{path_text(path)} has {listed(odd)}, which the instances of the trigger lack: "
                "it says nothing about any of them",
                "aggregate it as the trigger, or further",
            )


def _conditions(policy: Policy) -> Iterator[tuple[Path, str]]:
    """Yield the conditions of the policy itself that an instance is looked up in."""
    if policy.trigger.resolve is not None:
        yield ("spec", "trigger", "resolve", "expr"), policy.trigger.resolve.expr
    if policy.verify is not None:
        yield ("spec", "verify", "expr"), policy.verify.expr
    if policy.guard is not None:
        yield ("spec", "guard", "expr"), policy.guard.expr


def _own_labels(node: Node) -> frozenset[str]:
    """Return the labels that the series of a condition are sure to have."""
    if isinstance(node, Aggregate) and node.op not in KEEP_SERIES and not node.without:
        below = labels_left(node.expr)
        return frozenset(node.grouping) if below is None else below & set(node.grouping)
    whole = kept_whole(node)
    if whole is not None and isinstance(node, Binary):
        return _own_labels(whole)
    return labels_always(node)


def _overlap(document: Document, policy: Policy, context: Context) -> None:
    """`x > 5` that resolves at `x < 10` is both at 7: it fires and resolves for ever."""
    resolve = policy.trigger.resolve
    if resolve is None:
        return
    trigger, ending = parse_checked(policy.trigger.expr), parse_checked(resolve.expr)
    fire, end = threshold(trigger), threshold(ending)
    if fire is None or end is None or fire[0] != end[0] or trigger.text == ending.text:
        return
    (_, above, low), (_, end_above, high) = fire, end
    meet = high == low and _holds_at(trigger) and _holds_at(ending)
    if above == end_above or meet or (high > low if above else high < low):
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
    compared = against_number(plan)
    if compared is None:
        return None
    side, number, op = compared
    return side.text, op in (">", ">="), number


def _holds_at(plan: Plan) -> bool:
    """Whether a comparison holds at its own number."""
    return isinstance(plan, Binary) and plan.op in (">=", "<=")
