"""Fallbacks that cannot work: to the model that is in trouble, or in a circle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from resilience.model import LADDER, Policy, Rung
from resilience.policy.action_build import Path, path_text, placed_actions
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.ladders import SERVED, check_routes, rungs_of
from resilience.policy.shape import locate
from resilience.policy.words import quoted
from resilience.promql.parser import parse_checked
from resilience.promql.plan import selectors

LABEL = "model_name"
_ITSELF = re.compile(r"\{\{\s*\$labels\.model_name\s*\}\}")


def run(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Look at where every policy sends requests, each alone and all together."""
    check_routes(built, context)
    steps: dict[str, dict[str, tuple[Document, Policy, Path]]] = {}
    for document, policy in built:
        source = _model(policy)
        for path, to in _targets(policy, context.config.ladder, source):
            if source is not None and to in (source, LADDER) or _ITSELF.fullmatch(to):
                shown = "a ladder whose every rung is" if to == LADDER else f"{quoted(to)},"
                context.add(
                    document, _place(document, path), "warning", "fallback-to-itself",
                    f"{path_text(path)} sends requests to {shown} the model that the trigger is "
                    "about", "fall back to another served model",
                )
            elif source is not None:
                steps.setdefault(source, {}).setdefault(to, (document, policy, path))
    for source, target in sorted(_circles(steps)):
        document, policy, path = steps[source][target]
        context.add(
            document, _place(document, path), "warning", "fallback-circle",
            f"policy {quoted(policy.name)} falls back from {quoted(source)} to {quoted(target)}, "
            "and others fall back from there to here: when both fire, nobody serves",
            "end the ladder at a model that does not fall back",
        )


def _place(document: Document, path: Path) -> Place:
    return locate(document, (*path, "to"))[1]


def _model(policy: Policy) -> str | None:
    """Return the one model that the trigger selects, if it does."""
    found = {
        matcher.value for selector in selectors(parse_checked(policy.trigger.expr))
        for matcher in selector.matchers if matcher.name == LABEL and matcher.op == "="
    }
    return found.pop() if len(found) == 1 else None


def _targets(
    policy: Policy, ladder: Sequence[Rung], source: str | None
) -> Iterator[tuple[Path, str]]:
    """Yield (action, the model where requests go); a whole ladder passes over their own model, and
    is itself the answer where nothing else is left of it."""
    for path, action in placed_actions(policy):
        for claim in action.claims:
            if claim.knob == "route.model" and isinstance(claim.value, Mapping):
                to = str(claim.value.get("to", ""))
                rungs = [r for r in rungs_of(to, ladder) if to != LADDER or not _is(r, source)]
                if not rungs and (to != LADDER or ladder):
                    yield path, to
                elif rungs and rungs[0].kind in SERVED:
                    yield path, str(rungs[0].model)


def _is(rung: Rung, source: str | None) -> bool:
    return rung.kind in SERVED and rung.model == source


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
