"""A short part of the simulation, and proof that it finds what it is there to find."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from resilience.app.bus import Bus
from resilience.app.reconcile import Reconciler
from resilience.cores.simulated.core import SimulatedCore
from resilience.desired import ClaimTable
from resilience.knobs import LiveClaim
from resilience.model import Claim, JournalEntry, Json, Reason, Truth
from resilience.policy.state import EngineState
from tests.simulation.invariants import Violation, Watch
from tests.simulation.world import DiskJournal, World

SEEDS = int(os.environ.get("RESILIENCE_SIMULATION_SEEDS", "25"))


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_a_storm_breaks_no_promise(first: int) -> None:
    crashes = decisions = 0
    for seed in range(first, first + 5):
        watch = Watch(World(seed))
        watch.run(100)
        crashes += watch.world.restarts
        decisions += watch.decisions
    assert decisions > 50, "a storm in which nothing happens proves nothing"
    assert crashes > 0


def test_the_same_seed_is_the_same_world() -> None:
    one, two = Watch(World(7)), Watch(World(7))
    one.run(60)
    two.run(60)
    assert one.world.disk.rows == two.world.disk.rows


# --- planted bugs: each is a way in which such an engine has been wrong ---


def skip_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskJournal, "append", _crash_only)


def _crash_only(self: DiskJournal, batch: Sequence[JournalEntry]) -> None:
    saved = dict(self._disk.rows)
    try:
        _append(self, batch)
    finally:
        self._disk.rows.clear()
        self._disk.rows.update(saved)


_append = DiskJournal.append


def never_delete_a_row(patch: pytest.MonkeyPatch) -> None:
    def append(self: DiskJournal, batch: Sequence[JournalEntry]) -> None:
        _append(self, [e for e in batch if e.body is not None])

    patch.setattr(DiskJournal, "append", append)


def ignore_leases(patch: pytest.MonkeyPatch) -> None:
    def live(self: ClaimTable, now_ms: int) -> tuple[LiveClaim, ...]:
        del now_ms
        return self.claims

    patch.setattr(ClaimTable, "live", live)


def renew_dead_claims(patch: pytest.MonkeyPatch) -> None:
    want = Bus._want

    def hoard(self: Bus, claims: Sequence[Claim]) -> None:
        kept = {c.key: c for c in getattr(self, "_hoard", ())}
        kept.update({c.key: c for c in claims})
        self._hoard = tuple(kept.values())  # type: ignore[attr-defined]
        want(self, self._hoard)  # type: ignore[attr-defined]

    patch.setattr(Bus, "_want", hoard)


def never_renew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconciler, "renewal_due", lambda self: False)
    patch.setattr(Reconciler, "look_due", lambda self: False)


def forget_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def attach(self: Reconciler, deadline_ms: int) -> object:
        self.capabilities = self._core.capabilities(deadline_ms=deadline_ms)
        self.epoch, self.generation = 1, 0
        return self.capabilities

    patch.setattr(Reconciler, "attach", attach)


def forget_done_impulses(patch: pytest.MonkeyPatch) -> None:
    impulse = SimulatedCore._impulse

    def forgetful(self: SimulatedCore, key: str, name: str, args: Json, epoch: int) -> Json:
        self._results.clear()
        return impulse(self, key, name, args, epoch)

    patch.setattr(SimulatedCore, "_impulse", forgetful)


def resolve_on_absence(patch: pytest.MonkeyPatch) -> None:
    import resilience.policy.decide as decide

    truth = decide._resolve_truth

    def careless(*args: object) -> Truth | None:
        found = truth(*args)  # type: ignore[arg-type]
        return Truth.TRUE if found is Truth.UNKNOWN else found

    patch.setattr(decide, "_resolve_truth", careless)


def trust_stale_samples(patch: pytest.MonkeyPatch) -> None:
    import resilience.app.engine as engine

    patch.setattr(engine.Engine, "_max_age_ms", lambda self, policy: 10**9)


def unknown_is_true(patch: pytest.MonkeyPatch) -> None:
    from resilience.promql.truth import observe

    def eager(*args: object) -> object:
        found = observe(*args)  # type: ignore[arg-type]
        series = tuple(replace(s, truth=Truth.TRUE) for s in found.series)
        return replace(found, series=series)

    patch.setattr("resilience.app.engine.observe", eager)


def clocks_die_with_the_process(patch: pytest.MonkeyPatch) -> None:
    from resilience.policy.state import Instance

    load = Instance.from_json

    def forgetful(body: object) -> Instance:
        return replace(load(body), true_since_ms=None, firing_since_ms=None)

    patch.setattr(Instance, "from_json", forgetful)


def removed_policies_keep_firing(patch: pytest.MonkeyPatch) -> None:
    def revise(*args: object) -> tuple[object, tuple[()]]:
        state = args[2]
        assert isinstance(state, EngineState)
        return state, ()

    patch.setattr("resilience.app.engine.revise", revise)


def let_claims_fall_below_the_floor(patch: pytest.MonkeyPatch) -> None:
    def careless(claims: Sequence[Claim], *rest: object) -> tuple[Claim, ...]:
        return tuple(claims)

    patch.setattr("resilience.policy.tick.clip", careless)


def call_blindness_a_breach(patch: pytest.MonkeyPatch) -> None:
    from resilience.promql.truth import observe

    def dramatic(*args: object) -> object:
        found = observe(*args)  # type: ignore[arg-type]
        series = tuple(replace(s, reason=Reason.BREACH) for s in found.series)
        return replace(found, series=series, missing=Reason.BREACH)

    patch.setattr("resilience.app.engine.observe", dramatic)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    skip_the_journal, never_delete_a_row, ignore_leases, renew_dead_claims, never_renew,
    forget_the_epoch, forget_done_impulses, resolve_on_absence, trust_stale_samples,
    unknown_is_true, clocks_die_with_the_process, removed_policies_keep_firing,
    let_claims_fall_below_the_floor, call_blindness_a_breach,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=lambda p: p.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(40):
            Watch(World(seed)).run(100)
