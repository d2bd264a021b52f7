"""The answers of several engine processes as one: with data parallelism each has its own pool.

What counts is added up, what is wrong is listed, and each pulse stays readable under `engines`, so
that one engine that stands still is not hidden by another that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.model import Json

_ADDED = ("running", "waiting", "steps", "tokens", "preempted", "seats", "longest_sequences")
_LISTED = ("own", "lost", "findings", "dropped", "missing")


def together(op: str, answers: Sequence[Json]) -> Json:
    """Return one answer for all engines; `answers` in their order, at least one."""
    if len(answers) == 1:
        return answers[0]
    if op in ("pulse", "state"):
        return _pulse(answers)
    if op == "impulse":
        return _impulse(answers)
    if op == "capabilities":
        return {**answers[0], **_lists(answers), "knobs": _knobs([a["knobs"] for a in answers])}
    if op in ("put", "actual"):
        return _in_force(answers)
    if op == "allocate":
        return {f"engine{number}-{place}": seconds for number, found in enumerate(answers)
                for place, seconds in found.items()}
    return {**answers[0], **_lists(answers)}


def _pulse(answers: Sequence[Json]) -> Json:
    first = answers[0]
    return {
        **first, **_lists(answers), "engines": list(answers),
        **{key: sum(a[key] for a in answers) for key in _ADDED},
        "paused": next((a["paused"] for a in answers if a["paused"] != "UNPAUSED"), "UNPAUSED"),
        "holding": all(a["holding"] for a in answers),
        "watching": all(a["watching"] for a in answers),
        "blocks": _sums([a["blocks"] for a in answers]),
        "fragmentation": {
            label: max(a["fragmentation"][label] for a in answers)
            for label in first["fragmentation"]
        },
        "residence": {
            label: _residence([a["residence"][label] for a in answers])
            for label in first["residence"]
        },
    }


def _impulse(answers: Sequence[Json]) -> Json:
    """Add up what each engine did; it is done when all have done it."""
    counts = {key: sum(a[key] for a in answers) for key, value in answers[0].items()
              if isinstance(value, int) and not isinstance(value, bool)}
    return {**answers[0], **counts, "done": all(a.get("done") for a in answers)}


def refusal(answers: Sequence[Json]) -> Json | None:
    """Return the first refusal, which says so when it is not that of all engines."""
    refused = [(number, a) for number, a in enumerate(answers) if a.get("refused")]
    if not refused:
        return None
    number, first = refused[0]
    if len(refused) == len(answers):
        return first
    whose = f"in engine process {number} of {len(answers)}"
    return {**first, "message": f"{first['message']} ({whose})"}


def _knobs(engines: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Return the knobs that every engine has; of each, what fits into every engine's memory."""
    found: dict[str, Json] = {}
    for name, knob in engines[0].items():
        if all(name in engine for engine in engines):
            fits = [e[name]["fits"] for e in engines if e[name]["fits"] is not None]
            found[name] = {**knob, "fits": min(fits, default=None)}
    return found


def _in_force(answers: Sequence[Json]) -> Json:
    """Return what rules in every engine alike; what does not is told under `dropped`."""
    effective: dict[str, dict[str, Json]] = {}
    dropped: list[Json] = list(_lists(answers)["dropped"])
    for knob, scope in sorted({(k, s) for a in answers for k in a["effective"]
                               for s in a["effective"][k]}):
        held = [a["effective"].get(knob, {}).get(scope) for a in answers]
        values = [None if h is None else (h["value"], h["policy"]) for h in held]
        if all(value == values[0] for value in values):
            least = min(h["remaining_ms"] for h in held)
            effective.setdefault(knob, {})[scope] = {**held[0], "remaining_ms": least}
        elif not any(entry["knob"] == knob for entry in dropped):
            dropped.append({"knob": knob, "reason": _differing(values)})
    return {"effective": effective, "dropped": dropped}


def _differing(values: Sequence[tuple[Json, str] | None]) -> str:
    held = ", ".join("nothing" if v is None else f"`{v[0]}`" for v in values)
    return f"the engine processes differ: {held}"


def _lists(answers: Sequence[Json]) -> dict[str, Json]:
    """Return every entry that some engine gives, once."""
    found: dict[str, Json] = {}
    for key in _LISTED:
        if any(key in a for a in answers):
            entries: list[Json] = []
            for answer in answers:
                entries += [e for e in answer.get(key, ()) if e not in entries]
            found[key] = entries
    return found


def _sums(maps: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {key: sum(m[key] for m in maps) for key in maps[0]}


def _residence(found: Sequence[Json]) -> Json:
    counts = zip(*(f["counts"] for f in found), strict=True)
    return {"counts": [sum(c) for c in counts], "sum_s": sum(f["sum_s"] for f in found)}
