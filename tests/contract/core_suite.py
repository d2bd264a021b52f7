"""What every serving core must do: one suite, run over each implementation.

A subclass gives the fixture `subject`: a Subject with a core that nobody else drives, its claim
maker and a way to let a lease end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from resilience.desired import parse_desired
from resilience.errors import CoreFencedError, CoreRefusedError, CoreReleasedError
from resilience.knobs import KNOBS, fold
from resilience.model import Actual, Capabilities, Claim, Core, Desired, Json, labels_of

THROTTLE = "throttle.max_concurrency"
DEADLINE_MS = 60_000


@dataclass
class Subject:
    """A core under test. `let_pass_ms` waits, or moves the core's clock; `epoch` is unused yet;
    `lacks` are the scheduler's knobs that this kind of core does not have, and says so."""

    core: Core
    epoch: int
    let_pass_ms: Callable[[int], None]
    generation: int = 0
    lacks: frozenset[str] = frozenset()

    def put(self, *claims: Claim, epoch: int | None = None) -> Actual:
        self.generation += 1
        desired = Desired(epoch or self.epoch, self.generation, claims)
        return self.core.put_desired(desired, deadline_ms=DEADLINE_MS)

    def values(self) -> dict[str, dict[str, Json]]:
        actual = self.core.actual(deadline_ms=DEADLINE_MS)
        return {k: {s: e.value for s, e in v.items()} for k, v in actual.effective.items()}


def claim(
    knob: str, value: Json, *, ttl_ms: int = 60_000, keep: bool = False, policy: str = "p",
    priority: int = 50, **scope: str,
) -> Claim:
    return Claim(
        policy, "0" * 16, "0", knob, labels_of(scope), value, ttl_ms, keep, priority, "r", "why"
    )


class CoreContract:
    """The tests. Each holds for any core that reports the knobs of issue 2."""

    def test_it_says_what_it_can_do(self, subject: Subject) -> None:
        found = subject.core.capabilities(deadline_ms=DEADLINE_MS)
        assert Capabilities.from_json(found.to_json()) == found
        of_the_gate = {knob.name for knob in KNOBS if knob.enforced_by == "gate"}
        assert set(found.knobs) >= of_the_gate | {
            "cache.prefix_enabled", "cache.max_running",
            "cache.admit_running", "cache.step_tokens", "cache.kv_blocks", "cache.kv_blocks_soft",
            "cache.batching", "cache.mode",
        } - subject.lacks
        assert not subject.lacks & set(found.knobs)
        assert {d["knob"] for d in found.dropped if d["reason"]} >= subject.lacks
        assert found.knobs["cache.prefix_enabled"].baseline is True
        for knob in (THROTTLE, "cache.max_running", "cache.step_tokens"):
            assert (found.knobs[knob].capacity or 0) > 0  # a ramp needs an aim
        assert "reset_prefix_cache" in found.impulses and len(found.models) == 2

    def test_claims_are_in_force_and_their_end_is_the_baseline(self, subject: Subject) -> None:
        actual = subject.put(
            claim(THROTTLE, 4, tier="core"), claim("cache.prefix_enabled", False),
            claim("cache.max_running", 3), policy_route(subject),
        )
        assert (actual.epoch, actual.generation) == (subject.epoch, subject.generation)
        assert subject.values() == {
            THROTTLE: {"tier=core": 4}, "cache.prefix_enabled": {"": False},
            "cache.max_running": {"": 3},
            "route.model": {"": {"to": other_model(subject), "share": 0.5}},
        }
        assert subject.put().effective == {} and subject.values() == {}

    def test_one_policys_end_leaves_the_others(self, subject: Subject) -> None:
        mine, others = claim(THROTTLE, 2, policy="a"), claim(THROTTLE, 5, policy="b")
        assert subject.put(mine, others).effective[THROTTLE][""].policy == "a"
        assert subject.put(others).effective[THROTTLE][""].value == 5

    def test_it_folds_as_the_engine_does(self, subject: Subject) -> None:
        to = other_model(subject)
        claims = (
            claim(THROTTLE, 9, policy="a", priority=99), claim(THROTTLE, 4, policy="b"),
            claim(THROTTLE, 1, policy="c", tier="elastic"),
            claim("cache.prefix_enabled", True, policy="a", priority=99),
            claim("cache.prefix_enabled", False, policy="b"),
            claim("route.model", {"to": to, "share": 0.1}, policy="a", priority=9),
            claim("route.model", {"to": to, "share": 0.9}, policy="b", priority=5),
        )
        document = Desired(subject.epoch, subject.generation + 1, claims).to_json()
        wanted = fold(parse_desired(document, 0)[2])
        actual = subject.put(*claims)
        assert {
            knob: {scope: (e.value, e.policy) for scope, e in scopes.items()}
            for knob, scopes in actual.effective.items()
        } == {
            knob: {scope: (c.value, c.policy) for scope, c in scopes.items()}
            for knob, scopes in wanted.items()
        }

    def test_one_leases_end_leaves_the_others(self, subject: Subject) -> None:
        subject.put(
            claim(THROTTLE, 1, ttl_ms=400, policy="short"),
            claim(THROTTLE, 6, ttl_ms=60_000, policy="long"),
            claim("cache.max_running", 2, ttl_ms=400, keep=True),
            claim("cache.step_tokens", 64, ttl_ms=400),
        )
        subject.let_pass_ms(400)
        assert subject.values() == {THROTTLE: {"": 6}, "cache.max_running": {"": 2}}

    def test_a_renewal_starts_the_lease_again(self, subject: Subject) -> None:
        subject.put(claim(THROTTLE, 1, ttl_ms=60_000))
        subject.let_pass_ms(200)
        before = subject.core.actual(deadline_ms=DEADLINE_MS).effective[THROTTLE][""]
        asked_s = time.monotonic()
        after = subject.put(claim(THROTTLE, 1, ttl_ms=60_000)).effective[THROTTLE][""]
        took_ms = 1_000 * (time.monotonic() - asked_s)      # of the lease is over by now
        assert before.remaining_ms is not None and after.remaining_ms is not None
        assert before.remaining_ms <= 59_800
        assert 59_999 - took_ms <= after.remaining_ms <= 60_000

    def test_a_repeat_of_the_newest_document_renews_nothing(self, subject: Subject) -> None:
        before = subject.put(claim(THROTTLE, 2)).effective[THROTTLE][""]
        subject.let_pass_ms(200)
        again = Desired(subject.epoch, subject.generation, (claim(THROTTLE, 2),))
        after = subject.core.put_desired(again, deadline_ms=DEADLINE_MS).effective[THROTTLE][""]
        assert before.remaining_ms is not None and after.remaining_ms is not None
        assert after.value == 2 and after.remaining_ms <= before.remaining_ms - 200

    def test_an_older_document_is_refused(self, subject: Subject) -> None:
        subject.put(claim(THROTTLE, 3))
        older = Desired(subject.epoch, subject.generation - 1)
        with pytest.raises(CoreFencedError) as caught:
            subject.core.put_desired(older, deadline_ms=DEADLINE_MS)
        assert (caught.value.epoch, caught.value.generation) == (
            subject.epoch, subject.generation,
        )
        with pytest.raises(CoreFencedError):
            subject.core.put_desired(Desired(subject.epoch - 1, 999), deadline_ms=DEADLINE_MS)
        assert subject.values() == {THROTTLE: {"": 3}}

    @pytest.mark.parametrize(
        ("knob", "value", "scope"),
        [
            ("cache.max_running", 0, {}), ("cache.step_tokens", 0, {}),
            ("cache.prefix_enabled", 1, {}), ("cache.batching", "slow", {}),
            ("cache.mode", "static", {}), ("cache.kv_blocks", 1, {}), (THROTTLE, -1, {}),
            (THROTTLE, 1.5, {}),
            (THROTTLE, 1, {"tier": "nobody"}), (THROTTLE, 1, {"tenant": "a"}),
            ("route.model", {"to": "nowhere", "share": 1.0}, {}), ("no.knob", 1, {}),
        ],
    )
    def test_nonsense_is_refused_and_changes_nothing(
        self, subject: Subject, knob: str, value: Json, scope: dict[str, str]
    ) -> None:
        good, bad = claim(THROTTLE, 7, tier="core"), scoped(claim(knob, value), scope)
        subject.put(good)
        with pytest.raises(CoreRefusedError, match=r"^[a-z`].*`"):
            subject.put(good, bad)
        assert subject.values() == {THROTTLE: {"tier=core": 7}}

    def test_an_impulse_is_done_at_most_once(self, subject: Subject) -> None:
        subject.put()
        key = f"contract-{subject.epoch}"

        def ask(epoch: int) -> Any:
            return subject.core.impulse(
                key, "reset_prefix_cache", None, epoch=epoch, deadline_ms=DEADLINE_MS
            )

        first = ask(subject.epoch)
        assert first["done"] is True and ask(subject.epoch) == first
        with pytest.raises(CoreFencedError):
            ask(subject.epoch - 1)
        with pytest.raises(CoreRefusedError, match="`explode`"):
            subject.core.impulse(
                key + "x", "explode", None, epoch=subject.epoch, deadline_ms=DEADLINE_MS
            )

    def test_a_released_core_holds_nothing_and_refuses_every_engine(self, subject: Subject) -> None:
        core: Any = subject.core
        subject.put(claim(THROTTLE, 2, keep=True), claim("cache.max_running", 3))
        actual = core.release("3 am", t_ms=1_234, deadline_ms=DEADLINE_MS)
        try:
            assert actual.effective == {} and actual.released == {"t_ms": 1_234, "reason": "3 am"}
            for epoch in (subject.epoch, subject.epoch + 1):
                with pytest.raises(CoreReleasedError, match="3 am.*resilience resume --attach"):
                    subject.put(claim(THROTTLE, 2), epoch=epoch)
            with pytest.raises(CoreReleasedError):
                core.impulse("k-released", "reset_prefix_cache", {"preempt": False},
                             epoch=subject.epoch, deadline_ms=DEADLINE_MS)
            assert subject.put().released == actual.released  # to drop claims is always taken
            assert Actual.from_json(actual.to_json()) == actual
        finally:
            assert core.resume(deadline_ms=DEADLINE_MS).released is None
        assert subject.put(claim(THROTTLE, 2)).released is None
        assert subject.values() == {THROTTLE: {"": 2}}


def scoped(plain: Claim, scope: Mapping[str, str]) -> Claim:
    return replace(plain, scope=labels_of(scope))


def other_model(subject: Subject) -> str:
    return subject.core.capabilities(deadline_ms=DEADLINE_MS).models[1]


def policy_route(subject: Subject) -> Claim:
    return claim("route.model", {"to": other_model(subject), "share": 0.5})
