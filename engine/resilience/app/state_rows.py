"""The journal rows of a tick: what differs between two states, and the decisions."""

from __future__ import annotations

from resilience.model import Decision, JournalEntry
from resilience.policy.state import EngineState
from resilience.policy.unsaved import changes


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
