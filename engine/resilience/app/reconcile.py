"""Reconciling one core with a set of claims: send, read back, compare, renew.

A `Reconciler` holds what was sent and what came back. It raises whatever the core or the journal
raises; the bus decides when to try again. Not thread-safe: the bus calls it under its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.app.state_rows import readable
from resilience.desired import CLAIMS_MAX
from resilience.errors import CoreFencedError, CoreRefusedError, JournalError
from resilience.knobs import LiveClaim, fold, knob, scope_text
from resilience.model import (
    Actual,
    Capabilities,
    Claim,
    Clock,
    Core,
    Desired,
    Effective,
    Journal,
    JournalEntry,
    Json,
    Labels,
    canonical_json,
)

REFUSED_RETRY_MS = 60_000
SUSPECTS_MAX = 8
VERIFY_EVERY_MS = 5_000

ClaimKey = tuple[str, str, str, str, Labels]


def folded_values(claims: Iterable[Claim]) -> dict[str, dict[str, Json]]:
    """Return knob -> scope text -> value that a core must hold for `claims`."""
    live = [LiveClaim(c.knob, c.scope, c.value, c.policy, c.priority, 0, c.keep) for c in claims]
    return {
        knob: {scope: claim.value for scope, claim in scopes.items()}
        for knob, scopes in fold(live).items()
    }


def differences(wanted: Mapping[str, Mapping[str, Json]], actual: Actual) -> list[str]:
    """Say in words where the core's effective values are not the wanted ones."""
    held = {
        (knob, scope): effective.value
        for knob, scopes in actual.effective.items()
        for scope, effective in scopes.items()
        if effective.policy is not None
    }
    asked = {(k, s): v for k, scopes in wanted.items() for s, v in scopes.items()}
    return [
        _difference(knob, scope, held, asked)
        for knob, scope in sorted({*held, *asked})
        if held.get((knob, scope)) != asked.get((knob, scope))
    ]


def _difference(
    knob: str, scope: str, held: Mapping[tuple[str, str], Json],
    asked: Mapping[tuple[str, str], Json],
) -> str:
    where = f"`{knob}` for {scope}" if scope else f"`{knob}`"
    now = f"`{held[knob, scope]}`" if (knob, scope) in held else "at its baseline"
    wanted = f"`{asked[knob, scope]}`" if (knob, scope) in asked else "the baseline"
    return f"{where} is {now}, wanted {wanted}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step found: drift in words, and whether it was left as it is."""

    drift: str | None = None
    left: bool = False


class Refusals:
    """Claims that the core will not take, with the reason; asked again after a while."""

    def __init__(self) -> None:
        self._of: dict[ClaimKey, tuple[Json, str, int]] = {}

    def add(self, claim: Claim, why: str, now_ms: int) -> None:
        self._of[claim.key] = (claim.value, why, now_ms)

    def holds(self, claim: Claim, now_ms: int) -> bool:
        entry = self._of.get(claim.key)
        return (
            entry is not None and entry[0] == claim.value and now_ms - entry[2] < REFUSED_RETRY_MS
        )

    def keep_only(self, claims: Iterable[Claim]) -> None:
        keys = {c.key for c in claims}
        self._of = {key: entry for key, entry in self._of.items() if key in keys}

    def taken(self, claims: Iterable[Claim]) -> None:
        """Forget what was said of claims that the core has taken, perhaps at another value."""
        for claim in claims if self._of else ():
            self._of.pop(claim.key, None)

    def listed(self) -> tuple[tuple[str, str, str], ...]:
        """Return (policy, knob, why) of each."""
        return tuple((key[0], key[3], why) for key, (_, why, _) in self._of.items())

    def __str__(self) -> str:
        return "; ".join(f"`{policy}`: {why}" for policy, _, why in self.listed())


def _aged(value: Effective, gone_ms: int) -> Effective:
    left_ms = value.remaining_ms
    return value if left_ms is None else replace(value, remaining_ms=max(0, left_ms - gone_ms))


class Reconciler:
    """One core, one epoch, the newest document. Times are the clock's monotonic milliseconds."""

    def __init__(self, core: Core, journal: Journal, clock: Clock) -> None:
        self._core = core
        self._journal = journal
        self._clock = clock
        self.capabilities: Capabilities | None = None
        self.epoch = 0
        self.generation = 0
        self.wanted: tuple[Claim, ...] = ()
        self.sent: tuple[Claim, ...] | None = None
        self.actual: Actual | None = None
        self.refusals = Refusals()
        self.by_hand = False
        self._sent_at = 0
        self._verified_at = 0
        self._journalled: tuple[Claim, ...] | None = None

    def attach(self, deadline_ms: int) -> Capabilities:
        """Take an epoch that is newer than the journal's and the core's; nothing is sent yet."""
        capabilities = self._core.capabilities(deadline_ms=deadline_ms)
        with readable("intent"):
            intent = self._journal.load("intent").get("desired", {})
            self.epoch = 1 + max(intent.get("epoch", 0), capabilities.epoch, self.epoch)
        self.generation = 0
        self.capabilities = capabilities
        return capabilities

    def ask(self, deadline_ms: int) -> Capabilities:
        """Return what the core can do now, without taking an epoch; raises CoreError."""
        return self._core.capabilities(deadline_ms=deadline_ms)

    # --- when --------------------------------------------------------------------------------

    def renewal_due(self) -> bool:
        """Renew when a quarter of the shortest lease is gone; a third would be too near."""
        if not self.sent:
            return False
        return self._clock.monotonic_ms() - self._sent_at >= min(c.ttl_ms for c in self.sent) // 4

    def look_due(self) -> bool:
        return self._clock.monotonic_ms() - self._verified_at >= VERIFY_EVERY_MS

    def lease_remaining_ms(self) -> int | None:
        """Return how long the core keeps the claim that ends first, as this side counts it."""
        if not self.sent:
            return None
        gone = self._clock.monotonic_ms() - self._sent_at
        return max(0, min(c.ttl_ms for c in self.sent) - gone)

    def held(self) -> Actual | None:
        """Return the newest read-back as it is by now: leases have run on since, some to their end.

        A core that does not answer is not shown as if it held what it cannot hold any more.
        """
        if self.actual is None:
            return None
        gone_ms = self._clock.monotonic_ms() - self._verified_at
        kept = {(c.policy, c.knob, scope_text(c.scope)) for c in self.sent or () if c.keep}
        return replace(self.actual, effective={
            name: {
                scope: aged for scope, value in scopes.items()
                if (aged := _aged(value, gone_ms)).remaining_ms != 0
                or (value.policy, name, scope) in kept
            }
            for name, scopes in self.actual.effective.items()
        })

    # --- what may be sent ----------------------------------------------------------------------

    def want(self, claims: Iterable[Claim]) -> bool:
        """Set the claims that must rule; returns whether they changed."""
        wanted = _ordered(claims)
        changed = wanted != self.wanted
        if changed:
            self.wanted = wanted
            self.refusals.keep_only(wanted)
        return changed

    def admissible(self) -> tuple[Claim, ...]:
        """Return the wanted claims but those that the core lacks, refused or has no room for."""
        now = self._clock.monotonic_ms()
        knobs = self.capabilities.knobs if self.capabilities else {}
        for claim in self.wanted:
            if claim.knob not in knobs:
                self.refusals.add(claim, f"the core has no knob `{claim.knob}`", now)
        allowed = [c for c in self.wanted if not self.refusals.holds(c, now)]
        for claim in allowed[CLAIMS_MAX:]:
            self.refusals.add(claim, f"more than {CLAIMS_MAX} claims at once", now)
        return tuple(allowed[:CLAIMS_MAX])

    # --- one step --------------------------------------------------------------------------------

    def step(self, t_ms: int, deadline_ms: int, *, trust: bool, correct: bool = True) -> Step:
        """Bring the core and the claims together once; returns the drift that was found.

        `trust`: the last step left both equal, so that a look is enough unless something changed.
        `correct` False: what somebody changed by hand is reported and left as it is.
        """
        ends = self._clock.monotonic_ms() + deadline_ms
        drift = None
        claims = self.admissible()
        if trust and claims == self.sent and (not correct or not self.renewal_due()):
            self.look(deadline_ms)
            drift = "; ".join(self.wrong()) or None
            if drift is not None and self.by_hand and not correct:
                return Step(drift, left=True)
            if drift is None and not self.renewal_due():
                return Step()
        self._write_intent(claims, t_ms)
        return self._sent_or_drifted(claims, drift, ends)

    def _sent_or_drifted(self, claims: tuple[Claim, ...], drift: str | None, ends: int) -> Step:
        """Send; a newer generation in our own epoch is no engine's, so ours goes over it.

        A new epoch does that: a second engine that took the same one at the same moment is fenced.
        """
        if not self.by_hand:
            try:
                self._send_all(claims, ends)
                return Step(drift)
            except CoreFencedError as error:
                if error.epoch != self.epoch:
                    raise
                self.look(self._left(ends))
                drift = "; ".join(self.wrong()) or "somebody sent a document with equal values"
        self.epoch, self.generation = self.epoch + 1, 0
        self._send_all(claims, ends)
        return Step(drift)

    def _send_all(self, claims: tuple[Claim, ...], ends: int) -> None:
        try:
            self._send(claims, self._left(ends))
        except CoreRefusedError as error:
            self._send_one_by_one(claims, error, ends)

    def look(self, deadline_ms: int) -> Actual:
        """Read back what the core holds."""
        actual = self._core.actual(deadline_ms=deadline_ms)
        self._learn(actual)
        return actual

    def wrong(self) -> list[str]:
        """Say where the newest read-back differs from what was sent."""
        if self.actual is None or self.actual.epoch != self.epoch:
            held = self.actual.epoch if self.actual else None
            return [f"the core is at epoch `{held}`, wanted `{self.epoch}`"]
        return differences(folded_values(self.sent or ()), self.actual)

    def _left(self, ends: int) -> int:
        return max(1, ends - self._clock.monotonic_ms())

    def _learn(self, actual: Actual) -> None:
        """Take in a read-back; a newer epoch in it means that another engine drives the core."""
        self.actual = actual
        self._verified_at = self._clock.monotonic_ms()
        if actual.epoch > self.epoch:
            raise CoreFencedError(
                f"the core follows epoch {actual.epoch}, this engine has {self.epoch}",
                epoch=actual.epoch, generation=actual.generation,
            )
        self.by_hand = actual.epoch == self.epoch and actual.generation > self.generation

    def _write_intent(self, claims: tuple[Claim, ...], t_ms: int) -> None:
        """Journal a changed document before it is sent; a renewal changes nothing on disk.

        A document that only drops or eases claims goes out even when the disk is full: undo must
        not wait.
        """
        if claims == self._journalled:
            return
        body = {
            "t_ms": t_ms, "epoch": self.epoch, "generation": self.generation + 1,
            "claims": [c.to_json() for c in claims],
        }
        try:
            self._journal.append([JournalEntry("intent", "desired", body)])
        except JournalError:
            if self.sent is None or not _only_eases(claims, self.sent):
                raise
            return
        self._journalled = claims

    def _send(self, claims: tuple[Claim, ...], deadline_ms: int) -> None:
        self.generation += 1
        claims = _ordered(claims)
        desired = Desired(self.epoch, self.generation, claims)
        asked_at = self._clock.monotonic_ms()
        actual = self._core.put_desired(desired, deadline_ms=deadline_ms)
        self.sent, self._sent_at = claims, asked_at
        self.refusals.taken(claims)
        self._learn(actual)

    def _send_one_by_one(
        self, claims: tuple[Claim, ...], error: CoreRefusedError, ends: int
    ) -> None:
        """Find the refused claims, so that one of them does not end the leases of the others."""
        accepted = _contents(self.sent or ())
        good = [c for c in claims if _content(c) in accepted]
        suspects = [c for c in claims if _content(c) not in accepted]
        if not suspects:
            raise error
        for suspect in suspects[:SUSPECTS_MAX]:
            try:
                self._send((*good, suspect), self._left(ends))
                good.append(suspect)
            except CoreRefusedError as refused:
                self.refusals.add(suspect, str(refused), self._clock.monotonic_ms())
        if self.sent != _ordered(good):
            self._send(tuple(good), self._left(ends))


def _ordered(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    return tuple(sorted(claims, key=lambda c: (-c.priority, c.key)))


def _content(claim: Claim) -> tuple[ClaimKey, str]:
    return claim.key, canonical_json(claim.value)


def _contents(claims: Iterable[Claim]) -> set[tuple[ClaimKey, str]]:
    return {_content(c) for c in claims}


def _only_eases(claims: Iterable[Claim], sent: Iterable[Claim]) -> bool:
    """Whether each claim was sent before, at this value or at one that takes more."""
    known = {c.key: c for c in sent}
    return all(c.key in known and _eases(c, known[c.key]) for c in claims)


def _eases(claim: Claim, sent: Claim) -> bool:
    if claim.value == sent.value:
        return True
    definition = knob(claim.knob)
    if definition is None or definition.type not in ("int", "float"):
        return False
    smaller = bool(claim.value < sent.value)
    return not smaller if definition.fold_name == "min" else smaller


def ceiling_ms(claims: Sequence[Claim], most_ms: int) -> int:
    """Return the longest wait between two tries that still renews every lease in time."""
    return min([most_ms, *(c.ttl_ms // 8 for c in claims)])
