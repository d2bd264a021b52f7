"""The gate's state in one process: configuration, claims, admission, and what the gauges read.

Only the server's event loop touches it, so nothing here locks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from functools import cache

from resilience.desired import ClaimTable
from resilience.gate.admission import Admission
from resilience.gate.body import LargeBodies
from resilience.gate.book import TierBook
from resilience.gate.breaker import Change
from resilience.gate.budget import Budget
from resilience.gate.causes import Cause, Shares
from resilience.gate.config import GateConfig, load_config
from resilience.gate.identity import Identity
from resilience.gate.ladder import Ladder
from resilience.gate.limiter import Signals
from resilience.gate.metrics import GateMetrics, shared_metrics
from resilience.gate.results import Results
from resilience.gate.snapshot import Route, Snapshot, build
from resilience.gate.ticket import Lane, Refusal, Ticket
from resilience.gate.tokens import LatencySlope, TokenCounter
from resilience.gate.windows import Window


def monotonic_ms() -> int:
    """Return this machine's monotonic clock in ms; leases are counted on it."""
    return time.monotonic_ns() // 1_000_000


class GateState:
    """What the middleware judges requests by. `table` holds all claims that this process knows.

    The core that the gate stands before may give it a tokenizer (`counter`), say that its scheduler
    goes by priorities (`by_priority`, and `priority_header` if it reads that header), and feed the
    limiter (`adapt`).
    """

    def __init__(
        self,
        config: GateConfig,
        metrics: GateMetrics,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.table = ClaimTable()
        self.metrics = metrics
        self.clock_ms = clock_ms
        self.admission = Admission(self._changed)
        self.counter: TokenCounter | None = None
        self.ladder = Ladder()
        self.priority_header = False
        self.slope = LatencySlope()
        self.token_window = Window(10_000)
        self.latency_ms: float | None = None  # of the newest answer, to its first byte
        self.heard_ms = 0  # when the server last began an answer that is no failure, or wrote on
        self._owed: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._shares = Shares()
        self.books: dict[str, TierBook] = {}
        self.results: Results | None = None
        self.large_bodies = LargeBodies()
        self.configure(config)
        self.metrics.watch_breakers(self)

    @property
    def by_priority(self) -> bool:
        return self.admission.overtakes

    @by_priority.setter
    def by_priority(self, does: bool) -> None:
        self.admission.overtakes = does

    def configure(self, config: GateConfig) -> None:
        """Take other tiers, tenants or headers; requests in flight keep what they came with."""
        self.config = config
        self.identity = Identity(config)
        self.ladder.configure(config)
        self.admission.rank({name: tier.priority for name, tier in config.tiers.items()})
        self.admission.configure(config.queue_max, config.ageing_ms)
        self._keep_results()
        self.metrics.prepare(config.tiers, self)
        for tier in config.tiers:
            self.books.setdefault(tier, TierBook(self.metrics.series(tier)))
        self.refresh()

    def _keep_results(self) -> None:
        """Keep results as the configuration says; what is kept stays, unless nothing is kept."""
        budget = self.config.budget
        if budget is None or not budget.keep_ms:
            self.results = None
        elif self.results is None:
            self.results = Results(budget.keep_ms, budget.keep_bytes)
        else:
            self.results.keep_ms, self.results.bytes_max = budget.keep_ms, budget.keep_bytes

    def refresh(self) -> None:
        """Fold the claims again, after the table changed or a lease ended."""
        now = self.clock_ms()
        self._snapshot = build(self.table, self.config, now)
        self.admission.adopt(self._snapshot, now)
        self.arm()

    def snapshot(self) -> Snapshot:
        """Return the snapshot in force now."""
        expires_ms = self._snapshot.expires_ms
        if expires_ms != math.inf and self.clock_ms() >= expires_ms:
            self.refresh()
        return self._snapshot

    def tidy(self) -> None:
        """Let go of what time alone has ended: leases, and answers kept for duplicates."""
        self.snapshot()
        if self.results is not None:
            self.results.forget(self.clock_ms())

    def adapt(self, signals: Signals) -> None:
        """Tell the adaptive limiter how the server did in the last interval."""
        self.admission.adapt(signals, self.clock_ms())
        self.arm()

    def start_with(self, limit: int) -> None:
        """Say how many requests the server can run at once: where the adaptive limit starts."""
        self.admission.start_limit = self.admission.seats = float(limit)
        if self.admission.limit is not None:
            self.admission.limit = float(limit)
        self.refresh()

    def takes_route(self, tier: str, route: Route) -> bool:
        """Say whether the next request is one of the share: evenly spaced, without chance."""
        owed = self._owed.get(tier, 0.0) + route.share
        taken = owed >= 1.0 - 1e-9
        self._owed[tier] = owed - 1.0 if taken else owed
        return taken

    def new_ticket(self, lane: Lane, path: str) -> Ticket:
        """Return a ticket with its tier's priority and patience, and the weight of its tenant."""
        tier, tenant = self.config.tiers[lane[0]], self.config.tenants.get(lane[1])
        ticket = Ticket(lane, path, self.clock_ms(), tier.priority)
        ticket.patience_ms = tier.queue_timeout_ms
        if tenant is not None:
            ticket.share = tenant.share
        if self.counter is not None:
            ticket.factor = self.counter.factor
        return ticket

    def new_budget(self, ticket: Ticket) -> Budget | None:
        """Return what a request may spend, None while there are no budgets."""
        settings = self.config.budget
        if settings is None:
            return None
        own_ms = self.config.tiers[ticket.tier].deadline_ms
        patience_ms = settings.deadline_ms if own_ms is None else own_ms
        return Budget(settings, ticket.arrived_ms, patience_ms)

    # --- waking who waits -----------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timer for when time alone lets somebody pass or ends a wait."""
        due = self.admission.next_ms()
        if due is None:
            return
        due_ms = min(float(due), self._snapshot.expires_ms)
        if self._timer is not None and self._timer_ms <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_s = max(0.001, (due_ms - self.clock_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        now = self.clock_ms()
        if now >= self._snapshot.expires_ms:
            self.refresh()
            return
        self.admission.poll(now)
        self.arm()

    # --- what is noted for the gauges -----------------------------------------------------------

    def note_refusal(self, ticket: Ticket, refusal: Refusal) -> None:
        """Count a request that was not let in."""
        self.metrics.refused(ticket.tier, self.tenant_label(ticket.lane), refusal.policy)
        self.blame(ticket.tier, refusal.cause)
        self.books[ticket.tier].ended(self.clock_ms(), None, False if ticket.is_judged else None)

    def silent_ms(self) -> int:
        """Return for how long the server has said nothing although it had requests."""
        return self.clock_ms() - max(self.heard_ms, self.admission.busy_ms)

    def blame(self, tier: str, cause: Cause) -> None:
        """Give a failed or refused request its one cause."""
        self._shares.add(cause)
        self.metrics.caused(tier, cause)

    def tenant_label(self, lane: Lane) -> str:
        """Return the tenant as a label, "" where no tenants are configured."""
        return lane[1] if self.config.tenants else ""

    def _changed(self, change: Change) -> None:
        self.metrics.changed(change)

    def inflight(self, tier: str) -> float:
        return self.admission.usage.count((tier, "", ""))

    def waiting(self, tier: str) -> float:
        return self.admission.queue.waiting(tier)

    def inflation(self, tier: str) -> float:
        return self.books[tier].inflation()

    def amplification(self, tier: str) -> float:
        return self.books[tier].amplification(self.clock_ms())

    def compliance(self, tier: str) -> float:
        return self.books[tier].compliance(self.clock_ms())

    def share(self, cause: Cause) -> float:
        return self._shares.of(cause)

    def limit(self) -> float:
        limit = self.admission.limit
        return math.inf if limit is None else math.floor(limit)

    def latency_slope(self) -> float:
        return self.slope.at(self.clock_ms())

    def breakers(self) -> Mapping[str, str]:
        return self.admission.breakers.states(self.clock_ms())


@cache
def shared() -> GateState:
    """Return the one state of this process, which the middleware and the endpoint share."""
    return GateState(load_config(), shared_metrics())
