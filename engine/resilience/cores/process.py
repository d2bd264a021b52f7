"""A server of any core in a process group of its own: its settings, its log, its start and end.

The server survives the engine: it is a session of its own, writes its log itself and gets its
configuration from files in the state folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from resilience.errors import CoreError, UsageError
from resilience.gate.config import GateConfig, networks
from resilience.model import EngineConfig

TOKEN_FILE = "core.token"
CONFIG_FILE = "core.json"
LOG_FILE = "core.log"
KEEPER = "resilience.cores.keeper"
# Whose X-Forwarded-For uvicorn takes for the peer's address: by default that of any local client,
# which could so name itself a trusted peer, and a trusted proxy's word would count as its client's.
FORWARDED = "FORWARDED_ALLOW_IPS"
LOG_MAX = 64 * 1024 * 1024
POLL_S = 0.1
PROBE_MS = 2_000
_PREFIX = re.compile(r"^\([\w.-]+(?: pid=\d+)?\)\s*|^(?:ERROR|INFO|WARNING) \S+ \S+ \[[^\]]*\]\s*")
_TELLING = re.compile(r"^(?:[\w.]*(?:Error|Exception)|[\w.-]+: error)\b.*:.*"
                      r"|.*\b(?:proc \S+ died|core exited) unexpectedly\b")
_LISTS = re.compile(r"\d+ validation errors? for \w+$")   # pydantic: what is wrong stands below it
_INPUT = re.compile(r"\s*\[type=.*")
_HOLLOW = ("Engine core initialization failed", "See root cause above", "See stack trace",
           "RuntimeError: cancelled")   # what others say of a process that died


@dataclass
class ServerProcess:
    """A server that we started. `pgid` is its own group; `log` its output, appended; `name` what
    it is called in messages."""

    url: str
    token: str
    token_file: Path
    log: Path
    pid: int
    pgid: int
    command: tuple[str, ...]
    _process: subprocess.Popen[bytes]
    name: str = "vLLM"

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def wait_ready(self, deadline_s: float) -> None:
        """Return when the server serves; raises CoreError with one line that says why not."""
        from resilience.cores.client import HttpCore  # a server reads its arguments without it

        ends_s = time.monotonic() + deadline_s
        with HttpCore(self.url, self.token) as core:
            while time.monotonic() < ends_s:
                code = self.exit_code
                if code is not None:
                    raise CoreError(
                        f"{self.name} stopped ({ending(code)}) before it was ready: "
                        f"{last_words(self.log)}; the whole log is `{self.log}`"
                    )
                if core.is_healthy(deadline_ms=PROBE_MS):
                    return
                time.sleep(POLL_S)
        raise CoreError(
            f"{self.name} was not ready after {deadline_s:g} s: {last_words(self.log)}; "
            f"the whole log is `{self.log}`"
        )

    def stop(self, timeout_s: float) -> int | None:
        """End the whole session, after `timeout_s` by force; returns the exit code."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pgid, signal.SIGKILL)
        _kill_session(self.pgid)    # a keeper that was killed leaves its group behind
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self.exit_code

    def trim_log(self, max_bytes: int = LOG_MAX) -> None:
        """Keep the log bounded: beyond `max_bytes` it starts afresh (the server appends)."""
        with suppress(OSError):
            if self.log.stat().st_size > max_bytes:
                os.truncate(self.log, 0)


def spawn(
    command: Sequence[str], url: str, token: str, state_dir: Path, env: Mapping[str, str],
    name: str = "vLLM", *, owned: bool = False,
) -> ServerProcess:
    """Start `command` as a session of its own and return at once. The log begins afresh; the one
    before is kept beside it. An `owned` one ends with this process, whatever ends that."""
    env = {FORWARDED: "", **env}
    if owned:
        command = [command[0], "-m", KEEPER, *command]
    log = state_dir / LOG_FILE
    with suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE if owned else subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True, env=env,
        )
    finally:
        os.close(output)
    return ServerProcess(
        url, token, state_dir / TOKEN_FILE, log, process.pid, process.pid, tuple(command),
        process, name,
    )


def _kill_session(leader: int) -> None:
    """Kill what is left of a session, in whichever group."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(folder.name), signal.SIGKILL)


def local_url(bind_host: str, port: int) -> str:
    """Return where this machine reaches a server that is bound to `bind_host`."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind_host, bind_host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_settings(
    config: EngineConfig, state_dir: Path, control_peers: Sequence[str] = ()
) -> tuple[str, Path]:
    """Write a fresh token and the core's settings (both 0600); returns (token, settings file)."""
    try:
        gate = GateConfig.from_engine(config)
        networks(tuple(control_peers))
    except ValueError as error:
        raise UsageError(str(error)) from None
    token = secrets.token_hex(32)
    token_file, settings = state_dir / TOKEN_FILE, state_dir / CONFIG_FILE
    body = {"version": 1, "token_file": str(token_file.resolve()), "gate": gate.to_json(),
            "health": asdict(config.health)}
    if control_peers:
        body["control_peers"] = list(control_peers)
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_private(token_file, token + "\n")
        _write_private(settings, json.dumps(body, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to the state folder `{state_dir}`: {error}") from None
    return token, settings


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; at no time can anyone else read it."""
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def check_port(host: str, port: int) -> None:
    """Try the port before anything starts: a server says so only after loading its libraries."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise UsageError(
                f"port `{port}` of `{host or 'this machine'}` cannot be used "
                f"({error.strerror}); choose another with `--port`"
            ) from None


def last_words(log: Path, tail_bytes: int = 65_536) -> str:
    """Return the line of a log that tells most about its end: the last real error, or the last."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - tail_bytes))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "there is no log"
    lines = [_bare(line) for line in text.splitlines()]
    told = [
        number for number, line in enumerate(lines)
        if _TELLING.match(line) and not any(h in line for h in _HOLLOW)
    ]
    spoken = told or [number for number, line in enumerate(lines) if line]
    return _sentence(lines, spoken[-1])[:300] if spoken else "the log is empty"


def _sentence(lines: Sequence[str], number: int) -> str:
    """Return that line, and of a list of errors the first one: a field, and what it should be."""
    line = lines[number]
    if _LISTS.search(line) is None:
        return line
    first: list[str] = []
    for below in lines[number + 1 : number + 3]:
        first.append(_INPUT.sub("", below))
        if first[-1] != below:
            break   # the input that was wrong ends an error; one without a field is a single line
    return ": ".join([line, *filter(None, first)])


def _bare(line: str) -> str:
    """Strip the process and time prefixes of a log line."""
    before = ""
    while line != before:
        before, line = line, _PREFIX.sub("", line, count=1).strip()
    return line


def ending(code: int) -> str:
    """Return how a process with this exit code ended; a keeper adds 128 to a signal's number."""
    if 128 < code < 128 + signal.NSIG:
        code = 128 - code
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
