"""What the demo shows: a timeline and a table. Text only; nothing is measured here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.engine import Moment
from demo.load import TIERS, Outcome

_LABEL, _CELL = 24, 12


@dataclass(frozen=True, slots=True)
class Summary:
    """One tier of one run. A client that left without a token waited longer than any percentile
    can say, so its TTFT counts as infinite; refused requests have none."""

    requests: int
    ok: int
    refused: int
    gave_up: int
    failed: int
    ttft_p50_s: float
    ttft_p99_s: float
    tokens_per_s: float


def summarize(outcomes: Sequence[Outcome], tier: str) -> Summary:
    """Count one tier's outcomes; tokens per second over the whole run, to its last answer."""
    mine = [o for o in outcomes if o.tier == tier]
    endings = Counter(o.ending for o in mine)
    waits = [math.inf if o.ttft_s is None else o.ttft_s for o in mine if o.ending != "refused"]
    run_s = max((o.at_s + o.took_s for o in outcomes), default=0.0)
    return Summary(
        requests=len(mine), ok=endings["ok"], refused=endings["refused"],
        gave_up=endings["gave_up"], failed=endings["failed"],
        ttft_p50_s=quantile(waits, 0.50), ttft_p99_s=quantile(waits, 0.99),
        tokens_per_s=sum(o.tokens for o in mine) / run_s if run_s else 0.0,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed; NaN for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def table(runs: Mapping[str, Sequence[Outcome]], patience_s: float) -> list[str]:
    """Return the lines of the table: a block a tier, a column a run."""
    lines = [" " * _LABEL + "".join(f"{name:>{_CELL}}" for name in runs)]
    for tier in TIERS:
        columns = [summarize(outcomes, tier) for outcomes in runs.values()]
        for index, (label, show) in enumerate(_ROWS):
            name = f"{tier if index == 0 else '':<12}{label:<{_LABEL - 12}}"
            lines.append(name + "".join(f"{show(c, patience_s):>{_CELL}}" for c in columns))
    return lines


def _seconds(value: float, patience_s: float) -> str:
    if math.isnan(value):
        return "-"
    return f"> {patience_s:g} s" if math.isinf(value) else f"{value:.2f} s"


_ROWS: tuple[tuple[str, Callable[[Summary, float], str]], ...] = (
    ("requests", lambda c, p: str(c.requests)),
    ("ok", lambda c, p: str(c.ok)),
    ("refused", lambda c, p: str(c.refused)),
    ("gave up", lambda c, p: str(c.gave_up)),
    ("failed", lambda c, p: str(c.failed)),
    ("TTFT p50", lambda c, p: _seconds(c.ttft_p50_s, p)),
    ("TTFT p99", lambda c, p: _seconds(c.ttft_p99_s, p)),
    ("tokens/s", lambda c, p: f"{c.tokens_per_s:.0f}"),
)


def moments(decisions: Iterable[Mapping[str, Any]]) -> list[Moment]:
    """Turn decisions into lines of the timeline."""
    return [
        Moment(int(d["t_ms"]), str(d["policy"]), "  ".join(_told(d))) for d in decisions
    ]


def _told(decision: Mapping[str, Any]) -> list[str]:
    before, after = _claims(decision["claims_before"]), _claims(decision["claims_after"])
    step = f"{decision['from']} -> {decision['to']}"
    same = decision["from"] == decision["to"]
    return [
        f"{decision['to'] if same else step} ({decision['reason']})",
        *(f"claims {name}" for name in sorted(after - before)),
        *(f"drops {name}" for name in sorted(before - after)),
    ]


def _claims(claims: Iterable[Mapping[str, Any]]) -> set[str]:
    return {f"{c['knob']}{_scope(c['scope'])} = {c['value']}" for c in claims}


def _scope(scope: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{k}={v}" for k, v in sorted(scope.items())) + "}" if scope else ""


def timeline(entries: Iterable[Moment], zero_ms: int) -> list[str]:
    """Return the lines of the timeline in order, seconds from `zero_ms`."""
    ordered = sorted(entries, key=lambda m: m.t_ms)
    width = max((len(m.who) for m in ordered), default=0)
    return [f"{(m.t_ms - zero_ms) / 1000:8.1f} s  {m.who:<{width}}  {m.what}" for m in ordered]
