"""Impulses and releases over the core's HTTP face: once each, and for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.cores.marker import MarkerFile
from resilience.cores.service import CoreService
from resilience.errors import (
    CoreFencedError,
    CoreRefusedError,
    CoreUnreachableError,
)
from resilience.model import Claim, Desired

MakeClaim = Callable[..., Claim]
THROTTLE = "throttle.max_concurrency"


def put(core: Any, *claims: Claim, epoch: int = 1, generation: int = 1) -> Any:
    return core.put_desired(Desired(epoch, generation, claims), deadline_ms=1_000)


def test_an_impulse_is_done_once(rig: Any) -> None:
    core = rig.core()
    put(core, epoch=3)

    def ask(key: str, epoch: int = 3) -> Any:
        return core.impulse(key, "reset_prefix_cache", {}, epoch=epoch, deadline_ms=1_000)

    assert ask("k") == ask("k") == {"done": True, "how": "reset"}
    assert rig.scheduler.resets == 1
    ask("other")
    assert rig.scheduler.resets == 2
    with pytest.raises(CoreFencedError):
        ask("k", epoch=2)
    with pytest.raises(CoreRefusedError, match="`k` was used for another impulse"):
        core.impulse("k", "reset_prefix_cache", {"preempt": True}, epoch=3, deadline_ms=1_000)
    with pytest.raises(CoreRefusedError, match="`k` was used .* .`reset_prefix_cache`."):
        core.impulse("k", "abort_requests", {}, epoch=3, deadline_ms=1_000)
    with pytest.raises(CoreRefusedError, match="`explode` is none of"):
        core.impulse("e", "explode", None, epoch=3, deadline_ms=1_000)


def test_an_impulse_that_this_server_lacks_is_refused_with_the_reason(rig: Any) -> None:
    core = rig.core()
    rig.scheduler.kv_cache_manager.enable_caching = False
    assert "reset_prefix_cache" not in core.capabilities(deadline_ms=1_000).impulses
    with pytest.raises(CoreRefusedError, match="is not available .* without prefix caching"):
        core.impulse("k", "reset_prefix_cache", {}, epoch=3, deadline_ms=1_000)
    assert rig.scheduler.resets == 0


@pytest.mark.parametrize(
    ("model", "passed_on"), [("base", None), ("small", "small"), ("gone", "gone"), ("", "")]
)
def test_the_base_model_is_meant_by_any_of_its_names(
    rig: Any, model: str, passed_on: str | None
) -> None:
    seen: list[Any] = []

    async def call(payload: Any, timeout_s: float) -> Any:
        seen.append(payload)
        return {"knobs": {}, "dropped": []}

    rig.link.call = call
    rig.core().impulse("k", "abort_requests", {"model": model}, epoch=1, deadline_ms=1_000)
    assert seen[-1]["args"]["model"] == passed_on


def test_the_failed_attempt_is_what_a_repeat_gets(rig: Any) -> None:
    core = rig.core()

    def broken(reset_running_requests: bool = False) -> bool:
        rig.scheduler.resets += 1
        raise RuntimeError("no such luck")

    rig.scheduler.reset_prefix_cache = broken
    for _ in range(2):
        result = core.impulse("k", "reset_prefix_cache", None, epoch=1, deadline_ms=1_000)
        assert result == {"done": False, "error": "no such luck"}
    assert rig.scheduler.resets == 1


def test_results_of_impulses_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.cores.service.IMPULSES_MAX", 3)
    core = rig.core()
    for key in "abcda":
        core.impulse(key, "reset_prefix_cache", None, epoch=1, deadline_ms=1_000)
    assert rig.scheduler.resets == 5  # the oldest was forgotten


def test_a_newer_engines_impulse_fences_the_older_one(rig: Any) -> None:
    core = rig.core()
    put(core, epoch=1)
    core.impulse("k", "reset_prefix_cache", None, epoch=2, deadline_ms=1_000)
    with pytest.raises(CoreFencedError):
        put(core, epoch=1, generation=2)


def test_a_release_outlives_the_server_and_a_resume_ends_it_for_good(
    rig: Any, claim: MakeClaim, tmp_path: Path
) -> None:
    rig.service = service_with_marker(rig, tmp_path)
    core = rig.core()
    put(core, claim("cache.max_running", 3))
    assert rig.scheduler.max_num_active_reqs == 3
    core.release("3 am", t_ms=5, deadline_ms=1_000)
    assert rig.scheduler.max_num_active_reqs == 8
    second = type(rig)()
    second.service = service_with_marker(second, tmp_path)
    with second.core() as core, second.http() as http:
        assert http.get("/health").json() == {"status": "well", "reasons": [], "released": True}
        assert core.actual(deadline_ms=1_000).released == {"t_ms": 5, "reason": "3 am"}
        core.resume(deadline_ms=1_000)
        assert http.get("/health").json() == {"status": "well", "reasons": [], "released": False}
    assert MarkerFile(tmp_path).read() is None
    second.close()


def service_with_marker(rig: Any, folder: Path) -> CoreService:
    return CoreService(
        rig.state, rig.link, version="test", models=lambda: rig.models, max_running=8,
        marker=MarkerFile(folder),
    )


def test_a_release_with_a_silent_engine_opens_the_gate_and_asks_for_another_try(
    rig: Any, claim: MakeClaim
) -> None:
    with rig.core() as core:
        put(core, claim("cache.max_running", 3), claim(THROTTLE, 1))
        rig.link.silent = True
        with pytest.raises(CoreUnreachableError, match="gate is released.*try again"):
            core.release("", t_ms=5, deadline_ms=1_000)
        assert not rig.state.snapshot().limits
        rig.link.silent = False
        assert core.release("", t_ms=5, deadline_ms=1_000).effective == {}
        core.resume(deadline_ms=1_000)


@pytest.mark.parametrize("body", [None, {}, {"reason": 1, "t_ms": 1}, {"reason": "", "t_ms": True}])
def test_a_strange_release_changes_nothing(rig: Any, body: Any) -> None:
    with rig.http() as http:
        assert http.post("/v1/release", json=body).status_code == 422
        assert http.get("/health").json() == {"status": "well", "reasons": [], "released": False}


def test_a_marker_that_cannot_be_read_still_means_released(tmp_path: Path) -> None:
    (tmp_path / "core.released").write_text("half a fi")
    released = MarkerFile(tmp_path).read()
    assert released is not None and "core.released" in released["reason"]
