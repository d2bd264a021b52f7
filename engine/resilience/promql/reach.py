"""How far back an expression reads: offsets, ranges and subqueries added up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilience.promql.plan import Node, Selector, Subquery


@dataclass(frozen=True, slots=True)
class Span:
    """What one selector reads: samples of `near_ms` to `far_ms` before the evaluation time; equal
    for an instant selector. `fixed`: it reads around a time of its own instead (`@ 1700000000`)."""

    selector: Selector
    near_ms: int
    far_ms: int
    fixed: bool = False


def looks_ahead(plan: Node) -> bool:
    """Return whether a selector may read samples of after the evaluation time."""
    return any(span.fixed or span.near_ms < 0 for span in spans(plan))


def spans(plan: Node) -> Iterator[Span]:
    """Yield the span of every selector of `plan`."""
    waiting: list[tuple[Node, int, int, bool]] = [(plan, 0, 0, False)]
    while waiting:
        node, near_ms, far_ms, fixed = waiting.pop()
        if isinstance(node, Selector | Subquery):
            if node.at is not None:
                near_ms = far_ms = 0
                fixed = isinstance(node.at, int)
            near_ms += node.offset_ms
            far_ms += node.offset_ms + node.range_ms
        if isinstance(node, Selector):
            yield Span(node, near_ms, far_ms, fixed)
        waiting.extend((child, near_ms, far_ms, fixed) for child in reversed(node.children))
