"""`resilience serve` as users run it, and load on the server: what several live tests share."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]


def resilience(*args: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *map(str, args)], capture_output=True, text=True,
        timeout=120, check=False, **more,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_group(pgid: int) -> list[int]:
    """Return the living processes of a process group."""
    return _living(2, pgid)


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

    @property
    def token(self) -> str:
        return (self.state / "core.token").read_text().strip()

    def core(self, path: str, token: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.get(f"{self.url}/resilience/v1/{path}", headers=headers, trust_env=False)

    def effective(self) -> Any:
        return self.core("actual").json()["effective"]

    def attach(self, *args: str | Path) -> EngineProcess:
        return EngineProcess(
            [self.rules, "--state", self.state, "--attach", self.url, "--token-file",
             self.state / "core.token", *args], self.environment,
        )

    def complete(self, tokens: int) -> httpx.Response:
        body = {"model": "base", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60, trust_env=False)


class Load:
    """Streams that keep the server busy until they are ended, opened past the gate's limit."""

    def __init__(self, url: str, streams: int = 4) -> None:
        self._client = httpx.Client(timeout=120, trust_env=False)
        self._open = [self._begin(url) for _ in range(streams)]

    def _begin(self, url: str) -> httpx.Response:
        body = {"model": "base", "prompt": "x", "max_tokens": 4000, "ignore_eos": True,
                "stream": True}
        request = self._client.build_request(
            "POST", f"{url}/v1/completions", json=body, headers={"x-slo-tier": "core"}
        )
        return self._client.send(request, stream=True)

    def end(self) -> None:
        for response in self._open:
            response.close()
        self._client.close()
