"""`resilience get`: what a running engine holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from resilience.cli import standing, timeline
from resilience.cli.connect import connect, decision_id, duration_ms, engine_options
from resilience.cli.output import emit_json, output_option, table
from resilience.model import Json, format_duration
from resilience.policy.words import counted

THINGS = (
    "status", "policies", "claims", "decisions", "executions", "udfs", "capabilities", "bundle",
    "canary", "gate", "ladder",
)


@click.command("get")
@click.argument("thing", type=click.Choice(THINGS))
@click.argument("name", required=False)
@click.option("--since", metavar="DURATION", help="Decisions not older than this, as in `1h`.")
@click.option("--policy", metavar="NAME", help="Decisions of one policy.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
              help="Most decisions or executions, the newest ones.")
@output_option
@engine_options
def command(
    thing: str, name: str | None, since: str | None, policy: str | None, limit: int, output: str,
    socket: Path | None, state: Path | None,
) -> None:
    """Show what a running engine holds.

    With NAME only the policy, decision or function of that name.
    """
    with connect(socket, state) as engine:
        path, query = thing, dict[str, str | int | None]()
        if thing == "decisions" and name is not None:
            path = f"decisions/{decision_id(name)}"
        elif thing in ("decisions", "executions"):
            query["limit"] = limit
        if path == "decisions":
            query |= {"policy": policy, "since_ms": _since(engine.get("status"), since)}
        body = engine.get(path, **query)
    body = _only(thing, name, body)
    if output == "json":
        emit_json(body)
    else:
        click.echo(_TEXT[thing](body))


def _since(status: Json, since: str | None) -> int | None:
    """Count back from the engine's own clock."""
    if since is None:
        return None
    return max(0, int(status["now_ms"]) - duration_ms(since, "`--since`"))


def _only(thing: str, name: str | None, body: Json) -> Json:
    """Keep the named policy, the claims of a policy, or the named function."""
    from resilience.errors import UsageError

    if thing == "decisions" and "decision" in body:
        return {"version": body["version"], "decisions": [body["decision"]]}
    key = {"policies": "name", "claims": "policy", "udfs": "function"}.get(thing)
    if name is None:
        return body
    if key is None:
        raise UsageError(f"`get {thing}` takes no name")
    found = [item for item in body[thing] if item[key] == name]
    if not found and thing != "claims":
        raise UsageError(f"no `{name}` in {thing}; `resilience get {thing}` lists them")
    return {**body, thing: found}


def _status(body: Json) -> str:
    return "\n".join([*_running(body), *_operated(body), *_troubled(body)])


def _running(body: Json) -> Iterator[str]:
    """Say what runs: engine, rules, core, claims, scrape, ticks."""
    core, bus, scrape = body["core"], body["bus"], body["scrape"]
    health = "ready" if body["ready"] else f"not ready: {body['why']}"
    commit = f", commit {body['git_commit']}" if body["git_commit"] else ""
    error = f", now: {scrape['error']}" if scrape["error"] else ""
    yield (f"engine    {body['engine_version']}, pid {body['pid']}, up "
           f"{timeline.span(body['now_ms'] - body['started_ms'])}, {health}")
    yield f"rules     {counted(body['policies'], 'policy')}, {body['revision']}{commit}"
    yield f"core      {core['name'] or 'none'} {core['version'] or ''} at {core['url'] or '-'}"
    yield (f"claims    {body['claims']} live, {'in sync' if bus['in_sync'] else 'not in sync'}, "
           f"epoch {bus['epoch']}, generation {bus['generation']}, lease left "
           f"{timeline.span(bus['lease_remaining_ms'])}")
    yield (f"scrape    {timeline.stamp(scrape['last_ms'])}, {scrape['series']} series, "
           f"{scrape['failures']} failed{error}")
    for tick in body["ticks"]:
        yield (f"tick      each {timeline.span(tick['interval_ms'])}, last "
               f"{timeline.stamp(tick['last_ms'])}, {tick['missed']} missed")


def _operated(body: Json) -> Iterator[str]:
    """Say what operators have set going or stopped."""
    if body["canary"]:
        yield (f"canary    {body['canary']['revision']} in shadow since "
               f"{timeline.stamp(body['canary']['since_ms'])}")
    for name, until_ms in body["paused"].items():
        yield (f"paused    {'all policies' if name == '*' else name} until "
               f"{timeline.stamp(until_ms) if until_ms else 'resumed'}")
    released = body["bus"]["released"]
    if released:
        who = f"by an operator {timeline.stamp(released['t_ms'])} {released['reason']}".rstrip()
        yield f"released  {who}: the core takes no claims until `resilience resume --attach URL`"


def _troubled(body: Json) -> Iterator[str]:
    """Say what was refused, could not be told, was dropped or fails."""
    for refused in body["bus"]["refused"]:
        yield f"refused   {refused['policy']}: {refused['why']}"
    for told in body["notifications"]:
        if told["sent"] or told["failed"] or told["queued"]:
            error = f", now: {told['error']}" if told["error"] else ""
            yield (f"notify    {told['receiver']}: {told['sent']} sent, {told['failed']} failed, "
                   f"{told['queued']} waiting{error}")
    yield from _dropped(body)
    for part, text in body["errors"].items():
        yield f"error     {part}: {text}"
    if body["bus"]["error"]:
        yield f"bus       {body['bus']['error']}"


def _dropped(body: Json) -> list[str]:
    counts = {
        "impulses": body["bus"]["impulses_dropped"], "lines of records": body["lines_dropped"],
        "inputs of decisions": body["inputs_dropped"],
        "rows of the history": body["history_dropped"],
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return [f"dropped   {told}"] if told else []


def _policies(body: Json) -> str:
    rows: list[list[str]] = []
    for policy in body["policies"]:
        shown = policy["instances"] or [None]
        for instance in shown:
            rows.append(_policy_row(policy, instance))
    lines = [table(["POLICY", "MODE", "STATE", "SINCE", "VALUE", "REASON", "LABELS"], rows)]
    lines += [text for policy in body["policies"] for text in standing.policy_lines(policy)]
    return "\n".join([*lines, *standing.belt_lines(body["belts"])])


def _policy_row(policy: Json, instance: Json) -> list[str]:
    mode = f"{policy['mode']}, paused" if policy["paused"] else policy["mode"]
    name = f"{policy['name']} (SLO {policy['slo']['name']})" if policy["slo"] else policy["name"]
    if instance is None:
        reason = policy["error"] or policy["reason"] or ""
        return [name, mode, policy["state"], "-", "-", reason, ""]
    return [
        name, mode, instance["state"], timeline.stamp(instance["since_ms"]),
        timeline.value(instance["value"]), instance["reason"], timeline.labels(instance["labels"]),
    ]


def _claims(body: Json) -> str:
    rows = [
        [c["policy"], timeline.claim(c), timeline.shown(c["effective"]),
         _standing(c),
         timeline.span(c["remaining_ms"]), "keeps" if c["keep"] else "ends"]
        for c in body["claims"]
    ]
    return table(["POLICY", "CLAIM", "IN FORCE", "", "LEASE LEFT", "IF THE ENGINE DIES"], rows)


def _standing(claim: Json) -> str:
    """Say whether the core follows the claim, and why not."""
    if claim["rules"]:
        return "rules"
    return claim["refused"] or ("not in force" if claim["effective"] is None else "outweighed")


def _decisions(body: Json) -> str:
    lines = [f"{d['id']}  {timeline.decision(d)}" for d in body["decisions"]]
    return "\n".join(lines) or "no decisions"


def _executions(body: Json) -> str:
    rows = [
        [timeline.clock(e["t_ms"]), e["decision_id"] or "-", f"{e['epoch']}.{e['generation']}",
         str(e["attempt"]), f"{e['duration_ms']:.0f}ms", e["error"] or "ok"]
        for e in body["executions"]
    ]
    return table(["TIME", "DECISION", "EPOCH", "TRY", "TOOK", "RESULT"], rows)


def _udfs(body: Json) -> str:
    rows = [
        [u["function"], u["file"], ", ".join(u["called_by"]), _quarantine(u), u["doc"]]
        for u in body["udfs"]
    ]
    return table(["FUNCTION", "FILE", "CALLED BY", "QUARANTINE", ""], rows)


def _quarantine(udf: Json) -> str:
    return f"not run: {udf['quarantined']}" if udf["quarantined"] else "no"


def _capabilities(body: Json) -> str:
    rows = [
        [name, k["grade"], timeline.shown(k["baseline"]), timeline.value(k["capacity"])]
        for name, k in sorted(body["knobs"].items())
    ]
    lines = [
        f"{body['core']} {body['core_version']}: models {', '.join(body['models']) or 'none'}; "
        f"impulses {', '.join(body['impulses']) or 'none'}",
        table(["KNOB", "GRADE", "BASELINE", "CAPACITY"], rows),
    ]
    lines += [f"dropped: {timeline.shown(d)}" for d in body["dropped"]]
    return "\n".join(lines)


def _gate(body: Json) -> str:
    gate, now_ms = body["gate"], body["now_ms"]
    limit = gate["adaptive_limit"]
    lines = [f"{gate['in_flight']} in flight, {gate['waiting']} waiting"
             + (f", adaptive limit {timeline.value(limit)}" if limit is not None else "")]
    lines += [f"breaker {name} is {_breaker(state)}" for name, state in gate["breakers"].items()]
    rows = [
        [timeline.stamp(now_ms - int(e["age_ms"])), e["name"], _breaker(e["from"]),
         _breaker(e["to"])]
        for e in gate["events"]
    ]
    if rows:
        lines.append(table(["TIME", "BREAKER", "FROM", "TO"], rows))
    return "\n".join(lines)


def _breaker(state: str) -> str:
    return state.replace("_", " ")


def ladder_text(body: Json) -> str:
    """Return the rungs as a table, best first."""
    rows = [
        [str(place), r["name"], r["kind"], r["model"] or r["url"] or "-",
         timeline.value(r["throughput"]), _cost(r["p99_ms"]), _percent(r["quality"]),
         str(r["context"] or "-"), "yes" if r["tools"] else "no",
         _available(r), ", ".join(r["claimed_by"])]
        for place, r in enumerate(body["ladder"], 1)
    ]
    return table(["", "RUNG", "KIND", "MODEL", "TOKENS/S", "P99", "QUALITY", "CONTEXT", "TOOLS",
                  "AVAILABLE", "CLAIMED BY"], rows) if rows else "no ladder"


def _available(rung: Json) -> str:
    """Return yes, no or ?; of a second engine that is not ready its state and why."""
    running = rung["running"]
    if running is not None and not rung["available"]:
        return ": ".join(part for part in (running["state"], running["reason"]) if part)
    return {True: "yes", False: "no", None: "?"}[rung["available"]]


def _cost(ms: int | None) -> str:
    """Return a measured time whole: cut to seconds, it would tell rungs apart less."""
    return "-" if ms is None else format_duration(ms)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _bundle(body: Json) -> str:
    head = body["revision"] + (f", commit {body['git_commit']}" if body["git_commit"] else "")
    return "\n".join([head, *(path for path, _ in [*body["documents"], *body["udfs"]])])


def _canary(body: Json) -> str:
    canary = body["canary"]
    lines = [
        f"candidate {canary['revision']} in shadow since {timeline.stamp(canary['since_ms'])}, "
        + counted(canary["ticks"], "tick") + (
            f", {canary['ticks_dropped']} dropped" if canary["ticks_dropped"] else ""),
    ]
    lines += [
        f"{mark} {name}" for word, mark in (("added", "+"), ("changed", "~"), ("removed", "-"))
        for name in canary[word]
    ]
    rows = [
        [name, *(str(n[word]) for word in ("same", "different", "only_active", "only_candidate"))]
        for name, n in canary["policies"].items()
    ]
    if rows:
        lines.append(table(
            ["DECISIONS", "SAME", "DIFFERENT", "ONLY ACTIVE", "ONLY CANDIDATE"], rows))
    for item in canary["differences"]:
        lines += [
            f"{'active:   ' if side == 'active' else 'candidate:'} {timeline.decision(item[side])}"
            for side in ("active", "candidate") if item[side] is not None
        ]
    lines.append(f"{counted(canary['same'], 'decision')} alike, {canary['differ']} differ")
    return "\n".join(lines)


_TEXT: dict[str, Callable[[Json], str]] = {
    "canary": _canary, "gate": _gate, "ladder": ladder_text,
    "status": _status, "policies": _policies, "claims": _claims, "decisions": _decisions,
    "executions": _executions, "udfs": _udfs, "capabilities": _capabilities, "bundle": _bundle,
}
