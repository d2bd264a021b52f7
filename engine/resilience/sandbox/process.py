"""The zygote seen from the engine: start, spawn workers, ask how they ended, stop."""

from __future__ import annotations

import array
import fcntl
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import resilience
from resilience.errors import SandboxError
from resilience.sandbox.answer import one_line
from resilience.sandbox.wire import HEADER_BYTES, READY, body_length

START_TIMEOUT_MS = 20_000
# A busy machine may let the zygote stand still for seconds; to end it costs every call until the
# next one is up.
CONTROL_TIMEOUT_MS = 10_000
CLOSE_TIMEOUT_MS = 1_000
HELLO_BYTES_MAX = 16 * 1024 * 1024
# Options of the interpreter: no user site, no unsafe path, no site, no .pyc files.
_PYTHON = ("-s", "-P", "-S", "-B")
_BOOT = (
    "import json, sys; sys.path += json.loads(sys.argv.pop(1)); "
    "from resilience.sandbox.bootstrap import main; main()"
)


class Worker:
    """A child of the zygote. Used once; `end` kills it whatever it does."""

    __slots__ = ("number", "pidfd", "reply_fd", "request_fd", "started", "zygote")

    def __init__(
        self, zygote: Zygote, number: int, pidfd: int, request_fd: int, reply_fd: int
    ) -> None:
        self.zygote = zygote
        self.number = number
        self.request_fd = request_fd
        self.reply_fd = reply_fd
        self.pidfd = pidfd
        self.started = False  # becomes True once its READY byte was read

    def wait(self, timeout_ms: float) -> bool:
        """Wait until the process has ended by itself; False if it is still there."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_ms)))

    def ready(self) -> bool:
        """Return whether its READY byte has arrived, without waiting."""
        if not self.started:
            poll = select.poll()
            poll.register(self.reply_fd, select.POLLIN)
            self.started = bool(poll.poll(0)) and os.read(self.reply_fd, 1) == READY
        return self.started

    def end(self) -> None:
        """Kill the process and close all that belongs to it. Safe to repeat."""
        if self.pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended: the normal case
        except PermissionError:
            self.zygote.kill()  # root without CAP_KILL: the zygote takes its children along
        for fd in (self.pidfd, self.request_fd, self.reply_fd):
            os.close(fd)
        self.pidfd = -1


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """What the zygote says of one UDF file: its functions, and why it was refused."""

    functions: tuple[tuple[str, int, int, bool], ...]
    denials: tuple[tuple[int, int, str, str, str | None], ...]


class Zygote:
    """A running zygote with one set of sources. Thread-safe."""

    def __init__(
        self, sources: Mapping[str, str], skip: frozenset[str] = frozenset(),
        module: str = "resilience.sandbox.zygote", paths: tuple[str, ...] = (),
    ) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._in_flight = 0
        self._retired = False
        self._process, self._control, hello = _start(sources, skip, module, paths)
        try:
            report = _read_hello(hello)
            self.layers: dict[str, bool] = {k: v is True for k, v in report["layers"].items()}
            self.files = {f: _loaded(r) for f, r in report["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.close()
            raise SandboxError(f"the sandbox process did not start: {error}") from error
        finally:
            os.close(hello)

    def alive(self) -> bool:
        return self._process.poll() is None and self._control.fileno() >= 0

    def spawn(self, ahead: bool = True) -> Worker:
        """Return a new worker, maybe not ready yet; raises SandboxError.

        `ahead` of a call it also warms up; for a call that waits that would be lost time.
        """
        child_in, request_fd = os.pipe()
        reply_fd, child_out = os.pipe()
        try:
            with self._lock:
                self._number += 1
                number = self._number
                request = {"op": "spawn", "id": number, "ahead": ahead}
                answer, fds = self._ask(request, [child_in, child_out])
        except SandboxError:
            os.close(request_fd)
            os.close(reply_fd)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        if len(fds) != 1 or "pid" not in answer:
            for fd in (*fds, request_fd, reply_fd):
                os.close(fd)
            raise SandboxError("the sandbox process has too many workers")
        os.set_blocking(request_fd, False)
        os.set_blocking(reply_fd, False)
        return Worker(self, number, fds[0], request_fd, reply_fd)

    def status(self, worker: Worker) -> int | None:
        """Return the exit status of an ended worker (negative: the signal), None if unknown."""
        try:
            with self._lock:
                answer, _ = self._ask({"op": "status", "id": worker.number}, [])
        except SandboxError:
            return None
        status = answer.get("status")
        return status if isinstance(status, int) else None

    def _ask(self, request: Mapping[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        """One question, one answer. After a failure the two would be out of step: end it."""
        try:
            return self._exchange(request, fds)
        except (OSError, ValueError) as error:
            self.kill()
            raise SandboxError("the sandbox process does not answer") from error

    def _exchange(
        self, request: Mapping[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any], list[int]]:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._control.sendmsg([json.dumps(request).encode()], rights)
        data, got, _, _ = socket.recv_fds(self._control, 4096, 4)
        if not data:
            raise SandboxError("the sandbox process has ended")
        return json.loads(data), got

    # --- life ---

    def retain(self) -> bool:
        """Count one call in flight; False once the zygote is retired."""
        with self._lock:
            if self._retired:
                return False
            self._in_flight += 1
            return True

    def release(self) -> None:
        """End one call in flight; the last one of a retired zygote closes it."""
        with self._lock:
            self._in_flight -= 1
            done = self._retired and self._in_flight == 0
        if done:
            self.close()

    def retire(self) -> None:
        """Close as soon as no call is in flight."""
        with self._lock:
            self._retired = True
            done = self._in_flight == 0
        if done:
            self.close()

    def kill(self) -> None:
        """End the zygote at once, and with it all its workers."""
        self._process.kill()
        self._control.close()

    def close(self) -> None:
        """Stop the process: it ends when its control socket does."""
        self._control.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_MS / 1000)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start(
    sources: Mapping[str, str], skip: frozenset[str], module: str, paths: tuple[str, ...]
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    if not sys.platform.startswith("linux"):
        raise SandboxError("UDFs need Linux: the sandbox is made of its kernel's layers")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(CONTROL_TIMEOUT_MS / 1000)
    bundle = _above_standard(os.memfd_create("udfs"))
    hello, hello_write = os.pipe()
    hello_write = _above_standard(hello_write)
    theirs = socket.socket(fileno=_above_standard(theirs.detach()))
    try:
        with open(bundle, "w", encoding="utf-8", errors="surrogatepass", closefd=False) as file:
            json.dump(dict(sources), file)
        os.lseek(bundle, 0, os.SEEK_SET)
        fds = (theirs.fileno(), bundle, hello_write)
        process = subprocess.Popen(
            [sys.executable, *_PYTHON, "-c", _BOOT, json.dumps([*_import_paths(), *paths]),
             *map(str, fds), str(os.getpid()), ",".join(sorted(skip)), module],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"}, cwd="/", pass_fds=fds, start_new_session=True,
        )
    except OSError as error:
        ours.close()
        os.close(hello)
        raise SandboxError(f"the sandbox process cannot be started: {error.strerror}") from error
    finally:
        theirs.close()
        os.close(bundle)
        os.close(hello_write)
    return process, ours, hello


def _above_standard(fd: int) -> int:
    """Return `fd` moved above 2: in an engine that was started with 0-2 closed it could be one of
    them, and the child would get /dev/null in its place."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _import_paths() -> tuple[str, ...]:
    """Return the folders of our package and of RestrictedPython, wherever they are installed."""
    spec = importlib.util.find_spec("RestrictedPython")
    if spec is None or spec.origin is None:
        raise SandboxError("RestrictedPython is not installed")
    ours = Path(next(iter(resilience.__path__))).resolve().parent
    return tuple(dict.fromkeys((str(ours), str(Path(spec.origin).resolve().parents[1]))))


def _read_hello(fd: int) -> dict[str, Any]:
    """Return the zygote's first and only frame; raises ValueError without one."""
    deadline = time.monotonic() + START_TIMEOUT_MS / 1000
    data = bytearray()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while len(data) <= HELLO_BYTES_MAX:
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms <= 0 or not poll.poll(left_ms):
            raise ValueError("it said nothing in time")
        part = os.read(fd, 1 << 16)
        if not part:
            break
        data += part
    header, body = bytes(data[:HEADER_BYTES]), bytes(data[HEADER_BYTES:])
    if len(header) < HEADER_BYTES or body_length(header) != len(body):
        raise ValueError("it ended without a word")
    report: dict[str, Any] = json.loads(body)
    if "error" in report:
        raise ValueError(one_line(str(report["error"])))
    return report


def _loaded(row: Mapping[str, Any]) -> LoadedFile:
    return LoadedFile(
        tuple((str(n), int(line), int(c), bool(ok)) for n, line, c, ok in row["functions"]),
        tuple((int(line), int(c), str(code), str(m), None if s is None else str(s))
              for line, c, code, m, s in row["denials"]),
    )
