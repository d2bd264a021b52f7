"""How a policy stands now, in plain words: checks, quarantine, group, limits, belts and rivals."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.cli import timeline
from resilience.model import Json, format_duration
from resilience.policy.words import counted


def standing(now: Json, decision: Json) -> list[str]:
    """Return what `explain` adds to a decision; `now` is the control API's `now`."""
    lines = [f"Now it is {now['state']}{_since_then(now, decision)}."]
    lines += [f"  It waits: {text}." for text in now["waits"]]
    lines += [_check(check) for check in now["checks"]]
    lines += _quarantine(now)
    lines += _probe(now["probe"])
    if now["group"] is not None:
        lines.append(f"  {_group(now['group']['name'], now['group']['holder'])}.")
    lines += _limits(now["limits"])
    lines += _belts(now["belts"])
    lines += [line for rival in now["rivals"] for line in _rival(rival)]
    return lines


def _since_then(now: Json, decision: Json) -> str:
    changed = "; the policy has changed since" if now["changed"] else ""
    began_ms = decision["clocks"].get("firing_since_ms")
    if began_ms is None:
        return changed
    return (", in the same firing" if now["same_firing"] else "; that firing is over") + changed


OUTCOMES = {
    "met": "was met {at}",
    "failed": "failed",
    "holding": "holds since {at}, and has to for `for`",
    "unknown": "is unknown since {at}: its clock stands still",
    "waiting": "is not met yet, and has until {at}",
}


def _check(check: Json) -> str:
    whose = f"Action {check['action']}: " if check["action"] else ""
    if check["kind"] == "guard":
        after = format_duration(check["quarantine_ms"])
        return f"  {whose}guard `{check['expr']}`: true undoes at once, quarantine {after}."
    told = OUTCOMES[check["outcome"]].format(at=timeline.stamp(check["at_ms"]))
    then = {"escalate": "takes the next stage", "rollback": "rolls back"}[check["on_failure"]]
    end = "" if check["outcome"] in ("met", "failed") else f"; a failure {then}"
    return f"  {whose}verify `{check['expr']}` {told}{end}."


def _quarantine(now: Json) -> Iterator[str]:
    if now["quarantine_until_ms"] is not None:
        until = timeline.stamp(now["quarantine_until_ms"])
        yield f"  It is in quarantine and cannot fire until {until}."
    for shut in now["quarantine"]:
        yield f"  {shut['lever']} is in quarantine until {timeline.stamp(shut['until_ms'])}."


def _probe(probe: Json) -> Iterator[str]:
    if probe is None:
        return
    under_way = f", one is under way since {timeline.stamp(probe['since_ms'])}" \
        if probe["since_ms"] is not None else ""
    yield (f"  Probes: {probe['done']} of {probe['max']}, each eases the claims by "
           f"{probe['share']:.0%}{under_way}.")


def _group(name: str, holder: str | None) -> str:
    return f"Group `{name}` is held by " + (f"`{holder}`" if holder else "nobody")


def _limits(limits: Json) -> Iterator[str]:
    said = [
        f"{counted(r['max'], 'firing')} per {format_duration(r['per_ms'])}" for r in limits["rate"]
    ]
    if limits["cooldown_ms"]:
        said.insert(0, f"cooldown {format_duration(limits['cooldown_ms'])}")
    if limits["min_samples"] > 1:
        said.append(f"{counted(limits['min_samples'], 'sample')} must show it")
    if limits["max_active"] is not None:
        said.append(f"{limits['max_active']} instances at a time")
    if said:
        yield f"  Limits: {', '.join(said)}."


def _belts(belts: Json) -> Iterator[str]:
    for name, least in belts["floors"].items():
        yield f"  Safety belt: {name} is never claimed below {timeline.value(least)}."
    if belts["disruptive"] is not None and belts["disruptive_per_hour"] is not None:
        yield f"  Safety belt: {_disruptive(belts)}."
    for action in belts["refused"]:
        yield f"  Action {action} was refused by a safety belt and waits."


def _disruptive(belts: Json) -> str:
    return (f"{belts['disruptive']} of {belts['disruptive_per_hour']} disruptive actions began "
            "within the hour")


def _rival(rival: Json) -> Iterator[str]:
    claims = ", ".join(
        f"`{c['policy']}`{' ' + timeline.labels(c['labels']) if c['labels'] else ''} "
        f"{timeline.shown(c['value'])} (priority {c['priority']})"
        for c in rival["claims"]
    ) or "nobody"
    won = rival["winner"]
    wins = f"; {rival['rule']}: `{won['policy']}` with {timeline.shown(won['value'])}" \
        if won is not None else ""
    yield f"  {rival['lever']} is claimed by {claims}{wins}."
    for other in rival["may_claim"]:
        yield (f"    `{other['policy']}` would claim {timeline.shown(other['value'])} (priority "
               f"{other['priority']}) when it fires; {rival['rule']}.")


# --- `resilience get policies` ---


def policy_lines(policy: Json) -> Iterator[str]:
    """Yield what stands beneath the table about one policy."""
    name = policy["name"]
    for instance in policy["instances"]:
        who = f"{name} {timeline.labels(instance['labels'])}" if instance["labels"] else name
        for text in instance["waits"]:
            yield f"waits       {who}: {text}"
        if instance["quarantine_until_ms"] is not None and not instance["waits"]:
            yield f"quarantine  {who}: until {timeline.stamp(instance['quarantine_until_ms'])}"
    for shut in policy["quarantine"]:
        yield f"quarantine  {name}: {shut['lever']} until {timeline.stamp(shut['until_ms'])}"
    if policy["group_holder"] == name:
        yield f"group       {_group(policy['group'], name)}"
    if policy["series_left_out"]:
        yield f"limit       {name}: {policy['series_left_out']} series have no instance"


def belt_lines(belts: Json) -> Iterator[str]:
    """Yield the safety belts in force."""
    if not belts["enabled"]:
        yield "belts       off"
        return
    for name, least in belts["floors"].items():
        yield f"belt        {name} never below {timeline.value(least)}"
    if belts["disruptive"] and belts["disruptive_per_hour"] is not None:
        yield f"belt        {_disruptive(belts)}"
    if belts["claims_cut"]:
        yield "belt        more claims are wanted than a core takes: the lowest priorities wait"
