"""What documents do to each other: names used twice, claims on the same knob.

`conflicts(bundle)` is for everybody who shows policies together; the checks below it place what is
a mistake in the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from resilience import knobs
from resilience.model import Action, Bundle, ClaimSpec, Json, Labels, Policy, canonical_json
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.lint_numbers import MIRRORED
from resilience.policy.shape import locate
from resilience.policy.words import listed, quoted
from resilience.promql.parser import parse_checked
from resilience.promql.plan import COMPARISONS, Binary


@dataclass(frozen=True, slots=True)
class Rival:
    """One policy's strongest wish for a knob; `action` is the key of the action that has it.

    `shadow`: its policy only watches, so nothing of it is claimed.
    """

    policy: str
    action: str
    value: Json
    priority: int
    shadow: bool = False

    def to_json(self) -> Json:
        return {"policy": self.policy, "action": self.action, "value": self.value,
                "priority": self.priority}


@dataclass(frozen=True, slots=True)
class Conflict:
    """Policies that want different values for one (knob, scope) when they fire together.

    `rule` says how they fold; `winner` is whose value is in force when all of them fire, None
    where the value is only known then (a template) or where the fold leaves it to the name
    (`tie`). With policies in `shadow` among them it is what would be, were those in enforce.
    """

    knob: str
    scope: Labels
    rivals: tuple[Rival, ...]
    rule: str
    winner: str | None
    tie: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(rival.policy for rival in self.rivals)

    @property
    def shadow(self) -> tuple[str, ...]:
        """Return which of the policies are in shadow; none: the conflict is there now."""
        return tuple(rival.policy for rival in self.rivals if rival.shadow)

    def __str__(self) -> str:
        wishes = ", ".join(f"{quoted(r.policy)} {canonical_json(r.value)}" for r in self.rivals)
        end = f"; that is {quoted(self.winner)}" if self.winner else ""
        tie = "; they have the same priority, so the name decides" if self.tie else ""
        were = f", were {listed(self.shadow)} in enforce" if self.shadow else ""
        return f"{knob_text(self.knob, self.scope)}: {wishes}: {self.rule}{end}{tie}{were}"

    def to_json(self) -> Json:
        return {"knob": self.knob, "scope": dict(self.scope), "rule": self.rule,
                "winner": self.winner, "tie": self.tie, "message": str(self),
                "shadow": list(self.shadow), "rivals": [rival.to_json() for rival in self.rivals]}


def conflicts(bundle: Bundle) -> tuple[Conflict, ...]:
    """Return where policies want different values for one knob, in order of knob: first those of
    policies that enforce, then what there would be, were policies in shadow in enforce.

    Members of one group never hold a knob together, a receiver takes every alert, and what a UDF
    proposes is not known here.
    """
    on = [policy for policy in bundle.policies if policy.mode != "off"]
    enforced = [policy for policy in on if policy.mode == "enforce"]
    would = _conflicts(on) if len(enforced) < len(on) else ()
    return (*_conflicts(enforced), *(found for found in would if found.shadow))


def _conflicts(policies: Iterable[Policy]) -> Iterator[Conflict]:
    wishes: dict[tuple[str, Labels], dict[str, tuple[Rival, str | None]]] = {}
    for policy in sorted(policies, key=lambda p: p.name):
        for action, claim in _all_claims(policy):
            if claim.knob.startswith(knobs.NOTIFY_PREFIX):
                continue
            rival = Rival(policy.name, action.key, claim.value, policy.priority,
                          shadow=policy.mode == "shadow")
            mine = wishes.setdefault((claim.knob, claim.scope), {})
            if policy.name not in mine or _wins(claim.knob, rival, mine[policy.name][0]):
                mine[policy.name] = (rival, policy.group)
    found = (_conflict(*key, tuple(rivals.values())) for key, rivals in sorted(wishes.items()))
    return (c for c in found if c is not None)


def _conflict(
    name: str, scope: Labels, wishes: Sequence[tuple[Rival, str | None]]
) -> Conflict | None:
    rivals = tuple(rival for rival, _ in wishes)
    groups = {group for _, group in wishes}
    apart = len(groups) == 1 and None not in groups
    if apart or len({canonical_json(rival.value) for rival in rivals}) < 2:
        return None
    best = rivals[0]
    for rival in rivals[1:]:
        if _wins(name, rival, best):
            best = rival
    knob = knobs.knob(name)
    tie = knob is not None and knob.fold_name == "highest priority" and any(
        r.priority == best.priority and r.value != best.value for r in rivals)
    known = not tie and not any("{{" in canonical_json(rival.value) for rival in rivals)
    return Conflict(name, scope, rivals, rule_text(name), best.policy if known else None, tie)


def _wins(name: str, one: Rival, other: Rival) -> bool:
    """Whether `one` is in force beside `other`: by the knob's own fold."""
    knob = knobs.knob(name)
    if knob is None or any(isinstance(r.value, str) for r in (one, other)):
        return False
    claims = [knobs.LiveClaim(name, (), r.value, r.policy, r.priority, 0) for r in (one, other)]
    return knobs.FOLDS[knob.fold_name](claims) is claims[0]


def _all_claims(policy: Policy) -> Iterator[tuple[Action, ClaimSpec]]:
    for action in (*policy.actions, *(a for stage in policy.escalation for a in stage.actions)):
        for claim in action.claims:
            yield action, claim


_NAMED = {"Policy": "policy", "SLO": "SLO"}


def check_names(documents: Iterable[Document], context: Context) -> None:
    """Report every policy and every SLO whose name another one has used before."""
    first: dict[tuple[str, str], Document] = {}
    for document in documents:
        kind: str = document.data["kind"]
        if kind not in ("Policy", "SLO"):
            continue
        name = document.data["metadata"]["name"]
        other = first.setdefault((kind, name), document)
        if other is document:
            continue
        path = ("metadata", "name")
        at = locate(other, path)[1]
        context.add(
            document, locate(document, path)[1], "error", "duplicate-name",
            f"{_NAMED[kind]} name {quoted(name)} is used twice, first at {other.file}:{at.line} "
            f"(document {other.index})", "rename one of them",
        )


def check_claims(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Warn of two values for one knob: within a policy, and in policies with one trigger."""
    by_trigger: dict[str, list[tuple[Document, Policy]]] = {}
    for document, policy in built:
        _within(document, policy, context)
        trigger = _condition_text(policy)
        by_trigger.setdefault(trigger, []).append((document, policy))
    for group in by_trigger.values():
        if len(group) > 1:
            _between(group, context)
    _shared(built, context)
    _groups(built, context)


def _condition_text(policy: Policy) -> str:
    """Return the trigger's text, the number on the right: `20 < x` says what `x > 20` says."""
    plan = parse_checked(policy.trigger.expr)
    if isinstance(plan, Binary) and plan.op in COMPARISONS and plan.lhs.type == "scalar":
        op = MIRRORED.get(plan.op, plan.op)
        return dataclasses.replace(plan, op=op, lhs=plan.rhs, rhs=plan.lhs).text
    return plan.text


def _shared(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Warn where only the names of two policies decide who wins, or would decide it.

    Where a fold or a priority decides, it is as meant: `conflicts` shows it to who asks.
    """
    told: set[tuple[str, Labels]] = set()
    documents = {policy.name: (document, policy) for document, policy in built}
    for found in conflicts(Bundle("", tuple(policy for _, policy in built))):
        rivals = [documents[name] for name in found.policies]
        if not found.tie or len(
                {_condition_text(policy) for _, policy in rivals}) == 1 \
                or (found.knob, found.scope) in told:
            continue
        told.add((found.knob, found.scope))
        document = rivals[-1][0]
        context.add(document, locate(document, ("metadata", "name"))[1], "warning",
                    "priority-tie", str(found), "give them different priorities, or one `group`")


def _groups(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """A group needs members, and priorities that say which of them holds."""
    groups: dict[str, list[tuple[Document, Policy]]] = {}
    for document, policy in built:
        if policy.group is not None and policy.mode != "off":
            groups.setdefault(policy.group, []).append((document, policy))
    for name, members in groups.items():
        if len(members) == 1:
            document = members[0][0]
            context.add(document, locate(document, ("spec", "group"))[1], "info", "group-alone",
                        f"group {quoted(name)} has no other member")
        first: dict[int, str] = {}
        for document, policy in members:
            other = first.setdefault(policy.priority, policy.name)
            if other != policy.name:
                context.add(
                    document, locate(document, ("spec", "group"))[1], "warning", "group-tie",
                    f"policies {quoted(other)} and {quoted(policy.name)} of group {quoted(name)} "
                    f"have the same priority {policy.priority}, so the name decides who holds",
                    "give them different priorities",
                )


def _within(document: Document, policy: Policy, context: Context) -> None:
    seen: dict[tuple[str, str], int] = {}
    for index, action in enumerate(policy.actions):
        for claim in action.claims:
            if claim.knob.startswith(knobs.NOTIFY_PREFIX):
                continue  # a receiver takes every alert
            key = (claim.knob, knobs.scope_text(claim.scope))
            if key in seen:
                what = knob_text(claim.knob, claim.scope)
                context.add(
                    document, locate(document, ("spec", "actions", index))[1], "warning",
                    "conflicting-claims",
                    f"spec.actions[{index}] and [{seen[key]}] both claim {what}: "
                    f"{rule_text(claim.knob)}", "keep one of them",
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
                    f"and claim {knob_text(claim.knob, claim.scope)} with different values: "
                    f"{rule_text(claim.knob)}",
                    "merge them, or give them different triggers",
                )


def _claims(actions: Iterable[Action]) -> Iterable[tuple[int, ClaimSpec]]:
    for index, action in enumerate(actions):
        for claim in action.claims:
            if not claim.knob.startswith(knobs.NOTIFY_PREFIX):
                yield index, claim


def knob_text(name: str, scope: Labels) -> str:
    """Return a knob and where it is claimed, for people."""
    where = knobs.scope_text(scope)
    return f"`{name}`" + (f" for `{where}`" if where else "")


def rule_text(name: str) -> str:
    """Return how the claims on a knob fold, in words."""
    knob = knobs.knob(name)
    rules = {"min": "the smaller wins", "max": "the larger wins", "false wins": "false wins",
             "highest priority": "the higher priority wins"}
    return rules.get(knob.fold_name, "one wins") if knob else "one wins"
