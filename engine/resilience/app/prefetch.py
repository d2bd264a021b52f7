"""What one tick reads before it decides: queries, the truth of triggers, what UDFs propose.

`decide()` sees nothing but what is gathered here, so a recording of it is all that a dry run needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from resilience.app.engine_events import result_json, udf_event
from resilience.app.trigger_plans import TriggerPlans, queries_of
from resilience.model import (
    Action,
    Capabilities,
    Json,
    Observations,
    OperatorEvent,
    Policy,
    QueryResult,
    Source,
    UdfCall,
    UdfOutcome,
    UdfRunner,
)
from resilience.policy.decide import UdfNeed, needs
from resilience.policy.state import EngineState
from resilience.promql.truth import observe

QUERY_DEADLINE_MS = 5_000
UDF_KILL_MS = 1_000
MAX_AGE_SCRAPES = 3

Propose = Callable[[Json, Action], tuple[Action, ...]]
Events = Callable[[Json], None]


class Prefetch:
    """The reading half of an engine; what it read is also emitted as events."""

    def __init__(
        self, source: Source, propose: Propose, udfs: UdfRunner | None, events: Events, *,
        record_results: bool,
    ) -> None:
        """`record_results`: also emit what queries returned, for sources that keep no samples."""
        self._source = source
        self._propose = propose
        self._udfs = udfs
        self._events = events
        self._record_results = record_results

    def observe(
        self, policies: Sequence[Policy], plans: Mapping[str, TriggerPlans], before: EngineState,
        t_ms: int, seq: int, *, capabilities: Capabilities | None,
        operator: tuple[OperatorEvent, ...],
    ) -> Observations:
        """Return everything that `decide()` may look at."""
        results = self._query(queries_of(policies, plans), t_ms, seq)
        observations = Observations(
            triggers={
                p.name: observe(plans[p.name].trigger, results, t_ms, self._max_age_ms(p))
                for p in policies
            },
            resolves={
                p.name: observe(resolve, results, t_ms, self._max_age_ms(p))
                for p in policies
                if (resolve := plans[p.name].resolve) is not None
            },
            capacities=_capacities(capabilities),
            operator=operator,
            checks={
                (p.name, expr): observe(plan, results, t_ms, self._max_age_ms(p))
                for p in policies
                for expr, plan in plans[p.name].checks.items()
            },
        )
        wanted = needs(policies, before, observations, t_ms)
        if not wanted:
            return observations
        queries = self._query(dict.fromkeys(q for n in wanted for q in n.queries), t_ms, seq)
        outcomes = self._run_udfs(wanted, queries, policies, t_ms)
        return replace(observations, queries=queries, udfs=outcomes)

    def _query(self, exprs: Iterable[str], t_ms: int, seq: int) -> Mapping[str, QueryResult]:
        wanted = list(exprs)
        if not wanted:
            return {}
        results = self._source.query(wanted, t_ms, seq=seq, deadline_ms=QUERY_DEADLINE_MS)
        if self._record_results:
            self._events(
                {
                    "type": "query",
                    "t_ms": t_ms,
                    "results": [result_json(r) for r in results.values()],
                }
            )
        return results

    def _max_age_ms(self, policy: Policy) -> int:
        if policy.trigger.max_age_ms is not None:
            return policy.trigger.max_age_ms
        return MAX_AGE_SCRAPES * self._source.scrape_interval_ms

    def _run_udfs(
        self,
        wanted: Sequence[UdfNeed],
        queries: Mapping[str, QueryResult],
        policies: Sequence[Policy],
        t_ms: int,
    ) -> Mapping[tuple[str, str, str], UdfOutcome]:
        refused = [r for need in wanted if (r := need.refused(queries)) is not None]
        keys = {r.key for r in refused}
        calls = [n.call(queries) for n in wanted if (n.policy, n.instance, n.action) not in keys]
        outcomes = [*refused, *self._call(calls)]
        actions = {(p.name, a.key): a for p in policies for a in p.every_action()}
        expanded = [self._expand(o, actions[o.policy, o.action]) for o in outcomes]
        for outcome in expanded:
            self._events(udf_event(outcome, t_ms))
        return {o.key: o for o in expanded}

    def _call(self, calls: Sequence[UdfCall]) -> Sequence[UdfOutcome]:
        if not calls:
            return ()
        if self._udfs is None:
            return [_no_runner(call) for call in calls]
        deadline_ms = max(c.timeout_ms for c in calls) + UDF_KILL_MS
        return self._udfs.run(calls, deadline_ms=deadline_ms)

    def _expand(self, outcome: UdfOutcome, action: Action) -> UdfOutcome:
        """Check what a UDF proposed as strictly as what a policy says."""
        if outcome.outcome != "ok":
            return outcome
        try:
            return replace(outcome, actions=self._propose(outcome.result, action))
        except ValueError as error:
            return replace(outcome, outcome="BAD_RESULT", detail=str(error))


def _capacities(capabilities: Capabilities | None) -> Mapping[str, float]:
    if capabilities is None:
        return {}
    return {
        name: c.capacity for name, c in capabilities.knobs.items() if c.capacity is not None
    }


def _no_runner(call: UdfCall) -> UdfOutcome:
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, "CRASH", detail="no UDF runner"
    )
