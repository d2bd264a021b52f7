"""The sliding window of a token quota against a list of what has come when, while requests are
estimated, stream, settle and break, and the claim itself comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from resilience.gate.admission import Admission
from resilience.gate.limits import QUOTA, Limit
from resilience.gate.snapshot import Snapshot
from resilience.gate.ticket import Ticket
from resilience.gate.windows import SLOTS

WINDOW_MS = 2_000
SLOT_MS = WINDOW_MS // SLOTS
QUOTED = Limit(QUOTA, ("core", "", ""), {"tokens": 250, "window_ms": WINDOW_MS}, "p", "r")
MOST = 200


@dataclass
class World:
    """An admission with one quota, and what it has counted: [when, tokens]."""

    admission: Admission = field(default_factory=Admission)
    now: int = 1
    since: int | None = None
    counted: list[list[int]] = field(default_factory=list[list[int]])
    inside: list[tuple[Ticket, list[int]]] = field(default_factory=list[Any])

    def claim(self, held: bool) -> None:
        self.now += 1  # who came in the same millisecond is not told apart
        if held != (self.since is not None):
            self.since, self.counted = (self.now if held else None), []
        limits = (QUOTED,) if held else ()
        self.admission.adopt(Snapshot(limits=limits, needs_tokens=held), self.now)

    def used(self) -> int:
        """What came in this slot and the nineteen before."""
        oldest = self.now // SLOT_MS - SLOTS
        return sum(tokens for at_ms, tokens in self.counted if at_ms // SLOT_MS > oldest)

    def arrive(self, prompt: int) -> None:
        ticket = Ticket(("core", "a", ""), "/v1/completions", self.now)
        ticket.prompt_tokens, ticket.reserved = prompt, prompt + 16
        used = self.used()
        passes = self.since is None or used == 0 or used + prompt <= MOST
        assert (self.admission.offer(ticket, self.now) is None) is passes
        if passes:
            mine = [self.now, prompt]
            self.counted += [mine] if self.since is not None else []
            self.inside.append((ticket, mine))

    def stream(self, which: int, tokens: int) -> None:
        if self.inside:
            ticket, _ = self.inside[which % len(self.inside)]
            ticket.first_ms = ticket.first_ms or self.now
            ticket.chunks += tokens
            self.admission.stream(ticket, tokens, self.now)
            if self.since is not None:
                self.counted.append([self.now, tokens])

    def end(self, which: int, actual: tuple[int, int] | None) -> None:
        """Settle by (prompt, output), or break without a word about either."""
        if not self.inside:
            return
        ticket, mine = self.inside.pop(which % len(self.inside))
        if actual is not None:
            ticket.actual_prompt, ticket.actual_output = actual
            mine[1] = actual[0]
            more = actual[1] - ticket.chunks
            if self.since is not None and (more > 0 or ticket.first_ms >= self.since):
                self.counted.append([self.now if more > 0 else ticket.first_ms, more])
        self.admission.leave(ticket, "success", 1.0, self.now)

    def wait(self, ms: int) -> None:
        self.now += ms

    def check(self) -> None:
        window = self.admission._meters._windows.get((QUOTED.kind, QUOTED.scope))
        assert (window is not None) is (self.since is not None)
        if window is not None:
            assert window.totals(self.now)[0] == self.used() >= 0, "a debt lets in too much"


steps = st.lists(st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 100, 500, 900, 1_200])),
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 100, 500, 900, 1_200])),
    st.tuples(st.just("arrive"), st.integers(0, 150)),
    st.tuples(st.just("arrive"), st.integers(0, 150)),
    st.tuples(st.just("stream"), st.integers(0, 9), st.integers(1, 30)),
    st.tuples(st.just("end"), st.integers(0, 9),
              st.none() | st.tuples(st.integers(0, 200), st.integers(0, 60))),
    st.tuples(st.just("claim"), st.sampled_from([True] * 7 + [False])),
), max_size=60)


LONG = [("arrive", 100), ("wait", 1_200), ("end", 0, (10, 0)), ("wait", 900), ("arrive", 150)]


@settings(max_examples=300, deadline=None)
@given(steps)
@example(LONG)
def test_a_quota_counts_what_has_come_and_nothing_else(script: list[Any]) -> None:
    world = World()
    world.claim(True)
    for name, *arguments in script:
        getattr(world, name)(*arguments)
        world.check()
