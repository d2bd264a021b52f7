"""How waiting inflates (P8): `python bench/path/priority.py [--minutes 1]`.

The gate's own admission and queue on a simulated clock, before a server with 64 seats. Clients ask
again as soon as they are answered, 100 or 1,000 of them, one in ten of them core; once by ageing
and once by strict priorities. Inflation is time with the wait over time without it, as the gate's
metric has it. Goals: with ten times the clients p99 grows less than in the source, and with ageing
nobody waits longer than a full queue takes and what ageing allows on top.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT)]

from demo.report import quantile  # noqa: E402
from resilience.gate.admission import Admission  # noqa: E402
from resilience.gate.limits import CONCURRENCY, Limit  # noqa: E402
from resilience.gate.snapshot import Snapshot  # noqa: E402
from resilience.gate.ticket import Refusal, Ticket  # noqa: E402

SEATS, SERVICE_MS, AGEING_MS = 64, 100.0, 100
PRIORITIES = {"core": 0, "best-effort": 20}
CORE_SHARE = 0.1
SOURCE_GROWTH = 17.3 / 2.1
SLACK = 1.25  # service times vary, so a full queue takes longer now and then
PATIENT_MS = 24 * 3_600_000
CROWDS = (100, 1_000)


@dataclass(frozen=True)
class Row:
    """One tier of one run: how many were served, and what waiting made of their times."""

    served: int
    inflation: float
    p99_ms: float
    longest_wait_ms: float


@dataclass
class World:
    """A closed loop on a simulated clock: seats, clients, and what each request took."""

    ageing_ms: int | None
    now_ms: int = 1
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    ends: list[tuple[int, int, Ticket]] = field(default_factory=list[tuple[int, int, Ticket]])
    times: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {tier: [] for tier in PRIORITIES})
    numbers: int = 0

    def __post_init__(self) -> None:
        self.admission = Admission()
        self.admission.configure(10_000, self.ageing_ms)
        seats = Limit(CONCURRENCY, ("", "", ""), SEATS, "p", "r")
        self.admission.adopt(Snapshot(limits=(seats,)), self.now_ms)

    def ask(self, tier: str) -> None:
        ticket = Ticket((tier, "other", ""), "/v1/completions", self.now_ms, PRIORITIES[tier])

        def decided(refusal: Refusal | None) -> None:
            assert refusal is None, "nobody is refused here"
            self._begin(ticket)

        ticket.verdict = decided
        refusal = self.admission.offer(ticket, self.now_ms, PATIENT_MS)
        if not ticket.deadline_ms:
            decided(refusal)

    def _begin(self, ticket: Ticket) -> None:
        self.numbers += 1
        took_ms = max(1, round(self.dice.expovariate(1 / SERVICE_MS)))
        heapq.heappush(self.ends, (self.now_ms + took_ms, self.numbers, ticket))

    def run(self, crowd: int, minutes: float) -> dict[str, Row]:
        for number in range(crowd):
            self.ask("core" if number < crowd * CORE_SHARE else "best-effort")
        warm_ms, until_ms = minutes * 6_000, minutes * 60_000
        while self.ends and self.now_ms < until_ms:
            self.now_ms, _, ticket = heapq.heappop(self.ends)
            self.admission.leave(ticket, "success", 1.0, self.now_ms)
            if self.now_ms > warm_ms:
                times = (self.now_ms - ticket.arrived_ms, self.now_ms - ticket.entered_ms)
                self.times[ticket.tier].append(times)
            self.ask(ticket.tier)
        rows = {tier: row_of(times) for tier, times in self.times.items()}
        return {"all": row_of([t for times in self.times.values() for t in times]), **rows}


def row_of(times: list[tuple[float, float]]) -> Row:
    """Sum up pairs of (time with the wait, time without it), in ms."""
    if not times:
        return Row(0, math.nan, math.inf, math.inf)
    return Row(
        len(times), sum(t for t, _ in times) / sum(s for _, s in times),
        quantile([t for t, _ in times], 0.99), max(t - s for t, s in times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="simulated, for each run")
    options = parser.parse_args()
    plain_p99_ms = -SERVICE_MS * math.log(0.01)
    rows: dict[tuple[str, int], dict[str, Row]] = {}
    print("| order | clients | tier | served | p99 | inflation | longest wait |")
    print("|---|---|---|---|---|---|---|")
    for order, ageing_ms in (("ageing", AGEING_MS), ("strict", None)):
        for crowd in CROWDS:
            found = rows[order, crowd] = World(ageing_ms).run(crowd, options.minutes)
            for tier, row in found.items():
                print(f"| {order} | {crowd} | {tier} | {row.served} "
                      f"| x{row.p99_ms / plain_p99_ms:.1f} | {row.inflation:.1f} "
                      f"| {row.longest_wait_ms / 1000:.1f} s |")
    print("in the source: p99 x2.1 and inflation 1.8 at 100, x17.3 and 12.6 at 1,000")
    met = verdict(rows)
    for ok, text in met:
        print(f"{'ok    ' if ok else 'MISSED'}  {text}")
    return 0 if all(ok for ok, _ in met) else 1


def verdict(rows: dict[tuple[str, int], dict[str, Row]]) -> list[tuple[bool, str]]:
    few, many = (rows["ageing", crowd] for crowd in CROWDS)
    growth = many["all"].p99_ms / few["all"].p99_ms
    aged_ms = AGEING_MS * (PRIORITIES["best-effort"] - PRIORITIES["core"])
    bound_ms = CROWDS[1] / SEATS * SERVICE_MS * SLACK + aged_ms
    longest_ms = many["best-effort"].longest_wait_ms
    strict = rows["strict", CROWDS[1]]["best-effort"]
    return [
        (growth <= SOURCE_GROWTH, f"from {CROWDS[0]} to {CROWDS[1]} clients p99 grows {growth:.1f} "
         f"times (the source: {SOURCE_GROWTH:.1f})"),
        (longest_ms <= bound_ms, f"with ageing the longest wait is {longest_ms / 1000:.1f} s "
         f"(goal: {bound_ms / 1000:.1f} s); strict order served {strict.served} best-effort"),
    ]


if __name__ == "__main__":
    sys.exit(main())
