"""Actions of a document: validated each by its own kind, then built and checked by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from resilience import knobs
from resilience.model import (
    LADDER,
    LEASE_DEFAULT_MS,
    Action,
    ClaimSpec,
    Json,
    Policy,
    canonical_json,
    parse_duration,
)
from resilience.policy.check_fields import guard_of, verify_of
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.kinds import ActionKind
from resilience.policy.shape import Shaper, action_form, locate
from resilience.policy.template import problem
from resilience.policy.words import did_you_mean, listed, quoted

Path: TypeAlias = tuple[str | int, ...]
_TEMPLATE = re.compile(r"\{\{\s*\$")
_OF_STAGE = re.compile(r"e(\d+)\.")


def stage_prefix(index: int) -> str:
    """Return how the keys of the actions of an escalation's stage begin; `index` is from 0."""
    return f"e{index}."


def stage_of(key: str) -> int | None:
    """Return the escalation stage, from 0, that the action of a key belongs to; None for none."""
    found = _OF_STAGE.match(key)
    return int(found[1]) if found else None


def action_lists(spec: Mapping[str, Json]) -> Iterator[tuple[Path, str, Json]]:
    """Yield (path below the document, prefix of keys, list) of each list of actions: of a policy,
    or of the alerts of an SLO."""
    yield ("spec", "actions"), "", spec.get("actions")
    stages = spec.get("escalation")
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        if isinstance(stage, dict):
            where: Path = ("spec", "escalation", index, "actions")
            yield where, stage_prefix(index), stage.get("actions")
    alerts = spec.get("alerts")
    for name, alert in alerts.items() if isinstance(alerts, dict) else ():
        for path, prefix, actions in action_lists(mapping_of(alert)):
            yield ("spec", "alerts", name, *path[1:]), prefix, actions


def check_actions(document: Document, shaper: Shaper, context: Context) -> bool:
    """Validate every action of a policy by its own kind; return whether all are fine."""
    fine = True
    for path, _, actions in action_lists(mapping_of(document.data.get("spec"))):
        for index, action in enumerate(actions if isinstance(actions, list) else []):
            if isinstance(action, dict):
                fine &= check_action(action, (*path, index), shaper, context)
    return fine


def mapping_of(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def check_action(action: Json, path: Path, shaper: Shaper, context: Context) -> bool:
    """Validate one action, which stands at `path`."""
    name = path_text(path)
    kind = context.actions.get(action.get("type")) if isinstance(action.get("type"), str) else None
    if kind is None:
        if isinstance(action.get("type"), str):
            shaper.add(
                locate(shaper.document, (*path, "type"))[1], "unknown-action",
                f"unknown action type {quoted(action['type'])}",
                did_you_mean(action["type"], context.actions)
                or f"known are {listed(context.actions)}",
            )
        return False
    before = len(shaper.findings)
    shaper.check(action_form(kind), action, path, name)
    return len(shaper.findings) == before


def placed_actions(policy: Policy) -> Iterator[tuple[Path, Action]]:
    """Yield all actions of a policy, those of its escalation too, with their paths."""
    for index, action in enumerate(policy.actions):
        yield ("spec", "actions", index), action
    for number, stage in enumerate(policy.escalation):
        for index, action in enumerate(stage.actions):
            yield ("spec", "escalation", number, "actions", index), action


def path_text(path: Path) -> str:
    """Return `spec.actions[0]` for a path."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def build_actions(
    document: Document, context: Context, path: Path, prefix: str
) -> tuple[Action, ...]:
    built: list[Action] = []
    raw: Any = document.data
    for step in path:
        raw = raw[step]
    for index, item in enumerate(raw):
        place = locate(document, (*path, index))[1]
        kind = context.actions[item["type"]]
        for key, why in template_problems(kind, item):
            at = (*path, index, key)
            context.add(document, locate(document, at)[1], "error", "template",
                        f"{path_text(at)}: {why}")
        action = _planned(document, context, place, kind, item, f"{prefix}{index}")
        if action is not None:
            _check_action_names(document, context, action, (*path, index))
            built.append(action)
    return tuple(built)


def _planned(
    document: Document, context: Context, place: Place, kind: ActionKind[Any],
    raw: Mapping[str, Json], key: str,
) -> Action | None:
    try:
        return build_action(kind, raw, key)
    except ValueError as error:
        context.add(document, place, "error", "action", f"action `{kind.name}` {error}")
        return None


def build_action(
    kind: ActionKind[Any], raw: Mapping[str, Json], key: str, lease_ms: int = LEASE_DEFAULT_MS,
    on_core_loss: str = "baseline",
) -> Action:
    """Return the action of a mapping that fits its kind's schema; raises ValueError."""
    planned = kind.plan(kind.build(raw))
    for claim in planned.claims:
        reason = _claim_problem(claim.knob, claim.value, dict(claim.scope))
        if reason:
            raise ValueError(f"cannot be: {reason}")
    loss: Any = raw.get("on_core_loss", on_core_loss)
    return Action(
        key=key, type=kind.name, claims=planned.claims, impulses=planned.impulses, udf=planned.udf,
        lease_ms=parse_duration(raw["lease"]) if "lease" in raw else lease_ms, on_core_loss=loss,
        message=raw.get("message", ""), verify=verify_of(raw.get("verify")),
        guard=guard_of(raw.get("guard")), disruptive=kind.disruptive,
    )


def _claim_problem(name: str, value: Json, scope: dict[str, str]) -> str | None:
    knob = knobs.knob(name)
    return f"knob `{name}` is not known" if knob is None else knob.check(value, scope)


def template_problems(
    kind: ActionKind[Any], raw: Mapping[str, Json]
) -> Iterator[tuple[str, str]]:
    """Yield (parameter, reason) for each string with a template that cannot be filled in."""
    properties = kind.schema()["properties"]
    for key, value in raw.items():
        if isinstance(value, str) and properties[key].get("x-type") in ("template", None):
            why = problem(value)
            if why:
                yield key, why
        elif key == "params" and _TEMPLATE.search(canonical_json(value)):
            yield key, "constants hold no templates; the function finds labels in `ctx`"


def _check_action_names(
    document: Document, context: Context, action: Action, path: Path
) -> None:
    """Check the tiers, functions, knobs, models and impulses that an action names."""
    _check_scopes(document, context, action, path)
    for claim in action.claims:
        _check_receiver(document, context, claim.knob, path)
    if action.udf is not None:
        _check_function(document, context, action.udf.function, (*path, "function"))
    if context.capabilities is not None:
        _check_capabilities(document, context, action, path)


def _check_scopes(document: Document, context: Context, action: Action, path: Path) -> None:
    """Check that the Engine document defines the tiers and tenants that claims name."""
    tenants = [*(tenant.name for tenant in context.config.tenants), "other"]
    for axis, code, known in (
        ("tier", "unknown-tier", context.tiers), ("tenant", "unknown-tenant", tenants),
    ):
        names = {dict(claim.scope).get(axis) for claim in action.claims} - {None, *known}
        for name in (n for n in names if n is not None and "{{" not in n):
            context.add(
                document, locate(document, (*path, axis))[1], "error", code,
                f"{path_text((*path, axis))}: {axis} {quoted(name)} is not defined",
                did_you_mean(name, known) or f"known are {listed(known)}",
            )


def _check_receiver(document: Document, context: Context, knob: str, path: Path) -> None:
    if not knob.startswith(knobs.NOTIFY_PREFIX):
        return
    name = knob.removeprefix(knobs.NOTIFY_PREFIX)
    if name not in context.receivers:
        context.add(
            document, locate(document, (*path, "to"))[1], "error", "unknown-receiver",
            f"{path_text((*path, 'to'))}: receiver {quoted(name)} is not defined",
            did_you_mean(name, context.receivers)
            or "define it in `receivers` of the `kind: Engine` document",
        )


def _check_function(document: Document, context: Context, name: str, path: Path) -> None:
    place = locate(document, path)[1]
    files = context.functions.files(name)
    if len(files) == 1:
        hidden = context.functions.hidden(name)
        if hidden:
            context.add(document, place, "info", "udf-hides",
                        f"function `{name}` of `{files[0]}` hides the one of `{hidden[0]}`")
        return
    if files:
        context.add(document, place, "error", "udf-twice",
                    f"function `{name}` stands in {listed(files)}", "keep one of them")
        return
    context.add(
        document, place, "error", "udf-missing",
        f"{path_text(path)}: no UDF file defines the function `{name}`",
        did_you_mean(name, context.functions.names)
        or f"write `def {name}(ctx):` in a file of the UDF folder, or name it with `--udfs DIR`",
    )


def _check_value(
    document: Document, context: Context, claim: ClaimSpec, place: Place
) -> None:
    """Compare a limit with this server's: one that stops it is an error, one beyond it a no-op."""
    core = context.capabilities
    definition = knobs.knob(claim.knob)
    capability = core.knobs.get(claim.knob) if core is not None else None
    if capability is None or definition is None or definition.fold_name != "min":
        return
    if not isinstance(claim.value, int | float):
        return
    if capability.minimum is not None and claim.value < capability.minimum:
        context.add(document, place, "error", "knob-no-progress",
                    f"knob `{claim.knob}` at `{claim.value}` would stop all progress on this "
                    "server", f"the least it takes is {capability.minimum:g}")
    if capability.fits is not None and claim.value > capability.fits:
        context.add(document, place, "warning", "knob-no-memory",
                    f"knob `{claim.knob}` at `{claim.value}` needs memory that is not free: "
                    f"{capability.fits:g} fit now",
                    "the core refuses it until there is more: start the server with a smaller pool "
                    "or free memory")
    baseline = capability.baseline
    if isinstance(baseline, int | float) and claim.value >= baseline:
        context.add(document, place, "warning", "knob-no-effect",
                    f"knob `{claim.knob}` at `{claim.value}` changes nothing on this server",
                    f"it starts with `{baseline}`")


def _check_capabilities(
    document: Document, context: Context, action: Action, path: Path
) -> None:
    core = context.capabilities
    assert core is not None
    place = locate(document, path)[1]
    for claim in action.claims:
        if not knobs.is_engines(claim.knob) and claim.knob not in core.knobs:
            why = next((d["reason"] for d in core.dropped if d["knob"] == claim.knob), None)
            context.add(document, place, "error", "knob-missing",
                        f"the core ({core.core} {core.core_version}) has no knob `{claim.knob}`"
                        + (f": {why}" if why else ""),
                        "leave the action out, or start the server with what it needs")
        _check_value(document, context, claim, place)
        to = claim.value.get("to") if isinstance(claim.value, dict) else None
        if isinstance(to, str) and "{{" not in to and core.models and to not in (
            *core.models, LADDER, *(rung.name for rung in context.config.ladder)
        ):
            # What does not act may name a model that will be served one day.
            acts = document.data["spec"].get("mode", "enforce") == "enforce"
            context.add(document, locate(document, (*path, "to"))[1],
                        "error" if acts else "warning", "model-missing",
                        f"the core serves no model {quoted(to)}",
                        did_you_mean(to, core.models) or f"it serves {listed(core.models)}")
    for impulse in action.impulses:
        if impulse.impulse not in core.impulses:
            context.add(document, place, "error", "knob-missing",
                        f"the core ({core.core} {core.core_version}) has no impulse "
                        f"`{impulse.impulse}`", "leave the action out")
