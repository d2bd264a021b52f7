"""A serving core in memory: the same document, fold and leases, with scripted faults.

It serves tests and the simulator, so it reads no clock and draws no random number.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from resilience.cores.kind import CoreKind
from resilience.desired import (
    BadDocumentError,
    ClaimTable,
    ReleasedError,
    StaleDocumentError,
    parse_desired,
)
from resilience.errors import (
    CoreError,
    CoreFencedError,
    CoreRefusedError,
    CoreReleasedError,
    CoreUnreachableError,
)
from resilience.model import (
    Actual,
    Capabilities,
    Core,
    Desired,
    Json,
    KnobCapability,
    labels_of,
)

FAULTS_MAX = 1024
IMPULSES_MAX = 1024
HISTORY_MAX = 4096
T = TypeVar("T")
FaultKind: TypeAlias = Literal["slow", "failing", "lost_reply"]

KNOBS: Mapping[str, KnobCapability] = {
    "throttle.max_concurrency": KnobCapability("gate", capacity=32.0, minimum=0.0),
    "throttle.max_requests_per_second": KnobCapability("gate", minimum=0.0),
    "throttle.max_prompt_tokens_per_second": KnobCapability("gate", minimum=0.0),
    "throttle.max_outstanding_tokens": KnobCapability("gate", capacity=65_536.0, minimum=0.0),
    "throttle.max_context_tokens": KnobCapability("gate", capacity=4_096.0, minimum=1.0),
    "throttle.max_output_tokens": KnobCapability("gate", capacity=4_096.0, minimum=1.0),
    "throttle.token_quota": KnobCapability("gate"),
    "limiter.rule": KnobCapability("gate"),
    "breaker.rule": KnobCapability("gate"),
    "route.model": KnobCapability("gate"),
    "cache.prefix_enabled": KnobCapability("subclass", baseline=True),
    "cache.max_running": KnobCapability("subclass", baseline=32, capacity=32.0, minimum=1.0),
    "cache.admit_running": KnobCapability("attribute", baseline=32, capacity=32.0, minimum=1.0),
    "cache.step_tokens": KnobCapability("attribute", baseline=2048, capacity=2048.0, minimum=1.0),
    "cache.kv_blocks": KnobCapability("subclass", baseline=512, capacity=512.0, minimum=32.0),
    "cache.kv_blocks_soft": KnobCapability("attribute", baseline=512, capacity=512.0, minimum=1.0),
    "cache.batching": KnobCapability("attribute", baseline="dynamic"),
    "cache.mode": KnobCapability("subclass", baseline="batch"),
}
IMPULSES = (
    "reset_prefix_cache", "pause", "resume", "drain", "abort_requests", "capture_incident",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one call. `slow`: it takes `delay_ms`, and past the deadline the answer
    is lost though the work is done; `failing`: nothing is done; `lost_reply`: done, no answer."""

    kind: FaultKind
    delay_ms: int = 0


class SimulatedCore:
    """model.Core in memory. `monotonic_ms` is the clock that leases are counted on."""

    def __init__(
        self,
        monotonic_ms: Callable[[], int] = lambda: 0,
        *,
        knobs: Mapping[str, KnobCapability] = KNOBS,
        models: tuple[str, ...] = ("base", "small"),
        tiers: tuple[str, ...] = ("core", "elastic", "best-effort"),
        tenants: tuple[str, ...] = ("other",),
    ) -> None:
        self._clock_ms = monotonic_ms
        self._knobs = dict(knobs)
        self._models = models
        self._names = {"tier": tiers, "tenant": tenants}
        self._faults: deque[Fault] = deque(maxlen=FAULTS_MAX)
        self.calls: deque[str] = deque(maxlen=HISTORY_MAX)
        self.done: deque[tuple[str, str, Json]] = deque(maxlen=HISTORY_MAX)
        self.restart()

    def restart(self) -> None:
        """Lose what a server process loses: claims, epoch, results of impulses, a release."""
        self._table = ClaimTable()
        self._results: OrderedDict[str, Json] = OrderedDict()

    def script(self, *faults: Fault | None) -> None:
        """Let the next calls go wrong, one entry a call; None is a call that goes well."""
        self._faults.extend(Fault("slow", 0) if f is None else f for f in faults)

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        def work() -> Capabilities:
            return Capabilities(
                "simulated", "1", dict(self._knobs), IMPULSES, self._models, (),
                self._table.epoch, self._table.generation,
            )

        return self._run("capabilities", work, deadline_ms)

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        return self._run("put_desired", lambda: self._put(desired), deadline_ms)

    def actual(self, *, deadline_ms: int) -> Actual:
        return self._run("actual", self._actual, deadline_ms)

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        return self._run(
            "impulse", lambda: self._impulse(key, impulse, args, epoch), deadline_ms
        )

    def release(self, reason: str, *, t_ms: int, deadline_ms: int) -> Actual:
        """Drop every claim and take no other until `resume`."""
        def work() -> Actual:
            self._table.release({"t_ms": t_ms, "reason": reason})
            return self._actual()

        return self._run("release", work, deadline_ms)

    def resume(self, *, deadline_ms: int) -> Actual:
        """Take claims again."""
        def work() -> Actual:
            self._table.resume()
            return self._actual()

        return self._run("resume", work, deadline_ms)

    def value(self, knob: str, scope: Mapping[str, str] | None = None) -> Json:
        """Return what is in force for a knob: the claimed value, or the baseline."""
        effective = self._table.effective(self._clock_ms()).get(knob, {})
        text = ",".join(f"{k}={v}" for k, v in labels_of(scope or {}))
        return effective[text].value if text in effective else self._knobs[knob].baseline

    def _run(self, name: str, work: Callable[[], T], deadline_ms: int) -> T:
        """Do one call under the next scripted fault."""
        self.calls.append(name)
        fault = self._faults.popleft() if self._faults else None
        if fault is not None and fault.kind == "failing":
            raise CoreError(f"the simulated core failed in `{name}`")
        result = work()
        late = fault is not None and fault.delay_ms > deadline_ms
        if fault is not None and (fault.kind == "lost_reply" or late):
            raise CoreUnreachableError(f"no answer from the simulated core in {deadline_ms} ms")
        return result

    def _put(self, desired: Desired) -> Actual:
        body, now = desired.to_json(), self._clock_ms()
        try:
            _, _, claims = parse_desired(body, now)
            for claim in claims:
                self._check(claim.knob, dict(claim.scope), claim.value)
            self._table.put(body, now)
        except BadDocumentError as bad:
            raise CoreRefusedError(str(bad)) from None
        except StaleDocumentError as stale:
            raise self._fenced(stale.epoch, stale.generation) from None
        except ReleasedError as released:
            raise CoreReleasedError(str(released)) from None
        return self._actual()

    def _check(self, knob: str, scope: Mapping[str, str], value: Json) -> None:
        if knob.startswith("metric."):
            return
        capability = self._knobs.get(knob)
        if capability is None:
            raise CoreRefusedError(f"knob `{knob}` is not available on this server")
        if capability.minimum is not None and value < capability.minimum:
            raise CoreRefusedError(f"knob `{knob}` at `{value}` would stop all progress")
        for axis, names in self._names.items():
            if axis in scope and scope[axis] not in names:
                raise CoreRefusedError(f"{axis} `{scope[axis]}` is not one of {', '.join(names)}")
        if knob == "route.model" and value["to"] not in self._models:
            raise CoreRefusedError(f"model `{value['to']}` is not served here")

    def _actual(self) -> Actual:
        effective = self._table.effective(self._clock_ms())
        return Actual(
            self._table.epoch, self._table.generation, effective, released=self._table.released
        )

    def _impulse(self, key: str, impulse: str, args: Json, epoch: int) -> Json:
        if epoch < self._table.epoch:
            raise self._fenced(self._table.epoch, self._table.generation)
        try:
            self._table.insist()
        except ReleasedError as released:
            raise CoreReleasedError(str(released)) from None
        if impulse not in IMPULSES:
            raise CoreRefusedError(f"impulse `{impulse}` is none of {', '.join(IMPULSES)}")
        if epoch > self._table.epoch:
            self._table.epoch, self._table.generation = epoch, 0
        if key not in self._results:
            self.done.append((key, impulse, args))
            self._results[key] = {"done": True, "how": "reset"}
            while len(self._results) > IMPULSES_MAX:
                self._results.popitem(last=False)
        return self._results[key]

    def _fenced(self, epoch: int, generation: int) -> CoreFencedError:
        return CoreFencedError(
            f"the core follows epoch {epoch}, generation {generation}; a newer engine drives it",
            epoch=epoch, generation=generation,
        )


@dataclass(frozen=True, slots=True)
class SimulatedParams:
    """What a simulated core offers."""

    models: tuple[str, ...] = ("base", "small")


def connect(params: SimulatedParams) -> Core:
    """Return a core whose leases never end, because its clock stands still."""
    return SimulatedCore(models=params.models)


SIMULATED = CoreKind(
    name="simulated",
    doc="A core in memory with scripted faults, for tests and the simulator.",
    params=SimulatedParams,
    example="models: [base, small]\n",
    connect=connect,
)
