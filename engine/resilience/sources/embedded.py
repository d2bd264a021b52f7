"""The engine's own evaluator over its own samples, as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from resilience.errors import PromQLError
from resilience.promql.evaluate import instant
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Plan
from resilience.promql.reach import looks_ahead
from resilience.promql.recent import Recent
from resilience.samples import QueryResult
from resilience.sources.kind import SourceKind
from resilience.sources.store import MemoryStore

LOOKBACK_MS = 300_000


class EmbeddedSource:
    """Implements `model.Source` over a memory store.

    `later_hidden`: the store holds what comes later, too, and a query must not see that.
    """

    def __init__(
        self, store: MemoryStore, scrape_interval_ms: int, lookback_ms: int = LOOKBACK_MS,
        *, later_hidden: bool = False,
    ) -> None:
        self.store = store
        self._scrape_interval_ms = scrape_interval_ms
        self._lookback_ms = lookback_ms
        self._later_hidden = later_hidden
        self._recent = Recent()

    @property
    def scrape_interval_ms(self) -> int:
        return self._scrape_interval_ms

    def seq(self) -> int:
        """Return the sequence number of the newest batch."""
        return self.store.seq

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        """Evaluate at `t_ms` over the batches up to `seq`; one pass shares subexpressions."""
        del deadline_ms  # the evaluator works in memory and its plans are bounded
        results: dict[str, QueryResult] = {}
        plans: dict[str, Plan] = {}
        for expr in exprs:
            try:
                plans[expr] = parse_checked(expr)
            except PromQLError as error:
                results[expr] = QueryResult(expr, error=f"{error.line}:{error.column}: {error}")
        ahead = [e for e in plans if _looks_ahead(e)] if self._later_hidden else []
        if ahead:
            later = [plans.pop(expr) for expr in ahead]
            hidden = self.store.view_until(seq, t_ms)
            found = instant(later, hidden, t_ms, self._lookback_ms)
            results.update((e, _asked(answer, e)) for e, answer in zip(ahead, found, strict=True))
        answers = instant(
            list(plans.values()), self.store.view(seq), t_ms, self._lookback_ms,
            recent=self._recent,
        )
        for expr, answer in zip(plans, answers, strict=True):
            results[expr] = answer if answer.expr == expr else _asked(answer, expr)
        return results

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        """Return the metric names in the store."""
        del deadline_ms
        labels = (one for group in self.store.groups() for one in group.labels)
        return frozenset(dict(one).get("__name__", "") for one in labels)


@lru_cache(maxsize=4_096)
def _looks_ahead(expr: str) -> bool:
    return looks_ahead(parse_checked(expr))


def _asked(answer: QueryResult, expr: str) -> QueryResult:
    """Return the answer under the text that was asked; twice as fast as `replace`."""
    return QueryResult(
        expr, answer.kind, answer.samples, answer.ranges, answer.text, answer.error,
        answer.warnings, answer.failed,
    )


EMBEDDED = SourceKind(
    name="embedded",
    doc="The engine scrapes the server beside it and evaluates PromQL itself; the default.",
    example="scrape: {interval: 1s, retention: 1h}",
    keeps_samples=True,
    open=EmbeddedSource,
)
