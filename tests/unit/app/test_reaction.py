"""The engine measures its own reaction: breach, detection, enforcement."""

from __future__ import annotations

import sys
from typing import Any

from resilience.app.bundles import Sources
from resilience.errors import CoreUnreachableError

kit = sys.modules["app_rig"]  # loaded by conftest.py


def value(rig: Any, name: str) -> float:
    for line in rig.public("/metrics").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name}")


def test_a_breach_is_timed_from_its_sample_to_the_read_back(rig: Any) -> None:
    kit.fire(rig)                                # a sample lies 100 ms before its tick
    for stage in ("detection", "enforcement"):
        name = f"resilience_breach_to_{stage}_seconds"
        assert (value(rig, name + "_count"), value(rig, name + "_sum")) == (1.0, 0.1)


def test_a_for_counts_as_enforcement_and_not_as_detection(rig: Any) -> None:
    waits = Sources(tuple(
        (p, b.replace(b"    on_no_data", b"    for: 3s\n    on_no_data"))
        for p, b in kit.sources().files
    ))
    rig.operations.apply(waits, allow_missing=True)
    for waiting in (0, 20, 20, 20, 20):
        rig.second(waiting)
    assert value(rig, "resilience_breach_to_detection_seconds_sum") == 0.1
    assert value(rig, "resilience_breach_to_enforcement_seconds_sum") == 3.1


def test_a_core_that_answers_late_is_enforced_late(rig: Any) -> None:
    rig.second(0)
    rig.core.fail = [CoreUnreachableError("no answer")] * 2
    for _ in range(4):
        rig.second(20)
    assert value(rig, "resilience_breach_to_detection_seconds_sum") == 0.1
    assert value(rig, "resilience_breach_to_enforcement_seconds_sum") > 1.0


def test_lag_and_queues_are_shown(rig: Any) -> None:
    rig.second(0)
    rig.runtime.tick(rig.clock.now_ms() - 400, 1_000, 2)
    assert value(rig, 'resilience_tick_lag_seconds_sum{interval="1000"}') == 0.4
    assert value(rig, 'resilience_policy_iterations_missed_total{interval="1000"}') == 2.0
    assert rig.ask("GET", "status")["ticks"][0]["lag_ms"] == 400
    for queue in ("impulses", "notifications", "candidate"):
        assert value(rig, f'resilience_queue_depth{{queue="{queue}"}}') == 0.0
    assert value(rig, 'resilience_records_dropped_total{record="line"}') == 0.0


def test_ready_and_healthy_are_true_to_the_state(rig: Any) -> None:
    assert rig.public("/-/ready").status == 503          # no tick yet
    kit.fire(rig)
    assert rig.public("/-/ready").status == 200
    rig.core.table.release({"t_ms": 1, "reason": ""})
    for _ in range(8):
        rig.second(20)
    assert rig.public("/-/ready").status == 503
    assert b"operator released the core" in rig.public("/-/ready").body
    assert rig.public("/-/healthy").status == 200
    rig.core.table.resume()
    for _ in range(8):
        rig.second(20)
    assert rig.public("/-/ready").status == 200
    rig.clock.forward(60_000)
    assert (rig.public("/-/healthy").status, rig.public("/-/ready").status) == (503, 503)
