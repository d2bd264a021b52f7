"""What a trigger's expression says: true, false or unknown for each label set, and why.

`compile_trigger` finds the plain queries that any source can answer: for each leaf of the
expression what fires and where there is evidence at all (its domain), and for each selector how
fresh it is. `observe` is pure: from the answers it derives the truth, Kleene over and/or/unless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from resilience.model import (
    Labels,
    QueryInput,
    QueryResult,
    TriggerObservation,
)
from resilience.promql.evidence import Evidence, Side, combined, leaf_truth
from resilience.promql.failing import located_result
from resilience.promql.parser import parse_checked
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Binary,
    Call,
    Matching,
    Node,
    Plan,
    Selector,
    matching_text,
    selectors,
    walk,
)
from resilience.promql.relabel import absent_labels

_ALWAYS_KNOWN = frozenset({"absent", "absent_over_time", "vector"})
_INPUT_SERIES_MAX = 100
_AGES_MS = (3_000, 6_000, 15_000, 30_000, 45_000, 90_000, 180_000, 300_000)


@dataclass(frozen=True, slots=True)
class Freshness:
    """The query of the newest sample's time under one selector, and how far back that looks."""

    query: str
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of the expression that is judged by itself.

    `fire` and `domain` are queries. `zero_is_false`: a root comparison with `bool`.
    `known_labels` set: there is always an answer, and with no result it is false for them.
    """

    fire: str
    domain: str
    freshness: tuple[Freshness, ...] = ()
    zero_is_false: bool = False
    known_labels: Labels | None = None
    domain_has_value: bool = True


@dataclass(frozen=True, slots=True)
class Branch:
    """`and`, `or` or `unless` of two parts."""

    op: str
    left: Leaf | Branch
    right: Leaf | Branch
    matching: Matching


Part: TypeAlias = Leaf | Branch


@dataclass(frozen=True, slots=True)
class TriggerPlan:
    """A compiled trigger. `queries` are all instant queries that `observe` needs answered; `expr`
    is canonical, `written` what stands in the policy."""

    expr: str
    root: Part
    queries: tuple[str, ...] = ()
    plan: Plan | None = field(default=None, compare=False)
    written: str = field(default="", compare=False)


@lru_cache(maxsize=4_096)
def compile_trigger(expr: str) -> TriggerPlan:
    """Return the plan of a trigger's truth. Raises PromQLError as `parse` does."""
    plan = parse_checked(expr)
    root = _part(plan, True)
    return TriggerPlan(plan.text, root, tuple(dict.fromkeys(_queries(root))), plan, expr)


def _part(node: Node, is_root: bool) -> Part:
    if isinstance(node, Binary) and node.op in SET_OPERATORS and node.matching is not None:
        return Branch(node.op, _part(node.lhs, False), _part(node.rhs, False), node.matching)
    fresh = _freshness(node)
    if isinstance(node, Binary) and node.op in COMPARISONS and not node.bool_result:
        domain, has_value = _domain(node)
        return Leaf(node.text, domain, fresh, domain_has_value=has_value)
    if isinstance(node, Binary) and node.bool_result and is_root:
        known = () if node.type == "scalar" else None
        return Leaf(node.text, node.text, fresh, zero_is_false=True, known_labels=known)
    if isinstance(node, Call) and node.function in _ALWAYS_KNOWN:
        labels = () if node.function == "vector" else absent_labels(node.args[0])
        return Leaf(node.text, node.text, (), known_labels=labels)
    if node.type == "scalar":
        return Leaf(node.text, node.text, (), known_labels=())
    return Leaf(node.text, node.text, fresh)


def _domain(node: Binary) -> tuple[str, bool]:
    """Return the query that has a series wherever the comparison has evidence, and whether its
    value is the compared one. A sum keeps labels, matching and NaN."""
    if node.rhs.type == "scalar" and _is_constant(node.rhs):
        return node.lhs.text, True
    if node.lhs.type == "scalar" and _is_constant(node.lhs):
        return node.rhs.text, True
    clause = matching_text(node.matching)
    return f"({node.lhs.text}) + {clause + ' ' if clause else ''}({node.rhs.text})", False


def _is_constant(node: Node) -> bool:
    """Whether no series decides the value of a scalar."""
    return not any(isinstance(n, Selector) for n in walk(node))


def _freshness(node: Node) -> tuple[Freshness, ...]:
    """Selectors that are fixed in time by `@` are as fresh as they will ever be.

    The two sides of an `or` stand in for each other (an old and a new name of a metric), so they
    are as fresh as what the `or` takes.
    """
    pinned = {s.text for s in selectors(node) if s.at is not None}
    found: dict[str, Freshness] = {}
    for group in _alternatives(node):
        current = [s for s in group if s.text not in pinned]
        for offset_ms in dict.fromkeys(s.offset_ms for s in current):
            bare = dict.fromkeys(_newest(s) for s in current if s.offset_ms == offset_ms)
            query = f"max({' or '.join(bare)})"
            found[query] = Freshness(query, offset_ms)
    return tuple(found.values())


def _newest(selector: Selector) -> str:
    """Return the query of the newest samples' times under one selector.

    `timestamp` takes the name off, so it fails for series that differ by name only. Where a
    selector may have several names the age is looked up in steps instead, rounded up; they are
    three times the usual scrape intervals, which is what `max_age` is by default.
    """
    offset_ms = selector.offset_ms
    series = Selector(selector.metric_name, selector.matchers, 0, offset_ms)
    if selector.metric_name:
        return f"timestamp({series.text})"
    steps = (
        f"count(last_over_time({Selector(None, selector.matchers, ms + 1, offset_ms).text})) * 0"
        f" + time() - {(ms + offset_ms) / 1000:g}"
        for ms in _AGES_MS
    )
    return f"(({' or '.join(steps)}) and on () count({series.text}))"


def _alternatives(node: Node) -> Iterator[tuple[Selector, ...]]:
    """Yield the selectors below `node`, those below one `or` together."""
    if isinstance(node, Selector) or (isinstance(node, Binary) and node.op == "or"):
        yield selectors(node)
        return
    for child in node.children:
        yield from _alternatives(child)


def _queries(part: Part) -> list[str]:
    if isinstance(part, Branch):
        return _queries(part.left) + _queries(part.right)
    return [part.fire, part.domain, *(f.query for f in part.freshness)]


# --- observing ---


def observe(
    plan: TriggerPlan, results: Mapping[str, QueryResult], t_ms: int, max_age_ms: int
) -> TriggerObservation:
    """Return what `plan` says at `t_ms`, from the answers to all of `plan.queries`.

    Instances are in order of their labels, which have no metric name. A query that failed or was
    not answered makes all unknown; so do samples that are older than `max_age_ms`.
    """
    side = _side(plan.root, results, t_ms, max_age_ms)
    detail = None if side.detail is None else _placed(side.detail, plan, results)
    series = tuple(truth.series(labels) for labels, truth in sorted(side.truths.items()))
    return TriggerObservation(
        series, side.missing, detail, _inputs(plan, results, side.newest_ms)
    )


def _placed(detail: str, plan: TriggerPlan, results: Mapping[str, QueryResult]) -> str:
    """Return `detail`; an evaluation error with its line and column in what was written."""
    for query in plan.queries:
        result = results.get(query)
        if result is not None and result.error == detail and result.failed is not None:
            return located_result(result, plan.written).error or detail
    return detail


def _side(
    part: Part, results: Mapping[str, QueryResult], t_ms: int, max_age_ms: int
) -> Side:
    if isinstance(part, Branch):
        left = _side(part.left, results, t_ms, max_age_ms)
        right = _side(part.right, results, t_ms, max_age_ms)
        return combined(part.op, left, right, part.matching)
    fresh = [(results.get(f.query), f.offset_ms) for f in part.freshness]
    evidence = Evidence(
        results.get(part.fire), results.get(part.domain), tuple(fresh), t_ms, max_age_ms,
        part.zero_is_false, part.known_labels, part.domain_has_value,
    )
    return leaf_truth(evidence)


def _inputs(
    plan: TriggerPlan, results: Mapping[str, QueryResult], newest_ms: int | None
) -> tuple[QueryInput, ...]:
    """Return the queries of the leaves with their values; freshness is in `sample_ms`."""
    found: dict[str, QueryInput] = {}
    for leaf in leaves(plan.root):
        for query in dict.fromkeys((leaf.fire, leaf.domain)):
            found[query] = QueryInput(query, _value(results.get(query)), newest_ms)
    return tuple(found.values())


def leaves(part: Part) -> Sequence[Leaf]:
    """Return the parts of a trigger that are judged by themselves, from left to right."""
    if isinstance(part, Branch):
        return [*leaves(part.left), *leaves(part.right)]
    return [part]


def _value(result: QueryResult | None) -> object:
    """Return one number as it is, several as [labels, value], none as null."""
    if result is None or result.error is not None or not result.samples:
        return None
    if len(result.samples) == 1 and not result.samples[0].labels:
        return result.samples[0].value
    return [[dict(s.labels), s.value] for s in result.samples[:_INPUT_SERIES_MAX]]
