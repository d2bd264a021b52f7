"""`resilience explain`: one decision in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, decision_id, engine_options
from resilience.cli.output import emit_json, output_option
from resilience.cli.standing import standing
from resilience.model import Json, format_duration
from resilience.samples import plain

SERIES_SHOWN = 10
REASONS = {
    "breach": "the trigger was true",
    "clear": "the trigger was false",
    "pending_for": "the trigger was true, and `for` had to pass first",
    "keep_firing": "the trigger was false, and `keep_firing_for` had to pass first",
    "idle": "there was no traffic to judge by (the value was NaN with fresh samples)",
    "blind_no_series": "no series answered the query, so nothing was known",
    "blind_stale": "the newest sample was too old, so nothing was known",
    "blind_source_error": "the metric source failed, so nothing was known",
    "blind_partial": "only a part of the series answered, so nothing was known",
    "udf_error": "a UDF failed",
    "relapse": "the trigger was true again during the recovery",
    "operator": "an operator paused or resumed the policy",
    "revision": "the policy was changed or removed by a new revision",
    "warm_up": "data had just come back, and a few good samples had to come first (`warm_up`)",
    "probe": "a probe eased the claims for a moment, to see whether they were still needed",
    "guard": "a guard was true: what must not be was so",
    "verify_failed": "`verify` failed: what the actions were to achieve had not come",
    "quarantine": "it was in quarantine after a guard, or after a `verify` that failed",
    "superseded": "another policy of its group holds, so its claims were withheld",
    "safety": "a safety belt clipped or left out what the policy wants",
}


@click.command("explain")
@click.argument("name", metavar="ID")
@output_option
@engine_options
def command(name: str, output: str, socket: Path | None, state: Path | None) -> None:
    """Tell why a decision was taken and what came of it.

    ID is a decision's id, or the beginning of it, from `resilience get decisions`.
    """
    path = f"decisions/{decision_id(name)}"
    with connect(socket, state) as engine:
        body = engine.get(path)
    if output == "json":
        emit_json(body)
    else:
        click.echo("\n".join(told(
            body["decision"], body["executions"], body["slo"], body.get("now"),
            body.get("breakers", ()))))


def told(
    decision: Json, executions: list[Json], slo: Json = None, now: Json = None,
    breakers: Sequence[Json] = (),
) -> list[str]:
    """Return the story of one decision, line by line. `slo`: what its policy was made of; `now`:
    how policy and instance stand now, as the control API says it; `breakers`: what the breakers did
    that it armed."""
    where = f" for {timeline.labels(decision['labels'])}" if decision["labels"] else ""
    lines = [
        f"At {timeline.stamp(decision['t_ms'])} policy `{decision['policy']}`{where} "
        f"{_moved(decision['from'], decision['to'])}.",
        f"Why: {REASONS.get(decision['reason'], decision['reason'])}"
        f"{_valued(decision['value'])}.",
    ]
    if stage := _stage(decision["actions"]):
        lines.append(f"It has escalated to stage {stage}.")
    if slo is not None:
        lines.append(_objective(slo))
    if decision["note"]:
        lines.append(f"Note: {plain(decision['note'])}.")
    if decision["held_from"]:
        lines.append(f"It holds what it did while {decision['held_from']}, until data returns.")
    lines += _inputs(decision["inputs"])
    lines += [f"UDF `{u['function']}` returned: {u['outcome']}." for u in decision["udf"]]
    lines += _clocks(decision)
    lines += _effects(decision)
    lines += [_execution(e) for e in executions]
    lines += [f"Breaker at {timeline.clock(e['t_ms'])}: {timeline.breaker(e)}." for e in breakers]
    lines += [] if now is None else standing(now, decision)
    lines.append(f"Rules {decision['revision']}, decision {decision['id']}.")
    return lines


def _moved(before: str, after: str) -> str:
    return f"stayed {after}" if before == after else f"went from {before} to {after}"


def _stage(actions: Sequence[str]) -> int:
    """Return how many stages of its escalation are in force, by the keys of the actions."""
    from resilience.policy.action_build import stage_of

    return max((stage + 1 for key in actions if (stage := stage_of(key)) is not None), default=0)


def _objective(slo: Json) -> str:
    return (
        f"It guards SLO `{slo['name']}`, {slo['objective']} over "
        f"{format_duration(slo['window_ms'])}: alert `{slo['severity']}`, the error budget burns "
        f"{slo['burn']:g} times too fast over {format_duration(slo['long_ms'])} and over "
        f"{format_duration(slo['short_ms'])}."
    )


def _valued(value: Json) -> str:
    return "" if value is None else f", at value {timeline.value(value)}"


def _inputs(inputs: list[Json]) -> list[str]:
    """Return each query once with what it gave; several series have a line each."""
    told: dict[str, list[str]] = {}
    for item in inputs:
        age = f"newest sample {timeline.clock(item['sample_ms'])}" if item["sample_ms"] else \
            "no sample"
        series = _series(item["value"])
        head = f"  {item['query']}"
        if len(series) == 1:
            told[head] = [f"{head} = {series[0]}, {age}"]
        else:
            told[head] = [f"{head}: {len(series) or 'no'} series, {age}",
                          *(f"    {one}" for one in series[:SERIES_SHOWN])]
    return [line for lines in told.values() for line in lines]


def _series(value: Json) -> list[str]:
    """Return the texts of an input's value: a number, or [labels, value] of each series."""
    if value is None:
        return []
    if not isinstance(value, list):
        return [timeline.shown(value)]
    return [
        f"{timeline.shown(one[1])} {timeline.labels(one[0]) if one[0] else ''}".rstrip()
        if isinstance(one, list) and len(one) == 2 and isinstance(one[0], dict)
        else timeline.shown(one)
        for one in value
    ]


def _clocks(decision: Json) -> list[str]:
    """Say how long the conditions had lasted at the time of the decision."""
    words = {
        "true_since_ms": "true for", "false_since_ms": "false for",
        "resolve_since_ms": "`resolve` true for", "firing_since_ms": "firing for",
    }
    return [
        f"  {words[name]} {format_duration(max(0, decision['t_ms'] - since))}"
        for name, since in decision["clocks"].items()
        if name in words and since is not None
    ]


def _effects(decision: Json) -> list[str]:
    changes = timeline.changes(decision)
    if not changes:
        return ["It changed nothing in the core."]
    if decision["mode"] != "enforce":
        return [f"In {decision['mode']} mode nothing is enforced; it would have been:",
                *(f"  {c}" for c in changes)]
    return ["Effect:", *(f"  {c}" for c in changes)]


def _execution(execution: Json) -> str:
    result = execution["error"] or "the core's read-back was equal"
    return (
        f"Bus: epoch {execution['epoch']}, generation {execution['generation']}, try "
        f"{execution['attempt']}, {execution['duration_ms']:.0f} ms: {result}."
    )
