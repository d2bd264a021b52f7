"""What the tests of app and cli share: a clock moved by hand, a small core, a live engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import Sources, check_sources, propose
from resilience.app.bus import Bus
from resilience.app.control import public_routes, routes
from resilience.app.engine import Engine
from resilience.app.files import LineFiles, StateFolder
from resilience.app.http import Request, Response, dispatch
from resilience.app.journal import MemoryJournal, SqliteJournal
from resilience.app.operations import Operations
from resilience.app.parts import Parts
from resilience.app.recorder import Recorder
from resilience.app.runtime import Runtime
from resilience.app.udfs import Udfs
from resilience.desired import ClaimTable, ReleasedError, StaleDocumentError
from resilience.errors import (
    CoreError,
    CoreFencedError,
    CoreRefusedError,
    CoreReleasedError,
    CoreUnreachableError,
    JournalError,
)
from resilience.model import (
    Actual,
    Capabilities,
    Claim,
    Decision,
    Desired,
    Impulse,
    Json,
    KnobCapability,
    Labels,
    Reason,
    State,
    Truth,
    labels_of,
)
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

T = 1_000_000
KNOBS = ("throttle.max_concurrency", "cache.prefix_enabled", "cache.max_running")


@dataclass
class HandClock:
    """Wall and monotonic time, moved by hand."""

    wall_ms: int = 1_000_000
    mono_ms: int = 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def forward(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms


@dataclass
class SmallCore:
    """model.Core in memory. `fail` raises once for each entry; `lose` answers get lost after the
    work is done; `refuse` says why a claim is not accepted."""

    clock: HandClock
    table: ClaimTable = field(default_factory=ClaimTable)
    puts: list[Desired] = field(default_factory=list)
    looks: int = 0
    done: dict[str, Json] = field(default_factory=dict)
    times_done: list[str] = field(default_factory=list)
    fail: list[CoreError] = field(default_factory=list)
    lose: int = 0
    refused: int = 0
    fits: dict[str, float] = field(default_factory=dict)
    refuse: Callable[[Json], str | None] = lambda claim: None

    def restart(self) -> None:
        self.table, self.done = ClaimTable(), {}

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        self._maybe_fail()
        return Capabilities(
            "small", "1", {k: KnobCapability("gate", fits=self.fits.get(k)) for k in KNOBS},
            ("reset_prefix_cache",),
            epoch=self.table.epoch, generation=self.table.generation,
        )

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        self._maybe_fail()
        body = desired.to_json()
        for claim in body["claims"]:
            why = self.refuse(claim)
            if why:
                raise CoreRefusedError(why)
        try:
            self.table.put(body, self.clock.mono_ms)
        except StaleDocumentError as error:
            raise CoreFencedError(str(error), epoch=error.epoch) from error
        except ReleasedError as error:
            self.refused += 1
            raise CoreReleasedError(str(error)) from error
        self.puts.append(desired)
        self._maybe_lose()
        return self._actual()

    def actual(self, *, deadline_ms: int) -> Actual:
        self._maybe_fail()
        self.looks += 1
        return self._actual()

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        self._maybe_fail()
        if epoch < self.table.epoch:
            raise CoreFencedError("an older epoch", epoch=self.table.epoch)
        if key not in self.done:
            self.done[key] = {"ok": True}
            self.times_done.append(key)
        self._maybe_lose()
        return self.done[key]

    def values(self) -> dict[str, dict[str, Json]]:
        return {
            knob: {scope: e.value for scope, e in scopes.items()}
            for knob, scopes in self.table.effective(self.clock.mono_ms).items()
        }

    def _actual(self) -> Actual:
        return Actual(
            self.table.epoch, self.table.generation, self.table.effective(self.clock.mono_ms),
            released=self.table.released,
        )

    def _maybe_fail(self) -> None:
        if self.fail:
            raise self.fail.pop(0)

    def _maybe_lose(self) -> None:
        if self.lose:
            self.lose -= 1
            raise CoreUnreachableError("no answer")


T0 = 1_800_000_000_000
WAITING = "vllm:num_requests_waiting"

POLICY = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: queue}
spec:
  interval: 1s
  trigger:
    expr: max by (model_name) (vllm:num_requests_waiting) > LIMIT
    on_no_data: hold
    resolve: {expr: max by (model_name) (vllm:num_requests_waiting) < 2}
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}
"""


def sources(limit: int = 10, extra: str = "") -> Sources:
    return Sources((("queue.yaml", (POLICY.replace("LIMIT", str(limit)) + extra).encode()),))


class Rig:
    """A runtime with everything real but the core and the clock."""

    def __init__(
        self, folder: Path, core: Any, clock: Any, *, record_results: bool = False
    ) -> None:
        self.clock, self.core = clock, core
        clock.wall_ms = T0
        state = StateFolder.create(folder)
        self.store = MemoryStore()
        self.recorder = Recorder(self.store)
        self.said: list[str] = []
        self.intervals: list[list[int]] = []
        source = EmbeddedSource(self.store, 1_000)
        self.journal = SqliteJournal(state.journal)
        bus = Bus(core, self.journal, clock, jitter=lambda: 1.0)
        bus.attach(deadline_ms=1_000)
        udfs, files = Udfs(), LineFiles(state.path)
        engine = Engine(
            check_sources(sources()).bundle, source=source, journal=self.journal, propose=propose,
            bus=bus, udfs=udfs, files=files, events=self.recorder.event,
            record_results=record_results, keep_inputs=True,
        )
        engine.restore()
        self.runtime = Runtime(Parts(
            engine, bus, clock, self.journal, files, source, udfs, BundleStore(state.bundles),
            recorder=self.recorder, say=self.said.append,
            on_intervals=lambda i: self.intervals.append(list(i)),
        ))
        self.operations = Operations(self.runtime)
        self.operations.remember(engine.bundle, "start")
        BundleStore(state.bundles).save(engine.bundle.revision, sources())
        self.labels: tuple[Labels, ...] = (
            labels_of({"__name__": WAITING, "model_name": "m"}),
        )

    def close(self) -> None:
        self.journal.close()
        self.runtime.parts.files.close()
        self.runtime.parts.udfs.close()
        self.recorder.stop()

    def second(self, waiting: float, missed: int = 0) -> None:
        """Scrape once, tick once, and let a second pass."""
        now = self.clock.now_ms()
        self.recorder.mind_the_clock(now, 1_000)
        self.recorder.append(now - 100, self.labels, np.full(len(self.labels), waiting))
        self.recorder.scraped(now - 100)
        self.runtime.tick(now, 1_000, missed)
        self.clock.forward(1_000)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self.response(method, path, body, **headers)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def response(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        path, _, tail = path.partition("?")
        query = dict(pair.split("=") for pair in tail.split("&") if pair)
        raw = b"" if body is None else json.dumps(body).encode()
        fixed = {k.replace("_", "-"): v for k, v in headers.items()}
        request = Request(method, f"/v1/{path}", (), query, fixed, raw)
        return dispatch(routes(self.runtime), request, self.fault)

    def public(self, path: str) -> Response:
        return dispatch(public_routes(self.runtime), Request("GET", path, (), {}, {}), self.fault)

    def fault(self, error: Exception) -> str:
        return self.runtime.troubles.fault("control", error)


def fire(rig: Rig) -> None:
    """Let the policy fire: four seconds, the last two above the limit."""
    for waiting in (0, 0, 20, 20):
        rig.second(waiting)


# A policy with everything, one of its group, one that claims the same knob, and an engine whose
# belts clip: the samples of `everything` take each of them through its life.
EVERYTHING = """
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec:
  safety: {capacity_removed: 90%, disruptive_per_hour: 1}
---
apiVersion: resilience/v1
kind: Policy
metadata: {name: full}
spec:
  interval: 1s
  trigger:
    expr: max by (model_name) (vllm:num_requests_waiting) > 10
    on_no_data: hold
    resolve: {expr: max by (model_name) (vllm:num_requests_waiting) < 2}
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 4}
    - {type: cache_degrade, max_running: 4}
    - {type: reset_prefix_cache}
  verify:
    expr: max by (model_name) (vllm:num_requests_waiting)
    improves: down
    by: 10%
    within: 4s
    quarantine: 6s
  guard: {expr: max by (model_name) (vllm:num_requests_waiting) > 90, quarantine: 5s}
  probe: {after: 3s, share: 50%, for: 2s, max: 2}
  limits: {cooldown: 2s}
  priority: 60
  group: capacity
---
apiVersion: resilience/v1
kind: Policy
metadata: {name: lesser}
spec:
  interval: 1s
  trigger:
    expr: max by (model_name) (vllm:num_requests_waiting) > 8
    on_no_data: resolve
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 8}
  priority: 40
  group: capacity
---
apiVersion: resilience/v1
kind: Policy
metadata: {name: rival}
spec:
  interval: 1s
  trigger: {expr: max by (model_name) (vllm:num_requests_waiting) > 15, on_no_data: resolve}
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 2}
  priority: 30
"""
WAITINGS = (
    0, 20, 20, 17, 16, 5, 5, 5, 5, 5,      # fires, is met, is probed
    0, 0, 20, 20, 20, 20, 20, 20, 20,      # ends, cools down, fires, verify fails, quarantine
    20, 20, 20, 20, 20, 95, 95, 95,        # fires again, guard
    0, 9, 9, 0, 0,                         # the other of its group
)


def with_everything(rig: Rig) -> None:
    """Apply EVERYTHING on a core whose knobs have capacities."""
    rig.runtime.parts.engine.observe_capabilities(Capabilities(
        "small", "1", {
            "throttle.max_concurrency": KnobCapability("gate", capacity=100.0),
            "cache.max_running": KnobCapability("engine", capacity=100.0),
        },
    ))  # fmt: skip
    rig.operations.apply(Sources((("rules.yaml", EVERYTHING.encode()),)), allow_missing=True)


RESET = Impulse("p", "i1", 1, "1", "reset_prefix_cache")


def decision(
    before: tuple[Claim, ...] = (), after: tuple[Claim, ...] = (), *, t_ms: int = T,
    policy: str = "p", mode: Any = "enforce", impulses: tuple[Impulse, ...] = (),
) -> Decision:
    return Decision(
        t_ms, "sha256:1", policy, "h", "i1", (), 1.0, Truth.TRUE, Reason.BREACH, State.PENDING,
        State.FIRING, claims_before=before, claims_after=after, mode=mode, impulses=impulses,
    )


class FullDisk(MemoryJournal):
    full = False

    def append(self, batch: Any) -> None:
        if self.full:
            raise JournalError("cannot write the journal: disk full")
        super().append(batch)


UDF = """
def halve(ctx):
    return {"actions": [{"type": "throttle", "tier": "best-effort",
                         "max_concurrency": int(ctx["value"]) // 2}]}
"""


def with_udf() -> Sources:
    yaml = tuple(
        (p, b.replace(b"{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}",
                      b"{type: udf_call, function: halve, timeout: 3s, metrics: {}}"))
        for p, b in sources().files
    )
    return Sources(yaml, ((("udfs/halve.py", UDF),),))
