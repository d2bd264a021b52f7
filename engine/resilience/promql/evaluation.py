"""The walk over a plan: each node is evaluated once per grid, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from resilience.arrays import np
from resilience.errors import PromQLError
from resilience.promql import windows
from resilience.promql.budget import SERIES_COST, Budget
from resilience.promql.calls import KEEP_NAME, RANGE_FUNCTIONS
from resilience.promql.nodes import EVALUATE
from resilience.promql.plan import Call, Node, Number, Selector, String, Subquery, walk
from resilience.promql.signatures import TIME_DEPENDENT
from resilience.promql.storage import ABSENT, Block, Floats, Memo, Storage
from resilience.promql.streaming import Part, Stream
from resilience.promql.vector import (
    Grid,
    Scalar,
    Text,
    Value,
    Vec,
    drop_marked,
    drop_name,
    evaluation_error,
)
from resilience.promql.windows import RangeFunction, Reach

STEPS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate.

    `lookback_ms`: how old the newest sample may be. `delayed_names`: Prometheus' feature of the
    same name, metric names go at the end. `subquery_step_ms`: the step of `[5m:]`.
    """

    lookback_ms: int = 300_000
    delayed_names: bool = False
    subquery_step_ms: int = 60_000


# Told each node's value once it is known: (node, value, grid).
Observer = Callable[[Node, Value, Grid], None]


class Evaluation:
    """One instant or range. Subexpressions of several plans are shared while it lives."""

    def __init__(
        self, storage: Storage, grid: Grid, options: Options, observer: Observer | None = None
    ) -> None:
        self.storage = storage
        self.grid = grid
        self.options = options
        self.observer = observer
        self.start_ms = int(grid.times[0]) if grid.size else 0
        self.end_ms = grid.end_ms
        # Window bounds are worth keeping beyond this evaluation only if many steps share them.
        self.memo = storage.memo if grid.size > 1 else Memo()
        # Each with what it cost: an expression pays for all of it, whoever evaluated it first.
        self._values: dict[Hashable, tuple[Value, int]] = {}
        self._blocks: dict[Hashable, tuple[Sequence[Block], int]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin with another expression: it has a budget of its own."""
        self.budget = Budget(self.grid.size)

    # --- values ---

    def value(self, node: Node, grid: Grid) -> Value:
        """Return the value of a vector, scalar or string node over `grid`."""
        key = (node.text, grid.key)
        known = self._values.get(key)
        if known is not None:
            self.budget.charge(known[1])
            return known[0]
        before = self.budget.spent
        found = self._evaluated(node, grid)
        if isinstance(found, Vec):
            self._charge_series(len(found.labels), grid)
        self._values[key] = (found, self.budget.spent - before)
        if self.observer is not None:
            self.observer(node, found, grid)
        return found

    def _evaluated(self, node: Node, grid: Grid) -> Value:
        if grid.size > 1 and is_fixed(node):
            return _repeated(self.value(node, grid.first), grid.size)
        try:
            return EVALUATE[type(node)](self, node, grid)
        except PromQLError as error:
            error.part = error.part or node.text  # the innermost one says it first
            raise

    def _charge_series(self, count: int, grid: Grid) -> None:
        self.budget.charge(count * (SERIES_COST + grid.size))

    def charge_labels(self, count: int) -> None:
        """Charge for so many labels that are read or pieces of labels that are written."""
        self.budget.charge(count * SERIES_COST)

    def vec(self, node: Node, grid: Grid) -> Vec:
        value = self.value(node, grid)
        assert isinstance(value, Vec)
        return value

    def scalar(self, node: Node, grid: Grid) -> Floats:
        value = self.value(node, grid)
        assert isinstance(value, Scalar)
        return value.values

    def text(self, node: Node, grid: Grid) -> str:
        value = self.value(node, grid)
        assert isinstance(value, Text)
        return value.value

    # --- series ---

    def reach(self, node: Selector | Subquery, grid: Grid, range_ms: int) -> Reach:
        """Return where the windows of `node` end, by `@` and `offset`."""
        at = node.at
        if at is None:
            ends, key = grid.times, grid.key
        else:
            fixed = self.start_ms if at == "start" else self.end_ms if at == "end" else at
            assert isinstance(fixed, int)
            ends = np.full(grid.size, fixed, dtype=np.int64)
            key = (fixed, grid.size, -1)
        return Reach(ends - node.offset_ms, range_ms, grid.times, (*key, node.offset_ms))

    def blocks(self, node: Selector | Subquery, reach: Reach) -> Sequence[Block]:
        """Return the series under a selector, or a subquery's results as series."""
        if isinstance(node, Selector):
            return self.storage.select(node.matchers)
        key = (node.expr.text, node.step_ms, reach.key, reach.range_ms)
        known = self._blocks.get(key)
        if known is not None:
            self.budget.charge(known[1])
            return known[0]
        before = self.budget.spent
        found = self._subquery(node, reach)
        self._blocks[key] = (found, self.budget.spent - before)
        return found

    def _subquery(self, node: Subquery, reach: Reach) -> Sequence[Block]:
        """Evaluate below a subquery on multiples of its step, for all windows at once."""
        step = node.step_ms or self.options.subquery_step_ms
        start = ((int(reach.ends.min()) - reach.range_ms) // step + 1) * step
        end = int(reach.ends.max())
        if end < start:
            return []
        if (end - start) // step > STEPS_MAX:
            raise evaluation_error(f"subquery has more than {STEPS_MAX} steps, use a longer step")
        inner = Grid(start, end, step)
        vec = drop_marked(self.vec(node.expr, inner))
        values = vec.values
        if vec.present is not None:
            values = np.where(vec.present, values, ABSENT)
        if not vec.labels:
            return []
        return [Block(inner.times, vec.labels, np.ascontiguousarray(values), clock=inner.key)]

    def over_range(self, node: Node, grid: Grid, function: RangeFunction) -> Vec:
        """Apply a range function to a matrix node."""
        assert isinstance(node, Selector | Subquery)
        reach = self.reach(node, grid, node.range_ms)
        blocks, charge = self.blocks(node, reach), self.budget.charge
        return windows.collect(blocks, reach, self.memo, function, charge)

    def parts(self, node: Node, grid: Grid) -> Stream | None:
        """Return the value of `node` group by group, if that saves holding all of it.

        None: it is small, known already, observed, or not of a kind that comes in parts.
        """
        if self.observer is not None or self.options.delayed_names or grid.size == 1:
            return None
        if (node.text, grid.key) in self._values or is_fixed(node):
            return None
        if isinstance(node, Selector) and not node.range_ms:
            reach = self.reach(node, grid, self.options.lookback_ms)
            blocks = self.blocks(node, reach)
            if all(block.clean for block in blocks):
                labels = [x for block in blocks for x in block.labels]
                found = windows.latest_parts(blocks, reach, self.memo)
                return Stream(labels, self._charged(found, grid), True)
        if isinstance(node, Call) and node.function in RANGE_FUNCTIONS:
            matrix = node.args[0]
            assert isinstance(matrix, Selector | Subquery)
            reach = self.reach(matrix, grid, matrix.range_ms)
            blocks = self.blocks(matrix, reach)
            labels = [x for block in blocks for x in block.labels]
            keep = node.function in KEEP_NAME
            if keep or len({drop_name(x) for x in labels}) == len(labels):
                function = RANGE_FUNCTIONS[node.function]
                found = windows.range_parts(
                    blocks, reach, self.memo, function, self.budget.charge
                )
                return Stream(labels, self._charged(found, grid), keep)
        return None

    def _charged(self, parts: Iterator[Part], grid: Grid) -> Iterator[Part]:
        for part in parts:
            self._charge_series(len(part[0]), grid)
            yield part

    def latest(self, node: Selector, grid: Grid, times: bool = False) -> Vec:
        """Return the newest samples within the look-back, or their times in seconds."""
        reach = self.reach(node, grid, self.options.lookback_ms)
        return windows.latest(self.blocks(node, reach), reach, self.memo, times)


def is_fixed(node: Node) -> bool:
    """Whether every step gives the same: all selectors have `@`, and nothing asks for the time."""
    return _has_no_time(node) and any(
        isinstance(n, Selector | Subquery) and n.at is not None for n in walk(node)
    )


def _has_no_time(node: Node) -> bool:
    if isinstance(node, Selector | Subquery):
        return node.at is not None
    if isinstance(node, Number | String):
        return True
    if isinstance(node, Call) and node.function in TIME_DEPENDENT:
        return False
    return all(_has_no_time(c) for c in node.children)


def _repeated(value: Value, steps: int) -> Value:
    """Show one step at all steps, without copies."""
    if isinstance(value, Scalar):
        return Scalar(np.broadcast_to(value.values, (steps,)))
    if isinstance(value, Text):
        return value
    shape = (len(value.labels), steps)
    present = None if value.present is None else np.broadcast_to(value.present, shape)
    return Vec(value.labels, np.broadcast_to(value.values, shape), present, value.drop)
