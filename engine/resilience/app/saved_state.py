"""An engine's state in the journal: what it holds, what it is still owed, and what was heard.

Everything that one tick or one swap changes is one batch, written before anything is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict

from resilience.app.impulses import planned
from resilience.app.journal import is_too_large
from resilience.app.state_rows import decision_row, readable, state_rows
from resilience.model import (
    Decision,
    Journal,
    JournalEntry,
    Observations,
    OperatorEvent,
    Policy,
)
from resilience.policy.state import EngineState, Group, Instance, Ledger

OWED_MAX = 1_000
UNHEARD = "operator_unheard"  # events that no tick has heard yet


def unheard(event: OperatorEvent, key: str) -> JournalEntry:
    """Return the row that brings an event back after a restart, until a tick has heard it."""
    return JournalEntry(UNHEARD, key, asdict(event))


class SavedState:
    """The journal's side of one engine; `drives`: impulses are planned, for a bus to do them."""

    def __init__(self, journal: Journal | None, *, drives: bool, keep_inputs: bool) -> None:
        """`journal` None: nothing is remembered, as in a dry run.

        `keep_inputs`: journal what decisions were made from, so that they can be replayed.
        """
        self.state = EngineState()  # behind the engine's own while the journal refuses
        self.inputs_dropped = 0
        self.owed_dropped = 0  # rows of decisions that were acted on and can be told to nobody
        self._journal = journal
        self._drives = drives
        self._keep_inputs = keep_inputs
        self._owed: deque[JournalEntry] = deque()
        self._heard: list[JournalEntry] = []

    def restore(self) -> EngineState:
        """Return the state that the journal holds; raises JournalError."""
        if self._journal is None:
            return self.state
        grouped: dict[str, Group] = {}
        with readable("state"):
            for key, body in self._journal.load("state").items():
                policy, _, name = key.rpartition("/")
                grouped.setdefault(policy, Group())[name] = Instance.from_json(body)
        with readable("counters"):
            ledger = Ledger.from_json(self._journal.load("counters"))
        self.state = EngineState(grouped, ledger)
        return self.state

    def unheard(self) -> list[tuple[OperatorEvent, str]]:
        """Return the events that no tick has heard, each with the key of its row."""
        if self._journal is None:
            return []
        with readable(UNHEARD):
            rows = self._journal.load(UNHEARD)
            return [(OperatorEvent(**body), key) for key, body in rows.items()]

    def heard(self, key: str) -> None:
        """Delete the row of an event with the next write."""
        if key:
            self._heard.append(JournalEntry(UNHEARD, key, None))

    def owe(self, decisions: Sequence[Decision]) -> None:
        """Write the rows of `decisions` later: they were acted on without a journal. The oldest
        give way, and one that no journal takes, which would hold up every later write."""
        rows = [row for row in map(decision_row, decisions) if not is_too_large(row)]
        self._owed.extend(rows)
        over = max(0, len(self._owed) - OWED_MAX)
        for _ in range(over):
            self._owed.popleft()
        self.owed_dropped += len(decisions) - len(rows) + over

    def inputs(
        self, policies: Sequence[Policy], state: EngineState, observations: Observations,
        t_ms: int, revision: str, decisions: Sequence[Decision], *, before: str | None = None,
    ) -> list[JournalEntry]:
        """Return the row that keeps what `decisions` were made from, if it is wanted and fits."""
        if not decisions or not self._keep_inputs:
            return []
        from resilience.app.inputs import kept_inputs

        entry = kept_inputs(
            policies, state, observations, t_ms, revision, decisions, before=before
        ).entry(decisions)
        self.inputs_dropped += entry is None
        return [] if entry is None else [entry]

    def write(
        self, after: EngineState, decisions: Sequence[Decision],
        more: Sequence[JournalEntry] = (),
    ) -> None:
        """Write how `after` differs from what the journal holds, `more`, and what it is still
        owed; raises JournalError with nothing written."""
        if self._journal is None:
            self.state = after
            return
        batch = [
            *self._owed, *self._heard, *state_rows(self.state, after),
            *map(decision_row, decisions), *more,
        ]
        if self._drives:
            batch += [row for d in decisions for row in planned(d)]
        if batch:
            self._journal.append(batch)
        self._owed.clear()
        self._heard.clear()
        self.state = after
