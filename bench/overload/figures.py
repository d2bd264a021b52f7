"""What a run of the overload benchmark comes to, and whether the goals are met. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from demo.load import TIERS, Outcome
from demo.report import quantile

CORE = TIERS[0]
TTFT_SLO_S = 1.0  # what rules/core-ttft-burn.yaml holds core to; best-effort has no bound
TTFT_RATIO_MAX = 3.0
QUEUE_LIMIT_SHARE_MAX = 1 / 8
TOKENS_SHARE_MIN = 0.9
CLAIMS_GONE_S = 60.0
LABELS = ("bare", "queue limit", "rules")
Runs = dict[tuple[str, int], list["Run"]]


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one server. `tokens_per_s`, `steps_per_s` and `preemptions_per_s` by the server's
    own counts in the load window; `recovery_s` from the load's end until nothing runs or waits;
    `claims_s` until no claim is left, NaN where there is no engine, infinite when some were."""

    outcomes: tuple[Outcome, ...]
    window_s: float
    tokens_per_s: float
    steps_per_s: float
    preemptions_per_s: float
    recovery_s: float
    claims_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of one run."""

    requests: int
    refused: int
    failed: int
    goodput_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float


def tier_of(run: Run, tier: str) -> Tier:
    """Return one tier's figures. Who gave up without a token counts with the time it had waited,
    which flatters the server: it would have been longer. Who failed without one has no wait."""
    mine = [o for o in run.outcomes if o.tier == tier]
    waits = [
        o.took_s if o.ttft_s is None else o.ttft_s for o in mine
        if o.ttft_s is not None or o.ending == "gave_up"
    ]
    gaps = [o.per_token_s for o in mine if o.per_token_s is not None]
    bound_s = TTFT_SLO_S if tier == CORE else math.inf
    good = sum(o.ending == "ok" and o.ttft_s is not None and o.ttft_s <= bound_s for o in mine)
    return Tier(
        requests=len(mine), refused=sum(o.ending == "refused" for o in mine),
        failed=sum(o.ending in ("failed", "gave_up") for o in mine),
        goodput_per_s=good / run.window_s,
        ttft_p50_s=quantile(waits, 0.5), ttft_p99_s=quantile(waits, 0.99),
        gap_p50_s=quantile(gaps, 0.5), gap_p99_s=quantile(gaps, 0.99),
    )


def median_of(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    found = [value for run in runs if not math.isnan(value := of(run))]
    return statistics.median(found) if found else math.nan


@dataclass
class Goals:
    """The goals in words, each with whether it was met."""

    lines: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])

    def add(self, met: bool, text: str) -> None:
        self.lines.append((met, text))


def goals_of(runs: Runs) -> Goals:
    """Judge the medians of all runs; what was not run is not judged."""
    goals = Goals()
    ours, ours_1x = runs.get(("rules", 3), []), runs.get(("rules", 1), [])
    p99_s = median_of(ours, _core_p99)
    _judge_latency(goals, p99_s, median_of(ours_1x, _core_p99), runs.get(("queue limit", 3), []))
    lost = [tier_of(run, CORE) for run in ours]
    refused, failed = sum(t.refused for t in lost), sum(t.failed for t in lost)
    goals.add(refused + failed == 0, f"core: {refused} refused, {failed} failed (goal: none)")
    bare = median_of(runs.get(("bare", 3), []), lambda r: r.tokens_per_s)
    share = median_of(ours, lambda r: r.tokens_per_s) / bare if bare else math.nan
    goals.add(share >= TOKENS_SHARE_MIN,
              f"tokens/s are {share:.0%} of bare (goal: at least {TOKENS_SHARE_MIN:.0%})")
    claims_s = max((run.claims_s for run in ours), default=math.nan)
    goals.add(claims_s <= CLAIMS_GONE_S,
              f"the last claim went {claims_s:.1f} s after the load (goal: {CLAIMS_GONE_S:g} s)")
    return goals


def _judge_latency(goals: Goals, p99_s: float, own_s: float, limited: Sequence[Run]) -> None:
    ratio = p99_s / own_s
    goals.add(ratio <= TTFT_RATIO_MAX, "no core request came at 1x: give it more --seconds"
              if math.isnan(ratio) else
              f"core TTFT p99 at 3x is {ratio:.1f} x its own at 1x (goal: {TTFT_RATIO_MAX:g})")
    share = p99_s / median_of(limited, _core_p99)
    goals.add(share <= QUEUE_LIMIT_SHARE_MAX,
              f"core TTFT p99 at 3x is 1/{1 / share:.1f} of vLLM's own queue limit's (goal: 1/8)")


def _core_p99(run: Run) -> float:
    return tier_of(run, CORE).ttft_p99_s


def table(runs: Runs) -> list[str]:
    """Return the table in Markdown, medians over the runs: a row a server, load and tier."""
    lines = [
        "| server | load | tier | requests | refused | failed | goodput/s | TTFT p50 / p99 | "
        "per token p50 / p99 | tokens/s | recovery |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (label, load), found in sorted(runs.items(), key=lambda pair: _order(pair[0])):
        for tier in TIERS:
            cells = [tier_of(run, tier) for run in found]
            lines.append(_row(label, load, tier, cells, found))
    return lines


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return key[1], LABELS.index(key[0])


def _row(label: str, load: int, tier: str, cells: Sequence[Tier], runs: Sequence[Run]) -> str:
    def middle(of: Callable[[Tier], float]) -> float:
        return statistics.median(map(of, cells))

    return (
        f"| {label} | {load}x | {tier} | {middle(lambda c: c.requests):.0f} "
        f"| {middle(lambda c: c.refused):.0f} | {middle(lambda c: c.failed):.0f} "
        f"| {middle(lambda c: c.goodput_per_s):.2f} "
        f"| {middle(lambda c: c.ttft_p50_s):.2f} / {middle(lambda c: c.ttft_p99_s):.2f} s "
        f"| {1000 * middle(lambda c: c.gap_p50_s):.0f} / "
        f"{1000 * middle(lambda c: c.gap_p99_s):.0f} ms "
        f"| {median_of(runs, lambda r: r.tokens_per_s):.0f} "
        f"| {median_of(runs, lambda r: r.recovery_s):.0f} s |"
    )
