"""The bus: drives the core towards the live claims, verifies, and repeats until equal.

Level-triggered. Each tick hands over the whole list of live claims; the bus writes the intent to
the journal, sends the desired document, reads back, and compares with its own fold of the same
claims. A claim set that did not change is sent again only to renew its leases. Impulses go through
`impulses.py`; `metric.*` and `notify.*` claims never reach the core, the engine sees to them.

The bus never decides. It may be called from the tick's thread and from the lease job: a lock
orders them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from resilience.app.impulses import ImpulseOutcome, Impulses
from resilience.app.reconcile import Reconciler, ceiling_ms, folded_values
from resilience.errors import CoreError, CoreFencedError, CoreReleasedError, JournalError
from resilience.knobs import NOTIFY_PREFIX, is_engines
from resilience.model import (
    Actual,
    Capabilities,
    Claim,
    Clock,
    Core,
    Decision,
    Execution,
    Journal,
    Json,
)

DEADLINE_MS = 2_000
BACKOFF_FIRST_MS = 250
BACKOFF_MAX_MS = 10_000
PATIENCE_MS = 60_000
RELEASED_EVERY_MS = 5_000
PENDING_MAX = 1_000
METRIC_PREFIX = "metric."


@dataclass(frozen=True, slots=True)
class BusView:
    """An immutable picture of the bus. `in_sync`: the core's read-back equals the claims.

    `refused` holds (policy, knob, why). `metrics` are the gauges that claims ask for. `released` is
    what the core says of an operator's release. `silent` says why the core did not do as it was
    told more than once in a row. `drifts` counts all of them, `drifts_left` those
    that were left as they are, `drift` is the one that is there now. `notices` are the live
    `notify.*` claims. `impulses_dropped` counts those for which there was no room.
    """

    attached: bool = False
    epoch: int = 0
    generation: int = 0
    fenced: bool = False
    in_sync: bool = False
    claims: tuple[Claim, ...] = ()
    actual: Actual | None = None
    lease_remaining_ms: int | None = None
    refused: tuple[tuple[str, str, str], ...] = ()
    error: str | None = None
    drifts: int = 0
    impulses_pending: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    released: Mapping[str, Json] | None = None
    drift: str | None = None
    drifts_left: int = 0
    notices: tuple[Claim, ...] = ()
    impulses_dropped: int = 0
    silent: str | None = None


class Bus:
    """Reconciles one core with the claims of one engine.

    `core` None: there is nothing to drive (a dry run); only metric claims have an effect.
    `jitter` returns 0..1 and spreads the retries. `patience_ms`: leases are renewed without a new
    tick only this long, so that an engine that no longer decides loses its claims.
    `correct_drift` False: what somebody changed in the core by hand is reported and left.
    """

    def __init__(
        self,
        core: Core | None,
        journal: Journal,
        clock: Clock,
        *,
        jitter: Callable[[], float] = random.random,
        patience_ms: int = PATIENCE_MS,
        correct_drift: bool = True,
    ) -> None:
        self._core = core
        self._reconciler = Reconciler(core, journal, clock) if core is not None else None
        self._impulses = Impulses(journal)
        self._clock = clock
        self._jitter = jitter
        self.patience_ms = patience_ms
        self.correct_drift = correct_drift
        self._lock = threading.RLock()
        self._fenced = False
        self._driven_at: int | None = None
        self._in_sync = False
        self._changed = False
        self._attempt = 0
        self._not_before = 0
        self._pending: dict[str, None] = {}
        self._metrics: dict[str, float] = {}
        self._error: str | None = None
        self._notices: tuple[Claim, ...] = ()
        self._drift: str | None = None
        self._drifts = 0
        self._drifts_left = 0
        self._released: Mapping[str, Json] | None = None
        self._told_released: frozenset[str] | None = None
        # How often the core did not answer, answered to another engine, or had lost what it was
        # told. Afterwards it may be another one: able to do other things, with another gate.
        self.absences = 0

    # --- what the engine calls ---------------------------------------------------------------

    def attach(self, *, deadline_ms: int) -> Capabilities:
        """Learn what the core can do and take a newer epoch than anyone had; raises CoreError, and
        JournalError while it cannot be written that impulses are lost.

        Nothing is sent: claims that the core holds stand until the first `drive`.
        """
        with self._lock:
            if self._reconciler is None:
                raise CoreError("there is no core to attach to")
            capabilities = self._reconciler.attach(deadline_ms)
            self._impulses.core_epoch(capabilities.epoch)
            return capabilities

    def drive(
        self,
        decisions: Sequence[Decision],
        claims: Sequence[Claim],
        t_ms: int,
        deadline_ms: int = DEADLINE_MS,
        *,
        shadow: Collection[str] = (),
    ) -> list[Execution]:
        """Make the core hold exactly `claims`, and do the new impulses of `decisions`.

        `claims` are all live claims of enforcing policies; those of policies named in `shadow`
        are left out. Never raises for a failing core or disk: the executions say so, and the next
        call goes on. All calls to the core together take at most about `deadline_ms`.
        """
        with self._lock:
            self._driven_at = self._clock.monotonic_ms()
            self._want([c for c in claims if c.policy not in shadow])
            enforced = [d for d in decisions if d.mode == "enforce" and d.policy not in shadow]
            for decision in enforced:
                if decision.claims_before != decision.claims_after:
                    self._pend(decision.id)
            self._impulses.offer(enforced)
            return self._work(t_ms, deadline_ms)

    def maintain(self, t_ms: int, deadline_ms: int = DEADLINE_MS) -> list[Execution]:
        """Renew leases and retry between ticks; does nothing once the ticks have stopped."""
        with self._lock:
            if self._driven_at is None:
                return []
            if self._clock.monotonic_ms() - self._driven_at > self.patience_ms:
                self._error = "no tick for too long: leases are not renewed"
                return []
            return self._work(t_ms, deadline_ms)

    def release(self, t_ms: int, deadline_ms: int = DEADLINE_MS) -> list[Execution]:
        """Drop every claim that is not marked to be kept; for an ordered shutdown."""
        with self._lock:
            self._driven_at = None
            self._metrics = {}
            if self._reconciler is None or self._reconciler.sent is None:
                return []
            self._want([c for c in self._reconciler.wanted if c.keep])
            self._not_before = 0
            return self._work(t_ms, deadline_ms)

    def take_over(self, *, deadline_ms: int) -> None:
        """Act again after another engine fenced this one: an operator wants it so."""
        with self._lock:
            self.attach(deadline_ms=deadline_ms)
            self.absences += 1
            self._fenced, self._in_sync, self._changed, self._error = False, False, True, None

    @property
    def capabilities(self) -> Capabilities | None:
        return self._reconciler.capabilities if self._reconciler else None

    def ask_capabilities(self, deadline_ms: int) -> Capabilities | None:
        """Return what an attached core can do now; what is known of it when it does not answer."""
        if self._reconciler is None or self._reconciler.capabilities is None:
            return None
        with suppress(CoreError):  # without the lock: nobody's claims wait for this answer
            return self._reconciler.ask(deadline_ms)
        return self._reconciler.capabilities

    def meet_again(self, deadline_ms: int) -> Capabilities | None:
        """Learn anew what an attached core can do, after an absence; raises CoreError."""
        if self._reconciler is None or self._reconciler.capabilities is None:
            return None
        self._reconciler.capabilities = self._reconciler.ask(deadline_ms)
        return self._reconciler.capabilities

    @property
    def fenced(self) -> bool:
        return self._fenced

    def view(self) -> BusView:
        """Return what the bus knows now, for people and for the engine's own metrics."""
        with self._lock:
            core = self._reconciler
            if core is None:
                return BusView(metrics=dict(self._metrics), notices=self._notices)
            return BusView(
                core.capabilities is not None, core.epoch, core.generation, self._fenced,
                self._in_sync, core.wanted, core.held(), core.lease_remaining_ms(),
                core.refusals.listed(), self._error, self._drifts, len(self._impulses),
                dict(self._metrics), self._released, self._drift, self._drifts_left,
                self._notices, self._impulses.dropped,
                self._error if self._attempt > 1 else None,
            )

    # --- wanting -----------------------------------------------------------------------------

    def _want(self, claims: Sequence[Claim]) -> None:
        metrics = [c for c in claims if c.knob.startswith(METRIC_PREFIX)]
        self._metrics = {
            knob.removeprefix(METRIC_PREFIX): float(value)
            for knob, scopes in folded_values(metrics).items()
            for value in scopes.values()
        }
        self._notices = tuple(c for c in claims if c.knob.startswith(NOTIFY_PREFIX))
        rest = [c for c in claims if not is_engines(c.knob)]
        if self._reconciler is not None and self._reconciler.want(rest):
            self._changed, self._in_sync, self._drift = True, False, None

    def _pend(self, decision_id: str) -> None:
        self._pending[decision_id] = None
        if len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]

    # --- working -----------------------------------------------------------------------------

    def _work(self, t_ms: int, deadline_ms: int) -> list[Execution]:
        core = self._reconciler
        if core is None:
            self._pending.clear()
            return []
        started = self._clock.monotonic_ms()
        if self._fenced:
            return self._tell_pending(core, t_ms, started) if self._pending else []
        try:
            executions = self._reconcile(core, t_ms, started, deadline_ms)
            if core.sent is not None:
                executions += self._do_impulses(core, t_ms, started, deadline_ms)
        except CoreFencedError as error:
            self._fenced, self._in_sync = True, False
            self._error = f"{error}; another engine took over, this one stopped acting"
            executions = self._tell_pending(core, t_ms, started)
        return executions

    def _reconcile(
        self, core: Reconciler, t_ms: int, started: int, deadline_ms: int
    ) -> list[Execution]:
        if not self._is_due(core, started):
            return []
        trust, self._changed = self._in_sync or self._drift is not None, False
        self._attempt += 1
        try:
            if core.capabilities is None:
                self.attach(deadline_ms=deadline_ms)
            if self._impulses.asked:  # before a new document hides that the core restarted
                epoch = core.look(self._left_ms(started, deadline_ms)).epoch
                self._impulses.core_epoch(epoch)
            left = self._left_ms(started, deadline_ms)
            step = core.step(t_ms, left, trust=trust, correct=self.correct_drift)
        except CoreFencedError:
            raise
        except CoreReleasedError as error:
            return self._refused_by_release(core, t_ms, started, str(error))
        except (CoreError, JournalError) as error:
            self.absences += isinstance(error, CoreError)
            return self._failed(core, t_ms, started, str(error))
        self._learn_release(core)
        if step.left:
            return self._left_alone(core, t_ms, started, str(step.drift))
        return self._answered(core, t_ms, started, step.drift)

    def _is_due(self, core: Reconciler, now: int) -> bool:
        if self._changed and self._told_released is None:
            return True
        if now < self._not_before:
            return False
        if self._drift is not None:
            return core.look_due()
        return not self._in_sync or core.renewal_due() or core.look_due()

    def _answered(
        self, core: Reconciler, t_ms: int, started: int, drift: str | None
    ) -> list[Execution]:
        """The core took the document: it holds what is wanted, or not yet."""
        self.absences += drift is not None
        wrong = core.wrong()
        if not wrong and core.admissible() != core.sent:
            wrong = ["more claims wait to be sent"]
        if wrong:
            return self._failed(core, t_ms, started, "; ".join(wrong))
        self._in_sync, self._drift = True, None
        self._drifts += drift is not None
        self._error = str(core.refusals) or (f"drift corrected: {drift}" if drift else None)
        worth_telling = bool(self._pending or drift)
        executions = self._tell_pending(core, t_ms, started) if worth_telling else []
        self._attempt, self._not_before = 0, 0
        self._pending.clear()
        return executions

    def _left_alone(
        self, core: Reconciler, t_ms: int, started: int, drift: str
    ) -> list[Execution]:
        """Somebody changed the core by hand, and the configuration says to leave that."""
        news = self._drift != drift
        if self._drift is None:
            self._drifts += 1
            self._drifts_left += 1
        self._drift, self._in_sync, self._attempt = drift, False, 0
        self._error = f"drift left as it is: {drift}"
        return self._tell_pending(core, t_ms, started) if news else []

    def _learn_release(self, core: Reconciler) -> None:
        self._released = core.actual.released if core.actual else None
        if self._released is None:
            self._told_released = None

    def _refused_by_release(
        self, core: Reconciler, t_ms: int, started: int, why: str
    ) -> list[Execution]:
        """An operator released the core: ask again now and then, and tell each decision once."""
        self._error, self._in_sync, self._attempt = why, False, 0
        self._not_before = started + RELEASED_EVERY_MS
        if self._released is None or self._released["t_ms"] is None:
            self._released = {"t_ms": None, "reason": ""}
            self._look_at_release(core)
        pending = frozenset(self._pending)
        news = self._told_released is None or not pending <= self._told_released
        self._told_released = pending
        return self._tell_pending(core, t_ms, started) if news else []

    def _look_at_release(self, core: Reconciler) -> None:
        """Learn since when and why; without an answer the next round asks again."""
        with suppress(CoreError):
            released = core.look(DEADLINE_MS).released
            self._released = released or self._released

    def _failed(self, core: Reconciler, t_ms: int, started: int, why: str) -> list[Execution]:
        """Remember the failure and wait longer each time, never past an eighth of a lease."""
        self._error, self._in_sync = why, False
        grown = BACKOFF_FIRST_MS * 2 ** min(self._attempt - 1, 10)
        wait = min(ceiling_ms(core.wanted, BACKOFF_MAX_MS), grown)
        self._not_before = started + round(wait * (0.5 + self._jitter() / 2))
        return self._tell_pending(core, t_ms, started)

    # --- impulses and reports ------------------------------------------------------------------

    def _do_impulses(
        self, core: Reconciler, t_ms: int, started: int, deadline_ms: int
    ) -> list[Execution]:
        if self._core is None or not len(self._impulses):
            return []

        def left() -> int:
            return self._left_ms(started, deadline_ms)

        if self._impulses.asked and not self._is_same_core(core, left()):
            return []
        outcomes = self._impulses.run(self._core, epoch=core.epoch, t_ms=t_ms, left_ms=left)
        return [self._told(core, outcome, t_ms, started) for outcome in outcomes]

    def _left_ms(self, started: int, deadline_ms: int) -> int:
        return max(1, deadline_ms - (self._clock.monotonic_ms() - started))

    def _is_same_core(self, core: Reconciler, deadline_ms: int) -> bool:
        """Look before an impulse is asked for again: a core that restarted forgot its key."""
        try:
            epoch = core.look(deadline_ms).epoch
            self._in_sync = self._in_sync and epoch == core.epoch
            self._impulses.core_epoch(epoch)
        except CoreFencedError:
            raise
        except (CoreError, JournalError):
            return False
        return True

    def _told(
        self, core: Reconciler, outcome: ImpulseOutcome, t_ms: int, started: int
    ) -> Execution:
        item = outcome.pending
        read_back = {
            "impulse": item.impulse, "key": item.key, "state": outcome.state,
            "result": outcome.result,
        }
        took = float(self._clock.monotonic_ms() - started)
        return Execution(
            item.decision_id, t_ms, core.epoch, core.generation, item.attempt, read_back,
            outcome.error, took,
        )

    def _tell_pending(self, core: Reconciler, t_ms: int, started: int) -> list[Execution]:
        """Return one Execution for each decision that waits, or one without a decision."""
        read_back = core.actual.to_json() if core.actual else None
        took = float(self._clock.monotonic_ms() - started)
        waiting: list[str | None] = list(self._pending) or [None]
        if self._fenced:
            self._pending.clear()
        return [
            Execution(decision_id, t_ms, core.epoch, core.generation, self._attempt, read_back,
                      self._error, took)
            for decision_id in waiting
        ]
