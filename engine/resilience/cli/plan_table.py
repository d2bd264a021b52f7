"""The plan of an expression as an indented table: series counts and times of each step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.cli.output import table

if TYPE_CHECKING:
    from resilience.promql.plan import Node, Plan
    from resilience.promql.storage import Storage
    from resilience.promql.vector import Grid, Value

TEXT_MAX = 70


@dataclass(frozen=True, slots=True)
class Step:
    """What one node gave, and the time spent in it and not below it."""

    series: int | None
    own_ms: float


def explain(plan: Plan, storage: Storage, grid: tuple[int, int, int], lookback_ms: int) -> str:
    """Evaluate `plan` over (start, end, step) and return the table. Raises PromQLError."""
    from resilience.promql.evaluate import range_query
    from resilience.promql.evaluation import Options

    steps: dict[str, Step] = {}
    last = time.perf_counter()

    def observe(node: Node, value: Value, _: Grid) -> None:
        nonlocal last
        now = time.perf_counter()
        labels = getattr(value, "labels", None)
        steps[node.text] = Step(None if labels is None else len(labels), (now - last) * 1000)
        last = time.perf_counter()

    begun = time.perf_counter()
    if plan.type in ("vector", "scalar"):
        range_query(plan, storage, *grid, options=Options(lookback_ms), observer=observe)
    total_ms = (time.perf_counter() - begun) * 1000
    rows = _rows(plan, 0, steps, storage, set())
    return table(["PLAN", "SERIES", "MS"], rows) + f"\ntotal {total_ms:.2f} ms"


def _rows(
    node: Node, depth: int, steps: dict[str, Step], storage: Storage, told: set[str]
) -> list[list[str]]:
    """Return the rows of `node` and below; what was evaluated once is told once."""
    text = node.text if len(node.text) <= TEXT_MAX else node.text[: TEXT_MAX - 1] + "…"
    head = "  " * depth + type(node).__name__.lower() + " " + text
    if node.text in told:
        return [[head, "", "shared"]]
    told.add(node.text)
    step = steps.get(node.text)
    rows = [[head, _series(node, step, storage), f"{step.own_ms:.2f}" if step else ""]]
    for child in node.children:
        rows += _rows(child, depth + 1, steps, storage, told)
    return rows


def _series(node: Node, step: Step | None, storage: Storage) -> str:
    from resilience.promql.plan import Selector

    if step is not None and step.series is not None:
        return str(step.series)
    if isinstance(node, Selector):
        return str(sum(len(block.labels) for block in storage.select(node.matchers)))
    return ""
