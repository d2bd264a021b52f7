"""The outbox of one receiver: what is told, tried again, given up and resolved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.app.outbox import QUEUE_MAX, TRIES_MAX, Alert, Outbox

T = 1_800_000_000_000


def alert(key: str = "a", starts_ms: int = T) -> Alert:
    return Alert(key, (("alertname", key),), (), starts_ms, 30_000)


@pytest.fixture
def outbox() -> Callable[..., Outbox]:
    def make(*told: Alert, repeats: bool = False, resolves: bool = True) -> Outbox:
        return Outbox(told, repeats=repeats, resolves=resolves, jitter=lambda: 1.0)

    return make


def test_what_ends_before_the_first_try_is_never_told(outbox: Callable[..., Outbox]) -> None:
    box = outbox()
    box.want([alert()], T)
    box.want([], T + 1)
    assert box.batch(T + 1) == ()


def test_what_may_have_arrived_is_resolved(outbox: Callable[..., Outbox]) -> None:
    box = outbox()
    box.want([alert()], T)
    box.failed(box.batch(T), "no answer", T, final=False)
    box.want([], T + 1)
    assert [a.status for a in box.batch(T + 60_000)] == ["firing"]
    box.done(box.batch(T + 60_000), T + 60_000)
    box.want([], T + 60_001)
    assert [a.status for a in box.batch(T + 60_001)] == ["resolved"]


def test_tries_are_bounded_and_wait_longer_each_time(outbox: Callable[..., Outbox]) -> None:
    box, now, waits, lost = outbox(), T, list[int](), 0
    while not lost:
        box.want([alert()], now)
        lost = box.failed(box.batch(now), "no", now, final=False)
        waits.append(box.not_before_ms - now)
        assert box.batch(now) == ()
        now = max(now, box.not_before_ms)
    assert waits[:-1] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    assert len(waits) == TRIES_MAX
    box.want([alert()], now)
    assert box.batch(now) == ()          # given up, until it fires anew
    box.want([], now)
    box.want([alert(starts_ms=now)], now)
    assert len(box.batch(now)) == 1


def test_the_queue_is_bounded_and_nothing_wanted_is_lost(outbox: Callable[..., Outbox]) -> None:
    box = outbox()
    many = [alert(f"a{n:03}") for n in range(QUEUE_MAX + 100)]
    told: list[str] = []
    box.want(many, T)
    assert len(box) == QUEUE_MAX
    for _ in range(20):
        box.want(many, T)
        batch = box.batch(T)
        told += [a.key for a in batch]
        box.done(batch, T)
    assert sorted(told) == [a.key for a in many]
