"""Random PromQL over the series of data.family(). The source of choices is a parameter, so that
hypothesis can shrink what it finds and a plain seed can make a list."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choose(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


COUNTERS = ("req_total", "tokens_total", "ttft_count", "ttft_sum", 'req_total{code="ok"}')
GAUGES = ("queue", "usage", "limit", "sparse", "flappy", "odd", "single", "info")
MATCHERS = (
    "", "", "", '{pod="a"}', '{pod!="a"}', '{pod=~"a|b"}', '{pod!~"a.*"}', '{zone="z0",pod=~".+"}',
    '{nothing=""}', '{job="vllm"}',
)
RANGES = ("1m", "2m30s", "5m", "17s", "20m", "45")
OFFSETS = ("", "", "", "", " offset 5m", " offset -90s", " @ end()", " @ start()",
           " @ 1793493000", " @ 1793493000.5 offset 1m")
LABELS = ("pod", "zone", "job", "code", "le", "__name__", "kind", "nothing")
RANGE_FUNCTIONS = (
    "rate", "increase", "delta", "irate", "idelta", "changes", "resets", "deriv",
    "sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "count_over_time",
    "stddev_over_time", "stdvar_over_time", "last_over_time", "present_over_time",
    "absent_over_time", "mad_over_time", "ts_of_max_over_time", "ts_of_min_over_time",
    "ts_of_last_over_time",
)
PLAIN_FUNCTIONS = (
    "abs", "ceil", "floor", "sqrt", "exp", "ln", "log2", "log10", "sgn", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad",
    "round", "timestamp", "minute", "hour", "day_of_week", "day_of_month", "day_of_year",
    "days_in_month", "month", "year", "absent", "sort", "sort_desc", "histogram_count",
)
AGGREGATIONS = ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar")
ARITHMETIC = ("+", "-", "*", "/", "%", "^", "atan2")
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
NUMBERS = ("0", "1", "2", "0.5", "-1.5", "1e3", "Inf", "-Inf", "NaN", "10", "0x1F", "5m")


class Generator:
    """Writes one expression of bounded depth."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose

    def vector(self, depth: int) -> str:
        makers: list[Callable[[int], str]] = [self.selector]
        if depth > 0:
            makers = [
                self.selector, self.over_range, self.over_range, self.plain, self.aggregation,
                self.aggregation, self.arithmetic, self.comparison, self.sets, self.special,
                self.negation, self.histogram, self.ranking,
            ]
        return self.choose(makers)(depth - 1)

    def name(self) -> str:
        return self.choose((*COUNTERS, *GAUGES, "ttft_bucket", '{"http.requests"}'))

    def selector(self, depth: int) -> str:
        name = self.name()
        matchers = "" if "{" in name else self.choose(MATCHERS)
        return name + matchers + self.choose(OFFSETS)

    def matrix(self, depth: int) -> str:
        modifier = self.choose(OFFSETS)
        if depth > 0 and self.choose((True, False, False)):
            step = self.choose(("30s", "1m", "45s", "", "7s"))
            return f"({self.vector(depth - 1)})[{self.choose(RANGES)}:{step}]{modifier}"
        name = self.name()
        matchers = "" if "{" in name else self.choose(MATCHERS)
        return f"{name}{matchers}[{self.choose(RANGES)}]{modifier}"

    def over_range(self, depth: int) -> str:
        kind = self.choose(("plain",) * 8 + ("quantile", "predict", "smooth"))
        matrix = self.matrix(depth)
        if kind == "quantile":
            q = self.choose(("0.5", "0.9", "0", "1", "-1", "2", "NaN"))
            return f"quantile_over_time({q}, {matrix})"
        if kind == "predict":
            return f"predict_linear({matrix}, {self.choose(('60', '1h', '-30'))})"
        if kind == "smooth":
            return f"double_exponential_smoothing({matrix}, 0.3, 0.6)"
        return f"{self.choose(RANGE_FUNCTIONS)}({matrix})"

    def plain(self, depth: int) -> str:
        return f"{self.choose(PLAIN_FUNCTIONS)}({self.vector(depth)})"

    def scalar(self, depth: int) -> str:
        kind = self.choose(("number",) * 5 + ("time", "scalar", "pi", "arithmetic"))
        if kind == "scalar":
            return f"scalar({self.vector(min(depth, 1))})"
        if kind == "arithmetic":
            op = self.choose(ARITHMETIC)
            return f"({self.choose(NUMBERS)} {op} {self.choose(NUMBERS)})"
        return {"number": self.choose(NUMBERS), "time": "time()", "pi": "pi()"}[kind]

    def labels(self) -> str:
        count = self.choose((0, 1, 1, 2))
        return ", ".join(self.choose(LABELS) for _ in range(count))

    def grouping(self) -> str:
        return self.choose(("", f" by ({self.labels()})", f" without ({self.labels()})"))

    def aggregation(self, depth: int) -> str:
        inner = self.vector(depth)
        op = self.choose((*AGGREGATIONS, *AGGREGATIONS, "quantile", "count_values"))
        if op == "quantile":
            q = self.choose(("0.5", "0.1", "1", "-1", "3"))
            return f"quantile{self.grouping()} ({q}, {inner})"
        if op == "count_values":
            return f'count_values{self.grouping()} ("value", round({inner}))'
        return f"{op}{self.grouping()} ({inner})"

    def ranking(self, depth: int) -> str:
        op = self.choose(("topk", "bottomk"))
        k = self.choose(("1", "2", "3", "0", "2.7"))
        return f"{op}{self.grouping()} ({k}, {self.vector(depth)})"

    def matching(self) -> str:
        return self.choose((
            "", "", f"on ({self.labels()})", f"ignoring ({self.labels()})",
            f"on ({self.labels()}) group_left ()", f"ignoring ({self.labels()}) group_right (kind)",
            "on (pod) group_left (zone)", "on (pod)", "ignoring (code)",
        ))

    def arithmetic(self, depth: int) -> str:
        op = self.choose(ARITHMETIC)
        return self.binary(depth, op)

    def comparison(self, depth: int) -> str:
        op = self.choose(COMPARISONS) + self.choose(("", "", " bool"))
        return self.binary(depth, op)

    def binary(self, depth: int, op: str) -> str:
        kind = self.choose(("vectors", "left", "right"))
        if kind == "left":
            return f"({self.scalar(depth)} {op} {self.vector(depth)})"
        if kind == "right":
            return f"({self.vector(depth)} {op} {self.scalar(depth)})"
        return f"({self.vector(depth)} {op} {self.matching()} {self.vector(depth)})"

    def sets(self, depth: int) -> str:
        op = self.choose(("and", "or", "unless"))
        matching = self.choose(("", f"on ({self.labels()})", f"ignoring ({self.labels()})"))
        return f"({self.vector(depth)} {op} {matching} {self.vector(depth)})"

    def negation(self, depth: int) -> str:
        return self.choose(("-{}", "-({})", "+{}")).format(self.vector(depth))

    def special(self, depth: int) -> str:
        inner = self.vector(depth)
        return self.choose((
            f'label_replace({inner}, "new", "$1-x", "pod", "(.).*")',
            f'label_replace({inner}, "zone", "z$2", "zone", "z(.)(x)?")',
            f'label_join({inner}, "joined", "-", "pod", "zone", "nothing")',
            f"clamp({inner}, 1, 10)", f"clamp_min({inner}, {self.scalar(0)})",
            f"clamp_max({inner}, {self.scalar(0)})", f"round({inner}, {self.choose(('5', '0.1'))})",
            f"vector({self.scalar(depth)})", "minute()", "hour()",
        ))

    def histogram(self, depth: int) -> str:
        inner = self.choose((
            "ttft_bucket", "rate(ttft_bucket[5m])", "sum by (le) (rate(ttft_bucket[5m]))",
            "sum by (le, zone) (increase(ttft_bucket[2m30s]))", "ttft_bucket > 100",
        ))
        if self.choose((True, False, False)):
            low, high = self.choose((("0", "1"), ("-Inf", "0.3"), ("0.2", "+Inf"), ("2", "1")))
            return f"histogram_fraction({low}, {high}, {inner})"
        q = self.choose(("0.5", "0.9", "0.99", "0", "1", "-0.1", "1.5", "NaN"))
        return f"histogram_quantile({q}, {inner})"


def expression(choose: Choose, depth: int = 3) -> str:
    """Return one random expression."""
    return Generator(choose).vector(depth)


def expressions(seed: int, count: int) -> list[str]:
    """Return `count` different expressions that only the seed decides."""
    source = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[expression(source.choice, source.choice((1, 2, 2, 3, 3, 4)))] = None
    return list(found)
