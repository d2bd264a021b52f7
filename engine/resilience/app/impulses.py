"""Impulses: done at most once by key, journalled before and after.

The engine journals what is planned with the decision, so that a crash right after it loses none.
A row says `started` before the core is asked and `done`, `failed`, `expired` or `lost` afterwards.
A started impulse is asked for again with the same key, because the core answers a repeat with the
stored result; but only while the core that was asked is still the one that answers. A core that
restarted has forgotten its keys, so there the outcome stays unknown (`lost`) and nothing is
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
        self._lost: list[ImpulseOutcome] = []
        self.overflow = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._lost)

    @property
    def asked(self) -> bool:
        """Whether the core was asked for one of them and has not answered yet."""
        return any(p.epoch for p in self._pending.values())

    def offer(self, decisions: Sequence[Decision]) -> None:
        """Queue the impulses of enforcing decisions whose key was never seen."""
        for decision in decisions:
            if decision.mode != "enforce":
                continue
            for item in decision.impulses:
                if item.key in self._known:
                    continue
                if len(self._pending) >= PENDING_MAX:
                    self.overflow += 1
                    continue
                self._remember(item.key)
                self._pending[item.key] = Pending(
                    item.key, decision.id, item.policy, item.impulse, item.args, decision.t_ms
                )

    def _remember(self, key: str) -> None:
        self._known[key] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def core_epoch(self, epoch: int) -> None:
        """Learn the epoch that the core holds; give up what an earlier incarnation was asked."""
        lost = [p for p in self._pending.values() if p.epoch > epoch]
        self._lost += [
            self._finish(p, "lost", error="the core restarted before it answered; not repeated")
            for p in lost
        ]

    def run(self, core: Core, *, epoch: int, t_ms: int, deadline_ms: int) -> list[ImpulseOutcome]:
        """Try every pending impulse once, and tell which were lost meanwhile.

        Raises CoreFencedError and leaves the rest pending.
        """
        outcomes, self._lost = self._lost, []
        for item in list(self._pending.values()):
            if t_ms - item.t_ms > AGE_MAX_MS:
                late = f"not done within {AGE_MAX_MS // 1000} s of the decision"
                outcomes.append(self._finish(item, "expired", error=late))
                continue
            outcome = self._try(core, item, epoch, deadline_ms)
            outcomes.append(outcome)
            if not outcome.final:  # the core or the disk is away: do not spend a deadline on each
                break
        return outcomes

    def _try(self, core: Core, item: Pending, epoch: int, deadline_ms: int) -> ImpulseOutcome:
        item = replace(item, epoch=epoch, attempt=item.attempt + 1)
        try:
            self._write(item, "started")
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
        try:
            self._write(item, state, result=result, error=error)
        except JournalError as failed:
            # It stays `started` on disk: after a restart the same key gets the stored result.
            error = f"{error}; {failed}" if error else str(failed)
        return ImpulseOutcome(item, state, result, error)

    def _write(
        self, item: Pending, state: str, *, result: Json = None, error: str | None = None
    ) -> None:
        body = {
            "state": state, "t_ms": item.t_ms, "decision_id": item.decision_id,
            "policy": item.policy, "impulse": item.impulse, "args": item.args,
            "epoch": item.epoch, "attempt": item.attempt, "result": result, "error": error,
        }
        self._journal.append([JournalEntry("impulse", item.key, body)])


def _pending_of(key: str, row: Mapping[str, Json]) -> Pending:
    return Pending(
        key, row["decision_id"], row["policy"], row["impulse"], row["args"], row["t_ms"],
        row["epoch"], row["attempt"],
    )
