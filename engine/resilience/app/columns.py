"""What triggers say at every step of a grid, evaluated for many steps at once.

A dry run over a recording without ticks knows its ticks ahead. Its queries are then evaluated in
blocks of steps, and where no policy can have anything to decide, nothing is decided: the outcome is
the same as tick by tick (a test compares), and a week takes seconds instead of minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resilience.app.engine import Ahead
from resilience.arrays import NDArray, np
from resilience.errors import PromQLError
from resilience.model import Policy, QueryResult, Reason, Sample, TriggerObservation, Truth
from resilience.promql.evaluate import RangeResult, range_queries
from resilience.promql.evaluation import Options
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Aggregate, Call, Plan, Selector, Subquery, walk
from resilience.promql.reach import looks_ahead
from resilience.promql.storage import Storage
from resilience.promql.truth import Leaf, TriggerPlan, compile_trigger, leaves, observe

BLOCK_STEPS = 2_048
# What an instant query orders by rank, a range query orders by labels.
RANKED = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
SORTS = "sort"

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Grid:
    """The ticks of one interval: `start_ms`, `start_ms + interval_ms`, … up to `end_ms`."""

    start_ms: int
    end_ms: int
    interval_ms: int

    def block_of(self, t_ms: int) -> int:
        return (t_ms - self.start_ms) // (self.interval_ms * BLOCK_STEPS)

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the first and last tick of a block."""
        first = self.start_ms + block * BLOCK_STEPS * self.interval_ms
        return first, min(first + (BLOCK_STEPS - 1) * self.interval_ms, self.end_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """Steps from `first` on, up to the next run, at which a trigger says the same of the same
    series, but for their values. `detail` is why it had no answer at the last of them."""

    first: int
    observation: TriggerObservation
    detail: str | None


class Columns:
    """Answers and truths of `policies` (all of one interval) over a grid, one block at a time."""

    def __init__(
        self,
        policies: Sequence[Policy],
        grid: Grid,
        storage: Storage,
        *,
        lookback_ms: int,
        max_age_ms: Mapping[str, int],
    ) -> None:
        self._policies = policies
        self._grid = grid
        self._storage = storage
        self._options = Options(lookback_ms)
        self._max_age_ms = max_age_ms
        self._triggers = {p.name: compile_trigger(p.trigger.expr) for p in policies}
        self._exprs = _columnar(_queries(policies, self._triggers))
        self._block = -1
        self._first_ms = 0
        self._answers: dict[str, tuple[Plan, RangeResult]] = {}
        self._runs: dict[str, list[Run]] = {}
        self._matrix: Bools = np.zeros((0, 0), dtype=bool)
        self._ahead: dict[bytes, Ahead] = {}

    def answer(self, expr: str, t_ms: int) -> QueryResult | None:
        """Return the answer of one query at a tick; None: ask the source itself."""
        self._load(t_ms)
        found = self._answers.get(expr)
        if found is None:
            return None
        return _at(expr, found[0], found[1], (t_ms - self._first_ms) // self._grid.interval_ms)

    def runs(self, t_ms: int) -> Mapping[str, Sequence[Run]]:
        """Return by policy what its trigger says in the block that begins at `t_ms`."""
        self._load(t_ms)
        return self._runs

    def begins(self, t_ms: int) -> bool:
        """Return whether a block begins at this tick."""
        return (t_ms - self._grid.start_ms) % (self._grid.interval_ms * BLOCK_STEPS) == 0

    def ahead(self, t_ms: int) -> Ahead:
        """Return what is known of this tick. Awake is a policy of which a series is true, or one is
        unknown that would fire; a block begins as if nothing were the same."""
        self._load(t_ms)
        column = self._matrix[:, (t_ms - self._first_ms) // self._grid.interval_ms]
        key = column.tobytes()  # the same few sets again and again
        found = self._ahead.get(key)
        if found is None:
            awake, moved = column.reshape(2, -1).tolist()
            names = frozenset(p.name for p in self._policies)
            found = self._ahead[key] = Ahead(
                self._marked(awake), names - self._marked(moved))
        return found

    def _marked(self, marks: Iterable[bool]) -> frozenset[str]:
        return frozenset(p.name for p, m in zip(self._policies, marks, strict=True) if m)

    # --- one block ---

    def _load(self, t_ms: int) -> None:
        block = self._grid.block_of(t_ms)
        if block == self._block:
            return
        start_ms, end_ms = self._grid.bounds(block)
        self._block, self._first_ms = block, start_ms
        found = range_queries(
            list(self._exprs.values()), self._storage, start_ms, end_ms, self._grid.interval_ms,
            options=self._options,
        )
        # An error may hold at some steps only: those are asked one by one.
        self._answers = {
            expr: (plan, answer)
            for (expr, plan), answer in zip(self._exprs.items(), found, strict=True)
            if not isinstance(answer, PromQLError)
        }
        steps = (end_ms - start_ms) // self._grid.interval_ms + 1
        self._runs, self._ahead = {}, {}
        judged = [self._judge(policy, steps) for policy in self._policies]
        self._matrix = np.stack([*(awake for awake, _ in judged), *(moved for _, moved in judged)])

    def _judge(self, policy: Policy, steps: int) -> tuple[Bools, Bools]:
        """Note what the trigger says in this block; return at which of its `steps` the policy may
        decide something, and at which trigger or resolve say another thing than at the one before
        (bool[steps] each)."""
        max_age_ms = self._max_age_ms[policy.name]
        trigger = self._triggers[policy.name]
        pattern = self._pattern(trigger, max_age_ms, steps)
        if pattern is None:
            return np.ones(steps, dtype=bool), np.ones(steps, dtype=bool)
        awake, moved = self._note_runs(policy, trigger, max_age_ms, pattern)
        if policy.trigger.resolve is None:
            return awake, moved
        resolve = compile_trigger(policy.trigger.resolve.expr)
        resolved = self._pattern(resolve, max_age_ms, steps)
        return awake, np.ones(steps, dtype=bool) if resolved is None else moved | _changes(resolved)

    def _note_runs(
        self, policy: Policy, trigger: TriggerPlan, max_age_ms: int, pattern: Bools
    ) -> tuple[Bools, Bools]:
        """Return as `_judge` does, of the trigger alone. What it says in one pattern it says in the
        same pattern again; only since when it has no answer is asked anew."""
        changed = _changes(pattern)
        known: dict[bytes, TriggerObservation] = {}
        runs: list[Run] = []
        awake = np.zeros_like(changed)
        starts = np.flatnonzero(changed).tolist()
        for first, end in zip(starts, [*starts[1:], len(changed)], strict=True):
            key = pattern[:, first].tobytes()
            seen = known.get(key)
            if seen is None:
                seen = known[key] = self._seen(trigger, max_age_ms, first)
            last = self._seen(trigger, max_age_ms, end - 1) if seen.detail is not None else seen
            runs.append(Run(first, seen, last.detail))
            awake[first:end] = may_decide(policy, seen)
        self._runs[policy.name] = runs
        return awake, changed

    def _seen(self, trigger: TriggerPlan, max_age_ms: int, step: int) -> TriggerObservation:
        t_ms = self._first_ms + step * self._grid.interval_ms
        results = {q: _at(q, *self._answers[q], step) for q in trigger.queries}
        return observe(trigger, results, t_ms, max_age_ms)

    def _pattern(self, trigger: TriggerPlan, max_age_ms: int, steps: int) -> Bools | None:
        """Return bool[R, steps]: all that the truth of a trigger depends on. Truth looks at which
        series are there, which are NaN or zero, and how old the newest sample is. None where a
        query has no answer over the block."""
        if any(query not in self._answers for query in trigger.queries):
            return None
        rows: list[Bools] = [np.zeros((1, steps), dtype=bool)]
        times = self._first_ms + np.arange(steps, dtype=np.int64) * self._grid.interval_ms
        for leaf in leaves(trigger.root):
            for query in (leaf.fire, leaf.domain):
                rows += _marks(self._answers[query][1])
            rows += self._ages(leaf, times, max_age_ms)
        return np.concatenate(rows)

    def _ages(self, leaf: Leaf, times: NDArray[np.int64], max_age_ms: int) -> Iterable[Bools]:
        for fresh in leaf.freshness:
            answer = self._answers[fresh.query][1]
            there = _present(answer)
            with np.errstate(invalid="ignore"):
                newest = np.rint(np.where(there, answer.values, 0) * 1000)
            age = times - fresh.offset_ms - newest
            yield there
            yield there & (age > max_age_ms)


def may_decide(policy: Policy, seen: TriggerObservation) -> bool:
    """Return whether a policy without any state could leave it on this observation."""
    if any(s.truth is Truth.TRUE for s in seen.series):
        return True
    if policy.trigger.warm_up > 1:
        return True
    if policy.trigger.on_no_data != "fire":
        return False
    unknown = [s.reason for s in seen.series if s.truth is Truth.UNKNOWN]
    return not seen.series or any(reason is not Reason.IDLE for reason in unknown)


def _queries(policies: Sequence[Policy], triggers: Mapping[str, TriggerPlan]) -> list[str]:
    found: dict[str, None] = {}
    for policy in policies:
        found.update(dict.fromkeys(triggers[policy.name].queries))
        if policy.trigger.resolve is not None:
            found.update(dict.fromkeys(compile_trigger(policy.trigger.resolve.expr).queries))
    return list(found)


def _columnar(exprs: Iterable[str]) -> dict[str, Plan]:
    """Return the plans whose answers over a range are their answers at each step."""
    plans = {expr: parse_checked(expr) for expr in exprs}
    return {expr: plan for expr, plan in plans.items() if _same_in_a_range(plan)}


def _same_in_a_range(plan: Plan) -> bool:
    if plan.type not in ("vector", "scalar") or looks_ahead(plan):
        return False
    for node in walk(plan):
        if isinstance(node, Selector | Subquery) and isinstance(node.at, str):
            return False  # `@ start()` is the tick itself live, and the block's start here
        if isinstance(node, Aggregate) and node.op in RANKED:
            return False
        if isinstance(node, Call) and node.function.startswith(SORTS):
            return False
    return True


def _at(expr: str, plan: Plan, answer: RangeResult, step: int) -> QueryResult:
    """Return one step of a range as the instant query's answer."""
    values = answer.values[:, step].tolist()
    if plan.type == "scalar":
        return QueryResult(expr, "scalar", (Sample((), values[0]),))
    if answer.present is None:
        rows: Iterable[int] = range(len(values))
    else:
        rows = np.flatnonzero(answer.present[:, step]).tolist()
    return QueryResult(expr, "vector", tuple(Sample(answer.labels[i], values[i]) for i in rows))


def _present(answer: RangeResult) -> Bools:
    if answer.present is None:
        return np.ones(answer.values.shape, dtype=bool)
    return answer.present


def _changes(pattern: Bools) -> Bools:
    """Return at which steps a pattern is not that of the step before; at the first one always."""
    changed = np.ones(pattern.shape[1], dtype=bool)
    changed[1:] = (pattern[:, 1:] != pattern[:, :-1]).any(axis=0)
    return changed


def _marks(answer: RangeResult) -> list[Bools]:
    there = _present(answer)
    return [there, there & np.isnan(answer.values), there & (answer.values == 0)]
