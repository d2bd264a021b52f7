"""What a limit counts, while lanes come and go by the thousand."""

from __future__ import annotations

from resilience.gate.admission import Admission
from resilience.gate.limits import CONCURRENCY, LANES_MAX, Limit
from resilience.gate.snapshot import Snapshot
from resilience.gate.ticket import Ticket


def test_a_limit_counts_on_when_idle_scopes_are_forgotten() -> None:
    admission = Admission()
    limit = Limit(CONCURRENCY, ("core", "", "m"), 1, "p", "r")
    admission.adopt(Snapshot(limits=(limit,), models=frozenset({"m"})), 0)

    def passed_by(tenant: str) -> Ticket | None:
        ticket = Ticket(("core", tenant, "m"), "/v1/completions", 0)
        return ticket if admission.offer(ticket, 0) is None else None

    for number in range(LANES_MAX + 2):
        ticket = passed_by(str(number))
        assert ticket is not None
        admission.leave(ticket, "success", 1, 0)
    last = str(LANES_MAX)  # whose limit was looked up just before
    first = passed_by(last)
    assert first is not None and passed_by(last) is None
    admission.adopt(Snapshot(limits=(limit,), models=frozenset({"m"})), 0)
    assert passed_by(last) is None
    admission.leave(first, "success", 1, 0)
    assert passed_by(last) is not None
