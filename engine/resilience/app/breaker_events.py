"""What the breakers in the core's gate did, kept by the engine: each change of state once.

A breaker changes its state on the request path, without asking the engine. The core remembers the
last changes with a number; what is new goes to the journal, from where `history` and `explain`
tell it, and to `breakers.jsonl`. Asked is only while some policy arms a breaker, and once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from resilience.app.files import LineFiles
from resilience.app.journal import SqliteJournal
from resilience.app.mask import Mask
from resilience.errors import CoreError
from resilience.model import Claim, Clock, JournalEntry, Json, canonical_json

KNOB = "breaker.rule"
KIND = "breaker"
FILE = "breakers.jsonl"
ACTION = "breaker"


class BreakerEvents:
    """Asks the core (`ask`, which raises CoreError) and writes down what is new."""

    def __init__(
        self, ask: Callable[[], Json], journal: SqliteJournal, files: LineFiles, clock: Clock,
    ) -> None:
        self._ask = ask
        self._journal = journal
        self._files = files
        self._clock = clock
        self._armed = True  # of a core that was taken over nobody knows what it did before
        self._life = ""
        self._number = 0

    def look(self, claims: Iterable[Claim], mask: Mask) -> None:
        """Take in what changed since the last look. A core that is silent now is asked again.

        Raises JournalError; then nothing counts as taken.
        """
        armed = any(claim.knob == KNOB for claim in claims)
        if not (armed or self._armed):
            return
        try:
            body, now_ms = self._ask(), self._clock.now_ms()
        except CoreError:
            return
        seen = self._number if body["life"] == self._life else 0
        events = [e for e in body["events"] if e["number"] > seen]
        self._keep(body["life"], [_event(e, now_ms) for e in events], events, mask)
        self._life = body["life"]
        self._number = max([seen, *(e["number"] for e in events)])
        self._armed = armed

    def _keep(self, life: str, told: Sequence[Json], events: Sequence[Json], mask: Mask) -> None:
        """Write down what the journal does not hold yet, from before this engine's start."""
        rows = [JournalEntry(KIND, f"{life}/{e['number']:09}", body)
                for e, body in zip(events, told, strict=True)]
        new = [row for row in rows if self._journal.get(KIND, row.key) is None]
        if not new:
            return
        self._journal.append(new)
        for row in new:
            self._files.append_line(FILE, canonical_json(mask.of(row.body)))


def _event(event: Json, now_ms: int) -> Json:
    return {
        "t_ms": now_ms - int(event["age_ms"]), "action": ACTION, "scope": event["scope"],
        "from": event["from"], "to": event["to"], "policy": event["policy"],
    }


def armed_scopes(decision: Json) -> list[Json]:
    """Return the scopes of the breakers that a decision arms."""
    return [claim["scope"] for claim in decision["claims_after"] if claim["knob"] == KNOB]


def of_decision(decision: Json, later: Sequence[Json], events: Sequence[Json]) -> list[Json]:
    """Return those events that came while what a decision claimed was in force: until the next of
    its instance's `later` decisions."""
    ends_ms = min(
        (d["t_ms"] for d in later
         if d["instance"] == decision["instance"] and d["t_ms"] > decision["t_ms"]),
        default=None)
    return [
        e for e in events
        if e["t_ms"] >= decision["t_ms"] and (ends_ms is None or e["t_ms"] < ends_ms)
    ]
