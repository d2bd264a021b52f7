"""What the endpoint does, without HTTP: one desired document for two processes.

The API server holds all claims, enforces the gate's and passes the scheduler's on to the engine
process. The gate's part takes effect even when the engine does not answer: a stalled engine is just
when the gate must still close.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from resilience.cores.impulses import (
    IMPULSES,
    OF_THE_ENGINE,
    BadArgumentsError,
    complete,
)
from resilience.cores.link import EngineLink, EngineSilentError
from resilience.cores.operations import DRAIN
from resilience.cores.scheduler_knobs import SCHEDULER_KNOBS
from resilience.desired import (
    BadDocumentError,
    ReleasedError,
    StaleDocumentError,
    parse_desired,
)
from resilience.gate.config import GateConfig, is_switched_off
from resilience.gate.identity import OTHER
from resilience.gate.limits import CONCURRENCY, CONTEXT, OUTPUT, OUTSTANDING
from resilience.gate.rungs import meant
from resilience.gate.snapshot import GATE_KNOBS, ROUTE
from resilience.gate.state import GateState
from resilience.gate.ticket import axes_of
from resilience.knobs import knob
from resilience.model import REASON_MAX, Actual, Capabilities, Effective, Json, KnobCapability

ENGINE_TIMEOUT_S = 2.0
IMPULSE_TIMEOUT_S = 10.0
IMPULSES_MAX = 1024
_NO_KNOBS: Mapping[str, Any] = {"knobs": {}, "dropped": ()}
_NOTHING: Json = {"effective": {}, "dropped": ()}


class Refusal(Exception):
    """A request that is answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, code: str, message: str, **extra: Json) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.extra = extra


class ReleaseMarker(Protocol):
    """Remembers a release past the end of this process, where it can."""

    def read(self) -> Mapping[str, Json] | None: ...

    def write(self, released: Mapping[str, Json]) -> None: ...

    def clear(self) -> None: ...


Operation: TypeAlias = Callable[[Json], Awaitable[Json]]


class CoreService:
    """The core of one server. `models` returns the names that it serves now, `adapters` those of
    them that are LoRA adapters of the others."""

    def __init__(
        self,
        state: GateState,
        link: EngineLink,
        *,
        version: str,
        kind: str = "vllm",
        models: Callable[[], Sequence[str]],
        max_running: int | None = None,
        marker: ReleaseMarker | None = None,
        max_model_len: int | None = None,
        kv_tokens: int | None = None,
        operations: Mapping[str, Operation] | None = None,
        adapters: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._marker = marker
        self._operations = operations or {}
        self._state = state
        self._link = link
        self._version = version
        self._kind = kind
        self._models = models
        self._adapters = adapters
        self._max_running = max_running
        self._max_model_len = max_model_len
        self._kv_tokens = kv_tokens
        self._order = asyncio.Lock()
        self._found: Mapping[str, Any] | None = None
        self._passed_on = False
        self._impulses: OrderedDict[str, tuple[Json, asyncio.Task[Json]]] = OrderedDict()
        released = marker.read() if marker is not None else None
        if released is not None:
            state.table.release(released)

    @property
    def draining(self) -> bool:
        """Whether the server takes no new requests because it was told to drain."""
        return any(c.policy == DRAIN for c in self._state.table.own_live(self._state.clock_ms()))

    @property
    def released(self) -> bool:
        return self._state.table.released is not None

    async def capabilities(self, timeout_s: float = ENGINE_TIMEOUT_S) -> Json:
        """Return what this server can do; asks the engine once and again after a silence."""
        scheduler = await self._scheduler_capabilities(timeout_s)
        gate = {} if is_switched_off() else self._gate_capabilities()
        dropped = list(scheduler["dropped"])
        dropped += [
            {"knob": f"impulse.{entry['impulse']}", "reason": entry["reason"]}
            for entry in scheduler.get("missing", ())
        ]
        if not gate:
            dropped += [{"knob": k, "reason": "RESILIENCE_GATE=off"} for k in GATE_KNOBS]
        table = self._state.table
        found = Capabilities(
            self._kind, self._version,
            gate | {k: KnobCapability(**v) for k, v in scheduler["knobs"].items()},
            self._impulses_here(), tuple(self._models()), tuple(dropped), table.epoch,
            table.generation,
        )
        return {**found.to_json(), "gate": self._state.config.to_json()}

    def _impulses_here(self) -> tuple[str, ...]:
        """Return the impulses that this server can do: the engine's, and what was wired here."""
        missing = {entry["impulse"] for entry in (self._found or {}).get("missing", ())}
        return tuple(
            name for name in IMPULSES
            if name in self._operations or (name in OF_THE_ENGINE and name not in missing)
        )

    def _gate_capabilities(self) -> dict[str, KnobCapability]:
        full = {
            CONCURRENCY: self._max_running, OUTSTANDING: self._kv_tokens,
            CONTEXT: self._max_model_len, OUTPUT: self._max_model_len,
        }
        return {
            name: KnobCapability(
                "gate", capacity=None if full.get(name) is None else float(full[name] or 0),
                minimum=None if name not in full else knob_minimum(name),
            )
            for name in GATE_KNOBS
        }

    async def _scheduler_capabilities(self, timeout_s: float) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = await self._link.call({"op": "capabilities"}, timeout_s)
        except EngineSilentError:
            if self._found is None:
                raise Refusal(
                    503, "engine_silent", "the engine process does not answer; try again"
                ) from None
            return self._found
        self._found = found
        return found

    async def put_desired(self, body: Json, timeout_s: float = ENGINE_TIMEOUT_S) -> Json:
        """Take a desired document: all of it or, with a Refusal, nothing."""
        async with self._order:
            now = self._state.clock_ms()
            await self._check(body, now, timeout_s)
            scheduler = await self._pass_on(body, now, timeout_s)
            try:
                self._state.table.put(body, now)
            except StaleDocumentError as stale:  # a newer engine came while that was under way
                raise self._fenced(stale.epoch, stale.generation) from None
            self._state.refresh()
            return self._together(scheduler).to_json()

    async def _check(self, body: Json, now: int, timeout_s: float) -> None:
        try:
            epoch, generation, claims = parse_desired(body, now)
        except BadDocumentError as bad:
            raise Refusal(422, "bad_document", str(bad)) from None
        table = self._state.table
        if (epoch, generation) < (table.epoch, table.generation):
            raise self._fenced(table.epoch, table.generation)
        if claims:
            self._insist()
        if self._found is None and any(c.knob in SCHEDULER_KNOBS for c in claims):
            await self._scheduler_capabilities(timeout_s)
        for claim in claims:
            why = self._why_not(claim.knob, dict(claim.scope), claim.value)
            if why:
                raise Refusal(422, "unsupported", why)

    def _insist(self) -> None:
        try:
            self._state.table.insist()
        except ReleasedError as released:
            raise Refusal(423, "released", str(released)) from None

    def _fenced(self, epoch: int, generation: int) -> Refusal:
        return Refusal(
            409, "fenced",
            f"the core follows epoch {epoch}, generation {generation}; a newer engine drives it",
            epoch=epoch, generation=generation,
        )

    def _why_not(self, knob: str, scope: Mapping[str, str], value: Json) -> str | None:
        """Return why this server cannot honour one claim, or None."""
        if knob in GATE_KNOBS:
            return self._why_gate_cannot(knob, scope, value)
        if knob not in SCHEDULER_KNOBS:
            return None  # the engine's own, such as `metric.x`: kept for the read-back
        capability = (self._found or _NO_KNOBS)["knobs"].get(knob)
        if capability is None:
            return self._why_dropped(knob)
        minimum = capability["minimum"]
        if minimum is not None and value < minimum:
            return (
                f"knob `{knob}` at `{value}` would stop all progress on this server; "
                f"the least it takes is {minimum:g}"
            )
        return None

    def _why_gate_cannot(self, knob: str, scope: Mapping[str, str], value: Json) -> str | None:
        if is_switched_off():
            return f"knob `{knob}` needs the gate, which RESILIENCE_GATE=off takes out"
        config = self._state.config
        for axis, known in (("tier", [*config.tiers]), ("tenant", [*config.tenants, OTHER])):
            name = scope.get(axis)
            if name is not None and name not in known:
                return f"{axis} `{name}` is not one of " + ", ".join(f"`{n}`" for n in known)
        if knob == ROUTE and value["to"] not in self._models() and not meant(
            value["to"], config.ladder
        ):
            return f"model `{value['to']}` is not served here; served are " + ", ".join(
                f"`{m}`" for m in self._models()
            )
        return None

    def _why_dropped(self, knob: str) -> str | None:
        """A lever that the probe dropped is refused; one that failed later is only reported."""
        for entry in (self._found or _NO_KNOBS)["dropped"]:
            if entry["knob"] == knob and not entry.get("lost"):
                return f"knob `{knob}` is not available on this server: {entry['reason']}"
        return None

    async def _pass_on(self, body: Json, now: int, timeout_s: float) -> Json:
        """Send the scheduler's claims to the engine and return its read-back."""
        claims = [c for c in body["claims"] if c["knob"] in SCHEDULER_KNOBS]
        if not claims and not self._passed_on:
            return _NOTHING
        self._passed_on = True
        payload = {"op": "put", "document": {**body, "claims": claims}, "received_ms": now}
        try:
            answer = await self._link.call(payload, timeout_s)
        except EngineSilentError:
            return _silent([c["knob"] for c in claims], timeout_s)
        if answer.get("refused") == "fenced":
            raise self._fenced(answer["epoch"], answer["generation"])
        if answer.get("refused"):
            raise Refusal(422, "unsupported", answer["message"])
        self._passed_on = bool(claims)
        return answer

    async def actual(self, timeout_s: float = ENGINE_TIMEOUT_S) -> Json:
        """Return what is in force in both processes."""
        return self._together(await self._scheduler_actual(timeout_s)).to_json()

    async def _scheduler_actual(self, timeout_s: float) -> Json:
        """Ask the engine what rules there; as long as nothing was passed on, nothing does."""
        if not self._passed_on:
            return _NOTHING
        try:
            return await self._link.call({"op": "actual"}, timeout_s)
        except EngineSilentError:
            return _silent(SCHEDULER_KNOBS, timeout_s)

    def _together(self, scheduler: Json) -> Actual:
        table = self._state.table
        gate = {
            knob: scopes
            for knob, scopes in table.effective(self._state.clock_ms()).items()
            if knob not in SCHEDULER_KNOBS
        }
        engine = {
            knob: {scope: Effective(**e) for scope, e in scopes.items()}
            for knob, scopes in scheduler["effective"].items()
        }
        return Actual(
            table.epoch, table.generation, gate | engine, tuple(scheduler["dropped"]),
            table.released,
        )

    async def release(self, body: Json, timeout_s: float = ENGINE_TIMEOUT_S) -> Json:
        """Drop every claim and refuse others until `resume`; {reason, t_ms} says why and when.

        The gate opens at once. An engine process that stays silent is a Refusal: ask again.
        """
        released = _release_of(body)
        async with self._order:
            table, now = self._state.table, self._state.clock_ms()
            table.release(released)
            self._state.refresh()
            if self._marker is not None:
                self._marker.write(released)
            empty = {"version": 1, "epoch": table.epoch, "generation": table.generation,
                     "claims": []}
            answer = await self._pass_on(empty, now, timeout_s)
        await self._end_operations(timeout_s)
        if self._passed_on:
            raise Refusal(
                503, "engine_silent", "the gate is released, but the engine process did not "
                "answer: its claims end with their leases; try again"
            )
        return self._together(answer).to_json()

    async def _end_operations(self, timeout_s: float) -> None:
        """End a pause and a drain too; one that the engine does not end now ends by its time."""
        resume = self._operations.get("resume")
        if resume is not None:
            with suppress(Exception):
                async with asyncio.timeout(timeout_s):
                    await resume({})

    async def resume(self, body: Json, timeout_s: float = ENGINE_TIMEOUT_S) -> Json:
        """Take claims again; the engine sends them by itself."""
        if body != {}:
            raise Refusal(422, "bad_document", "a resume has an empty object")
        async with self._order:
            if self._marker is not None:
                self._marker.clear()
            self._state.table.resume()
        return await self.actual(timeout_s)

    async def impulse(self, key: str, body: Json) -> Json:
        """Do an impulse at most once for `key`; a repeat gets the stored result."""
        name, args, epoch = _impulse_of(body)
        table = self._state.table
        if epoch < table.epoch:
            raise self._fenced(table.epoch, table.generation)
        self._insist()
        known = self._impulses_here()
        if name not in known:
            raise Refusal(422, "unsupported", self._why_no_impulse(name, known))
        try:
            args = complete(name, args)
        except BadArgumentsError as bad:
            raise Refusal(422, "bad_document", str(bad)) from None
        if epoch > table.epoch:
            table.epoch, table.generation = epoch, 0
        repeated = key in self._impulses
        if not repeated:
            self._impulses[key] = (name, args), asyncio.ensure_future(self._do(name, args))
            while len(self._impulses) > IMPULSES_MAX:
                self._impulses.popitem(last=False)
        done, task = self._impulses[key]
        if done != (name, args):
            raise Refusal(422, "bad_document", f"key `{key}` was used for another impulse "
                          f"(`{done[0]}`): take a new key for each")
        return {"key": key, "impulse": name, "repeated": repeated,
                "result": await asyncio.shield(task)}

    def _why_no_impulse(self, name: str, known: Sequence[str]) -> str:
        for entry in (self._found or {}).get("missing", ()):
            if entry["impulse"] == name:
                return f"impulse `{name}` is not available on this server: {entry['reason']}"
        return f"impulse `{name}` is none of {', '.join(known)}"

    async def _do(self, name: str, args: Json) -> Json:
        """Never raises: the outcome of the one attempt is what a repeat has to get."""
        try:
            if name in self._operations:
                async with asyncio.timeout(IMPULSE_TIMEOUT_S):
                    return await self._operations[name](args)
            payload = {"op": "impulse", "impulse": name, "args": self._for_the_engine(args)}
            return await self._link.call(payload, IMPULSE_TIMEOUT_S)
        except (EngineSilentError, TimeoutError):
            return {"done": None, "error": "the engine process did not answer; it may still do it"}
        except Exception as error:
            return {"done": False, "error": str(error)}

    def _for_the_engine(self, args: Mapping[str, Json]) -> dict[str, Json]:
        """Name the base model by None: a scheduler knows adapters by name, and it by no adapter."""
        model = args.get("model")
        is_base = model in self._models() and model not in self._adapters()
        return {**args, "model": None} if is_base else {**args}

    async def gate_status(self) -> Json:
        """Return what the gate does now: its breakers with their last changes, queue and limit."""
        state = self._state
        admission = state.admission
        return {
            "config": state.config.to_json(), "in_flight": admission.usage.total,
            "waiting": len(admission.queue), "adaptive_limit": admission.limit,
            **self._breakers(),
            "engines": {} if state.ladder.engines is None else dict(state.ladder.engines.states()),
        }

    async def breakers(self) -> Json:
        """Return the breakers' states and last changes; `life` is another after a restart."""
        return {"life": self._state.admission.breakers.life, **self._breakers()}

    def _breakers(self) -> dict[str, Json]:
        found, now = self._state.admission.breakers, self._state.clock_ms()
        return {
            "breakers": found.states(now),
            "events": [
                {"number": e.number, "name": e.name, "scope": axes_of(e.scope),
                 "from": e.from_state, "to": e.to_state, "policy": e.policy,
                 "age_ms": now - e.at_ms}
                for e in found.events
            ],
        }

    async def configure(self, body: Json) -> Json:
        """Replace the gate's configuration (tiers, tenants, headers, queue, limiter)."""
        try:
            self._state.configure(GateConfig.from_json(body))
        except ValueError as error:
            raise Refusal(422, "bad_document", str(error)) from None
        return self._state.config.to_json()


def knob_minimum(name: str) -> float:
    """Return the least value that a number knob takes."""
    definition = knob(name)
    return 0.0 if definition is None else float(definition.minimum)


def _silent(knobs: Sequence[str], timeout_s: float) -> Json:
    reason = f"the engine did not answer within {timeout_s:g} s"
    return {"effective": {}, "dropped": [{"knob": k, "reason": reason} for k in knobs]}


def _release_of(body: Json) -> Mapping[str, Json]:
    if (
        not isinstance(body, Mapping) or set(body) != {"reason", "t_ms"}
        or not isinstance(body["reason"], str)
        or isinstance(body["t_ms"], bool) or not isinstance(body["t_ms"], int)
    ):
        raise Refusal(422, "bad_document", "a release has reason and t_ms")
    return {"t_ms": body["t_ms"], "reason": body["reason"][:REASON_MAX]}


def _impulse_of(body: Json) -> tuple[str, Json, int]:
    wrong = Refusal(422, "bad_document", "an impulse has impulse, args and epoch")
    if not isinstance(body, Mapping) or set(body) != {"impulse", "args", "epoch"}:
        raise wrong
    name, args, epoch = body["impulse"], body["args"], body["epoch"]
    if not isinstance(name, str) or isinstance(epoch, bool) or not isinstance(epoch, int):
        raise wrong
    if args is not None and not isinstance(args, Mapping):
        raise wrong
    return name, args, epoch
