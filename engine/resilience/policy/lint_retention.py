"""Expressions that read further back than the engine's store remembers, or ahead of the time."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.model import format_duration
from resilience.policy.lint_view import Remark, View
from resilience.promql.reach import spans

_LITTLE = 0.1  # of a window: an hour of rates over 5m is as good without its oldest minutes
_RAISE = "raise `scrape.retention`, or configure `prometheus`"


def retention(view: View) -> Iterator[Remark]:
    """A recording holds all of it, so only the live engine would show that it is blind."""
    kept_ms = view.context.retention_ms
    if view.derived:
        return
    yield from _ahead(view)
    if kept_ms is None:
        return
    kept = format_duration(kept_ms)
    for span in spans(view.plan):
        shown = f"`{span.selector.text}`"
        if span.fixed:
            yield Remark(span.selector, "beyond-retention",
                         f"{shown} reads a fixed time, and without a Prometheus the engine forgets "
                         f"it after {kept}", "use `offset`, or configure `prometheus`")
        elif span.near_ms >= kept_ms:
            yield Remark(span.selector, "beyond-retention",
                         f"{shown} reads samples from {format_duration(span.near_ms)} ago, and "
                         f"without a Prometheus the engine keeps them for {kept}: it finds nothing",
                         _RAISE)
        elif span.far_ms > kept_ms * (1 + _LITTLE):
            yield Remark(span.selector, "beyond-retention",
                         f"{shown} reads {format_duration(span.far_ms)} back, and without a "
                         f"Prometheus the engine keeps samples for {kept}: it is judged over less",
                         _RAISE)


def _ahead(view: View) -> Iterator[Remark]:
    for span in spans(view.plan):
        if span.near_ms < 0 and not span.fixed:
            yield Remark(span.selector, "beyond-retention",
                         f"`{span.selector.text}` reads {format_duration(-span.near_ms)} ahead of "
                         "its time: there is nothing yet", "write `offset` without the sign")
