"""The desired document as a core takes it: parsed, and kept as a table of claims with leases.

Pure standard library: this file also runs inside the serving processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilience.knobs import LiveClaim, fold, knob
from resilience.model import Effective, Json, labels_of

CLAIMS_MAX = 256
TTL_MAX_MS = 3_600_000
CORE_POLICY = "core:"  # begins the `policy` of a claim that the core holds on itself


class StaleDocumentError(Exception):
    """An older (epoch, generation) than the table holds; carries what it holds."""

    def __init__(self, epoch: int, generation: int) -> None:
        super().__init__(f"epoch {epoch}, generation {generation} is newer")
        self.epoch = epoch
        self.generation = generation


class ReleasedError(Exception):
    """Claims for a core that an operator released; `str()` says since when, why, and what to do."""


class BadDocumentError(Exception):
    """A desired document that is malformed or asks for what nobody can honour."""


class ClaimTable:
    """The live claims of one process of the core, by the leases that this process enforces.

    Times are the caller's monotonic milliseconds. The claims are replaced as a whole: readers on
    another thread see the old or the new tuple, never a mixture.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.generation = 0
        self.claims: tuple[LiveClaim, ...] = ()
        self.released: Mapping[str, Json] | None = None
        # What the core holds on itself, such as a drain: no document sets or ends these.
        self.own: tuple[LiveClaim, ...] = ()

    def put(self, body: Json, now_ms: int) -> None:
        """Replace the claims by a desired document received at `now_ms`.

        The same document once more changes nothing: its leases count from when it first came, so
        that a late repeat keeps no claim alive; who renews sends a newer generation. Raises
        BadDocumentError, StaleDocumentError or ReleasedError; then nothing has changed.
        """
        epoch, generation, claims = parse_desired(body, now_ms)
        if (epoch, generation) < (self.epoch, self.generation):
            raise StaleDocumentError(self.epoch, self.generation)
        if claims:
            self.insist()
        if (epoch, generation) == (self.epoch, self.generation) and _same(claims, self.claims):
            return
        self.claims = claims
        self.epoch, self.generation = epoch, generation

    def release(self, released: Mapping[str, Json]) -> None:
        """Drop every claim, kept ones too, and take no other until `resume`.

        `released` is {t_ms, reason}: when (epoch ms) and why, as the operator said.
        """
        self.claims, self.released = (), released

    def resume(self) -> None:
        """Take claims again."""
        self.released = None

    def insist(self) -> None:
        """Raise ReleasedError while the core is released."""
        if self.released is not None:
            why = self.released.get("reason")
            raise ReleasedError(
                "an operator released this core" + (f" (`{why}`)" if why else "")
                + ": it takes no claims until `resilience resume --attach URL`"
            )

    def hold(self, policy: str, claims: Sequence[LiveClaim]) -> None:
        """Replace the core's own claims under `policy`, which begins with CORE_POLICY."""
        others = tuple(c for c in self.own if c.policy != policy)
        self.own = (*others, *claims)

    def live(self, now_ms: int) -> tuple[LiveClaim, ...]:
        """Return the claims whose lease has not ended; `keep` outlives its lease."""
        return self._asked(now_ms) + self.own_live(now_ms)

    def own_live(self, now_ms: int) -> tuple[LiveClaim, ...]:
        """Return what the core holds on itself now."""
        return tuple(c for c in self.own if c.deadline_ms > now_ms)

    def _asked(self, now_ms: int) -> tuple[LiveClaim, ...]:
        return tuple(c for c in self.claims if c.keep or c.deadline_ms > now_ms)

    def next_expiry_ms(self) -> int | None:
        """Return when the next lease ends, or None."""
        leased = [*(c for c in self.claims if not c.keep), *self.own]
        return min((c.deadline_ms for c in leased), default=None)

    def folded(self, now_ms: int) -> dict[str, dict[str, LiveClaim]]:
        return fold(self.live(now_ms))

    def effective(self, now_ms: int) -> dict[str, dict[str, Effective]]:
        """Return the folded values of the document, with the time their ruling claim has left.

        What the core holds on itself may be tighter and is told by its health instead: here it
        would look as if the engine's claim had been lost.
        """
        return {
            name: {
                scope: Effective(c.value, c.policy, max(0, c.deadline_ms - now_ms))
                for scope, c in scopes.items()
            }
            for name, scopes in fold(self._asked(now_ms)).items()
        }


_CLAIM_KEYS = {"knob", "scope", "value", "ttl_ms", "keep", "policy", "reason", "priority"}


def parse_desired(body: Json, now_ms: int) -> tuple[int, int, tuple[LiveClaim, ...]]:
    """Check a desired document and return (epoch, generation, claims); raises BadDocumentError."""
    if not isinstance(body, Mapping) or set(body) != {"version", "epoch", "generation", "claims"}:
        raise BadDocumentError("a desired document has version, epoch, generation and claims")
    if body["version"] != 1:
        raise BadDocumentError(f"version `{body['version']}` of the desired document is not known")
    epoch, generation, claims = body["epoch"], body["generation"], body["claims"]
    if not _is_count(epoch) or not _is_count(generation) or not isinstance(claims, list):
        raise BadDocumentError("epoch and generation are whole numbers and claims is a list")
    if len(claims) > CLAIMS_MAX:
        raise BadDocumentError(f"{len(claims)} claims are more than the limit of {CLAIMS_MAX}")
    return epoch, generation, tuple(_parse_claim(c, now_ms) for c in claims)


def _same(one: Sequence[LiveClaim], other: Sequence[LiveClaim]) -> bool:
    """Whether two documents ask for the same, whenever their leases end."""
    return [replace(c, deadline_ms=0) for c in one] == [replace(c, deadline_ms=0) for c in other]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_claim(body: Json, now_ms: int) -> LiveClaim:
    if not isinstance(body, Mapping) or set(body) != _CLAIM_KEYS:
        raise BadDocumentError("a claim has " + ", ".join(sorted(_CLAIM_KEYS)))
    definition = knob(body["knob"]) if isinstance(body["knob"], str) else None
    if definition is None:
        raise BadDocumentError(f"knob `{body['knob']}` is not known")
    scope = body["scope"]
    if not isinstance(scope, Mapping) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in scope.items()
    ):
        raise BadDocumentError(f"the scope of knob `{definition.name}` is a map of strings")
    why = definition.check(body["value"], scope)
    if why:
        raise BadDocumentError(why)
    ttl_ms, priority = body["ttl_ms"], body["priority"]
    if not _is_count(ttl_ms) or not 0 < ttl_ms <= TTL_MAX_MS:
        raise BadDocumentError(f"ttl_ms is a whole number from 1 to {TTL_MAX_MS}")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise BadDocumentError("priority is a whole number")
    if not isinstance(body["keep"], bool) or not isinstance(body["policy"], str):
        raise BadDocumentError("keep is true or false and policy is a name")
    return LiveClaim(
        body["knob"],
        labels_of(scope),
        body["value"],
        body["policy"],
        priority,
        now_ms + ttl_ms,
        body["keep"],
        str(body["reason"])[:200],
    )
