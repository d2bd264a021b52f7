"""What the log, `get status` and the metrics say of errors: once, and no longer than they last."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from resilience.app.candidates import Candidates
from resilience.errors import JournalError

kit = sys.modules["app_rig"]  # loaded by conftest.py
Rig = Any


def test_an_error_that_nobody_expected_is_in_the_log_once_and_found_by_its_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bus: Any) -> Any:
        raise KeyError("surprise")

    monkeypatch.setattr("resilience.app.views.bus_json", broken)
    answers = [rig.response("GET", "status") for _ in range(3)]
    assert {a.status for a in answers} == {500}
    [said] = rig.said
    name, _, trace = said.partition(":\n")
    assert trace.startswith("Traceback") and trace.endswith("KeyError: 'surprise'")
    told = {json.loads(a.body)["error"]["message"] for a in answers}
    assert told == {f"internal error (KeyError); the engine's log has it as `{name}`"}
    assert b'resilience_errors_total{part="control"} 3.0' in rig.public("/metrics").body


def test_a_job_that_fails_leaves_its_trace_and_is_forgotten_when_it_is_well(rig: Rig) -> None:
    troubles = rig.runtime.troubles
    for _ in range(2):
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError as error:
            troubles.failed("tidy", error)
    [trace, line] = rig.said
    assert trace.startswith("fault ") and "in test_a_job_that_fails" in trace
    assert line == f"tidy failed, {trace.partition(':')[0]}"
    assert rig.ask("GET", "status")["errors"] == {"tidy": "ZeroDivisionError: division by zero"}
    troubles.well("tidy")
    assert rig.ask("GET", "status")["errors"] == {}
    troubles.failed("tidy", JournalError("cannot compact the journal"))
    assert rig.said[2:] == ["tidy failed: JournalError: cannot compact the journal"]


def test_ticks_at_an_interval_that_no_rule_has_are_nobodys_trouble(rig: Rig) -> None:
    troubles = rig.runtime.troubles
    for job in ("tick-1000", "tick-15000", "tidy"):
        troubles.failed(job, JournalError("no room"))
    rig.operations.apply(kit.sources(15))
    assert rig.intervals[-1] == [1_000]
    assert rig.ask("GET", "status")["errors"].keys() == {"tick-1000", "tidy"}


@pytest.mark.parametrize(("end", "left"), [("discard", set()), ("promote", {"tick-500"})])
def test_a_candidate_takes_its_errors_with_it(rig: Rig, end: str, left: set[str]) -> None:
    candidates = Candidates(rig.runtime, threads=False)
    fast = kit.POLICY.replace("name: queue", "name: fast").replace("1s", "500ms", 1)
    candidates.begin(kit.sources(extra="---" + fast.replace("LIMIT", "3")))
    for job in ("canary", "tick-500"):
        rig.runtime.troubles.failed(job, JournalError("no room"))
    getattr(candidates, end)()
    assert rig.ask("GET", "status")["errors"].keys() == left
