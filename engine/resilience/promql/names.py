"""Which metrics expressions can select: what has to be loaded for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from resilience.promql import regex
from resilience.promql.plan import Node, Selector, selectors

NameTest = Callable[[str], bool]


def name_test(plans: Iterable[Node]) -> frozenset[str] | NameTest:
    """Return the metric names that `plans` select, or a test of them where that is open."""
    found = dict.fromkeys(s for plan in plans for s in selectors(plan))
    exact = frozenset(s.metric_name for s in found if s.metric_name)
    others = [_by_matchers(s) for s in found if not s.metric_name]
    if not others:
        return exact
    return lambda name: name in exact or any(test(name) for test in others)


def _by_matchers(selector: Selector) -> NameTest:
    tests = [regex.test(m) for m in selector.matchers if m.name == "__name__"]
    return lambda name: all(test(name) for test in tests)
