"""The engine as a user runs it, `resilience serve`, and the core as anyone can read it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

READY_S = 300.0
STOP_S = 40.0
READ_S = 0.25
EVENTS_MAX = 100_000
COMMAND = str(Path(sys.executable).with_name("resilience"))


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline. `who` is a policy, `core` or `load`."""

    t_ms: int
    who: str
    what: str


@dataclass
class EngineProcess:
    """A running `resilience serve -o json`. `events` are its lines, as they came."""

    process: subprocess.Popen[str]
    log: Path
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _reader: threading.Thread | None = None

    @classmethod
    def start(
        cls, arguments: Sequence[str], log: Path, variables: Mapping[str, str]
    ) -> EngineProcess:
        """Start the engine in a session of its own: Ctrl-C reaches the demo, which ends it."""
        with log.open("w") as stream:
            process = subprocess.Popen(
                [COMMAND, "serve", *arguments], stdout=subprocess.PIPE, stderr=stream, text=True,
                stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **variables},
            )
        engine = cls(process, log)
        engine._reader = threading.Thread(target=engine._read, name="events", daemon=True)
        engine._reader.start()
        return engine

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                if len(self.events) < EVENTS_MAX:
                    self.events.append(json.loads(line))

    def wait_ready(self, progress: Callable[[float], None]) -> dict[str, Any]:
        """Return the engine's `ready` event; raises DemoError when it ends or takes too long."""
        start_s = time.monotonic()
        while time.monotonic() - start_s < READY_S:
            ready = next((e for e in self.events if e.get("event") == "ready"), None)
            if ready is not None:
                return ready
            if self.process.poll() is not None:
                raise DemoError(f"`resilience serve` ended before it was ready: {self._last()}")
            progress(time.monotonic() - start_s)
            time.sleep(READ_S)
        raise DemoError(f"the server was not ready after {READY_S:g} s: {self._last()}")

    def _last(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'it said nothing'} (all of it: {self.log})"

    def decisions(self) -> list[dict[str, Any]]:
        """Return the decisions so far, in order."""
        return [e["decision"] for e in list(self.events) if e.get("event") == "decision"]

    def stop(self) -> None:
        """End the engine in order; the server goes on. Raises DemoError if it does not end well."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the engine did not end within {STOP_S:g} s") from None
        if self._reader is not None:
            self._reader.join(5)
        if code:
            raise DemoError(f"the engine ended with code {code}: {self._last()}")


class CoreWatch:
    """Reads back from the core itself, with its own token, what is in force; notes each change."""

    def __init__(self, url: str, token: str) -> None:
        self.moments: list[Moment] = []
        self.enforced: set[str] = set()
        self.in_force: dict[str, str] = {}
        headers = {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=5.0, trust_env=False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="core", daemon=True)

    def __enter__(self) -> CoreWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._http.close()

    def _watch(self) -> None:
        while not self._stop.wait(READ_S):
            with suppress(httpx.HTTPError, ValueError, KeyError):
                self._note(self._http.get("/resilience/v1/actual").raise_for_status().json())

    def _note(self, actual: Mapping[str, Any]) -> None:
        now = {
            f"{knob}{'{' + scope + '}' if scope else ''}": f"{entry['value']} ({entry['policy']})"
            for knob, scopes in actual["effective"].items()
            for scope, entry in scopes.items() if entry.get("policy")
        }
        t_ms = time.time_ns() // 1_000_000
        for name in sorted(now.keys() | self.in_force.keys()):
            if now.get(name) != self.in_force.get(name):
                what = f"{name} = {now[name]}" if name in now else f"{name} is back at its baseline"
                self.moments.append(Moment(t_ms, "core", what))
        self.enforced |= now.keys()
        self.in_force = now
