"""What each impulse takes, and the filling in of what was left out.

An impulse is not undone by a lease, so those that stop work carry their own end (`for_ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilience.model import Json

HOLD_MAX_MS = 600_000
CAPTURE_MAX_MS = 60_000


class BadArgumentsError(Exception):
    """Arguments that an impulse does not take; `str()` says which and what it takes."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a whole number in a range, one of some words, true or false, or a text."""

    default: Json
    minimum: int = 0
    maximum: int = 1_000_000_000
    choices: tuple[str, ...] = ()

    def why_not(self, value: Json) -> str | None:
        if self.choices:
            ok = isinstance(value, str) and value in self.choices
            return None if ok else f"takes one of {', '.join(self.choices)}"
        if isinstance(self.default, bool):
            return None if isinstance(value, bool) else "takes true or false"
        if isinstance(self.default, str):
            ok = isinstance(value, str) and len(value) <= 200
            return None if ok else "takes a text of at most 200 characters"
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and self.minimum <= value <= self.maximum:
            return None
        return f"takes a whole number from {self.minimum} to {self.maximum}"


_FOR = Argument(30_000, 1_000, HOLD_MAX_MS)
ARGUMENTS: Mapping[str, Mapping[str, Argument]] = {
    "reset_prefix_cache": {"preempt": Argument(False)},
    "pause": {"mode": Argument("keep", choices=("keep", "wait", "abort")), "for_ms": _FOR},
    "resume": {},
    "drain": {
        "for_ms": _FOR, "abort_after_ms": Argument(0, 0, HOLD_MAX_MS),
    },
    "abort_requests": {
        "state": Argument("any", choices=("any", "running", "waiting")),
        "older_than_ms": Argument(0), "priority_at_least": Argument(-1_000_000, -1_000_000),
        "tokens_at_least": Argument(0), "model": Argument(""), "limit": Argument(100, 1, 10_000),
    },
    "capture_incident": {"duration_ms": Argument(CAPTURE_MAX_MS, 1_000, CAPTURE_MAX_MS)},
}
IMPULSES = tuple(ARGUMENTS)
OF_THE_ENGINE = ("reset_prefix_cache", "abort_requests")


def complete(name: str, args: Mapping[str, Json] | None) -> dict[str, Json]:
    """Return the arguments with their defaults; raises BadArgumentsError."""
    taken = ARGUMENTS[name]
    for key, value in (args or {}).items():
        if key not in taken:
            allowed = ", ".join(f"`{k}`" for k in taken) or "no arguments"
            raise BadArgumentsError(f"impulse `{name}` has no `{key}`; it takes {allowed}")
        why = taken[key].why_not(value)
        if why:
            raise BadArgumentsError(f"`{key}` of impulse `{name}` {why}, not `{value}`")
    return {key: argument.default for key, argument in taken.items()} | dict(args or {})
