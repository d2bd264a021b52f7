"""What a candidate decided beside what the active rules decided: pure, over recorded decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from resilience.model import Json, canonical_json

SHOWN_MAX = 50
# A revision shows in these, though it decides the same.
_OF_A_REVISION = ("id", "revision", "spec_hash", "mode", "inputs")

_Key: TypeAlias = tuple[int, str, str, str]


def compare(active: Iterable[Json], candidate: Iterable[Json]) -> Json:
    """Return counts by policy and the newest differences of two streams of decisions.

    Decisions meet by time, policy, instance and the state they lead to. `only_active` and
    `only_candidate` have no counterpart; `different` lead to the same state with other claims,
    actions or reasons.
    """
    ours, theirs = _by_key(active), _by_key(candidate)
    counts: dict[str, Counter[str]] = {}
    shown: list[Json] = []
    for key in sorted(ours.keys() | theirs.keys()):
        mine, its = ours.get(key), theirs.get(key)
        verdict = _verdict(mine, its)
        counts.setdefault(key[1], Counter())[verdict] += 1
        if verdict != "same":
            shown.append({"verdict": verdict, "active": mine, "candidate": its})
    return {
        "policies": {
            name: {word: found[word] for word in VERDICTS} for name, found in sorted(counts.items())
        },
        "differ": sum(found.total() - found["same"] for found in counts.values()),
        "same": sum(found["same"] for found in counts.values()),
        "differences": shown[-SHOWN_MAX:],
    }


VERDICTS = ("same", "different", "only_active", "only_candidate")


def _by_key(decisions: Iterable[Json]) -> dict[_Key, Json]:
    return {(d["t_ms"], d["policy"], d["instance"], d["to"]): d for d in decisions}


def _verdict(mine: Json | None, its: Json | None) -> str:
    if mine is None:
        return "only_candidate"
    if its is None:
        return "only_active"
    return "same" if _told(mine) == _told(its) else "different"


def _told(decision: Mapping[str, Json]) -> str:
    kept = {k: v for k, v in decision.items() if k not in _OF_A_REVISION}
    for name in ("claims_before", "claims_after"):
        kept[name] = [{k: v for k, v in c.items() if k != "revision"} for c in kept[name]]
    return canonical_json(kept)
