"""Metric names that nobody exports, or not in the server's version."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.catalogue import Known, Target
from resilience.policy.lint_view import Remark, View, wants_buckets
from resilience.promql.plan import Binary, Selector, walk


def metrics(view: View) -> Iterator[Remark]:
    """Names that the target, or without a target the catalogue, does not know."""
    exported = view.context.metric_names
    for selector in view.selectors:
        name = selector.metric_name
        if not name or (exported is not None and name in exported):
            continue
        if wants_buckets(view, selector) and not name.endswith("_bucket"):
            continue                          # lint_series.histograms says what to use
        if _has_alternative(view, selector, name):
            continue
        if exported is None:
            yield from _by_catalogue(view, selector, name)
        else:
            yield _not_exported(view, selector, name, exported)


def _has_alternative(view: View, selector: Selector, name: str) -> bool:
    """Whether an `or` offers the same metric under the name of another version as well."""
    if not any(node.op == "or" for node in view.binaries):
        return False
    exported = view.context.metric_names
    others = {
        n.metric_name for above in view.above(selector)
        if isinstance(above, Binary) and above.op == "or"
        for n in walk(above) if isinstance(n, Selector)
    }
    family = catalogue.names_of(name) & others - {name}
    return any(other in exported if exported is not None else True for other in family)


def _by_catalogue(view: View, selector: Selector, name: str) -> Iterator[Remark]:
    known = catalogue.lookup(name)
    if known is None:
        yield _unknown(view, selector, name)
    elif known.part == "base":
        yield _base(selector, name)
    else:
        target = view.context.target
        if target is not None and _is_foreign(known, target):
            yield Remark(selector, "metric-foreign", f"`{name}` is exported by "
                         f"{catalogue.SERVERS[known.metric.stack]}, not by {target}")
            return
        yield from _in_version(selector, name, known, target or catalogue.CURRENT)
        yield from _of_target(selector, name, known, target)


def _is_foreign(known: Known, target: Target) -> bool:
    return known.metric.stack in catalogue.SERVERS and known.metric.stack != target.stack


def _unknown(view: View, selector: Selector, name: str) -> Remark:
    guess = catalogue.guess(name) if view.context.may_guess() else None
    hint = f"did you mean `{guess}`?" if guess else None
    if name.count(":") > 1:                   # level:metric:operations
        hint = "what a recording rule makes is only in Prometheus: run with `--prometheus URL`"
    return Remark(selector, "metric-unknown", f"metric `{name}` is not in the catalogue", hint)


def _base(selector: Selector, name: str, severe: bool = False) -> Remark:
    return Remark(selector, "histogram-base",
                  f"`{name}` names a histogram's base series, which no server exports",
                  f"use `{name}_bucket`, `{name}_sum` or `{name}_count`",
                  "error" if severe else "warning")


def _in_version(
    selector: Selector, name: str, known: Known, target: Target
) -> Iterator[Remark]:
    metric = known.metric
    who = str(target) if target.version and target.stack == metric.stack else \
        f"current {catalogue.SERVERS[metric.stack]}" if metric.last else ""
    if target.dropped(metric):
        now = known.successor()
        if now is not None:
            yield Remark(selector, "metric-renamed", f"{who} does not export `{name}`",
                         f"use `{now}`")
        else:
            yield Remark(selector, "metric-removed",
                         f"{who} does not export `{name}`, and nothing replaces it")
    elif target.lacks_yet(metric):
        before = catalogue.predecessor(known, target)
        since = ".".join(map(str, metric.since or ()))
        yield Remark(selector, "metric-too-new", f"{who} does not export `{name}`, which came with "
                     f"{since}", f"use `{before}`" if before else None)


def _of_target(
    selector: Selector, name: str, known: Known, target: Target | None
) -> Iterator[Remark]:
    metric = known.metric
    if target is not None and known.head == "" and metric.stack == "vllm":
        yield Remark(selector, "metric-unknown", f"{target} does not export `{name}`",
                     f"use `vllm:{name}`; only NIM leaves the prefix out")
    elif metric.needs is not None:
        yield Remark(selector, "metric-optional", f"`{name}` is exported only with {metric.needs}",
                     "without it the policy is blind",
                     "warning" if metric.missing_by_default else "info")


def _not_exported(
    view: View, selector: Selector, name: str, exported: frozenset[str]
) -> Remark:
    severe = view.context.require_metrics and view.on_missing_metric != "warn"
    if f"{name}_bucket" in exported:
        return _base(selector, name, severe)
    known = catalogue.lookup(name)
    other = None if known is None else known.successor() or catalogue.predecessor(known)
    if other is not None and ("(" in other or other in exported):
        hint = f"use `{other}`"
    else:
        guess = catalogue.guess(name, exported) if view.context.may_guess() else None
        hint = f"did you mean `{guess}`?" if guess else "the policy would be blind"
    return Remark(selector, "metric-missing", f"metric `{name}` is not exported by the target",
                  hint, "error" if severe else "warning")
