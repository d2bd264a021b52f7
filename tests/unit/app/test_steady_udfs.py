"""A machine without time changes nothing in a dry run: the call is asked once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from resilience.app import steady_udfs
from resilience.app.steady_udfs import SteadyUdfs
from resilience.model import Bundle, UdfCall, UdfOutcome

CALLS = [UdfCall("p", instance, "0", "f", 1_000, {}) for instance in ("a", "b")]


@dataclass
class Scripted:
    """A sandbox that answers each call by the next of `outcomes`."""

    outcomes: list[str]
    asked: list[list[str]] = field(default_factory=list[list[str]])
    closed: bool = False

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        self.asked.append([c.instance for c in calls])
        return [UdfOutcome(c.policy, c.instance, c.action, c.function, self.outcomes.pop(0))
                for c in calls]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("first", "second", "found"), [
    (["ok", "ok"], None, ["ok", "ok"]),
    (["TIMEOUT", "ok"], ["ok"], ["ok", "ok"]),
    (["ok", "CRASH"], ["ok"], ["ok", "ok"]),
    (["TIMEOUT", "CRASH"], ["TIMEOUT", "ok"], ["TIMEOUT", "ok"]),
    (["TIMEOUT", "ok"], ["QUARANTINED"], ["TIMEOUT", "ok"]),
    (["STEP_LIMIT", "MEMORY"], None, ["STEP_LIMIT", "MEMORY"]),
    (["QUARANTINED", "BAD_RESULT"], None, ["QUARANTINED", "BAD_RESULT"]),
])
def test_what_the_machine_may_have_done_is_asked_once_more(
    monkeypatch: pytest.MonkeyPatch, first: list[str], second: list[str] | None, found: list[str]
) -> None:
    sandboxes = [Scripted(list(outcomes)) for outcomes in (first, second) if outcomes is not None]
    opened = iter(sandboxes)
    monkeypatch.setattr(steady_udfs, "open_runner", lambda bundle: next(opened))
    udfs = SteadyUdfs(Bundle("r", ()))
    ran = udfs.run(CALLS, deadline_ms=5_000)
    assert [ran[c.key].outcome for c in CALLS] == found
    udfs.close()
    assert all(s.closed for s in sandboxes)
    assert all(len(asked) == 1 for asked in sandboxes[-1].asked) or second is None


def test_a_bundle_without_functions_has_no_sandbox() -> None:
    udfs = SteadyUdfs(Bundle("r", ()))
    assert udfs.run([], deadline_ms=1_000) == {}
    udfs.close()
