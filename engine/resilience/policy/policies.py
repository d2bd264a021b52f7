"""A document of `kind: Policy` -> model.Policy; checks all that a schema cannot see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from resilience.model import (
    Escalation,
    Json,
    Limits,
    Policy,
    RateLimit,
    Recovery,
    Resolve,
    Trigger,
    digest16,
    labels_of,
    parse_duration,
)
from resilience.policy import lint_policy
from resilience.policy.action_build import (
    Path,
    action_lists,
    build_actions,
    mapping_of,
    path_text,
    stage_prefix,
)
from resilience.policy.check_fields import guard_of, probe_of, verify_of
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.expressions import Expression, check_expression
from resilience.policy.fragments import share_of
from resilience.policy.lint_view import Role
from resilience.policy.shape import locate


def build_policy(document: Document, context: Context) -> Policy | None:
    """Return the policy of a document that fits its schema, or None after an error."""
    before = context.errors
    spec = document.data["spec"]
    actions = build_actions(document, context, ("spec", "actions"), "")
    escalation = _escalation(document, context)
    recovery = _recovery(document, context)
    _check_trigger(document, context)
    _check_labels_of_metadata(document, context)
    if context.errors > before:
        return None
    made = Policy(
        name=document.data["metadata"]["name"], trigger=_trigger(spec["trigger"]), actions=actions,
        mode=spec.get("mode", "enforce"), interval_ms=parse_duration(spec.get("interval", "15s")),
        escalation=escalation, recovery=recovery, probe=probe_of(spec.get("probe")),
        verify=verify_of(spec.get("verify")), guard=guard_of(spec.get("guard")),
        limits=_limits(spec.get("limits", {})), priority=int(spec.get("priority", 50)),
        group=spec.get("group"),
        labels=labels_of(document.data["metadata"].get("labels", {})),
        annotations=labels_of(document.data["metadata"].get("annotations", {})),
        on_missing_metric=spec.get("on_missing_metric", "error"),
        file=document.file, line=document.place.line,
    )
    lint_policy.run(document, made, context)
    return dataclasses.replace(made, spec_hash=spec_hash(made))


def spec_hash(policy: Policy) -> str:
    """Return the digest of what decides: no annotations, labels or position, no default values."""
    return digest16(_deciding(policy))


_ASIDE = frozenset({"labels", "annotations", "file", "line", "spec_hash", "slo"})
_DERIVED = "disruptive"
_PLAIN = frozenset({str, int, bool, float, type(None)})


def _deciding(value: Any) -> Json:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return [_deciding(item) for item in value]
    defaults = _defaults(kind)
    if defaults is None:
        return value
    return {name: _deciding(item) for name, default in defaults
            if (item := getattr(value, name)) != default}


def _read_defaults(kind: Any) -> tuple[tuple[str, Any], ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    aside = _ASIDE if kind is Policy else {_DERIVED}
    return tuple((f.name, f.default) for f in dataclasses.fields(kind)
                 if f.init and f.name not in aside)


_defaults: Callable[[Any], tuple[tuple[str, Any], ...] | None] = cache(_read_defaults)


# --- parts of a policy -------------------------------------------------------------------------


def _trigger(raw: Mapping[str, Json]) -> Trigger:
    resolve = raw.get("resolve")
    return Trigger(
        expr=raw["expr"], on_no_data=raw["on_no_data"], for_ms=_ms(raw.get("for")),
        keep_firing_for_ms=_ms(raw.get("keep_firing_for")),
        resolve=Resolve(resolve["expr"], _ms(resolve.get("for"))) if resolve else None,
        max_age_ms=_ms(raw["max_age"]) if "max_age" in raw else None,
        warm_up=int(raw.get("warm_up", 1)),
    )


def _ms(value: Json) -> int:
    return 0 if value is None else parse_duration(str(value))


def _limits(raw: Mapping[str, Json]) -> Limits:
    return Limits(
        _ms(raw.get("cooldown")),
        tuple(RateLimit(int(rate["max"]), _ms(rate["per"])) for rate in raw.get("rate", ())),
        int(raw.get("min_samples", 1)),
        int(raw["max_active"]) if "max_active" in raw else None,
    )


def _recovery(document: Document, context: Context) -> Recovery | None:
    raw = document.data["spec"].get("recovery")
    if raw is None:
        return None
    steps = tuple(share_of(step) for step in raw["steps"])
    if steps[-1] != 1 or any(a >= b for a, b in zip(steps, steps[1:], strict=False)):
        context.add(
            document, locate(document, ("spec", "recovery", "steps"))[1], "error", "recovery",
            "spec.recovery.steps must grow and end at 100%", "write for example `[50%, 100%]`",
        )
    return Recovery(steps, _ms(raw["every"]))


def _escalation(document: Document, context: Context) -> tuple[Escalation, ...]:
    stages: list[Escalation] = []
    for index, raw in enumerate(document.data["spec"].get("escalation", ())):
        path: Path = ("spec", "escalation", index)
        after_ms = _ms(raw["after"])
        if stages and after_ms <= stages[-1].after_ms:
            context.add(
                document, locate(document, (*path, "after"))[1], "error", "escalation",
                f"{path_text((*path, 'after'))} must be later than the stage before it",
                "order the stages by `after`",
            )
        actions = build_actions(document, context, (*path, "actions"), stage_prefix(index))
        stages.append(Escalation(after_ms, actions))
    return tuple(stages)


def _check_trigger(document: Document, context: Context) -> None:
    trigger = document.data["spec"]["trigger"]
    if "resolve" in trigger and "keep_firing_for" in trigger:
        context.add(
            document, locate(document, ("spec", "trigger", "keep_firing_for"))[0], "info",
            "no-effect", "spec.trigger.keep_firing_for has no effect beside `resolve`",
            "only `resolve` ends the firing",
        )
    check_expressions(document, context)


def check_expressions(document: Document, context: Context) -> None:
    """Check every expression that can be found, also in a document with a wrong shape."""
    spec = mapping_of(document.data.get("spec"))
    missing = spec.get("on_missing_metric", "error")
    trigger = mapping_of(spec.get("trigger"))
    resolve = mapping_of(trigger.get("resolve"))
    found: list[tuple[Path, Json, Role]] = [
        (("spec", "trigger", "expr"), trigger.get("expr"), "trigger"),
        (("spec", "trigger", "resolve", "expr"), resolve.get("expr"), "resolve"),
        *_check_expressions(("spec",), spec),
    ]
    for path, _, actions in action_lists(spec):
        for index, action in enumerate(actions if isinstance(actions, list) else []):
            found.extend(_check_expressions((*path, index), mapping_of(action)))
            queries = mapping_of(mapping_of(action).get("metrics"))
            for key, query in queries.items():
                found.append(((*path, index, "metrics", key), query, "metric"))
    for path, text, role in found:
        if isinstance(text, str) and text:
            place = locate(document, path)[1]
            check_expression(
                Expression(document, place, _expression_name(document, path), text, role, missing),
                context,
            )


def _check_expressions(
    path: Path, owner: Mapping[str, Json]
) -> Iterator[tuple[Path, Json, Role]]:
    """Yield the expressions of the `verify` and `guard` of a policy or an action."""
    verify = mapping_of(owner.get("verify"))
    role: Role = "value" if "improves" in verify else "resolve"
    yield (*path, "verify", "expr"), verify.get("expr"), role
    yield (*path, "guard", "expr"), mapping_of(owner.get("guard")).get("expr"), "resolve"


def _expression_name(document: Document, path: Path) -> str:
    if document.expression and path[:2] == ("spec", "trigger"):
        return document.expression
    compact = document.data.keys_at.get("spec") == document.data.place
    return "trigger_if" if compact and path == ("spec", "trigger", "expr") else path_text(path)


def _check_labels_of_metadata(document: Document, context: Context) -> None:
    for key, text in document.data["metadata"].get("labels", {}).items():
        if "{{" in text:
            context.add(
                document, locate(document, ("metadata", "labels", key))[1], "error", "template",
                f"metadata.labels.{key}: labels hold no templates", "move it to `annotations`",
            )
