"""The bus and a core that an operator has released: asked seldom, driven again once resumed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.errors import CoreUnreachableError

decision = sys.modules["app_rig"].decision  # loaded by conftest.py


def test_a_released_core_is_reported_asked_seldom_and_driven_again_once_resumed(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    core.table.release({"t_ms": 77, "reason": "3 am"})
    told, fired = [], decision(after=(claim(value=4),))
    for second in range(60):
        clock.forward(1_000)
        decided = [fired] if second == 30 else []
        value = 8 if second < 30 else 4
        told += bus.drive(decided, [claim(value=value)], clock.now_ms(), 1_000)
        assert core.values() == {}
    assert [e.decision_id for e in told] == [None, fired.id]
    assert all("released" in str(e.error) for e in told)
    assert 5 <= core.refused <= 15
    view = bus.view()
    assert (view.fenced, view.in_sync) == (False, False)
    assert view.released == {"t_ms": 77, "reason": "3 am"}
    core.table.resume()
    for _ in range(6):
        clock.forward(1_000)
        told += bus.drive([], [claim(value=4)], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 4}}
    assert (told[-1].decision_id, told[-1].error) == (fired.id, None)
    assert bus.view().released is None


def test_a_release_shows_though_nothing_is_claimed(bus: Bus, core: Any, clock: Any) -> None:
    bus.drive([], [], clock.now_ms(), 1_000)
    core.table.release({"t_ms": 77, "reason": ""})
    clock.forward(6_000)
    bus.drive([], [], clock.now_ms(), 1_000)
    assert bus.view().released == {"t_ms": 77, "reason": ""}


def test_a_release_that_the_core_did_not_explain_is_asked_for_again(
    bus: Bus, core: Any, clock: Any, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, away = core.actual, [True]

    def silent(*, deadline_ms: int) -> Any:
        if away:
            raise CoreUnreachableError("no answer")
        return look(deadline_ms=deadline_ms)

    monkeypatch.setattr(core, "actual", silent)
    core.table.release({"t_ms": 77, "reason": "3 am"})
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert bus.view().released == {"t_ms": None, "reason": ""}
    away.clear()
    clock.forward(6_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert bus.view().released == {"t_ms": 77, "reason": "3 am"}
