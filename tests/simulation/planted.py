"""Bugs to plant through the ports: each is a way in which such an engine has been wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from resilience.app.bus import Bus
from resilience.app.canary import CanaryJournal
from resilience.app.reconcile import Reconciler
from resilience.app.recorder import Recorder
from resilience.cores.simulated.core import SimulatedCore
from resilience.desired import ClaimTable, parse_desired
from resilience.knobs import LiveClaim
from resilience.model import (
    Action,
    Claim,
    Execution,
    JournalEntry,
    Json,
    Policy,
    Reason,
    Truth,
    UdfOutcome,
)
from resilience.policy.arbitration import Budget
from resilience.policy.records import Move
from resilience.policy.state import EngineState, Instance, Ledger, Verification
from resilience.policy.tick import Tick
from tests.simulation.ports import DiskJournal


def skip_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskJournal, "append", _crash_only)


def _crash_only(self: DiskJournal, batch: Sequence[JournalEntry]) -> None:
    saved = self._disk.copy()
    try:
        _append(self, batch)
    finally:
        self._disk.rows, self._disk.log = saved.rows, saved.log


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
    from resilience.app.prefetch import Prefetch

    patch.setattr(Prefetch, "_max_age_ms", lambda self, policy: 10**9)


def unknown_is_true(patch: pytest.MonkeyPatch) -> None:
    from resilience.promql.truth import observe

    def eager(*args: object) -> object:
        found = observe(*args)  # type: ignore[arg-type]
        series = tuple(replace(s, truth=Truth.TRUE) for s in found.series)
        return replace(found, series=series)

    patch.setattr("resilience.app.prefetch.observe", eager)


def clocks_die_with_the_process(patch: pytest.MonkeyPatch) -> None:
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

    patch.setattr("resilience.app.prefetch.observe", dramatic)



def write_row_by_row(patch: pytest.MonkeyPatch) -> None:
    def append(self: DiskJournal, batch: Sequence[JournalEntry]) -> None:
        for entry in batch:
            _append(self, [entry])

    patch.setattr(DiskJournal, "append", append)


def let_the_core_take_old_documents(patch: pytest.MonkeyPatch) -> None:
    def put(self: ClaimTable, body: Json, now_ms: int) -> None:
        self.epoch, self.generation, self.claims = parse_desired(body, now_ms)

    patch.setattr(ClaimTable, "put", put)


def fight_when_fenced(patch: pytest.MonkeyPatch) -> None:
    work = Bus._work

    def fight(self: Bus, t_ms: int, deadline_ms: int) -> list[Execution]:
        if self._fenced and self._reconciler is not None:
            self._reconciler.epoch += 1
            self._fenced, self._changed = False, True
        return work(self, t_ms, deadline_ms)

    patch.setattr(Bus, "_work", fight)


def take_claims_while_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimTable, "insist", lambda self: None)


def let_the_largest_limit_rule(patch: pytest.MonkeyPatch) -> None:
    def most(claims: Iterable[LiveClaim]) -> dict[str, dict[str, LiveClaim]]:
        found: dict[str, dict[str, LiveClaim]] = {}
        for claim in sorted(claims, key=lambda c: c.value):
            scope = ",".join(f"{k}={v}" for k, v in claim.scope)
            found.setdefault(claim.knob, {})[scope] = claim
        return found

    patch.setattr("resilience.desired.fold", most)
    patch.setattr("resilience.app.reconcile.fold", most)


def let_a_candidate_write_the_active_rows(patch: pytest.MonkeyPatch) -> None:
    def append(self: CanaryJournal, batch: Sequence[JournalEntry]) -> None:
        self._journal.append(batch)

    patch.setattr(CanaryJournal, "append", append)


def forget_the_quarantine(patch: pytest.MonkeyPatch) -> None:
    from resilience.policy.letting_go import roll_back

    def briefly(policy: Policy, instance: Instance, now_ms: int, why: Reason, _: int) -> Instance:
        return roll_back(policy, instance, now_ms, why, 0)

    patch.setattr(Tick, "_shut", lambda *args: None)
    patch.setattr("resilience.policy.checks.roll_back", briefly)


def let_a_guard_act_blind(patch: pytest.MonkeyPatch) -> None:
    import resilience.policy.checks as checks

    look = checks._look

    def jumpy(*args: object) -> object:
        truth, value = look(*args)  # type: ignore[arg-type]
        return (Truth.TRUE if truth is Truth.UNKNOWN else truth), value

    patch.setattr(checks, "_look", jumpy)


def let_a_verify_be_impatient(patch: pytest.MonkeyPatch) -> None:
    def failed(v: Verification, *args: object) -> bool:
        return not (v.done or v.met_ms is not None or v.blind_ms is not None)

    patch.setattr("resilience.policy.checks._has_failed", failed)


def let_every_member_of_a_group_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("resilience.policy.tick.holders", lambda *args: {})


def count_no_disruptive_action(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Budget, "take", lambda self: None)


def let_a_repeat_renew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("resilience.desired._same", lambda one, other: False)


def trust_samples_of_a_later_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "mind_the_clock", lambda *args: None)


def forget_the_cooldown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("resilience.policy.machine.allowed", lambda *args: True)


def ignore_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("resilience.policy.tick.pauses", lambda *args: {})


def record_only_changes_of_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Move, "differs", property(lambda self: self.before.state is not self.after.state))


def act_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconciler, "_write_intent", lambda *args: None)


def lose_quarantines_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """What seed 1873 was about: the check for quarantines forgives a crash on a full disk only."""
    load = Ledger.from_json

    def forgetful(body: object) -> Ledger:
        return replace(load(body), quarantine={})

    patch.setattr(Ledger, "from_json", forgetful)


def believe_a_dead_worker(patch: pytest.MonkeyPatch) -> None:
    from resilience.app.prefetch import Prefetch

    expand = Prefetch._expand

    def gullible(self: Prefetch, outcome: UdfOutcome, action: Action) -> UdfOutcome:
        good = replace(outcome, outcome="ok", result=outcome.result or {"max_running": 1})
        return expand(self, good, action)

    patch.setattr(Prefetch, "_expand", gullible)


def leave_the_clocks_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("resilience.app.engine.in_time", lambda state, *rest: state)


PLANTED: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    skip_the_journal, never_delete_a_row, write_row_by_row, ignore_leases, renew_dead_claims,
    never_renew, forget_the_epoch, let_the_core_take_old_documents, fight_when_fenced,
    take_claims_while_released, let_the_largest_limit_rule, forget_done_impulses,
    resolve_on_absence, trust_stale_samples, unknown_is_true, clocks_die_with_the_process,
    removed_policies_keep_firing, let_claims_fall_below_the_floor, call_blindness_a_breach,
    let_a_candidate_write_the_active_rows, forget_the_quarantine, let_a_guard_act_blind,
    let_a_verify_be_impatient, let_every_member_of_a_group_hold, count_no_disruptive_action,
    forget_the_cooldown, ignore_pauses, record_only_changes_of_state, act_before_the_journal,
    lose_quarantines_at_a_restart, let_a_repeat_renew,
    trust_samples_of_a_later_clock, leave_the_clocks_ahead, believe_a_dead_worker,
)  # fmt: skip
# Where the search begins, for those that need a rare storm: they would take most of the time.
FIRST_SEED = {
    "forget_the_cooldown": 57, "leave_the_clocks_ahead": 46, "resolve_on_absence": 23,
    "trust_stale_samples": 23, "lose_quarantines_at_a_restart": 17,
    "removed_policies_keep_firing": 12,
}
