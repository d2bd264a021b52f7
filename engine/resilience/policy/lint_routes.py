"""Fallbacks that cannot work: to the model that is in trouble, or in a circle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from resilience.model import LADDER, Policy, Rung
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.ladders import SERVED, check_routes, rungs_of
from resilience.policy.shape import locate
from resilience.policy.words import quoted
from resilience.promql.parser import parse
from resilience.promql.plan import selectors

LABEL = "model_name"
_ITSELF = re.compile(r"\{\{\s*\$labels\.model_name\s*\}\}")


def run(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Look at where every policy sends requests, each alone and all together."""
    check_routes(built, context)
    steps: dict[str, dict[str, tuple[Document, Policy, int]]] = {}
    for document, policy in built:
        source = _model(policy)
        for index, to in _targets(policy, context.config.ladder, source):
            if source is not None and to == source or _ITSELF.fullmatch(to):
                context.add(
                    document, _place(document, index), "warning", "fallback-to-itself",
                    f"spec.actions[{index}] sends requests to {quoted(to)}, the model that the "
                    "trigger is about", "fall back to another served model",
                )
            elif source is not None:
                steps.setdefault(source, {}).setdefault(to, (document, policy, index))
    for source, target in sorted(_circles(steps)):
        document, policy, index = steps[source][target]
        context.add(
            document, _place(document, index), "warning", "fallback-circle",
            f"policy {quoted(policy.name)} falls back from {quoted(source)} to {quoted(target)}, "
            "and others fall back from there to here: when both fire, nobody serves",
            "end the ladder at a model that does not fall back",
        )


def _place(document: Document, index: int) -> Place:
    return locate(document, ("spec", "actions", index, "to"))[1]


def _model(policy: Policy) -> str | None:
    """Return the one model that the trigger selects, if it does."""
    found = {
        matcher.value for selector in selectors(parse(policy.trigger.expr))
        for matcher in selector.matchers if matcher.name == LABEL and matcher.op == "="
    }
    return found.pop() if len(found) == 1 else None


def _targets(
    policy: Policy, ladder: Sequence[Rung], source: str | None
) -> Iterator[tuple[int, str]]:
    """Yield (action, the model where requests go); a whole ladder passes over their own model."""
    for index, action in enumerate(policy.actions):
        for claim in action.claims:
            if claim.knob == "route.model" and isinstance(claim.value, Mapping):
                to = str(claim.value.get("to", ""))
                rungs = [r for r in rungs_of(to, ladder) if to != LADDER or r.model != source]
                if not rungs:
                    yield index, to
                elif rungs[0].kind in SERVED:
                    yield index, str(rungs[0].model)


def _circles(steps: Mapping[str, Mapping[str, object]]) -> set[tuple[str, str]]:
    """Return the steps from which one comes back to where one was."""
    found: set[tuple[str, str]] = set()
    for source, targets in steps.items():
        for target in targets:
            seen, waiting = {target}, [target]
            while waiting:
                for following in steps.get(waiting.pop(), ()):
                    if following == source:
                        found.add((source, target))
                    elif following not in seen:
                        seen.add(following)
                        waiting.append(following)
    return found
