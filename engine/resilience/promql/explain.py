"""What a plan costs: its nodes with the series and points they give and the time they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resilience.promql.evaluation import Evaluation, Options
from resilience.promql.plan import Node, Plan, Selector, Subquery
from resilience.promql.storage import Storage
from resilience.promql.vector import Grid, Scalar, Text, Value, Vec

# A clock in seconds; the caller gives one, nothing here reads the time.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Explained:
    """One node: its text and kind, how deep it stands, what it gave, and its own milliseconds.

    `series` of a range selector are those that it matches. `shared`: it was evaluated already.
    """

    text: str
    kind: str
    depth: int
    series: int
    points: int
    self_ms: float
    total_ms: float
    shared: bool = False


def explain(
    plan: Plan, storage: Storage, t_ms: int, *, end_ms: int | None = None, step_ms: int = 0,
    options: Options | None = None, clock: Clock | None = None,
) -> tuple[Explained, ...]:
    """Evaluate `plan` at `t_ms` (or from there to `end_ms`) and return its nodes, parents first.

    Without a `clock` all times are 0. Raises PromQLError if the evaluation fails.
    """
    grid = Grid(t_ms, t_ms if end_ms is None else end_ms, step_ms)
    spans = _Spans(clock or (lambda: 0.0))
    evaluation = _Timed(storage, grid, options or Options(), spans)
    if plan.type != "matrix":
        evaluation.value(plan, grid)
    found: list[Explained] = []
    _describe(plan, 0, evaluation, spans, found, set())
    return tuple(found)


class _Spans:
    """Time per node text: with what is below it, and alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.total: dict[str, float] = {}
        self.own: dict[str, float] = {}
        self.values: dict[str, Value] = {}
        self._below = [0.0]

    def enter(self) -> float:
        self._below.append(0.0)
        return self.clock()

    def leave(self, node: Node, start: float, value: Value) -> None:
        elapsed = self.clock() - start
        below = self._below.pop()
        self._below[-1] += elapsed
        self.values.setdefault(node.text, value)
        self.total[node.text] = self.total.get(node.text, 0.0) + elapsed
        self.own[node.text] = self.own.get(node.text, 0.0) + elapsed - below


class _Timed(Evaluation):
    """An evaluation that measures each node."""

    def __init__(self, storage: Storage, grid: Grid, options: Options, spans: _Spans) -> None:
        super().__init__(storage, grid, options)
        self._spans = spans

    def value(self, node: Node, grid: Grid) -> Value:
        if (node.text, grid.key) in self._values:
            return super().value(node, grid)
        start = self._spans.enter()
        value = super().value(node, grid)
        self._spans.leave(node, start, value)
        return value


def _describe(
    node: Node, depth: int, evaluation: Evaluation, spans: _Spans, found: list[Explained],
    seen: set[str],
) -> None:
    series, points = _size(node, evaluation, spans)
    found.append(Explained(
        node.text, type(node).__name__.lower(), depth, series, points,
        round(spans.own.get(node.text, 0.0) * 1000, 6),
        round(spans.total.get(node.text, 0.0) * 1000, 6), node.text in seen,
    ))
    if node.text not in seen:
        seen.add(node.text)
        for child in node.children:
            _describe(child, depth + 1, evaluation, spans, found, seen)


def _size(node: Node, evaluation: Evaluation, spans: _Spans) -> tuple[int, int]:
    value = spans.values.get(node.text)
    if isinstance(value, Vec):
        points = value.values.size if value.present is None else int(value.present.sum())
        return len(value.labels), points
    if isinstance(value, Scalar):
        return 1, len(value.values)
    if isinstance(value, Text):
        return 0, 0
    return _matched(node, evaluation)


def _matched(node: Node, evaluation: Evaluation) -> tuple[int, int]:
    """Return the series of a range vector, and the samples in reach of any step."""
    if not isinstance(node, Selector | Subquery):
        return 0, 0
    reach = evaluation.reach(node, evaluation.grid, node.range_ms)
    blocks = evaluation.blocks(node, reach)
    low, high = int(reach.ends.min()) - reach.range_ms, int(reach.ends.max())
    near = [block.between(low, high) for block in blocks]
    return sum(len(b.labels) for b in blocks), sum(len(b.labels) * len(b.times) for b in near)
