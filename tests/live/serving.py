"""`resilience serve` as users run it, and load on the server: what several live tests share."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from resilience.app.journal import SqliteJournal

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
# No connection is used twice: a server that stands still for 5 s closes those that it has kept, and
# who asks at that moment, without any pause between two requests, gets no answer.
ONCE = httpx.Limits(max_keepalive_connections=0)
# How a client sees that a server has gone. A time-out is none of these: that is a hang.
ENDED = (httpx.NetworkError, httpx.RemoteProtocolError)
BUSY = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: busy, annotations: {runbook_url: "https://example.org/busy"}}
spec:
  interval: 1s
  trigger:
    expr: sum by (model_name) (vllm:num_requests_running) > 2
    on_no_data: hold
    resolve: {expr: sum by (model_name) (vllm:num_requests_running) < 1}
  actions:
"""
TOKENS_MAX = 4_000  # of a short prompt's answer: the models here hold 4,096


def resilience(*args: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *map(str, args)], capture_output=True, text=True,
        timeout=300, check=False, **more,
    )


def eventually(check: Callable[[], T], within_s: float = 180.0) -> T:
    """Ask until `check()` holds and return what it said. Every question goes to a server, so this
    does not spin."""
    ends_s = time.monotonic() + within_s
    while not (found := check()):
        if time.monotonic() > ends_s:
            raise AssertionError(f"not within {within_s:g} s")
    return found


def how_it_ended(api: Any, prompt: str, tokens: int) -> str:
    """Return how a request ended: why it finished, its status, or that nobody was there. Raises on
    a hang. A server that is told to end may end its requests in order, as aborted ones."""
    try:
        answer = api.complete(prompt, tokens)
    except ENDED:
        return "disconnected"
    if answer.status_code != 200:
        return str(answer.status_code)
    return str(answer.json()["choices"][0]["finish_reason"])


def is_told(end: str) -> bool:
    """Say whether this end of a request tells its client that the server has gone."""
    return end in ("abort", "disconnected") or end.startswith("5")


def in_group(pgid: int) -> list[int]:
    """Return the living processes of a process group."""
    return _living(2, pgid)


def of_engine(pgid: int, name: str = "VLLM::") -> list[int]:
    """Return the processes of a server's group that vLLM calls so: `VLLM::Worker`, its engine's."""
    return [pid for pid in in_group(pgid)
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def in_session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    return _living(3, leader)


def _living(field: int, value: int) -> list[int]:
    """Return the processes, zombies apart, whose word of /proc/PID/stat behind the name is this."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[field]) == value and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def starve(pid: int) -> None:
    """Let no allocation of the process succeed that needs more memory than it has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def busy_policy(*actions: str) -> str:
    """Return a policy that does `actions` from the moment that three requests run until none do."""
    return BUSY + "".join(f"    - {action}\n" for action in actions)


def throttle(lease_s: int) -> str:
    return f"{{type: throttle, tier: best-effort, max_concurrency: 1, lease: {lease_s}s}}"


def rows(state: Path, kind: str) -> dict[str, Any]:
    """Return the journal's rows of a kind by their key."""
    journal = SqliteJournal(state / "journal.db")
    try:
        return dict(journal.load(kind))
    finally:
        journal.close()


class EngineProcess:
    """One `resilience serve -o json`, read line by line."""

    def __init__(
        self, args: list[str | Path], environment: dict[str, str],
        program: tuple[str | Path, ...] = (ROOT / "cli.py",),
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, program), "serve", "-o", "json", *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        self.seen: list[Any] = []
        self.told: list[Any] = []

    def wait(self, fits: Callable[[Any], bool]) -> Any:
        """Read events until one fits; the engine's end is a failure."""
        for event in self.seen:
            if fits(event):
                return event
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.seen.append(event)
            if fits(event):
                return event
        raise AssertionError(f"the engine ended: {self.process.stderr.read()}")

    def ready(self) -> Any:
        return self.wait(lambda e: e["event"] == "ready")

    def decided(self, to: str) -> Any:
        found = self.wait(
            lambda e: e["event"] == "decision" and e["decision"]["to"] == to
            and e not in self.told
        )
        self.told.append(found)
        return found["decision"]

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(90)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return self.process.returncode


@dataclass
class Live:
    """A server that `serve` started and that outlives its engines."""

    state: Path
    rules: Path
    url: str
    server_pid: int
    environment: dict[str, str]
    engines: list[EngineProcess] = field(default_factory=list[EngineProcess])

    @property
    def token(self) -> str:
        return (self.state / "core.token").read_text().strip()

    def core(self, path: str, token: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.get(
            f"{self.url}/resilience/v1/{path}", headers=headers, timeout=60, trust_env=False)

    def effective(self) -> Any:
        return self.core("actual").json()["effective"]

    def attach(self, *args: str | Path) -> EngineProcess:
        self.engines.append(EngineProcess(
            [self.rules, "--state", self.state, "--attach", self.url, "--token-file",
             self.state / "core.token", "--wait", "60s", *args], self.environment,
        ))
        return self.engines[-1]

    def end_engines(self) -> None:
        """End those that still run."""
        while self.engines:
            self.engines.pop().end(signal.SIGKILL)

    def complete(self, tokens: int) -> httpx.Response:
        body = {"model": "base", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=120, trust_env=False)


class Load:
    """Streams that keep the server busy until they are ended, opened past the gate's limit. One
    that comes to its end, on a fast server or in a long test, begins again, and never all of them
    at the same time: the server is not idle for a moment."""

    def __init__(
        self, url: str, streams: int = 4, *, model: str = "base", tokens: int = TOKENS_MAX,
        begun: int | None = None,
    ) -> None:
        """Return when `begun` streams, else all of them, have begun. `tokens` is what one makes."""
        self._url, self._model, self._tokens = url, model, tokens
        self._ended, self._running = threading.Event(), threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._keep, args=(tokens * n // streams,), daemon=True)
            for n in range(1, streams + 1)
        ]
        for thread in self._threads:
            thread.start()
        for _ in range(streams if begun is None else begun):
            if not self._running.acquire(timeout=120):
                self.end()
                raise AssertionError("a stream did not begin")

    def _keep(self, tokens: int) -> None:
        """Read a stream again and again, the first one of `tokens`; a server that says nothing is
        asked anew."""
        timeout = httpx.Timeout(120, read=60)
        with httpx.Client(timeout=timeout, trust_env=False, limits=ONCE) as client:
            while not self._ended.is_set():
                try:
                    self._read(client, tokens)
                    tokens = self._tokens
                except httpx.HTTPError:
                    self._ended.wait(0.1)

    def _read(self, client: httpx.Client, tokens: int) -> None:
        body = {"model": self._model, "prompt": "x", "max_tokens": tokens, "ignore_eos": True,
                "stream": True}
        with client.stream(
            "POST", f"{self._url}/v1/completions", json=body, headers={"x-slo-tier": "core"}
        ) as response:
            response.raise_for_status()
            self._running.release()
            for _ in response.iter_raw():
                if self._ended.is_set():
                    return

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Users:
    """Users that each ask for a whole answer, and again when they have it, until they are ended:
    as many requests as users are under way, however fast the server is."""

    def __init__(self, ask: Callable[[str], httpx.Response], users: int) -> None:
        self.answers: list[httpx.Response] = []
        self._ask, self._ended = ask, threading.Event()
        self._pool = ThreadPoolExecutor(users)
        self._asking = [self._pool.submit(self._keep, number) for number in range(users)]

    def _keep(self, user: int) -> None:
        """Ask with another prompt each time, of which only the beginning is made here."""
        for turn in count():
            self.answers.append(self._ask(f"{user} {turn} "))
            if self._ended.is_set():
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let each have what it asked for last. Raises what a user was told instead."""
        self._ended.set()
        self._pool.shutdown()
        for user in self._asking:
            user.result()

    def lengths(self) -> set[int]:
        """Return how many tokens the answers had."""
        return {answer.json()["usage"]["completion_tokens"] for answer in self.answers}
