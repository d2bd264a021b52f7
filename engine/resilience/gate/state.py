"""The gate's state in one process: the snapshot in force and the requests in flight.

Only the server's event loop touches it, so nothing here locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from resilience.gate.config import GateConfig, is_within, load_config
from resilience.gate.metrics import GateMetrics, shared_metrics
from resilience.gate.snapshot import Limit, Route, Snapshot, build
from resilience.knobs import ClaimTable


def monotonic_ms() -> int:
    """Return this machine's monotonic clock in ms; leases are counted on it."""
    return time.monotonic_ns() // 1_000_000


class GateState:
    """What the middleware judges requests by. `table` holds all claims that this process knows."""

    def __init__(
        self,
        config: GateConfig,
        metrics: GateMetrics,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.table = ClaimTable()
        self.metrics = metrics
        self.clock_ms = clock_ms
        self.inflight: dict[str, int] = {}
        self.total = 0
        self._owed: dict[str, float] = {}
        self.configure(config)

    def configure(self, config: GateConfig) -> None:
        """Take other tiers or another header; requests in flight keep the tier they came with."""
        self.config = config
        self._header = config.header.encode("ascii")
        for tier in config.tiers:
            self.inflight.setdefault(tier, 0)
        self.metrics.prepare(config.tiers, lambda tier: self.inflight.get(tier, 0))
        self.refresh()

    def refresh(self) -> None:
        """Fold the claims again, after the table changed or a lease ended."""
        self._snapshot = build(self.table, self.config, self.clock_ms())

    def snapshot(self) -> Snapshot:
        """Return the snapshot in force now."""
        if self.clock_ms() >= self._snapshot.expires_ms:
            self.refresh()
        return self._snapshot

    def tier_of(self, headers: list[tuple[bytes, bytes]], peer: str) -> tuple[str, bool]:
        """Return the tier of a request and whether its tier header must not be passed on."""
        named = [value for name, value in headers if name == self._header]
        if not named:
            return self.config.default, False
        if not is_within(peer, self.config.trusted_peers):
            return self.config.default, True
        tier = named[0].decode("latin-1").strip()
        return (tier if tier in self.config.tiers else self.config.default), False

    def without_tier(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [pair for pair in headers if pair[0] != self._header]

    def exceeded(self, snapshot: Snapshot, tier: str) -> Limit | None:
        """Return the limit that one more request of `tier` would break, or None."""
        limit = snapshot.limits.get(tier)
        if limit is not None and self.inflight[tier] >= limit.value:
            return limit
        if snapshot.total is not None and self.total >= snapshot.total.value:
            return snapshot.total
        return None

    def enter(self, tier: str) -> None:
        self.inflight[tier] += 1
        self.total += 1

    def leave(self, tier: str) -> None:
        self.inflight[tier] -= 1
        self.total -= 1

    def takes_route(self, tier: str, route: Route) -> bool:
        """Say whether the next request is one of the share: evenly spaced, without chance."""
        owed = self._owed.get(tier, 0.0) + route.share
        taken = owed >= 1.0 - 1e-9
        self._owed[tier] = owed - 1.0 if taken else owed
        return taken


@cache
def shared() -> GateState:
    """Return the one state of this process, which the middleware and the endpoint share."""
    return GateState(load_config(), shared_metrics())
