"""UDFs where nothing may depend on the machine: in dry runs and in tests of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from resilience.app.udfs import ClosableRunner, open_runner
from resilience.model import Bundle, UdfCall, UdfOutcome

CallKey: TypeAlias = tuple[str, str, str]  # UdfCall.key
MAYBE_THE_MACHINE = frozenset({"TIMEOUT", "CRASH"})


class SteadyUdfs:
    """The sandbox of one bundle, opened when it is needed.

    Where a call had no time, or its worker ended, a busy machine may be why and not the function:
    it is asked once more, alone and in a sandbox of its own, in which the failures of the first do
    not count. What fails both times has failed.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._sandbox: ClosableRunner | None = None
        self._second: ClosableRunner | None = None

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> dict[CallKey, UdfOutcome]:
        """Return the outcomes by the key of the call; none where the bundle calls no function.
        `deadline_ms` is for all of them together, and again for each that is asked once more."""
        self._sandbox = self._sandbox or open_runner(self._bundle)
        if self._sandbox is None:
            return {}
        ran = {o.key: o for o in self._sandbox.run(calls, deadline_ms=deadline_ms)}
        for call in [c for c in calls if ran[c.key].outcome in MAYBE_THE_MACHINE]:
            self._second = self._second or open_runner(self._bundle)
            if self._second is not None:
                (again,) = self._second.run([call], deadline_ms=deadline_ms)
                if again.outcome != "QUARANTINED":
                    ran[call.key] = again
        return ran

    def close(self) -> None:
        for sandbox in (self._sandbox, self._second):
            if sandbox is not None:
                sandbox.close()
        self._sandbox = self._second = None
