"""kill -9 at the steps of the journal, in a live run against the real vLLM core.

A sample here; RESILIENCE_CRASH=all (`make crash`) kills before and after every single batch.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import serving as kit

pytestmark = pytest.mark.live
HERE = Path(__file__).parent
LEASE_S = 4
SLOW_S = 60
BATCHES_MAX = 60
POLICY = kit.busy_policy(kit.throttle(LEASE_S), "{type: reset_prefix_cache}")
# Between decision, intent, core, impulse and their reports: wherever two records could disagree.
SAMPLE = ("decision:1:before", "intent:1:after", "impulse:1:after", "impulse:2:before")


class Run:
    """One engine's life with a kill in it, and the next engine's."""

    def __init__(self, server: Any, environment: dict[str, str], home: Path) -> None:
        self.server, self.environment, self.home = server, environment, home
        self.state, self.log = home / "state", home / "log"
        self.rules = home / "rules"
        self.rules.mkdir()
        (self.rules / "busy.yaml").write_text(POLICY)
        self.load: Any = None
        self._engines: list[Any] = []

    def engine(self, point: str) -> Any:
        engine = kit.EngineProcess(
            [self.rules, "--state", self.state, "--attach", self.server.url, "--token-file",
             self.server.token_file, "--wait", "60s"],
            self.environment, (HERE / "crash_at.py", point, self.log),
        )
        self._engines.append(engine)
        return engine

    def end(self) -> None:
        """End what still runs, so that a failure here is none of the next test's."""
        self.end_load()
        for engine in self._engines:
            engine.end(signal.SIGKILL)

    def effective(self) -> Any:
        answer = httpx.get(
            f"{self.server.url}/resilience/v1/actual", trust_env=False, timeout=30,
            headers={"authorization": f"Bearer {self.server.token}"},
        )
        return answer.json()["effective"]

    def throttled(self) -> bool:
        return "throttle.max_concurrency" in self.effective()

    def begin_load(self) -> None:
        self.load = self.load or kit.Load(self.server.url)

    def end_load(self) -> None:
        if self.load is not None:
            self.load.end()
            self.load = None

    def rows(self, kind: str) -> dict[str, Any]:
        return kit.rows(self.state, kind)

    def instance(self) -> dict[str, Any]:
        (row,) = self.rows("state").values()
        return dict(row)

    def lines(self, word: str) -> list[list[str]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.startswith(word)]

    def until(self, process: Any, holds: Callable[[], bool], within_s: float = 300.0) -> bool:
        """Wait until `holds`, or the engine is dead; returns whether it still lives."""
        ends_s = time.monotonic() + within_s
        while process.poll() is None:
            if holds():
                return True
            assert time.monotonic() < ends_s, f"neither so nor dead: {self.told()}"
        return False

    def told(self) -> str:
        """What there is to see of this run, for whom it fails."""
        running = httpx.get(f"{self.server.url}/metrics", trust_env=False, timeout=60).text
        served = [line for line in running.splitlines() if line.startswith("vllm:num_requests_")]
        log = self.log.read_text() if self.log.exists() else "no log"
        return "\n".join([log, *served, *map(str, self.rows("state").values()),
                          *map(str, self.rows("decision").values()), str(self.effective())])

    def first_life(self, point: str) -> bool:
        """Fire, enforce, resolve, stop; returns whether the engine lived through all of it."""
        engine = self.engine(point)
        process = engine.process
        self.begin_load()
        alive = self.until(process, lambda: self.throttled() and bool(self.lines("impulse")))
        if alive:
            self.end_load()
            alive = self.until(process, lambda: self.resolved() and not self.throttled())
        code = engine.end(signal.SIGTERM) if alive else engine.end(0)
        return bool(code == 0)

    def resolved(self) -> bool:
        return self.state.exists() and any(
            d["to"] == "inactive" for d in self.rows("decision").values())


@contextmanager
def life(server: Any, tiny_model: Any) -> Generator[Run]:
    """A run with a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        made = Run(server, tiny_model.environment, Path(folder))
        try:
            yield made
        finally:
            made.end()


def check(run: Run, point: str, *, wait_for_lease: bool) -> bool:
    """Let one engine die at `point` and prove what must hold; returns whether it died."""
    lived = run.first_life(point)
    if not lived:
        second_life(run, wait_for_lease)
    # Back from `held`, without samples for a moment, is the same firing as before.
    firings = [d for d in run.rows("decision").values()
               if d["to"] == "firing" and d["from"] != "held"]
    impulses = run.lines("impulse")
    assert len(firings) == 1, f"{point}: fired {len(firings)} times"
    assert len({key for key, _ in impulses}) == 1, f"{point}: {impulses}"
    assert sum(how == "done" for _, how in impulses) <= 1, f"{point}: {impulses}"
    assert run.effective() == {}, point
    return not lived


def second_life(run: Run, wait_for_lease: bool) -> None:
    """After the kill: the lease ends alone, the state is the same, and all ends at baseline."""
    died_s = time.monotonic()
    before = run.rows("state") if (run.state / "journal.db").exists() else {}
    if wait_for_lease:
        while run.effective():
            assert time.monotonic() < died_s + LEASE_S + SLOW_S, "claims outlive their lease"
    overloaded = run.load is not None
    engine = run.engine("any:0:after")
    engine.ready()
    if overloaded:
        assert run.until(engine.process, run.throttled)
        # A new engine has no samples at first: it may hold, and its clocks stand still meanwhile.
        assert run.until(engine.process, lambda: run.instance()["state"] == "firing")
        after, was = run.instance(), next(iter(before.values()), {"state": "none"})
        assert after["firing"] == 1
        if was["state"] == "firing":
            assert after["firing_since_ms"] == was["firing_since_ms"]
            assert after["true_since_ms"] >= was["true_since_ms"]
        run.end_load()
        engine.decided("inactive")
    assert run.until(engine.process, lambda: not run.effective())
    assert engine.end(signal.SIGTERM) == 0


if os.environ.get("RESILIENCE_CRASH") == "all":

    @pytest.mark.timeout(3_600)
    def test_a_kill_at_every_step_loses_and_repeats_nothing(server: Any, tiny_model: Any) -> None:
        for number in range(1, BATCHES_MAX):
            died = False
            for side in ("before", "after"):
                with life(server, tiny_model) as run:
                    died |= check(run, f"any:{number}:{side}", wait_for_lease=side == "after")
            print(f"batch {number}: {'ok' if died else 'the run has no such batch'}", flush=True)
            if not died:
                return
        raise AssertionError(f"more than {BATCHES_MAX} batches in one life")

else:

    @pytest.mark.parametrize("point", SAMPLE)
    def test_a_kill_at_a_step_of_the_journal_loses_and_repeats_nothing(
        server: Any, tiny_model: Any, point: str
    ) -> None:
        with life(server, tiny_model) as run:
            reached = check(run, point, wait_for_lease=point == "intent:1:after")
        assert reached, "the step was not reached"
