"""What a dry run gives the engine instead of the world: recorded samples, answers and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.app.columns import Columns
from resilience.app.steady_udfs import CallKey, SteadyUdfs
from resilience.model import (
    Bundle,
    QueryResult,
    Source,
    UdfCall,
    UdfOutcome,
)


@dataclass
class RecordedSource:
    """The recording as the current tick saw it: its samples up to `at_seq`, or its answers.

    `columns` holds answers that were evaluated for many ticks at once.
    """

    source: Source
    at_seq: int = 0
    columns: Columns | None = None

    @property
    def scrape_interval_ms(self) -> int:
        return self.source.scrape_interval_ms

    def seq(self) -> int:
        return self.at_seq

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        if self.columns is None:
            return self.source.query(exprs, t_ms, seq=seq, deadline_ms=deadline_ms)
        known = {expr: self.columns.answer(expr, t_ms) for expr in exprs}
        found = {expr: answer for expr, answer in known.items() if answer is not None}
        rest = [expr for expr, answer in known.items() if answer is None]
        if rest:
            found.update(self.source.query(rest, t_ms, seq=seq, deadline_ms=deadline_ms))
        return found

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        return self.source.metric_names(deadline_ms=deadline_ms)


class RecordedUdfs:
    """Outcomes from the recording, in `known`; only a call that it does not know needs the sandbox
    of `bundle`."""

    def __init__(self, bundle: Bundle) -> None:
        self.known: dict[CallKey, UdfOutcome] = {}
        self._sandbox = SteadyUdfs(bundle)

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        unknown = [c for c in calls if not self._fits(c)]
        ran = self._sandbox.run(unknown, deadline_ms=deadline_ms) if unknown else {}
        return [
            self.known[c.key] if self._fits(c) else ran.get(c.key) or _not_recorded(c)
            for c in calls
        ]

    def use(self, bundle: Bundle) -> None:
        """Take the UDFs of another bundle from now on."""
        self._sandbox.close()
        self._sandbox = SteadyUdfs(bundle)

    def close(self) -> None:
        self._sandbox.close()

    def _fits(self, call: UdfCall) -> bool:
        outcome = self.known.get(call.key)
        return outcome is not None and outcome.function == call.function


def _not_recorded(call: UdfCall) -> UdfOutcome:
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, "CRASH", detail="not recorded"
    )
