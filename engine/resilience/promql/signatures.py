"""The functions and aggregations of Prometheus 3.5: names, argument types, what is out of scope."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.promql.plan import PlanType

AGGREGATIONS = frozenset({
    "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar",
    "topk", "bottomk", "quantile", "count_values",
})
EXPERIMENTAL_AGGREGATIONS = frozenset({"limitk", "limit_ratio"})
PARAMETER_TYPES: dict[str, PlanType] = {
    "topk": "scalar", "bottomk": "scalar", "quantile": "scalar", "count_values": "string",
}


@dataclass(frozen=True, slots=True)
class Signature:
    """`optional` counts arguments at the end that may be left out; -1: the last may repeat."""

    name: str
    args: tuple[PlanType, ...]
    returns: PlanType = "vector"
    optional: int = 0
    experimental: bool = False

    @property
    def fewest(self) -> int:
        if self.optional < 0:
            return len(self.args) - 1
        return len(self.args) - self.optional

    @property
    def most(self) -> int | None:
        return None if self.optional < 0 else len(self.args)


def _same(
    names: str, *args: PlanType, optional: int = 0, experimental: bool = False
) -> list[Signature]:
    return [Signature(n, args, "vector", optional, experimental) for n in names.split()]


SIGNATURES: dict[str, Signature] = {
    s.name: s
    for s in [
        *_same(
            "abs absent acos acosh asin asinh atan atanh ceil cos cosh deg exp floor histogram_avg "
            "histogram_count histogram_stddev histogram_stdvar histogram_sum ln log10 log2 rad sgn "
            "sin sinh sort sort_desc sqrt tan tanh timestamp", "vector",
        ),
        *_same(
            "absent_over_time avg_over_time changes count_over_time delta deriv idelta increase "
            "irate last_over_time max_over_time min_over_time present_over_time rate resets "
            "stddev_over_time stdvar_over_time sum_over_time", "matrix",
        ),
        *_same(
            "first_over_time mad_over_time ts_of_last_over_time ts_of_max_over_time "
            "ts_of_min_over_time", "matrix", experimental=True,
        ),
        *_same(
            "day_of_month day_of_week day_of_year days_in_month hour minute month year",
            "vector", optional=1,
        ),
        *_same("clamp_max clamp_min", "vector", "scalar"),
        *_same(
            "sort_by_label sort_by_label_desc", "vector", "string", optional=-1, experimental=True,
        ),
        Signature("clamp", ("vector", "scalar", "scalar")),
        *_same("double_exponential_smoothing", "matrix", "scalar", "scalar", experimental=True),
        Signature("histogram_fraction", ("scalar", "scalar", "vector")),
        Signature("histogram_quantile", ("scalar", "vector")),
        Signature("label_join", ("vector", "string", "string", "string"), optional=-1),
        Signature("label_replace", ("vector", "string", "string", "string", "string")),
        Signature("pi", (), "scalar"),
        Signature("predict_linear", ("matrix", "scalar")),
        Signature("quantile_over_time", ("scalar", "matrix")),
        Signature("round", ("vector", "scalar"), optional=1),
        Signature("scalar", ("vector",), "scalar"),
        Signature("time", (), "scalar"),
        Signature("vector", ("scalar",)),
    ]
}

EXPERIMENTAL = frozenset(name for name, s in SIGNATURES.items() if s.experimental)
OUT_OF_SCOPE: dict[str, str] = {
    "info": "function `info` is experimental and not supported",
    "limitk": "aggregation `limitk` is experimental and not supported",
    "limit_ratio": "aggregation `limit_ratio` is experimental and not supported",
    "holt_winters": "function `holt_winters` left Prometheus 3",
    **{
        name: f"function `{name}` is newer than Prometheus 3.5 and experimental"
        for name in (
            "histogram_quantiles", "ts_of_first_over_time", "start", "end", "step", "range",
            "min_of", "max_of",
        )
    },
}
# The feature is named as Prometheus names it.
SWITCH_ON = (
    "switch it on with `--enable-feature=promql-experimental-functions`, or "
    "`enable_features: [promql-experimental-functions]` in the Engine document"
)
INSTEAD: dict[str, str] = {
    "holt_winters": "it is `double_exponential_smoothing` now; " + SWITCH_ON,
    "histogram_quantiles": "use one `histogram_quantile` for each quantile",
}

# What these return depends on the time of evaluation, whatever their arguments are fixed to.
TIME_DEPENDENT = frozenset({
    "day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month",
    "predict_linear", "time", "timestamp", "year",
})
KEYWORDS = frozenset({
    "and", "or", "unless", "atan2", "offset", "by", "without", "on", "ignoring", "group_left",
    "group_right", "bool", "inf", "nan",
})
# Where a selector may stand, Prometheus takes these for the names of metrics.
NAMES_TOO = frozenset({"and", "or", "unless", "offset", "by", "without"})
