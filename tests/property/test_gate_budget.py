"""Budgets and results on a simulated clock, against what they promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from resilience.gate.budget import Budget
from resilience.gate.results import MESSAGE_COST, Answer, ConflictError, Results, Run
from resilience.model import BudgetSettings

SETTINGS = st.builds(
    BudgetSettings, deadline_ms=st.integers(10, 20_000), attempts=st.integers(1, 3),
    backoff_ms=st.integers(1, 5_000), attempt_ms=st.none() | st.integers(10, 20_000),
)
steps = st.lists(
    st.tuples(st.integers(0, 5_000), st.floats(0, 0.999), st.floats(0, 1)), max_size=8)


@given(SETTINGS, st.integers(0, 10**9), steps)
def test_a_request_never_spends_more_than_its_budget(
    given_settings: BudgetSettings, start_ms: int, course: list[tuple[int, float, float]]
) -> None:
    """Queue, attempts that fail after a share of their time, and pauses, until nothing is left."""
    budget = Budget(given_settings, start_ms, given_settings.deadline_ms)
    now_ms, attempts = start_ms, 0
    for queued_ms, luck, share in course:
        now_ms += min(queued_ms, budget.left_ms(now_ms))
        attempt_ms = budget.begin(now_ms)
        attempts += 1
        assert 0 <= attempt_ms <= budget.left_ms(now_ms)
        assert attempt_ms < budget.left_ms(now_ms) or attempt_ms == 0
        now_ms += int(attempt_ms * share)
        pause_ms = budget.pause_ms(now_ms, partial(float, luck))
        if pause_ms is None:
            break
        assert pause_ms < given_settings.backoff_ms * 2 ** (attempts - 1)
        now_ms += pause_ms
    assert attempts <= given_settings.attempts
    assert now_ms <= start_ms + given_settings.deadline_ms


@given(SETTINGS, st.floats(0, 0.999))
def test_the_jitter_is_full(given_settings: BudgetSettings, luck: float) -> None:
    budget = Budget(given_settings, 0, 10**9)
    budget.begin(0)
    pause_ms = budget.pause_ms(0, lambda: luck)
    assert pause_ms == (
        None if given_settings.attempts == 1 else int(luck * given_settings.backoff_ms))


KEEP_MS, BYTES_MAX = 1_000, 8 * MESSAGE_COST
keys = st.sampled_from([("a", "1"), ("a", "2"), ("b", "1")])


@dataclass(eq=False)
class Client:
    """A duplicate that waits, and what it was called with."""

    key: tuple[str, ...]
    calls: list[Answer | None] = field(default_factory=list)

    def wake(self, answer: Answer | None) -> None:
        self.calls.append(answer)


class ResultsModel(RuleBasedStateMachine):
    """At most one run a key at any time; a good answer serves all until it is old or crowded out.
    """

    @initialize()
    def begin_empty(self) -> None:
        self.results = Results(KEEP_MS, BYTES_MAX)
        self.now = 0
        self.running: dict[tuple[str, ...], Run] = {}
        self.noted: dict[tuple[str, ...], list[Any]] = {}
        self.good: dict[tuple[str, ...], tuple[int, Answer]] = {}
        self.waiting: dict[tuple[str, ...], list[Client]] = {}
        self.clients: list[Client] = []
        self.serial = 0

    @rule(ms=st.integers(0, 700))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(key=keys)
    def request(self, key: tuple[str, ...]) -> None:
        found = self.results.begin(key, b"same", self.now)
        if isinstance(found, Run):
            assert key not in self.running, "a second inference"
            self.running[key], self.noted[key] = found, []
        elif found is None:
            client = Client(key)
            assert self.results.wait(key, client.wake) is self.running[key]
            self.waiting.setdefault(key, []).append(client)
            self.clients.append(client)
        else:
            ended_ms, answer = self.good[key]
            assert found == answer and self.now - ended_ms < KEEP_MS

    @rule(key=keys)
    def another_request_under_the_id(self, key: tuple[str, ...]) -> None:
        try:
            found = self.results.begin(key, b"other", self.now)
        except ConflictError:
            return
        assert isinstance(found, Run) and key not in self.running
        self.results.end(found, False, self.now)

    @rule(key=keys, size=st.integers(0, 3 * MESSAGE_COST))
    def message(self, key: tuple[str, ...], size: int) -> None:
        if key in self.running:
            self.serial += 1
            message = {"body": b"x" * size, "n": self.serial}
            self.noted[key].append(message)
            self.results.add(self.running[key], message)

    @rule(key=keys, good=st.booleans())
    def end(self, key: tuple[str, ...], good: bool) -> None:
        if key not in self.running:
            return
        run, waited = self.running[key], self.waiting.pop(key, [])
        kept = good and run.messages is not None
        self.results.end(run, good, self.now)
        if kept:
            answer = tuple(self.noted[key])
            self.good[key] = (self.now, answer)
            assert all(client.calls == [answer] for client in waited)
            del self.running[key]
        elif waited:
            assert waited[0].calls == [None], "who waited longest runs"
            self.waiting[key], self.noted[key] = waited[1:], []
        else:
            del self.running[key]

    @rule(key=keys)
    def a_duplicate_leaves(self, key: tuple[str, ...]) -> None:
        if self.waiting.get(key):
            client = self.waiting[key].pop(0)
            self.results.leave(self.running[key], client.wake)
            self.clients.remove(client)

    @invariant()
    def it_stays_within_its_bounds(self) -> None:
        assert 0 <= self.results.size <= BYTES_MAX
        assert self.results.waiting == sum(map(len, self.waiting.values()))
        assert all(len(client.calls) <= 1 for client in self.clients)

    def teardown(self) -> None:
        """When all has ended and aged out, nothing is left."""
        for key in list(self.running):
            while key in self.running:
                self.end(key, False)
        self.now += KEEP_MS
        last = self.results.begin(("z",), b"", self.now)
        assert isinstance(last, Run)
        self.results.end(last, False, self.now)
        assert (len(self.results), self.results.size, self.results.waiting) == (0, 0, 0)
        assert all(len(client.calls) == 1 for client in self.clients), "a lost wake-up"


TestResults = ResultsModel.TestCase
TestResults.settings = settings(max_examples=60, stateful_step_count=40)
