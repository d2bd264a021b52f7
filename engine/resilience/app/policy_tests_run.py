"""One policy test: the live engine's own tick over written samples, in simulated time.

Time begins at 0. Samples lie at multiples of the test's interval, ticks at multiples of each
policy's; a sample at the time of a tick is seen by it. Everything else is as in the live engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from resilience.app.bundles import propose
from resilience.app.engine import Engine
from resilience.app.policy_tests_compare import Failure, Moment, View, differences
from resilience.app.policy_tests_coverage import Seen, met, told
from resilience.app.steady_udfs import SteadyUdfs
from resilience.arrays import np
from resilience.cores.simulated.core import KNOBS
from resilience.model import (
    Bundle,
    Capabilities,
    Decision,
    Impulse,
    Json,
    KnobCapability,
    Policy,
    State,
    TriggerObservation,
    UdfCall,
    UdfOutcome,
    format_duration,
    instance_id,
)
from resilience.policy.cases import Case, Expectation, GivenEvent, GivenResult
from resilience.policy.claims import active_actions
from resilience.policy.failures import in_file
from resilience.policy.state import Instance, live_claims
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

HISTORY_SHOWN = 5
FOREVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one case."""

    failures: tuple[Failure, ...]
    seen: tuple[Seen, ...]


def run_case(bundle: Bundle, case: Case) -> Ran:
    """Run one case of a suite; `bundle` holds the policies of the suite. Raises SandboxError."""
    with _Run(bundle, case) as run:
        run.to_the_end()
        return Ran(tuple(run.failures), tuple(run.seen))


class _Udfs:
    """Results that the test gives; any other function runs in the sandbox.

    Each test has a sandbox of its own: a UDF that fails in one is not in quarantine in the next.
    """

    def __init__(self, bundle: Bundle, given: Sequence[GivenResult]) -> None:
        self.now_ms = 0
        self.asked: set[int] = set()
        self._given, self._sandbox = given, SteadyUdfs(bundle)

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        written = {c.key: made for c in calls if (made := self._written(c)) is not None}
        rest = [c for c in calls if c.key not in written]
        ran = self._sandbox.run(rest, deadline_ms=deadline_ms) if rest else {}
        return [written.get(c.key) or ran[c.key] for c in calls]

    def _written(self, call: UdfCall) -> UdfOutcome | None:
        fitting = [
            (g.from_ms, -place) for place, g in enumerate(self._given)
            if g.function == call.function and g.from_ms <= self.now_ms
        ]
        if not fitting:
            return None
        place = -max(fitting)[1]
        self.asked.add(place)
        given = self._given[place]
        return UdfOutcome(
            call.policy, call.instance, call.action, call.function, given.outcome,
            given.result if given.outcome == "ok" else None, "given by the test",
        )

    def close(self) -> None:
        self._sandbox.close()


def _filled(case: Case) -> MemoryStore:
    """Return a store with the samples of the case, one batch for each time."""
    store = MemoryStore(FOREVER_MS, max(len(case.series), 1))
    longest = max((len(s.values) for s in case.series), default=0)
    for step in range(longest):
        there = [s for s in case.series if step < len(s.values) and s.values[step] is not None]
        if there:
            values = np.array([s.values[step] for s in there], dtype=np.float64)
            store.append(step * case.interval_ms, [s.labels for s in there], values)
    return store


def _capabilities(case: Case) -> Capabilities:
    known = {k: c.capacity for k, c in KNOBS.items() if c.capacity is not None}
    capacities = {**known, **case.capacities}
    return Capabilities(
        "test", "", {k: KnobCapability("engine", capacity=c) for k, c in capacities.items()}
    )


class _Run:
    """The state of one test while time goes on."""

    def __init__(self, bundle: Bundle, case: Case) -> None:
        self.case = case
        self.bundle = bundle
        self.failures: list[Failure] = []
        self.seen: list[Seen] = []
        self._policies: dict[str, Policy] = {p.name: p for p in bundle.policies}
        self._udfs = _Udfs(bundle, case.given)
        self._engine = Engine(
            bundle, journal=None,
            source=EmbeddedSource(_filled(case), case.interval_ms, later_hidden=True),
            propose=propose, udfs=self._udfs, events=self._event,
        )
        self._engine.observe_capabilities(_capabilities(case))
        self._now_ms = -1
        self._ticked: dict[str, int] = {}
        self._outcomes: dict[str, list[Json]] = {}
        self._history: list[Decision] = []
        self._fired: set[tuple[str, str]] = set()
        self._impulses: list[Impulse] = []
        self._checked: dict[tuple[str, str], set[str]] = {}

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._udfs.close()

    def to_the_end(self) -> None:
        """Tick up to each expectation and look; then see whether all that was given was used."""
        waiting = list(self.case.expect)
        events = sorted(self.case.operator, key=lambda e: e.at_ms)
        for t_ms, interval_ms in self._ticks():
            while waiting and waiting[0].at_ms < t_ms:
                self._look(waiting.pop(0))
            while events and events[0].at_ms <= t_ms:
                self._engine.operator(events.pop(0).event)
            self._tick(t_ms, interval_ms)
        for expectation in waiting:
            self._look(expectation)
        self.failures.extend(self._unused(events))

    def _unused(self, events: Iterable[GivenEvent]) -> Iterator[Failure]:
        """Yield what the test gives for nothing; `events` are those that never ran."""
        for index, given in enumerate(self.case.given):
            if index not in self._udfs.asked:
                yield Failure(given.place, None, "", (), "udf_results",
                              f"nobody called `{given.function}` while this result stood")
        end = format_duration(self.case.end_ms)
        for late in events:
            yield Failure(late.place, None, "", (), "operator",
                          f"this `{late.event.kind}` never ran: no tick follows it before the "
                          f"last expectation, which is at {end}")

    def _ticks(self) -> Iterator[tuple[int, int]]:
        intervals = sorted({p.interval_ms for p in self._policies.values() if p.mode != "off"})
        following = dict.fromkeys(intervals, 0)
        while following:
            interval_ms, t_ms = min(following.items(), key=lambda item: (item[1], item[0]))
            if t_ms > self.case.end_ms:
                return
            yield t_ms, interval_ms
            following[interval_ms] = t_ms + interval_ms

    def _tick(self, t_ms: int, interval_ms: int) -> None:
        self._udfs.now_ms = self._now_ms = t_ms
        for policy in self._policies.values():
            if policy.interval_ms == interval_ms:
                self._outcomes[policy.name] = []
                self._ticked[policy.name] = t_ms
        for decision in self._engine.tick(t_ms, interval_ms).decisions:
            self._history.append(decision)
            self._impulses.extend(decision.impulses)
            if decision.to_state is State.FIRING:
                self._fired.add((decision.policy, decision.instance))
            self._note(self._policies[decision.policy], decision.instance, decision.note)
        for policy in self._policies.values():
            if policy.is_checked:
                for name, instance in self._engine.state.of(policy.name).items():
                    self._checked.setdefault((policy.name, name), set()).update(
                        met(policy, instance))

    def _note(self, policy: Policy, instance: str, note: str | None) -> None:
        if policy.is_checked:
            seen = self._checked.setdefault((policy.name, instance), set())
            seen.update(told(policy, note))

    def _event(self, event: Json) -> None:
        if event["type"] == "udf":
            self._outcomes.setdefault(event["policy"], []).append(event)

    # --- looking ---------------------------------------------------------------------------------

    def _look(self, expectation: Expectation) -> None:
        policy = self._policies[expectation.policy]
        observed = self._engine.snapshot().observations.get(policy.name, TriggerObservation())
        views = [*self._views(policy, observed)]
        wanted = set(expectation.labels)
        chosen = tuple(v for v in views if wanted <= set(v.labels))
        self.seen.extend(Seen(policy.name, v) for v in chosen)
        ids = {instance_id(v.labels) for v in chosen}
        moment = Moment(
            policy, chosen, tuple(views),
            tuple(i for i in self._impulses if i.policy == policy.name
                  and (not wanted or i.instance in ids)),
            live_claims(self._engine.state, self.bundle),
            None if observed.detail is None else in_file(observed.detail, policy, self.bundle),
        )
        history = tuple(d for d in self._history if d.policy == policy.name)[-HISTORY_SHOWN:]
        self.failures.extend(differences(expectation, moment, history))

    def _views(self, policy: Policy, observed: TriggerObservation) -> Iterator[View]:
        known = self._engine.state.of(policy.name)
        for instance in known.values():
            yield self._view(policy, instance, observed)
        fresh = [s for s in observed.series if instance_id(s.labels) not in known]
        for series in fresh:
            key = (policy.name, instance_id(series.labels))
            yield View(series.labels, State.INACTIVE, series.reason, series.value, series.truth,
                       fired=key in self._fired, checked=frozenset(self._checked.get(key, ())))
        if not known and not fresh:
            fired = any(name == policy.name for name, _ in self._fired)
            truth = observed.of(())
            yield View((), State.INACTIVE, truth.reason, None, truth.truth, fired=fired)

    def _view(self, policy: Policy, instance: Instance, observed: TriggerObservation) -> View:
        name = instance_id(instance.labels)
        outcomes = tuple(o for o in self._outcomes.get(policy.name, ()) if o["instance"] == name)
        truth = observed.of(instance.labels)
        firing = instance.state is State.FIRING
        reason = instance.reason
        if instance.state is State.INACTIVE and instance.since_ms != self._ticked[policy.name]:
            reason = truth.reason
        return View(
            instance.labels, instance.state, reason,
            instance.value if truth.value is None else truth.value, truth.truth,
            held_from=instance.held_from, claims=instance.claims,
            actions=tuple(active_actions(policy, instance)) if firing else (),
            outcomes=outcomes if firing else (), stages=instance.stages,
            fired=(policy.name, name) in self._fired,
            probing=instance.probe_since_ms is not None,
            checked=frozenset(self._checked.get((policy.name, name), ())),
        )
