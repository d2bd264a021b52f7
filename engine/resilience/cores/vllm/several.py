"""The answers of several engine processes as one: with data parallelism each has its own pool.

What counts is added up, what is wrong is listed, and each pulse stays readable under `engines`, so
that one engine that stands still is not hidden by another that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.model import Json

_ADDED = ("running", "waiting", "steps", "tokens", "preempted", "seats", "longest_sequences")
_LISTED = ("own", "lost", "findings", "dropped")


def together(op: str, answers: Sequence[Json]) -> Json:
    """Return one answer for all engines; `answers` in their order, at least one."""
    if len(answers) == 1:
        return answers[0]
    if op == "pulse":
        return _pulse(answers)
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
