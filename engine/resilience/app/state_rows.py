"""The journal rows of a tick: what differs between two states, and the decisions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from resilience.errors import JournalError
from resilience.model import Decision, JournalEntry
from resilience.policy.state import EngineState
from resilience.policy.unsaved import changes


@contextmanager
def readable(kind: str) -> Generator[None]:
    """Say what to do about a row that is JSON but not what this engine writes: JournalError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JournalError(
            f"the journal is damaged (a row of kind `{kind}` is not what this engine writes: "
            f"{type(error).__name__} {error}); move `journal.db` away to start afresh: claims in "
            "the core end with their leases"
        ) from error


def state_rows(before: EngineState, after: EngineState) -> list[JournalEntry]:
    """Return the rows that bring a journal from one state to the other."""
    entries = [
        JournalEntry("state", f"{policy}/{name}", None if body is None else body.to_json())
        for (policy, name), body in changes(before, after).items()
    ]
    if before.ledger is not after.ledger:
        old, new = before.ledger.to_json(), after.ledger.to_json()
        entries.extend(JournalEntry("counters", n, b) for n, b in new.items() if old[n] != b)
    return entries


def decision_row(decision: Decision) -> JournalEntry:
    """Return the row of one decision, by its id."""
    return JournalEntry("decision", decision.id, decision.to_json())
