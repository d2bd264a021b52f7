"""One private part of vLLM after the other has moved: its lever is dropped, or the watch says what
it cannot see, and the scheduler serves every request as before.

The levers get a view of vLLM's real scheduler in which one name is not there any more; vLLM itself
goes on with the real one, as a version would that has renamed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from resilience.cores.scheduler_knobs import SCHEDULER_KNOBS
from resilience.cores.vllm.levers import Levers
from resilience.cores.vllm.plugin import engine_utility
from resilience.cores.vllm.seats import Seats
from tools.vllm_signatures import ATTRIBUTES, METHODS

# vLLM and PyTorch warn about themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore")
MakeRig = Callable[..., Any]
PLACES = {"Scheduler": (), "KVCacheManager": ("kv_cache_manager",),
          "BlockPool": ("kv_cache_manager", "block_pool")}
PARTS = sorted({
    *((owner, name) for owner, names in METHODS.values() for name in names if owner in PLACES),
    *((owner, name) for owner, names in ATTRIBUTES.items() for name in names),
})
# What no lever and no figure stands on, or only through another part of this list.
UNSEEN = {"schedule", "add_request", "make_stats", "reset_prefix_cache", "finish_requests",
          "evict_blocks", "blocks", "_request_blocks_can_be_freed", "scheduler_config"}
ALL = {"max_running": 5, "admit_running": 6, "step_tokens": 64, "kv_blocks": 150,
       "kv_blocks_soft": 140, "prefix_enabled": False, "batching": "dynamic", "mode": "hybrid"}


def without(real: Any, path: tuple[str, ...], name: str) -> Any:
    """Return a view of `real` in which `name` is not there, below the attributes of `path`."""
    below = {path[0]: without(getattr(real, path[0]), path[1:], name)} if path else {}

    class View(type(real)):  # type: ignore[misc]
        def __getattribute__(self, asked: str) -> Any:
            if not path and asked == name:
                raise AttributeError(f"no `{asked}` here")
            return below[asked] if asked in below else getattr(real, asked)

    View.__name__ = type(real).__name__
    view = object.__new__(View)
    object.__setattr__(view, "__dict__", real.__dict__)
    return view


@pytest.mark.parametrize(("owner", "name"), PARTS)
def test_what_moved_costs_its_lever_and_never_the_server(
    make_rig: MakeRig, owner: str, name: str
) -> None:
    rig = make_rig()
    levers = Levers(without(rig.scheduler, PLACES[owner], name), subclassed=True,
                    clock_ms=rig.clock)
    rig.scheduler.resilience_levers = levers
    for number in range(12):
        rig.add(f"r{number}", 40, 30, salt=100 * (number % 3), stream=number % 2 == 0)
    pulse: Any = None
    for turn in range(20):
        rig.hold(**({} if turn % 3 == 2 else ALL))
        rig.step()
        pulse = engine_utility(rig.engine, {"op": "pulse"})
        json.dumps(pulse)
    said = [entry["reason"] for entry in (*levers.dropped, *levers.lost)] + pulse["findings"]
    assert bool(said) is (name not in UNSEEN), said
    assert set(levers.knobs) | {e["knob"] for e in (*levers.dropped, *levers.lost)} == set(
        SCHEDULER_KNOBS)
    rig.hold()
    rig.run()
    for number in range(12):
        rig.check_tokens(f"r{number}", 40, 30)
    levers.pool.release()
    assert rig.free_blocks() == 199


def test_a_scheduler_that_cannot_be_read_at_all_serves_without_levers(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(scheduler: Any) -> Seats:
        if type(scheduler) is object:
            return Seats(scheduler)
        raise TypeError("seats are something else now")

    rig = make_rig()
    monkeypatch.setattr("resilience.cores.vllm.levers.Seats", broken)
    rig.scheduler.resilience_levers = Levers.of(rig.scheduler, subclassed=True)
    found = engine_utility(rig.engine, {"op": "capabilities"})
    assert found["knobs"] == {} and len(found["dropped"]) == len(SCHEDULER_KNOBS)
    assert "cannot be read: seats are something else now" in found["dropped"][0]["reason"]
    rig.hold(**ALL)
    rig.add("r", 40, 30)
    rig.step()
    assert engine_utility(rig.engine, {"op": "pulse"})["findings"]
    rig.run()
    rig.check_tokens("r", 40, 30)
