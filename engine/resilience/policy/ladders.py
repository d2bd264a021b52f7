"""The fallback ladder of an Engine document: its rungs, and whether actions can use them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resilience.model import (
    LADDER,
    Json,
    Policy,
    Rung,
    SecondEngineSettings,
    Tier,
    format_duration,
    parse_duration,
)
from resilience.policy.action_build import placed_actions
from resilience.policy.addresses import check_address
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.shape import locate
from resilience.policy.words import did_you_mean, listed, quoted

URL_TIMEOUT_MS = 30_000
SERVED = ("model", "lora")
CANNED = ("cached", "template")
_NEEDS = {"model": ("model",), "lora": ("model",), "engine": ("model",), "url": ("url",),
          "cached": (), "template": ("text",)}
_TAKES = {
    "model": {"model", "context", "tools", "timeout"},
    "lora": {"model", "context", "tools", "timeout"},
    "engine": {"model", "context", "tools", "timeout", "engine"},
    "url": {"url", "model", "context", "tools", "timeout"},
    "cached": {"max_age", "max_mebibytes"},
    "template": {"text"},
}
_ALL = {"name", "kind", "throughput", "p99", "quality"}


def build_ladder(raw: Sequence[Mapping[str, Json]]) -> tuple[Rung, ...]:
    """Return the rungs of a checked list."""
    return tuple(_rung(rung) for rung in raw)


def _rung(raw: Mapping[str, Json]) -> Rung:
    given: dict[str, Any] = {
        key: raw[key] for key in ("name", "kind", "model", "url", "text", "tools") if key in raw
    }
    for name in ("throughput", "quality"):
        if name in raw:
            given[name] = float(raw[name])
    for key, field in (("timeout", "timeout_ms"), ("max_age", "max_age_ms"), ("p99", "p99_ms")):
        if key in raw:
            given[field] = parse_duration(str(raw[key]))
    if "context" in raw:
        given["context"] = int(raw["context"])
    if "max_mebibytes" in raw:
        given["max_bytes"] = int(raw["max_mebibytes"]) * 1024 * 1024
    if raw["kind"] in ("url", "engine"):
        given.setdefault("timeout_ms", URL_TIMEOUT_MS)
    if raw["kind"] == "engine":
        given["engine"] = _second_engine(raw.get("engine", {}))
    return Rung(**given)


def _second_engine(raw: Mapping[str, Json]) -> SecondEngineSettings:
    """Return the settings of a second engine; what is not said has its default."""
    given: dict[str, Any] = {key: raw[key] for key in ("core", "start", "dtype") if key in raw}
    for key in ("seats", "kv_mebibytes", "memory_mebibytes"):
        if key in raw:
            given[key] = int(raw[key])
    for key in ("start_timeout", "stop_after"):
        if key in raw:
            given[f"{key}_ms"] = parse_duration(str(raw[key]))
    return SecondEngineSettings(**given)


def check_ladder(
    document: Document, raw: Sequence[Mapping[str, Json]], context: Context
) -> None:
    """Each rung has what its kind needs and no more; names are unique; the core serves it."""
    names: list[str] = []
    for index, rung in enumerate(raw):
        name = rung["name"]
        if name in names or name == LADDER:
            what = "is taken by the whole ladder" if name == LADDER else "is given twice"
            _add(document, context, (index, "name"), "duplicate-rung",
                 f"the name {quoted(name)} of a rung {what}", "choose another name")
        names.append(name)
        _check_fields(document, index, rung, context)
        _check_served(document, index, rung, context)
    if sum(rung["kind"] == "cached" for rung in raw) > 1:
        _add(document, context, (), "duplicate-rung", "a ladder has one rung of kind `cached`",
             "keep one")
    _check_order(document, raw, context)
    _check_repeats(document, raw, context)


def _check_order(
    document: Document, raw: Sequence[Mapping[str, Json]], context: Context
) -> None:
    """A fixed text answers every plain request, so it ends the ladder."""
    for index, rung in enumerate(raw[:-1]):
        place = locate(document, ("spec", LADDER, index))[1]
        after = [r["name"] for r in raw[index + 1 :] if r["kind"] not in CANNED]
        if rung["kind"] == "template":
            context.add(document, place, "warning", "ladder-order",
                        f"rung {quoted(rung['name'])} answers every plain request with its text, "
                        "so the rungs after it are not reached", "move it to the end")
        elif rung["kind"] == "cached" and after:
            context.add(document, place, "info", "ladder-order",
                        f"stored answers come before {listed(after)}, which would answer anew",
                        f"move {quoted(rung['name'])} behind them, unless an older answer is as "
                        "good")


def _check_repeats(
    document: Document, raw: Sequence[Mapping[str, Json]], context: Context
) -> None:
    """What has just failed to answer is not asked again under another name."""
    first: dict[tuple[Any, ...], str] = {}
    for index, rung in enumerate(raw):
        if rung["kind"] in SERVED:
            key = ("served", rung.get("model"))
        elif rung["kind"] == "url":
            key = (str(rung.get("url")).rstrip("/"), rung.get("model"))
        else:
            continue
        other = first.setdefault(key, rung["name"])
        if other != rung["name"]:
            context.add(document, locate(document, ("spec", LADDER, index))[1], "warning",
                        "ladder-repeats",
                        f"rungs {quoted(other)} and {quoted(rung['name'])} are the same model: "
                        "when the first cannot answer, neither can the second", "keep one of them")


def _check_fields(
    document: Document, index: int, rung: Mapping[str, Json], context: Context
) -> None:
    kind, name = rung["kind"], quoted(rung["name"])
    for key in _NEEDS[kind]:
        if key not in rung:
            _add(document, context, (index,), "rung-fields",
                 f"rung {name} of kind `{kind}` needs `{key}`", f"write `{key}: …` beside it")
    if "url" in rung:
        check_address(document, context, ("spec", LADDER, index, "url"), rung["url"])
    for key in rung:
        if key not in _TAKES[kind] | _ALL:
            _add(document, context, (index, key), "rung-fields",
                 f"rung {name} of kind `{kind}` takes no `{key}`", "leave it out")
    if kind == "engine" and rung.get("engine", {}).get("core") == "torch":
        _check_decoder(document, index, rung, context)


def _check_decoder(
    document: Document, index: int, rung: Mapping[str, Json], context: Context
) -> None:
    name = quoted(rung["name"])
    if "kv_mebibytes" in rung["engine"]:
        _add(document, context, (index, "engine", "kv_mebibytes"), "rung-fields",
             f"rung {name} runs the PyTorch core, which takes no `kv_mebibytes`",
             "leave it out: its pool is `seats` times `context` tokens")
    if rung.get("tools"):
        _add(document, context, (index, "tools"), "rung-fields",
             f"rung {name} runs the PyTorch core, which calls no tools",
             "leave `tools` out: such requests go past this rung")


def _check_served(
    document: Document, index: int, rung: Mapping[str, Json], context: Context
) -> None:
    """Compare a rung of this server with what the server says that it can do."""
    core = context.capabilities
    if core is None or rung["kind"] not in SERVED:
        return
    model = rung.get("model")
    if model is not None and core.models and model not in core.models:
        _add(document, context, (index, "model"), "model-missing",
             f"the core serves no model {quoted(model)}",
             did_you_mean(model, core.models) or f"it serves {listed(core.models)}")
    most, said = core_context(context), rung.get("context")
    if most is not None and said is not None and said > most:
        _add(document, context, (index, "context"), "rung-context",
             f"rung {quoted(rung['name'])} says that {said} tokens fit, the core takes {most:.0f}",
             "write the smaller number")


def core_context(context: Context) -> float | None:
    """Return the most tokens that the core takes in one request, if it says so."""
    core = context.capabilities
    knob = core.knobs.get("throttle.max_context_tokens") if core is not None else None
    most = None if knob is None else knob.capacity
    return most if isinstance(most, int | float) else None


def _add(
    document: Document, context: Context, path: tuple[str | int, ...], code: str, message: str,
    suggestion: str,
) -> None:
    place = locate(document, ("spec", LADDER, *path))[1]
    context.add(document, place, "error", code, message, suggestion)


def rungs_of(to: str, ladder: Sequence[Rung]) -> tuple[Rung, ...]:
    """Return the rungs that `to` means: all of them, the one of that name, or none."""
    if to == LADDER:
        return tuple(ladder)
    return tuple(rung for rung in ladder if rung.name == to)


def worst_case_ms(rungs: Sequence[Rung]) -> int:
    """Return the longest time to a first byte: every rung but the last is tried in vain first."""
    waits = sum(rung.timeout_ms or 0 for rung in rungs[:-1])
    return waits + max((rung.p99_ms or 0 for rung in rungs[-1:]), default=0)


def check_routes(built: Sequence[tuple[Document, Policy]], context: Context) -> None:
    """Look at every action that goes to a rung or down the ladder."""
    ladder, tiers = context.config.ladder, {tier.name: tier for tier in context.config.tiers}
    for document, policy in built:
        for place, to, tier in _routes(document, policy):
            rungs = rungs_of(to, ladder)
            if to == LADDER and not rungs:
                context.add(document, place, "error", "no-ladder",
                            f"policy {quoted(policy.name)} goes down the ladder, and there is none",
                            "write `ladder:` in the `kind: Engine` document, and check the folder "
                            "that holds it")
            elif rungs:
                _check_gaps(document, place, rungs, context, to == LADDER)
                _check_latency(document, place, rungs, tiers.get(tier), context)


def _routes(document: Document, policy: Policy) -> Iterator[tuple[Place, str, str]]:
    for path, action in placed_actions(policy):
        for claim in action.claims:
            if claim.knob == "route.model" and isinstance(claim.value, Mapping):
                place = locate(document, (*path, "to"))[1]
                yield place, str(claim.value.get("to", "")), dict(claim.scope).get("tier", "")


def _check_gaps(
    document: Document, place: Place, rungs: Sequence[Rung], context: Context, whole: bool
) -> None:
    """Requests that fit no rung stay on the model that is in trouble. What the server takes is
    only known when it is asked; of a `whole` ladder the bound is told all the same."""
    most = core_context(context)
    bounds = [rung.context for rung in rungs if rung.kind not in CANNED]
    least = [b for b in bounds if b is not None]
    has_end = any(rung.kind == "template" for rung in rungs)
    bound = most or (math.inf if whole else 0)
    if bounds and len(least) == len(bounds) and not has_end and bound > max(least):
        takes = f"; the core takes {most:.0f}" if most else ""
        context.add(document, place, "warning" if most else "info", "ladder-gap",
                    f"requests above {max(least)} tokens fit no rung{takes}",
                    "add a rung with more context, or a template at the end")
    if not any(rung.tools for rung in rungs):
        context.add(document, place, "info", "ladder-no-tools",
                    "requests with tools fit no rung and stay on their model",
                    "say `tools: true` on a rung that answers them")


def _check_latency(
    document: Document, place: Place, rungs: Sequence[Rung], tier: Tier | None, context: Context
) -> None:
    if tier is None or tier.p99_ms is None:
        return
    worst = worst_case_ms(rungs)
    if worst > tier.p99_ms:
        context.add(document, place, "warning", "ladder-latency",
                    f"at worst the first byte comes after {format_duration(worst)}; tier "
                    f"{quoted(tier.name)} promises {format_duration(tier.p99_ms)}",
                    "shorten the `timeout` of the rungs before the last, or end at a faster one")
