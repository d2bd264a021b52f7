"""Decisions that contradict or cannot do what they say: checks, probes, limits, belts."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.model import Guard, Policy, RateLimit, Verify, format_duration
from resilience.policy.action_build import Path, path_text, placed_actions
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.levers import floors, lever
from resilience.policy.lint_logic import implies
from resilience.policy.shape import locate
from resilience.promql.parser import parse_checked


def run(document: Document, policy: Policy, context: Context) -> None:
    """Add what these rules have to say about one policy."""
    for path, check in _checks(policy):
        _contradiction(document, policy, path, check, context)
        if isinstance(check, Verify):
            _verify(document, policy, path, check, context)
    _same_resolve(document, policy, context)
    _probe(document, policy, context)
    _rates(document, policy, context)
    _belts(document, policy, context)


def _checks(policy: Policy) -> Iterator[tuple[Path, Verify | Guard]]:
    """Yield each check with its place in the document."""
    paths: dict[str, Path] = {"": ("spec",)}
    paths.update({action.key: path for path, action in placed_actions(policy)})
    for key, check in policy.checks():
        name = "verify" if isinstance(check, Verify) else "guard"
        yield (*paths[key], name), check


def _contradiction(
    document: Document, policy: Policy, path: Path, check: Verify | Guard, context: Context
) -> None:
    trigger, condition = parse_checked(policy.trigger.expr), parse_checked(check.expr)
    if isinstance(check, Verify) and check.improves is not None:
        return
    same = condition.text == trigger.text
    if not same and not (isinstance(check, Guard) and implies(trigger, condition)):
        return
    what = "undoes the policy as soon as it fires" if isinstance(check, Guard) \
        else "holds only as long as the trouble does"
    context.add(document, locate(document, (*path, "expr"))[1], "error", "contradiction",
                f"{path_text((*path, 'expr'))} is "
                f"{'the trigger' if same else 'true whenever the trigger is'}: it {what}",
                "write what must come of the actions, not what set them off")


def _verify(
    document: Document, policy: Policy, path: Path, verify: Verify, context: Context
) -> None:
    if verify.on_failure == "escalate" and not policy.escalation:
        context.add(document, locate(document, (*path, "on_failure"))[1], "error",
                    "escalate-nowhere", f"{path_text(path)} escalates, and the policy has no "
                    "`escalation`", "add a stage, or write `on_failure: rollback`")
    if verify.improves is None and "by" in _raw(document, path):
        context.add(document, locate(document, (*path, "by"))[0], "info", "no-effect",
                    f"{path_text((*path, 'by'))} has no effect without `improves`")
    _short(document, policy, (*path, "within"), verify.within_ms, context)


def _raw(document: Document, path: Path) -> dict[str, object]:
    node = document.data
    for step in path:
        node = node[step]
    return dict(node)


def _short(
    document: Document, policy: Policy, path: Path, time_ms: int, context: Context
) -> None:
    if time_ms < policy.interval_ms:
        context.add(document, locate(document, path)[1], "warning", "too-short",
                    f"{path_text(path)} is shorter than the policy's interval of "
                    f"{format_duration(policy.interval_ms)}", "make it several intervals long")


def _same_resolve(document: Document, policy: Policy, context: Context) -> None:
    resolve = policy.trigger.resolve
    trigger = parse_checked(policy.trigger.expr).text
    if resolve is not None and parse_checked(resolve.expr).text == trigger:
        context.add(document, locate(document, ("spec", "trigger", "resolve", "expr"))[1], "error",
                    "contradiction", "spec.trigger.resolve.expr is the trigger: the firing ends "
                    "while the trouble lasts", "write the condition under which all is well again")


def _probe(document: Document, policy: Policy, context: Context) -> None:
    if policy.probe is None:
        return
    _short(document, policy, ("spec", "probe", "for"), policy.probe.for_ms, context)
    if policy.probe.share >= 1:
        context.add(document, locate(document, ("spec", "probe", "share"))[1], "warning",
                    "no-effect", "spec.probe.share of 100% lets go of everything: that is no probe",
                    "write for example `10%`")


def _rates(document: Document, policy: Policy, context: Context) -> None:
    """A window that another one makes superfluous is a mistake in one of the two."""
    for number, rate in enumerate(policy.limits.rate):
        stricter = next((o for o in policy.limits.rate if o != rate and _covers(o, rate)), None)
        if stricter is not None:
            context.add(document, locate(document, ("spec", "limits", "rate", number))[1], "info",
                        "no-effect", f"spec.limits.rate[{number}] never binds: {stricter.max} per "
                        f"{format_duration(stricter.per_ms)} is stricter", "remove one of them")


def _covers(strict: RateLimit, rate: RateLimit) -> bool:
    return strict.max <= rate.max and strict.per_ms >= rate.per_ms


def _belts(document: Document, policy: Policy, context: Context) -> None:
    """Say which claims the belts will raise on the server at hand."""
    if context.capabilities is None:
        return
    knobs = context.capabilities.knobs
    least = floors(context.config, {k: c.capacity for k, c in knobs.items() if c.capacity})
    for path, claims in _claims_at(policy):
        for name, value in claims:
            floor = least.get(name)
            if floor is not None and isinstance(value, int | float) and value < floor:
                context.add(
                    document, locate(document, path)[1], "warning", "safety-clip",
                    f"{path_text(path)} claims {value} for `{name}`; the safety belts leave at "
                    f"least {floor:g}", "claim more, or lower `safety` of `kind: Engine`",
                )


def _claims_at(policy: Policy) -> Iterator[tuple[Path, list[tuple[str, object]]]]:
    for path, action in placed_actions(policy):
        yield path, [(lever(c.knob, c.scope), c.value) for c in action.claims]
