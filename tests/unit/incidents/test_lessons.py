"""Each kind of incident sets off the policy that answers it, in every dress, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.model import Reason, State
from tests.unit.incidents import lessons

CASES = [(name, dress) for name, lesson in lessons.LESSONS.items() for dress in lesson.dresses]
Replayed = Callable[[Path], Any]


def replayed(replay: Replayed, folder: Path, name: str, dress: str) -> Any:
    text = folder / "incident.om.txt"
    text.write_text(lessons.text_of(lessons.LESSONS[name], lessons.DRESSES[dress]))
    return replay(text)


@pytest.mark.parametrize(("name", "dress"), CASES, ids=[f"{n}, {d}" for n, d in CASES])
def test_it_fires_where_it_should_and_nowhere_else(
    replay: Replayed, tmp_path: Path, name: str, dress: str
) -> None:
    lesson = lessons.LESSONS[name]
    fired = replayed(replay, tmp_path, name, dress).fired()
    assert set(fired) == set(lesson.fires)
    if lesson.first:
        low, high = lesson.within_s
        assert low <= fired[lesson.first] <= high, fired


def test_the_engine_that_is_full_is_named(replay: Replayed, tmp_path: Path) -> None:
    found = replayed(replay, tmp_path, "imbalance", "fleet").of("engine-imbalance")
    assert {dict(d.labels)["engine"] for d in found} == {"0"}


def test_a_rename_under_pressure_ends_nothing(replay: Replayed, tmp_path: Path) -> None:
    found = replayed(replay, tmp_path, "rename under pressure", "engine").of("kv-pressure")
    assert found[-1].to_state is State.FIRING
    assert not [d for d in found if d.to_state in (State.RECOVERING, State.INACTIVE)]


def test_a_restart_is_answered_once_and_let_go(replay: Replayed, tmp_path: Path) -> None:
    found = replayed(replay, tmp_path, "restart", "engine").of("engine-restarted")
    assert [d.to_state for d in found][:2] == [State.FIRING, State.INACTIVE]
    assert len([d for d in found if d.to_state is State.FIRING]) == 1


def test_the_state_during_a_gap_is_held_and_says_why(replay: Replayed, tmp_path: Path) -> None:
    dress = lessons.DRESSES["engine"]
    gap = lessons.Lesson(700, {(lessons.KV, ""): lambda t: None if 200 <= t < 600 else 0.95})
    text = tmp_path / "gap.om.txt"
    text.write_text(lessons.text_of(gap, dress))
    found = replay(text).of("kv-pressure")
    states = [(d.to_state, d.reason) for d in found if d.to_state is not d.from_state]
    assert states[1:] == [
        (State.FIRING, Reason.BREACH), (State.HELD, Reason.BLIND_STALE),
        (State.FIRING, Reason.BREACH),
    ]
    assert found[-2].claims_after == found[-3].claims_after
