"""Impulses: done at most once by key, journalled before and after.

The engine journals what is planned with the decision, so that a crash right after it loses none.
A row says `started` before the core is asked and `done`, `failed`, `expired` or `lost` afterwards,
or `dropped` when too many wait already.
A started impulse is asked for again with the same key, because the core answers a repeat with the
stored result; but only while the core that was asked is still the one that answers. A core that
restarted has forgotten its keys, so there the outcome stays unknown (`lost`) and nothing is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from resilience.app.journal import is_too_large
from resilience.app.state_rows import readable
from resilience.errors import (
    CoreError,
    CoreFencedError,
    CoreRefusedError,
    CoreReleasedError,
    CoreUnreachableError,
    JournalError,
)
from resilience.model import Core, Decision, Journal, JournalEntry, Json

AGE_MAX_MS = 60_000
PENDING_MAX = 256
KNOWN_MAX = 50_000
PLANNED = "impulse_planned"
TOO_LARGE = "what the core answered is too large for the journal"


def planned(decision: Decision) -> list[JournalEntry]:
    """Return the rows to journal together with a decision that enforces."""
    if decision.mode != "enforce":
        return []
    return [
        JournalEntry(PLANNED, item.key, {
            "decision_id": decision.id, "policy": item.policy, "impulse": item.impulse,
            "args": item.args, "t_ms": decision.t_ms,
        })
        for item in decision.impulses
    ]


@dataclass(frozen=True, slots=True)
class Pending:
    """One impulse on its way; `epoch` 0 means that no core was asked yet."""

    key: str
    decision_id: str
    policy: str
    impulse: str
    args: Json
    t_ms: int
    epoch: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ImpulseOutcome:
    """What became of one attempt. `final` False: it is tried again with the same key."""

    pending: Pending
    state: str
    result: Json = None
    error: str | None = None

    @property
    def final(self) -> bool:
        return self.state != "started"


class Impulses:
    """The queue of one bus. Not thread-safe: the bus calls it under its lock."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.load("impulse")
        unasked = {k: r for k, r in journal.load(PLANNED).items() if k not in rows}
        self._known: dict[str, None] = dict.fromkeys([*rows, *unasked])
        with readable("impulse"):
            self._pending: dict[str, Pending] = {
                key: _pending_of(key, row) for key, row in rows.items()
                if row["state"] == "started"
            } | {key: Pending(key, **row) for key, row in unasked.items()}
        self._lost: list[ImpulseOutcome] = []  # given up, and not told yet
        self._unwritten: dict[str, tuple[Pending, JournalEntry]] = {}  # ends that found no room
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._lost) + len(self._unwritten)

    @property
    def asked(self) -> bool:
        """Whether the core was asked for one of them, and the journal does not know the end."""
        return bool(self._unwritten) or any(p.epoch for p in self._pending.values())

    def offer(self, decisions: Sequence[Decision]) -> None:
        """Queue the impulses of enforcing decisions whose key was never seen."""
        crowded: list[Pending] = []
        for decision in decisions:
            if decision.mode != "enforce":
                continue
            for item in decision.impulses:
                if item.key in self._known:
                    continue
                self._remember(item.key)
                made = Pending(
                    item.key, decision.id, item.policy, item.impulse, item.args, decision.t_ms
                )
                if len(self._pending) < PENDING_MAX:
                    self._pending[item.key] = made
                else:
                    crowded.append(made)
        if crowded:
            self._drop(crowded)

    def _drop(self, crowded: Sequence[Pending]) -> None:
        """Give up those for which there is no room, also for a restart, and tell of them later."""
        error = f"{PENDING_MAX} impulses wait already"
        with suppress(JournalError):  # the next `run` says what the disk says
            self._journal.append([_row(item, "dropped", error=error) for item in crowded])
        self.dropped += len(crowded)
        outcomes = [ImpulseOutcome(item, "dropped", error=error) for item in crowded]
        self._lost += outcomes[:max(0, PENDING_MAX - len(self._lost))]

    def _remember(self, key: str) -> None:
        self._known[key] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def core_epoch(self, epoch: int) -> None:
        """Learn the epoch that the core holds; give up what an earlier incarnation was asked.

        Raises JournalError while there is no room to write that down: a new document would make
        this core look like the one that was asked, and the next engine would ask it again.
        """
        lost = [p for p in self._pending.values() if p.epoch > epoch]
        self._lost += [
            self._finish(p, "lost", error="the core restarted before it answered; not repeated")
            for p in lost
        ]
        if any(item.epoch > epoch for item, _ in self._unwritten.values()):
            self._write_ends()

    def run(
        self, core: Core, *, epoch: int, t_ms: int, left_ms: Callable[[], int]
    ) -> list[ImpulseOutcome]:
        """Try every pending impulse once, and tell which were lost meanwhile.

        `left_ms` says what is left of the time for all of them together: each gets at most that.
        Raises CoreFencedError and leaves the rest pending.
        """
        with suppress(JournalError):  # the next turn tries again
            self._write_ends()
        outcomes, self._lost = self._lost, []
        for item in list(self._pending.values()):
            if t_ms - item.t_ms > AGE_MAX_MS:
                late = f"not done within {AGE_MAX_MS // 1000} s of the decision"
                outcomes.append(self._finish(item, "expired", error=late))
                continue
            outcome = self._try(core, item, epoch, left_ms())
            outcomes.append(outcome)
            if not outcome.final:  # the core or the disk is away: do not spend a deadline on each
                break
        return outcomes

    def _try(self, core: Core, item: Pending, epoch: int, deadline_ms: int) -> ImpulseOutcome:
        item = replace(item, epoch=epoch, attempt=item.attempt + 1)
        try:
            self._journal.append([_row(item, "started")])
        except JournalError as error:
            return ImpulseOutcome(item, "started", error=str(error))
        self._pending[item.key] = item
        try:
            result = core.impulse(
                item.key, item.impulse, item.args, epoch=epoch, deadline_ms=deadline_ms
            )
        except CoreFencedError:
            raise
        except (CoreRefusedError, CoreReleasedError) as error:
            return self._finish(item, "failed", error=str(error))
        except (CoreUnreachableError, CoreError) as error:
            return ImpulseOutcome(item, "started", error=str(error))
        return self._finish(item, "done", result=result)

    def _finish(
        self, item: Pending, state: str, *, result: Json = None, error: str | None = None
    ) -> ImpulseOutcome:
        self._pending.pop(item.key, None)
        row = _row(item, state, result=result, error=error)
        if is_too_large(row):  # its end must be known: without it the impulse counts as asked
            result, error = None, TOO_LARGE
            row = _row(item, state, error=error)
        self._unwritten[item.key] = item, row
        try:
            self._write_ends()
        except JournalError as failed:
            # It stays `started` on disk: after a restart the same key gets the stored result.
            error = f"{error}; {failed}" if error else str(failed)
        return ImpulseOutcome(item, state, result, error)

    def _write_ends(self) -> None:
        if self._unwritten:
            self._journal.append([row for _, row in self._unwritten.values()])
            self._unwritten.clear()


def _row(
    item: Pending, state: str, *, result: Json = None, error: str | None = None
) -> JournalEntry:
    return JournalEntry("impulse", item.key, {
        "state": state, "t_ms": item.t_ms, "decision_id": item.decision_id,
        "policy": item.policy, "impulse": item.impulse, "args": item.args,
        "epoch": item.epoch, "attempt": item.attempt, "result": result, "error": error,
    })


def _pending_of(key: str, row: Mapping[str, Json]) -> Pending:
    return Pending(
        key, row["decision_id"], row["policy"], row["impulse"], row["args"], row["t_ms"],
        row["epoch"], row["attempt"],
    )
