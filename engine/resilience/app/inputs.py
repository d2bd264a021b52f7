"""What a tick's decisions were made from, kept so that any of them can be made again offline.

One journal row for each tick (or swap) that decided something. It holds what `decide()` was given,
cut down to the policies that decided and those at work: a quiet policy changes no other's
decision. Compressed and bounded: a tick that is too large is not kept, and counted.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import resilience
from resilience.app.frozen_json import from_json, pack
from resilience.model import Decision, JournalEntry, Json, Observations, Policy, canonical_json
from resilience.policy.state import EngineState

KIND = "inputs"
KEPT = 1_000                  # rows; KEPT * PACKED_MAX is the room that they may take
PACKED_MAX = 48 * 1024
DECIDING = ("policy", "promql", "knobs.py", "model.py")


@dataclass(frozen=True, slots=True)
class TickInputs:
    """The arguments of one `decide()`, or with `before` of one `revise()`.

    `policies` are the names of those that were due and are needed, `left_away` counts the instances
    of the others, which take room; `code` says which code decided.
    """

    t_ms: int
    revision: str
    policies: tuple[str, ...]
    state: EngineState
    observations: Observations
    engine_version: str
    code: str
    before: str | None = None

    def entry(self, decisions: Iterable[Decision]) -> JournalEntry | None:
        """Return the row to journal; None when it is too large to be kept."""
        body = {
            "t_ms": self.t_ms, "revision": self.revision, "policies": list(self.policies),
            "state": self.state.to_json(), "left_away": self.state.left_away,
            "observations": pack(Observations, self.observations),
            "engine_version": self.engine_version, "code": self.code, "before": self.before,
        }
        packed = base64.b85encode(zlib.compress(canonical_json(body).encode())).decode()
        if len(packed) > PACKED_MAX:
            return None
        ids = [d.id for d in decisions]
        return JournalEntry(KIND, key_of(self.t_ms, ids[0]), {
            "t_ms": self.t_ms, "ids": ids, "packed": packed,
        })

    @classmethod
    def of_row(cls, row: Mapping[str, Json]) -> TickInputs:
        """Read a row back; raises ValueError when it is damaged or another version's."""
        try:
            body = json.loads(zlib.decompress(base64.b85decode(row["packed"])))
            return cls(
                body["t_ms"], body["revision"], tuple(body["policies"]),
                replace(EngineState.from_json(body["state"]), left_away=body.get("left_away", 0)),
                from_json(Observations, body["observations"]),
                body["engine_version"], body["code"], body["before"],
            )
        except (KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"the kept inputs cannot be read: {error}") from error


def key_of(t_ms: int, first: str) -> str:
    return f"{t_ms:015}/{first}"


def kept_inputs(
    policies: Sequence[Policy], state: EngineState, observations: Observations, t_ms: int,
    revision: str, decisions: Sequence[Decision], *, before: str | None = None,
) -> TickInputs:
    """Cut the arguments of one call down to what these decisions may depend on."""
    names = {d.policy for d in decisions} | _at_work(state)
    away = sum(len(group) for policy, group in state.instances.items() if policy not in names)
    return TickInputs(
        t_ms, revision, tuple(p.name for p in policies if p.name in names),
        replace(state, instances={p: g for p, g in state.instances.items() if p in names},
                left_away=away),
        _only(observations, names, {p.name for p in policies}),
        resilience.__version__, code_digest(), before,
    )


def _at_work(state: EngineState) -> set[str]:
    return {
        policy for policy, group in state.instances.items()
        if any(instance.holds for instance in group.values())
    }


def _only(observations: Observations, names: set[str], due: Collection[str]) -> Observations:
    """Leave out what was observed for the other policies, whatever field it stands in."""
    def fits(key: Any) -> bool:
        policy = key[0] if isinstance(key, tuple) else key
        return policy in names or policy not in due

    cut: dict[str, Any] = {}
    for item in fields(observations):
        value = getattr(observations, item.name)
        if isinstance(value, Mapping):
            cut[item.name] = {k: v for k, v in value.items() if fits(k)}
    return replace(observations, **cut)


@cache
def code_digest() -> str:
    """Return 12 hex digits over the source of everything that decides."""
    root = Path(resilience.__file__).parent
    found = sha256()
    for name in DECIDING:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]
