"""SandboxRunner: the port through which the engine runs UDFs."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilience.errors import SandboxError
from resilience.model import EngineConfig, Finding, UdfCall, UdfOutcome
from resilience.sandbox.answer import Answer, Rules, one_line
from resilience.sandbox.exchange import Exchange
from resilience.sandbox.layers import Layer, layers_of, refusal
from resilience.sandbox.limits import REQUEST_BYTES_MAX, SOURCE_FILES_MAX, TIMEOUT_MS_MAX
from resilience.sandbox.lookup import find
from resilience.sandbox.pool import Pool
from resilience.sandbox.process import LoadedFile, Zygote
from resilience.sandbox.quarantine import Quarantine
from resilience.sandbox.wire import frame

SPARES = 8
PARALLEL_MAX = 8
RESTART_PAUSE_S = 1.0
DETAIL_MAX = 500


@dataclass(frozen=True, slots=True)
class Settings:
    """How a runner runs. `skip`, `module` and `paths` are for tests of the layers."""

    rules: Rules = Rules()
    spares: int = SPARES
    parallel: int = PARALLEL_MAX
    skip: frozenset[str] = frozenset()
    module: str = "resilience.sandbox.zygote"
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """Sources that a zygote of their own has loaded, before or while they are in force."""

    sources: Mapping[str, str]
    config: EngineConfig
    pool: Pool

    def findings(self) -> list[Finding]:
        """Return what is wrong with the files, as `check_source` would."""
        return [
            Finding(file, line, column, "error", f"udf-{code}", message, hint)
            for file, loaded in self.pool.zygote.files.items()
            for line, column, code, message, hint in loaded.denials
        ]

    def layers(self) -> tuple[Layer, ...]:
        """Return the kernel layers, engaged or not."""
        return layers_of(self.pool.zygote.layers, self.config)

    def refusal(self) -> str | None:
        """Return why UDFs may not run here, None if they may."""
        return refusal(self.pool.zygote.layers, self.config)

    def close(self) -> None:
        self.pool.close()


@dataclass(slots=True)
class _Job:
    index: int
    call: UdfCall
    started: float
    pool: Pool
    exchange: Exchange


@dataclass(slots=True)
class _Batch:
    """One `run`: what waits, what runs, what is done."""

    deadline: float
    queue: deque[tuple[int, UdfCall]]
    active: list[_Job] = field(default_factory=list)
    done: dict[int, UdfOutcome] = field(default_factory=dict)


class SandboxRunner:
    """Runs UDFs of `sources` (file -> text). Thread-safe; `close` ends its processes.

    Raises SandboxError when the sandbox process cannot start. A layer that is missing and required
    refuses every call (outcome COMPILE_DENIED) unless `config.sandbox_allow_weak`.
    """

    def __init__(
        self, sources: Mapping[str, str], config: EngineConfig | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._config = config or EngineConfig()
        self._settings = settings or Settings()
        self._slots = threading.BoundedSemaphore(self._settings.parallel)
        self._lock = threading.Lock()
        self._quarantine = Quarantine()
        self._sources: Mapping[str, str] = dict(sources)
        self._pool = self._make_pool(self._sources)
        self._replaced: deque[Pool] = deque()
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._wake.set()
        self._refiller = threading.Thread(target=self._refill, name="udf-spares", daemon=True)
        self._refiller.start()

    # --- the port ---

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        """Run `calls` side by side and return their outcomes in order.

        `deadline_ms` is how long all of them may take, from now. Each call may also take at most
        its own time-out, counted from the moment it gets a worker.
        """
        batch = _Batch(time.monotonic() + deadline_ms / 1000, deque(enumerate(calls)))
        try:
            while batch.queue or batch.active:
                self._start_some(batch)
                if batch.queue:
                    self._wake.set()  # more calls than spares: fork ahead while these run
                if batch.active:
                    self._turn(batch)
        finally:
            for job in batch.active:  # none but when something raised
                self._let_go(job)
            self._wake.set()
        return [batch.done[i] for i in range(len(calls))]

    def reload(self, sources: Mapping[str, str], config: EngineConfig | None = None) -> None:
        """Swap in a zygote with `sources`; calls in flight end on the old one.

        A UDF whose file did not change stays in quarantine. Raises SandboxError, changing nothing.
        """
        self.adopt(self.stage(sources, config))

    def stage(self, sources: Mapping[str, str], config: EngineConfig | None = None) -> Staged:
        """Start a zygote with `sources` beside the one that runs; raises SandboxError.

        Give what comes back to `adopt`, or close it.
        """
        return Staged(dict(sources), config or self._config, self._make_pool(sources))

    def adopt(self, staged: Staged) -> None:
        """Swap in what `stage` has started, at once: the old zygote is closed in the background."""
        with self._lock:
            old, self._pool = self._pool, staged.pool
            changed = {f for f in {*self._sources, *staged.sources}
                       if self._sources.get(f) != staged.sources.get(f)}
            self._sources, self._config = staged.sources, staged.config
            self._forget(old, staged.pool, changed)
            self._replaced.append(old)
        self._wake.set()

    def quarantined(self) -> Mapping[str, str]:
        """Return function -> why, for those that are no longer run."""
        return self._quarantine.reasons()

    def release(self, function: str) -> bool:
        """Take `function` out of quarantine; False if it is not in it."""
        return self._quarantine.release([function])

    def layers(self) -> tuple[Layer, ...]:
        """Return the kernel layers, engaged or not."""
        return self.current().layers()

    def files(self) -> Mapping[str, LoadedFile]:
        """Return what was loaded: functions and denials of each file."""
        return self._pool.zygote.files

    def current(self) -> Staged:
        """Return what runs now, in the shape of what may run next."""
        with self._lock:
            return Staged(self._sources, self._config, self._pool)

    def spares_ready(self) -> int:
        """Return how many workers wait for a call."""
        return self._pool.ready()

    def close(self) -> None:
        """End every process and thread of this runner."""
        self._closed.set()
        self._wake.set()
        self._refiller.join()
        self._pool.close()
        self._close_replaced()

    # --- one batch ---

    def _start_some(self, batch: _Batch) -> None:
        while batch.queue:
            left_s = batch.deadline - time.monotonic()
            if left_s <= 0:  # a call that gets no time is not to blame for it
                self._give_up(batch)
                return
            wait_s = 0.0 if batch.active else left_s
            if not self._slots.acquire(timeout=wait_s):
                if not batch.active:
                    self._give_up(batch)
                return
            index, call = batch.queue.popleft()
            try:
                started = self._start(index, call, batch)
            except BaseException:
                self._slots.release()
                raise
            if not started:
                self._slots.release()

    def _give_up(self, batch: _Batch) -> None:
        for index, call in batch.queue:
            answer = Answer("TIMEOUT", None, "no worker was free in time")
            batch.done[index] = _outcome(call, answer)
        batch.queue.clear()

    def _start(self, index: int, call: UdfCall, batch: _Batch) -> bool:
        """Begin one call; False if it is over already, with its outcome noted."""
        now = time.monotonic()
        pool = self._retained()
        if pool is None:
            batch.done[index] = _outcome(call, Answer("CRASH", None, "the sandbox is closed"))
            return False
        answer = self._refused(pool, call)
        if answer is None:
            job = self._begin(index, call, pool, now, batch)
            if isinstance(job, _Job):
                batch.active.append(job)
                return True
            answer = job
        pool.zygote.release()
        batch.done[index] = _outcome(call, answer)
        return False

    def _begin(
        self, index: int, call: UdfCall, pool: Pool, now: float, batch: _Batch
    ) -> _Job | Answer:
        file = find(pool.zygote.files, self._sources, call.function)
        if isinstance(file, Answer):
            return file
        try:
            payload = frame({"file": file, "function": call.function, "context": call.context})
        except (ValueError, TypeError, RecursionError) as error:
            return Answer("RUNTIME_DENIED", None, f"the context is not JSON: {error}")
        if len(payload) > REQUEST_BYTES_MAX:
            return Answer("RUNTIME_DENIED", None,
                          f"the context is larger than {REQUEST_BYTES_MAX:,} bytes")
        try:
            worker = pool.take()
        except SandboxError as error:
            return Answer("CRASH", None, str(error))
        timeout_s = min(max(call.timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
        deadline = min(batch.deadline, time.monotonic() + timeout_s)
        exchange = Exchange(worker, payload, self._settings.rules, deadline)
        return _Job(index, call, now, pool, exchange)

    def _turn(self, batch: _Batch) -> None:
        """Wait for the next event of any running call, and end those that are over."""
        poll = select.poll()
        by_fd: dict[int, Exchange] = {}
        now = time.monotonic()
        for job in batch.active:
            for fd, events in job.exchange.wanted(now):
                poll.register(fd, events)
                by_fd[fd] = job.exchange
        wait_s = max(0.0, min(_next(j.exchange, now) for j in batch.active) - now)
        for fd, _ in poll.poll(wait_s * 1000):
            by_fd[fd].happened(fd)
        now = time.monotonic()
        for job in list(batch.active):
            if job.exchange.answer is None and job.exchange.deadline <= now:
                job.exchange.time_out()
            if job.exchange.answer is not None:
                batch.active.remove(job)
                batch.done[job.index] = self._finish(job, job.exchange.answer)

    def _finish(self, job: _Job, answer: Answer) -> UdfOutcome:
        duration_ms = (time.monotonic() - job.started) * 1000
        self._let_go(job)
        if not job.exchange.fault:
            limit = self._config.udf_quarantine_after
            self._quarantine.count(job.call.function, answer.outcome, limit)
        return _outcome(job.call, answer, duration_ms)

    def _let_go(self, job: _Job) -> None:
        job.exchange.worker.end()
        job.pool.zygote.release()
        self._slots.release()

    # --- lookup, refusal, quarantine ---

    def _retained(self) -> Pool | None:
        """Return the current pool with one call counted; None once this runner is closed."""
        while not self._closed.is_set():
            pool = self._pool
            if pool.zygote.retain():
                return pool  # else it was swapped in between
        return None

    def _restart(self, dead: Pool) -> None:
        """Replace a zygote that has died. Calls meanwhile fail at once: a tick does not wait."""
        try:
            fresh = self._make_pool(self._sources)
        except SandboxError:
            self._closed.wait(RESTART_PAUSE_S)
            return
        with self._lock:
            swapped = self._pool is dead
            if swapped:
                self._pool = fresh
        (dead if swapped else fresh).close()

    def _refused(self, pool: Pool, call: UdfCall) -> Answer | None:
        reason = refusal(pool.zygote.layers, self._config)
        if reason is not None:
            return Answer("COMPILE_DENIED", None, reason)
        why = self._quarantine.reason(call.function)
        return None if why is None else Answer("QUARANTINED", None, why)

    def _forget(self, old: Pool, fresh: Pool, changed: set[str]) -> None:
        """Forgive the functions of changed files."""
        for file in changed:
            for loaded in (old.zygote.files.get(file), fresh.zygote.files.get(file)):
                self._quarantine.release(row[0] for row in (loaded.functions if loaded else ()))

    # --- processes ---

    def _make_pool(self, sources: Mapping[str, str]) -> Pool:
        if len(sources) > SOURCE_FILES_MAX:
            raise SandboxError(f"there are {len(sources)} UDF files, at most {SOURCE_FILES_MAX}")
        s = self._settings
        return Pool(Zygote(sources, s.skip, s.module, s.paths), s.spares)

    def _refill(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            self._close_replaced()
            pool = self._pool
            if not self._closed.is_set() and not pool.zygote.alive():
                self._restart(pool)
                pool = self._pool
            if not self._closed.is_set():
                pool.refill()

    def _close_replaced(self) -> None:
        while self._replaced:
            self._replaced.popleft().close()


def _next(exchange: Exchange, now: float) -> float:
    """Return when to look at `exchange` again though nothing happened."""
    if exchange.patient(now):
        return min(exchange.deadline, exchange.patient_until)
    return exchange.deadline


def _outcome(call: UdfCall, answer: Answer, duration_ms: float = 0.0) -> UdfOutcome:
    detail = None if answer.detail is None else one_line(answer.detail, DETAIL_MAX)
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, answer.outcome, answer.result,
        detail, answer.log, round(duration_ms, 3),
    )
